//! Releases, which happen whatever becomes of their callers.
//!
//! A release is polled by its caller, since a task would cost a change of threads. If the caller
//! leaves, the release goes on in a task on the runtime of the acquisition. So a [`Release`] is an
//! obligation: dropped before it is done, it begins such a task. If that runtime is gone, the lease
//! ends by itself.

mod janitor;

use std::{sync::Arc, time::Duration};

use tokio::{
    runtime::Handle,
    time::{Instant, sleep, sleep_until},
};
use tracing::debug;

use crate::{
    backend::Claim,
    error::{BackendError, Chain, Error},
    observe::Rarely,
    time::after,
};

pub(crate) use self::janitor::Janitor;

/// The pauses between requests of a release. They are short, since a waiter needs the lease when
/// the backend is back. A request to a backend that is known to be away costs nothing.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(80);

/// A release whose acquisition may arrive late is repeated after these parts of the lease, or after
/// these times if they are shorter. A server that stood still may run the first release a moment
/// before the acquisition, which lies in an older connection.
const LATE: [(u32, Duration); 4] = [
    (64, Duration::from_millis(200)),
    (16, Duration::from_secs(1)),
    (4, Duration::from_secs(10)),
    (1, Duration::from_secs(60)),
];

/// How long an acquisition is believed to lie in a server that does not answer.
const LONGEST_SILENCE: Duration = Duration::from_secs(3600);

/// A release that must happen. Dropped before it is done, it goes on in a task.
pub(super) struct Release {
    janitor: Arc<Janitor>,
    claim: Claim,
    /// The acquisition may still be on its way, and arrive after its release.
    outcome_unknown: bool,
    /// The runtime of the acquisition, for the task.
    runtime: Handle,
    /// A task is still owed. It is not owed twice: where the runtime is gone, a task ends at once.
    owed: bool,
}

impl Release {
    pub(super) fn new(
        janitor: Arc<Janitor>,
        claim: Claim,
        outcome_unknown: bool,
        runtime: Handle,
    ) -> Self {
        Self { janitor, claim, outcome_unknown, runtime, owed: true }
    }

    pub(super) fn claim(&self) -> &Claim {
        &self.claim
    }

    /// Ends the obligation: there is nothing to release, or it is owed elsewhere.
    pub(super) fn disarm(mut self) {
        self.owed = false;
    }

    /// Asks the backend once, in its turn, after `begins`. Returns whether the lease was held.
    pub(super) async fn once(&self, begins: impl FnOnce()) -> Result<bool, BackendError> {
        self.janitor.release_after(begins, &self.claim).await
    }

    /// Settles the release of a lease that was held, and returns whether it was. A task does what
    /// the answer to the first request leaves to be done.
    pub(super) fn ended(mut self, answer: Result<bool, BackendError>) -> Result<(), Error> {
        let outcome = match answer {
            Ok(true) => Ok(()),
            Ok(false) => Err(Error::lost(&self.claim.name.key())),
            Err(error) => {
                // The lease may have been released, or be released later.
                self.outcome_unknown = true;
                return Err(error.into());
            }
        };
        match self.outcome_unknown {
            true => self.settle_late(),
            false => self.disarm(),
        }
        outcome
    }

    /// Releases in a task what may arrive late. The rest was released in another way.
    pub(super) fn settle_late(mut self) {
        self.owed = false;
        let (janitor, runtime) = (self.janitor.clone(), self.runtime.clone());
        janitor.tasks.spawn_on(async move { self.repeat_late().await }, &runtime);
    }

    /// Releases what may be held.
    async fn repeat(&self) {
        let life = self.claim.lease.max(self.claim.queue_entry_life());
        let is_answered = self.until(after(Instant::now(), life)).await;
        if self.outcome_unknown {
            if !is_answered {
                self.at_first_answer().await;
            }
            self.repeat_late().await;
        }
    }

    /// Releases when the backend answers again, however late: a server that stood still runs the
    /// acquisition then. One release of a shard tries at a time.
    async fn at_first_answer(&self) {
        let (begun, turns) = (Instant::now(), self.janitor.turns(&self.claim.name));
        while begun.elapsed() < LONGEST_SILENCE && !self.janitor.is_stopped() {
            let _turn = turns.late_releases.lock().await;
            if self.once(|| {}).await.is_ok() {
                return;
            }
            sleep(LONGEST_PAUSE).await;
        }
    }

    /// Releases what may come to be held: an acquisition that is still on its way on a broken
    /// connection may arrive after the release. Most of these are late by a moment.
    async fn repeat_late(&self) {
        let released = Instant::now();
        for (part, longest) in LATE {
            let then = after(released, longest.min(self.claim.lease / part));
            tokio::select! {
                () = sleep_until(then) => {
                    self.until(after(released, self.claim.lease)).await;
                }
                () = self.janitor.stop.cancelled() => return,
            }
        }
    }

    /// Releases, and tries again until the lease must have ended by itself. Returns whether the
    /// backend has answered.
    async fn until(&self, end: Instant) -> bool {
        let name = &self.claim.name;
        let mut pause = FIRST_PAUSE;
        loop {
            match self.once(|| {}).await {
                Ok(_) => return true,
                Err(error) if Instant::now() + pause >= end => {
                    debug!(?name, error = %Chain(&error), "release failed; the lease expires");
                    return false;
                }
                Err(error) => {
                    static SAID: Rarely = Rarely::once_in(1);
                    if SAID.first() {
                        debug!(?name, error = %Chain(&error), "release failed; trying again");
                    }
                }
            }
            sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }
}

impl Drop for Release {
    fn drop(&mut self) {
        if self.owed {
            let (janitor, claim) = (self.janitor.clone(), self.claim.clone());
            let (outcome_unknown, runtime) = (self.outcome_unknown, self.runtime.clone());
            let release = Self { janitor, claim, outcome_unknown, runtime, owed: false };
            let task = async move { release.repeat().await };
            self.janitor.tasks.spawn_on(task, &self.runtime);
        }
    }
}
