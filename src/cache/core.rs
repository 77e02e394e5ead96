//! The parts that the clones of a cache share, in groups by their users.

use std::{
    sync::{
        Arc, Once,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::{sync::Semaphore, time::timeout};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    Codec,
    activity::Activity,
    breaker::Shard,
    failures::Failures,
    freshness::Rules,
    lead::Keeping,
    local::{LocalStore, Watches},
    member::Permit,
    notes::{EntryNote, Invalidations, Refreshes},
    outage::{Deferral, DeferredWrites, WriteTarget},
    outcome::Outcome,
    settings::{IsNegative, Options, Settings},
    tags::Tags,
    unencoded::FreshValues,
};
use crate::{
    backend::{Edit, Entry, Store, TagEnd, Tagged, Tap, Windows, answered_by},
    error::{BackendError, Error, ErrorKind},
    flight::Flights,
    key::{Family, Key, Name},
    lease::{Engine, try_limit},
    meter::Meter,
    observe::{Counters, Rarely, Stats},
    random,
    shards::Shards,
};

pub(crate) struct Core<V> {
    pub(crate) settings: Settings,
    pub(super) backend: CacheBackend,
    pub(super) format: EntryFormat<V>,
    pub(super) loads: Loads<V>,
    pub(super) local: LocalState<V>,
    /// What happened to callers and loads. Every part counts here.
    pub(crate) counters: Arc<Counters>,
    /// The times that are published as metrics.
    pub(super) meter: Meter,
    /// The busiest keys, while a `top` asks for them.
    pub(super) activity: Activity,
}

/// The backend, as a cache asks it: reads, claims, writes and acts go through this group.
pub(super) struct CacheBackend {
    pub(super) store: Arc<dyn Store>,
    /// Keeps the leases of the loads.
    pub(super) engine: Arc<Engine>,
    /// Which parts of the backend are silent, and how many questions they are asked at once.
    shards: Shards<Shard>,
    /// The writes that failed while the backend was away, and come before the next question.
    pub(super) writes: Arc<DeferredWrites>,
    /// All reads ask for the age: there is a tier, or an entry with windows was read.
    asks_age: AtomicBool,
    /// How long one try of a claim or a write may take.
    pub(super) try_limit: Duration,
    /// How long a fence is kept. It outlives the lease by a grace: a load whose lease ended
    /// unnoticed may still be committed in it, if no other load began.
    pub(super) fence_life: Duration,
}

/// What a value and an entry are made into each other with. Loads and inserts use it for values,
/// and reads for entries.
pub(super) struct EntryFormat<V> {
    pub(super) codec: Arc<dyn Codec<V>>,
    /// The tag of the entries of this schema and codec.
    pub(super) tag: u32,
    /// Says which values have the negative time to live.
    pub(super) is_negative: Option<Box<IsNegative<V>>>,
    /// Limit the warnings of entries that cannot be read, and of values that cannot be stored.
    pub(super) undecodable: Rarely,
    pub(super) unstorable: Rarely,
    /// Gives the advice about values that end sooner than a load takes.
    pub(super) short_lived: Once,
}

/// The loads of this process: which callers wait for a load, how many may begin, and what ends or
/// delays one. A request and its run use this group, and a shutdown ends it.
pub(super) struct Loads<V> {
    pub(super) flights: Arc<Flights<Outcome<V>>>,
    /// Limits the loads that run at once.
    permits: Arc<Semaphore>,
    /// The flights, refreshes and loads that are under way. Once it is closed, none begins.
    pub(super) begun: TaskTracker,
    /// Cancelled when the loads under way are to end.
    pub(super) abort: CancellationToken,
    /// Which entries are not to be refreshed now.
    pub(super) refreshes: Refreshes,
    /// Which loads have failed, and what follows a failure.
    pub(super) failures: Failures,
}

/// What this process knows of entries by itself. Each change of an entry, an act of this process or
/// one that the backend tells of, must reach every part of this group.
pub(super) struct LocalState<V> {
    /// `None` if the cache keeps none: it has no local tier, and remembers nothing for an outage.
    pub(super) copies: Option<Arc<LocalStore<V>>>,
    /// The values of a cache for one process.
    pub(super) fresh_values: Option<FreshValues<V>>,
    /// The watches of the user, which keep other caches true.
    pub(super) watches: Watches,
    /// Which tags have ended, as far as this process was told.
    pub(super) tags: Arc<Tags>,
    /// How many invalidations of this process there were.
    pub(super) invalidations: Invalidations,
}

impl CacheBackend {
    pub(super) fn new(store: Arc<dyn Store>, settings: &Settings, tags: Name) -> Self {
        let try_limit = try_limit(settings.retry.as_ref(), store.as_ref());
        let fence_life = settings.lease * 2 + Duration::from_secs(5);
        Self {
            engine: Engine::new(store.clone()),
            shards: Shards::default(),
            writes: DeferredWrites::new(store.clone(), tags, try_limit, fence_life),
            asks_age: AtomicBool::new(settings.local.is_some()),
            try_limit,
            fence_life,
            store,
        }
    }

    /// Returns the part of the backend that keeps a name.
    pub(super) fn shard_of(&self, name: &Name) -> Arc<Shard> {
        self.shards.of(self.store.shard(name))
    }

    /// Waits until the writes of a name are repeated that are deferred.
    ///
    /// # Errors
    ///
    /// The reason why that failed. The backend counts as away for the name.
    pub(super) async fn writes_repeated(&self, name: &Name) -> Result<(), BackendError> {
        if self.writes.is_empty() {
            return Ok(());
        }
        // In a box, which is rarely needed.
        Box::pin(self.writes.repeated(&WriteTarget::Name(name.clone()))).await
    }

    /// Returns whether a read asks for the age of its entry at once.
    pub(super) fn asks_age(&self, rules: &Rules) -> bool {
        rules.aged || self.asks_age.load(Ordering::Relaxed)
    }

    /// Notes an entry that was read. The backend asks once more for the age of an entry that may be
    /// stale, so from the first such entry on, reads ask for the age at once.
    pub(super) fn note_read(&self, entry: &Entry) {
        let may_be_stale = entry.windows.is_some_and(|windows| !windows.is_fresh_only());
        if may_be_stale && !self.asks_age.load(Ordering::Relaxed) {
            self.asks_age.store(true, Ordering::Relaxed);
        }
    }
}

impl<V> EntryFormat<V> {
    pub(super) fn new(
        codec: impl Codec<V>,
        schema: u16,
        is_negative: Option<Box<IsNegative<V>>>,
    ) -> Self {
        Self {
            tag: u32::from(schema) << 16 | u32::from(codec.tag()),
            codec: Arc::new(codec),
            is_negative,
            undecodable: Rarely::default(),
            unstorable: Rarely::default(),
            short_lived: Once::new(),
        }
    }

    /// Returns whether a value says that there is none.
    fn is_negative(&self, value: &V) -> bool {
        self.is_negative.as_ref().is_some_and(|is_negative| is_negative(value))
    }
}

impl<V: Clone + Send + Sync + 'static> Loads<V> {
    pub(super) fn new(settings: &Settings, failures: Failures) -> Self {
        let begun = TaskTracker::new();
        let Settings { cancels_abandoned, max_waiters, max_loads, .. } = *settings;
        Self {
            flights: Flights::new(cancels_abandoned, max_waiters, begun.clone()),
            permits: Arc::new(Semaphore::new(max_loads)),
            begun,
            abort: CancellationToken::new(),
            refreshes: Refreshes::default(),
            failures,
        }
    }

    /// Waits for a permit to load in this process, for as long as this limit. The keys of one call
    /// share a permit while one of them has it.
    pub(super) async fn permit(&self, options: &Options, limit: Duration) -> Option<Permit> {
        let permit = async {
            let Some(member) = &options.batch else { return self.new_permit(limit).await };
            let mut shared = member.all.permit.lock().await;
            if let Some(permit) = shared.upgrade() {
                return Some(permit);
            }
            let permit = self.new_permit(limit).await?;
            *shared = Arc::downgrade(&permit);
            Some(permit)
        };
        timeout(limit, permit).await.ok().flatten()
    }

    async fn new_permit(&self, limit: Duration) -> Option<Permit> {
        let permits = self.permits.clone();
        let permit = if limit.is_zero() {
            permits.try_acquire_owned().ok()?
        } else {
            permits.acquire_owned().await.ok()?
        };
        Some(Arc::new(permit))
    }
}

impl<V> LocalState<V> {
    pub(super) fn new(
        copies: Option<Arc<LocalStore<V>>>,
        fresh_values: Option<FreshValues<V>>,
        tags: Arc<Tags>,
    ) -> Self {
        Self {
            copies,
            fresh_values,
            watches: Watches::default(),
            tags,
            invalidations: Invalidations::default(),
        }
    }

    /// Lets go of the copy of a value, because there is a newer entry.
    pub(super) fn drop_copy(&self, key: &Key) {
        if let Some(copies) = &self.copies {
            copies.remove(key);
        }
    }

    /// Lets go of all copies.
    pub(super) fn forget_copies(&self) {
        if let Some(copies) = &self.copies {
            copies.forget_all();
        }
    }

    /// Lets go of what this process has of a key from before a commit under this fence.
    pub(super) fn committed(&self, key: &Key, name: &Name, fence: u64) {
        if let Some(copies) = &self.copies {
            copies.drop_older(&key.text, &name.prefix, fence);
        }
        if let Some(values) = &self.fresh_values {
            values.forget(key, name);
        }
        self.watches.each(|watch| watch.changed(&name.prefix, fence));
    }
}

/// Lets go of what this process has of a key, when a change of it ends, however it does.
pub(super) struct Changed<'a, V> {
    core: &'a Core<V>,
    key: &'a Key,
}

impl<V> Drop for Changed<'_, V> {
    fn drop(&mut self) {
        self.core.loads.flights.detach(self.key);
        self.core.loads.failures.forget(self.key);
        self.core.forget_local(self.key);
    }
}

impl<V> Core<V> {
    pub(super) fn name(&self, key: &Key) -> Result<Name, Error> {
        let settings = &self.settings;
        let mut name = Name::new(&settings.namespace, Family::Cache, key, settings.max_key)?;
        name.schema = settings.schema;
        Ok(name)
    }

    /// Returns what is published of the cache.
    #[cfg(feature = "metrics")]
    pub(super) fn reading(&self) -> crate::meter::Reading {
        let open = self.backend.shards.count(|shard| shard.breaker.is_open());
        let engine = &self.backend.engine;
        let mut gauges = vec![
            ("bellwether_leases", engine.stats().held as f64),
            ("bellwether_breaker_open", open as f64),
        ];
        gauges.extend(engine.connection_gauges());
        if let Some(copies) = &self.local.copies {
            let (bytes, capacity) = copies.fill();
            gauges.push(("bellwether_local_bytes", bytes as f64));
            gauges.push(("bellwether_local_capacity_bytes", capacity as f64));
            if let Some((lag, is_trusted)) = copies.trust() {
                gauges.push(("bellwether_local_trusted", f64::from(u8::from(is_trusted))));
                if let Some(lag) = lag {
                    gauges.push(("bellwether_local_staleness_seconds", lag.as_secs_f64()));
                }
            }
        }
        (serde_json::json!(self.stats()), gauges)
    }

    pub(super) fn stats(&self) -> Stats {
        if let Some(copies) = &self.local.copies {
            copies.count_trust();
        }
        self.counters.snapshot(self.loads.flights.len(), self.backend.writes.len())
    }

    /// Lets go of the copies of a value in this process.
    pub(super) fn forget_local(&self, key: &Key) {
        let LocalState { copies, fresh_values, watches, .. } = &self.local;
        if copies.is_none() && fresh_values.is_none() && watches.are_none() {
            return;
        }
        let Ok(name) = self.name(key) else { return };
        if let Some(values) = fresh_values {
            values.forget(key, &name);
        }
        if let Some(copies) = copies {
            copies.forget(key, &name);
        }
        watches.each(|watch| watch.acted(key, &name));
    }
}

impl<V: Clone + Send + Sync + 'static> Core<V> {
    /// Returns a value as a hit gets it, and its entry.
    pub(super) fn entry(
        &self,
        value: &V,
        cost: Duration,
        mut tagged: Tagged,
    ) -> Result<(V, Entry), Error> {
        let EntryFormat { codec, tag, .. } = &self.format;
        let payload = codec.encode(value).map_err(|error| {
            Error::with_source(ErrorKind::Codec, "the codec could not encode the value", error)
        })?;
        let size = payload.len();
        let limit = self.settings.max_value;
        if size > limit {
            let words =
                format!("value of {size} bytes: shorten it, or raise the limit of {limit} bytes");
            return Err(Error::new(ErrorKind::Codec, words));
        }
        let decoded = codec.decode(payload.clone()).map_err(|error| {
            let words = "the codec could not decode the value that it had encoded";
            Error::with_source(ErrorKind::Codec, words, error)
        })?;
        let entry = Entry::value(*tag, cost, payload);
        let tags = &self.local.tags;
        if !tags.is_on && tagged.tags.is_empty() {
            return Ok((decoded, entry));
        }
        tagged.tags.sort_unstable();
        tagged.tags.dedup();
        tags.check(&tagged.tags)?;
        Ok((decoded, entry.with_tags(tagged)))
    }

    pub(super) fn counted<T>(&self, answer: Result<T, BackendError>) -> Result<T, BackendError> {
        if answer.is_err() {
            self.counters.backend_errors.add();
        }
        answer
    }

    /// Awaits an operation of the backend, no longer than one try may take.
    pub(super) async fn in_time<T>(
        &self,
        operation: impl Future<Output = Result<T, BackendError>>,
    ) -> Result<T, BackendError> {
        let CacheBackend { store, try_limit, .. } = &self.backend;
        self.counted(answered_by(store.as_ref(), *try_limit, operation).await)
    }

    /// Begins a change of a key.
    pub(super) fn changing<'a>(&'a self, key: &'a Key) -> Changed<'a, V> {
        // The outcome of the change may stay unknown.
        self.forget_local(key);
        Changed { core: self, key }
    }

    /// Changes what is stored, behind what is deferred of the name. Returns the fence of the
    /// change, or 0 if there was none.
    pub(super) async fn edit(&self, key: &Key, name: &Name, edit: &Edit) -> Result<u64, Error> {
        let _changed = self.changing(key);
        let CacheBackend { store, fence_life, .. } = &self.backend;
        let answer = match self.backend.writes_repeated(name).await {
            Ok(()) => self.in_time(store.edit(name, edit, *fence_life)).await,
            Err(error) => Err(error),
        };
        let fence = match answer {
            Ok(fence) => fence,
            Err(error) => {
                let Some(end) = deferred_as(edit) else { return Err(error.into()) };
                return Err(self.deferred(WriteTarget::Name(name.clone()), end, error));
            }
        };
        if fence > 0 && matches!(edit, Edit::Put(..) | Edit::Touch { .. }) {
            self.loads.refreshes.note(EntryNote::Stored, name, fence, Duration::MAX);
        }
        Ok(fence)
    }

    /// Defers a write that failed, if the backend is away. Returns the error for its caller.
    pub(super) fn deferred(&self, target: WriteTarget, end: TagEnd, error: BackendError) -> Error {
        match self.backend.writes.defer(target, end, &error) {
            Deferral::Refused => error.into(),
            Deferral::Noted => Error::from(error).deferred(),
            Deferral::Full => {
                // All that is here may be older.
                self.local.forget_copies();
                self.loads.flights.detach_all();
                self.local.watches.each(Tap::lost);
                error.into()
            }
        }
    }

    /// Returns the windows of a value with these options, that its loader wants to be kept so. A
    /// `found` value that says that there is none may have its own.
    pub(super) fn windows(
        &self,
        options: &Options,
        found: Option<&V>,
        keeping: &Keeping,
    ) -> Windows {
        let settings = &self.settings;
        let mut windows = options.windows;
        if found.is_some_and(|value| self.format.is_negative(value)) {
            windows = Windows::fresh(settings.negative_ttl);
        }
        let mut fresh = keeping.ttl.unwrap_or(windows.fresh);
        if settings.ttl_jitter > 0.0 {
            fresh = shortened(fresh, settings.ttl_jitter * random::fraction());
        }
        self.local.tags.limit(Windows {
            fresh,
            stale: keeping.stale_while_revalidate.unwrap_or(windows.stale),
            error: keeping.stale_if_error.unwrap_or(windows.error),
        })
    }

    /// Returns whether no tag of a value has ended since its number.
    pub(super) async fn are_current(&self, tagged: &Tagged) -> bool {
        let tags = &self.local.tags;
        if !tags.is_on {
            return true;
        }
        if self.backend.writes.end_of(tagged).is_some() {
            return false;
        }
        let which: Vec<_> = tagged.all().collect();
        match self.counted(self.backend.store.tag_ends(&tags.name, &which).await) {
            Ok(ends) => tagged.end(&mut ends.into_iter()).is_none(),
            Err(_) => false,
        }
    }

    /// Returns the tags that a caller gives a value that is read from now on, and the last tag
    /// number. Without an answer, any end of its tags ends the value.
    pub(super) async fn begin_tags(&self, options: &Options) -> Tagged {
        let mut tagged = options.tagged.clone();
        let tags = &self.local.tags;
        if tags.is_on && tagged.number == 0 {
            let asked = Box::pin(self.backend.store.tag_number(&tags.name));
            tagged.number = self.counted(asked.await).unwrap_or_default();
        }
        tagged
    }
}

/// Returns a time without this part of it.
fn shortened(time: Duration, part: f64) -> Duration {
    match Duration::try_from_secs_f64(time.as_secs_f64() * (1.0 - part)) {
        Ok(shorter) => shorter.min(time),
        // The longest time is rounded up beyond itself.
        Err(_) => time,
    }
}

/// Returns how a change is repeated that failed while the backend was away, if it is. A value that
/// could not be inserted ends an older one. What leaves the value is not repeated: by then there
/// may be another one.
fn deferred_as(edit: &Edit) -> Option<TagEnd> {
    match edit {
        Edit::Put(..) | Edit::Invalidate => Some(TagEnd::Invalidated),
        Edit::Expire => Some(TagEnd::Expired),
        Edit::Touch { .. } | Edit::Supersede => None,
    }
}
