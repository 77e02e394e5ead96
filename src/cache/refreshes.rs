//! The refreshes of a cache, which run in the background.
//!
//! A refresh is a flight of a group of its own, so there is one for each key at most. Its callers
//! do not wait for it: they have been served. It claims the lease without waiting. If another
//! process has it, the key is quiet in this process until that lease ends. So a hot key costs the
//! fleet one claim for each process and refresh.

use std::{
    hash::BuildHasher,
    sync::{
        OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use hashbrown::DefaultHashBuilder;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::outcome::Outcome;
use crate::{
    flight::{Abandoned, Group, Leader, Limits},
    key::Key,
};

pub(super) struct Refreshes<V> {
    flights: Group<Outcome<V>>,
    quiet: OnceLock<QuietKeys>,
    /// Cancelled when the cache is shut down.
    stop: CancellationToken,
}

impl<V> Default for Refreshes<V> {
    fn default() -> Self {
        // No caller follows a refresh.
        let limits = Limits { per_flight: usize::MAX, in_all: usize::MAX };
        Self {
            flights: Group::new(Abandoned::Finish, limits),
            quiet: OnceLock::new(),
            stop: CancellationToken::new(),
        }
    }
}

impl<V> Refreshes<V> {
    /// Begins a refresh of a key. Returns `None` if one is under way, if the key is quiet, or if
    /// the cache is shut down.
    pub(super) fn begin(&self, key: &Key) -> Option<Leader<Outcome<V>>> {
        if self.quiet.get().is_some_and(|quiet| quiet.contain(key)) {
            return None;
        }
        self.flights.join(key).ok()?.leader
    }

    /// Lets no refresh of the key begin in this process for a time.
    pub(super) fn silence(&self, key: &Key, time: Duration) {
        self.quiet.get_or_init(QuietKeys::default).add(key, time);
    }

    /// Completes when the refreshes are to end.
    pub(super) async fn stopped(&self) {
        self.stop.cancelled().await;
    }

    /// Ends the refreshes, and lets none begin any more.
    pub(super) fn close(&self) {
        self.flights.close();
        self.stop.cancel();
    }

    /// Returns when no refresh is under way. The refreshes must be [closed](Self::close).
    pub(super) async fn idle(&self) {
        self.flights.idle().await;
    }
}

/// The keys that are quiet, with a few mistakes: a key may lose its place to another one, and then
/// costs a claim too many.
struct QuietKeys {
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
    fn add(&self, key: &Key, time: Duration) {
        let ends = ticks(self.start.elapsed().saturating_add(time)).saturating_add(1);
        let (place, hash) = self.place(key);
        place.store(hash | ends.min(TICKS), Ordering::Relaxed);
    }

    fn contain(&self, key: &Key) -> bool {
        let (place, hash) = self.place(key);
        let found = place.load(Ordering::Relaxed);
        found & !TICKS == hash && ticks(self.start.elapsed()) < found & TICKS
    }

    /// Returns the place of a key, and its hash in the upper half of a word.
    fn place(&self, key: &Key) -> (&AtomicU64, u64) {
        let hash = self.hasher.hash_one(key);
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

    const MS: Duration = Duration::from_millis(1);

    #[tokio::test(start_paused = true)]
    async fn a_key_is_quiet_for_its_time() {
        let refreshes = Refreshes::<u64>::default();
        let [one, two] = [Key::from("one"), Key::from("two")];
        refreshes.silence(&one, 100 * MS);
        assert!(refreshes.begin(&one).is_none() && refreshes.begin(&two).is_some());
        tokio::time::advance(99 * MS).await;
        assert!(refreshes.begin(&one).is_none());
        tokio::time::advance(33 * MS).await;
        assert!(refreshes.begin(&one).is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn a_key_has_one_refresh_at_a_time_and_none_after_the_end() {
        let refreshes = Refreshes::<u64>::default();
        let key = Key::from("one");
        let leader = refreshes.begin(&key);
        assert!(leader.is_some() && refreshes.begin(&key).is_none());
        drop(leader);
        assert!(refreshes.begin(&key).is_some());
        refreshes.close();
        refreshes.stopped().await;
        assert!(refreshes.begin(&key).is_none());
        refreshes.idle().await;
    }
}
