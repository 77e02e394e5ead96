//! What this process does while its backend is away: what it remembers, serves, and writes later.
//!
//! An [`Outage`] of a shard begins with a failure and ends with the first answer. After a refused
//! write it ends with the next write that is accepted.
//!
//! - **Remembered.** The process remembers two kinds of values: an entry that the backend has
//!   returned or stored, if the entry may be stale, and a value that was loaded in the outage.
//!   [`Remembered`] says which answers of the backend replace each kind. A write of this process
//!   removes both kinds, and a load that began before the write is not remembered.
//! - **Served.** If the backend gives no answer, a caller is served the remembered value within its
//!   windows, unless the caller knows a greater fence ([`recall`](Core::recall)). A
//!   [watch](super::EntryWatch) never keeps a remembered value, because it may be old.
//! - **Written later.** A write that fails is repeated later ([`writes`]). Until then the backend
//!   counts as away for the name, whatever it answers. [`repeats`] has the task that repeats.

mod remembered;
mod repeats;
mod write_notes;
mod writes;

pub(super) use self::{
    remembered::{Outage, Remembered},
    write_notes::WriteTarget,
    writes::{Deferral, DeferredWrites},
};

use super::{
    Loaded, Source,
    breaker::Shard,
    core::Core,
    freshness::{self, Rules, Window},
    lead::Previous,
    local::{CopiedEntry, Fill},
    outcome::Record,
    read::Decision,
};
use crate::{
    backend::{Entry, EntryKind},
    key::{Key, Name},
};

impl<V: Clone + Send + Sync + 'static> Core<V> {
    /// Remembers a value that was loaded in an outage, for later callers of this process. The fence
    /// of its entry is the greatest fence that is known to be older than the value.
    ///
    /// The value is not remembered if the outage has ended since the load began, or if this process
    /// has written the key since then.
    pub(super) fn remember(
        &self,
        key: &Key,
        shard: &Shard,
        outage: Outage,
        begun: Fill,
        mut entry: Entry,
        value: &V,
    ) {
        let Some(copies) = &self.local.copies else { return };
        if entry.kind != EntryKind::Value || shard.breaker.outage() != Some(outage) {
            return;
        }
        let size = self.take_payload(&mut entry).len();
        copies.note_loaded(begun, key, outage, CopiedEntry { entry, size }, value.clone());
    }

    /// Decides what a remembered value means for a caller, if there is one.
    pub(super) fn recall(
        &self,
        key: &Key,
        name: &Name,
        rules: &Rules,
        outage: Outage,
    ) -> Option<Decision<V>> {
        let (row, entry) = self.local.copies.as_ref()?.recall(key, outage)?;
        let fence = entry.fence;
        if fence < rules.least_fence {
            return None;
        }
        let record = if row.remembered.is_of_backend() {
            Record::of(&entry)
        } else {
            Record::unstored(&entry)
        };
        let loaded = Loaded { value: row.value.clone(), source: Source::Degraded, record };
        let refreshes = &self.loads.refreshes;
        let window =
            freshness::decide(&entry, rules, |window| refreshes.delay(name, fence, window));
        Some(match window {
            Window::OnError | Window::Over => Decision::Old(Previous::new(&entry, rules, loaded)),
            _ => Decision::Served(loaded, None),
        })
    }
}
