//! The low-level call: what is stored, or a load that the caller makes itself.

use std::{fmt, ops::Deref};

use super::{
    Lead, Loaded, Request, loader,
    run::{Begun, Load, Run, RunStart},
    settings::OnUncacheable,
};
use crate::{
    error::{BoxError, Error},
    key::{Family, Name},
};

impl<V: Clone + Send + Sync + 'static> Request<V> {
    /// Returns the stored value, or a load under the lease of its key.
    ///
    /// This is how to load by something else than a closure, such as by a stream that is read
    /// elsewhere. [`load`](Self::load) also merges the callers of this process. Two calls of
    /// `begin` meet at the lease as two processes do: the second one waits for the value of the
    /// first.
    ///
    /// # Errors
    ///
    /// - The failure of the load that this call waited for, or after which the key backs off.
    /// - [`InvalidKey`](crate::ErrorKind::InvalidKey) if the key is empty or too long.
    /// - [`Overloaded`](crate::ErrorKind::Overloaded) if too many
    ///   [loads](super::Builder::max_loads) are under way.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, a lease that it was granted is released.
    ///
    /// # Examples
    ///
    /// ```
    /// # let mut builder = tokio::runtime::Builder::new_current_thread();
    /// # builder.enable_time().build().unwrap().block_on(async {
    /// use bellwether::{Cache, MemoryBackend, cache::Begun};
    ///
    /// /// Stands for an origin that is asked by hand.
    /// async fn fetch() -> Result<u64, std::io::Error> {
    ///     Ok(17)
    /// }
    ///
    /// let cache: Cache<u64> = Cache::builder(MemoryBackend::new(), "shop").build()?;
    /// let stock = match cache.request("stock:42").begin().await? {
    ///     Begun::Ready(loaded) | Begun::Stale(loaded, _) => loaded.value,
    ///     Begun::Load(load) => {
    ///         let fetched = tokio::select! {
    ///             fetched = load.scope(fetch()) => fetched,
    ///             () = load.lost() => Err(std::io::Error::other("the lease was lost")),
    ///         };
    ///         // Asks whether the lease is still held, such as before a step that costs much.
    ///         load.confirm().await?;
    ///         match fetched {
    ///             Ok(stock) => load.commit(stock).await.value,
    ///             Err(error) => return Err(load.fail(error).await),
    ///         }
    ///     }
    ///     Begun::Alone => fetch().await.unwrap(),
    /// };
    /// assert_eq!(stock, 17);
    /// assert_eq!(cache.get("stock:42").await?, Some(17));
    /// # Ok::<_, bellwether::Error>(()) }).unwrap();
    /// ```
    pub async fn begin(mut self) -> Result<Begun<V>, Error> {
        self.options_mut().sharing.on_uncacheable = OnUncacheable::Pass;
        let Self { core, key, own } = self;
        Name::check(Family::Cache, &key, core.settings.max_key)?;
        if let Some(loaded) = core.local(key.as_str(), core.options(own.as_deref())) {
            core.counters.served(loaded.source());
            return Ok(Begun::Ready(loaded));
        }
        if core.flights.is_closed() {
            return Ok(Begun::Alone);
        }
        let run = Run::new(&core, &key, own, None, RunStart::Look)?;
        Box::pin(run.begin()).await
    }
}

impl<V: Clone + Send + Sync + 'static> Load<V> {
    /// Completes when the lease is lost, at the [load limit](super::Builder::load_limit), or when a
    /// shutdown ends the loads. Another process may then load, and this value is most likely not
    /// stored.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing. The method can be called again.
    pub async fn lost(&self) {
        tokio::select! {
            () = self.guard.lost() => {}
            () = self.asked.core.abort.cancelled() => {}
        }
    }

    /// Renews the lease now, and so asks whether it is still held. Each act that changes the value
    /// ends the lease. So a caller that asked before this call may be given what the load has made
    /// so far.
    ///
    /// # Errors
    ///
    /// [`Lost`](crate::ErrorKind::Lost) if the lease is lost, or
    /// [`Backend`](crate::ErrorKind::Backend) if the backend did not answer.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    pub async fn confirm(&self) -> Result<(), Error> {
        self.guard.renew().await
    }

    /// Runs a future as a part of this load: loads that it asks for need no
    /// [permit](super::Builder::max_loads), so loads cannot wait for each other's permits.
    pub fn scope<F: Future>(&self, part: F) -> impl Future<Output = F::Output> {
        crate::flight::within(self.number, part)
    }

    /// Stores the value, ends the lease, and pushes the value to the processes that wait. Returns
    /// what a caller of [`get_or_load`](super::Cache::get_or_load) would get: if a newer value was
    /// stored meanwhile, that one.
    ///
    /// A value that is not stored is returned as well. Then it has [no time to
    /// live](Loaded::expires_in).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the value may or may not be stored.
    pub async fn commit(self, value: V) -> Loaded<V> {
        let core = self.asked.core.clone();
        core.failures.forget(&self.asked.key);
        let made = loader::made(&core, &self.lead, value);
        let (loaded, _) = Box::pin(self.commit_value(made)).await;
        core.counters.served(loaded.source());
        loaded
    }

    /// Ends the lease with a failure, and tells the processes that wait. Returns the error for the
    /// callers, with the time for which the key [backs off](super::Builder::after_failure).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the lease is released, and the others may not be told.
    pub async fn fail(self, error: impl Into<BoxError>) -> Error {
        let core = self.asked.core.clone();
        core.counters.failures.add();
        core.counters.failed.add();
        Box::pin(self.fail_with(Error::load(error))).await
    }
}

impl<V> Deref for Load<V> {
    type Target = Lead<V>;

    fn deref(&self) -> &Lead<V> {
        &self.lead
    }
}

impl<V> fmt::Debug for Load<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Load").field("key", &self.asked.key).finish_non_exhaustive()
    }
}
