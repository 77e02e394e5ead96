//! Releases, which happen whatever becomes of their callers.
//!
//! A [`Release`] is an obligation: dropped before it is done, it goes on in a task on the runtime
//! of the acquisition. If that runtime is gone, the lease ends by itself.

use std::{panic::resume_unwind, sync::Arc, time::Duration};

use futures_util::FutureExt;
use tokio::{
    runtime::Handle,
    time::{Instant, sleep, sleep_until, timeout},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tracing::debug;

use crate::{
    backend::{Claim, Leases, answered, new_connection},
    error::{BackendError, Chain, Error, ErrorKind},
    observe::Rarely,
    time::after,
};

/// The pauses between requests of a release, which double. They are short, since a waiter needs the
/// lease when the backend is back. A request to a backend that is known to be away costs nothing.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(320);

/// A release whose acquisition may arrive late is repeated after these parts of the lease, or after
/// these times if they are shorter. A server that stood still may run the first release a moment
/// before the acquisition, which lies in an older connection.
const LATE: [(u32, Duration); 4] = [
    (64, Duration::from_millis(200)),
    (16, Duration::from_secs(1)),
    (4, Duration::from_secs(10)),
    (1, Duration::from_secs(60)),
];

/// How long a server that does not answer may still run an acquisition.
const LONGEST_SILENCE: Duration = Duration::from_secs(3600);

/// The releases of one backend.
pub(crate) struct Janitor {
    backend: Arc<dyn Leases>,
    /// Releases that no caller polls.
    tasks: TaskTracker,
    /// Cancelled when nothing new may begin.
    stop: CancellationToken,
}

impl Janitor {
    pub(crate) fn new(backend: Arc<dyn Leases>) -> Arc<Self> {
        Arc::new(Self { backend, tasks: TaskTracker::new(), stop: CancellationToken::new() })
    }

    pub(crate) fn backend(&self) -> &Arc<dyn Leases> {
        &self.backend
    }

    /// Releases the lease of a claim. Returns [`Lost`](ErrorKind::Lost) if it was not held.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped after it was first polled, the release goes on.
    pub(crate) async fn end(self: &Arc<Self>, claim: Claim) -> Result<(), Error> {
        let release = Release::new(self.clone(), claim, false, Handle::current());
        self.finish(async move {
            let answer = release.once().await;
            release.ended(answer)
        })
        .await
    }

    /// Releases a claim that may be granted, or has a queue entry, in a task.
    pub(crate) fn undo(self: &Arc<Self>, claim: Claim, outcome_unknown: bool, runtime: &Handle) {
        drop(Release::new(self.clone(), claim, outcome_unknown, runtime.clone()));
    }

    /// Runs a task for which the shutdown waits.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.tasks.spawn(task);
    }

    /// Runs a release on a runtime, without a caller.
    pub(super) fn spawn_on(
        &self,
        release: impl Future<Output = Result<(), Error>> + Send + 'static,
        runtime: &Handle,
    ) {
        // The release repeats what fails.
        self.tasks.spawn_on(release.map(drop), runtime);
    }

    /// Runs work of a caller for which the shutdown waits.
    pub(crate) fn track<Work: Future>(&self, work: Work) -> impl Future<Output = Work::Output> {
        self.tasks.track_future(work)
    }

    /// Runs a release, which goes on in a task if it does not end at once. Its caller may drop it
    /// or not poll it.
    pub(super) async fn finish(
        &self,
        release: impl Future<Output = Result<(), Error>> + Send + 'static,
    ) -> Result<(), Error> {
        let mut release = Box::pin(release);
        match (&mut release).now_or_never() {
            Some(released) => released,
            None => self.tasks.spawn(release).await.unwrap_or_else(|error| {
                if let Ok(panic) = error.try_into_panic() {
                    resume_unwind(panic);
                }
                Err(Error::new(ErrorKind::Backend, "the runtime of the release has ended"))
            }),
        }
    }

    /// Stops the acquisitions: none starts any more, and those that wait fail.
    pub(crate) fn stop(&self) {
        self.stop.cancel();
        self.tasks.close();
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.stop.is_cancelled()
    }

    pub(crate) async fn stopped(&self) {
        self.stop.cancelled().await;
    }

    /// Stops the acquisitions, and waits until the releases have ended or the limit passes.
    pub(crate) async fn shutdown(&self, limit: Duration) {
        self.stop();
        let _ = timeout(limit, self.tasks.wait()).await;
    }
}

/// A release that must happen. Dropped before it is done, it goes on in a task.
pub(super) struct Release {
    janitor: Arc<Janitor>,
    pub(super) claim: Claim,
    /// The acquisition may still be on its way, and arrive after its release.
    outcome_unknown: bool,
    /// The runtime of the acquisition, for the task.
    runtime: Handle,
    /// Whether the drop spawns a task. It does so once: on a dead runtime, a task ends at once.
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

    /// Asks the backend once. Returns whether the lease was held.
    pub(super) async fn once(&self) -> Result<bool, BackendError> {
        let backend = self.janitor.backend.as_ref();
        answered(backend, backend.release(&self.claim)).await
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
            false => self.owed = false,
        }
        outcome
    }

    /// Releases in a task what may arrive late. What was held is released already.
    pub(super) fn settle_late(mut self) {
        self.owed = false;
        let (janitor, runtime) = (self.janitor.clone(), self.runtime.clone());
        janitor.tasks.spawn_on(async move { self.repeat_late().await }, &runtime);
    }

    /// Releases what may be held, until the lease must have ended by itself. A server that stood
    /// still may run the acquisition however late it answers.
    async fn repeat(&self) {
        let begun = Instant::now();
        let life = self.claim.lease.max(self.claim.queue_entry_life());
        let is_answered = self.until(after(begun, life)).await;
        if !self.outcome_unknown {
            return;
        }
        let silent = async { is_answered || self.until(after(begun, LONGEST_SILENCE)).await };
        tokio::select! {
            biased;
            is_answered = silent => if is_answered { self.repeat_late().await },
            () = self.janitor.stopped() => {}
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
                () = self.janitor.stopped() => return,
            }
        }
    }

    /// Releases, and tries again until this time. Returns whether the backend has answered.
    async fn until(&self, end: Instant) -> bool {
        let name = &self.claim.name;
        let mut connections = self.janitor.backend.new_connections();
        let mut pause = FIRST_PAUSE;
        loop {
            match self.once().await {
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
            tokio::select! {
                () = sleep(pause) => {}
                () = new_connection(&mut connections) => {}
            }
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
