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

mod repeats;
mod write_notes;
mod writes;

use std::sync::atomic::{AtomicU64, Ordering};

pub(super) use self::{
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

/// The time between a failure and the next answer. No two have the same number in a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Outage {
    number: u64,
    /// The backend refuses writes, and may answer reads.
    pub(super) refuses: bool,
}

impl Outage {
    pub(super) fn next(refuses: bool) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self { number: NEXT.fetch_add(1, Ordering::Relaxed), refuses }
    }
}

/// Whether a copy is served while the backend is away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Remembered {
    /// It is not. The copy is for the local tier alone.
    No,
    /// It is, within its windows: the backend has returned or stored it.
    Seen,
    /// It is in this outage alone, in which it was loaded. Its load had no lease, or its commit no
    /// answer.
    Loaded(Outage),
}

impl Remembered {
    /// Returns whether an entry is remembered that the backend has returned or stored. Its windows
    /// say whether its user expects an older value.
    pub(super) fn of_seen(entry: &Entry) -> Self {
        match entry.windows {
            Some(windows) if !windows.is_fresh_only() => Self::Seen,
            _ => Self::No,
        }
    }

    /// Returns whether the backend has returned or stored the copy.
    pub(super) fn is_of_backend(self) -> bool {
        !matches!(self, Self::Loaded(_))
    }

    pub(super) fn is_served_in(self, outage: Outage) -> bool {
        match self {
            Self::No => false,
            Self::Seen => true,
            Self::Loaded(of) => of == outage,
        }
    }

    /// Returns whether a copy with the fence `own` stays when the backend returns another fence. An
    /// older answer may be handled later. A backend that refuses writes does not have what was
    /// loaded since.
    pub(super) fn outlives_answer(self, own: u64, fence: u64) -> bool {
        match self {
            Self::Loaded(outage) => outage.refuses && fence <= own,
            Self::No | Self::Seen => fence < own,
        }
    }

    /// Returns whether a copy stays when the backend has no entry. A backend that refuses writes
    /// could not get what was loaded since.
    pub(super) fn outlives_missing(self) -> bool {
        matches!(self, Self::Loaded(outage) if outage.refuses)
    }
}

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
        let window = freshness::decide(&entry, rules, |window| refreshes.delay(name, fence, window));
        Some(match window {
            Window::OnError | Window::Over => Decision::Old(Previous::new(&entry, rules, loaded)),
            _ => Decision::Served(loaded, None),
        })
    }
}
