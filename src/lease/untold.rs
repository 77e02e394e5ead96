//! Releases of which no push tells, although the subscription stands.
//!
//! A process without the right to publish tells no waiter of its releases. It says so beside its
//! locks and in the leases of its entries, and the backend tells the waiters when to look. That may
//! fail, and rights may change meanwhile. So a process that found a release by itself does not rely
//! on pushes for [`DOUBT`].

use std::{sync::Mutex, time::Duration};

use tokio::time::Instant;

use crate::sync::lock;

/// How long pushes are not relied on after a release without one, whatever other pushes tell:
/// holders of both kinds may exist.
const DOUBT: Duration = Duration::from_secs(60);
/// The longest interval between looks meanwhile.
const INTERVAL: Duration = Duration::from_millis(80);
/// The least interval for each queue, so that many queues do not cost more than few.
const SHARE: Duration = Duration::from_millis(10);

/// When the doubt of one engine ends that the last untold release has begun.
#[derive(Default)]
pub(super) struct Untold(Mutex<Option<Instant>>);

impl Untold {
    /// Notes a release that no push told of.
    pub(super) fn note(&self) {
        *lock(&self.0) = Some(Instant::now() + DOUBT);
    }

    /// Returns the interval between looks at this many queues, if pushes are not relied on.
    pub(super) fn queue_interval(&self, queues: usize) -> Option<Duration> {
        let share = SHARE.saturating_mul(u32::try_from(queues).unwrap_or(u32::MAX));
        self.is_doubted().then(|| jittered(INTERVAL.max(share)))
    }

    /// Returns the interval between looks at a load, if pushes are not relied on.
    pub(super) fn load_interval(&self) -> Option<Duration> {
        self.is_doubted().then(|| jittered(INTERVAL))
    }

    fn is_doubted(&self) -> bool {
        lock(&self.0).is_some_and(|until| Instant::now() < until)
    }
}

fn jittered(interval: Duration) -> Duration {
    interval.mul_f64(0.75 + fastrand::f64() / 4.0)
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[tokio::test(start_paused = true)]
    async fn a_doubt_ends_a_minute_after_the_last_untold_release() {
        let untold = Untold::default();
        for _ in 0..2 {
            assert_eq!((untold.queue_interval(1), untold.load_interval()), (None, None));
            untold.note();
            advance(DOUBT / 2).await;
            untold.note();
            advance(DOUBT - MS).await;
            for interval in [untold.queue_interval(8), untold.load_interval()] {
                assert!(interval.is_some_and(|it| (60 * MS..=80 * MS).contains(&it)));
            }
            assert!(untold.queue_interval(100).is_some_and(|it| it >= 750 * MS));
            advance(MS).await;
        }
    }
}
