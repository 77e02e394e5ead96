//! When this process refreshes an entry, and when it does not.

use std::{
    hash::{BuildHasher, Hash},
    time::Duration,
};

use fastrand::Rng;
use quick_cache::{
    UnitWeighter,
    sync::{Cache as Notes, DefaultLifecycle, EntryAction, EntryResult},
};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::freshness::refresh_delay;
use crate::{
    key::Key,
    random::{self, Hasher},
    time::after,
};

pub(super) struct Refreshes {
    /// Until when each note counts. The key is a hash of the kind of note, the cache key and the
    /// fence of the entry, so a new entry has no note. A note that the table evicts costs one
    /// claim.
    notes: Notes<u64, Instant, UnitWeighter, Hasher>,
    hasher: Hasher,
    /// Differs between processes, so that their delays differ.
    seed: u64,
    /// Cancelled when the cache is shut down.
    pub(super) stop: CancellationToken,
}

/// What this process notes about an entry for a while.
#[derive(Clone, Copy, Debug, Hash)]
pub(super) enum EntryNote {
    /// This process has stored the entry, and refreshes it without a delay.
    Stored,
    /// This process begins no refresh: another process has the lease, or a refresh has failed.
    Refreshed,
    /// This process serves the entry in place of a load, because the key backs off.
    BacksOff,
}

impl Default for Refreshes {
    fn default() -> Self {
        let hasher = Hasher::default();
        let lifecycle = DefaultLifecycle::default();
        Self {
            notes: Notes::with(FIRST_NOTES, NOTES, UnitWeighter, hasher.clone(), lifecycle),
            hasher,
            seed: random::number(),
            stop: CancellationToken::new(),
        }
    }
}

impl Refreshes {
    /// Begins a refresh of the entry with this fence, and keeps further refreshes of the entry from
    /// beginning for a second. Returns false if a refresh has begun within that second, or the
    /// cache is shut down.
    pub(super) fn begin(&self, key: &Key, fence: u64) -> bool {
        if self.stop.is_cancelled() {
            return false;
        }
        let note = self.hasher.hash_one((EntryNote::Refreshed, key, fence));
        let now = Instant::now();
        let until = after(now, PAUSE);
        // Under the lock of the entry, so that one of several callers begins.
        let begun = self.notes.entry(&note, None, |_, quiet_until| {
            let is_first = *quiet_until <= now;
            if is_first {
                *quiet_until = until;
            }
            EntryAction::<bool>::Retain(is_first)
        });
        match begun {
            EntryResult::Retained(is_first) => is_first,
            EntryResult::Vacant(place) => place.insert(until).is_ok(),
            EntryResult::Removed(..) | EntryResult::Replaced(..) | EntryResult::Timeout => false,
        }
    }

    pub(super) fn note(&self, what: EntryNote, key: &impl Hash, fence: u64, time: Duration) {
        let note = self.hasher.hash_one((what, key, fence));
        self.notes.insert(note, after(Instant::now(), time));
    }

    /// Returns whether this note about the entry with this fence still counts.
    pub(super) fn knows(&self, what: EntryNote, key: &impl Hash, fence: u64) -> bool {
        let note = self.hasher.hash_one((what, key, fence));
        self.notes.get(&note).is_some_and(|until| Instant::now() < until)
    }

    /// Returns the delay of this process before it refreshes an entry in a window. The delay of an
    /// entry is the same each time, and zero for an entry that this process has stored.
    pub(super) fn delay(&self, key: &impl Hash, fence: u64, window: Duration) -> Duration {
        if self.knows(EntryNote::Stored, key, fence) {
            return Duration::ZERO;
        }
        let hash = self.hasher.hash_one((self.seed, key, fence));
        refresh_delay(window, Rng::with_seed(hash).f64())
    }
}

/// How long a process begins no further refresh of an entry.
pub(super) const PAUSE: Duration = Duration::from_secs(1);
/// The size of the table of notes. In a smaller table, notes of other keys evict a note sooner.
const NOTES: u64 = 4096;
/// The number of notes for which the table allocates memory at first.
const FIRST_NOTES: usize = 64;
