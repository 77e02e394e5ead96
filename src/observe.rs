//! What a cache counts.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        #[derive(Default)]
        pub(crate) struct Counters {
            $(pub(crate) $name: Counter,)*
        }

        /// What a cache has counted since it was built, and what is under way.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct Stats {
            $($(#[$doc])* pub $name: u64,)*
            /// Flights that are under way now.
            pub flights: u64,
        }

        impl Counters {
            pub(crate) fn snapshot(&self, flights: usize) -> Stats {
                Stats { $($name: self.$name.get(),)* flights: flights as u64 }
            }
        }
    };
}

counters! {
    /// Callers who were served a stored entry.
    hits,
    /// Callers whose loader ran under the lease.
    led,
    /// Callers who were served the load of another caller in this process.
    followed,
    /// Callers who were served the load of another process.
    handed_over,
    /// Callers who were served by a load without a lease, which was not stored.
    degraded,
    /// Loaders that were started, under a lease or without.
    loads,
    /// Loads that failed, panicked, or took too long.
    failures,
    /// Loaded values that were written, or that such a value cannot be shared.
    stored,
    /// Loaded values that the backend refused, because the key was invalidated or the lease lost meanwhile.
    refused,
    /// Loaded values whose writing failed, or was not answered.
    unstored,
    /// Loaded values that were too large or could not be encoded.
    unstorable,
    /// Entries that could not be decoded, and so counted as missing.
    undecodable,
    /// Looks, claims, commits, writes and invalidations that the backend refused or did not answer. (What keeps
    /// and ends leases is not counted.)
    backend_errors,
}

#[derive(Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// What is worth one line in the log, and not one for each request.
#[derive(Default)]
pub(crate) struct Once(AtomicBool);

impl Once {
    /// Whether this is the first time.
    pub(crate) fn first(&self) -> bool {
        !self.0.swap(true, Ordering::Relaxed)
    }
}
