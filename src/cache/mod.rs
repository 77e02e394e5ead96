//! A cache that loads each missing entry once in the whole fleet.
//!
//! [`Cache::get_or_load`] is the entry point, and a [`Request`] has options of its own. The loader
//! is given a [`Lead`]. A [`Codec`] turns values into bytes.
//!
//! [`Cache::stats`] counts what happened to the callers and the loads of this process. Outages,
//! refused writes and entries that cannot be decoded are logged by `tracing`, each at most once a
//! minute.
//!
//! [`windows`] shows in plain words how long a value is served, and when it is refreshed.

mod activity;
mod acts;
mod breaker;
mod builder;
mod codec;
mod core;
mod failures;
mod freshness;
mod in_process;
mod lead;
mod loader;
mod local;
mod many;
mod member;
mod notes;
mod outage;
mod outcome;
mod read;
mod request;
mod run;
mod settings;
#[cfg(feature = "http")]
pub(crate) mod shared_load;
mod tags;
mod unencoded;
mod watch;

#[doc = include_str!("../../docs/freshness.md")]
pub mod windows {}

use std::{fmt, sync::Arc, time::Duration};

use tokio::time::timeout;

#[cfg(feature = "postcard")]
pub use self::codec::Postcard;
pub use self::{
    acts::{EntryState, Explanation},
    builder::Builder,
    codec::{Codec, Json, Raw},
    failures::AfterFailure,
    freshness::EarlyRefresh,
    lead::Lead,
    many::Batch,
    outcome::{Loaded, Source},
    request::Request,
    run::{Begun, Load},
    settings::LocalTier,
    watch::{EntryWatch, Ticket},
};
pub use crate::observe::Stats;

use self::core::Core;
use crate::{
    backend::Store,
    error::{BoxError, Error},
    key::{IntoKey, Key},
};

/// A cache whose entries are loaded by one caller in the whole fleet.
///
/// Clones are the same cache. The processes that build one with the same namespace over the same
/// backend are its fleet.
///
/// ```
/// # let mut builder = tokio::runtime::Builder::new_current_thread();
/// # builder.enable_time().start_paused(true).build().unwrap().block_on(async {
/// use std::time::Duration;
/// use bellwether::{BoxError, Cache, MemoryBackend, cache::EntryState};
///
/// let builder = Cache::builder(MemoryBackend::new(), "shop").ttl(Duration::from_secs(60));
/// let cache: Cache<u64> = builder.tags().build()?;
/// tokio::spawn(cache.answer_top());
/// # #[cfg(feature = "metrics")]
/// tokio::spawn(cache.publish_metrics("stock"));
///
/// let load = |_lead| async { Ok::<_, BoxError>(17) };
/// assert_eq!(cache.get_or_load("stock:42", load).await?, 17);
/// // The load of one request has options of its own, and tells more.
/// let loaded = cache.request("stock:43").ttl(Duration::from_secs(5)).load(load).await?;
/// assert!(loaded.age().unwrap() < Duration::from_secs(5));
///
/// cache.insert("stock:44", &18).await?;
/// assert_eq!(cache.get("stock:44").await?, Some(18));
/// assert!(cache.peek("stock:44").await?.unwrap().expires_in().is_some());
/// cache.expire("stock:44").await?;
/// assert_eq!(cache.explain("stock:44").await?.state, EntryState::Missing);
/// cache.invalidate("stock:43").await?;
/// cache.settled().await;
/// // Now no process serves the old values.
///
/// cache.insert_many([("stock:45", 19)]).await.remove(0)?;
/// assert_eq!(cache.get_many(["stock:45"]).await.remove(0)?, Some(19));
/// cache.invalidate_many(["stock:45"]).await.remove(0)?;
///
/// cache.request("stock:46").tag("shelf:7").insert(&20).await?;
/// cache.expire_tag("shelf:7").await?;
/// cache.invalidate_tag("shelf:7").await?;
/// cache.clear().await?;
/// cache.shutdown(Duration::from_secs(5)).await;
/// # Ok::<_, bellwether::Error>(()) }).unwrap();
/// ```
pub struct Cache<V> {
    pub(crate) core: Arc<Core<V>>,
}

impl<V: Clone + Send + Sync + 'static> Cache<V> {
    /// Creates a cache over a backend with the default settings. The
    /// [namespace](Self::builder) separates it from the other caches of the backend.
    ///
    /// # Errors
    ///
    /// [`InvalidConfig`](crate::ErrorKind::InvalidConfig) if the namespace is not 1 to 64 letters,
    /// digits, `.`, `_` or `-`.
    pub fn new<B: Store>(backend: B, namespace: impl Into<String>) -> Result<Self, Error>
    where
        Json: Codec<V>,
    {
        Self::builder(backend, namespace).build()
    }

    /// Returns a builder of a cache over a backend.
    ///
    /// The namespace is the first part of all keys: 1 to 64 letters, digits, `.`, `_` or `-`. All
    /// caches of one namespace and [schema](Builder::schema) must have one type of value. A cache
    /// of another type reads the bytes of this one as its own.
    pub fn builder<B: Store>(backend: B, namespace: impl Into<String>) -> Builder<V> {
        Builder::new(Arc::new(backend), namespace.into())
    }

    /// Returns the stored value of a key, or the value that the one loader of the fleet makes now.
    ///
    /// The loader runs only if this caller is the one that leads. It runs in a task of its own, in
    /// the tracing span of this caller, and must not block its thread. So it owns what it uses:
    /// `move |_lead| async move { … }`. Where a `?` leaves the type of the error open, end with
    /// `Ok::<_, MyError>(value)`.
    ///
    /// In two cases it runs for its caller alone and is cancelled with it: after a
    /// [shutdown](Self::shutdown), and in a loader that asks for its own key.
    ///
    /// # Errors
    ///
    /// - [`Load`](crate::ErrorKind::Load), [`Panicked`](crate::ErrorKind::Panicked) or
    ///   [`LoadTimeout`](crate::ErrorKind::LoadTimeout), for all waiters, if the one load failed.
    /// - [`InvalidKey`](crate::ErrorKind::InvalidKey) if the key is empty or too long.
    /// - [`Overloaded`](crate::ErrorKind::Overloaded) if too many [loads](Builder::max_loads) are
    ///   under way, or too many callers wait [in all](Builder::max_waiters) or [for this
    ///   key](Builder::max_waiters_per_key).
    /// - [`ShutDown`](crate::ErrorKind::ShutDown) if a [shutdown](Self::shutdown) ended the load.
    /// - [`Cancelled`](crate::ErrorKind::Cancelled) if the runtime of the load was shut down.
    ///
    /// A backend that is down is no error. The value is then loaded once in this process, and not
    /// stored.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future has no effect on other callers: the load goes on for them. A load that
    /// no caller waits for runs on, unless the cache [cancels](Builder::cancel_abandoned) it.
    pub async fn get_or_load<F, Fut, E>(&self, key: impl IntoKey, loader: F) -> Result<V, Error>
    where
        F: FnOnce(Lead<V>) -> Fut + Send + 'static,
        Fut: Future<Output = Result<V, E>> + Send + 'static,
        E: Into<BoxError> + 'static,
    {
        // Before a key and the future of a load are made, which each cost as much as a copy.
        match key.key_text().and_then(|text| self.get_local(text)) {
            Some(copy) => Ok(copy),
            None => Ok(self.request(key).load(loader).await?.value),
        }
    }

    /// Returns a request for a key, with options of its own. It also says where its value came
    /// from.
    pub fn request(&self, key: impl Into<Key>) -> Request<V> {
        let key = key.into();
        self.core.activity.note(&key);
        Request { core: self.core.clone(), key, options: self.core.settings.options.clone() }
    }

    /// Returns the stored value, if there is one that is fresh or may be served
    /// [stale](Builder::stale_while_revalidate). It is not refreshed.
    ///
    /// # Errors
    ///
    /// [`InvalidKey`](crate::ErrorKind::InvalidKey), or [`Backend`](crate::ErrorKind::Backend) if
    /// the backend did not answer.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    pub async fn get(&self, key: impl IntoKey) -> Result<Option<V>, Error> {
        // Before a key is made, which costs as much as a copy.
        if let Some(text) = key.key_text()
            && let Some(copy) = self.get_local(text)
        {
            return Ok(Some(copy));
        }
        let key = key.into();
        self.core.activity.note(&key);
        let options = &self.core.settings.options;
        if let Some(copy) = self.core.local_value(&key.text, options) {
            self.core.counters.served(copy.source);
            return Ok(Some(copy.value));
        }
        let name = self.core.name(&key)?;
        self.core.read(&key, &name, &options.rules).await.found(&self.core.counters)
    }

    /// Returns the copy of a value that the [local tier](Builder::local) has, if it may be served.
    /// Asks no backend, and starts nothing. A cache [for one process](Self::in_process) returns
    /// most of its fresh values so.
    pub fn get_local(&self, key: &str) -> Option<V> {
        let copy = self.core.local_value(key, &self.core.settings.options)?;
        self.core.activity.note(key);
        self.core.counters.served(copy.source);
        Some(copy.value)
    }

    /// Returns what was counted since the cache was built.
    pub fn stats(&self) -> Stats {
        self.core.stats()
    }

    /// Publishes the [counters](Self::stats) of this cache and its clones, and the times of loads
    /// and waits, to the recorder of the crate [`metrics`]. `name` is their label `cache`.
    ///
    /// Spawn the future that this returns. It publishes once a second, and ends with the last
    /// clone. A second name for the same cache has no effect. docs/metrics.md lists the metrics,
    /// and what to do when one moves.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, counters stay as they were published, and times are still
    /// published. Call this again to go on.
    #[cfg(feature = "metrics")]
    #[cfg_attr(docsrs, doc(cfg(feature = "metrics")))]
    pub fn publish_metrics<N: Into<String>>(
        &self,
        name: N,
    ) -> impl Future<Output = ()> + Send + 'static + use<V, N> {
        let core = &self.core;
        crate::meter::publish(&core.meter, "cache", name.into(), core, |core| core.reading())
    }

    /// Shuts this cache and its clones down, so that a deploy costs the fleet no lease.
    ///
    /// A later caller of a load does not ask the backend. It is served the copy of the [local
    /// tier](Builder::local), while that may be served. Otherwise it loads for itself without a
    /// lease, and gets [`Degraded`](Source::Degraded). [`get`](Self::get) and the acts on an entry
    /// still work.
    /// What is [deferred](crate::Error::is_deferred) is tried once more.
    /// Loads that are under way may end until `deadline` has passed. Then they are cancelled, fail
    /// as [`ShutDown`](crate::ErrorKind::ShutDown), and release their leases. A [`Load`] that its
    /// caller still holds is waited for no longer. Refreshes in the background are cancelled at
    /// once.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped after it was first polled, still no new flight starts. Call it
    /// again to wait.
    pub async fn shutdown(&self, deadline: Duration) {
        let core = &self.core;
        core.loads.flights.close();
        core.backend.engine.janitor.stop();
        // No caller waits for the refreshes in the background.
        core.loads.refreshes.stop.cancel();
        let answers = core.backend.try_limit.saturating_mul(2);
        let loads = timeout(deadline, core.loads.begun.wait());
        let (loads, ()) = tokio::join!(loads, core.backend.writes.try_again(deadline));
        if loads.is_err() {
            core.loads.abort.cancel();
            // The user may hold a load, and not look whether it is lost.
            let _ = timeout(answers, core.loads.begun.wait()).await;
        }
        // A release that the backend does not answer ends by itself, with its lease.
        core.backend.engine.shutdown(answers).await;
    }
}

impl<V> Clone for Cache<V> {
    fn clone(&self) -> Self {
        Self { core: self.core.clone() }
    }
}

impl<V> fmt::Debug for Cache<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cache")
            .field("namespace", &self.core.settings.namespace)
            .finish_non_exhaustive()
    }
}
