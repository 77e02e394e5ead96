//! What this process notes in tables of a fixed size: of entries, for their refreshes, and how many
//! invalidations there were.

use std::{
    hash::{BuildHasher, Hash},
    sync::atomic::{AtomicU64, Ordering},
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
    backend::stripe_of,
    key::Key,
    random::{self, Hasher},
    time::after,
};

pub(super) struct Refreshes {
    /// Until when each note counts, by the hash of the note, its key and the fence of the entry. So
    /// a new entry has no note. A note that is displaced by others costs one claim.
    notes: Notes<u64, Instant, UnitWeighter, Hasher>,
    hasher: Hasher,
    /// Differs between processes, so that their delays differ.
    seed: u64,
    /// Cancelled when the cache is shut down.
    pub(super) stop: CancellationToken,
}

/// The notes of this process about an entry, for a while.
#[derive(Clone, Copy, Debug, Hash)]
pub(super) enum EntryNote {
    /// It stored the entry, and is the first to refresh it.
    Stored,
    /// It begins no refresh of the entry: another process has its lease, or a refresh made nothing.
    Refreshed,
    /// It serves the entry in place of a load, because the key backs off.
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
    /// Begins a refresh of the entry with this fence, and makes the entry quiet for a while.
    /// Returns false if the entry is quiet already, or the cache is shut down.
    pub(super) fn begin(&self, key: &Key, fence: u64) -> bool {
        if self.stop.is_cancelled() {
            return false;
        }
        let note = self.hasher.hash_one((EntryNote::Refreshed, key, fence));
        let now = Instant::now();
        let until = after(now, PAUSE);
        // Of the callers that come at once, one begins.
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

    /// Returns whether something is noted of the entry with this fence.
    pub(super) fn knows(&self, what: EntryNote, key: &impl Hash, fence: u64) -> bool {
        let note = self.hasher.hash_one((what, key, fence));
        self.notes.get(&note).is_some_and(|until| Instant::now() < until)
    }

    /// Returns the delay of this process for an entry within a window. It is the same each time.
    /// The process that stored the entry does not wait.
    pub(super) fn delay(&self, key: &impl Hash, fence: u64, window: Duration) -> Duration {
        if self.knows(EntryNote::Stored, key, fence) {
            return Duration::ZERO;
        }
        let hash = self.hasher.hash_one((self.seed, key, fence));
        refresh_delay(window, Rng::with_seed(hash).f64())
    }
}

/// How long a process does not refresh an entry after it began a refresh of it in vain, and the key
/// does not back off.
pub(super) const PAUSE: Duration = Duration::from_secs(1);
/// With fewer notes, more of them are displaced by notes of other keys.
const NOTES: u64 = 4096;
/// How many notes the table makes ready for.
const FIRST_NOTES: usize = 64;

/// How many invalidations of this process there were, for groups of keys. A load of another key
/// that depends on an invalidated one has the number in its own key, so no later caller joins it.
#[derive(Default)]
pub(super) struct Invalidations([AtomicU64; 32]);

impl Invalidations {
    /// Counts an invalidation of a key, when it begins.
    pub(super) fn count(&self, key: &Key) {
        self.of(key).fetch_add(1, Ordering::AcqRel);
    }

    #[cfg(feature = "http")]
    pub(super) fn so_far(&self, key: &Key) -> u64 {
        self.of(key).load(Ordering::Acquire)
    }

    fn of(&self, key: &Key) -> &AtomicU64 {
        &self.0[stripe_of(&key.text) % self.0.len()]
    }
}
