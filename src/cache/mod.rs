//! A cache that loads each missing entry once in the whole fleet.
//!
//! [`Cache::get_or_load`] is the entry point. A [`Request`] joins the flight of its key in this
//! process. The leader of the flight goes the way of `run`: look into the backend, claim the lease,
//! run the loader, commit; or wait for the process that has the lease. The loader is given a
//! [`Lead`]. A [`Codec`] turns values into bytes.

mod breaker;
mod builder;
mod codec;
mod core;
mod error_codec;
mod freshness;
mod lead;
mod loader;
mod outcome;
mod refreshes;
mod request;
mod run;
mod settings;
mod shard;

use std::{fmt, sync::Arc, time::Duration};

use tokio::time::timeout;

#[cfg(feature = "postcard")]
pub use self::codec::Postcard;
pub use self::{
    builder::Builder,
    codec::{Codec, Json, Raw},
    freshness::EarlyRefresh,
    lead::Lead,
    outcome::{Loaded, Source},
    request::Request,
};
pub use crate::{flight::Abandoned, observe::Stats};

#[cfg(feature = "http")]
pub(crate) use self::{
    loader::Produced,
    outcome::{Alone, Flown},
    settings::{OnFull, OnUncacheable, Sharing},
};

use self::{
    core::{Core, Decision},
    freshness::Rules,
};
#[cfg(feature = "http")]
use crate::observe::Counters;
use crate::{
    backend::Store,
    error::{BoxError, Error},
    key::Key,
};

/// A cache whose entries are loaded by one caller in the whole fleet.
///
/// Clones are the same cache. The processes that build one with the same namespace over the same
/// backend are its fleet.
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
///
/// cache.insert("product:43", &"whistle".to_owned()).await?;
/// assert_eq!(cache.get("product:43").await?.as_deref(), Some("whistle"));
/// cache.insert_with_ttl("product:44", &"gong".to_owned(), Duration::from_secs(5)).await?;
/// cache.invalidate("product:43").await?;
/// assert_eq!(cache.get("product:43").await?, None);
///
/// let loaded = cache
///     .request("product:43")
///     .ttl(Duration::from_secs(5))
///     .load(|_lead| async { Ok::<_, std::io::Error>("horn".to_owned()) })
///     .await?;
/// assert_eq!(loaded.value(), "horn");
///
/// assert_eq!(cache.stats().loads, 2);
/// cache.shutdown(Duration::from_secs(5)).await;
/// # Ok::<_, bellwether::Error>(()) }).unwrap();
/// ```
pub struct Cache<V> {
    core: Arc<Core<V>>,
}

impl<V: Clone + Send + Sync + 'static> Cache<V> {
    /// Returns a builder of a cache over a backend.
    pub fn builder<B: Store>(backend: B) -> Builder<V> {
        Builder::new(Arc::new(backend))
    }

    /// Returns the stored value of a key, or the value that the one loader of the fleet makes now.
    ///
    /// The loader runs only if this caller is the one that leads. It runs in a task of its own, in
    /// the tracing span of this caller, and must not block its thread.
    ///
    /// In two cases it runs for its caller alone, and ends with it: after a
    /// [shutdown](Self::shutdown), and where a loader asks for the key that it loads.
    ///
    /// # Errors
    ///
    /// - [`Load`](crate::ErrorKind::Load), [`Panicked`](crate::ErrorKind::Panicked) or
    ///   [`LoadTimeout`](crate::ErrorKind::LoadTimeout) if the one load failed. All its waiters get
    ///   the same error.
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
    /// no caller waits for ends as the cache was [told](Builder::when_abandoned).
    pub async fn get_or_load<F, Fut, E>(&self, key: impl Into<Key>, loader: F) -> Result<V, Error>
    where
        F: FnOnce(Lead) -> Fut + Send + 'static,
        Fut: Future<Output = Result<V, E>> + Send + 'static,
        E: Into<BoxError> + 'static,
    {
        Ok(self.request(key).load(loader).await?.value)
    }

    /// Returns a request for a key, with options of its own. It also says where its value came
    /// from.
    pub fn request(&self, key: impl Into<Key>) -> Request<V> {
        Request { core: self.core.clone(), key: key.into(), options: self.core.settings.options }
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
    pub async fn get(&self, key: impl Into<Key>) -> Result<Option<V>, Error> {
        let name = self.core.name(&key.into())?;
        let rules = &self.core.settings.options.rules;
        match self.core.decide(&name, rules, self.core.store.get(&name).await) {
            Decision::Unanswered(error) => Err(error.into()),
            decision => Ok(decision.value().map(|(value, ..)| value)),
        }
    }

    /// Stores a value for as long as the cache keeps values. The value of a load that is under way
    /// is not stored.
    ///
    /// # Errors
    ///
    /// - [`Codec`](crate::ErrorKind::Codec) if the value cannot be encoded, or is too large.
    /// - [`InvalidKey`](crate::ErrorKind::InvalidKey) if the key is empty or too long.
    /// - [`Backend`](crate::ErrorKind::Backend) if the backend did not answer or refused. The value
    ///   may or may not be stored.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the value may or may not be stored.
    pub async fn insert(&self, key: impl Into<Key>, value: &V) -> Result<(), Error> {
        self.insert_with_ttl(key, value, self.core.settings.options.ttl).await
    }

    /// Stores a value for a time of its own. Zero keeps it for 1 ms. Everything else is as for
    /// [`insert`](Self::insert).
    ///
    /// # Errors
    ///
    /// As those of [`insert`](Self::insert).
    ///
    /// # Cancel safety
    ///
    /// As that of [`insert`](Self::insert).
    pub async fn insert_with_ttl(
        &self,
        key: impl Into<Key>,
        value: &V,
        ttl: Duration,
    ) -> Result<(), Error> {
        self.request(key).ttl(ttl).insert(value).await
    }

    /// Removes a value. The value of a load that is under way is not stored. A caller that asks
    /// after this returned is served nothing older.
    ///
    /// # Errors
    ///
    /// [`InvalidKey`](crate::ErrorKind::InvalidKey), or [`Backend`](crate::ErrorKind::Backend) if
    /// the backend did not answer. The value may then be removed or not.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the value may or may not be removed.
    pub async fn invalidate(&self, key: impl Into<Key>) -> Result<(), Error> {
        let (core, key) = (&self.core, key.into());
        let name = core.name(&key)?;
        core.change(&key, core.store.invalidate(&name, core.settings.fence_life())).await?;
        Ok(())
    }

    /// Makes a value stale. It is kept for the case that its load
    /// [fails](Builder::stale_if_error), and otherwise served no more. Everything else is as for
    /// [`invalidate`](Self::invalidate).
    ///
    /// Without a window for failures, the value is removed.
    ///
    /// # Errors
    ///
    /// As those of [`invalidate`](Self::invalidate).
    ///
    /// # Cancel safety
    ///
    /// As that of [`invalidate`](Self::invalidate).
    ///
    /// # Examples
    ///
    /// ```
    /// # let mut builder = tokio::runtime::Builder::new_current_thread();
    /// # builder.enable_time().build().unwrap().block_on(async {
    /// use std::time::Duration;
    /// use bellwether::{BoxError, Cache, MemoryBackend, cache::Source};
    ///
    /// let cache: Cache<u64> = Cache::builder(MemoryBackend::new())
    ///     .stale_if_error(Duration::from_secs(600))
    ///     .build()?;
    /// cache.insert("stock:42", &17).await?;
    /// cache.expire("stock:42").await?;
    /// assert_eq!(cache.get("stock:42").await?, None);
    /// let load = |_lead| async { Err::<u64, _>(BoxError::from("the database is down")) };
    /// let loaded = cache.request("stock:42").load(load).await?;
    /// assert_eq!((*loaded.value(), loaded.source()), (17, Source::Stale));
    /// # Ok::<_, bellwether::Error>(()) }).unwrap();
    /// ```
    pub async fn expire(&self, key: impl Into<Key>) -> Result<(), Error> {
        let (core, key) = (&self.core, key.into());
        let name = core.name(&key)?;
        core.change(&key, core.store.expire(&name, core.settings.fence_life())).await?;
        Ok(())
    }

    /// Starts the windows of a value anew, with the settings of the cache. Returns whether there is
    /// a value. The value of a load that is under way is not stored.
    ///
    /// [`Request::touch`] does it with windows of its own. Use it if you know that the value is
    /// still right, such as after a write that has not changed it.
    ///
    /// # Errors
    ///
    /// As those of [`invalidate`](Self::invalidate).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the windows may or may not have begun anew.
    ///
    /// # Examples
    ///
    /// ```
    /// # let mut builder = tokio::runtime::Builder::new_current_thread();
    /// # builder.enable_time().build().unwrap().block_on(async {
    /// use bellwether::{Cache, MemoryBackend};
    ///
    /// let cache: Cache<u64> = Cache::builder(MemoryBackend::new()).build()?;
    /// assert!(!cache.touch("stock:42").await?);
    /// cache.insert("stock:42", &17).await?;
    /// assert!(cache.touch("stock:42").await?);
    /// # Ok::<_, bellwether::Error>(()) }).unwrap();
    /// ```
    pub async fn touch(&self, key: impl Into<Key>) -> Result<bool, Error> {
        self.request(key).touch().await
    }

    /// Returns the stored value with what is known of it, if there is one that has not ended. It
    /// may be stale, or kept for failures only. Nothing is refreshed or counted.
    ///
    /// # Errors
    ///
    /// As those of [`get`](Self::get).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    ///
    /// # Examples
    ///
    /// ```
    /// # let mut builder = tokio::runtime::Builder::new_current_thread();
    /// # builder.enable_time().build().unwrap().block_on(async {
    /// use bellwether::{Cache, MemoryBackend, cache::Source};
    ///
    /// let cache: Cache<u64> = Cache::builder(MemoryBackend::new()).build()?;
    /// cache.insert("stock:42", &17).await?;
    /// let stored = cache.peek("stock:42").await?.unwrap();
    /// assert_eq!((*stored.value(), stored.source()), (17, Source::Hit));
    /// # Ok::<_, bellwether::Error>(()) }).unwrap();
    /// ```
    pub async fn peek(&self, key: impl Into<Key>) -> Result<Option<Loaded<V>>, Error> {
        let name = self.core.name(&key.into())?;
        let decision = self.core.decide(&name, &Rules::ALL, self.core.store.get_aged(&name).await);
        let (value, record, source) = match decision {
            Decision::Unanswered(error) => return Err(error.into()),
            Decision::OnError(known) => (known.value, known.record, Source::Stale),
            decision => match decision.value() {
                Some(value) => value,
                None => return Ok(None),
            },
        };
        Ok(Some(Loaded { value, source, record }))
    }

    /// Returns for how long a value is still fresh, by the clock of the backend. Zero if it is
    /// stale, and `None` if there is no value.
    ///
    /// # Errors
    ///
    /// As those of [`get`](Self::get).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    ///
    /// # Examples
    ///
    /// ```
    /// # let mut builder = tokio::runtime::Builder::new_current_thread();
    /// # builder.enable_time().build().unwrap().block_on(async {
    /// use std::time::Duration;
    /// use bellwether::{Cache, MemoryBackend};
    ///
    /// let cache: Cache<u64> = Cache::builder(MemoryBackend::new()).build()?;
    /// cache.insert_with_ttl("stock:42", &17, Duration::from_secs(5)).await?;
    /// assert!(cache.remaining("stock:42").await?.unwrap() > Duration::from_secs(4));
    /// # Ok::<_, bellwether::Error>(()) }).unwrap();
    /// ```
    pub async fn remaining(&self, key: impl Into<Key>) -> Result<Option<Duration>, Error> {
        Ok(self.peek(key).await?.and_then(|loaded| loaded.expires_in()))
    }

    /// Returns what was counted since the cache was built.
    pub fn stats(&self) -> Stats {
        self.core.counters.snapshot(self.core.flights.len())
    }

    /// Shuts this cache and its clones down, so that a deploy costs the fleet no lease.
    ///
    /// No new flight starts. A later caller does not read the cache: it loads for itself, without a
    /// lease, and gets [`Degraded`](Source::Degraded). Loads that are under way may end until
    /// `deadline` has passed. Then they are cancelled and fail as
    /// [`ShutDown`](crate::ErrorKind::ShutDown). Their leases are released, so that the next
    /// process begins at once. Refreshes in the background are cancelled without waiting.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped after it was first polled, still no new flight starts. Call it
    /// again to wait.
    pub async fn shutdown(&self, deadline: Duration) {
        let core = &self.core;
        core.flights.close();
        core.engine.stop();
        // No caller waits for a refresh.
        core.refreshes.close();
        if timeout(deadline, core.flights.idle()).await.is_err() {
            core.abort.cancel();
            core.flights.idle().await;
        }
        core.refreshes.idle().await;
        // A release that the backend does not answer ends by itself, with its lease.
        core.engine.shutdown(core.try_limit.saturating_mul(2)).await;
    }
}

/// For the layers.
#[cfg(feature = "http")]
impl<V> Cache<V> {
    pub(crate) fn key_limit(&self) -> usize {
        self.core.settings.max_key
    }

    pub(crate) fn value_limit(&self) -> usize {
        self.core.settings.max_value
    }

    pub(crate) fn load_limit(&self) -> Duration {
        self.core.settings.options.load_limit
    }

    pub(crate) fn ttl(&self) -> Duration {
        self.core.settings.options.ttl
    }

    pub(crate) fn uncacheable_ttl(&self) -> Duration {
        self.core.settings.uncacheable_ttl
    }

    pub(crate) fn counters(&self) -> &Counters {
        &self.core.counters
    }
}

impl<V> Clone for Cache<V> {
    fn clone(&self) -> Self {
        Self { core: self.core.clone() }
    }
}

impl<V> fmt::Debug for Cache<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cache").field("settings", &self.core.settings).finish_non_exhaustive()
    }
}
