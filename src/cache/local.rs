//! A local tier: copies of entries in this process, in front of the backend.
//!
//! A copy is served without a question while these hold: its entry is fresh, the tier is trusted,
//! and no act of this process has come since.
//!
//! - **Fill.** Between the answer of a server and its copy, the entry may change, and the change
//!   may be told first. So a fill notes what the tier was told before it asks. It is dropped if
//!   more was told since of a name of its stripe, unless its fence is as great. Both that check
//!   and each change of a name hold the lock of the stripe.
//! - **Trust.** The tier is told of changes in the order of the server. At intervals it learns that
//!   it [was told all](Tap::complete_until) up to a moment. A copy is as good as the later one of
//!   that moment and of its own question, and is served until that is too long ago.
//! - **Tags.** A copy of an entry with tags is checked against the ends that the tier was told of.
//!   They come the same way as the changes of names.
//! - **Epoch.** When changes may have been missed, all copies from before are of no use.
//!
//! No time of a server is compared with one of this process, and fences of one name only.

mod order;
mod watch;

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use hashbrown::DefaultHashBuilder;
use quick_cache::{
    OptionsBuilder, Weighter,
    sync::{Cache as Rows, DefaultLifecycle},
};
use tokio::time::Instant;

pub use self::watch::{EntryWatch, Ticket};
pub(super) use self::{
    order::Fill,
    watch::{Watches, is_any, tell_all, tell_all_of_commit, tell_all_of_loss},
};

use self::order::{Order, nanos};
use super::{
    EarlyRefresh,
    freshness::{self, RefreshDelay, Rules, Window},
    outcome::Record,
    settings::{Settings, at_least, at_most},
    tags::Tags,
};
use crate::{
    backend::{DynStore, Entry, Tap},
    error::Error,
    key::{Key, Name},
};

/// How far a tier may be behind at most, in all versions of this crate.
pub(super) const GREATEST_STALENESS: Duration = Duration::from_secs(2);
/// The weight of a row beside its key and its payload, in bytes. It is measured.
const ROW: usize = 300;
/// The weight of a row that the store makes ready for. It matters little.
const USUAL_ROW: usize = 1024;

/// The settings of a [local tier](super::Builder::local): how much it keeps, and how far it may be
/// behind the backend.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// use std::time::Duration;
/// use bellwether::{BoxError, Cache, MemoryBackend, cache::LocalTier};
///
/// let cache: Cache<u64> = Cache::builder(MemoryBackend::new())
///     .local(LocalTier::weight(16 << 20).max_staleness(Duration::from_millis(500)))
///     .build()?;
/// for _ in 0..3 {
///     cache.get_or_load("stock:42", |_lead| async { Ok::<_, BoxError>(17) }).await?;
/// }
/// assert_eq!(cache.get_local("stock:42"), Some(17));
/// // Of four callers one loaded, one asked the backend, and two were served the copy.
/// assert_eq!((cache.stats().led, cache.stats().hits, cache.stats().local), (1, 1, 2));
/// # Ok::<_, bellwether::Error>(()) }).unwrap();
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalTier {
    weight: usize,
    max_age: Duration,
    max_staleness: Duration,
}

impl Default for LocalTier {
    /// A tier of 64 MiB.
    fn default() -> Self {
        Self::weight(64 << 20)
    }
}

impl LocalTier {
    /// Creates settings with the greatest weight of all copies: their encoded values, their keys,
    /// and 300 bytes for each. A copy that takes much of it is not kept. What the tier notes of
    /// changes takes 0.25 MiB more.
    pub fn weight(bytes: usize) -> Self {
        let (max_age, max_staleness) = (Duration::from_secs(10), Duration::from_secs(1));
        Self { weight: bytes, max_age, max_staleness }
    }

    /// Sets how long a copy is served at most before the backend is asked again. Defaults to 10 s;
    /// at least 1 ms.
    ///
    /// It bounds the changes that no message tells of: a foreign write, an eviction, a `FLUSHALL`,
    /// a step of the server's clock, and a change by a process that may not publish.
    pub fn max_age(mut self, time: Duration) -> Self {
        self.max_age = time;
        self
    }

    /// Sets how far a copy may be behind the backend. Defaults to 1 s; from 100 ms to 2 s.
    ///
    /// Each process with a tier sends itself a message four times in this time.
    pub fn max_staleness(mut self, time: Duration) -> Self {
        self.max_staleness = time;
        self
    }

    pub(super) fn check(&self) -> Result<(), Error> {
        at_least("local.weight", self.weight, 1)?;
        at_least("local.max_age", self.max_age, Duration::from_millis(1))?;
        at_least("local.max_staleness", self.max_staleness, Duration::from_millis(100))?;
        at_most("local.max_staleness", self.max_staleness, GREATEST_STALENESS)
    }
}

/// The tier of a cache. Its times count from the creation of its order.
pub(super) struct Tier<V> {
    rows: Rows<Key, Arc<LocalRow<V>>, ByWeight, DefaultHashBuilder>,
    order: Order,
    max_age: u64,
    /// How far the tier may be behind.
    max_staleness: u64,
}

/// A copy of an entry.
pub(super) struct LocalRow<V> {
    pub(super) value: V,
    pub(super) record: Option<Record>,
    /// The entry without its payload and tags, as it was when the backend was asked.
    entry: Entry,
    weight: usize,
    epoch: u64,
    /// The stripes of its tags, and the number up to which their ends are in the answer.
    stripes: Box<[usize]>,
    checked: u64,
    asked: u64,
    /// When it is to be refreshed at the earliest, and when it ends.
    half: u64,
    until: u64,
}

#[derive(Clone)]
struct ByWeight;

impl<V> Weighter<Key, Arc<LocalRow<V>>> for ByWeight {
    fn weight(&self, key: &Key, row: &Arc<LocalRow<V>>) -> u64 {
        (ROW + key.as_str().len() + row.weight) as u64
    }
}

impl<V: Send + Sync + 'static> Tier<V> {
    /// Creates the tier of a cache, if it is to have one.
    pub(super) fn of(
        settings: &Settings,
        store: &dyn DynStore,
        tags: &Arc<Tags>,
    ) -> Option<Arc<Self>> {
        Some(Self::new(settings.local?, store, Order::new(&settings.namespace, tags)))
    }

    fn new(settings: LocalTier, store: &dyn DynStore, order: Order) -> Arc<Self> {
        let options = OptionsBuilder::new()
            .estimated_items_capacity((settings.weight / USUAL_ROW).max(16))
            .weight_capacity(settings.weight as u64)
            .build();
        let hasher = DefaultHashBuilder::default();
        let rows = match options {
            Ok(options) => {
                Rows::with_options(options, ByWeight, hasher, DefaultLifecycle::default())
            }
            // All that it needs is given.
            Err(_) => Rows::with(16, settings.weight as u64, ByWeight, hasher, <_>::default()),
        };
        Arc::new_cyclic(|this: &Weak<Self>| {
            let is_told = store.tap(this.clone(), settings.max_staleness / 4);
            Self {
                rows,
                order,
                max_age: nanos(settings.max_age),
                max_staleness: if is_told { nanos(settings.max_staleness) } else { u64::MAX },
            }
        })
    }

    /// Returns the copy of a key if it may be served, and is not to be refreshed.
    pub(super) fn get(
        &self,
        key: &str,
        rules: &Rules,
        delay: impl FnOnce(u64) -> RefreshDelay,
    ) -> Option<Arc<LocalRow<V>>> {
        // Before the row is read: all changes up to then have removed theirs.
        let complete_until = self.order.complete_until();
        let row = self.rows.get(key)?;
        let now = self.order.now();
        let known = complete_until.max(row.asked);
        if now >= row.until
            || (rules.copy < Duration::MAX && now.saturating_sub(row.asked) >= nanos(rules.copy))
            || now.saturating_sub(known) >= self.max_staleness
            || row.epoch != self.order.epoch()
            || rules.replaces
            || self.order.tags.have_ended(row.stripes.iter().copied(), row.checked)
        {
            return None;
        }
        if now >= row.half && !matches!(rules.early, EarlyRefresh::Off) {
            let since = Duration::from_nanos(now.saturating_sub(row.asked));
            let age = row.entry.age?.saturating_add(since);
            let delay = || delay(row.entry.fence);
            let window = freshness::decide_at(age, row.entry.windows?, rules, delay);
            return (window == Window::Fresh).then_some(row);
        }
        Some(row)
    }

    /// Begins a question to the backend. Returns `None` if the answer is not to be kept.
    pub(super) fn begin(&self, store: &dyn DynStore, name: &Name) -> Option<Fill> {
        self.order.begin(store, name, false)
    }

    /// Keeps an entry as the answer to a question, if nothing has come in between. `entry` is
    /// without its payload of `size` bytes.
    pub(super) fn insert(
        &self,
        fill: Fill,
        key: &Key,
        (mut entry, size): (Entry, usize),
        (value, record): (V, Option<Record>),
        rules: &Rules,
    ) {
        let (Some(age), Some(windows)) = (entry.age, entry.windows) else { return };
        let fresh = nanos(windows.fresh.saturating_sub(age));
        let half = nanos((windows.fresh / 2).saturating_sub(age));
        let Fill { epoch, asked, ended, .. } = fill;
        let tagged = entry.tagged.take();
        let stripes: Box<[_]> = tagged.iter().flat_map(|tagged| tagged.stripes()).collect();
        let row = LocalRow {
            value,
            record,
            weight: size + size_of_val(&*stripes),
            epoch,
            stripes,
            checked: tagged.map_or(ended, |tagged| tagged.number.max(ended)),
            asked,
            half: asked.saturating_add(half),
            until: asked.saturating_add(fresh.min(self.max_age).min(nanos(rules.copy))),
            entry,
        };
        let fence = row.entry.fence;
        self.order.keep(fill, fence, || self.rows.insert(key.clone(), Arc::new(row)));
    }
}

impl<V> Tier<V> {
    /// Returns how far a copy may be behind now, if changes are told at all. Also returns whether
    /// copies are served without a question.
    #[cfg(feature = "metrics")]
    pub(super) fn trust(&self) -> (Option<Duration>, bool) {
        let (lag, is_told) = (self.order.lag(), self.max_staleness < u64::MAX);
        (is_told.then_some(lag), nanos(lag) < self.max_staleness)
    }

    /// Lets go of all copies, and of all answers to questions until now.
    pub(super) fn forget_all(&self) {
        self.order.lost();
    }

    /// Lets go of a key, and of all answers to questions until now.
    pub(super) fn forget(&self, key: &Key, name: &Name) {
        self.order.forget(name, || drop(self.rows.remove(key.as_str())));
    }
}

impl<V> LocalRow<V> {
    pub(super) fn fence(&self) -> u64 {
        self.entry.fence
    }
}

impl<V: Send + Sync + 'static> Tap for Tier<V> {
    fn changed(&self, prefix: &str, fence: u64) {
        if let Some(tag) = self.order.tag_of(prefix) {
            return self.order.tags.note(&tag, fence);
        }
        self.order.changed(prefix, fence, |key| {
            self.rows.remove_if(key, |row| row.entry.fence < fence);
        });
    }

    fn lost(&self) {
        self.order.lost();
    }

    fn complete_until(&self, asked: Instant) {
        self.order.note_complete(asked);
    }
}
