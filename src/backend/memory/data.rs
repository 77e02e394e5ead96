//! The tables of the backend, its clock, its last fence, and a map whose values expire.

use std::{
    collections::{BTreeSet, HashMap},
    hash::Hash,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use tokio::time::Instant;

use super::stored::{Entries, SemaphoreKey, StoredLatch, StoredSemaphore, Weigh};
use crate::{
    backend::{BackOff, Change, Failure, Mark, TagEnds},
    key::Name,
    time::after,
};

/// The data and its rules, as in the Redis scripts. Each operation [begins](Self::begin), changes
/// the data, and adds its pushes.
pub(super) struct Data {
    pub(super) semaphores: Expiring<SemaphoreKey, StoredSemaphore>,
    pub(super) latches: Expiring<Arc<str>, StoredLatch>,
    pub(super) fences: Expiring<Arc<str>, Fence>,
    /// The last fence of all names. The fence of its name may have expired.
    last_fence: u64,
    pub(super) marks: Expiring<Arc<str>, Mark>,
    /// The last failed load of each name, with its back-off as it was when the load failed.
    pub(super) failures: Expiring<Arc<str>, (BackOff, Failure)>,
    pub(super) entries: Entries,
    pub(super) tag_ends: Expiring<Arc<str>, TagEnds>,
    /// The last tag number of all namespaces.
    pub(super) tag_number: u64,
    /// The changes that the operation pushes, each with its topic.
    pub(super) pushes: Vec<(Arc<str>, Change)>,
    pub(super) now: Instant,
    /// When the system clock was read.
    origin: Instant,
    /// The microseconds of the system clock at `origin`.
    micros: u64,
}

/// The last fence of a name.
pub(super) struct Fence {
    pub(super) last: u64,
    /// The grant of this fence was committed.
    pub(super) is_spent: bool,
}

impl Data {
    pub(super) fn new(limit: usize, weigh: Weigh) -> Self {
        // Fences leave the process, so they must be greater than the fences of an earlier process.
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let micros = u64::try_from(since.as_micros()).unwrap_or(u64::MAX / 2);
        Self {
            semaphores: Expiring::new(),
            latches: Expiring::new(),
            fences: Expiring::new(),
            last_fence: 0,
            marks: Expiring::new(),
            failures: Expiring::new(),
            entries: Entries::new(limit, weigh),
            tag_ends: Expiring::new(),
            tag_number: micros,
            pushes: Vec::new(),
            now: Instant::now(),
            origin: Instant::now(),
            micros,
        }
    }

    /// Begins an operation: drops all expired data. Expired holds and queue entries go when their
    /// semaphore is [used](Self::with_semaphore).
    pub(super) fn begin(&mut self) {
        self.now = Instant::now();
        self.semaphores.expire(self.now);
        self.latches.expire(self.now);
        self.fences.expire(self.now);
        self.marks.expire(self.now);
        self.failures.expire(self.now);
        self.entries.expire(self.now);
        self.tag_ends.expire(self.now);
    }

    pub(super) fn push(&mut self, name: &Name, change: Change) {
        self.pushes.push((name.prefix.clone(), change));
    }

    /// Returns the time of the backend in microseconds.
    pub(super) fn clock(&self) -> u64 {
        self.micros + u64::try_from((self.now - self.origin).as_micros()).unwrap_or(0)
    }

    pub(super) fn next_fence(&mut self, name: &Name, life: Duration) -> u64 {
        let fence = self.clock().max(self.last_fence.saturating_add(1));
        self.set_fence(name, fence, life);
        self.last_fence
    }

    pub(super) fn set_fence(&mut self, name: &Name, last: u64, life: Duration) {
        self.last_fence = self.last_fence.max(last);
        let fence = Fence { last, is_spent: false };
        self.fences.set(name.prefix.clone(), fence, after(self.now, life));
    }
}

/// A map whose values expire.
pub(super) struct Expiring<K, V> {
    values: HashMap<K, (V, Instant)>,
    ends: BTreeSet<(Instant, K)>,
}

impl<K: Clone + Hash + Ord, V> Expiring<K, V> {
    pub(super) fn new() -> Self {
        Self { values: HashMap::new(), ends: BTreeSet::new() }
    }

    pub(super) fn keys(&self) -> impl Iterator<Item = &K> {
        self.values.keys()
    }

    pub(super) fn get(&self, key: &K) -> Option<&(V, Instant)> {
        self.values.get(key)
    }

    /// Returns a value, to be changed, and the time at which the value expires.
    pub(super) fn get_mut(&mut self, key: &K) -> Option<&mut (V, Instant)> {
        self.values.get_mut(key)
    }

    pub(super) fn set(&mut self, key: K, value: V, ends: Instant) {
        self.remove(&key);
        self.ends.insert((ends, key.clone()));
        self.values.insert(key, (value, ends));
    }

    pub(super) fn keep(&mut self, key: &K, ends: Instant) {
        if let Some(value) = self.remove(key) {
            self.set(key.clone(), value, ends);
        }
    }

    pub(super) fn remove(&mut self, key: &K) -> Option<V> {
        let (value, ends) = self.values.remove(key)?;
        self.ends.remove(&(ends, key.clone()));
        Some(value)
    }

    fn expire(&mut self, now: Instant) {
        while self.ends.first().is_some_and(|(ends, _)| *ends <= now)
            && let Some((_, key)) = self.ends.pop_first()
        {
            self.values.remove(&key);
            // Frees the memory of a burst.
            if self.values.capacity() > 1024 && self.values.len() < self.values.capacity() / 8 {
                self.values.shrink_to(self.values.len() * 2);
            }
        }
    }
}
