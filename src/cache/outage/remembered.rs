//! An outage, and whether a copy is served in it.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::backend::Entry;

/// The time between a failure and the next answer. Each outage has another number in a process.
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
    /// The copy is for the local tier alone.
    No,
    /// The copy is served within its windows, because the backend has returned or stored it.
    Seen,
    /// The copy is served in this outage alone. It was loaded in the outage without a lease, or its
    /// commit had no answer.
    Loaded(Outage),
}

impl Remembered {
    /// Decides about an entry that the backend has returned or stored. The entry is remembered if
    /// its windows say that the user accepts a stale value.
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

    /// Returns whether a copy with the fence `own` stays when the backend returns an entry with
    /// another fence. The copy stays before an older answer that arrives late. A copy that was
    /// loaded while the backend refuses writes also stays, because the backend cannot have it.
    pub(in crate::cache) fn outlives_answer(self, own: u64, fence: u64) -> bool {
        #[cfg(bellwether_sim)]
        if crate::sim::is_planted("old-memory") {
            return true;
        }
        match self {
            Self::Loaded(outage) => outage.refuses && fence <= own,
            Self::No | Self::Seen => fence < own,
        }
    }

    /// Returns whether a copy stays when the backend has no entry. A copy that was loaded while the
    /// backend refuses writes stays, because the backend cannot have it.
    pub(in crate::cache) fn outlives_missing(self) -> bool {
        matches!(self, Self::Loaded(outage) if outage.refuses)
    }
}
