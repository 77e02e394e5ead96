//! Releases, which happen whatever becomes of their callers.
//!
//! Its caller polls a release. If the caller drops it, or the backend does not answer, the release
//! goes on in a task. If the runtime of that task is gone, the lease ends by itself.
//! `docs/decisions/renewal-and-release.md` explains the order of the steps.

use std::{sync::Arc, time::Duration};

use futures_util::FutureExt;
use tokio::{
    runtime::Handle,
    time::{Instant, sleep_until, timeout, timeout_at},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tracing::debug;

use crate::{
    backend::{Claim, Leases, QUEUE_ENTRY_LIFE},
    error::{BackendError, BackendErrorKind, Chain},
    observe::Rarely,
    time::{Pauses, after},
};

/// How long a server that does not answer may still run an acquisition: it may be suspended.
const LONGEST_SILENCE: Duration = Duration::from_secs(3600);

/// How long a shutdown waits for futures that their callers poll, and may not poll any more.
const GRACE: Duration = Duration::from_millis(100);

/// The first pause between the releases of what may arrive late. Each further one is twice as long.
const FIRST_PAUSE: Duration = Duration::from_millis(20);

/// The releases of one backend.
pub(crate) struct Janitor {
    pub(crate) backend: Arc<dyn Leases>,
    /// Releases that no caller polls, and all other work for which the shutdown waits.
    pub(crate) tasks: TaskTracker,
    /// Acquisitions and releases that their callers poll.
    pub(super) polled: TaskTracker,
    /// Cancelled when nothing new may begin.
    pub(crate) stop: CancellationToken,
}

impl Janitor {
    pub(crate) fn new(backend: Arc<dyn Leases>) -> Arc<Self> {
        Arc::new(Self {
            backend,
            tasks: TaskTracker::new(),
            polled: TaskTracker::new(),
            stop: CancellationToken::new(),
        })
    }

    /// Runs a pass, which goes on in a task if it does not end at once. Its caller may drop it or
    /// not poll it.
    pub(super) async fn finish(
        &self,
        pass: impl Future<Output = Result<bool, BackendError>> + Send + 'static,
    ) -> Result<bool, BackendError> {
        let mut pass = Box::pin(pass);
        if let Some(answer) = (&mut pass).now_or_never() {
            return answer;
        }
        match self.tasks.spawn(pass).await {
            Ok(answer) => answer,
            Err(ended) => Err(BackendError::new(BackendErrorKind::Unknown, ended)),
        }
    }

    /// Stops the acquisitions: none starts any more, and those that wait fail.
    pub(crate) fn stop(&self) {
        self.stop.cancel();
        self.tasks.close();
        self.polled.close();
    }

    /// Stops the acquisitions, and waits until the releases have ended or the limit passes. A
    /// future that its caller does not poll is waited for only for a moment.
    pub(crate) async fn shutdown(&self, limit: Duration) {
        let end = after(Instant::now(), limit);
        self.stop();
        let _ = timeout(limit.min(GRACE), self.polled.wait()).await;
        let _ = timeout_at(end, self.tasks.wait()).await;
    }
}

/// The duty to release what a claim has.
#[derive(Clone)]
pub(crate) struct Release {
    pub(crate) janitor: Arc<Janitor>,
    pub(crate) claim: Claim,
    /// The runtime of the acquisition, for what goes on in a task.
    pub(super) runtime: Handle,
    /// A request of the acquisition had no answer, and may be granted after the release.
    pub(super) outcome_unknown: bool,
}

impl Release {
    pub(crate) fn new(janitor: &Arc<Janitor>, claim: Claim) -> Self {
        let janitor = janitor.clone();
        Self { janitor, claim, runtime: Handle::current(), outcome_unknown: false }
    }

    /// Releases the lease. Returns whether it was held.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped after it was first polled, the release goes on in a task.
    pub(crate) async fn end(self) -> Result<bool, BackendError> {
        let mut owed = OwedRelease { release: self, is_settled: false };
        let Self { janitor, claim, .. } = &owed.release;
        let released = janitor.backend.release(claim);
        let answer = janitor.polled.track_future(released).await;
        owed.is_settled = true;
        owed.release.ended(answer)
    }

    /// Releases in a task what may be granted, or has a queue entry.
    pub(crate) fn undo(&self) {
        self.clone().go_on(false);
    }

    /// Goes on in a task if anything may still be held after this answer. Returns the answer.
    pub(super) fn ended(&self, answer: Result<bool, BackendError>) -> Result<bool, BackendError> {
        // Without an answer, the lease may be released later.
        let outcome_unknown = self.outcome_unknown || answer.is_err();
        if outcome_unknown {
            Self { outcome_unknown, ..self.clone() }.go_on(answer.is_ok());
        }
        answer
    }

    /// Releases in a task what may be held. If the backend has answered, that is only what may
    /// arrive late.
    pub(super) fn go_on(self, is_answered: bool) {
        let janitor = self.janitor.clone();
        let runtime = self.runtime.clone();
        janitor.tasks.spawn_on(async move { self.repeat(is_answered).await }, &runtime);
    }

    /// Releases until there is an answer, or the lease must have ended by itself. Then releases
    /// what may come to be held: an acquisition on a broken connection may arrive after its
    /// release, and a server that stood still may run it however late it answers.
    async fn repeat(&self, is_answered: bool) {
        let begun = Instant::now();
        let life = self.claim.lease.max(QUEUE_ENTRY_LIFE);
        let is_answered = is_answered || self.until_answered(after(begun, life)).await;
        if !self.outcome_unknown {
            return;
        }
        let late = async {
            if is_answered || self.until_answered(after(begun, LONGEST_SILENCE)).await {
                self.release_late_grants().await;
            }
        };
        tokio::select! {
            biased;
            () = late => {}
            () = self.janitor.stop.cancelled() => {}
        }
    }

    /// Releases for another lease what may be granted late, with pauses that double.
    async fn release_late_grants(&self) {
        let end = after(Instant::now(), self.claim.lease);
        let mut pause = FIRST_PAUSE;
        while Instant::now() < end {
            sleep_until(end.min(Instant::now() + pause)).await;
            self.until_answered(after(Instant::now(), self.claim.lease)).await;
            pause = pause.saturating_mul(2);
        }
    }

    /// Releases, and tries again until this time. Returns whether the backend has answered.
    async fn until_answered(&self, end: Instant) -> bool {
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

/// A release that was begun. Dropped before its answer, it goes on in a task.
struct OwedRelease {
    release: Release,
    is_settled: bool,
}

impl Drop for OwedRelease {
    fn drop(&mut self) {
        if !self.is_settled {
            self.release.clone().go_on(false);
        }
    }
}
