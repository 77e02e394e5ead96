//! The releases of one backend.

use std::{sync::Arc, time::Duration};

use tokio::{runtime::Handle, time::timeout};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::Release;
use crate::{
    backend::{Claim, DynLeases, answered},
    error::{BackendError, Error},
    key::Name,
    lease::{
        attended::{Attendance, Unstoppable},
        turns::ShardTurns,
    },
    shards::Shards,
};

/// The releases of one backend that run in tasks.
pub(crate) struct Janitor {
    pub(super) backend: Arc<dyn DynLeases>,
    turns: Shards<ShardTurns>,
    attendance: Attendance,
    /// Releases that no caller polls.
    pub(super) tasks: TaskTracker,
    /// Cancelled when nothing new may begin.
    pub(super) stop: CancellationToken,
}

impl Janitor {
    pub(crate) fn new(backend: Arc<dyn DynLeases>) -> Arc<Self> {
        Arc::new(Self {
            backend,
            turns: Shards::default(),
            attendance: Attendance::default(),
            tasks: TaskTracker::new(),
            stop: CancellationToken::new(),
        })
    }

    pub(crate) fn backend(&self) -> &Arc<dyn DynLeases> {
        &self.backend
    }

    /// Returns the turns to ask the shard of a name.
    pub(in crate::lease) fn turns(&self, name: &Name) -> Arc<ShardTurns> {
        self.turns.of(self.backend.shard(name), |_| true)
    }

    /// Returns the work that callers poll.
    pub(in crate::lease) fn attendance(&self) -> &Attendance {
        &self.attendance
    }

    /// Releases the lease of a claim once, after `begins`, which is called when its turn has come.
    /// Returns whether it was held.
    pub(super) async fn release_after(
        &self,
        begins: impl FnOnce(),
        claim: &Claim,
    ) -> Result<bool, BackendError> {
        let backend = self.backend.as_ref();
        let release = async {
            begins();
            answered(backend, backend.release(claim)).await
        };
        self.turns(&claim.name).releases.run(release).await
    }

    /// Releases the lease of a claim. The future returns [`Lost`](crate::ErrorKind::Lost) if it was
    /// not held; dropping the future does not stop the release.
    pub(crate) fn end(self: &Arc<Self>, claim: Claim) -> Unstoppable {
        let release = Release::new(self.clone(), claim, false, Handle::current());
        let end = async move {
            let answer = release.once(|| {}).await;
            release.ended(answer)
        };
        self.finish(end, Handle::current())
    }

    /// Releases a claim that may be granted, or has a queue entry, in a task.
    pub(crate) fn undo(self: &Arc<Self>, claim: Claim, outcome_unknown: bool, runtime: &Handle) {
        drop(Release::new(self.clone(), claim, outcome_unknown, runtime.clone()));
    }

    /// Runs a task for which the shutdown waits.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.tasks.spawn(task);
    }

    /// Runs work of a caller for which the shutdown waits.
    pub(crate) fn track<Work: Future>(&self, work: Work) -> impl Future<Output = Work::Output> {
        self.tasks.track_future(work)
    }

    /// Polls a release by its caller for as long as the caller does so, and then in a task.
    pub(in crate::lease) fn finish(
        &self,
        release: impl Future<Output = Result<(), Error>> + Send + 'static,
        runtime: Handle,
    ) -> Unstoppable {
        self.attendance.finish(self.tasks.track_future(release), runtime)
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
