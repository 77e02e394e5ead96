//! What this process notes in tables of a fixed size: of entries, for their refreshes, and how many
//! invalidations there were.

use std::{
    hash::{BuildHasher, Hash},
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use fastrand::Rng;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::freshness::refresh_delay;
use crate::{
    backend::stripe_of,
    key::Key,
    random::{self, Hasher},
};

pub(super) struct Refreshes {
    /// Notes about entries. Each stands under the fence of its entry, so a new entry has none. In
    /// each place are the upper half of a hash, and the tick at which the note ends. A note may
    /// lose its place to another one, which costs one claim.
    notes: Box<[AtomicU64]>,
    begun: Instant,
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
        Self {
            notes: (0..NOTES).map(|_| AtomicU64::default()).collect(),
            begun: Instant::now(),
            hasher: Hasher::default(),
            seed: random::number(),
            stop: CancellationToken::new(),
        }
    }
}

impl Refreshes {
    /// Begins a refresh of the entry with this fence, and makes it quiet for a while. Returns false
    /// if it is quiet already, or the cache is shut down.
    pub(super) fn begin(&self, key: &Key, fence: u64) -> bool {
        let (place, note) = self.at(EntryNote::Refreshed, key, fence, PAUSE);
        let before = place.load(Ordering::Relaxed);
        // Of the callers that come at once, one begins.
        let is_first =
            || place.compare_exchange(before, note, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        !self.stop.is_cancelled() && !self.stands(before, note) && is_first()
    }

    pub(super) fn note(&self, what: EntryNote, key: &impl Hash, fence: u64, time: Duration) {
        let (place, note) = self.at(what, key, fence, time);
        place.store(note, Ordering::Relaxed);
    }

    /// Returns the place of a note, and the note as it stands there.
    fn at(
        &self,
        what: EntryNote,
        key: &impl Hash,
        fence: u64,
        time: Duration,
    ) -> (&AtomicU64, u64) {
        let hash = self.hasher.hash_one((what, key, fence));
        let ends = ticks(self.begun.elapsed().saturating_add(time)).saturating_add(1);
        (&self.notes[hash as usize % NOTES], hash & !TICKS | ends.min(TICKS))
    }

    /// Returns whether the word in a place is a note with this hash that has not ended.
    fn stands(&self, word: u64, hash: u64) -> bool {
        word & !TICKS == hash & !TICKS && ticks(self.begun.elapsed()) < word & TICKS
    }

    /// Returns whether something is noted of the entry with this fence.
    pub(super) fn knows(&self, what: EntryNote, key: &impl Hash, fence: u64) -> bool {
        let hash = self.hasher.hash_one((what, key, fence));
        self.stands(self.notes[hash as usize % NOTES].load(Ordering::Relaxed), hash)
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
/// 32 KiB. With fewer notes, more of them are lost to other keys.
const NOTES: usize = 4096;
const TICKS: u64 = u32::MAX as u64;

/// Returns a time in ticks of 16 ms. Half a word holds them for two years. After that no entry is
/// quiet any more, which costs claims.
fn ticks(time: Duration) -> u64 {
    u64::try_from(time.as_millis() / 16).unwrap_or(u64::MAX)
}

/// How many invalidations of this process there were, for groups of keys. A load of another key
/// that depends on an invalidated one has the number in its own key, so no later caller joins it.
#[derive(Default)]
pub(super) struct Invalidations([AtomicU64; 32]);

impl Invalidations {
    /// Counts an invalidation of a key, when it begins.
    pub(super) fn count(&self, key: &Key) {
        self.of(key).fetch_add(1, Ordering::AcqRel);
    }

    pub(super) fn so_far(&self, key: &Key) -> u64 {
        self.of(key).load(Ordering::Acquire)
    }

    fn of(&self, key: &Key) -> &AtomicU64 {
        &self.0[stripe_of(&key.text) % self.0.len()]
    }
}
