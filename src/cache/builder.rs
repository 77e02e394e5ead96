use std::{marker::PhantomData, sync::Arc, time::Duration};

use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use super::{Abandoned, Cache, Codec, Inner, Json, shard::Shards};
use crate::{
    backend::DynStore,
    error::{Error, ErrorKind},
    flight::{Group, Limits},
    key::Namespace,
    lease::{Engine, Retry, RetryStrategy, Upkeep},
    observe::{Counters, Once},
};

/// Builds a [`Cache`]. Every setting has a default; [`build`](Self::build) checks them together.
#[must_use = "a builder does nothing until it is built"]
pub struct Builder<V, C = Json> {
    store: Arc<dyn DynStore>,
    namespace: Option<String>,
    codec: C,
    settings: Settings,
    renew_every: Option<Duration>,
    value: PhantomData<fn() -> V>,
}

#[derive(Clone)]
pub(super) struct Settings {
    pub(super) namespace: Namespace,
    pub(super) schema: u16,
    pub(super) ttl: Duration,
    pub(super) uncacheable_ttl: Duration,
    pub(super) lease: Duration,
    pub(super) renew_every: Duration,
    pub(super) load_limit: Duration,
    pub(super) wait_limit: Duration,
    pub(super) retry: Arc<dyn RetryStrategy>,
    pub(super) max_loads: usize,
    pub(super) max_waiters: usize,
    pub(super) max_waiters_per_key: usize,
    pub(super) max_key: usize,
    pub(super) max_value: usize,
    pub(super) abandoned: Abandoned,
}

impl Settings {
    /// The fence outlives the lease by a grace, in which a load whose lease ended unnoticed may still be
    /// committed if nobody else began.
    pub(super) fn fence_life(&self) -> Duration {
        self.lease * 2 + Duration::from_secs(5)
    }

    pub(super) fn upkeep(&self, load_limit: Duration) -> Upkeep {
        // The commit comes after the load.
        let max_hold = load_limit.saturating_add(self.lease);
        Upkeep { renew_every: Some(self.renew_every), max_hold }
    }
}

impl std::fmt::Debug for Settings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Settings")
            .field("namespace", &self.namespace)
            .field("schema", &self.schema)
            .field("ttl", &self.ttl)
            .field("lease", &self.lease)
            .field("renew_every", &self.renew_every)
            .field("load_limit", &self.load_limit)
            .field("wait_limit", &self.wait_limit)
            .field("max_loads", &self.max_loads)
            .field("max_waiters", &self.max_waiters)
            .finish_non_exhaustive()
    }
}

impl<V: Clone + Send + Sync + 'static> Builder<V> {
    pub(super) fn new(store: Arc<dyn DynStore>) -> Self {
        Self {
            store,
            namespace: None,
            codec: Json,
            settings: Settings {
                namespace: Namespace::standard(),
                schema: 0,
                ttl: Duration::from_secs(60),
                uncacheable_ttl: Duration::from_secs(10),
                lease: Duration::from_secs(5),
                renew_every: Duration::ZERO,
                load_limit: Duration::from_secs(30),
                wait_limit: Duration::from_secs(30),
                retry: Arc::new(Retry::on_demand()),
                max_loads: 1024,
                max_waiters: 100_000,
                max_waiters_per_key: 10_000,
                max_key: 512,
                max_value: 8 << 20,
                abandoned: Abandoned::Finish,
            },
            renew_every: None,
            value: PhantomData,
        }
    }
}

impl<V: Clone + Send + Sync + 'static, C> Builder<V, C> {
    /// The word in front of every name, one to 64 letters, digits, `.`, `_` or `-`: `bellwether` unless set.
    ///
    /// All caches of one namespace and [schema](Self::schema) must have one type of value: a `Cache` of
    /// another type reads the bytes of this one as its own.
    pub fn namespace(mut self, word: impl Into<String>) -> Self {
        self.namespace = Some(word.into());
        self
    }

    /// How long a value is kept: 60 s unless set. At least 1 ms.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.settings.ttl = ttl;
        self
    }

    /// How values become bytes: [`Json`] unless set.
    pub fn codec<D>(self, codec: D) -> Builder<V, D> {
        Builder {
            store: self.store,
            namespace: self.namespace,
            codec,
            settings: self.settings,
            renew_every: self.renew_every,
            value: PhantomData,
        }
    }

    /// The number of the form that values have: 0 unless set.
    ///
    /// Raise it by one with each change that old code cannot read. During a rolling deploy the entries of
    /// the two lie side by side and do not overwrite each other; an invalidation removes both.
    pub fn schema(mut self, number: u16) -> Self {
        self.settings.schema = number;
        self
    }

    /// How long the lease of a load lasts unless it is renewed: 5 s unless set. From 20 ms to a day.
    ///
    /// This is how long the fleet waits for a process that died while it was loading. A load that takes
    /// longer is no problem, for its lease is renewed while it runs.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.settings.lease = lease;
        self
    }

    /// How often the lease of a running load is renewed: a third of the lease unless set, so that two
    /// renewals may fail before it is lost. From 1 ms to under the lease.
    pub fn renew_every(mut self, interval: Duration) -> Self {
        self.renew_every = Some(interval);
        self
    }

    /// How long one load may take: 30 s unless set. At least 1 ms. What takes longer is cancelled and fails, or
    /// a loader that hangs would block its key in the whole fleet.
    pub fn load_limit(mut self, limit: Duration) -> Self {
        self.settings.load_limit = limit;
        self
    }

    /// How long to wait for the load of another process: 30 s unless set. Then the caller tries once more,
    /// and loads for himself.
    pub fn wait_limit(mut self, limit: Duration) -> Self {
        self.settings.wait_limit = limit;
        self
    }

    /// When to look again while another process loads: [on demand](Retry::on_demand) unless set. The end of
    /// the strategy is the end of the wait, as the [wait limit](Self::wait_limit) is.
    pub fn retry(mut self, strategy: impl RetryStrategy) -> Self {
        self.settings.retry = Arc::new(strategy);
        self
    }

    /// How many loads of this cache may run at once in this process: 1,024 unless set.
    ///
    /// Further ones queue for as long as the wait limit, and are [`Overloaded`](ErrorKind::Overloaded)
    /// then. Loads that a loader asks for do not count, or they could wait for each other.
    pub fn max_loads(mut self, loads: usize) -> Self {
        self.settings.max_loads = loads;
        self
    }

    /// How many callers may wait at once in this process for values of this cache, of all keys: 100,000 unless
    /// set.
    ///
    /// Further ones are [`Overloaded`](ErrorKind::Overloaded) at once. Each caller who waits keeps a request
    /// and its connection open; a service that takes on more than it can bear loses those as well.
    pub fn max_waiters(mut self, callers: usize) -> Self {
        self.settings.max_waiters = callers;
        self
    }

    /// How many callers may wait at once in this process for the load of one key of this cache: 10,000 unless
    /// set.
    ///
    /// Further ones are [`Overloaded`](ErrorKind::Overloaded) at once, so that one key whose load hangs does
    /// not use up what [all keys](Self::max_waiters) share.
    pub fn max_waiters_per_key(mut self, callers: usize) -> Self {
        self.settings.max_waiters_per_key = callers;
        self
    }

    /// The longest key, in bytes: 512 unless set.
    pub fn max_key(mut self, bytes: usize) -> Self {
        self.settings.max_key = bytes;
        self
    }

    /// The largest encoded value, in bytes: 8 MiB unless set. A larger one that is loaded is returned and not
    /// stored, and leaves the [verdict](Self::uncacheable_ttl) that it cannot be shared.
    pub fn max_value(mut self, bytes: usize) -> Self {
        self.settings.max_value = bytes;
        self
    }

    /// What becomes of a load that no caller waits for any more: it [finishes](Abandoned::Finish) unless
    /// set.
    pub fn when_abandoned(mut self, abandoned: Abandoned) -> Self {
        self.settings.abandoned = abandoned;
        self
    }

    /// For how long it is remembered that what a key loads cannot be shared: 10 s unless set. At least 1 ms.
    ///
    /// While this verdict stands, each process loads the key for itself (and over HTTP each caller), at the same
    /// time as the others.
    pub fn uncacheable_ttl(mut self, ttl: Duration) -> Self {
        self.settings.uncacheable_ttl = ttl;
        self
    }

    /// Builds the cache.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`] if a setting is outside its range; a cap on loads or callers and the limit of
    /// keys or values are at least 1.
    pub fn build(self) -> Result<Cache<V>, Error>
    where
        C: Codec<V>,
    {
        let mut settings = self.settings;
        if let Some(word) = &self.namespace {
            settings.namespace = Namespace::new(word)?;
        }
        settings.renew_every = self.renew_every.unwrap_or(settings.lease / 3);
        let millisecond = Duration::from_millis(1);
        let rules = [
            (settings.ttl >= millisecond, "the TTL is under 1 ms"),
            (settings.uncacheable_ttl >= millisecond, "the TTL of verdicts is under 1 ms"),
            (settings.lease >= 20 * millisecond, "the lease is under 20 ms"),
            (settings.lease <= Duration::from_secs(86_400), "the lease is over a day"),
            (settings.renew_every >= millisecond, "the renewal interval is under 1 ms"),
            (settings.renew_every < settings.lease, "the renewal interval is not under the lease"),
            (settings.load_limit >= millisecond, "the load limit is under 1 ms"),
            (settings.max_loads > 0, "the cap on loads is 0"),
            (settings.max_loads <= Semaphore::MAX_PERMITS, "the cap on loads is too high"),
            (settings.max_waiters > 0, "the cap on waiters is 0"),
            (settings.max_waiters_per_key > 0, "the cap on waiters of a key is 0"),
            (settings.max_key > 0, "the limit of keys is 0"),
            (settings.max_value > 0, "the limit of values is 0"),
        ];
        if let Some((_, broken)) = rules.iter().find(|(kept, _)| !kept) {
            return Err(Error::new(ErrorKind::InvalidConfig, *broken));
        }
        Ok(Cache {
            inner: Arc::new(Inner {
                engine: Engine::new(self.store.clone()),
                store: self.store,
                codec: Arc::new(self.codec),
                flights: Group::new(
                    settings.abandoned,
                    Limits {
                        per_flight: settings.max_waiters_per_key,
                        in_all: settings.max_waiters,
                    },
                ),
                abort: CancellationToken::new(),
                loads: Semaphore::new(settings.max_loads),
                counters: Counters::default(),
                shards: Shards::new(),
                undecodable: Once::default(),
                unstorable: Once::default(),
                settings,
            }),
        })
    }
}
