//! Keys that this process leaves alone for a while.

use std::{
    hash::{BuildHasher, Hash},
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use hashbrown::DefaultHashBuilder;
use tokio::time::Instant;

/// The keys that are quiet, each for one entry: an act or a load replaces the fence of the entry,
/// and ends the quiet. There are a few mistakes: a key may lose its place to another one, and then
/// costs a claim too many.
pub(super) struct QuietKeys {
    hasher: DefaultHashBuilder,
    start: Instant,
    /// In each place the upper half of the hash of a key, and the tick at which it ends.
    places: Box<[AtomicU64]>,
}

const PLACES: usize = 4096;
/// The lower half of a word.
const TICKS: u64 = u32::MAX as u64;

impl Default for QuietKeys {
    fn default() -> Self {
        Self {
            hasher: DefaultHashBuilder::default(),
            start: Instant::now(),
            places: (0..PLACES).map(|_| AtomicU64::new(0)).collect(),
        }
    }
}

impl QuietKeys {
    /// Makes the entry of a key with this fence quiet for a time.
    pub(super) fn add(&self, key: &impl Hash, fence: u64, time: Duration) {
        let ends = ticks(self.start.elapsed().saturating_add(time)).saturating_add(1);
        let (place, hash) = self.place(key, fence);
        place.store(hash | ends.min(TICKS), Ordering::Relaxed);
    }

    pub(super) fn contain(&self, key: &impl Hash, fence: u64) -> bool {
        let (place, hash) = self.place(key, fence);
        let found = place.load(Ordering::Relaxed);
        found & !TICKS == hash && ticks(self.start.elapsed()) < found & TICKS
    }

    /// Returns the place of an entry, and its hash in the upper half of a word.
    fn place(&self, key: &impl Hash, fence: u64) -> (&AtomicU64, u64) {
        let hash = self.hasher.hash_one((key, fence));
        (&self.places[hash as usize % PLACES], hash & !TICKS)
    }
}

/// Returns a time in ticks of 16 ms. Half a word holds them for two years. After that no key is
/// quiet any more, which costs claims.
fn ticks(time: Duration) -> u64 {
    u64::try_from(time.as_millis() / 16).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::Key;

    const MS: Duration = Duration::from_millis(1);

    #[tokio::test(start_paused = true)]
    async fn an_entry_is_quiet_for_its_time() {
        let quiet = QuietKeys::default();
        let [one, two] = [Key::from("one"), Key::from("two")];
        quiet.add(&one, 7, 100 * MS);
        assert!(quiet.contain(&one, 7) && !quiet.contain(&one, 8) && !quiet.contain(&two, 7));
        tokio::time::advance(99 * MS).await;
        assert!(quiet.contain(&one, 7));
        tokio::time::advance(33 * MS).await;
        assert!(!quiet.contain(&one, 7));
    }
}
