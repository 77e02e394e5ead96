//! A circuit breaker over a [shard](super::shard), so that a broken server slows down no request
//! after the first few (M. Nygard, "Release It!", 2007).
//!
//! While the breaker is closed, each flight asks the backend. After [`FAILURES`] in a row it opens:
//! each flight loads for its process alone, and stops waiting for other processes, because nothing
//! can be pushed. After [`PAUSE`] one flight asks as a probe. Its answer closes the breaker, and
//! its failure opens it again.
//!
//! Only silence opens the breaker: a server that answers with an error costs a round trip and no
//! time-out. A grant that too few replicas confirmed costs their time, so after the first one no
//! flight claims. A task claims as the probe, and reads go on. The same holds while a server
//! refuses `WAIT`: each claim is in vain until the right is given, which the next probe finds.
//!
//! The log tells when trouble begins and ends, not each request that meets it.

use std::{
    sync::{
        Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{sync::Notify, time::Instant};
use tracing::{info, warn};

use crate::{
    error::{BackendError, BackendErrorKind, Chain},
    sync::lock,
};

const FAILURES: u32 = 3;
const PAUSE: Duration = Duration::from_millis(250);
/// After this time a probe counts as lost, because its flight was cancelled.
const PROBE_LIMIT: Duration = Duration::from_secs(1);

#[derive(Default)]
pub(super) struct Breaker {
    state: Mutex<State>,
    /// There was a failure since the last answer. Otherwise no flight needs the lock, which all
    /// share.
    troubled: AtomicBool,
    /// Notified when the breaker opens.
    opened: Notify,
}

#[derive(Default)]
struct State {
    /// Failures since the last answer.
    failures: u32,
    /// While the breaker is open, the time of the next probe.
    open_until: Option<Instant>,
    /// While replicas confirm no grants, the time of the next probe.
    unconfirmed_until: Option<Instant>,
    /// The outage, if there was a failure since the last answer.
    outage: Option<Outage>,
    /// The trouble that was logged.
    logged: Option<Trouble>,
}

/// The time between a failure and the next answer. No two have the same number in a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Outage(u64);

impl Outage {
    pub(super) fn next() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Trouble {
    /// The backend does not answer.
    Silence,
    /// The backend refuses writes. An answer to a read does not end this.
    Refusal,
}

/// The kind of request that the backend has answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequestKind {
    Read,
    Write,
}

impl Breaker {
    /// Returns whether this flight may ask the backend.
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

    /// Returns whether this flight may claim a lease, or is to [probe](Self::is_unconfirmed).
    pub(super) fn admits_claim(&self) -> bool {
        if !self.is_troubled() {
            return true;
        }
        let mut state = self.state();
        match (state.open_until, state.unconfirmed_until) {
            (Some(_), _) => false,
            (None, None) => true,
            (None, Some(until)) if Instant::now() < until => false,
            (None, Some(_)) => {
                state.unconfirmed_until = Some(Instant::now() + PROBE_LIMIT);
                true
            }
        }
    }

    /// Returns whether replicas confirm no grants.
    pub(super) fn is_unconfirmed(&self) -> bool {
        self.is_troubled() && self.state().unconfirmed_until.is_some()
    }

    /// Returns whether the backend counts as broken.
    pub(super) fn is_open(&self) -> bool {
        self.is_troubled() && self.state().open_until.is_some()
    }

    /// Returns whether the backend did not answer the last request.
    pub(super) fn is_silent(&self) -> bool {
        self.is_troubled() && self.state().failures > 0
    }

    /// Completes when the breaker opens, or at once if it is open.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    pub(super) async fn opened(&self) {
        loop {
            // Created before the check, it also completes if the breaker opens between the two.
            let opened = self.opened.notified();
            if self.is_open() {
                return;
            }
            opened.await;
        }
    }

    pub(super) fn answered(&self, what: RequestKind) {
        if !self.is_troubled() {
            return;
        }
        let mut state = self.state();
        state.failures = 0;
        state.open_until = None;
        state.outage = None;
        if what == RequestKind::Write {
            state.unconfirmed_until = None;
        }
        let over = match state.logged {
            Some(Trouble::Refusal) => what == RequestKind::Write,
            Some(Trouble::Silence) => true,
            None => false,
        };
        if over {
            state.logged = None;
        }
        self.troubled.store(state.logged.is_some(), Ordering::Release);
        if over {
            drop(state);
            info!("the backend works again");
        }
    }

    pub(super) fn failed(&self, error: &BackendError) {
        let mut state = self.state();
        self.troubled.store(true, Ordering::Release);
        state.outage.get_or_insert_with(Outage::next);
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
        if error.kind() == BackendErrorKind::Unreplicated {
            state.unconfirmed_until = Some(Instant::now() + PAUSE);
        }
        let trouble = if silent { Trouble::Silence } else { Trouble::Refusal };
        let is_logged = state.logged.is_some();
        // A refusal lasts longer: an answer to a read does not end it.
        if !is_logged || trouble == Trouble::Refusal {
            state.logged = Some(trouble);
        }
        if !is_logged {
            drop(state);
            let what = "degraded: one load for each process and key, and nothing is stored";
            warn!(error = %Chain(&error), "{what}");
        }
    }

    /// Returns the outage that lasts now. The first answer, also one to a read, ends it.
    pub(super) fn outage(&self) -> Option<Outage> {
        if self.is_troubled() { self.state().outage } else { None }
    }

    /// Returns whether there was a failure since the last answer.
    pub(super) fn is_troubled(&self) -> bool {
        self.troubled.load(Ordering::Acquire)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn silence() -> BackendError {
        BackendError::new(BackendErrorKind::Unknown, "silence")
    }

    #[tokio::test(start_paused = true)]
    async fn the_breaker_opens_after_a_few_failures_and_admits_one_probe_at_a_time() {
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
        breaker.answered(RequestKind::Read);
        assert!(breaker.admits() && breaker.admits());
    }

    /// Each miss waited for the replicas, for as long as they were away.
    #[tokio::test(start_paused = true)]
    async fn after_an_unconfirmed_grant_one_probe_at_a_time_claims_and_all_may_read() {
        let breaker = Breaker::default();
        let unconfirmed = BackendError::new(BackendErrorKind::Unreplicated, "one is away");
        assert!(breaker.admits_claim());
        for _ in 0..2 * FAILURES {
            breaker.failed(&unconfirmed);
            breaker.answered(RequestKind::Read);
            assert!(!breaker.admits_claim() && breaker.admits() && !breaker.is_open());
            assert!(breaker.is_unconfirmed());
            tokio::time::sleep(PAUSE).await;
            assert!(breaker.admits_claim() && !breaker.admits_claim());
        }
        breaker.answered(RequestKind::Write);
        assert!(breaker.admits_claim() && breaker.admits_claim() && !breaker.is_unconfirmed());
    }

    #[tokio::test(start_paused = true)]
    async fn a_cancelled_probe_does_not_keep_the_breaker_open() {
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

    /// A full server can be read and refuses claims. Logged for each request, it would fill the
    /// log.
    #[tokio::test(start_paused = true)]
    async fn a_server_that_refuses_writes_is_one_trouble() {
        let breaker = Breaker::default();
        let logged = || breaker.state().logged.is_some();
        breaker.failed(&BackendError::new(BackendErrorKind::Refused, "OOM"));
        breaker.answered(RequestKind::Read);
        assert!(logged());
        breaker.answered(RequestKind::Write);
        assert!(!logged());
        breaker.failed(&silence());
        breaker.answered(RequestKind::Read);
        assert!(!logged());
    }

    #[tokio::test(start_paused = true)]
    async fn each_answer_ends_the_outage() {
        let breaker = Breaker::default();
        assert_eq!(breaker.outage(), None);
        let mut before = None;
        for error in [silence(), BackendError::new(BackendErrorKind::Refused, "OOM"), silence()] {
            breaker.failed(&error);
            let outage = breaker.outage();
            assert!(outage.is_some() && outage != before);
            breaker.failed(&error);
            assert_eq!(breaker.outage(), outage);
            breaker.answered(RequestKind::Read);
            assert_eq!(breaker.outage(), None);
            before = outage;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_waiter_is_told_that_the_breaker_opens() {
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
