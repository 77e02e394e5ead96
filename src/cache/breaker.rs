//! A circuit breaker over a [shard](super::shard) of the backend, so that a broken server costs a request nothing after the first few.
//!
//! Closed, everyone asks the backend. After [`FAILURES`] in a row it opens: nobody asks, and every flight
//! loads for its process alone; who waits for another process stops waiting, for nothing can be pushed.
//! After [`PAUSE`] one flight asks for all (a probe); its answer closes the breaker, its failure opens it
//! anew. (M. Nygard, "Release It!", 2007.)
//!
//! Only silence counts: a server that answers with an error costs a round trip and no time-out. Trouble is
//! told when it begins and when it is over, not for each request.

use std::{
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::{sync::Notify, time::Instant};
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
    /// Told when it opens.
    opened: Notify,
}

#[derive(Default)]
struct State {
    /// Failures since the last answer.
    failures: u32,
    /// When the next probe may go, while it is open.
    open_until: Option<Instant>,
    /// The trouble that was told.
    told: Option<Trouble>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Trouble {
    Silence,
    /// It answers, and refuses to be written to; so that it can be read from is no end of it.
    Refusal,
}

/// What the backend was asked, and answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answered {
    Read,
    Write,
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

    /// Completes when it opens; at once, if it is open.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    pub(super) async fn opened(&self) {
        loop {
            // Made before the look, it also completes if it opens between the two.
            let opened = self.opened.notified();
            if self.is_open() {
                return;
            }
            opened.await;
        }
    }

    pub(super) fn answered(&self, what: Answered) {
        if !self.is_troubled() {
            return;
        }
        let mut state = self.state();
        state.failures = 0;
        state.open_until = None;
        let over = match state.told {
            Some(Trouble::Refusal) => what == Answered::Write,
            Some(Trouble::Silence) => true,
            None => false,
        };
        if over {
            state.told = None;
        }
        self.troubled.store(state.told.is_some(), Ordering::Release);
        if over {
            drop(state);
            info!("the backend works again");
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
                let closed = state.open_until.replace(Instant::now() + PAUSE).is_none();
                if closed {
                    self.opened.notify_waiters();
                }
            }
        }
        let trouble = if silent { Trouble::Silence } else { Trouble::Refusal };
        let told = state.told.is_some();
        // A refusal is the longer trouble: reading alone does not end it.
        if !told || trouble == Trouble::Refusal {
            state.told = Some(trouble);
        }
        if !told {
            drop(state);
            warn!(error = %crate::error::Chain(&error), "degraded: one load for each process and key, and nothing is stored");
        }
    }

    /// Whether something failed since the last answer.
    pub(super) fn is_troubled(&self) -> bool {
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
        breaker.answered(Answered::Read);
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

    /// Told anew with each request, a full server would fill the log: it can be read, and refuses a claim.
    #[tokio::test(start_paused = true)]
    async fn a_server_that_can_only_be_read_is_one_trouble() {
        let breaker = Breaker::default();
        let told = || breaker.state().told.is_some();
        breaker.failed(&BackendError::new(BackendErrorKind::Refused, "OOM"));
        breaker.answered(Answered::Read);
        assert!(told());
        breaker.answered(Answered::Write);
        assert!(!told());
        breaker.failed(&silence());
        breaker.answered(Answered::Read);
        assert!(!told());
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_waits_is_told_that_it_opens() {
        let breaker = std::sync::Arc::new(Breaker::default());
        let theirs = breaker.clone();
        let waiting = tokio::spawn(async move { theirs.opened().await });
        tokio::time::sleep(PAUSE).await;
        assert!(!waiting.is_finished());
        (0..FAILURES).for_each(|_| breaker.failed(&silence()));
        waiting.await.unwrap();
        breaker.opened().await;
    }
}
