//! A circuit breaker over each [shard](Shard) of a backend. A shard is a part that fails alone,
//! such as a server or a node of a cluster. The breaker lets a broken server slow down only the
//! first few requests (M. Nygard, "Release It!", 2007).
//!
//! Only silence opens the breaker, because each silence costs a time-out. While the breaker is
//! open, each flight loads for its process alone, and waits for no other process, because nothing
//! can be pushed. After [`PAUSE`] one flight asks the shard as a probe.
//!
//! A grant that too few replicas confirm costs the time-out of the confirmation. So after the first
//! such grant, one flight claims now and then as a probe, and the other flights load for their
//! process alone. Reads go on.

use std::{
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::{
    sync::{Notify, Semaphore},
    time::Instant,
};
use tracing::{field, info, warn};

use super::outage::Outage;
use crate::{
    error::{BackendError, BackendErrorKind, Chain},
    observe::{Counters, Rarely},
    sync::lock,
};

/// After this many silences in a row, the breaker opens.
const FAILURES: u32 = 3;
/// How long an open breaker waits before the next probe.
const PAUSE: Duration = Duration::from_millis(250);
/// After this time without an answer, a probe counts as lost, because its flight was cancelled.
const PROBE_LIMIT: Duration = Duration::from_secs(1);

#[derive(Default)]
pub(super) struct Breaker {
    trouble: Mutex<Option<Trouble>>,
    /// There is trouble. A flag beside the lock, so that flights take no common lock without need.
    troubled: AtomicBool,
    /// Notified when the breaker opens.
    opened: Notify,
}

/// The state from a failure to the answer that ends it.
struct Trouble {
    outage: Outage,
    /// The number of silences since the last answer.
    silences: u32,
    /// While the breaker is open, the time of the next probe.
    open_until: Option<Instant>,
    /// While replicas confirm no grants, the time of the next probe.
    unconfirmed_until: Option<Instant>,
    since: Instant,
    /// Limits the lines in the log.
    logged: Rarely,
    /// How many callers had been served without the backend before the trouble.
    degraded: u64,
}

/// Returns whether a request may be sent, because there is no time of a next probe, or the time has
/// come and the request is the probe.
fn admits(until: &mut Option<Instant>) -> bool {
    let Some(until) = until else { return true };
    let now = Instant::now();
    let is_over = now >= *until;
    if is_over {
        *until = now + PROBE_LIMIT;
    }
    is_over
}

/// An outage that is this old has a line in the log already.
const FIRST_LINE: Duration = Duration::from_secs(1);

impl Breaker {
    /// Returns whether a flight may send a read or a write: always, unless the breaker is open and
    /// the flight is not the probe.
    pub(super) fn admits(&self) -> bool {
        self.in_trouble(|trouble| admits(&mut trouble.open_until)).unwrap_or(true)
    }

    /// Returns whether a flight may claim the lease: the breaker is closed, and replicas confirm
    /// grants or the flight is the probe.
    pub(super) fn admits_claim(&self) -> bool {
        let is_admitted = self.in_trouble(|trouble| {
            trouble.open_until.is_none() && admits(&mut trouble.unconfirmed_until)
        });
        is_admitted.unwrap_or(true)
    }

    /// Returns whether the backend counts as broken.
    pub(super) fn is_open(&self) -> bool {
        self.in_trouble(|trouble| trouble.open_until.is_some()).unwrap_or(false)
    }

    /// Returns whether the backend did not answer the last request.
    pub(super) fn is_silent(&self) -> bool {
        self.in_trouble(|trouble| trouble.silences > 0).unwrap_or(false)
    }

    /// Returns the outage that is going on.
    pub(super) fn outage(&self) -> Option<Outage> {
        self.in_trouble(|trouble| trouble.outage)
    }

    /// Returns whether there was a failure since the last answer.
    pub(super) fn is_troubled(&self) -> bool {
        self.troubled.load(Ordering::Acquire)
    }

    /// Looks at the trouble, if there is trouble. Without trouble, this takes no lock.
    fn in_trouble<T>(&self, look: impl FnOnce(&mut Trouble) -> T) -> Option<T> {
        if !self.is_troubled() {
            return None;
        }
        lock(&self.trouble).as_mut().map(look)
    }

    /// Completes when the breaker opens, or at once if it is open.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    pub(super) async fn opened(&self) {
        loop {
            // Created before the check, so that it completes if the breaker opens after the check.
            let opened = self.opened.notified();
            if self.is_open() {
                return;
            }
            opened.await;
        }
    }

    /// Handles an answer of the backend. `has_written` is true after a write that was accepted, and
    /// false after a read, or a write that changed nothing.
    pub(super) fn answered(&self, has_written: bool, counters: &Counters) {
        if !self.is_troubled() {
            return;
        }
        let mut state = lock(&self.trouble);
        if let Some(trouble) = state.as_mut() {
            trouble.silences = 0;
            trouble.open_until = None;
            // While the backend refuses writes, an answer to a read does not end the outage.
            if trouble.outage.refuses && !has_written {
                return;
            }
        }
        let over = state.take();
        self.troubled.store(false, Ordering::Release);
        drop(state);
        if let Some(Trouble { since, degraded, .. }) = over {
            let degraded = counters.degraded.get().saturating_sub(degraded);
            info!(away = ?since.elapsed(), degraded, "the backend works again");
        }
    }

    /// Handles an error of the backend: counts a silence, and logs the trouble once a minute.
    pub(super) fn failed(&self, error: &BackendError, counters: &Counters) {
        let is_silent = match error.kind() {
            // The server works, and only this name has foreign data.
            BackendErrorKind::Foreign => return,
            BackendErrorKind::Unavailable | BackendErrorKind::Unknown => true,
            BackendErrorKind::Refused | BackendErrorKind::Unreplicated => false,
        };
        let now = Instant::now();
        let degraded = counters.degraded.get();
        let mut state = lock(&self.trouble);
        let trouble = state.get_or_insert_with(|| Trouble {
            outage: Outage::next(false),
            silences: 0,
            open_until: None,
            unconfirmed_until: None,
            since: now,
            logged: Rarely::default(),
            degraded,
        });
        self.troubled.store(true, Ordering::Release);
        if is_silent {
            trouble.silences += 1;
            if trouble.silences >= FAILURES && trouble.open_until.replace(now + PAUSE).is_none() {
                self.opened.notify_waiters();
            }
        } else {
            trouble.silences = 0;
            trouble.open_until = None;
            if !trouble.outage.refuses {
                trouble.outage = Outage::next(true);
            }
        }
        if error.kind() == BackendErrorKind::Unreplicated {
            trouble.unconfirmed_until = Some(now + PAUSE);
        }
        let away = now.duration_since(trouble.since);
        let is_due = trouble.logged.first();
        let degraded = degraded.saturating_sub(trouble.degraded);
        drop(state);
        if is_due {
            let what = "degraded: one load for each process and key, and nothing is stored";
            // The first line is about the beginning of the outage, and has no duration.
            let away = (away >= FIRST_LINE).then(|| field::debug(away));
            warn!(away, degraded, error = %Chain(&error), "{what}");
        }
    }
}

/// How many flights, and how many lone looks, may send a command to a shard at once. Further
/// flights queue. Without a limit, the time-outs of ten thousand cold keys would look like a server
/// that is down.
const AT_ONCE: usize = 128;

pub(super) struct Shard {
    pub(super) breaker: Breaker,
    /// The permits of flights.
    pub(super) permits: Semaphore,
    /// The permits of lone looks. No caller queues for them, because the caller of a lone look may
    /// stop polling.
    pub(super) lone_looks: Semaphore,
}

impl Default for Shard {
    fn default() -> Self {
        Self {
            breaker: Breaker::default(),
            permits: Semaphore::new(AT_ONCE),
            lone_looks: Semaphore::new(AT_ONCE),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn silence() -> BackendError {
        BackendError::new(BackendErrorKind::Unknown, "silence")
    }

    fn failed(breaker: &Breaker, error: &BackendError) {
        breaker.failed(error, &Counters::default());
    }

    #[tokio::test(start_paused = true)]
    async fn the_breaker_opens_after_a_few_failures_and_admits_one_probe_at_a_time() {
        let breaker = Breaker::default();
        for _ in 0..FAILURES {
            assert!(breaker.admits());
            failed(&breaker, &silence());
        }
        assert!(!breaker.admits());
        tokio::time::sleep(PAUSE).await;
        assert!(breaker.admits() && !breaker.admits());
        failed(&breaker, &silence());
        assert!(!breaker.admits());
        // The next probe is cancelled, and another one follows it.
        for pause in [PAUSE, PROBE_LIMIT] {
            tokio::time::sleep(pause).await;
            assert!(breaker.admits() && !breaker.admits());
        }
        breaker.answered(false, &Counters::default());
        assert!(breaker.admits() && breaker.admits() && breaker.outage().is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_answers_with_errors_is_still_asked() {
        let breaker = Breaker::default();
        for _ in 0..10 {
            failed(&breaker, &BackendError::new(BackendErrorKind::Refused, "OOM"));
            assert!(breaker.admits());
            failed(&breaker, &silence());
        }
        assert!(breaker.admits());
    }
}
