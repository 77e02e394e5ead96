//! The releases of one backend.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

use futures_util::{StreamExt, stream::FuturesUnordered};
use tokio::{
    runtime::{Builder, Handle},
    sync::Notify,
    time::timeout,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tracing::warn;

use super::Release;
use crate::{
    backend::{Claim, DynLeases, answered},
    error::{BackendError, Error},
    key::Name,
    lease::{
        attended::{Attendance, Unstoppable},
        turns::ShardTurns,
        untold::Untold,
    },
    shards::Shards,
};

/// The releases of one backend: those that run in tasks, and those that the janitor's thread does.
pub(crate) struct Janitor {
    pub(super) backend: Arc<dyn DynLeases>,
    turns: Shards<ShardTurns>,
    untold: Arc<Untold>,
    attendance: Attendance,
    /// Releases that no caller polls.
    pub(super) tasks: TaskTracker,
    /// Cancelled when nothing new may begin.
    pub(super) stop: CancellationToken,
    backlog: Mutex<Backlog>,
    /// Notified when the backlog grows.
    came: Notify,
}

/// Releases whose runtime is gone.
#[derive(Default)]
struct Backlog {
    releases: Vec<Release>,
    running: bool,
}

impl Janitor {
    pub(crate) fn new(backend: Arc<dyn DynLeases>) -> Arc<Self> {
        Arc::new(Self {
            backend,
            turns: Shards::default(),
            untold: Arc::default(),
            attendance: Attendance::default(),
            tasks: TaskTracker::new(),
            stop: CancellationToken::new(),
            backlog: Mutex::default(),
            came: Notify::new(),
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

    /// Returns what is known of releases that no push tells of.
    pub(in crate::lease) fn untold(&self) -> &Arc<Untold> {
        &self.untold
    }

    /// Releases the lease of a claim in its turn, once. Returns whether it was held.
    pub(in crate::lease) async fn release(
        &self,
        backend: &dyn DynLeases,
        claim: &Claim,
    ) -> Result<bool, BackendError> {
        self.release_after(|| {}, backend, claim).await
    }

    /// Does the same, and calls `begins` when its turn has come.
    pub(super) async fn release_after(
        &self,
        begins: impl FnOnce(),
        backend: &dyn DynLeases,
        claim: &Claim,
    ) -> Result<bool, BackendError> {
        let release = async {
            begins();
            answered(backend, backend.release(claim)).await
        };
        let turns = self.turns(&claim.name);
        let answer = turns.releases.run(release).await;
        turns.recovery.heard(answer.is_ok());
        answer
    }

    /// Releases the lease of a claim. The future returns [`Lost`](crate::ErrorKind::Lost) if it was
    /// not held; dropping the future does not stop the release.
    pub(crate) fn end(self: &Arc<Self>, claim: Claim) -> Unstoppable {
        let release = Release::new(self.clone(), claim, false);
        let end = async move {
            let answer = release.once(|| {}).await;
            release.ended(answer)
        };
        self.finish(end, Handle::current())
    }

    /// Releases a claim that may be granted, or has a queue entry, in a task.
    pub(crate) fn undo(self: &Arc<Self>, claim: Claim, outcome_unknown: bool, runtime: &Handle) {
        Release::new(self.clone(), claim, outcome_unknown).begin(runtime);
    }

    /// Runs a task for which the shutdown waits.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.tasks.spawn(task);
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

    fn backlog(&self) -> MutexGuard<'_, Backlog> {
        self.backlog.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes over a release whose runtime is gone.
    pub(super) fn take_over(self: &Arc<Self>, release: Release) {
        let mut backlog = self.backlog();
        backlog.releases.push(release);
        if std::mem::replace(&mut backlog.running, true) {
            self.came.notify_one();
            return;
        }
        let janitor = self.clone();
        let thread = thread::Builder::new().name("bellwether-release".to_owned());
        if let Err(error) = thread.spawn(move || janitor.work()) {
            let what = "no thread for the releases of a runtime that is gone; the leases expire";
            warn!(%error, "{what}");
            *backlog = Backlog::default();
        }
    }

    fn work(&self) {
        let _token = self.tasks.token();
        let Ok(runtime) = Builder::new_current_thread().enable_all().build() else {
            *self.backlog() = Backlog::default();
            return;
        };
        // Connections that are made here end here, so they must not be those that others use.
        let backend = self.backend.apart().unwrap_or_else(|| self.backend.clone());
        runtime.block_on(self.clear(backend.as_ref()));
    }

    async fn clear(&self, backend: &dyn DynLeases) {
        let mut under_way = FuturesUnordered::new();
        loop {
            {
                let mut backlog = self.backlog();
                let releases = backlog.releases.drain(..);
                under_way
                    .extend(releases.map(|release| async move { release.repeat(backend).await }));
                if under_way.is_empty() {
                    backlog.running = false;
                    return;
                }
            }
            // A release that takes long does not hold up the others.
            tokio::select! {
                _ = under_way.next() => {}
                () = self.came.notified() => {}
            }
        }
    }
}
