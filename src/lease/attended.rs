//! Acquisitions that their callers keep and do not poll, such as an arm of a loop around `select!`.
//!
//! They must not hold other callers up. An acquisition that does not end at once goes on in a task,
//! and the task offers the outcome to the caller. If the caller does not take it in time, the task
//! drops it, and so releases it: the next caller gets the lock. A caller that polls again later
//! begins anew, at the end of the queue.

use std::{
    panic::resume_unwind,
    sync::{Arc, Mutex},
    time::Duration,
};

use futures_util::FutureExt;
use tokio::{runtime::Handle, sync::Notify, task::yield_now, time::sleep};
use tokio_util::task::AbortOnDropHandle;
use tracing::{Instrument, Span, debug};

use crate::sync::lock;

/// How long an outcome waits for its caller. With the release and the grant to the next caller it
/// takes less than 50 ms.
const PATIENCE: Duration = Duration::from_millis(30);
/// How soon the task looks again whether a busy runtime has come to the caller.
const BUSY: Duration = Duration::from_millis(5);
/// The time for the release of what was dropped. An acquisition that begins anew would meet it.
const UNDO: Duration = Duration::from_millis(10);

/// Acquires for a caller. Begins anew if the caller did not take the outcome in time.
///
/// # Cancel safety
///
/// When the future is dropped, so is the acquisition.
pub(super) async fn attended<T, Acquiring>(mut begin: impl FnMut() -> Acquiring) -> T
where
    T: Send + 'static,
    Acquiring: Future<Output = T> + Send + 'static,
{
    loop {
        let mut acquiring = Box::pin(begin().instrument(Span::current()));
        if let Some(outcome) = (&mut acquiring).now_or_never() {
            return outcome;
        }
        let offer = Arc::new(Offer { outcome: Mutex::new(None), made: Notify::new() });
        let mut task = AbortOnDropHandle::new(tokio::spawn(offer.clone().make(acquiring)));
        tokio::select! {
            biased;
            () = offer.made.notified() => {}
            Err(error) = &mut task => if let Ok(panic) = error.try_into_panic() {
                resume_unwind(panic);
            }
        }
        if let Some(outcome) = offer.take() {
            return outcome;
        }
        sleep(UNDO).await;
    }
}

/// An outcome that waits for its caller.
struct Offer<T> {
    outcome: Mutex<Option<T>>,
    made: Notify,
}

impl<T> Offer<T> {
    async fn make(self: Arc<Self>, acquiring: impl Future<Output = T>) {
        let outcome = acquiring.await;
        *lock(&self.outcome) = Some(outcome);
        self.made.notify_one();
        sleep(PATIENCE).await;
        // A busy runtime may not have come to the caller yet. It comes to this task behind it.
        while Handle::current().metrics().global_queue_depth() > 0 {
            sleep(BUSY).await;
        }
        for _ in 0..3 {
            yield_now().await;
        }
        if self.take().is_some() {
            debug!("an acquisition that is not polled is undone");
        }
    }

    fn take(&self) -> Option<T> {
        lock(&self.outcome).take()
    }
}
