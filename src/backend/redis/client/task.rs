use std::sync::{
    Arc, Mutex,
    atomic::{AtomicBool, Ordering},
};

use tokio::task::AbortHandle;

use crate::sync::lock;

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
        let running = Running(self.is_running.clone());
        let task = task();
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
