//! The values that a process loads without a lease while the backend is away, for its later
//! callers.
//!
//! A value belongs to the [outage](Outage) in which it was loaded. The first answer of the backend
//! ends the outage, and the value is of no use any more. An act of this process forgets it.

use std::sync::{
    Mutex,
    atomic::{AtomicBool, Ordering},
};

use lru::LruCache;
use tokio::time::Instant;

use super::breaker::Outage;
use crate::{
    backend::{Entry, EntryKind},
    key::Key,
    sync::lock,
};

/// The weight of all values if it is not set.
const LIMIT: usize = 4 << 20;
/// The weight of a row beside its entry and its key.
const ROW: usize = 160;

pub(super) struct OutageMemory {
    /// The greatest weight of all values. Zero remembers none.
    limit: usize,
    rows: Mutex<Rows>,
    /// There may be something in `rows`. Otherwise no act needs the lock, which all share.
    any: AtomicBool,
}

struct Rows {
    by_key: LruCache<Key, Row>,
    weight: usize,
}

struct Row {
    entry: Entry,
    made: Instant,
    outage: Outage,
}

impl OutageMemory {
    /// Without a limit that was set, only a cache of several processes remembers values. The other
    /// backends are never away.
    pub(super) fn new(limit: Option<usize>, is_shared: bool) -> Self {
        Self {
            limit: limit.unwrap_or(if is_shared { LIMIT } else { 0 }),
            rows: Mutex::new(Rows { by_key: LruCache::unbounded(), weight: 0 }),
            any: AtomicBool::new(false),
        }
    }

    pub(super) fn is_on(&self) -> bool {
        self.limit > 0
    }

    /// Remembers an entry that this process has loaded now, if `is_current` says that no act has
    /// come since its load began.
    ///
    /// An act first ends the flight of the load, which `is_current` sees, and then forgets.
    pub(super) fn remember(
        &self,
        key: &Key,
        outage: Outage,
        entry: Entry,
        is_current: impl FnOnce() -> bool,
    ) {
        // One large value does not displace all others.
        let weight = weight(key, &entry);
        if weight > self.limit / 4 || entry.kind != EntryKind::Value {
            return;
        }
        let mut rows = lock(&self.rows);
        // Before the question, so that an act which comes after it does forget.
        self.any.store(true, Ordering::SeqCst);
        if !is_current() {
            return;
        }
        rows.remove(key);
        rows.weight += weight;
        rows.by_key.put(key.clone(), Row { entry, made: Instant::now(), outage });
        while rows.weight > self.limit {
            let Some((key, row)) = rows.by_key.pop_lru() else { break };
            rows.weight -= self::weight(&key, &row.entry);
        }
    }

    /// Returns the entry of a key with its present age, if it was loaded in this outage and is
    /// still kept.
    pub(super) fn recall(&self, key: &Key, outage: Outage) -> Option<Entry> {
        if !self.any.load(Ordering::SeqCst) {
            return None;
        }
        let mut rows = lock(&self.rows);
        let row = rows.by_key.get(key)?;
        let age = row.made.elapsed();
        let is_kept = row.entry.windows.is_some_and(|windows| age < windows.kept());
        if row.outage == outage && is_kept {
            return Some(Entry { age: Some(age), ..row.entry.clone() });
        }
        rows.remove(key);
        None
    }

    /// Forgets the value of a key.
    pub(super) fn forget(&self, key: &Key) {
        if !self.any.load(Ordering::SeqCst) {
            return;
        }
        let mut rows = lock(&self.rows);
        rows.remove(key);
        self.any.store(!rows.by_key.is_empty(), Ordering::SeqCst);
    }
}

impl Rows {
    fn remove(&mut self, key: &Key) {
        if let Some((key, row)) = self.by_key.pop_entry(key) {
            self.weight -= weight(&key, &row.entry);
        }
    }
}

fn weight(key: &Key, entry: &Entry) -> usize {
    ROW + key.as_str().len() + entry.weight()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::time::Duration;

    use bytes::Bytes;

    use super::*;
    use crate::backend::Windows;

    const SECOND: Duration = Duration::from_secs(1);

    fn entry(size: usize) -> Entry {
        let entry = Entry::value(0, Duration::ZERO, Bytes::from(vec![b'v'; size]));
        entry.with_windows(Windows::fresh(SECOND).error(SECOND))
    }

    #[tokio::test(start_paused = true)]
    async fn a_value_ends_with_its_windows_or_its_outage() {
        let memory = OutageMemory::new(None, true);
        let (key, [outage, later]) = (Key::from("k"), [0; 2].map(|_| Outage::next()));
        let remember = || memory.remember(&key, outage, entry(1), || true);
        remember();
        tokio::time::advance(SECOND * 3 / 2).await;
        assert_eq!(memory.recall(&key, outage).unwrap().age, Some(SECOND * 3 / 2));
        tokio::time::advance(SECOND / 2).await;
        assert!(memory.recall(&key, outage).is_none());
        remember();
        assert!(memory.recall(&key, later).is_none());
        assert!(memory.recall(&key, outage).is_none());
        assert_eq!(lock(&memory.rows).weight, 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_value_from_before_an_act_is_not_remembered() {
        let memory = OutageMemory::new(None, true);
        let (key, outage) = (Key::from("k"), Outage::next());
        memory.remember(&key, outage, entry(1), || false);
        assert!(memory.recall(&key, outage).is_none());
        memory.remember(&key, outage, entry(1), || true);
        assert!(memory.recall(&key, outage).is_some());
        memory.forget(&key);
        assert!(memory.recall(&key, outage).is_none());
        assert_eq!(lock(&memory.rows).weight, 0);
    }

    #[tokio::test(start_paused = true)]
    async fn the_weight_is_bounded() {
        let (memory, outage) = (OutageMemory::new(Some(10_000), false), Outage::next());
        for key in 0..1000_u64 {
            let size = if key == 999 { 3000 } else { 500 };
            memory.remember(&key.into(), outage, entry(size), || true);
            assert!(lock(&memory.rows).weight <= 10_000);
        }
        let is_kept = |key: u64| memory.recall(&key.into(), outage).is_some();
        assert!(is_kept(998) && !is_kept(1) && !is_kept(999));
        for none in [OutageMemory::new(None, false), OutageMemory::new(Some(0), true)] {
            none.remember(&1_u64.into(), outage, entry(1), || true);
            assert!(none.recall(&1_u64.into(), outage).is_none());
        }
    }
}
