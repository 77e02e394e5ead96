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
    invalidations::Invalidations,
    lead::Keeping,
    local::{LocalStore, Watches},
    member::Permit,
    outage::{Deferral, DeferredWrites, WriteTarget},
    outcome::Outcome,
    refreshes::{EntryNote, Refreshes},
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
    /// The counters of callers and loads, for every group.
    pub(crate) counters: Arc<Counters>,
    /// Publishes times as metrics.
    pub(super) meter: Meter,
    /// Counts the busiest keys, while a `top` runs somewhere.
    pub(super) activity: Activity,
}

/// The backend of the cache. Reads, claims and writes go through this group.
pub(super) struct CacheBackend {
    pub(super) store: Arc<dyn Store>,
    /// Keeps the leases of the loads.
    pub(super) engine: Arc<Engine>,
    /// The circuit breaker of each shard of the backend, and how many commands a shard gets at
    /// once.
    shards: Shards<Shard>,
    /// The writes that failed while the backend was away. Each is repeated before the next read of
    /// its name.
    pub(super) writes: Arc<DeferredWrites>,
    /// All reads ask for the age of the entry, because there is a local tier, or because an entry
    /// with windows was read.
    asks_age: AtomicBool,
    /// How long one try of a claim or a write may take.
    pub(super) try_limit: Duration,
    /// How long the backend keeps a fence. The fence outlives the lease by a grace, so that a load
    /// whose lease ended unnoticed can still be committed if no other load began.
    pub(super) fence_life: Duration,
}

/// Turns values into entries, and entries into values.
pub(super) struct EntryFormat<V> {
    pub(super) codec: Arc<dyn Codec<V>>,
    /// The tag of the entries of this schema and codec.
    pub(super) tag: u32,
    /// Returns whether a value has the negative time to live.
    pub(super) is_negative: Option<Box<IsNegative<V>>>,
    /// Limits the warnings about entries that cannot be decoded.
    pub(super) undecodable: Rarely,
    /// Limits the warnings about values that cannot be stored.
    pub(super) unstorable: Rarely,
    /// Limits the advice about values whose life is shorter than a load.
    pub(super) short_lived: Once,
}

/// The loads of this process: which callers wait for a load, how many loads may run, and what ends
/// or delays a load. Requests and their runs use this group, and a shutdown ends all loads in it.
pub(super) struct Loads<V> {
    pub(super) flights: Arc<Flights<Outcome<V>>>,
    /// Limits the loads that run at once.
    permits: Arc<Semaphore>,
    /// Tracks the flights, refreshes and loads that are under way. After a shutdown has closed the
    /// tracker, no load begins.
    pub(super) begun: TaskTracker,
    /// A shutdown cancels this token when its deadline has passed, and with it all loads.
    pub(super) abort: CancellationToken,
    /// Decides when an entry is refreshed here.
    pub(super) refreshes: Refreshes,
    /// Remembers failed loads, and decides what follows a failure.
    pub(super) failures: Failures,
}

/// The copies and marks of entries in this process. Each change of an entry, whether this process
/// makes it or receives it, must reach every part of this group.
pub(super) struct LocalState<V> {
    /// `None` if the cache keeps no copies: it has no local tier and no outage memory.
    pub(super) copies: Option<Arc<LocalStore<V>>>,
    /// The values of a cache for one process.
    pub(super) fresh_values: Option<FreshValues<V>>,
    /// The watches of the user, which keep other caches true.
    pub(super) watches: Watches,
    /// The invalidated tags, as far as this process knows.
    pub(super) tags: Arc<Tags>,
    /// The number of invalidations that this process has begun.
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

    /// Returns the shard of the backend that keeps a name.
    pub(super) fn shard_of(&self, name: &Name) -> Arc<Shard> {
        self.shards.of(self.store.shard(name))
    }

    /// Waits until the deferred writes of a name are repeated.
    ///
    /// # Errors
    ///
    /// The reason why the repeat failed. The backend then counts as away for the name.
    pub(super) async fn writes_repeated(&self, name: &Name) -> Result<(), BackendError> {
        if self.writes.is_empty() {
            return Ok(());
        }
        // The box keeps the caller's future small, and is rarely needed.
        Box::pin(self.writes.repeated(&WriteTarget::Name(name.clone()))).await
    }

    /// Returns whether a read asks for the age of its entry in the same command.
    pub(super) fn asks_age(&self, rules: &Rules) -> bool {
        rules.asks_age || self.asks_age.load(Ordering::Relaxed)
    }

    /// Makes later reads ask for the age at once, if an entry that was read may be stale. For such
    /// an entry the backend otherwise needs a second command.
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

    /// Returns whether a value means that there is nothing.
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

    /// Waits for a permit to load in this process, for at most `limit`. The keys of one call share
    /// a permit.
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

    /// Drops the copy of a value, because there is a newer entry.
    pub(super) fn drop_copy(&self, key: &Key) {
        if let Some(copies) = &self.copies {
            copies.remove(key);
        }
    }

    /// Drops all copies.
    pub(super) fn forget_copies(&self) {
        if let Some(copies) = &self.copies {
            copies.forget_all();
        }
    }

    /// Drops what this process has of a key from before a commit under this fence.
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

/// On drop: forgets this process's flight, failures and copy of the key, because a change of the
/// key has ended, whatever its outcome.
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

    /// Returns the counters and gauges to publish.
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

    /// Drops the copies of a value in this process.
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
        watches.each(|watch| watch.changed_here(key, &name));
    }
}

impl<V: Clone + Send + Sync + 'static> Core<V> {
    /// Encodes a value as an entry. Also returns the value decoded again, so that the leader gets
    /// what a hit gets.
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

    /// Awaits an operation of the backend for at most the limit of one try.
    pub(super) async fn in_time<T>(
        &self,
        operation: impl Future<Output = Result<T, BackendError>>,
    ) -> Result<T, BackendError> {
        let CacheBackend { store, try_limit, .. } = &self.backend;
        self.counted(answered_by(store.as_ref(), *try_limit, operation).await)
    }

    /// Begins a change of a key.
    pub(super) fn changing<'a>(&'a self, key: &'a Key) -> Changed<'a, V> {
        // At once, because the outcome of the change may stay unknown.
        self.forget_local(key);
        Changed { core: self, key }
    }

    /// Changes the stored entry, after the deferred writes of the name. Returns the fence of the
    /// change, or 0 if nothing was changed.
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
                // Everything in this process may be older than the write.
                self.local.forget_copies();
                self.loads.flights.detach_all();
                self.local.watches.each(Tap::lost);
                error.into()
            }
        }
    }

    /// Returns the windows of a value: from its loader, or from the options of the request, or, for
    /// a `found` value that means "not found", from the negative time to live.
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

    /// Returns whether no tag of a value was invalidated after the value's tag number.
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

    /// Returns the tags that a caller gives a value which is read from the origin after this call,
    /// and the present tag number. Without an answer the number is 0, so that any invalidation of
    /// the tags ends the value.
    pub(super) async fn begin_tags(&self, options: &Options) -> Tagged {
        let mut tagged = options.tagged.clone();
        let tags = &self.local.tags;
        if tags.is_on && tagged.number == 0 {
            let answer = Box::pin(self.backend.store.tag_number(&tags.name)).await;
            tagged.number = self.counted(answer).unwrap_or_default();
        }
        tagged
    }
}

/// Returns a time that is shorter by this fraction.
fn shortened(time: Duration, part: f64) -> Duration {
    match Duration::try_from_secs_f64(time.as_secs_f64() * (1.0 - part)) {
        Ok(shorter) => shorter.min(time),
        // `Duration::MAX` as a float is rounded up beyond the range.
        Err(_) => time,
    }
}

/// Returns how a change that failed in an outage is repeated. A failed insert is repeated as an
/// invalidation, which ends an older value. A change that keeps the value is not repeated, because
/// another value may be stored by then.
fn deferred_as(edit: &Edit) -> Option<TagEnd> {
    match edit {
        Edit::Put(..) | Edit::Invalidate => Some(TagEnd::Invalidated),
        Edit::Expire => Some(TagEnd::Expired),
        Edit::Touch { .. } | Edit::Supersede => None,
    }
}
