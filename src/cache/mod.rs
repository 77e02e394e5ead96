//! Guard a hot reload: of all who ask for one key at once, in the whole fleet, one loads it.
//!
//! [`Cache::get_or_load`] is the front. Behind it, a request ([`Request`]) joins the flight of its key in
//! this process; the flight's leader goes the way that `path` tells: look into the backend, claim the
//! lease, run the loader, commit; or wait for the process that has the lease. `load` runs the caller's
//! loader, [`Lead`] is what the loader is given, `decide` says what an entry is good for, and a [`Codec`]
//! turns values into bytes.

mod breaker;
mod builder;
mod claim;
mod codec;
mod commit;
mod decide;
mod lead;
mod load;
mod path;
mod request;
mod shard;

use std::{fmt, sync::Arc, time::Duration};

use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

#[cfg(feature = "postcard")]
pub use self::codec::Postcard;
pub use self::{
    builder::Builder,
    codec::{Codec, Json, Raw},
    lead::Lead,
    request::{Loaded, Request, Source},
};
pub use crate::{flight::Abandoned, observe::Stats};

#[cfg(feature = "http")]
pub(crate) use self::{load::Produced, path::OnUncacheable, request::Flown};

use self::{builder::Settings, decide::Decision, path::Outcome, shard::Shards};
use crate::{
    backend::{DynStore, Entry, Store, in_time},
    error::{BackendError, BackendErrorKind, BoxError, Error, ErrorKind},
    flight::Group,
    key::{Family, Key, Name},
    lease::Engine,
    observe::{Counters, Once},
};

/// A cache whose entries are rebuilt by one caller in the whole fleet.
///
/// Clones are the same cache. Every process that builds one with the same namespace over the same backend
/// belongs to its fleet.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// use std::time::Duration;
/// use bellwether::{Cache, MemoryBackend};
///
/// let cache: Cache<String> = Cache::builder(MemoryBackend::new())
///     .namespace("shop")
///     .ttl(Duration::from_secs(60))
///     .build()?;
/// let product = cache
///     .get_or_load("product:42", |_lead| async { Ok::<_, std::io::Error>("bell".to_owned()) })
///     .await?;
/// assert_eq!(product, "bell");
/// # Ok::<_, bellwether::Error>(()) }).unwrap();
/// ```
pub struct Cache<V> {
    inner: Arc<Inner<V>>,
}

/// What the clones of a cache share.
struct Inner<V> {
    store: Arc<dyn DynStore>,
    engine: Arc<Engine>,
    codec: Arc<dyn Codec<V>>,
    settings: Settings,
    flights: Group<Outcome<V>>,
    /// Set when running loads are to end.
    abort: CancellationToken,
    loads: Semaphore,
    counters: Counters,
    shards: Shards,
    /// Each is told loudly once, and counted from then on.
    undecodable: Once,
    unstorable: Once,
}

impl<V: Clone + Send + Sync + 'static> Cache<V> {
    /// Begins to build a cache over a backend.
    pub fn builder<B: Store>(backend: B) -> Builder<V> {
        Builder::new(Arc::new(backend))
    }

    /// The value of a key: a stored one, or what the one loader of the fleet makes of it now.
    ///
    /// The loader runs only if this caller is the one who leads. It runs in a task of its own, in this
    /// caller's tracing span, and must not block its thread. (After a [shutdown](Self::shutdown), and where a loader
    /// comes back to the key that it loads, it runs for its caller alone, and ends with him.)
    ///
    /// # Errors
    ///
    /// [`Load`](ErrorKind::Load), [`Panicked`](ErrorKind::Panicked) and
    /// [`LoadTimeout`](ErrorKind::LoadTimeout) say how the one load failed; everyone who waited for it gets
    /// the same. [`InvalidKey`](ErrorKind::InvalidKey) for an empty or long key,
    /// [`Overloaded`](ErrorKind::Overloaded) at a cap on [loads](Builder::max_loads) or on callers who wait
    /// ([in all](Builder::max_waiters), [for a key](Builder::max_waiters_per_key)),
    /// [`ShutDown`](ErrorKind::ShutDown) if the cache was [shut down](Self::shutdown) during the load,
    /// [`Cancelled`](ErrorKind::Cancelled) if the runtime of the load went away meanwhile. A backend that is down is no error: the value is loaded then, once in this
    /// process, and not stored.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future costs nobody anything: the load runs on for the others, and where nobody waits
    /// any more it ends as the cache was [told](Builder::when_abandoned).
    pub async fn get_or_load<F, Fut, E>(&self, key: impl Into<Key>, loader: F) -> Result<V, Error>
    where
        F: FnOnce(Lead) -> Fut + Send + 'static,
        Fut: Future<Output = Result<V, E>> + Send + 'static,
        E: Into<BoxError> + 'static,
    {
        Ok(self.request(key).load(loader).await?.into_value())
    }

    /// A request for a key with options of its own; it tells where its value came from.
    pub fn request(&self, key: impl Into<Key>) -> Request<V> {
        Request::new(self.clone(), key.into())
    }

    /// The stored value, if there is one.
    ///
    /// # Errors
    ///
    /// [`InvalidKey`](ErrorKind::InvalidKey), or [`Backend`](ErrorKind::Backend) if the backend did not
    /// answer.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    pub async fn get(&self, key: impl Into<Key>) -> Result<Option<V>, Error> {
        let name = self.inner.name(&key.into())?;
        match self.inner.look(&name).await? {
            Decision::Fresh(value) => Ok(Some(value)),
            Decision::Miss { .. } | Decision::Uncacheable => Ok(None),
        }
    }

    /// Stores a value for the time that the cache keeps values. A load that is under way will not be
    /// stored.
    ///
    /// # Errors
    ///
    /// [`Codec`](ErrorKind::Codec) if the value cannot be encoded or is larger than the limit,
    /// [`InvalidKey`](ErrorKind::InvalidKey), or [`Backend`](ErrorKind::Backend): then it may or may not
    /// have been stored.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, it may or may not be stored.
    pub async fn insert(&self, key: impl Into<Key>, value: &V) -> Result<(), Error> {
        let key = key.into();
        let name = self.inner.name(&key)?;
        let entry = self.inner.encode(value, Duration::ZERO)?;
        let settings = &self.inner.settings;
        let put = self.inner.store.put(&name, &entry, settings.ttl, settings.fence_life());
        let written = self.inner.in_time(put).await;
        // Also after an error, for it may have been stored.
        self.inner.flights.detach(&key);
        self.inner.counted(written)?;
        Ok(())
    }

    /// Removes a value. A load that is under way will not be stored, and who asks after this returned is
    /// served nothing older.
    ///
    /// # Errors
    ///
    /// [`InvalidKey`](ErrorKind::InvalidKey), or [`Backend`](ErrorKind::Backend): then it may or may not
    /// have been removed.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, it may or may not be removed.
    pub async fn invalidate(&self, key: impl Into<Key>) -> Result<(), Error> {
        let key = key.into();
        let name = self.inner.name(&key)?;
        let fence_life = self.inner.settings.fence_life();
        let removed = self.inner.in_time(self.inner.store.invalidate(&name, fence_life)).await;
        self.inner.flights.detach(&key);
        self.inner.counted(removed)?;
        Ok(())
    }

    /// What was counted since the cache was built.
    pub fn stats(&self) -> Stats {
        self.inner.counters.snapshot(self.inner.flights.len())
    }

    /// Ends the work of this cache, so that a deploy costs nobody a lease.
    ///
    /// No new flight starts; who still asks loads for himself. Running loads may end until `deadline` has
    /// passed; then they are cancelled and their leases released, so that the next process in line begins
    /// at once.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped after it was first polled, no new flight starts all the same; call it again to
    /// wait.
    pub async fn shutdown(&self, deadline: Duration) {
        let inner = &self.inner;
        inner.flights.close();
        inner.engine.stop();
        if tokio::time::timeout(deadline, inner.flights.idle()).await.is_err() {
            inner.abort.cancel();
            inner.flights.idle().await;
        }
        // Releases that a backend does not answer end by themselves, with their leases.
        let limit = inner.settings.retry.try_limit().saturating_mul(2);
        inner.engine.shutdown(limit).await;
    }

    #[cfg(feature = "http")]
    pub(crate) fn key_limit(&self) -> usize {
        self.inner.settings.max_key
    }

    #[cfg(feature = "http")]
    pub(crate) fn value_limit(&self) -> usize {
        self.inner.settings.max_value
    }

    #[cfg(feature = "http")]
    pub(crate) fn load_limit(&self) -> Duration {
        self.inner.settings.load_limit
    }

    #[cfg(feature = "http")]
    pub(crate) fn ttl(&self) -> Duration {
        self.inner.settings.ttl
    }
}

impl<V: Clone + Send + Sync + 'static> Inner<V> {
    fn name(&self, key: &Key) -> Result<Name, Error> {
        let settings = &self.settings;
        let name = Name::new(&settings.namespace, Family::Cache, key, settings.max_key)?;
        Ok(name.with_schema(settings.schema))
    }

    /// What stands under a name, and what it is good for.
    async fn look(&self, name: &Name) -> Result<Decision<V>, BackendError> {
        match self.counted(self.store.get(name).await) {
            Ok(Some(entry)) => Ok(self.decide(entry)),
            Ok(None) => Ok(Decision::Miss { seen: 0 }),
            Err(error) if error.kind() == BackendErrorKind::Foreign => {
                let words = "what stands under the name counts as missing";
                match self.undecodable.first() {
                    true => tracing::warn!(?name, error = %crate::error::Chain(&error), "{words}"),
                    false => {
                        tracing::debug!(?name, error = %crate::error::Chain(&error), "{words}")
                    }
                }
                self.counters.undecodable.add();
                Ok(Decision::Miss { seen: 0 })
            }
            Err(error) => Err(error),
        }
    }

    /// What the backend answers, or that it did not do so in time; no caller depends on its patience.
    async fn in_time<T>(
        &self,
        answer: impl Future<Output = Result<T, BackendError>>,
    ) -> Result<T, BackendError> {
        let limit = self.settings.retry.try_limit();
        in_time(limit, answer).await
    }

    fn decide(&self, entry: Entry) -> Decision<V> {
        let decision = decide::decide(entry, self.tag(), self.codec.as_ref());
        if let Decision::Miss { seen } = decision {
            tracing::debug!(fence = seen, "an entry that cannot be decoded counts as missing");
            self.counters.undecodable.add();
        }
        decision
    }

    fn encode(&self, value: &V, cost: Duration) -> Result<Entry, Error> {
        let payload = self.codec.encode(value).map_err(|error| {
            Error::with_source(ErrorKind::Codec, "the value could not be encoded", error)
        })?;
        let limit = self.settings.max_value;
        if payload.len() > limit {
            let size = payload.len();
            return Err(Error::new(
                ErrorKind::Codec,
                format!("the value has {size} bytes, more than the limit of {limit}"),
            ));
        }
        Ok(Entry::value(self.tag(), cost, payload))
    }

    fn tag(&self) -> u32 {
        u32::from(self.settings.schema) << 16 | u32::from(self.codec.tag())
    }

    fn counted<T>(&self, answer: Result<T, BackendError>) -> Result<T, BackendError> {
        if answer.is_err() {
            self.counters.backend_errors.add();
        }
        answer
    }
}

impl<V> Clone for Cache<V> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone() }
    }
}

impl<V> fmt::Debug for Cache<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cache").field("settings", &self.inner.settings).finish_non_exhaustive()
    }
}
