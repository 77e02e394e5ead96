//! How often each key was asked for lately and had no entry, in this process.

use std::{
    hash::BuildHasher,
    sync::{Arc, Mutex},
    time::Duration,
};

use hashbrown::DefaultHashBuilder;
use lru::LruCache;
use tokio::time::Instant;

use crate::{key::Key, sync::lock};

/// How many keys are counted. Beyond it, the one that was used least recently is forgotten.
const MOST_KEYS: usize = 50_000;

/// The uses that a key needs within a window before its value is stored.
pub(crate) struct Uses {
    least: u32,
    window: Duration,
    /// Counts by the hash of their key. Two keys with one hash share a count, which is harmless: it
    /// decides whether a value is stored, never which one is served.
    by_key: Mutex<LruCache<u64, Count>>,
    hasher: DefaultHashBuilder,
}

/// The uses of a key, since the first of them in a window.
#[derive(Clone, Copy)]
struct Count {
    uses: u32,
    since: Instant,
}

/// The uses of one key. It may be another key than that of the value.
#[derive(Clone)]
pub(crate) struct CountedUses {
    all: Arc<Uses>,
    key: Key,
}

impl CountedUses {
    #[cfg_attr(not(feature = "http"), allow(dead_code))]
    pub(crate) fn new(all: Arc<Uses>, key: Key) -> Self {
        Self { all, key }
    }

    /// Counts a use of the key. Returns whether its value is to be stored.
    pub(crate) fn count(&self) -> bool {
        self.all.count(&self.key)
    }
}

impl Uses {
    #[cfg_attr(not(feature = "http"), allow(dead_code))]
    pub(crate) fn new(least: u32, window: Duration) -> Self {
        let by_key = Mutex::new(LruCache::unbounded());
        Self { least, window, by_key, hasher: DefaultHashBuilder::default() }
    }

    /// Counts a use of a key. Returns whether its value is to be stored.
    fn count(&self, key: &Key) -> bool {
        let (hash, now) = (self.hasher.hash_one(key), Instant::now());
        let mut by_key = lock(&self.by_key);
        let count = by_key.get_or_insert_mut(hash, || Count { uses: 0, since: now });
        if now.duration_since(count.since) >= self.window {
            *count = Count { uses: 0, since: now };
        }
        count.uses = count.uses.saturating_add(1);
        let is_enough = count.uses >= self.least;
        if by_key.len() > MOST_KEYS {
            by_key.pop_lru();
        }
        is_enough
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::sleep;

    use super::*;

    const WINDOW: Duration = Duration::from_secs(60);

    #[tokio::test(start_paused = true)]
    async fn the_uses_of_a_window_count() {
        let (uses, key) = (Uses::new(3, WINDOW), Key::from("a"));
        let rare = |key: &Key| !uses.count(key);
        assert!(rare(&key) && rare(&key) && rare(&Key::from("b")));
        assert!(uses.count(&key) && uses.count(&key));
        sleep(WINDOW).await;
        assert!(rare(&key));
        sleep(WINDOW / 2).await;
        assert!(rare(&key) && uses.count(&key));
    }

    #[tokio::test(start_paused = true)]
    async fn a_million_keys_need_no_more_memory_than_the_limit() {
        let uses = Uses::new(2, WINDOW);
        for number in 0..1_000_000_usize {
            assert!(!uses.count(&Key::from(number)));
        }
        assert_eq!(lock(&uses.by_key).len(), MOST_KEYS);
        // Those that were used last are known.
        assert!(uses.count(&Key::from(999_999_usize)) && !uses.count(&Key::from(0_usize)));
    }
}
