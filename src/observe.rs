//! The counters of caches and of locks.

use std::{
    collections::BTreeSet,
    sync::{
        Mutex,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::time::Instant;

use crate::sync::lock;

/// Declares a struct of counters, and a struct for a snapshot, which also has the numbers that go
/// up and down.
macro_rules! counters {
    (
        $(#[$stats_doc:meta])*
        $counters:ident => $stats:ident {
            $($(#[$doc:meta])* $name:ident $(: $kind:ident)?,)*
        }
        $($(#[$now_doc:meta])* now $now:ident)+
    ) => {
        #[derive(Default)]
        pub(crate) struct $counters {
            $(pub(crate) $name: counter!($($kind)?),)*
        }

        $(#[$stats_doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
        #[non_exhaustive]
        pub struct $stats {
            $($(#[$doc])* pub $name: u64,)*
            $($(#[$now_doc])* pub $now: u64,)+
        }

        impl $counters {
            pub(crate) fn snapshot(&self, $($now: usize),+) -> $stats {
                $stats { $($name: self.$name.get(),)* $($now: $now as u64),+ }
            }
        }
    };
}

macro_rules! counter {
    () => {
        Counter
    };
    ($kind:ident) => {
        $kind
    };
}

counters! {
    /// The counters of a cache since it was built, and the number of flights that are under way.
    /// [`Cache::stats`](crate::Cache::stats) returns them.
    Counters => Stats {
        /// Callers that were served a stored entry.
        hits,
        /// Callers that were served a copy of the [local tier](crate::cache::Builder::local).
        local: StripedCounter,
        /// Copies that the local tier dropped because a change arrived with a newer entry.
        local_dropped,
        /// Copies that were evicted because the weight of the local tier and of the outage memory
        /// is used up.
        local_evicted,
        /// Seconds in which the local tier served no copy, because for
        /// [`max_staleness`](crate::cache::LocalTier::max_staleness) it could not be sure to have
        /// received all changes.
        local_untrusted_seconds: TimeCounter,
        /// Callers that were served a stored entry that was no longer fresh.
        stale,
        /// Of `stale`, callers that reached `serve_stale_after`.
        slow,
        /// Callers that were served a load of their own, under the lease. Over HTTP also callers
        /// that got a response for themselves alone.
        led,
        /// Callers that were served the load of another caller in this process.
        followed,
        /// Callers that were served the load of another process.
        received,
        /// Callers that were served a load without a lease, which was not stored.
        degraded,
        /// Callers of a load that got an error in place of a value.
        failed,
        /// Callers of an HTTP layer that wanted a variant which was not stored, while other
        /// variants were.
        missed_variant,
        /// Callers of an HTTP layer whose stored response was not fresh and could not be served.
        missed_stale,
        /// Requests of an HTTP layer that went to its inner service without the cache.
        passed,
        /// Of `passed`, requests that the inner service answered with a `5xx` or an error.
        passed_failed,
        /// Of `passed`, requests whose method is neither `GET` nor `HEAD`.
        passed_method,
        /// Of `passed`, requests with a header that the layer does not know to be harmless.
        passed_header,
        /// Of `passed`, requests with a body.
        passed_body,
        /// Of `passed`, requests without a key.
        passed_key,
        /// Of `passed`, requests while the layer was switched off.
        passed_switched,
        /// Of `passed`, requests whose key counts as uncacheable, or whose service answered each
        /// caller alone.
        passed_uncacheable,
        /// Of `passed`, requests that needed a load beyond the limit of loads.
        passed_overloaded,
        /// Loaders that were started, with or without a lease.
        loads,
        /// Of `loads`, loaders that refreshed an entry in the background.
        refreshes,
        /// Values that a loader for many keys returned for an id that it was not called for, or
        /// twice for one id.
        unasked,
        /// Loads that failed, panicked, or took too long. Over HTTP also loads that the service
        /// answered with a `5xx`.
        failures,
        /// Flights and refreshes that began no load, because their key backed off.
        backed_off,
        /// Loaded values that were stored, and loads that were stored as uncacheable.
        stored,
        /// Of `stored`, loads that found the stored value unchanged.
        unchanged,
        /// Loaded values that the backend refused, because the key was invalidated or the lease
        /// lost.
        refused,
        /// Loaded values whose commit failed or had no answer.
        unstored,
        /// Loaded values that were too large or could not be encoded.
        unstorable,
        /// Entries that could not be decoded, and so count as missing.
        undecodable,
        /// Reads, claims, commits, writes and invalidations that the backend refused or did not
        /// answer. Renewals and releases of leases do not count.
        backend_errors,
    }
    /// Flights that are under way now.
    now flights
    /// Writes that failed while the backend was away, and now [wait for their
    /// repeat](crate::Error::is_deferred).
    now deferred_writes
}

counters! {
    /// The counters of a `Locks` and its clones since it was created, and the number of leases that
    /// are held now. [`Locks::stats`](crate::Locks::stats) returns them.
    LockCounters => LockStats {
        /// Leases that were acquired, also by a pass from another caller of this process.
        acquired,
        /// Acquisitions that waited, and ended without a lease because of other holders.
        not_acquired,
        /// Tries without a wait, such as [`try_lock`](crate::lock::Mutex::try_lock), that found
        /// other holders in the way.
        taken,
        /// Acquisitions that ended with another error.
        failed,
        /// Leases that were lost while they were held.
        lost,
        /// Renewals of a lease that succeeded.
        renewed,
        /// Renewals of a lease that had no answer. Each is tried again while the lease lasts.
        unrenewed,
    }
    /// Leases that are held now.
    now held
}

/// The waits that are going on, each with the time at which it began.
#[derive(Default)]
pub(crate) struct Waits {
    begun: Mutex<BTreeSet<(Instant, u64)>>,
    next: AtomicU64,
}

/// A wait that is going on, until it is dropped.
pub(crate) struct Wait<'a> {
    waits: &'a Waits,
    begun: (Instant, u64),
}

impl Waits {
    pub(crate) fn begin(&self, since: Instant) -> Wait<'_> {
        let begun = (since, self.next.fetch_add(1, Ordering::Relaxed));
        lock(&self.begun).insert(begun);
        Wait { waits: self, begun }
    }

    /// Returns how long the longest wait has lasted.
    #[cfg(feature = "metrics")]
    pub(crate) fn longest(&self) -> Duration {
        let first = lock(&self.begun).first().copied();
        first.map_or(Duration::ZERO, |(since, _)| since.elapsed())
    }
}

impl Drop for Wait<'_> {
    fn drop(&mut self) {
        lock(&self.waits.begun).remove(&self.begun);
    }
}

#[derive(Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A counter of time, read in whole seconds.
#[derive(Default)]
pub(crate) struct TimeCounter(AtomicU64);

impl TimeCounter {
    pub(crate) fn add(&self, time: Duration) {
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.0.fetch_add(nanos, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        Duration::from_nanos(self.0.load(Ordering::Relaxed)).as_secs()
    }
}

/// Limits the lines in the log about an event: by default, to one line a minute.
pub(crate) struct Rarely {
    last: Mutex<Option<Instant>>,
    every: Duration,
}

impl Default for Rarely {
    fn default() -> Self {
        Self::once_in(60)
    }
}

impl Rarely {
    /// Allows one line in this many seconds.
    pub(crate) const fn once_in(seconds: u64) -> Self {
        Self { last: Mutex::new(None), every: Duration::from_secs(seconds) }
    }

    /// Returns whether the event is the first in its interval, and so gets a line.
    pub(crate) fn first(&self) -> bool {
        let mut last = lock(&self.last);
        let is_first = last.is_none_or(|last| last.elapsed() >= self.every);
        if is_first {
            *last = Some(Instant::now());
        }
        is_first
    }
}

/// The number of parts of a striped counter.
const COUNTED_APART: usize = 16;

/// A counter with parts, so that threads seldom write to the same cache line.
#[derive(Default)]
pub(crate) struct StripedCounter([CacheLine; COUNTED_APART]);

/// Two cache lines, because a processor fetches lines in pairs.
#[derive(Default)]
#[repr(align(128))]
struct CacheLine(Counter);

impl StripedCounter {
    pub(crate) fn add(&self) {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        thread_local! {
            static PART: usize = NEXT.fetch_add(1, Ordering::Relaxed) % COUNTED_APART;
        }
        // A thread that is ending has no thread-local part any more, and uses the first part.
        self.0[PART.try_with(|part| *part).unwrap_or_default()].0.add();
    }

    pub(crate) fn get(&self) -> u64 {
        let parts = self.0.iter();
        parts.map(|part| part.0.get()).sum()
    }
}
