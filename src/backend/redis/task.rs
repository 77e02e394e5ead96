use std::sync::{
    Arc, Mutex, PoisonError,
    atomic::{AtomicBool, Ordering},
};

use tokio::task::AbortHandle;

/// A background task that is started when it is needed: the first time, and again on the present runtime
/// after the one that ran it is gone. It ends with its owner.
#[derive(Default)]
pub(super) struct Task {
    running: Arc<AtomicBool>,
    abort: Mutex<Option<AbortHandle>>,
}

/// Says that the task has ended, however it ended.
struct Running(Arc<AtomicBool>);

impl Task {
    /// Starts the task, unless it runs.
    pub(super) fn start<F>(&self, task: impl FnOnce() -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        // The look alone is what costs nothing to those who ask with every command.
        if self.running.load(Ordering::Acquire) || self.running.swap(true, Ordering::AcqRel) {
            return;
        }
        let mut abort = self.abort.lock().unwrap_or_else(PoisonError::into_inner);
        let running = Running(self.running.clone());
        let task = task();
        let handle = tokio::spawn(async move {
            // Dropped before the task is, polled or not: whoever is told by the task's end can start it
            // again.
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

impl Drop for Task {
    fn drop(&mut self) {
        let abort = self.abort.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Some(task) = abort.take() {
            task.abort();
        }
    }
}
