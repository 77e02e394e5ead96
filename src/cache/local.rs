//! The copies of entries that this process keeps.
//!
//! While the backend is away, a copy is served within its windows. With a local tier, a copy is
//! also served without asking the backend, while its entry is fresh and the tier is trusted.
//!
//! - **Fill.** Before a read, the tier notes the number of changes of the name's stripe. The answer
//!   is dropped if this process has written a name of the stripe since then, or if a change of the
//!   stripe with a greater fence has arrived. The check and each change hold the lock of the
//!   stripe.
//! - **Trust.** At intervals the tier learns that it [has received all
//!   changes](Tap::complete_until) up to a moment. A copy is served if that moment, or the read of
//!   the copy if that was later, is at most the staleness of the tier ago.
//! - **Generation.** When changes may have been missed, a new generation begins, and no older copy
//!   is trusted.

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
    random::{self, Hasher},
    sync::lock,
    time::after,
};

/// The weight of a row beside its key and its payload, in bytes, as measured.
const ROW: usize = 470;
/// The default weight of all rows for outages.
const MEMORY: usize = 4 << 20;
/// The number of stripes of a store without a tier. With a tier, each stripe is a channel of the
/// backend.
const FEW_STRIPES: usize = 64;
/// The weight of a usual row, by which the store allocates memory at first.
const USUAL_ROW: usize = 1024;

/// Returns the number of stripes of a store without a tier. Some simulated stores have one stripe,
/// so that their few names share it.
fn few_stripes() -> usize {
    if cfg!(bellwether_sim) && random::below(2) == 0 { 1 } else { FEW_STRIPES }
}

/// The copies of entries that a process keeps: for its local tier, and for the time in which the
/// backend is away.
pub(super) struct LocalStore<V> {
    rows: LocalRows<V>,
    /// The greatest weight of a copy. Without this limit, one copy could evict all other copies.
    heaviest: usize,
    pub(super) order: Order,
    /// `None` if no copy is served while the backend answers. The staleness of the tier has no
    /// limit if the backend publishes no changes.
    pub(super) tier: Option<LocalTier>,
    /// Copies are kept for outages.
    remembers: bool,
    counters: Arc<Counters>,
    /// Until when the time without trust was counted.
    counted_until: Mutex<Instant>,
}

pub(super) struct LocalRow<V> {
    pub(super) value: V,
    pub(super) record: Record,
    /// The entry without its payload and tags, as the backend returned it.
    pub(super) entry: Entry,
    weight: usize,
    generation: u64,
    /// The stripes of the entry's tags.
    stripes: Box<[usize]>,
    /// The tags of the entry have no end up to this number.
    checked: u64,
    /// When the backend was asked for the entry.
    pub(super) read_at: Instant,
    /// Until when the copy is served while the backend answers. `None` if it is for outages only.
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

/// Counts the rows that are evicted.
#[derive(Clone)]
struct CountsEvictions(Arc<Counters>);

impl<V> Lifecycle<Key, Arc<LocalRow<V>>> for CountsEvictions {
    /// The row that was evicted. It is dropped after the lock of its shard is released.
    type RequestState = Option<Arc<LocalRow<V>>>;

    fn on_evict(&self, dropped: &mut Self::RequestState, _: Key, row: Arc<LocalRow<V>>) {
        self.0.local_evicted.add();
        *dropped = Some(row);
    }
}

fn rows<V>(weight: usize, counters: &Arc<Counters>) -> LocalRows<V> {
    let counts = CountsEvictions(counters.clone());
    let hasher = Hasher::default();
    let usual_rows = (weight / USUAL_ROW).max(16);
    let mut options = OptionsBuilder::new();
    options.estimated_items_capacity(usual_rows);
    options.weight_capacity(weight as u64);
    // The default grows with the cores. Each of four shards has a quarter of the weight, and so
    // room for the heaviest copy.
    options.shards(4);
    match options.build() {
        Ok(options) => Rows::with_options(options, ByWeight, hasher, counts),
        // `build` fails only if the capacity or the weight is not set.
        Err(_) => Rows::with(16, weight as u64, ByWeight, hasher, counts),
    }
}

impl<V: Clone + Send + Sync + 'static> LocalStore<V> {
    /// Creates the store of a cache, if the settings ask for copies.
    pub(super) fn new(
        settings: &Settings,
        store: &dyn Store,
        tags: &Arc<Tags>,
        counters: &Arc<Counters>,
    ) -> Option<Arc<Self>> {
        // A backend in this process is never away.
        let memory = settings.outage_memory.unwrap_or(if store.is_shared() { MEMORY } else { 0 });
        let weight = settings.local.map_or(0, |tier| tier.weight).saturating_add(memory);
        if weight == 0 {
            return None;
        }
        let is_tier = settings.local.is_some();
        let stripes = if is_tier { STRIPES } else { few_stripes() };
        let order = Order::new(&settings.namespace, tags, stripes);
        Some(Arc::new_cyclic(|this: &Weak<Self>| {
            let mut tier = settings.local;
            if let Some(tier) = &mut tier
                && !store.tap(this.clone(), tier.max_staleness / 4)
            {
                tier.max_staleness = Duration::MAX;
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

    /// Returns the copy of a key if it may be served and is not due for a refresh.
    pub(super) fn get(
        &self,
        tier: LocalTier,
        key: &str,
        rules: &Rules,
        delay: impl FnOnce(u64, Duration) -> Duration,
    ) -> Option<Arc<LocalRow<V>>> {
        // Read before the row, because changes up to that moment have removed their rows.
        let complete_until = self.order.complete_until();
        let row = self.rows.get(key)?;
        let now = Instant::now();
        let copy_age = now.saturating_duration_since(row.read_at);
        let staleness = now.saturating_duration_since(complete_until.max(row.read_at));
        if row.until.is_none_or(|until| now >= until)
            || copy_age >= rules.copy
            || staleness >= tier.max_staleness
            || row.generation != self.order.generation.load(Ordering::Acquire)
            || rules.replaces
            || self.order.tags.have_ended(row.stripes.iter().copied(), row.checked)
        {
            return None;
        }
        if matches!(rules.early, EarlyRefresh::Off) {
            return Some(row);
        }
        let fence = row.entry.fence;
        let window = freshness::decide_at(row.age()?, row.entry.windows?, rules, |window| {
            delay(fence, window)
        });
        if window == Window::Fresh { Some(row) } else { None }
    }

    /// Returns the copy of a key with its present entry, if it may be served in this outage.
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
            None => self.order.fill(name, now),
        }
    }

    /// Keeps a copy of an entry that the backend has returned or stored, unless a change has
    /// arrived since the read. The copy of a hit may be served while the backend answers.
    pub(super) fn note(
        &self,
        fill: Fill,
        key: &Key,
        copied: CopiedEntry,
        value: &V,
        is_hit: bool,
        rules: &Rules,
    ) {
        let entry = &copied.entry;
        let mut remembered = Remembered::No;
        if self.remembers {
            remembered = Remembered::of_seen(entry);
        }
        let until = match (self.tier, entry.age.zip(entry.windows)) {
            (Some(tier), Some((age, windows))) if is_hit && fill.is_subscribed => {
                let fresh = windows.fresh.saturating_sub(age);
                let longest = tier.max_age.min(rules.copy);
                Some(after(fill.read_at, fresh.min(longest)))
            }
            _ => None,
        };
        let fence = entry.fence;
        let last = self.rows.peek(key);
        if last.as_ref().is_some_and(|row| row.remembered.outlives_answer(row.entry.fence, fence)) {
            return;
        }
        if until.is_none() && remembered == Remembered::No {
            // Most keys have no row, so most reads pay for one lookup.
            if last.is_some() {
                self.remove(key);
            }
            return;
        }
        if until.is_none()
            && let Some(row) = last
            && row.entry.fence == fence
            && row.remembered.is_of_backend()
        {
            return;
        }
        let row = LocalRow::new(fill, copied, value.clone());
        let row = LocalRow { until, remembered, ..row };
        if !self.keep(fill, fence, key, row) {
            #[cfg(bellwether_sim)]
            if crate::sim::is_planted("older-copy") {
                return;
            }
            // A caller was served this entry, so no older copy may be served after it.
            self.rows.remove_if(key, |row| row.entry.fence < fence);
        }
    }

    /// Keeps a copy of a value that was loaded in an outage, by a load that began with `begun`. The
    /// fence of its entry is the greatest fence that is known to be older than the value.
    pub(super) fn note_loaded(
        &self,
        begun: Fill,
        key: &Key,
        outage: Outage,
        mut copied: CopiedEntry,
        value: V,
    ) {
        if !self.remembers {
            return;
        }
        copied.entry.age = Some(Duration::ZERO);
        let mut now = begun;
        now.read_at = Instant::now();
        let row = LocalRow::new(now, copied, value);
        let row = LocalRow { remembered: Remembered::Loaded(outage), ..row };
        if !self.keep(begun, u64::MAX, key, row) {
            self.remove(key);
        }
    }

    /// Keeps a row in place of the last row of its key, unless the row is too heavy or something
    /// newer has arrived. Returns whether the row was kept.
    fn keep(&self, fill: Fill, fence: u64, key: &Key, row: LocalRow<V>) -> bool {
        ROW + key.text.len() + row.weight <= self.heaviest
            && self.order.keep(fill, fence, || self.rows.insert(key.clone(), Arc::new(row)))
    }
}

impl<V> LocalStore<V> {
    /// Returns how far a copy may be behind now, if the backend publishes changes. Also returns
    /// whether copies are served without asking the backend. Returns `None` if there is no tier, or
    /// if the tier has not yet asked for changes, because its trust is not known then.
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

    /// Drops the copy of an entry with a smaller fence, and returns whether there was one. The key
    /// and the prefix belong to the same name.
    pub(super) fn drop_older(&self, key: &str, prefix: &str, fence: u64) -> bool {
        let mut is_dropped = false;
        self.order.changed(prefix, fence, || {
            is_dropped = self.rows.remove_if(key, |row| row.entry.fence < fence).is_some();
        });
        is_dropped
    }

    /// Drops the copy of a key because the backend has no entry, unless the copy stays in an
    /// outage.
    pub(super) fn missed(&self, key: &Key) {
        self.rows.remove_if(key, |row| !row.remembered.outlives_missing());
    }

    pub(super) fn remove(&self, key: &Key) {
        self.rows.remove(key);
    }

    /// Drops all copies, and the answers to all reads that have begun.
    pub(super) fn forget_all(&self) {
        self.order.lost();
        self.order.settle();
        self.rows.clear();
    }

    /// Drops the copy of a key, and the answers to all reads of the key that have begun.
    pub(super) fn forget(&self, key: &Key, name: &Name) {
        self.order.forget(name, || drop(self.rows.remove(key)));
    }
}

/// An entry to copy, without its payload.
pub(super) struct CopiedEntry {
    pub(super) entry: Entry,
    /// The size of the payload.
    pub(super) size: usize,
}

impl<V> LocalRow<V> {
    fn new(fill: Fill, copied: CopiedEntry, value: V) -> Self {
        let CopiedEntry { mut entry, size } = copied;
        let mut stripes = Box::default();
        let mut checked = fill.ended;
        if let Some(tagged) = entry.tagged.take() {
            stripes = tagged.stripes().collect();
            checked = checked.max(tagged.number);
        }
        Self {
            value,
            record: Record::of(&entry),
            weight: size + size_of_val(&*stripes),
            generation: fill.generation,
            stripes,
            checked,
            read_at: fill.read_at,
            until: None,
            remembered: Remembered::No,
            entry,
        }
    }

    /// Returns the present age of the entry.
    fn age(&self) -> Option<Duration> {
        Some(self.entry.age?.saturating_add(self.read_at.elapsed()))
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
            let tags = Arc::new(Tags::new(&settings));
            let store = LocalStore::new(&settings, &MemoryBackend::new(), &tags, &Arc::default());
            let key = Key::from("k");
            let name = Name::new(&Namespace::standard(), Family::Cache, &key, 512).unwrap();
            Self { store: store.unwrap(), key, name, outage: Outage::next(false) }
        }

        fn fill(&self) -> Fill {
            self.store.order.fill(&self.name, Instant::now())
        }

        fn copied(fence: u64, windows: Windows) -> CopiedEntry {
            let entry = Entry::value(0, Duration::ZERO, Bytes::new()).with_fence(fence);
            let entry = Entry { age: Some(Duration::ZERO), ..entry.with_windows(windows) };
            CopiedEntry { entry, size: 1 }
        }

        fn note(&self, fill: Fill, fence: u64, windows: Windows) {
            let copied = Self::copied(fence, windows);
            self.store.note(fill, &self.key, copied, &fence, true, &Rules::ALL);
        }

        fn recalled(&self) -> Option<u64> {
            self.store.recall(&self.key, self.outage).map(|(row, _)| row.value)
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_older_answer_and_one_without_windows_end_no_newer_value() {
        let scene = Scene::new();
        let plain = Windows::fresh(SECOND);
        let kept = plain.error(SECOND);
        for (fence, windows, expected) in [
            (5, kept, Some(5)),
            (7, kept, Some(7)),
            (6, kept, Some(7)),
            (6, plain, Some(7)),
            (8, plain, None),
        ] {
            scene.note(scene.fill(), fence, windows);
            assert_eq!(scene.recalled(), expected);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_comes_too_late_to_be_kept_ends_an_older_value() {
        let scene = Scene::new();
        let store = &scene.store;
        let kept = Windows::fresh(SECOND).error(SECOND);
        let before = scene.fill();
        store.forget(&scene.key, &scene.name);
        let copied = Scene::copied(5, kept);
        store.note_loaded(scene.fill(), &scene.key, scene.outage, copied, 50);
        scene.note(before, 4, kept);
        assert_eq!(scene.recalled(), Some(50));
        scene.note(before, 6, kept);
        assert_eq!(scene.recalled(), None);
    }
}
