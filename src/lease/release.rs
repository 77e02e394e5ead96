//! Releases, which must happen whatever becomes of their callers.
//!
//! The caller polls its own release. If the caller drops the future, or the backend does not
//! answer, the release goes on in a task. If the runtime of that task ends, the lease ends by
//! itself. `docs/decisions/renewal-and-release.md` explains the order of the steps.

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

/// After how long a suspended server that does not answer may still run an acquisition.
const LONGEST_SILENCE: Duration = Duration::from_secs(3600);

/// How long a shutdown waits for acquisitions and releases that callers poll. A caller may not poll
/// its future any more.
const GRACE: Duration = Duration::from_millis(100);

/// The first pause between the releases of a late grant. Each further pause is twice as long.
const FIRST_PAUSE: Duration = Duration::from_millis(20);

/// The releases of one backend.
pub(crate) struct Janitor {
    pub(crate) backend: Arc<dyn Leases>,
    /// Releases that no caller polls, and all other work for which the shutdown waits.
    pub(crate) tasks: TaskTracker,
    /// Acquisitions and releases that callers poll.
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

    /// Runs a pass, which goes on in a task unless the pass ends at once. So the caller may drop
    /// this future, or not poll it.
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

    /// Stops the acquisitions: no acquisition starts any more, and each acquisition that waits
    /// fails.
    pub(crate) fn stop(&self) {
        self.stop.cancel();
        self.tasks.close();
        self.polled.close();
    }

    /// Stops the acquisitions, and waits until the releases have ended or the limit passes. Waits
    /// only for a moment for futures that callers poll.
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
    /// The runtime of the acquisition, where a task repeats the release.
    pub(super) runtime: Handle,
    /// A request of the acquisition had no answer, and may be granted after a release.
    pub(super) outcome_unknown: bool,
}

/// What is left to be released.
pub(super) enum Rest {
    /// What the claim has, because no release was answered.
    All,
    /// A late grant, because the claim had nothing more when the backend answered.
    LateGrant,
}

impl Release {
    pub(crate) fn new(janitor: &Arc<Janitor>, claim: Claim) -> Self {
        let janitor = janitor.clone();
        Self { janitor, claim, runtime: Handle::current(), outcome_unknown: false }
    }

    /// Releases the lease. Returns whether the lease was held.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped after its first poll, the release goes on in a task.
    pub(crate) async fn send(self) -> Result<bool, BackendError> {
        let mut guard = UnansweredRelease { release: self, is_answered: false };
        let Self { janitor, claim, .. } = &guard.release;
        let request = janitor.backend.release(claim);
        let answer = janitor.polled.track_future(request).await;
        guard.is_answered = true;
        guard.release.follow_up(answer)
    }

    /// Releases in a task the lease and the queue entry that the claim may have.
    pub(crate) fn undo(&self) {
        self.clone().go_on(Rest::All);
    }

    /// Goes on in a task if the claim may still have a lease after this answer to a release, or may
    /// get a lease. Returns the answer.
    pub(super) fn follow_up(
        &self,
        answer: Result<bool, BackendError>,
    ) -> Result<bool, BackendError> {
        if answer.is_err() {
            // The server may run the release later, or never.
            self.clone().go_on(Rest::All);
        } else if self.outcome_unknown {
            self.clone().go_on(Rest::LateGrant);
        }
        answer
    }

    /// Releases in a task what is left.
    pub(super) fn go_on(self, rest: Rest) {
        let janitor = self.janitor.clone();
        let runtime = self.runtime.clone();
        janitor.tasks.spawn_on(async move { self.repeat(rest).await }, &runtime);
    }

    /// Releases until there is an answer, or the lease must have ended by itself. Then releases a
    /// late grant: an acquisition on a broken connection may arrive after its release, and a server
    /// that stood still may run an acquisition very late.
    async fn repeat(&self, rest: Rest) {
        let since = Instant::now();
        let life = self.claim.lease.max(QUEUE_ENTRY_LIFE);
        let is_answered = match rest {
            Rest::LateGrant => true,
            Rest::All => self.until_answered(after(since, life)).await,
        };
        if !self.outcome_unknown {
            return;
        }
        let late_grants = async {
            if is_answered || self.until_answered(after(since, LONGEST_SILENCE)).await {
                self.release_late_grants().await;
            }
        };
        tokio::select! {
            biased;
            () = late_grants => {}
            () = self.janitor.stop.cancelled() => {}
        }
    }

    /// Releases late grants for the time of one lease, with pauses that double.
    async fn release_late_grants(&self) {
        let end = after(Instant::now(), self.claim.lease);
        let mut pause = FIRST_PAUSE;
        while Instant::now() < end {
            sleep_until(end.min(Instant::now() + pause)).await;
            self.until_answered(after(Instant::now(), self.claim.lease)).await;
            pause = pause.saturating_mul(2);
        }
    }

    /// Repeats the release until the backend answers, or until this time. Returns whether the
    /// backend has answered.
    async fn until_answered(&self, end: Instant) -> bool {
        static LOGGED: Rarely = Rarely::once_in(1);
        let mut connections = self.janitor.backend.new_connections();
        let mut pauses = Pauses::default();
        loop {
            let released = self.janitor.backend.release(&self.claim).await;
            let Err(error) = released else { return true };
            let next = Instant::now() + pauses.next();
            let is_last = next >= end;
            if is_last || LOGGED.first() {
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

/// A release whose request is under way. If it is dropped before the answer, the release goes on in
/// a task.
struct UnansweredRelease {
    release: Release,
    is_answered: bool,
}

impl Drop for UnansweredRelease {
    fn drop(&mut self) {
        if !self.is_answered {
            self.release.clone().go_on(Rest::All);
        }
    }
}
