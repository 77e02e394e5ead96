//! Tasks that start when they are first needed, and what they find for others.

use std::{
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
/// It starts again after its runtime has ended, and is aborted when this is dropped.
#[derive(Default)]
pub(in super::super) struct OnDemandTask {
    is_running: Arc<AtomicBool>,
    abort: Mutex<Option<AbortHandle>>,
}

/// Marks the task as ended, however it ends.
struct Running(Arc<AtomicBool>);

impl OnDemandTask {
    /// Starts the task, unless it runs.
    pub(in super::super) fn start<F>(&self, task: impl FnOnce() -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        // The load comes first, because a swap on every command would contend for the cache line.
        if self.is_running.load(Ordering::Acquire) || self.is_running.swap(true, Ordering::AcqRel) {
            return;
        }
        let mut abort = lock(&self.abort);
        let (running, task) = (Running(self.is_running.clone()), task());
        let handle = tokio::spawn(async move {
            // The mark is dropped before the task, polled or not, so that a waiter that is woken by
            // the end of the task can start it again.
            let running = running;
            let task = std::pin::pin!(task);
            let _running = running;
            task.await;
        });
        *abort = Some(handle.abort_handle());
    }
}

impl Drop for Running {
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
    /// The first attempt, or the first one after a break. Others wait for it for so long.
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

    /// Notes that what some callers used is broken, unless it was replaced meanwhile.
    pub(super) fn broke(&self, is_this: impl Fn(&T) -> bool, limit: Duration) {
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
    /// one failed. `start` starts the task.
    pub(super) async fn wait(&self, start: impl Fn()) -> Result<T, BackendError> {
        let (begun, mut findings) = (Instant::now(), self.0.subscribe());
        loop {
            // Cloned, because the start of the task writes it.
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
