//! Releases, which happen whatever becomes of their callers.
//!
//! One that does not end at once goes on in a task. If the runtime of that task is gone, the lease
//! ends by itself. `docs/decisions/renewal-and-release.md` explains the order of the steps.

use std::{sync::Arc, time::Duration};

use futures_util::FutureExt;
use tokio::{
    runtime::Handle,
    time::{Instant, sleep_until, timeout},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tracing::debug;

use crate::{
    backend::{Claim, Leases, QUEUE_ENTRY_LIFE},
    error::{BackendError, BackendErrorKind, Chain},
    observe::Rarely,
    time::{Pauses, after},
};

/// A release whose acquisition may arrive late is repeated after these parts of the lease, and
/// after these times at most. A server that stood still may run the first release a moment before
/// the acquisition, which lies in an older connection.
const LATE: [(u32, Duration); 4] = [
    (64, Duration::from_millis(200)),
    (16, Duration::from_secs(1)),
    (4, Duration::from_secs(10)),
    (1, Duration::from_secs(60)),
];

/// How long a server that does not answer may still run an acquisition: it may be suspended.
const LONGEST_SILENCE: Duration = Duration::from_secs(3600);

/// The releases of one backend.
pub(crate) struct Janitor {
    pub(crate) backend: Arc<dyn Leases>,
    /// Releases that no caller polls, and all other work for which the shutdown waits.
    pub(crate) tasks: TaskTracker,
    /// Cancelled when nothing new may begin.
    pub(crate) stop: CancellationToken,
}

impl Janitor {
    pub(crate) fn new(backend: Arc<dyn Leases>) -> Arc<Self> {
        Arc::new(Self { backend, tasks: TaskTracker::new(), stop: CancellationToken::new() })
    }

    /// Runs a release, which goes on in a task if it does not end at once. Its caller may drop it
    /// or not poll it.
    pub(super) async fn finish(
        &self,
        release: impl Future<Output = Result<bool, BackendError>> + Send + 'static,
    ) -> Result<bool, BackendError> {
        let mut release = Box::pin(release);
        match (&mut release).now_or_never() {
            Some(released) => released,
            None => {
                self.tasks.spawn(release).await.unwrap_or_else(|ended| {
                    Err(BackendError::new(BackendErrorKind::Unknown, ended))
                })
            }
        }
    }

    /// Stops the acquisitions: none starts any more, and those that wait fail.
    pub(crate) fn stop(&self) {
        self.stop.cancel();
        self.tasks.close();
    }

    /// Stops the acquisitions, and waits until the releases have ended or the limit passes.
    pub(crate) async fn shutdown(&self, limit: Duration) {
        self.stop();
        let _ = timeout(limit, self.tasks.wait()).await;
    }
}

/// The duty to release what a claim has.
#[derive(Clone)]
pub(crate) struct Release {
    pub(super) janitor: Arc<Janitor>,
    pub(crate) claim: Claim,
    /// The runtime of the acquisition, for what goes on in a task.
    pub(super) runtime: Handle,
    /// A request of the acquisition had no answer, and may be granted after the release.
    pub(super) outcome_unknown: bool,
}

impl Release {
    pub(crate) fn new(janitor: &Arc<Janitor>, claim: Claim) -> Self {
        let (janitor, runtime) = (janitor.clone(), Handle::current());
        Self { janitor, claim, runtime, outcome_unknown: false }
    }

    /// Releases the lease. Returns whether it was held.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped after it was first polled, the release goes on.
    pub(crate) async fn end(self) -> Result<bool, BackendError> {
        let janitor = self.janitor.clone();
        janitor
            .finish(async move {
                let answer = self.janitor.backend.release(&self.claim).await;
                self.ended(answer)
            })
            .await
    }

    /// Releases in a task what may be granted, or has a queue entry.
    pub(crate) fn undo(&self) {
        self.clone().go_on(false);
    }

    /// Leaves to a task what the answer to the first request leaves to be done. Returns the answer.
    pub(super) fn ended(
        mut self,
        answer: Result<bool, BackendError>,
    ) -> Result<bool, BackendError> {
        // Without an answer, the lease may be released later.
        self.outcome_unknown |= answer.is_err();
        if self.outcome_unknown {
            self.go_on(answer.is_ok());
        }
        answer
    }

    /// Releases in a task what may be held. If the backend has answered, that is only what may
    /// arrive late.
    pub(super) fn go_on(self, is_answered: bool) {
        let (janitor, runtime) = (self.janitor.clone(), self.runtime.clone());
        janitor.tasks.spawn_on(async move { self.repeat(is_answered).await }, &runtime);
    }

    /// Releases until there is an answer, or the lease must have ended by itself. Then releases
    /// what may come to be held: an acquisition on a broken connection may arrive after its
    /// release, and a server that stood still may run it however late it answers.
    async fn repeat(&self, is_answered: bool) {
        let begun = Instant::now();
        let life = self.claim.lease.max(QUEUE_ENTRY_LIFE);
        let is_answered = is_answered || self.until(after(begun, life)).await;
        if !self.outcome_unknown {
            return;
        }
        let late = async {
            if !is_answered && !self.until(after(begun, LONGEST_SILENCE)).await {
                return;
            }
            let released = Instant::now();
            for (part, longest) in LATE {
                sleep_until(after(released, longest.min(self.claim.lease / part))).await;
                self.until(after(released, self.claim.lease)).await;
            }
        };
        tokio::select! {
            biased;
            () = late => {}
            () = self.janitor.stop.cancelled() => {}
        }
    }

    /// Releases, and tries again until this time. Returns whether the backend has answered.
    async fn until(&self, end: Instant) -> bool {
        static SAID: Rarely = Rarely::once_in(1);
        let mut connections = self.janitor.backend.new_connections();
        let mut pauses = Pauses::default();
        loop {
            let released = self.janitor.backend.release(&self.claim).await;
            let Err(error) = released else { return true };
            let next = Instant::now() + pauses.next();
            let is_last = next >= end;
            if is_last || SAID.first() {
                let then = if is_last { "the lease expires" } else { "trying again" };
                debug!(name = ?self.claim.name, error = %Chain(&error), "release failed; {then}");
            }
            if is_last {
                return false;
            }
            tokio::select! {
                () = sleep_until(next) => {}
                Ok(()) = connections.changed() => {}
            }
        }
    }
}
