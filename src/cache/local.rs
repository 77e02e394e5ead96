//! The copies of entries that this process keeps.
//!
//! While the backend is away, a copy is served as its windows allow it. With a local tier, a copy
//! is also served without a question, while its entry is fresh and the tier is trusted.
//!
//! - **Fill.** A fill notes what was told before it asks. It is dropped if this process acted
//!   since, or if a name of its stripe was told with a greater fence. Check and change hold one
//!   lock.
//! - **Trust.** At intervals the tier learns that it [was told all](Tap::complete_until) up to a
//!   moment. A copy is served until that moment, or its own question if later, is too long ago.
//! - **Generation.** When changes may have been missed, no copy from before is trusted.

mod order;

use std::{
    sync::{Arc, Mutex, Weak, atomic::Ordering},
    time::Duration,
};

use quick_cache::{Lifecycle, OptionsBuilder, Weighter, sync::Cache as Rows};
use tokio::time::Instant;

pub(super) use self::order::{Fill, Order, WatchedOrder, Watches};

use super::{
    EarlyRefresh,
    freshness::{self, Rules, Window},
    outage::{Outage, Remembered},
    outcome::Record,
    settings::{LocalTier, Settings},
    tags::Tags,
};
use crate::{
    backend::{Entry, STRIPES, Store, Tap},
    key::{Key, Name},
    observe::Counters,
    random::Hasher,
    sync::lock,
    time::after,
};

/// The weight of a row beside its key and its payload, in bytes. It is measured.
const ROW: usize = 470;
/// The weight of all rows for outages, if it is not set.
const MEMORY: usize = 4 << 20;
/// The stripes without a tier, which need not be the channels of the backend.
const FEW_STRIPES: usize = 64;
/// The weight of a row that the store makes ready for.
const USUAL_ROW: usize = 1024;

/// The copies of entries that a process keeps: for its local tier, and for the time in which the
/// backend is away.
pub(super) struct LocalStore<V> {
    rows: LocalRows<V>,
    /// The greatest weight of a copy. Without it one copy could displace all others.
    heaviest: usize,
    pub(super) order: Order,
    /// `None` if no copy is served while the backend answers. Its staleness has no limit if changes
    /// are not told.
    pub(super) tier: Option<LocalTier>,
    remembers: bool,
    counters: Arc<Counters>,
    /// Until when the time without trust was counted.
    counted_until: Mutex<Instant>,
}

pub(super) struct LocalRow<V> {
    pub(super) value: V,
    pub(super) record: Record,
    /// The entry without its payload and tags, as it was when the backend was asked.
    pub(super) entry: Entry,
    weight: usize,
    generation: u64,
    /// The stripes of its tags, and the number up to which their ends are in the answer.
    stripes: Box<[usize]>,
    checked: u64,
    pub(super) asked: Instant,
    /// When its trust ends. It has none if it is for outages only.
    until: Option<Instant>,
    pub(super) remembered: Remembered,
}

#[derive(Clone)]
struct ByWeight;

impl<V> Weighter<Key, Arc<LocalRow<V>>> for ByWeight {
    fn weight(&self, key: &Key, row: &Arc<LocalRow<V>>) -> u64 {
        (ROW + key.text.len() + row.weight) as u64
    }
}

type LocalRows<V> = Rows<Key, Arc<LocalRow<V>>, ByWeight, Hasher, CountsEvictions>;

/// Counts the rows that give way to others.
#[derive(Clone)]
struct CountsEvictions(Arc<Counters>);

impl<V> Lifecycle<Key, Arc<LocalRow<V>>> for CountsEvictions {
    /// A row that was evicted is dropped after the lock of its shard.
    type RequestState = Option<Arc<LocalRow<V>>>;

    fn on_evict(&self, dropped: &mut Self::RequestState, _: Key, row: Arc<LocalRow<V>>) {
        self.0.local_evicted.add();
        *dropped = Some(row);
    }
}

fn rows<V>(weight: usize, counters: &Arc<Counters>) -> LocalRows<V> {
    let counts = CountsEvictions(counters.clone());
    let hasher = Hasher::default();
    let mut options = OptionsBuilder::new();
    options.estimated_items_capacity((weight / USUAL_ROW).max(16)).weight_capacity(weight as u64);
    // Each has a quarter of the weight, and so room for the heaviest copy. By default, their number
    // grows with the cores.
    options.shards(4);
    match options.build() {
        Ok(options) => Rows::with_options(options, ByWeight, hasher, counts),
        // All that it needs is given.
        Err(_) => Rows::with(16, weight as u64, ByWeight, hasher, counts),
    }
}

impl<V: Clone + Send + Sync + 'static> LocalStore<V> {
    /// Creates the store of a cache, if it is to have one.
    pub(super) fn of(
        settings: &Settings,
        store: &dyn Store,
        tags: &Arc<Tags>,
        counters: &Arc<Counters>,
    ) -> Option<Arc<Self>> {
        // The other backends are never away.
        let memory = settings.outage_memory.unwrap_or(if store.is_shared() { MEMORY } else { 0 });
        let weight = settings.local.map_or(0, |tier| tier.weight).saturating_add(memory);
        if weight == 0 {
            return None;
        }
        let is_tier = settings.local.is_some();
        let stripes = if is_tier { STRIPES } else { FEW_STRIPES };
        let order = Order::new(&settings.namespace, tags, stripes);
        Some(Arc::new_cyclic(|this: &Weak<Self>| {
            let mut tier = settings.local;
            if let Some(told) = &mut tier
                && !store.tap(this.clone(), told.max_staleness / 4)
            {
                told.max_staleness = Duration::MAX;
            }
            Self {
                rows: rows(weight, counters),
                heaviest: weight / 4,
                order,
                tier,
                remembers: memory > 0,
                counters: counters.clone(),
                counted_until: Mutex::new(Instant::now()),
            }
        }))
    }

    /// Returns the copy of a key if it may be served, and is not to be refreshed.
    pub(super) fn get(
        &self,
        tier: LocalTier,
        key: &str,
        rules: &Rules,
        delay: impl FnOnce(u64, Duration) -> Duration,
    ) -> Option<Arc<LocalRow<V>>> {
        // Before the row is read: all changes up to then have removed theirs.
        let complete_until = self.order.complete_until();
        let row = self.rows.get(key)?;
        let now = Instant::now();
        let since = |moment: Instant| now.saturating_duration_since(moment);
        if row.until.is_none_or(|until| now >= until)
            || since(row.asked) >= rules.copy
            || since(complete_until.max(row.asked)) >= tier.max_staleness
            || row.generation != self.order.generation.load(Ordering::Acquire)
            || rules.replaces
            || self.order.tags.have_ended(row.stripes.iter().copied(), row.checked)
        {
            return None;
        }
        if matches!(rules.early, EarlyRefresh::Off) {
            return Some(row);
        }
        let delay = |window| delay(row.entry.fence, window);
        let window = freshness::decide_at(row.age()?, row.entry.windows?, rules, delay);
        (window == Window::Fresh).then_some(row)
    }

    /// Returns the copy of a key with its present entry, if it is of use in this outage.
    pub(super) fn recall(&self, key: &Key, outage: Outage) -> Option<(Arc<LocalRow<V>>, Entry)> {
        let row = self.rows.get(key)?;
        let age = row.age()?;
        let is_kept = row.entry.windows.is_some_and(|windows| age < windows.kept());
        if !is_kept
            || !row.remembered.is_served_in(outage)
            || self.order.tags.have_ended(row.stripes.iter().copied(), row.checked)
        {
            return None;
        }
        let entry = Entry { age: Some(age), ..row.entry.clone() };
        Some((row, entry))
    }

    pub(super) fn begin(&self, store: &dyn Store, name: &Name, now: Instant) -> Fill {
        match self.tier {
            Some(_) => self.order.begin(store, name, now, false),
            None => self.order.mark(name, now),
        }
    }

    /// Notes an entry that the backend has returned or stored, with the size of its payload, unless
    /// something has come since the question. A hit is fresh, and may be served while the backend
    /// answers.
    pub(super) fn note(
        &self,
        fill: Fill,
        key: &Key,
        (entry, size): (Entry, usize),
        value: &V,
        is_hit: bool,
        rules: &Rules,
    ) {
        let mut remembered = Remembered::No;
        if self.remembers {
            remembered = Remembered::of_seen(&entry);
        }
        let until = match (self.tier, entry.age.zip(entry.windows)) {
            (Some(tier), Some((age, windows))) if is_hit && fill.is_heard => {
                let fresh = windows.fresh.saturating_sub(age);
                Some(after(fill.asked, fresh.min(tier.max_age).min(rules.copy)))
            }
            _ => None,
        };
        let fence = entry.fence;
        let last = self.rows.peek(key);
        if last.as_ref().is_some_and(|row| row.remembered.outlives_answer(row.entry.fence, fence)) {
            return;
        }
        if until.is_none() && remembered == Remembered::No {
            // Most reads are of a name without a row, and pay for one look.
            if last.is_some() {
                self.remove(key);
            }
            return;
        }
        let is_same =
            |row: &Arc<LocalRow<V>>| row.entry.fence == fence && row.remembered.is_of_backend();
        if until.is_none() && last.is_some_and(|row| is_same(&row)) {
            return;
        }
        let row = LocalRow::new(fill, entry, size, value.clone());
        let row = LocalRow { until, remembered, ..row };
        if !self.keep(fill, fence, key, row) {
            // Its caller was served it, so nothing older may follow.
            self.rows.remove_if(key, |row| row.entry.fence < fence);
        }
    }

    /// Notes a value whose load began then, without a lease or a commit that was answered. Its
    /// entry has the greatest fence than which the value is known to be newer.
    pub(super) fn note_loaded(
        &self,
        begun: Fill,
        key: &Key,
        outage: Outage,
        (entry, size): (Entry, usize),
        value: V,
    ) {
        if self.remembers {
            let entry = Entry { age: Some(Duration::ZERO), ..entry };
            let mut now = begun;
            now.asked = Instant::now();
            let row = LocalRow::new(now, entry, size, value);
            let row = LocalRow { remembered: Remembered::Loaded(outage), ..row };
            if !self.keep(begun, u64::MAX, key, row) {
                self.remove(key);
            }
        }
    }

    /// Keeps a row in place of the last one, if it is not too heavy and nothing newer has come.
    /// Returns whether it was kept.
    fn keep(&self, fill: Fill, fence: u64, key: &Key, row: LocalRow<V>) -> bool {
        ROW + key.text.len() + row.weight <= self.heaviest
            && self.order.keep(fill, fence, || self.rows.insert(key.clone(), Arc::new(row)))
    }
}

impl<V> LocalStore<V> {
    /// Returns how far a copy may be behind now, if changes are told at all. Also returns whether
    /// copies are served without a question. `None` if there is no tier, or if it has not wanted to
    /// keep a copy yet: whether it could rely on its messages is not known then.
    #[cfg(feature = "metrics")]
    pub(super) fn trust(&self) -> Option<(Option<Duration>, bool)> {
        let max_staleness = self.tier?.max_staleness;
        if !self.order.is_wanted.load(Ordering::Relaxed) {
            return None;
        }
        let lag = self.order.complete_until().elapsed();
        Some(((max_staleness < Duration::MAX).then_some(lag), lag < max_staleness))
    }

    /// Returns the weight of all copies, and the greatest that it may be, in bytes.
    #[cfg(feature = "metrics")]
    pub(super) fn fill(&self) -> (u64, u64) {
        (self.rows.weight(), self.rows.capacity())
    }

    /// Counts the time without trust until now.
    pub(super) fn count_trust(&self) {
        let Some(tier) = self.tier else { return };
        let trusted_until = after(self.order.complete_until(), tier.max_staleness);
        let mut counted_until = lock(&self.counted_until);
        let counted = *counted_until;
        let now = Instant::now();
        *counted_until = now;
        if !self.order.is_wanted.load(Ordering::Relaxed) {
            return;
        }
        let untrusted = now.saturating_duration_since(trusted_until.max(counted));
        self.counters.local_untrusted_seconds.add(untrusted);
    }

    /// Lets go of the copy of an entry from before this fence. Returns whether there was one. The
    /// key and the prefix are of one name.
    pub(super) fn drop_older(&self, key: &str, prefix: &str, fence: u64) -> bool {
        let mut is_dropped = false;
        self.order.changed(prefix, fence, || {
            is_dropped = self.rows.remove_if(key, |row| row.entry.fence < fence).is_some();
        });
        is_dropped
    }

    /// Notes that the backend has no entry of a key.
    pub(super) fn missed(&self, key: &Key) {
        self.rows.remove_if(key, |row| !row.remembered.outlives_missing());
    }

    pub(super) fn remove(&self, key: &Key) {
        self.rows.remove(key);
    }

    /// Lets go of all copies, and of all answers to questions until now.
    pub(super) fn forget_all(&self) {
        self.order.lost();
        self.order.settle();
        self.rows.clear();
    }

    /// Lets go of a key, and of all answers to questions until now.
    pub(super) fn forget(&self, key: &Key, name: &Name) {
        self.order.forget(name, || drop(self.rows.remove(key)));
    }
}

impl<V> LocalRow<V> {
    fn new(fill: Fill, mut entry: Entry, size: usize, value: V) -> Self {
        let tagged = entry.tagged.take();
        let stripes: Box<[_]> = tagged.iter().flat_map(|tagged| tagged.stripes()).collect();
        Self {
            value,
            record: Record::of(&entry),
            weight: size + size_of_val(&*stripes),
            generation: fill.generation,
            stripes,
            checked: tagged.map_or(fill.ended, |tagged| tagged.number.max(fill.ended)),
            asked: fill.asked,
            until: None,
            remembered: Remembered::No,
            entry,
        }
    }

    /// Returns the age of the entry by now.
    fn age(&self) -> Option<Duration> {
        Some(self.entry.age?.saturating_add(self.asked.elapsed()))
    }
}

impl<V: Send + Sync + 'static> Tap for LocalStore<V> {
    fn changed(&self, prefix: &str, fence: u64) {
        if let Some(tag) = self.order.tag_of(prefix) {
            return self.order.tags.note(&tag, fence);
        }
        let Some(key) = self.order.key_of(prefix) else { return };
        if self.drop_older(&key, prefix, fence) {
            self.counters.local_dropped.add();
        }
    }

    fn lost(&self) {
        self.order.lost();
    }

    fn complete_until(&self, asked: Instant) {
        self.count_trust();
        self.order.note_complete(asked);
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::{
        MemoryBackend,
        backend::Windows,
        key::{Family, Namespace},
    };

    const SECOND: Duration = Duration::from_secs(1);

    struct Scene {
        store: Arc<LocalStore<u64>>,
        key: Key,
        name: Name,
        outage: Outage,
    }

    impl Scene {
        fn new() -> Self {
            let settings = Settings { outage_memory: Some(1 << 20), ..Settings::default() };
            let (tags, counters) = (Arc::new(Tags::new(&settings)), Arc::default());
            let store = LocalStore::of(&settings, &MemoryBackend::new(), &tags, &counters);
            let (store, key, outage) = (store.unwrap(), Key::from("k"), Outage::next(false));
            let name = Name::new(&Namespace::standard(), Family::Cache, &key, 512).unwrap();
            Self { store, key, name, outage }
        }

        fn seen(fence: u64, windows: Windows) -> (Entry, usize) {
            let entry = Entry::value(0, Duration::ZERO, Bytes::new()).with_fence(fence);
            (Entry { age: Some(Duration::ZERO), ..entry.with_windows(windows) }, 1)
        }

        fn note(&self, asked: Fill, fence: u64, windows: Windows) {
            let seen = Self::seen(fence, windows);
            self.store.note(asked, &self.key, seen, &fence, true, &Rules::ALL);
        }

        fn recalled(&self) -> Option<u64> {
            self.store.recall(&self.key, self.outage).map(|(row, _)| row.value)
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_older_answer_and_one_without_windows_end_no_newer_value() {
        let scene = Scene::new();
        let (plain, kept) = (Windows::fresh(SECOND), Windows::fresh(SECOND).error(SECOND));
        for (fence, windows, expected) in [
            (5, kept, Some(5)),
            (7, kept, Some(7)),
            (6, kept, Some(7)),
            (6, plain, Some(7)),
            (8, plain, None),
        ] {
            scene.note(scene.store.order.mark(&scene.name, Instant::now()), fence, windows);
            assert_eq!(scene.recalled(), expected);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_comes_too_late_to_be_kept_ends_an_older_value() {
        let (scene, kept) = (Scene::new(), Windows::fresh(SECOND).error(SECOND));
        let (store, key) = (&scene.store, &scene.key);
        let asked = store.order.mark(&scene.name, Instant::now());
        store.forget(key, &scene.name);
        store.note_loaded(
            store.order.mark(&scene.name, Instant::now()),
            key,
            scene.outage,
            Scene::seen(5, kept),
            50,
        );
        scene.note(asked, 4, kept);
        assert_eq!(scene.recalled(), Some(50));
        scene.note(asked, 6, kept);
        assert_eq!(scene.recalled(), None);
    }
}
