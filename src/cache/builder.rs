//! The builder of a cache.

use std::{sync::Arc, time::Duration};

use super::{
    Cache, Codec, EarlyRefresh, Json, LocalTier,
    activity::Activity,
    core::{CacheBackend, Core, EntryFormat, Loads, LocalState},
    failures::{AfterFailure, ErrorCodec, Failures},
    local::LocalStore,
    settings::{IsNegative, Options, Settings},
    tags::Tags,
    unencoded::{FreshValues, ValueStore},
};
use crate::{
    advice, backend::Store, error::Error, key::Namespace, lease::RetryStrategy, meter::Meter,
    observe::Counters,
};

/// Builds a [`Cache`]. Every setting has a default, and [`build`](Self::build) checks them
/// together. The [guide](crate::guide#6-a-database-that-fails) has an example.
#[must_use = "a builder does nothing until it is built"]
pub struct Builder<V, C = Json> {
    store: Arc<dyn Store>,
    namespace: String,
    codec: C,
    failures: Failures,
    is_negative: Option<Box<IsNegative<V>>>,
    /// The values of a cache for one process, whose codec knows them.
    pub(super) values: Option<ValueStore<V>>,
    pub(super) settings: Settings,
}

impl<V: Clone + Send + Sync + 'static> Builder<V> {
    pub(super) fn new(store: Arc<dyn Store>, namespace: String) -> Self {
        Self {
            store,
            namespace,
            codec: Json,
            failures: Failures::default(),
            is_negative: None,
            values: None,
            settings: Settings::default(),
        }
    }
}

impl<V: Clone + Send + Sync + 'static, C> Builder<V, C> {
    /// Builds the cache.
    ///
    /// # Errors
    ///
    /// [`InvalidConfig`](crate::ErrorKind::InvalidConfig) if a setting is outside its range. The
    /// limits of loads, callers, keys and values are at least 1.
    pub fn build(self) -> Result<Cache<V>, Error>
    where
        C: Codec<V>,
    {
        let mut settings = self.settings;
        settings.namespace = Namespace::new(&self.namespace)?;
        settings.check()?;
        settings.advise(self.store.is_shared());
        advice::built::<V>(self.store.is_shared(), &settings.namespace, settings.schema);
        let counters = Arc::<Counters>::default();
        let tags = Arc::new(Tags::new(&settings));
        let backend = CacheBackend::new(self.store, &settings, tags.name.clone());
        let fresh_values = match self.values {
            Some(values) => Some(FreshValues::new(values, &settings.namespace, &tags)),
            None => None,
        };
        let copies = LocalStore::new(&settings, backend.store.as_ref(), &tags, &counters);
        let core = Core {
            backend,
            format: EntryFormat::new(self.codec, settings.schema, self.is_negative),
            loads: Loads::new(&settings, self.failures),
            local: LocalState::new(copies, fresh_values, tags),
            counters,
            meter: Meter::default(),
            activity: Activity::default(),
            settings,
        };
        Ok(Cache { core: Arc::new(core) })
    }

    /// Sets how long a value is fresh. Defaults to 60 s; at least 1 ms.
    ///
    /// To store nothing, a loader calls [`Lead::do_not_store`](super::Lead::do_not_store).
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.options_mut().windows.fresh = ttl;
        self
    }

    /// Sets how long a value is still served after its [`ttl`](Self::ttl), while a refresh runs in
    /// the background. Defaults to zero.
    ///
    /// One process of the fleet refreshes the value. Meanwhile all callers are served the stale
    /// value, as [`Source::Stale`](super::Source::Stale).
    pub fn stale_while_revalidate(mut self, window: Duration) -> Self {
        self.options_mut().windows.stale = window;
        self
    }

    /// Sets how long a value is kept for failed loads after its [`ttl`](Self::ttl). Defaults to
    /// zero.
    ///
    /// If the load fails, its callers are served the old value, as
    /// [`Source::Stale`](super::Source::Stale). The window begins at the same moment as the window
    /// of [`stale_while_revalidate`](Self::stale_while_revalidate).
    pub fn stale_if_error(mut self, window: Duration) -> Self {
        self.options_mut().windows.error = window;
        self
    }

    /// Sets how long a caller waits for a load while a value is kept [for
    /// failures](Self::stale_if_error). Defaults to the limit of the load.
    ///
    /// After that time the caller is served the old value, as
    /// [`Source::Stale`](super::Source::Stale). The load goes on to its own
    /// [limit](Self::load_limit), even if no caller waits any more. The limit is for the wait for a
    /// load: if the backend does not answer a read, the caller also waits for the end of the read.
    pub fn serve_stale_after(mut self, limit: Duration) -> Self {
        self.options_mut().serve_stale_after = Some(limit);
        self
    }

    /// Sets when a value is refreshed before its [`ttl`](Self::ttl) is over. Defaults to
    /// [`Off`](EarlyRefresh::Off). A part of the `ttl` is from 0 to 1.
    pub fn early_refresh(mut self, early: EarlyRefresh) -> Self {
        let rules = &mut self.options_mut().rules;
        rules.early = early;
        rules.asks_age = early != EarlyRefresh::Off;
        self
    }

    /// Sets how long a negative value is kept. A negative value means "not found", such as a
    /// `None`. Defaults to the [`ttl`](Self::ttl).
    ///
    /// A negative value is never served stale. A loader may set other times by its
    /// [`Lead`](super::Lead). A request that inserts or touches the value may do so by its
    /// [`ttl`](super::Request::ttl).
    pub fn negative_ttl(
        mut self,
        ttl: Duration,
        is_negative: impl Fn(&V) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.settings.negative_ttl = ttl;
        self.is_negative = Some(Box::new(is_negative));
        self
    }

    /// Shortens the [`ttl`](Self::ttl) of each value by a random fraction, up to `part`. Defaults
    /// to 0; from 0 to 1.
    ///
    /// So values that are stored at the same moment expire at different moments.
    pub fn ttl_jitter(mut self, part: f64) -> Self {
        self.settings.ttl_jitter = part;
        self
    }

    /// Keeps copies of entries in this process, and serves a copy while it is fresh. Off by
    /// default.
    ///
    /// Over a single server that keeps its data, a call returns nothing older than what the server
    /// had [`max_staleness`](LocalTier::max_staleness) before the call. The bound covers changes by
    /// this crate, from processes that may publish. The [greatest age](LocalTier::max_age) of a
    /// copy bounds all other changes, and all changes in a cluster. After a write by this cache or
    /// a clone has returned, neither serves anything older.
    ///
    /// The bound does not hold while there are two masters, and not for writes that a failover
    /// loses. Nor does it hold on a machine that was suspended while its monotonic clock stood
    /// still.
    ///
    /// A copy is a clone of the value, so let `V` be cheap to clone, such as an `Arc`.
    pub fn local(mut self, tier: LocalTier) -> Self {
        self.settings.local = Some(tier);
        self
    }

    /// Lets values have tags, so that one command invalidates all values of a tag:
    /// [`invalidate_tag`](Cache::invalidate_tag), [`expire_tag`](Cache::expire_tag) and
    /// [`clear`](Cache::clear). Off by default.
    ///
    /// A loader gives a value its tags by [`Lead::tag`](super::Lead::tag), a caller by
    /// [`Request::tag`](super::Request::tag). A value with more than 128 tags, or with a tag of
    /// more than 512 bytes, is not stored. A tag belongs to the namespace, so build each cache of
    /// the namespace with tags.
    ///
    /// The backend remembers an invalidated tag for 31 days, and keeps a value with tags for no
    /// longer. Redis must not evict the keys of tags: set `maxmemory-policy noeviction`. In a
    /// cluster, one node has all tags of a namespace. While that node is away, values with tags are
    /// loaded as if the whole cluster were away. The [guide](crate::guide) says what tags cost.
    pub fn tags(mut self) -> Self {
        self.settings.has_tags = true;
        self
    }

    /// Sets what follows a failed load, by its error. By default, and for `None`, the key [backs
    /// off](AfterFailure::BACK_OFF) while a stale value is served in place of the load. Without a
    /// stale value the next caller loads. [`AfterFailure`] has an example.
    ///
    /// Over HTTP, all callers share a failure [only if the policy says
    /// so](crate::layer::sharing#errors-of-the-service).
    ///
    /// The policy may be called twice for one error. A loader may overrule the policy by
    /// [`Lead::after_failure`](super::Lead::after_failure).
    pub fn after_failure(
        mut self,
        policy: impl Fn(&Error) -> Option<AfterFailure> + Send + Sync + 'static,
    ) -> Self {
        self.failures.policy = Some(Box::new(policy));
        self
    }

    /// Sets how long one load may take. Defaults to 30 s; at least 1 ms.
    ///
    /// A load that takes longer is cancelled and fails.
    pub fn load_limit(mut self, limit: Duration) -> Self {
        self.settings.load_limit = limit;
        self
    }

    /// Cancels a load that no caller waits for any more, and releases its lease. By default such a
    /// load runs on, and its value is stored.
    pub fn cancel_abandoned(mut self) -> Self {
        self.settings.cancels_abandoned = true;
        self
    }

    /// Sets how long the lease of a load lasts unless it is renewed. Defaults to 5 s; from 20 ms to
    /// a day.
    ///
    /// If a process dies while it loads, the fleet waits this long for its lease to end. A load may
    /// take longer, because its lease is renewed each third of this time.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.settings.lease = lease;
        self
    }

    /// Sets how long to wait for the load of another process. Defaults to 30 s.
    ///
    /// After that time the caller claims the lease once more. If the claim fails, the caller loads
    /// without a lease.
    pub fn wait_limit(mut self, limit: Duration) -> Self {
        self.options_mut().wait_limit = limit;
        self
    }

    /// Sets when to ask again while another process loads. Defaults to [on
    /// demand](crate::lease::Retry::on_demand).
    ///
    /// The end of the strategy ends the wait, as the [wait limit](Self::wait_limit) does.
    pub fn retry(mut self, strategy: impl RetryStrategy) -> Self {
        self.settings.retry = Arc::new(strategy);
        self
    }

    /// Sets how many bytes of memory this process may use for values that it serves [while the
    /// backend is away](super::windows#while-the-backend-is-away). Defaults to 4 MiB over a backend
    /// that other processes share, else to 0; at least 2 KiB, or 0, which remembers nothing.
    ///
    /// A value that takes more than a quarter of this memory is not remembered.
    pub fn outage_memory(mut self, bytes: usize) -> Self {
        self.settings.outage_memory = Some(bytes);
        self
    }

    /// Sets how many loads of this cache may run at once in this process. Defaults to 1,024.
    ///
    /// Further loads queue for as long as the wait limit, and then fail as
    /// [`Overloaded`](crate::ErrorKind::Overloaded). A load that a loader asks for does not count,
    /// because the two loads could wait for each other.
    pub fn max_loads(mut self, loads: usize) -> Self {
        self.settings.max_loads = loads;
        self
    }

    /// Sets how many callers may wait at once in this process, for all keys of this cache. Defaults
    /// to 100,000.
    ///
    /// Further callers fail at once as [`Overloaded`](crate::ErrorKind::Overloaded).
    pub fn max_waiters(mut self, callers: usize) -> Self {
        self.settings.max_waiters.in_all = callers;
        self
    }

    /// Sets how many callers may wait at once in this process for the load of one key. Defaults to
    /// 10,000.
    ///
    /// Further callers fail at once as [`Overloaded`](crate::ErrorKind::Overloaded).
    pub fn max_waiters_per_key(mut self, callers: usize) -> Self {
        self.settings.max_waiters.per_flight = callers;
        self
    }

    /// Sets the longest key, in bytes. Defaults to 512.
    pub fn max_key(mut self, bytes: usize) -> Self {
        self.settings.max_key = bytes;
        self
    }

    /// Sets the largest encoded value, in bytes. Defaults to 8 MiB.
    ///
    /// A larger value that is loaded is returned and not stored. For 10 s the key then counts as
    /// uncacheable: each process loads for itself, without waiting for other processes. Over HTTP,
    /// each caller loads for itself.
    pub fn max_value(mut self, bytes: usize) -> Self {
        self.settings.max_value = bytes;
        self
    }

    /// Sets how values become bytes. Defaults to [`Json`].
    pub fn codec<D>(self, codec: D) -> Builder<V, D> {
        let Self { store, namespace, failures, is_negative, settings, .. } = self;
        Builder { store, namespace, codec, failures, is_negative, values: None, settings }
    }

    /// Sets how the errors of loaders become bytes. Defaults to none.
    ///
    /// With such a codec, [`load_ref`](Error::load_ref) finds an `E` in every process that waited
    /// for the load. Without a codec, and for an error of more than 16 KiB, the other processes get
    /// the text alone.
    pub fn error_codec<E>(mut self, codec: impl Codec<E>) -> Self
    where
        E: std::error::Error + Send + Sync + 'static,
    {
        self.failures.codec = Some(ErrorCodec::new(codec));
        self
    }

    /// Sets the version of the encoding of values. Defaults to 0.
    ///
    /// Raise the number with each change of the type that old code cannot decode. During a rolling
    /// deploy, the entries of the two versions are stored side by side. An invalidation removes
    /// both.
    pub fn schema(mut self, number: u16) -> Self {
        self.settings.schema = number;
        self
    }

    fn options_mut(&mut self) -> &mut Options {
        Arc::make_mut(&mut self.settings.options)
    }
}
