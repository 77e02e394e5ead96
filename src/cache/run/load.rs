//! The load that a caller holds under a lease, and the answer to a caller that begins a load.

use std::{fmt, ops::Deref};

use tokio_util::task::task_tracker::TaskTrackerToken;
use tracing::debug;

use super::{AskedKey, Held, Run, made::LoadBegun};
use crate::{
    backend::Grant,
    cache::{Lead, Loaded, member::Permit},
    error::{BoxError, Error},
    flight::{self, Epoch},
    lease::LeaseGuard,
};

/// A load under its lease, which [`Request::begin`] returns. The caller makes the value, and
/// [commits](Self::commit) the value. A load that is dropped releases the lease in a task, and the
/// next process loads.
///
/// Its [`Lead`] has the fence, and sets how the value is kept. It is [lost](Lead::lost) at the
/// [load limit](crate::cache::Builder::load_limit). Until the load ends, it holds one of the
/// [permits](crate::cache::Builder::max_loads).
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
///
/// [`Request::begin`]: crate::cache::Request::begin
#[must_use = "a load that is dropped lets the next process load"]
pub struct Load<V> {
    pub(super) asked: AskedKey<V>,
    pub(super) lead: Lead<V>,
    pub(super) guard: LeaseGuard,
    /// The epoch in which the lease was granted.
    pub(super) granted: Epoch,
    /// The number of the flight, or of the load if there is no flight.
    number: u64,
    pub(super) grant: Grant,
    pub(super) begun: LoadBegun,
    /// Held to the end of the load.
    _permit: Option<Permit>,
    /// Lets a shutdown wait for the load.
    _token: TaskTrackerToken,
}

/// The answer of [`Request::begin`](crate::cache::Request::begin).
#[derive(Debug)]
#[must_use = "a load that is dropped lets the next process load"]
pub enum Begun<V> {
    /// The value is fresh, or another process has just loaded it. Or the backend does not answer,
    /// and this process [remembered](crate::cache::Builder::outage_memory) the value.
    Ready(Loaded<V>),
    /// The value is stale, or it is time to refresh it
    /// [early](crate::cache::Builder::early_refresh). The load is there if the caller is to refresh
    /// the value.
    Stale(Loaded<V>, Option<Load<V>>),
    /// There is no value that may be served, and the caller loads the value.
    Load(Load<V>),
    /// The caller loads for itself, without a lease, and nothing is stored.
    /// [`Source::Degraded`](crate::cache::Source::Degraded) lists the reasons.
    Alone,
}

impl<V: Clone + Send + Sync + 'static> Load<V> {
    /// Begins a load under the lease that was granted for it.
    pub(super) async fn granted(
        run: &Run<V>,
        held: &mut Held<V>,
        guard: LeaseGuard,
        grant: Grant,
        granted: Epoch,
    ) -> Self {
        debug!(fence = grant.fence(), "lease taken");
        let asked = run.asked.clone();
        let core = &asked.core;
        // Before the wait, so that a shutdown waits for this load.
        let token = core.loads.begun.token();
        // A tag that is invalidated from here on invalidates the value.
        let tagged = core.begin_tags(&asked.options).await;
        let previous = held.previous.as_ref().map(|(previous, _)| previous.clone());
        let lead = Lead::new(Some(guard.lease.clone()), previous, tagged);
        Self {
            lead,
            guard,
            granted,
            number: run.leader.id,
            grant,
            begun: asked.begin_load(),
            _permit: held.permit.take(),
            _token: token,
            asked,
        }
    }
}

impl<V: Clone + Send + Sync + 'static> Load<V> {
    /// Completes when the lease is lost, at the [load
    /// limit](crate::cache::Builder::load_limit), or when a shutdown ends the loads. Another
    /// process may then load, and this value is most likely not stored.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing. The method can be called again.
    pub async fn lost(&self) {
        tokio::select! {
            () = self.guard.lost() => {}
            () = self.asked.core.loads.abort.cancelled() => {}
        }
    }

    /// Renews the lease now, and so asks whether the load still holds the lease. Each act that
    /// changes the value ends the lease. So a caller that asked before this call may be given what
    /// the load has made so far.
    ///
    /// # Errors
    ///
    /// [`Lost`](crate::ErrorKind::Lost) if the lease is lost, or if an act of this process on the
    /// key is [deferred](Error::is_deferred). [`Backend`](crate::ErrorKind::Backend) if the backend
    /// did not answer.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    pub async fn confirm(&self) -> Result<(), Error> {
        let AskedKey { core, key, name, .. } = &self.asked;
        if core.backend.writes.holds_back(name, self.guard.granted.fence) {
            return Err(Error::lost(&key.text));
        }
        self.guard.renew().await
    }

    /// Runs a future as a part of this load: loads that the future asks for need no
    /// [permit](crate::cache::Builder::max_loads), so loads cannot wait for each other's permits.
    pub fn scope<F: Future>(&self, part: F) -> impl Future<Output = F::Output> {
        flight::within(self.number, part)
    }

    /// Stores the value, ends the lease, and pushes the value to the processes that wait. Returns
    /// what a caller of [`get_or_load`](crate::Cache::get_or_load) would get: if a newer value was
    /// stored meanwhile, that value.
    ///
    /// A value that is not stored is returned as well. Such a value has [no time to
    /// live](Loaded::expires_in).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the value may or may not be stored.
    pub async fn commit(self, value: V) -> Loaded<V> {
        let core = self.asked.core.clone();
        core.loads.failures.forget(&self.asked.key);
        let made = self.asked.made(value, self.begun, &self.lead);
        let loaded = Box::pin(self.commit_value(made)).await.loaded;
        core.counters.served(loaded.source);
        loaded
    }

    /// Ends the lease with a failure, and tells the processes that wait. Returns the error for the
    /// callers, with the time for which the key [backs off](crate::cache::Builder::after_failure).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the lease is released, and the processes that wait may not be
    /// notified.
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
        let mut shown = f.debug_struct("Load");
        shown.field("key", &self.asked.key);
        shown.finish_non_exhaustive()
    }
}
