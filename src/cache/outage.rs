//! What this process does while its backend is away: what it remembers, serves, and writes later.
//!
//! An [`Outage`] of a shard begins with a failure and ends with the first answer. After a refused
//! write it ends with the next write that is accepted.
//!
//! **Remembered** are entries that the backend returned or stored, if they may be stale, and values
//! that were loaded in the outage. [`Remembered`] has what each kind gives way to. An act of this
//! process forgets both, and a load from before the act is not remembered.
//!
//! **Served** is a remembered value where the backend gave no answer, within its windows. It is as
//! new as the fence that its caller knows ([`recall`](Core::recall)). It says nothing of now, so no
//! [watch](super::EntryWatch) keeps it.
//!
//! **Written later** is what failed meanwhile, as [`writes`] says. Until then the backend counts as
//! away for the name, whatever it answers. [`repeats`] has the task that writes.

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
    local::Fill,
    outcome::Record,
    read::Decision,
};
use crate::{
    backend::{Entry, EntryKind},
    key::{Key, Name},
};

impl<V: Clone + Send + Sync + 'static> Core<V> {
    /// Remembers a value that was loaded in an outage, for the later callers of this process. Its
    /// entry has the greatest fence than which it is known to be newer.
    ///
    /// It is not remembered if the outage has ended, or an act of this process has come, since its
    /// load began.
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
        copies.note_loaded(begun, key, outage, (entry, size), value.clone());
    }

    /// Decides what the value is good for that this process remembers in an outage, if it does.
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
