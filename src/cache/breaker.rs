//! A circuit breaker over the backend, so that a broken server costs a request nothing after the first few.
//!
//! Closed, everyone asks the backend. After [`FAILURES`] in a row it opens: nobody asks, and every flight
//! loads for its process alone. After [`PAUSE`] one flight asks for all (a probe); its answer closes the
//! breaker, its failure opens it anew. (M. Nygard, "Release It!", 2007.)
//!
//! Only silence counts: a server that answers with an error costs a round trip and no time-out.

use std::{
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::time::Instant;
use tracing::{info, warn};

use crate::error::{BackendError, BackendErrorKind};

const FAILURES: u32 = 3;
const PAUSE: Duration = Duration::from_millis(250);
/// After this long a probe counts as lost: its flight was cancelled.
const PROBE_LIMIT: Duration = Duration::from_secs(1);

#[derive(Default)]
pub(super) struct Breaker {
    state: Mutex<State>,
    /// Something failed since the last answer. Without it nobody needs the lock, which all flights share.
    troubled: AtomicBool,
}

#[derive(Default)]
struct State {
    /// Failures since the last answer.
    failures: u32,
    /// When the next probe may go, while it is open.
    open_until: Option<Instant>,
    /// Whether the trouble was told.
    told: bool,
}

impl Breaker {
    /// Whether this flight may ask the backend.
    pub(super) fn admits(&self) -> bool {
        if !self.is_troubled() {
            return true;
        }
        let mut state = self.state();
        match state.open_until {
            None => true,
            Some(until) if Instant::now() < until => false,
            Some(_) => {
                state.open_until = Some(Instant::now() + PROBE_LIMIT);
                true
            }
        }
    }

    /// Whether the backend counts as broken.
    pub(super) fn is_open(&self) -> bool {
        self.is_troubled() && self.state().open_until.is_some()
    }

    pub(super) fn answered(&self) {
        if !self.is_troubled() {
            return;
        }
        let mut state = self.state();
        self.troubled.store(false, Ordering::Release);
        if std::mem::take(&mut *state).told {
            drop(state);
            info!("the backend answers again");
        }
    }

    pub(super) fn failed(&self, error: &BackendError) {
        let mut state = self.state();
        self.troubled.store(true, Ordering::Release);
        let silent =
            matches!(error.kind(), BackendErrorKind::Unavailable | BackendErrorKind::Unknown);
        if silent {
            state.failures += 1;
            if state.failures >= FAILURES {
                state.open_until = Some(Instant::now() + PAUSE);
            }
        }
        if !std::mem::replace(&mut state.told, true) {
            drop(state);
            warn!(%error, "degraded: one load for each process and key, and nothing is stored");
        }
    }

    fn is_troubled(&self) -> bool {
        self.troubled.load(Ordering::Acquire)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn silence() -> BackendError {
        BackendError::new(BackendErrorKind::Unknown, "silence")
    }

    #[tokio::test(start_paused = true)]
    async fn it_opens_after_a_few_failures_and_lets_one_probe_through_at_a_time() {
        let breaker = Breaker::default();
        for _ in 0..FAILURES {
            assert!(breaker.admits());
            breaker.failed(&silence());
        }
        assert!(!breaker.admits());
        tokio::time::sleep(PAUSE).await;
        assert!(breaker.admits() && !breaker.admits());
        breaker.failed(&silence());
        assert!(!breaker.admits());
        tokio::time::sleep(PAUSE).await;
        assert!(breaker.admits());
        breaker.answered();
        assert!(breaker.admits() && breaker.admits());
    }

    #[tokio::test(start_paused = true)]
    async fn a_probe_that_is_cancelled_does_not_keep_it_open_for_ever() {
        let breaker = Breaker::default();
        (0..FAILURES).for_each(|_| breaker.failed(&silence()));
        tokio::time::sleep(PAUSE).await;
        assert!(breaker.admits());
        tokio::time::sleep(PROBE_LIMIT).await;
        assert!(breaker.admits());
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_answers_with_errors_is_still_asked() {
        let breaker = Breaker::default();
        for _ in 0..10 {
            breaker.failed(&BackendError::new(BackendErrorKind::Refused, "OOM"));
        }
        assert!(breaker.admits());
    }
}
