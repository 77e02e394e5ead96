//! Releases of which no push tells, although the subscription stands.
//!
//! A process without the right to publish tells no waiter of its releases. The waiters of other
//! processes learn of them by a look, and know nothing of that right beforehand. So a process whose
//! waiters queue relies on pushes once one of them has told it of a release. Until then it looks at
//! short intervals, [`LOOKS`] times at most. After a release that no push told of, it looks so
//! again, and for [`DOUBT`] at least.
//!
//! The lease of an entry tells itself that its holder may not publish. So the waiters for a load
//! look at short intervals only after a release that no push told of.

use std::{
    sync::{Mutex, MutexGuard},
    time::Duration,
};

use tokio::time::Instant;

use crate::sync::lock;

/// How many looks at queues are spent on a process that no push has told of a release: about seven
/// seconds of one wait.
const LOOKS: u32 = 100;
/// How long pushes are not relied on after a release without one, whatever other pushes tell.
const DOUBT: Duration = Duration::from_secs(60);
/// The longest interval between looks meanwhile.
const INTERVAL: Duration = Duration::from_millis(80);
/// The least interval for each queue, so that many queues do not cost more than few.
const SHARE: Duration = Duration::from_millis(10);

/// What one engine knows of releases that no push tells of.
pub(super) struct Untold(Mutex<State>);

struct State {
    /// When the doubt ends that the last untold release has begun.
    until: Option<Instant>,
    /// How many looks are left before pushes are relied on without proof.
    looks: u32,
}

impl Default for Untold {
    fn default() -> Self {
        Self(Mutex::new(State { until: None, looks: LOOKS }))
    }
}

impl Untold {
    /// Notes a release that no push told of.
    pub(super) fn note(&self) {
        *self.state() = State { until: Some(Instant::now() + DOUBT), looks: LOOKS };
    }

    /// Notes that a push told of a release.
    ///
    /// During a doubt it proves nothing: a request of this process may have handed over what an
    /// untold release left, and holders of both kinds may exist.
    pub(super) fn told(&self) {
        let mut state = self.state();
        if !state.is_doubted() {
            state.looks = 0;
        }
    }

    /// Counts a look at queues.
    pub(super) fn looked(&self) {
        let mut state = self.state();
        if !state.is_doubted() {
            state.looks = state.looks.saturating_sub(1);
        }
    }

    /// Returns the interval between looks at this many queues, if pushes are not relied on.
    pub(super) fn queue_interval(&self, queues: usize) -> Option<Duration> {
        let is_relied_on = {
            let state = self.state();
            state.looks == 0 && !state.is_doubted()
        };
        let share = SHARE.saturating_mul(u32::try_from(queues).unwrap_or(u32::MAX));
        (!is_relied_on).then(|| jittered(INTERVAL.max(share)))
    }

    /// Returns the interval between looks at a load, if releases may be untold at present.
    pub(super) fn load_interval(&self) -> Option<Duration> {
        self.state().is_doubted().then(|| jittered(INTERVAL))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.0)
    }
}

impl State {
    fn is_doubted(&self) -> bool {
        self.until.is_some_and(|until| Instant::now() < until)
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

    /// Returns how long looks last at most while nothing is told.
    async fn looks(untold: &Untold) -> Duration {
        let begun = Instant::now();
        while let Some(interval) = untold.queue_interval(1) {
            assert!((60 * MS..=INTERVAL).contains(&interval), "{interval:?}");
            advance(interval).await;
            untold.looked();
        }
        begun.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn the_looks_of_a_process_end_without_a_proof() {
        let untold = Untold::default();
        assert_eq!(untold.load_interval(), None);
        let lasted = looks(&untold).await;
        assert!(lasted >= 60 * MS * LOOKS && lasted <= INTERVAL * LOOKS, "{lasted:?}");
        untold.note();
        assert!(untold.load_interval().is_some());
        let lasted = looks(&untold).await - DOUBT;
        assert!(lasted >= 59 * MS * LOOKS && lasted <= INTERVAL * (LOOKS + 1), "{lasted:?}");
        assert_eq!(untold.load_interval(), None);
    }

    /// A holder that may publish and one that may not take turns. The push of the former does not
    /// hide the latter.
    #[tokio::test(start_paused = true)]
    async fn an_untold_release_outlasts_a_told_one() {
        let untold = Untold::default();
        untold.told();
        assert_eq!(untold.queue_interval(1), None);
        untold.note();
        untold.told();
        advance(DOUBT - MS).await;
        assert!(untold.queue_interval(1).is_some());
        advance(MS).await;
        assert!(untold.queue_interval(1).is_some(), "it was not told of a release since");
        untold.told();
        assert_eq!(untold.queue_interval(1), None);
    }
}
