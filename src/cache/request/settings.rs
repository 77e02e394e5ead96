//! The settings of a request, in place of those of its cache.

use std::{sync::Arc, time::Duration};

use super::Request;
#[cfg(feature = "http")]
use crate::backend::Tagged;
use crate::cache::{AfterFailure, EarlyRefresh, settings::Options};

impl<V: Clone + Send + Sync + 'static> Request<V> {
    /// Sets how long the value is kept, if this caller is the one that loads it. Zero keeps it for
    /// 1 ms at most, and [`Lead::do_not_store`](crate::cache::Lead::do_not_store) stores nothing.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.options_mut().ttl = ttl;
        self
    }

    /// Sets by which part of it the time to live is shortened at most, if this caller is the one
    /// that loads the value. A part outside of 0 to 1 counts as the nearest of the two.
    ///
    /// Everything else is as for [`Builder::ttl_jitter`](crate::cache::Builder::ttl_jitter).
    pub fn ttl_jitter(mut self, part: f64) -> Self {
        self.options_mut().ttl_jitter = part;
        self
    }

    /// Sets how long this caller waits for a load while a value is kept for failures. After it the
    /// caller is served the old value, and the load goes on.
    ///
    /// Everything else is as for
    /// [`Builder::serve_stale_after`](crate::cache::Builder::serve_stale_after).
    pub fn serve_stale_after(mut self, limit: Duration) -> Self {
        self.options_mut().serve_stale_after = Some(limit);
        self
    }

    /// Sets how long the value is served stale while it is refreshed, if this caller is the one
    /// that loads it. A stored value is then served stale to this caller for no longer either. Zero
    /// asks for a fresh value.
    ///
    /// Everything else is as for
    /// [`Builder::stale_while_revalidate`](crate::cache::Builder::stale_while_revalidate).
    pub fn stale_while_revalidate(mut self, window: Duration) -> Self {
        self.options_mut().stale_while_revalidate = window;
        self.options_mut().rules.stale = window;
        self
    }

    /// Sets how long the value is kept for the case that its load fails, if this caller is the one
    /// that loads it. A stored value stands in for a failure for no longer either.
    ///
    /// Everything else is as for
    /// [`Builder::stale_if_error`](crate::cache::Builder::stale_if_error).
    pub fn stale_if_error(mut self, window: Duration) -> Self {
        self.options_mut().stale_if_error = window;
        self.options_mut().rules.error = window;
        self
    }

    /// Sets when this caller refreshes the value before its time to live is over.
    pub fn early_refresh(mut self, early: EarlyRefresh) -> Self {
        self.options_mut().rules.early = early;
        self
    }

    /// Sets what follows a failed load, if this caller is the one that loads.
    ///
    /// Everything else is as for [`Builder::after_failure`](crate::cache::Builder::after_failure).
    pub fn after_failure(mut self, rule: AfterFailure) -> Self {
        self.options_mut().after_failure = Some(rule);
        self
    }

    /// Sets how long the load may take, if this caller is the one that leads.
    pub fn load_limit(mut self, limit: Duration) -> Self {
        self.options_mut().load_limit = limit;
        self
    }

    /// Sets how long to wait for the load of another process, if this caller is the one that leads.
    pub fn wait_limit(mut self, limit: Duration) -> Self {
        self.options_mut().wait_limit = limit;
        self
    }

    /// Gives the value a tag, if this caller is the one that loads or inserts it.
    ///
    /// Everything else is as for [`Lead::tag`](crate::cache::Lead::tag).
    pub fn tag(mut self, tag: impl Into<Arc<str>>) -> Self {
        self.options_mut().tagged.tags.push(tag.into());
        self
    }

    /// Gives the value tags, with the tag number from before it was read.
    #[cfg(feature = "http")]
    pub(crate) fn tagged(mut self, tagged: Tagged) -> Self {
        self.options_mut().tagged = tagged;
        self
    }

    /// Asks the backend, even if the [local tier](crate::cache::Builder::local) has a copy.
    pub fn skip_local(mut self) -> Self {
        self.options_mut().takes_local = false;
        self
    }

    /// Accepts no copy of the [local tier](crate::cache::Builder::local) that is older than this,
    /// and keeps the copy that this call makes for no longer. So the value has two lives: this one
    /// in the process, and its [`ttl`](Self::ttl) in the fleet. It only shortens
    /// [`max_age`](crate::cache::LocalTier::max_age).
    pub fn max_local_age(mut self, age: Duration) -> Self {
        self.options_mut().rules.copy = age;
        self
    }

    /// Accepts no copy of the [local tier](crate::cache::Builder::local) with a smaller
    /// [fence](crate::cache::Loaded::fence) than this, which an act of any process has returned. So
    /// a process reads at once what another one has written. An answer of the backend needs no
    /// such check.
    ///
    /// ```
    /// # let mut builder = tokio::runtime::Builder::new_current_thread();
    /// # builder.enable_time().build().unwrap().block_on(async {
    /// use bellwether::{BoxError, Cache, MemoryBackend};
    ///
    /// let cache: Cache<u64> = Cache::builder(MemoryBackend::new()).build()?;
    /// let fence = cache.insert("stock:42", &16).await?;
    /// // In another process, which was sent the fence:
    /// let request = cache.request("stock:42").not_older_than(fence);
    /// assert_eq!(*request.load(|_lead| async { Ok::<_, BoxError>(17) }).await?.value(), 16);
    /// # Ok::<_, bellwether::Error>(()) }).unwrap();
    /// ```
    pub fn not_older_than(mut self, fence: u64) -> Self {
        self.options_mut().least_fence = fence;
        self
    }

    /// Accepts a stale value for this long after its time to live, whatever it is stale for.
    #[cfg(feature = "http")]
    pub(crate) fn max_stale(mut self, limit: Duration) -> Self {
        let rules = &mut self.options_mut().rules;
        (rules.stale, rules.error) = (limit, limit);
        self
    }

    /// Sets how long the load may go on after it has announced the head of its value.
    #[cfg(feature = "http")]
    pub(crate) fn rest_limit(mut self, limit: Duration) -> Self {
        self.options_mut().rest_limit = limit;
        self
    }

    /// Sets how long to wait for the load of another process, if that is less than what is set.
    #[cfg(feature = "http")]
    pub(crate) fn wait_limit_below(mut self, limit: Duration) -> Self {
        let options = self.options_mut();
        options.wait_limit = options.wait_limit.min(limit);
        self
    }

    /// Loads the value without a lease, and stores nothing, until its key is used often enough.
    #[cfg(feature = "http")]
    pub(crate) fn min_uses(mut self, uses: Option<crate::cache::CountedUses>) -> Self {
        self.options_mut().min_uses = uses;
        self
    }

    #[cfg(feature = "http")]
    pub(crate) fn sharing(mut self, sharing: crate::cache::Sharing) -> Self {
        self.options_mut().sharing = sharing;
        self
    }

    pub(in crate::cache) fn options_mut(&mut self) -> &mut Options {
        let core = &self.core;
        self.own.get_or_insert_with(|| Box::new(core.settings.options.clone()))
    }
}
