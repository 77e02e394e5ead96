//! The main methods of a cache.

use std::{sync::Arc, time::Duration};

use tokio::time::timeout;

use super::{Builder, Cache, Codec, Json, Lead, Request, Stats};
use crate::{
    backend::Store,
    error::{BoxError, Error},
    key::{IntoKey, Key},
};

impl<V: Clone + Send + Sync + 'static> Cache<V> {
    /// Creates a cache over a backend with the default settings. The
    /// [namespace](Self::builder) separates the cache from the other caches of the backend.
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
    /// caches of one namespace and [schema](Builder::schema) must have the same type of value. A
    /// cache of another type reads the bytes of this cache as its own.
    pub fn builder<B: Store>(backend: B, namespace: impl Into<String>) -> Builder<V> {
        Builder::new(Arc::new(backend), namespace.into())
    }

    /// Returns the stored value of a key, or the value that the one loader of the fleet makes now.
    ///
    /// The loader runs only if this caller leads the load. It runs in a task of its own, in the
    /// tracing span of this caller, and must not block its thread. Because of the task, the loader
    /// owns what it uses: `move |_lead| async move { … }`. Where a `?` leaves the type of the error
    /// open, end with `Ok::<_, MyError>(value)`.
    ///
    /// After a [shutdown](Self::shutdown), the loader runs for this caller alone and is cancelled
    /// with this call. The same holds in a loader that asks for its own key.
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
    /// no caller waits for runs on, unless the cache [cancels](Builder::cancel_abandoned) such
    /// loads.
    pub async fn get_or_load<F, Fut, E>(&self, key: impl IntoKey, loader: F) -> Result<V, Error>
    where
        F: FnOnce(Lead<V>) -> Fut + Send + 'static,
        Fut: Future<Output = Result<V, E>> + Send + 'static,
        E: Into<BoxError> + 'static,
    {
        // A copy is looked up first, because a key and the future of a load each cost as much.
        match key.key_text().and_then(|text| self.get_local(text)) {
            Some(copy) => Ok(copy),
            None => Ok(self.request(key).load(loader).await?.value),
        }
    }

    /// Returns a request for a key. A request has options of its own, and its answer also says
    /// where the value came from.
    pub fn request(&self, key: impl Into<Key>) -> Request<V> {
        let key = key.into();
        self.core.activity.note(&key);
        Request { core: self.core.clone(), key, options: self.core.settings.options.clone() }
    }

    /// Returns the stored value, if there is one that is fresh or may be served
    /// [stale](Builder::stale_while_revalidate). No refresh begins.
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
        // A copy is looked up first, because a key costs as much.
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
        let decision = self.core.read(&key, &name, &options.rules).await;
        decision.found(&self.core.counters)
    }

    /// Returns the copy of a value in the [local tier](Builder::local), if the copy may be served.
    /// The call asks no backend and begins no refresh. A cache [for one process](Self::in_process)
    /// returns most of its fresh values this way.
    pub fn get_local(&self, key: &str) -> Option<V> {
        let copy = self.core.local_value(key, &self.core.settings.options)?;
        self.core.activity.note(key);
        self.core.counters.served(copy.source);
        Some(copy.value)
    }

    /// Returns the counters since the cache was built.
    pub fn stats(&self) -> Stats {
        self.core.stats()
    }

    /// Publishes the [counters](Self::stats) of this cache and its clones, and the times of loads
    /// and waits, to the recorder of the crate [`metrics`]. `name` is the label `cache` of each
    /// metric.
    ///
    /// Spawn the future that this returns. The future publishes once a second, and ends with the
    /// last clone. A second name for the same cache has no effect. docs/metrics.md lists the
    /// metrics, and what to do when one moves.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the counters keep their last published values, and times are still
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
    /// - A later caller of a load does not ask the backend. It gets the copy of the [local
    ///   tier](Builder::local), while the copy may be served. Otherwise the caller loads without a
    ///   lease, and gets [`Degraded`](super::Source::Degraded).
    /// - [`get`](Self::get) and the writes, such as [`insert`](Self::insert), still work.
    /// - [Deferred](crate::Error::is_deferred) writes are tried once more.
    /// - Loads that are under way may end until `deadline` has passed. Then they are cancelled,
    ///   fail as [`ShutDown`](crate::ErrorKind::ShutDown), and release their leases. The shutdown
    ///   does not wait for a [`Load`](super::Load) that its caller still holds then.
    /// - Refreshes in the background are cancelled at once.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped after it was first polled, still no new flight begins. Call
    /// `shutdown` again to wait.
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
            // The caller of `Request::begin` may hold a load without looking whether the lease is
            // lost.
            let _ = timeout(answers, core.loads.begun.wait()).await;
        }
        // If the backend does not answer a release, the lease ends by its time.
        core.backend.engine.shutdown(answers).await;
    }
}
