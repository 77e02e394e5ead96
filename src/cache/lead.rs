//! The lead of a load, which its loader gets: the lease, the entry to replace, and how the value
//! is kept.

use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use tokio::{sync::SetOnce, time::Instant};

use super::{
    AfterFailure, Loaded, Source,
    freshness::{self, Rules},
    outcome::{FlightResult, Head},
};
use crate::{
    backend::{Entry, Tagged},
    lease::Lease,
    sync::lock,
    time::after,
};

/// The lead of a load, which its loader gets. It has the lease and the value to replace, and sets
/// how the new value is kept.
///
/// Clones are the same lead. Dropping a clone has no effect.
pub struct Lead<V>(pub(super) Arc<LeadInner<V>>);

pub(super) struct LeadInner<V> {
    lease: Option<Arc<Lease>>,
    pub(super) previous: Option<Arc<Previous<V>>>,
    keeping: Mutex<Keeping>,
    /// The head of the value, once the loader has announced it.
    pub(super) head: SetOnce<Head>,
}

/// How a value is kept, and what follows a failed load. The request decides what is not set.
#[derive(Clone, Default)]
pub(super) struct Keeping {
    pub(super) ttl: Option<Duration>,
    pub(super) stale_while_revalidate: Option<Duration>,
    pub(super) stale_if_error: Option<Duration>,
    pub(super) do_not_store: bool,
    /// The loader has returned the stored value.
    pub(super) is_unchanged: bool,
    pub(super) after_failure: Option<AfterFailure>,
    /// The tags, with the tag number from before the load.
    pub(super) tagged: Tagged,
}

impl<V> Lead<V> {
    pub(super) fn new(
        lease: Option<Arc<Lease>>,
        previous: Option<Arc<Previous<V>>>,
        tagged: Tagged,
    ) -> Self {
        let keeping = Mutex::new(Keeping { tagged, ..Keeping::default() });
        Self(Arc::new(LeadInner { lease, previous, keeping, head: SetOnce::new() }))
    }

    /// Returns the fence of this load, which is greater than the fence of each earlier load of this
    /// key.
    ///
    /// Returns `None` if the load runs without a lease.
    /// [`Source::Degraded`](super::Source::Degraded) lists the reasons.
    pub fn fence(&self) -> Option<u64> {
        self.0.lease.as_ref().map(|lease| lease.granted.fence)
    }

    /// Completes when the lease is lost. Another process may then load, and the value of this load
    /// is most likely not stored. In a call for many keys, a key also loses its lease when no
    /// caller waits for it any longer. Never completes without a lease.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing. The method can be called again.
    ///
    /// # Examples
    ///
    /// [`Load`](super::Load) has one.
    pub async fn lost(&self) {
        match &self.0.lease {
            Some(lease) => lease.lost().await,
            None => std::future::pending().await,
        }
    }

    /// Returns the stored value that this load replaces, as [`Stale`](Source::Stale), or in an
    /// outage as [`Degraded`](Source::Degraded). In an early refresh the value is still fresh.
    /// Returns `None` if no stored value can be decoded.
    ///
    /// A loader can ask its origin for changes only, such as with an `ETag`. Keep the `ETag` in the
    /// value. If nothing has changed, return the old value as [unchanged](Self::unchanged).
    pub fn stale(&self) -> Option<Loaded<V>>
    where
        V: Clone,
    {
        Some(self.0.previous.as_ref()?.loaded.clone())
    }

    /// Marks the stored value as unchanged, and returns the value for the loader. The windows begin
    /// anew, as with each load, the tags stay, and the load counts as
    /// [unchanged](super::Stats::unchanged).
    pub fn unchanged(&self, stale: Loaded<V>) -> V {
        let mut keeping = self.keeping();
        keeping.is_unchanged = true;
        if let Some(previous) = &self.0.previous
            && let Some(tagged) = &previous.tagged
        {
            keeping.tagged.tags.extend_from_slice(&tagged.tags);
        }
        stale.value
    }

    /// Sets how long the value is fresh, in place of the setting of the cache or the request. Zero
    /// means at most 1 ms. To store nothing, use [`do_not_store`](Self::do_not_store).
    pub fn expire_after(&self, ttl: Duration) {
        self.keeping().ttl = Some(ttl);
    }

    /// Sets how long the value is served stale while it is refreshed, in place of the
    /// [setting](super::Builder::stale_while_revalidate) of the cache or the request.
    pub fn stale_while_revalidate(&self, window: Duration) {
        self.keeping().stale_while_revalidate = Some(window);
    }

    /// Sets how long the value is kept for failed loads, in place of the
    /// [setting](super::Builder::stale_if_error) of the cache or the request.
    pub fn stale_if_error(&self, window: Duration) {
        self.keeping().stale_if_error = Some(window);
    }

    /// Sets what follows if this load fails, in place of the setting of the cache, such as the
    /// `Retry-After` of an origin.
    pub fn after_failure(&self, rule: AfterFailure) {
        self.keeping().after_failure = Some(rule);
    }

    /// Returns the value to all waiters, and stores nothing.
    pub fn do_not_store(&self) {
        self.keeping().do_not_store = true;
    }

    /// Gives the value a tag, by which [`invalidate_tag`](super::Cache::invalidate_tag) removes the
    /// value. A loader may call this at any time, with tags that it has read from its origin. If a
    /// tag is invalidated while the load runs, the value counts as invalidated.
    ///
    /// The cache must be built with [`tags`](super::Builder::tags), which has the limits. Otherwise
    /// the value is returned and not stored, and a warning says why.
    pub fn tag(&self, tag: impl Into<Arc<str>>) {
        let tag = tag.into();
        self.keeping().tagged.tags.push(tag);
    }

    /// Returns the source of the value for the caller that leads.
    pub(crate) fn source(&self) -> Source {
        if self.0.lease.is_some() { Source::Led } else { Source::Degraded }
    }

    /// Returns the end of a flight for the callers that get its head.
    pub(super) fn headed(&self, head: &Head) -> FlightResult<V> {
        FlightResult::Head(head.clone(), self.source())
    }

    /// Locks the settings of the value. No code of a user may run under this lock.
    pub(super) fn keeping(&self) -> MutexGuard<'_, Keeping> {
        lock(&self.0.keeping)
    }
}

impl<V> Clone for Lead<V> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<V> fmt::Debug for Lead<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lead").field("fence", &self.fence()).finish_non_exhaustive()
    }
}

/// The entry that a load replaces.
pub(super) struct Previous<V> {
    pub(super) fence: u64,
    /// The value, as callers get it if the load fails.
    pub(super) loaded: Loaded<V>,
    tagged: Option<Arc<Tagged>>,
    /// Until when callers get the value if the load fails.
    on_error_until: Instant,
}

impl<V> Previous<V> {
    pub(super) fn new(entry: &Entry, rules: &Rules, loaded: Loaded<V>) -> Arc<Self> {
        let left = freshness::left_on_error(entry, rules).unwrap_or_default();
        let on_error_until = after(Instant::now(), left);
        let tagged = entry.tagged.clone();
        Arc::new(Self { fence: entry.fence, loaded, tagged, on_error_until })
    }

    /// Returns the value, if it may be served now in place of a failure.
    pub(super) fn fallback(&self) -> Option<Loaded<V>>
    where
        V: Clone,
    {
        self.left_on_error().map(|_| self.loaded.clone())
    }

    /// Returns how much longer the value may be served in place of a failure.
    pub(super) fn left_on_error(&self) -> Option<Duration> {
        let left = self.on_error_until.checked_duration_since(Instant::now())?;
        (!left.is_zero()).then_some(left)
    }
}
