//! The settings for loads that fail, or find nothing.

use std::{sync::Arc, time::Duration};

use super::Builder;
use crate::{
    cache::{AfterFailure, negative::Negative},
    error::Error,
};

impl<V: Clone + Send + Sync + 'static, C> Builder<V, C> {
    /// Sets what follows a failed load.
    ///
    /// By default, a key [backs off](AfterFailure::BACK_OFF) while a stale value stands in for the
    /// load. Without such a value no failure is remembered, and the next caller loads.
    ///
    /// A [`BackOff`](AfterFailure::BackOff) begins with 1 ms at least, and waits for no longer than
    /// a day. A [`RetryAfter`](AfterFailure::RetryAfter) is from 1 ms to an hour. A request or a
    /// [`Lead`](crate::cache::Lead) is not checked: less than 1 ms does not back off.
    ///
    /// This setting holds with and without a stale value. Without one, callers get the failure of
    /// the last load until its time is over: with its type by an [error codec](Self::error_codec),
    /// otherwise as [`BackingOff`](crate::ErrorKind::BackingOff).
    pub fn after_failure(mut self, rule: AfterFailure) -> Self {
        self.settings.options.after_failure = Some(rule);
        self
    }

    /// Sets what follows a failed load by its error. `None` leaves it to the
    /// [setting](Self::after_failure).
    ///
    /// The policy is asked for each load that failed, panicked or took too long, and may be asked
    /// twice. An error that is the mistake of one caller should
    /// [load again](AfterFailure::LoadAgain), so that it does not block the others. A loader may
    /// overrule the policy by [`Lead::after_failure`](crate::cache::Lead::after_failure).
    pub fn failure_policy(
        mut self,
        policy: impl Fn(&Error) -> Option<AfterFailure> + Send + Sync + 'static,
    ) -> Self {
        self.failure_policy = Some(Arc::new(policy));
        self
    }

    /// Sets how long a value is kept that says that there is none, such as a page that is not
    /// found. Defaults to the [`ttl`](Self::ttl).
    ///
    /// Such a value is gone when its time is over. It is not served stale, neither while it is
    /// refreshed nor in place of a failure. A loader may set other times by its
    /// [`Lead`](crate::cache::Lead). A request that inserts a value with a time to live of its own
    /// keeps that.
    ///
    /// ```
    /// use std::time::Duration;
    /// use bellwether::{Cache, MemoryBackend};
    ///
    /// let cache: Cache<(u16, String)> = Cache::builder(MemoryBackend::new())
    ///     .ttl(Duration::from_secs(600))
    ///     .negative_ttl(Duration::from_secs(5), |(status, _)| *status == 404)
    ///     .build()?;
    /// # Ok::<_, bellwether::Error>(())
    /// ```
    pub fn negative_ttl(
        mut self,
        ttl: Duration,
        is_negative: impl Fn(&V) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.negative = Some(Negative::new(ttl, is_negative));
        self
    }
}

impl<T: Clone + Send + Sync + 'static, C> Builder<Option<T>, C> {
    /// Sets how long `None` is kept: the [`negative_ttl`](Self::negative_ttl) of it.
    ///
    /// ```
    /// # let mut builder = tokio::runtime::Builder::new_current_thread();
    /// # builder.enable_time().build().unwrap().block_on(async {
    /// use std::time::Duration;
    /// use bellwether::{BoxError, Cache, MemoryBackend};
    ///
    /// let cache: Cache<Option<u64>> = Cache::builder(MemoryBackend::new())
    ///     .ttl(Duration::from_secs(600))
    ///     .none_ttl(Duration::from_secs(5))
    ///     .build()?;
    /// let load = |_lead| async { Ok::<_, BoxError>(None) };
    /// assert_eq!(cache.get_or_load("stock:42", load).await?, None);
    /// assert!(cache.remaining("stock:42").await?.unwrap() <= Duration::from_secs(5));
    /// # Ok::<_, bellwether::Error>(()) }).unwrap();
    /// ```
    pub fn none_ttl(self, ttl: Duration) -> Self {
        self.negative_ttl(ttl, Option::is_none)
    }
}
