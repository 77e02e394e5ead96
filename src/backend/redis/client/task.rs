//! Tasks that start when they are first needed, and what such a task finds for its callers.

use std::{
    mem::replace,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::{
    sync::watch,
    task::AbortHandle,
    time::{Instant, timeout_at},
};

use crate::{
    error::{BackendError, BackendErrorKind},
    sync::lock,
    time::after,
};

/// A background task that starts on the current runtime when it is first needed.
///
/// The task starts again after its runtime has ended. The drop of this aborts the task.
#[derive(Default)]
pub(in super::super) struct OnDemandTask {
    is_running: Arc<AtomicBool>,
    abort: Mutex<Option<AbortHandle>>,
}

/// The mark that a task runs. The next task can start once the mark is dropped, so the task drops
/// everything else first.
pub(in super::super) struct RunningMark(Arc<AtomicBool>);

impl OnDemandTask {
    /// Starts the task, unless it runs. The task gets a mark, and keeps the mark to its end.
    pub(in super::super) fn start<F>(&self, task: impl FnOnce(RunningMark) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        // The load comes first, because a swap on every command would contend for the cache line.
        if self.is_running.load(Ordering::Acquire) || self.is_running.swap(true, Ordering::AcqRel) {
            return;
        }
        let mark = RunningMark(self.is_running.clone());
        let mut abort = lock(&self.abort);
        let handle = tokio::spawn(task(mark));
        *abort = Some(handle.abort_handle());
    }
}

impl Drop for RunningMark {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

impl Drop for OnDemandTask {
    fn drop(&mut self) {
        if let Some(task) = lock(&self.abort).take() {
            task.abort();
        }
    }
}

/// The result of a task: a connection, the master, or the map of slots.
#[derive(Clone)]
pub(super) enum Finding<T> {
    /// The first attempt is under way, or the first attempt after a break. Callers wait for its end
    /// within this time.
    Pending(Duration),
    Known(T),
    /// The last attempt failed. The task makes the next one.
    Failed(BackendError),
}

/// The latest finding of a task, for which others wait.
pub(super) struct LatestFinding<T>(watch::Sender<Finding<T>>);

impl<T: Clone> LatestFinding<T> {
    pub(super) fn pending(limit: Duration) -> Self {
        Self(watch::Sender::new(Finding::Pending(limit)))
    }

    pub(super) fn set(&self, finding: Finding<T>) {
        self.0.send_replace(finding);
    }

    /// Sets the finding, and wakes no caller before [`wake`](Self::wake).
    pub(super) fn set_silently(&self, finding: Finding<T>) {
        let mut before = None;
        self.0.send_if_modified(|now| {
            before = Some(replace(now, finding));
            false
        });
        // Not under the lock of the finding.
        drop(before);
    }

    /// Wakes the callers that wait, so that one of them starts the next task.
    pub(super) fn wake(&self) {
        self.0.send_modify(|_| {});
    }

    /// Replaces the finding unless something is known. Returns whether it was pending.
    pub(super) fn set_unless_known(&self, finding: Finding<T>) -> bool {
        let mut was_pending = false;
        self.0.send_if_modified(|now| {
            was_pending = matches!(now, Finding::Pending(_));
            let is_unknown = !matches!(now, Finding::Known(_));
            if is_unknown {
                *now = finding;
            }
            is_unknown
        });
        was_pending
    }

    /// Makes a finding pending that a caller found broken, unless the task has replaced it.
    pub(super) fn give_up(&self, is_this: impl Fn(&T) -> bool, limit: Duration) {
        self.0.send_if_modified(|now| {
            let is_this = matches!(now, Finding::Known(known) if is_this(known));
            if is_this {
                *now = Finding::Pending(limit);
            }
            is_this
        });
    }

    pub(super) fn has_failed(&self) -> bool {
        matches!(&*self.0.borrow(), Finding::Failed(_))
    }

    pub(super) fn known(&self) -> Option<T> {
        match &*self.0.borrow() {
            Finding::Known(known) => Some(known.clone()),
            _ => None,
        }
    }

    pub(super) async fn until_known(&self) {
        let _ = self.0.subscribe().wait_for(|now| matches!(now, Finding::Known(_))).await;
    }

    /// Returns what is known, or waits for the attempt that is under way. Fails at once if the last
    /// attempt failed. `start` starts the task.
    pub(super) async fn wait(&self, start: impl Fn()) -> Result<T, BackendError> {
        let begun = Instant::now();
        let mut findings = self.0.subscribe();
        loop {
            // Cloned, because `start` must run without the lock of the finding.
            let now = findings.borrow_and_update().clone();
            let limit = match now {
                Finding::Known(known) => return Ok(known),
                Finding::Failed(error) => return Err(error),
                Finding::Pending(limit) => limit,
            };
            start();
            let change = timeout_at(after(begun, limit), findings.changed());
            if !matches!(change.await, Ok(Ok(()))) {
                let why = "there is no connection yet";
                return Err(BackendError::new(BackendErrorKind::Unavailable, why));
            }
        }
    }
}
