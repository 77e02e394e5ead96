//! The leader's work, and who polls it.
//!
//! While its caller is the only one who depends on it, he polls it himself: a hit needs no task. As soon as
//! anyone else depends on it, it moves to a task of its own, and never back: when a follower joins, when the
//! caller leaves, and before a load begins, for a load must not stop because its caller is not polled.

use std::{
    pin::Pin,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Waker},
};

use futures_util::task::AtomicWaker;
use tokio::runtime::Handle;

pub(crate) type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

#[derive(Default)]
pub(super) struct Work {
    carried: Mutex<Option<Carried>>,
    /// Whether a caller carries it; looked at without the lock.
    is_carried: AtomicBool,
    /// The work has asked for a task.
    asks: AtomicBool,
    /// Someone waits who has waited for an answer in vain already.
    hurried: AtomicBool,
    /// Wakes the work's own task for that.
    hurry: AtomicWaker,
}

struct Carried {
    task: Task,
    runtime: Handle,
    /// Wakes the caller who carries it.
    waker: Option<Waker>,
}

impl Work {
    /// Gives the work to its caller.
    pub(super) fn carry(&self, task: Task) {
        let runtime = Handle::current();
        *self.carried() = Some(Carried { task, runtime, waker: None });
        self.is_carried.store(true, Ordering::SeqCst);
    }

    /// Moves the work to a task of its own, unless it is there already.
    pub(super) fn detach(&self) {
        if self.is_carried.load(Ordering::SeqCst) {
            let carried = self.carried().take();
            self.spawn(carried);
        }
    }

    /// Polls the work for its caller; ready when there is nothing more for him to poll.
    pub(super) fn poll(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut slot = self.carried();
        let Some(carried) = slot.as_mut() else { return Poll::Ready(()) };
        if carried.task.as_mut().poll(cx).is_ready() {
            self.is_carried.store(false, Ordering::SeqCst);
            *slot = None;
            return Poll::Ready(());
        }
        if self.asks.load(Ordering::Relaxed) {
            let carried = slot.take();
            drop(slot);
            self.spawn(carried);
            return Poll::Ready(());
        }
        match &mut carried.waker {
            Some(waker) => waker.clone_from(cx.waker()),
            none => *none = Some(cx.waker().clone()),
        }
        Poll::Pending
    }

    /// To be awaited by the work itself; returns when it has a task of its own.
    pub(super) async fn own_task(&self) {
        std::future::poll_fn(|_| {
            // Whoever polls it here looks at this and spawns it, so no waker is needed.
            self.asks.store(true, Ordering::Relaxed);
            match self.is_carried.load(Ordering::SeqCst) {
                true => Poll::Pending,
                false => Poll::Ready(()),
            }
        })
        .await;
    }

    /// Has the work wait for no answer any more. Where it is carried it must have been detached before.
    pub(super) fn hurry(&self) {
        self.hurried.store(true, Ordering::SeqCst);
        self.hurry.wake();
    }

    pub(super) fn is_hurried(&self) -> bool {
        self.hurried.load(Ordering::SeqCst)
    }

    /// To be polled by the work itself; ready when it is hurried.
    pub(super) fn poll_hurried(&self, cx: &Context<'_>) -> Poll<()> {
        // Whoever hurries it has detached it, and in its own task it is polled anew.
        if !self.is_carried.load(Ordering::SeqCst) {
            self.hurry.register(cx.waker());
        }
        match self.is_hurried() {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    }

    fn spawn(&self, carried: Option<Carried>) {
        self.is_carried.store(false, Ordering::SeqCst);
        if let Some(Carried { task, runtime, waker }) = carried {
            runtime.spawn(task);
            if let Some(waker) = waker {
                waker.wake();
            }
        }
    }

    fn carried(&self) -> MutexGuard<'_, Option<Carried>> {
        self.carried.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
