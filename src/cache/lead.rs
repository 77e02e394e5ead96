use std::{
    fmt,
    sync::{Arc, Mutex},
    time::Duration,
};

use crate::{lease::LeaseRecord, sync::lock};

/// The lease that a loader runs under, and how its value is kept.
///
/// Clones are the same lead. Dropping one has no effect.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// use std::time::Duration;
/// use bellwether::{BoxError, Cache, MemoryBackend};
///
/// let cache: Cache<u64> = Cache::builder(MemoryBackend::new()).build()?;
/// let load = cache.get_or_load("stock:42", |lead| async move {
///     assert!(lead.fence().is_some());
///     let stock = tokio::select! {
///         stock = async { 0 } => stock,
///         () = lead.lost() => return Err(BoxError::from("the lease was lost")),
///     };
///     match stock {
///         0 => lead.do_not_store(),
///         _ => lead.expire_after(Duration::from_secs(5)),
///     }
///     Ok(stock)
/// });
/// assert_eq!(load.await?, 0);
/// assert_eq!(cache.get("stock:42").await?, None);
/// # Ok::<_, bellwether::Error>(()) }).unwrap();
/// ```
#[derive(Clone)]
pub struct Lead(Arc<Inner>);

struct Inner {
    lease: Option<Arc<LeaseRecord>>,
    keeping: Mutex<Keeping>,
}

#[derive(Clone, Copy, Default)]
pub(super) struct Keeping {
    pub(super) ttl: Option<Duration>,
    pub(super) stale_while_revalidate: Option<Duration>,
    pub(super) stale_if_error: Option<Duration>,
    pub(super) do_not_store: bool,
}

impl Lead {
    pub(super) fn new(lease: Option<Arc<LeaseRecord>>) -> Self {
        Self(Arc::new(Inner { lease, keeping: Mutex::default() }))
    }

    /// Returns the fence of this load, which is greater than that of each earlier load of this key.
    ///
    /// A system that remembers the greatest fence it has seen, and refuses smaller ones, is safe
    /// from a loader that was suspended and goes on late.
    ///
    /// Returns `None` if the load runs without a lease.
    /// [`Source::Degraded`](super::Source::Degraded) lists the reasons.
    pub fn fence(&self) -> Option<u64> {
        self.0.lease.as_ref().map(|lease| lease.fence())
    }

    /// Completes when the lease is lost. Another process may then load, and this value is most
    /// likely not stored. Never completes without a lease.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing. The method can be called again.
    pub async fn lost(&self) {
        match &self.0.lease {
            Some(lease) => lease.lost().await,
            None => std::future::pending().await,
        }
    }

    /// Sets how long the value is kept, in place of the setting of the cache or the request. Zero
    /// keeps it for 1 ms at most, and [`do_not_store`](Self::do_not_store) stores nothing.
    pub fn expire_after(&self, ttl: Duration) {
        lock(&self.0.keeping).ttl = Some(ttl);
    }

    /// Sets how long the value is served stale while it is refreshed, in place of the
    /// [setting](super::Builder::stale_while_revalidate) of the cache or the request.
    pub fn stale_while_revalidate(&self, window: Duration) {
        lock(&self.0.keeping).stale_while_revalidate = Some(window);
    }

    /// Sets how long the value is kept for the case that its load fails, in place of the
    /// [setting](super::Builder::stale_if_error) of the cache or the request.
    pub fn stale_if_error(&self, window: Duration) {
        lock(&self.0.keeping).stale_if_error = Some(window);
    }

    /// Hands the value to all waiters, and stores nothing.
    pub fn do_not_store(&self) {
        lock(&self.0.keeping).do_not_store = true;
    }

    pub(super) fn keeping(&self) -> Keeping {
        *lock(&self.0.keeping)
    }
}

impl fmt::Debug for Lead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lead").field("fence", &self.fence()).finish_non_exhaustive()
    }
}
