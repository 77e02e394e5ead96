//! The values that a process remembers for the time in which the backend is away.
//!
//! - An entry that the backend has returned, if it has a window in which it may be stale. Its user
//!   expects an older value then. The next answer about the key replaces or forgets it. Its fence
//!   stays, so that an older answer that comes late is not taken for a newer one.
//! - A value that was loaded without a lease. It belongs to the [outage](Outage) in which it was
//!   loaded. When the outage ends, the value is of no use any more.
//!
//! An act of this process forgets both. An answer that there is no entry does so too, except for a
//! value that the backend has refused to store. After an act, neither an answer to an earlier
//! question is remembered, nor a value whose load began before. So no act is undone.

use std::{
    hash::BuildHasher,
    sync::{
        Mutex, MutexGuard,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
};

use hashbrown::DefaultHashBuilder;
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
/// The weight of a row beside its key, its payload and the header of its entry. It is measured: the
/// entry, its place in the map and in the list, and what the allocator adds.
const ROW: usize = 360;
/// The part of the memory that is worth a lock of its own.
const STRIPE: usize = 256 << 10;
const STRIPES: usize = 16;

pub(super) struct OutageMemory {
    /// The greatest weight of all values. Zero remembers none.
    limit: usize,
    weight: AtomicUsize,
    hasher: DefaultHashBuilder,
    /// The rows, with one lock for each part of the keys.
    stripes: Box<[Mutex<MemoryStripe>]>,
    /// The stripe whose oldest row leaves next.
    next_out: AtomicUsize,
    /// How often something was forgotten.
    forgotten: AtomicU64,
}

struct MemoryStripe {
    rows: LruCache<Key, Row>,
    /// The number of the last time at which one of these keys was forgotten.
    forgotten: u64,
}

struct Row {
    /// The fence of the last answer.
    fence: u64,
    /// `None` if that answer is not remembered.
    value: Option<Remembered>,
}

struct Remembered {
    entry: Entry,
    /// When the entry was stored, or earlier by the way of a question.
    stored: Instant,
    /// The outage in which the value was loaded. `None` if the backend has returned it.
    outage: Option<Outage>,
}

/// When the backend was asked, and how often something had been forgotten by then.
#[derive(Clone, Copy, Debug)]
pub(super) struct Question {
    at: Instant,
    forgotten: u64,
}

impl OutageMemory {
    /// Without a limit that was set, only a cache of several processes remembers values. The other
    /// backends are never away.
    pub(super) fn new(limit: Option<usize>, is_shared: bool) -> Self {
        let limit = limit.unwrap_or(if is_shared { LIMIT } else { 0 });
        let stripe = |_| Mutex::new(MemoryStripe { rows: LruCache::unbounded(), forgotten: 0 });
        Self {
            limit,
            weight: AtomicUsize::new(0),
            hasher: DefaultHashBuilder::default(),
            stripes: (0..(limit / STRIPE).clamp(1, STRIPES)).map(stripe).collect(),
            next_out: AtomicUsize::new(0),
            forgotten: AtomicU64::new(0),
        }
    }

    pub(super) fn is_on(&self) -> bool {
        self.limit > 0
    }

    /// Begins a question to the backend. Returns `None` if no answer is remembered.
    pub(super) fn ask(&self) -> Option<Question> {
        let forgotten = || self.forgotten.load(Ordering::Acquire);
        self.is_on().then(|| Question { at: Instant::now(), forgotten: forgotten() })
    }

    /// Notes the entry that the backend has returned. Remembers it if it may be served stale.
    pub(super) fn saw(&self, key: &Key, asked: Question, entry: &Entry) {
        let may_be_stale = entry.windows.is_some_and(|windows| !windows.is_fresh_only());
        let is_kept = may_be_stale && entry.kind == EntryKind::Value;
        if !is_kept && self.weight.load(Ordering::Acquire) == 0 {
            return;
        }
        let mut stripe = self.stripe(key);
        let last = stripe.rows.get(key).map(|row| (row.fence, row.value.is_some()));
        // The same entry may be remembered now, if it was not before.
        let is_news = last.is_none_or(|(fence, has_value)| {
            entry.fence > fence || (entry.fence == fence && is_kept && !has_value)
        });
        if !is_news {
            return;
        }
        self.remove(&mut stripe, key);
        let stored = asked.at.checked_sub(entry.age.unwrap_or_default());
        let is_kept_now = is_kept && stripe.forgotten <= asked.forgotten && self.fits(key, entry);
        let remembered = |stored| Remembered { entry: entry.clone(), stored, outage: None };
        let value = stored.filter(|_| is_kept_now).map(remembered);
        // Most answers that are not remembered have no older ones that are.
        if is_kept || last.is_some() {
            self.put(stripe, key, Row { fence: entry.fence, value });
        }
    }

    /// Remembers an entry whose load began then, unless an act has come since. It replaces the
    /// stored one with the fence `seen`.
    pub(super) fn remember(
        &self,
        key: &Key,
        begun: Question,
        outage: Outage,
        entry: Entry,
        seen: u64,
    ) {
        if !self.is_on() || entry.kind != EntryKind::Value || !self.fits(key, &entry) {
            return;
        }
        let mut stripe = self.stripe(key);
        if stripe.forgotten <= begun.forgotten {
            self.remove(&mut stripe, key);
            let value = Remembered { entry, stored: Instant::now(), outage: Some(outage) };
            self.put(stripe, key, Row { fence: seen, value: Some(value) });
        }
    }

    /// Returns the entry of a key with its present age, if it is of use in this outage and is still
    /// kept.
    pub(super) fn recall(&self, key: &Key, outage: Outage) -> Option<Entry> {
        if !self.is_on() {
            return None;
        }
        let mut stripe = self.stripe(key);
        let value = stripe.rows.get(key)?.value.as_ref()?;
        let age = value.stored.elapsed();
        let is_kept = value.entry.windows.is_some_and(|windows| age < windows.kept());
        if is_kept && value.outage.is_none_or(|of| of == outage) {
            return Some(Entry { age: Some(age), ..value.entry.clone() });
        }
        self.remove(&mut stripe, key);
        None
    }

    /// Forgets the value of a key, and each answer to a question that was asked until now.
    pub(super) fn forget(&self, key: &Key) {
        if self.is_on() {
            let mut stripe = self.stripe(key);
            stripe.forgotten = self.forgotten.fetch_add(1, Ordering::AcqRel) + 1;
            self.remove(&mut stripe, key);
        }
    }

    /// Lets go of the value of a key, because there is a newer entry, or none.
    pub(super) fn drop_row(&self, key: &Key) {
        self.drop_if(key, |_| true);
    }

    /// Forgets the value of a key that the backend does not have. A value that was loaded while it
    /// refuses writes stays, because it could not get it.
    pub(super) fn missed(&self, key: &Key) {
        let is_gone = |value: &Remembered| value.outage.is_none_or(|outage| !outage.refuses);
        self.drop_if(key, |row| row.value.as_ref().is_none_or(is_gone));
    }

    /// Forgets all values, and each answer to a question that was asked until now.
    pub(super) fn forget_all(&self) {
        for stripe in self.stripes.iter().filter(|_| self.is_on()) {
            let mut stripe = lock(stripe);
            stripe.forgotten = self.forgotten.fetch_add(1, Ordering::AcqRel) + 1;
            while let Some((key, row)) = stripe.rows.pop_lru() {
                self.weight.fetch_sub(row.weight(&key), Ordering::AcqRel);
            }
        }
    }

    fn drop_if(&self, key: &Key, is_gone: impl FnOnce(&Row) -> bool) {
        if !self.is_on() {
            return;
        }
        let mut stripe = self.stripe(key);
        if stripe.rows.peek(key).is_some_and(is_gone) {
            self.remove(&mut stripe, key);
        }
    }

    fn stripe(&self, key: &Key) -> MutexGuard<'_, MemoryStripe> {
        lock(&self.stripes[self.hasher.hash_one(key) as usize % self.stripes.len()])
    }

    /// Returns whether a value does not displace all others.
    fn fits(&self, key: &Key, entry: &Entry) -> bool {
        ROW + key.as_str().len() + entry.weight() <= self.limit / 4
    }

    fn put(&self, mut stripe: MutexGuard<'_, MemoryStripe>, key: &Key, row: Row) {
        self.weight.fetch_add(row.weight(key), Ordering::AcqRel);
        stripe.rows.put(key.clone(), row);
        // No two stripes are locked at once.
        drop(stripe);
        while self.weight.load(Ordering::Acquire) > self.limit {
            let next = self.next_out.fetch_add(1, Ordering::Relaxed) % self.stripes.len();
            if let Some((key, row)) = lock(&self.stripes[next]).rows.pop_lru() {
                self.weight.fetch_sub(row.weight(&key), Ordering::AcqRel);
            }
        }
    }

    fn remove(&self, stripe: &mut MemoryStripe, key: &Key) {
        if let Some((key, row)) = stripe.rows.pop_entry(key) {
            self.weight.fetch_sub(row.weight(&key), Ordering::AcqRel);
        }
    }
}

impl Row {
    fn weight(&self, key: &Key) -> usize {
        let entry = self.value.as_ref().map_or(0, |value| value.entry.weight());
        ROW + key.as_str().len() + entry
    }
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
        let (key, [outage, later]) = (Key::from("k"), [0; 2].map(|_| Outage::next(false)));
        let remember = || memory.remember(&key, memory.ask().unwrap(), outage, entry(1), 0);
        remember();
        tokio::time::advance(SECOND * 3 / 2).await;
        assert_eq!(memory.recall(&key, outage).unwrap().age, Some(SECOND * 3 / 2));
        tokio::time::advance(SECOND / 2).await;
        assert!(memory.recall(&key, outage).is_none());
        remember();
        assert!(memory.recall(&key, later).is_none());
        assert!(memory.recall(&key, outage).is_none());
        assert_eq!(memory.weight.load(Ordering::Relaxed), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_value_from_before_an_act_is_not_remembered() {
        let memory = OutageMemory::new(None, true);
        let (key, outage) = (Key::from("k"), Outage::next(false));
        let begun = memory.ask().unwrap();
        memory.forget(&key);
        memory.remember(&key, begun, outage, entry(1), 0);
        assert!(memory.recall(&key, outage).is_none());
        memory.remember(&key, memory.ask().unwrap(), outage, entry(1), 0);
        assert!(memory.recall(&key, outage).is_some());
        memory.forget(&key);
        assert!(memory.recall(&key, outage).is_none());
        assert_eq!(memory.weight.load(Ordering::Relaxed), 0);
    }

    /// The backend has an older entry, or none, and refuses the value that was loaded since.
    #[tokio::test(start_paused = true)]
    async fn a_value_that_was_refused_outlives_answers_but_no_act() {
        let memory = OutageMemory::new(None, true);
        let key = Key::from("k");
        let [silent, refusing] = [false, true].map(Outage::next);
        for outage in [silent, refusing] {
            memory.remember(&key, memory.ask().unwrap(), outage, entry(1), 5);
            memory.saw(&key, memory.ask().unwrap(), &seen(5, Duration::ZERO));
            memory.missed(&key);
            assert_eq!(memory.recall(&key, outage).is_some(), outage.refuses);
        }
        memory.saw(&key, memory.ask().unwrap(), &seen(6, Duration::ZERO));
        assert_eq!(memory.recall(&key, refusing).unwrap().fence, 6);
        memory.remember(&key, memory.ask().unwrap(), refusing, entry(1), 6);
        memory.forget(&key);
        assert!(memory.recall(&key, refusing).is_none());
        assert_eq!(memory.weight.load(Ordering::Relaxed), 0);
    }

    fn seen(fence: u64, age: Duration) -> Entry {
        Entry { age: Some(age), ..entry(1).with_fence(fence) }
    }

    #[tokio::test(start_paused = true)]
    async fn an_entry_is_remembered_for_each_outage_until_its_windows_end() {
        let memory = OutageMemory::new(None, true);
        let key = Key::from("k");
        let asked = memory.ask().unwrap();
        // The way back of the answer counts.
        tokio::time::advance(SECOND / 4).await;
        memory.saw(&key, asked, &seen(5, SECOND / 4));
        for outage in [0; 2].map(|_| Outage::next(false)) {
            let age = memory.recall(&key, outage).unwrap().age;
            assert_eq!(age, Some(SECOND / 2));
        }
        tokio::time::advance(SECOND * 3 / 2).await;
        assert!(memory.recall(&key, Outage::next(false)).is_none());
        let plain = seen(6, Duration::ZERO).with_windows(Windows::fresh(SECOND));
        memory.saw(&key, memory.ask().unwrap(), &plain);
        assert!(memory.recall(&key, Outage::next(false)).is_none());
        assert_eq!(memory.weight.load(Ordering::Relaxed), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_later_answer_replaces_an_entry_and_an_earlier_one_does_not() {
        let memory = OutageMemory::new(None, true);
        let (key, outage) = (Key::from("k"), Outage::next(false));
        let saw = |entry: &Entry| memory.saw(&key, memory.ask().unwrap(), entry);
        let fence = || memory.recall(&key, outage).map(|entry| entry.fence);
        saw(&seen(5, Duration::ZERO));
        saw(&seen(7, Duration::ZERO));
        saw(&seen(6, Duration::ZERO));
        assert_eq!(fence(), Some(7));
        saw(&Entry::uncacheable(Duration::ZERO).with_fence(8));
        assert_eq!(fence(), None);
        assert_eq!(memory.weight.load(Ordering::Relaxed), ROW + 1);
        saw(&seen(7, Duration::ZERO));
        assert_eq!(fence(), None);
        memory.forget(&key);
        assert_eq!(memory.weight.load(Ordering::Relaxed), 0);
    }

    /// A process asks, acts on the key, and asks again. The second question is answered first by
    /// the server, then another process inserts a value, and that is the answer to the first one.
    /// The callers of the first get the new value, which is not remembered for the act. Then the
    /// answer to the second arrives, with the old value, and the backend goes away.
    #[tokio::test(start_paused = true)]
    async fn an_older_answer_to_a_later_question_is_not_remembered() {
        let memory = OutageMemory::new(None, true);
        let key = Key::from("k");
        let first = memory.ask().unwrap();
        memory.forget(&key);
        let second = memory.ask().unwrap();
        memory.saw(&key, first, &seen(7, Duration::ZERO));
        memory.saw(&key, second, &seen(5, Duration::ZERO));
        assert!(memory.recall(&key, Outage::next(false)).is_none());
        // An act may leave the entry as it is.
        memory.saw(&key, memory.ask().unwrap(), &seen(7, Duration::ZERO));
        assert_eq!(memory.recall(&key, Outage::next(false)).unwrap().fence, 7);
    }

    /// A read was answered before an invalidation, and its answer is handled after it.
    #[tokio::test(start_paused = true)]
    async fn an_answer_from_before_an_act_is_not_remembered() {
        let memory = OutageMemory::new(None, true);
        let (key, outage) = (Key::from("k"), Outage::next(false));
        let asked = memory.ask().unwrap();
        memory.forget(&key);
        memory.saw(&key, asked, &seen(5, Duration::ZERO));
        assert!(memory.recall(&key, outage).is_none());
        memory.saw(&key, memory.ask().unwrap(), &seen(7, Duration::ZERO));
        assert!(memory.recall(&key, outage).is_some());
        memory.forget(&key);
        assert!(memory.recall(&key, outage).is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn the_weight_is_bounded_over_all_stripes() {
        let memory = OutageMemory::new(Some(STRIPE * 4), true);
        assert_eq!(memory.stripes.len(), 4);
        for key in 0..2_000_u64 {
            let entry = Entry { payload: Bytes::from(vec![b'v'; 2_000]), ..seen(5, SECOND / 8) };
            memory.saw(&key.into(), memory.ask().unwrap(), &entry);
            assert!(memory.weight.load(Ordering::Relaxed) <= STRIPE * 4);
        }
        let kept = |keys: std::ops::Range<u64>| {
            keys.filter(|key| memory.recall(&(*key).into(), Outage::next(false)).is_some()).count()
        };
        assert!(kept(1_800..2_000) > 180 && kept(0..1_000) < 20);
    }

    #[tokio::test(start_paused = true)]
    async fn the_weight_is_bounded() {
        let (memory, outage) = (OutageMemory::new(Some(10_000), false), Outage::next(false));
        for key in 0..1000_u64 {
            let size = if key == 999 { 3000 } else { 500 };
            memory.remember(&key.into(), memory.ask().unwrap(), outage, entry(size), 0);
            assert!(memory.weight.load(Ordering::Relaxed) <= 10_000);
        }
        let is_kept = |key: u64| memory.recall(&key.into(), outage).is_some();
        assert!(is_kept(998) && !is_kept(1) && !is_kept(999));
        for none in [OutageMemory::new(None, false), OutageMemory::new(Some(0), true)] {
            assert!(none.ask().is_none() && none.recall(&1_u64.into(), outage).is_none());
        }
    }
}
