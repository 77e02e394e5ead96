//! The times at which an acquisition tries again.

use std::time::Duration;

use crate::{backend::Leases, random};

/// The longest waits between the tries of an acquisition, and the end of the tries.
///
/// Waiting does not mean polling: a push wakes the waiter when the lease is released, and a timer
/// wakes the waiter when the lease ends. Such an earlier wake uses up no wait. The waits of a
/// strategy are upper bounds between the tries. When the waits end, the acquisition ends.
///
/// A closure that returns an iterator of waits is a strategy:
///
/// ```
/// # fn s() -> impl bellwether::lease::RetryStrategy {
/// || (1..=20).map(|n| std::time::Duration::from_millis(10 * n))
/// # }
/// ```
pub trait RetryStrategy: Send + Sync + 'static {
    /// Returns the waits of one acquisition. When the waits end, the acquisition fails. A wait of
    /// less than 1 ms lasts 1 ms.
    fn waits(&self) -> Box<dyn Iterator<Item = Duration> + Send>;

    /// Returns how long one try may take before the next try. For [several
    /// locks](crate::Locks::several), the limit holds for each name.
    ///
    /// Defaults to `None`. Then a try may take as long as an operation of the backend may take
    /// ([`Leases::time_limit`](crate::backend::Leases::time_limit)), or 250 ms if the backend does
    /// not bound its operations.
    ///
    /// The next try recognises a late grant. For [permits](crate::Locks::permits), for a
    /// [`Redlock`](crate::Redlock), and after a try that too few
    /// [replicas](crate::error::BackendErrorKind::Unreplicated) confirmed, a late grant is undone.
    fn try_limit(&self) -> Option<Duration> {
        None
    }
}

/// The limit of one try, for a backend that does not bound its operations.
const TRY_LIMIT: Duration = Duration::from_millis(250);

pub(crate) fn try_limit(strategy: &dyn RetryStrategy, backend: &dyn Leases) -> Duration {
    let limit = strategy.try_limit().or_else(|| backend.time_limit());
    limit.unwrap_or(TRY_LIMIT)
}

impl<F, I> RetryStrategy for F
where
    F: Fn() -> I + Send + Sync + 'static,
    I: Iterator<Item = Duration> + Send + 'static,
{
    fn waits(&self) -> Box<dyn Iterator<Item = Duration> + Send> {
        Box::new(self())
    }
}

/// The strategies of this crate.
#[derive(Clone, Copy, Debug)]
pub struct Retry {
    /// The first wait. Each further wait is twice as long, up to the longest wait.
    first: Duration,
    longest: Duration,
    /// Whether each wait is shortened to a random part.
    is_random: bool,
    times: usize,
    try_limit: Option<Duration>,
}

impl Retry {
    /// Tries when a push comes, and at the end of the lease in the way. A waiter without a queue
    /// entry also tries every 5 s. This is the default.
    pub const fn on_demand() -> Self {
        Self::fixed(Duration::MAX)
    }

    /// Tries at least once in each interval.
    pub const fn fixed(interval: Duration) -> Self {
        Self {
            first: interval,
            longest: interval,
            is_random: false,
            times: usize::MAX,
            try_limit: None,
        }
    }

    /// Waits a random time from zero to `base`, then to twice that, and so on up to `cap`.
    ///
    /// This is "full jitter" of M. Brooker, "Exponential Backoff and Jitter" (AWS Architecture
    /// Blog, 2015).
    pub const fn exponential(base: Duration, cap: Duration) -> Self {
        Self { first: base, longest: cap, is_random: true, ..Self::on_demand() }
    }

    /// Limits the number of waits. There may be more tries, since an earlier wake uses up no wait:
    /// see [`RetryStrategy`]. The first wait [on demand](Self::on_demand) has no end, so a limit
    /// other than 0 has no effect on that strategy.
    pub const fn times(mut self, times: usize) -> Self {
        self.times = times;
        self
    }

    /// Limits the time of one try: see [`RetryStrategy::try_limit`].
    pub const fn try_limit(mut self, limit: Duration) -> Self {
        self.try_limit = Some(limit);
        self
    }
}

impl RetryStrategy for Retry {
    fn waits(&self) -> Box<dyn Iterator<Item = Duration> + Send> {
        let Self { first, longest, is_random, times, .. } = *self;
        Box::new((0..times).map(move |waits| {
            let doublings = u32::try_from(waits).unwrap_or(u32::MAX).min(31);
            let wait = first.saturating_mul(1 << doublings).min(longest);
            if is_random { random::up_to(wait) } else { wait }
        }))
    }

    fn try_limit(&self) -> Option<Duration> {
        self.try_limit
    }
}
