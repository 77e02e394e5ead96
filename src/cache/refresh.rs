//! Refreshes: loads that replace an entry, while their callers are served the old value.
//!
//! No caller waits for a refresh in the background, which claims the lease without waiting. If
//! another process has the lease, or this one refreshes, the key is quiet in this process for the
//! time of a lease. The [delays] of the processes keep most of them from claiming at all.
//!
//! A refresh that a caller asks for joins no other load, because what that one reads from the
//! origin may be older.
//!
//! [delays]: super::freshness::RefreshDelay

use futures_util::FutureExt;
use tracing::Instrument;

use super::{
    Lead, Loaded, Request,
    loader::{self, Work},
    outcome::{Outcome, cut_off, ended},
    run::{Run, RunStart},
};
use crate::{
    backend::Edit,
    error::{BoxError, Error},
    flight,
};

impl<V: Clone + Send + Sync + 'static> Request<V> {
    /// Loads the value anew, and stores it. All other callers are served the old value meanwhile,
    /// if there is one that may be served.
    ///
    /// The value of each load that began before is not stored, in the whole fleet. If another load
    /// begins during this call, its value is returned, and this loader may not run. So many
    /// refreshes at once are few loads. A load that fails leaves the old value as it is.
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
    ///
    /// # Examples
    ///
    /// ```
    /// # let mut builder = tokio::runtime::Builder::new_current_thread();
    /// # builder.enable_time().build().unwrap().block_on(async {
    /// use bellwether::{BoxError, Cache, MemoryBackend};
    ///
    /// let cache: Cache<u64> = Cache::builder(MemoryBackend::new(), "shop").build()?;
    /// cache.insert("stock:42", &17).await?;
    /// let loaded = cache.request("stock:42").refresh(|_lead| async { Ok::<_, BoxError>(16) });
    /// assert_eq!(loaded.await?.value, 16);
    /// assert_eq!(cache.get("stock:42").await?, Some(16));
    /// # Ok::<_, bellwether::Error>(()) }).unwrap();
    /// ```
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
        let work = move |lead: Lead<V>| loader::of_user(shared, lead.clone(), loader(lead));
        self.refresh_by(loader::boxed(work)).map(move |flown| flown?.shared(&core.counters))
    }

    async fn refresh_by(mut self, work: Work<V>) -> Outcome<V> {
        // The entry to replace is read also if it is fresh.
        self.options_mut().rules.replaces = true;
        let Self { core, key, own } = self;
        let (name, life) = (core.name(&key)?, core.settings.fence_life());
        // First, so that each load that began before this call is beaten.
        let burnt = core.change(&key, core.store.edit(&name, &Edit::Supersede, life)).await?;
        // A shutdown that begins from here on waits for the load.
        let _begun = core.begun.token();
        if core.flights.is_closed() {
            return Err(Error::shut_down());
        }
        let run = Run::new(&core, &key, own, None, RunStart::Supersede(burnt))?;
        let load = run.load_in_task(work).in_current_span();
        // A loader that asks for a refresh is the one that loads.
        let load = match flight::current() {
            Some(number) => core.begun.spawn(flight::within(number, load)),
            None => core.begun.spawn(load),
        };
        ended(&core.counters, load.await.map_err(|_| cut_off())?, true)
    }
}
