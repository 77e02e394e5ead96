//! The refresh that a caller asks for.

use futures_util::FutureExt;

use super::{
    Cache, Lead, Loaded, Request,
    flown::{Flown, cut_off, ended},
    loader::{self, Produced},
    request::{load_alone, nest},
    run::Run,
};
use crate::{
    error::{BoxError, Error},
    flight::{self, Waited},
    key::Key,
};

impl<V: Clone + Send + Sync + 'static> Cache<V> {
    /// Loads the value of a key anew, and stores it. All other callers are served the old value
    /// meanwhile, if there is one. [`Request::refresh`] tells more.
    ///
    /// # Errors
    ///
    /// As those of [`Request::refresh`].
    ///
    /// # Cancel safety
    ///
    /// As that of [`Request::refresh`].
    ///
    /// # Examples
    ///
    /// ```
    /// # let mut builder = tokio::runtime::Builder::new_current_thread();
    /// # builder.enable_time().build().unwrap().block_on(async {
    /// use bellwether::{BoxError, Cache, MemoryBackend};
    ///
    /// let cache: Cache<u64> = Cache::builder(MemoryBackend::new()).build()?;
    /// cache.insert("stock:42", &17).await?;
    /// assert_eq!(cache.refresh("stock:42", |_lead| async { Ok::<_, BoxError>(16) }).await?, 16);
    /// assert_eq!(cache.get("stock:42").await?, Some(16));
    /// # Ok::<_, bellwether::Error>(()) }).unwrap();
    /// ```
    pub async fn refresh<F, Fut, E>(&self, key: impl Into<Key>, loader: F) -> Result<V, Error>
    where
        F: FnOnce(Lead<V>) -> Fut + Send + 'static,
        Fut: Future<Output = Result<V, E>> + Send + 'static,
        E: Into<BoxError> + 'static,
    {
        Ok(self.request(key).refresh(loader).await?.value)
    }
}

impl<V: Clone + Send + Sync + 'static> Request<V> {
    /// Loads the value anew, and stores it. All other callers are served the old value meanwhile,
    /// if there is one that may be served.
    ///
    /// The value of each load that began before is not stored, in the whole fleet. If another load
    /// begins during this call, its value is returned, and this loader may not run. So many
    /// refreshes at once are few loads. A [touch](Self::touch) during this call counts as well.
    ///
    /// The future waits for the value. To go on at once, spawn it. A load that fails leaves the old
    /// value as it is.
    ///
    /// # Errors
    ///
    /// - [`Load`](crate::ErrorKind::Load), [`Panicked`](crate::ErrorKind::Panicked) or
    ///   [`LoadTimeout`](crate::ErrorKind::LoadTimeout) if the load failed.
    /// - [`Backend`](crate::ErrorKind::Backend) if the backend did not answer or refused, before
    ///   the load began.
    /// - [`InvalidKey`](crate::ErrorKind::InvalidKey) if the key is empty or too long.
    /// - [`Overloaded`](crate::ErrorKind::Overloaded) if too many loads are under way.
    /// - [`ShutDown`](crate::ErrorKind::ShutDown) if the cache is shut down.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped after the load began, the load goes on in the background.
    pub fn refresh<F, Fut, E>(
        self,
        loader: F,
    ) -> impl Future<Output = Result<Loaded<V>, Error>> + Send + 'static
    where
        F: FnOnce(Lead<V>) -> Fut + Send + 'static,
        Fut: Future<Output = Result<V, E>> + Send + 'static,
        E: Into<BoxError> + 'static,
    {
        let core = self.core.clone();
        let shared = core.clone();
        let work = move |lead: Lead<V>| loader::shared(shared, lead.clone(), loader(lead));
        self.rebuild(work).map(move |flown| flown?.shared(&core))
    }

    async fn rebuild<F, Fut>(self, work: F) -> Result<Flown<V>, Error>
    where
        F: FnOnce(Lead<V>) -> Fut + Send + 'static,
        Fut: Future<Output = Result<Produced<V>, Error>> + Send + 'static,
    {
        let Self { core, key, own } = self;
        let (name, life) = (core.name(&key)?, core.settings.fence_life());
        // First, so that each load that began before this call is beaten.
        let burnt = core.change(&key, core.store.supersede(&name, life)).await?;
        let Some((mut follower, leader)) = core.refreshes.begin_anew(&key) else {
            return Err(Error::shut_down());
        };
        let within = flight::current();
        let Some(_edge) = nest(within, &follower) else {
            drop((follower, leader));
            return Box::pin(load_alone(core, Some(work), own, within)).await;
        };
        let run = Run::new(&core, &key, own, leader, false)?.superseding(burnt);
        follower.lead(Box::pin(run.run(work)));
        match follower.wait().await {
            Waited::Outcome(outcome) => ended(&core, outcome, true, None),
            Waited::JoinAgain => Err(cut_off()),
        }
    }
}
