//! Releases of which no push tells, although the subscription stands.
//!
//! A process without the right to publish tells no waiter of its releases. The waiters of other
//! processes learn of them by a look. A process whose look finds one expects more of them, and
//! looks at short intervals for a while.

use std::{sync::Mutex, time::Duration};

use tokio::time::Instant;

use crate::sync::lock;

/// How long pushes are not relied on after a release without one.
const DOUBT: Duration = Duration::from_secs(60);
/// The longest interval between looks meanwhile.
const INTERVAL: Duration = Duration::from_millis(80);
/// The least interval for each queue, so that many queues do not cost more than few.
const SHARE: Duration = Duration::from_millis(10);

/// The releases that no push told of.
#[derive(Default)]
pub(super) struct Untold(Mutex<Option<Instant>>);

impl Untold {
    /// Notes a release that no push told of.
    pub(super) fn note(&self) {
        *lock(&self.0) = Some(Instant::now() + DOUBT);
    }

    /// Returns the interval between looks, if releases may be untold at present.
    pub(super) fn interval(&self, queues: usize) -> Option<Duration> {
        let until = *lock(&self.0);
        until.filter(|until| Instant::now() < *until)?;
        let share = SHARE.saturating_mul(u32::try_from(queues).unwrap_or(u32::MAX));
        Some(INTERVAL.max(share).mul_f64(0.75 + fastrand::f64() / 4.0))
    }
}
