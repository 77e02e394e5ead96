//! What this process notes of entries, for their refreshes.

use std::{
    hash::{BuildHasher, Hash},
    sync::{Mutex, MutexGuard, OnceLock},
    time::Duration,
};

use fastrand::Rng;
use hashbrown::DefaultHashBuilder;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::freshness::refresh_delay;
use crate::{key::Key, sync::lock, time::after};

pub(super) struct Refreshes {
    /// Notes about entries. Each stands under the fence of its entry, so a new entry has none. A
    /// note may lose its place to another one, which costs one claim.
    notes: OnceLock<Box<[Mutex<Option<Note>>]>>,
    hasher: DefaultHashBuilder,
    /// Differs between processes, so that their delays differ.
    seed: u64,
    /// Cancelled when the cache is shut down.
    pub(super) stop: CancellationToken,
}

/// A note under a hash, until it ends.
struct Note {
    hash: u64,
    ends: Instant,
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
        let (notes, hasher) = (OnceLock::new(), DefaultHashBuilder::default());
        Self { notes, hasher, seed: fastrand::u64(..), stop: CancellationToken::new() }
    }
}

impl Refreshes {
    /// Begins a refresh of the entry with this fence, and makes it quiet for a while. Returns false
    /// if it is quiet already, or the cache is shut down.
    pub(super) fn begin(&self, key: &Key, fence: u64) -> bool {
        let (hash, mut note) = self.at(EntryNote::Refreshed, key, fence);
        let begins = !self.stop.is_cancelled() && !stands(&note, hash);
        if begins {
            *note = Some(Note { hash, ends: after(Instant::now(), PAUSE) });
        }
        begins
    }

    pub(super) fn note(&self, what: EntryNote, key: &impl Hash, fence: u64, time: Duration) {
        let (hash, mut note) = self.at(what, key, fence);
        *note = Some(Note { hash, ends: after(Instant::now(), time) });
    }

    /// Returns whether something is noted of the entry with this fence.
    pub(super) fn knows(&self, what: EntryNote, key: &impl Hash, fence: u64) -> bool {
        let (hash, note) = self.at(what, key, fence);
        stands(&note, hash)
    }

    /// Returns the hash of a note, and its place.
    fn at(
        &self,
        what: EntryNote,
        key: &impl Hash,
        fence: u64,
    ) -> (u64, MutexGuard<'_, Option<Note>>) {
        let notes = self.notes.get_or_init(|| (0..NOTES).map(|_| Mutex::default()).collect());
        let hash = self.hasher.hash_one((what, key, fence));
        (hash, lock(&notes[hash as usize % NOTES]))
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

/// Returns whether a place has a note with this hash that has not ended.
fn stands(note: &Option<Note>, hash: u64) -> bool {
    note.as_ref().is_some_and(|note| note.hash == hash && Instant::now() < note.ends)
}

/// How long a process does not refresh an entry after it began a refresh of it in vain, and the key
/// does not back off.
pub(super) const PAUSE: Duration = Duration::from_secs(1);
/// With fewer notes, more of them are lost to other keys.
const NOTES: usize = 4096;
