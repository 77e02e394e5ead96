//! When to try again.

use std::time::Duration;

/// How long to wait between tries at most, and when to give up.
///
/// Waiting does not mean polling: whoever waits is woken by a push when the lease is released, and by a
/// timer when it runs out. The waits of a strategy are upper bounds in between, and its end is the end of
/// the wait. What wakes earlier uses up no wait: a push, the end of the lease in the way, the look every 5 s,
/// and the pause after a try that failed.
///
/// A closure that makes an iterator of waits is a strategy, so one of your own is a few lines:
///
/// ```
/// use std::{iter, time::Duration};
/// use bellwether::lease::RetryStrategy;
///
/// /// 10, 20, 30 ... milliseconds, twenty times.
/// fn linear() -> impl RetryStrategy {
///     || (1..=20).map(|n| Duration::from_millis(10 * n))
/// }
/// # let _ = linear().waits().count();
/// ```
pub trait RetryStrategy: Send + Sync + 'static {
    /// A fresh run of waits, for one acquisition. When it ends, the acquisition has failed.
    fn waits(&self) -> Box<dyn Iterator<Item = Duration> + Send>;

    /// How long one try may take before it is repeated: 250 ms unless set; for
    /// [several locks](crate::Locks::several) so long for each name.
    ///
    /// It is repeated with the same token, so a try that was granted late is recognised by the next one, and
    /// undone if there is none. (Several locks, [permits](crate::Locks::permits), the locks of a
    /// [`Redlock`](crate::Redlock), and what too few [replicas](crate::error::BackendErrorKind::Unreplicated)
    /// confirmed are tried again with new tokens, and what was granted late is undone.)
    fn try_limit(&self) -> Duration {
        Duration::from_millis(250)
    }
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

/// The strategies that come with the crate: a pace, bounded by count or by time.
///
/// ```
/// use std::time::Duration;
/// use bellwether::lease::{Retry, RetryStrategy};
///
/// let patient = Retry::exponential(Duration::from_millis(20), Duration::from_secs(1)).times(8);
/// assert_eq!(patient.waits().count(), 8);
/// assert_eq!(Retry::never().waits().count(), 0);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Retry {
    pace: Pace,
    times: Option<usize>,
    within: Option<Duration>,
    try_limit: Duration,
}

#[derive(Clone, Copy, Debug)]
enum Pace {
    OnDemand,
    Fixed(Duration),
    Exponential { base: Duration, cap: Duration },
}

impl Retry {
    const fn new(pace: Pace) -> Self {
        Self { pace, times: None, within: None, try_limit: Duration::from_millis(250) }
    }

    /// Try when a push says so, when the lease that is in the way ends, and every 5 s, or as often as a place in an
    /// order must be kept. The default.
    pub const fn on_demand() -> Self {
        Self::new(Pace::OnDemand)
    }

    /// One try, no wait.
    pub const fn never() -> Self {
        Self::on_demand().times(0)
    }

    /// Try at least once in each interval.
    pub const fn fixed(interval: Duration) -> Self {
        Self::new(Pace::Fixed(interval))
    }

    /// Wait a random time from zero to `base`, then to twice that, and so on up to `cap`.
    ///
    /// This is "full jitter" of M. Brooker, "Exponential Backoff and Jitter" (AWS Architecture Blog, 2015).
    pub const fn exponential(base: Duration, cap: Duration) -> Self {
        Self::new(Pace::Exponential { base, cap })
    }

    /// At most so many waits. There may be more tries, for what wakes earlier uses up none (see
    /// [`RetryStrategy`]). A wait [on demand](Self::on_demand) has no end, so of those only 0 is a limit.
    pub const fn times(mut self, times: usize) -> Self {
        self.times = Some(times);
        self
    }

    /// Waits that add up to no more than `limit`.
    pub const fn within(mut self, limit: Duration) -> Self {
        self.within = Some(limit);
        self
    }

    /// How long one try may take (see [`RetryStrategy::try_limit`]).
    pub const fn try_limit(mut self, limit: Duration) -> Self {
        self.try_limit = limit;
        self
    }
}

impl Default for Retry {
    fn default() -> Self {
        Self::on_demand()
    }
}

impl RetryStrategy for Retry {
    fn waits(&self) -> Box<dyn Iterator<Item = Duration> + Send> {
        Box::new(Waits {
            pace: self.pace,
            tries: 0,
            times: self.times.unwrap_or(usize::MAX),
            left: self.within,
        })
    }

    fn try_limit(&self) -> Duration {
        self.try_limit
    }
}

struct Waits {
    pace: Pace,
    tries: usize,
    times: usize,
    left: Option<Duration>,
}

impl Iterator for Waits {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        if self.tries >= self.times {
            return None;
        }
        let wait = match self.pace {
            Pace::OnDemand => Duration::MAX,
            Pace::Fixed(interval) => interval,
            Pace::Exponential { base, cap } => {
                let doublings = u32::try_from(self.tries).unwrap_or(u32::MAX).min(31);
                let bound = base.saturating_mul(1 << doublings).min(cap);
                bound.mul_f64(fastrand::f64())
            }
        };
        self.tries += 1;
        match &mut self.left {
            Some(left) if left.is_zero() => None,
            Some(left) => {
                let wait = wait.min(*left);
                *left -= wait;
                Some(wait)
            }
            None => Some(wait),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn a_bound_by_time_ends_when_the_waits_add_up_to_it() {
        let waits: Vec<_> = Retry::fixed(30 * MS).within(100 * MS).waits().collect();
        assert_eq!(waits, [30 * MS, 30 * MS, 30 * MS, 10 * MS]);
        assert_eq!(Retry::on_demand().within(100 * MS).waits().collect::<Vec<_>>(), [100 * MS]);
    }

    #[test]
    fn exponential_waits_stay_under_their_bounds_and_spread() {
        let strategy = Retry::exponential(10 * MS, 80 * MS).times(40);
        let waits: Vec<_> = strategy.waits().collect();
        for (wait, bound) in waits.iter().zip([10, 20, 40, 80, 80, 80]) {
            assert!(*wait <= bound * MS);
        }
        assert!(waits.iter().all(|wait| *wait <= 80 * MS));
        assert!(
            waits.iter().any(|wait| *wait > 40 * MS) && waits.iter().any(|wait| *wait < 40 * MS)
        );
        assert_eq!(waits.len(), 40);
    }

    #[test]
    fn each_acquisition_starts_anew() {
        let strategy = Retry::fixed(MS).times(2);
        assert_eq!(strategy.waits().count(), 2);
        assert_eq!(strategy.waits().count(), 2);
    }
}
