use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use crate::lease::LeaseRecord;

/// What a loader is given: the lease that it runs under, and a say in how its value is kept.
///
/// Clones are the same lead; dropping it means nothing.
#[derive(Clone)]
pub struct Lead(Arc<Inner>);

struct Inner {
    lease: Option<Arc<LeaseRecord>>,
    keeping: Mutex<Keeping>,
}

#[derive(Clone, Copy, Default)]
pub(super) struct Keeping {
    pub(super) ttl: Option<Duration>,
    pub(super) do_not_store: bool,
}

impl Lead {
    /// A lead under a lease, or without one.
    pub(super) fn new(lease: Option<Arc<LeaseRecord>>) -> Self {
        Self(Arc::new(Inner { lease, keeping: Mutex::default() }))
    }

    /// The fence of this load: a number that is greater than that of every earlier load of this key.
    ///
    /// A system that remembers the greatest fence it has seen, and refuses smaller ones, is safe from a
    /// loader that was suspended and comes back late. None, if the load runs without a lease;
    /// [`Source::Degraded`](super::Source::Degraded) says why one does.
    pub fn fence(&self) -> Option<u64> {
        self.0.lease.as_ref().map(|lease| lease.fence())
    }

    /// Completes when the lease is lost: someone else may be loading by now, and this value will most
    /// likely not be stored. Never, if there is no lease.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing; it can be asked for again.
    pub async fn lost(&self) {
        match &self.0.lease {
            Some(lease) => lease.lost().await,
            None => std::future::pending().await,
        }
    }

    /// Keeps the value for this long instead of what the cache or the request says. Zero keeps it for 1 ms at
    /// most; [`do_not_store`](Self::do_not_store) stores nothing.
    pub fn expire_after(&self, ttl: Duration) {
        self.keep(|keeping| keeping.ttl = Some(ttl));
    }

    /// Hands the value to everyone who waits, and stores nothing.
    pub fn do_not_store(&self) {
        self.keep(|keeping| keeping.do_not_store = true);
    }

    pub(super) fn keeping(&self) -> Keeping {
        *self.0.keeping.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn keep(&self, change: impl FnOnce(&mut Keeping)) {
        change(&mut self.0.keeping.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

impl fmt::Debug for Lead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lead").field("fence", &self.fence()).finish_non_exhaustive()
    }
}
