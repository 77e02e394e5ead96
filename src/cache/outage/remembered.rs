//! An outage, and whether a copy is served in it.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::backend::Entry;

/// The time between a failure and the next answer, or the next accepted write if the backend
/// refuses writes. Within a process, each outage has its own number.
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
    /// The copy is never served in an outage. A local tier may serve it.
    No,
    /// The copy is served within its windows, because the backend has returned or stored it.
    Seen,
    /// The copy is served in this outage alone. It was loaded in the outage without a lease, or the
    /// commit of the load had no answer.
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
            Self::Loaded(loaded_in) => loaded_in == outage,
        }
    }

    /// Returns whether a copy stays when the backend returns an entry. A copy of the backend stays
    /// if the fence of the answer is smaller, because that answer has arrived late. A copy that was
    /// loaded in an outage stays only while the backend refuses writes and answers with no greater
    /// fence: the backend did not take the value of the copy.
    pub(in crate::cache) fn outlives_answer(self, copy_fence: u64, answer_fence: u64) -> bool {
        #[cfg(bellwether_sim)]
        if crate::sim::is_planted("old-memory") {
            return true;
        }
        match self {
            Self::Loaded(outage) => outage.refuses && answer_fence <= copy_fence,
            Self::No | Self::Seen => answer_fence < copy_fence,
        }
    }

    /// Returns whether a copy stays when the backend has no entry. A copy that was loaded while the
    /// backend refuses writes stays, because the backend did not take the value of the copy.
    pub(in crate::cache) fn outlives_missing(self) -> bool {
        matches!(self, Self::Loaded(outage) if outage.refuses)
    }
}
