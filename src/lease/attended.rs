//! Work that its caller keeps and does not poll, such as an arm of a loop around `select!`.
//!
//! It must not hold other callers up. So work that has to wait goes on in a task. If the caller
//! does not take the outcome within [`PATIENCE`], the outcome is dropped, and so released: the next
//! caller gets the lock. A caller that polls again later begins anew, at the end of the queue.

use std::{
    panic::resume_unwind,
    sync::{Arc, Mutex},
    time::Duration,
};

use futures_util::{
    FutureExt,
    future::{BoxFuture, poll_immediate},
};
use tokio::{runtime::Handle, sync::Notify, task::yield_now, time::sleep};
use tokio_util::task::AbortOnDropHandle;
use tracing::{Instrument, Span, debug};

use crate::sync::lock;

/// How long an outcome waits for its caller. With the release and the grant to the next caller it
/// takes 50 ms.
const PATIENCE: Duration = Duration::from_millis(40);
/// How soon the task looks again whether a busy runtime has come to the caller.
const BUSY: Duration = Duration::from_millis(5);
/// The time for the release of what was dropped. Work that begins anew would meet it.
const UNDO: Duration = Duration::from_millis(10);

/// Runs work for its caller. Begins it anew if the caller did not take its outcome in time.
///
/// # Cancel safety
///
/// When the future is dropped, so is the work.
pub(crate) async fn attended<T: Send + 'static, F>(mut begin: impl FnMut() -> F) -> T
where
    F: Future<Output = T> + Send + 'static,
{
    loop {
        let mut work = begin().boxed();
        // Work that need not wait needs no task.
        if let Some(outcome) = poll_immediate(&mut work).await {
            return outcome;
        }
        let offer = Arc::new(UntakenOutcome { outcome: Mutex::new(None), made: Notify::new() });
        let task = tokio::spawn(offer.clone().make(work).instrument(Span::current()));
        if let Some(outcome) = offer.take(AbortOnDropHandle::new(task)).await {
            return outcome;
        }
        sleep(UNDO).await;
    }
}

/// The outcome of work, until its caller takes it.
struct UntakenOutcome<T> {
    outcome: Mutex<Option<T>>,
    made: Notify,
}

impl<T> UntakenOutcome<T> {
    /// Completes the work, and drops an outcome that the caller does not take.
    async fn make(self: Arc<Self>, work: BoxFuture<'static, T>) {
        let outcome = work.await;
        *lock(&self.outcome) = Some(outcome);
        self.made.notify_one();
        // Most callers take it now, and end this task.
        yield_now().await;
        sleep(PATIENCE).await;
        // A busy runtime may not have come to the caller yet. It comes to this task behind it.
        while Handle::current().metrics().global_queue_depth() > 0 {
            sleep(BUSY).await;
        }
        for _ in 0..3 {
            yield_now().await;
        }
        let untaken = lock(&self.outcome).take();
        if untaken.is_some() {
            debug!("an acquisition that is not polled is undone");
        }
    }

    /// Waits for the outcome. Returns `None` if it was dropped, or if the runtime has ended.
    async fn take(&self, mut task: AbortOnDropHandle<()>) -> Option<T> {
        tokio::select! {
            () = self.made.notified() => {}
            ended = &mut task => {
                if let Some(panic) = ended.err().and_then(|error| error.try_into_panic().ok()) {
                    resume_unwind(panic);
                }
            }
        }
        lock(&self.outcome).take()
    }
}
