//! An outage, and what a copy is good for in it.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::backend::Entry;

/// The time between a failure and the next answer. No two have the same number in a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::cache) struct Outage {
    number: u64,
    /// The backend refuses writes, and may answer reads.
    pub(in crate::cache) refuses: bool,
}

impl Outage {
    pub(in crate::cache) fn next(refuses: bool) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self { number: NEXT.fetch_add(1, Ordering::Relaxed), refuses }
    }
}

/// Whether a copy is served while the backend is away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::cache) enum Remembered {
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
    pub(in crate::cache) fn of_seen(entry: &Entry) -> Self {
        match entry.windows {
            Some(windows) if !windows.is_fresh_only() => Self::Seen,
            _ => Self::No,
        }
    }

    /// Returns whether the backend has returned or stored the copy.
    pub(in crate::cache) fn is_of_backend(self) -> bool {
        !matches!(self, Self::Loaded(_))
    }

    pub(in crate::cache) fn is_served_in(self, outage: Outage) -> bool {
        match self {
            Self::No => false,
            Self::Seen => true,
            Self::Loaded(of) => of == outage,
        }
    }

    /// Returns whether a copy with the fence `own` stays when the backend returns another fence. An
    /// older answer may be handled later. A backend that refuses writes does not have what was
    /// loaded since.
    pub(in crate::cache) fn outlives_answer(self, own: u64, fence: u64) -> bool {
        match self {
            Self::Loaded(outage) => outage.refuses && fence <= own,
            Self::No | Self::Seen => fence < own,
        }
    }

    /// Returns whether a copy stays when the backend has no entry. A backend that refuses writes
    /// could not get what was loaded since.
    pub(in crate::cache) fn outlives_missing(self) -> bool {
        matches!(self, Self::Loaded(outage) if outage.refuses)
    }
}
