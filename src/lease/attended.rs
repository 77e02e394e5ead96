//! Work that its caller keeps and does not poll, such as an arm of a loop around `select!`.
//!
//! It must not hold other callers up. At first the caller polls its work itself, which is cheapest.
//! Work that has not ended after [`PAUSE`] goes on in a task. If the caller does not take the
//! outcome of an acquisition within [`PATIENCE`] of these pauses, it is dropped, and so released:
//! the next caller gets the lock. A caller that polls again later begins anew, at the end of the
//! queue.

use std::{
    collections::VecDeque,
    mem::{replace, take},
    panic::resume_unwind,
    pin::Pin,
    sync::{Arc, Mutex, Weak},
    task::{Context, Poll, Waker},
    time::Duration,
};

use futures_util::{FutureExt, future::BoxFuture};
use tokio::{
    runtime::Handle,
    task::yield_now,
    time::{Instant, sleep, sleep_until},
};
use tokio_util::task::AbortOnDropHandle;
use tracing::{Instrument, Span, debug};

use crate::sync::lock;

/// The time between two looks at work.
const PAUSE: Duration = Duration::from_millis(10);
/// How many pauses an outcome waits for its caller. With the pause before the work became a task,
/// the release, and the grant to the next caller it takes 50 ms.
const PATIENCE: u32 = 3;
/// How soon the watch looks again whether a busy runtime has come to the callers.
const BUSY: Duration = Duration::from_millis(5);
/// The time for the release of what was dropped. Work that begins anew would meet it.
const UNDO: Duration = Duration::from_millis(10);

/// Looks after the work of one engine.
#[derive(Clone, Default)]
pub(crate) struct Watch(Arc<Mutex<WatchQueue>>);

#[derive(Default)]
struct WatchQueue {
    /// When to look at which work, in order.
    queue: VecDeque<(Instant, Weak<dyn Look>)>,
    has_task: bool,
}

impl Watch {
    /// Runs work for its caller. Begins it anew if the caller did not take its outcome in time.
    ///
    /// # Cancel safety
    ///
    /// When the future is dropped, so is the work.
    pub(crate) async fn acquire<T: Send + 'static, F>(&self, mut begin: impl FnMut() -> F) -> T
    where
        F: Future<Output = T> + Send + 'static,
    {
        loop {
            if let Some(outcome) = Attended::new(self, begin(), IfLeft::Drop).await {
                return outcome;
            }
            sleep(UNDO).await;
        }
    }

    /// Runs a release, which goes on in a task if it is dropped. Returns `None` if the runtime of
    /// its task has ended.
    pub(super) async fn finish<T: Send + 'static>(
        &self,
        release: impl Future<Output = T> + Send + 'static,
    ) -> Option<T> {
        Attended::new(self, release, IfLeft::GoOn).await
    }

    fn note(&self, work: Weak<dyn Look>) {
        let mut watched = lock(&self.0);
        watched.queue.push_back((Instant::now() + PAUSE, work));
        if !replace(&mut watched.has_task, true) {
            drop(watched);
            tokio::spawn(WatchTask { watch: self.clone(), has_ended: false }.run());
        }
    }
}

/// The task of a watch. It ends when there is nothing to look at.
struct WatchTask {
    watch: Watch,
    has_ended: bool,
}

impl WatchTask {
    async fn run(mut self) {
        while let Some(first) = self.first() {
            sleep_until(first).await;
            // A busy runtime may not have come to the callers yet. It comes to this task behind
            // them.
            while Handle::current().metrics().global_queue_depth() > 0 {
                sleep(BUSY).await;
            }
            for _ in 0..3 {
                yield_now().await;
            }
            let now = Instant::now();
            let due: Vec<_> = {
                let queue = &mut lock(&self.watch.0).queue;
                let count = queue.partition_point(|(at, _)| *at <= now);
                queue.drain(..count).collect()
            };
            due.iter().filter_map(|(_, work)| work.upgrade()).for_each(|work| work.look());
        }
    }

    fn first(&mut self) -> Option<Instant> {
        let mut watched = lock(&self.watch.0);
        let first = watched.queue.front().map(|(at, _)| *at);
        self.has_ended = first.is_none();
        watched.has_task = first.is_some();
        first
    }
}

impl Drop for WatchTask {
    fn drop(&mut self) {
        // Its runtime is gone. The next work that is noted starts it anew.
        if !self.has_ended {
            lock(&self.watch.0).has_task = false;
        }
    }
}

/// Work as its watch sees it.
trait Look: Send + Sync {
    /// Moves the work to a task, or drops an outcome that is not taken.
    fn look(self: Arc<Self>);
}

/// What becomes of work that its caller leaves.
#[derive(Clone, Copy, PartialEq)]
enum IfLeft {
    Drop,
    GoOn,
}

struct Work<T> {
    state: Mutex<State<T>>,
    watch: Watch,
    runtime: Handle,
    if_left: IfLeft,
}

#[derive(Default)]
enum State<T> {
    /// The caller polls it, and is woken by this waker, once it has polled it.
    Carried(BoxFuture<'static, T>, Option<Waker>),
    /// A task polls it. It was looked at so often since its end.
    Moved(AbortOnDropHandle<T>, u32),
    /// The caller has its outcome, or it was dropped.
    #[default]
    Gone,
}

impl<T: Send + 'static> Work<T> {
    fn run(self: &Arc<Self>, work: BoxFuture<'static, T>) -> AbortOnDropHandle<T> {
        let (watch, this) = (self.watch.clone(), Arc::downgrade(self));
        AbortOnDropHandle::new(self.runtime.spawn(async move {
            let outcome = work.await;
            watch.note(this);
            outcome
        }))
    }
}

impl<T: Send + 'static> Look for Work<T> {
    fn look(self: Arc<Self>) {
        let mut state = lock(&self.state);
        match take(&mut *state) {
            State::Carried(work, caller) => {
                *state = State::Moved(self.run(work), 0);
                drop(state);
                caller.into_iter().for_each(Waker::wake);
            }
            State::Moved(task, looks) if self.if_left == IfLeft::GoOn => {
                *state = State::Moved(task, looks);
            }
            State::Moved(task, looks) if looks + 1 < PATIENCE => {
                *state = State::Moved(task, looks + 1);
                drop(state);
                let this = Arc::downgrade(&self);
                self.watch.note(this);
            }
            State::Moved(untaken, _) => {
                drop(state);
                debug!("an acquisition that is not polled is undone");
                drop(untaken);
            }
            State::Gone => {}
        }
    }
}

/// The caller's side of work.
struct Attended<T: Send + 'static>(Arc<Work<T>>);

impl<T: Send + 'static> Attended<T> {
    fn new(watch: &Watch, work: impl Future<Output = T> + Send + 'static, if_left: IfLeft) -> Self {
        let work = work.instrument(Span::current()).boxed();
        let state = Mutex::new(State::Carried(work, None));
        let (watch, runtime) = (watch.clone(), Handle::current());
        Self(Arc::new(Work { state, watch, runtime, if_left }))
    }
}

/// `None` if the outcome was dropped, or if the runtime of the task has ended.
impl<T: Send + 'static> Future for Attended<T> {
    type Output = Option<T>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<T>> {
        let mut state = lock(&self.0.state);
        match take(&mut *state) {
            State::Carried(mut work, caller) => match work.poll_unpin(cx) {
                Poll::Ready(outcome) => Poll::Ready(Some(outcome)),
                Poll::Pending => {
                    *state = State::Carried(work, Some(cx.waker().clone()));
                    drop(state);
                    if caller.is_none() {
                        let work = Arc::downgrade(&self.0);
                        self.0.watch.note(work);
                    }
                    Poll::Pending
                }
            },
            State::Moved(mut task, looks) => match task.poll_unpin(cx) {
                Poll::Ready(Ok(outcome)) => Poll::Ready(Some(outcome)),
                Poll::Ready(Err(error)) => match error.try_into_panic() {
                    Ok(panic) => resume_unwind(panic),
                    Err(_cancelled) => Poll::Ready(None),
                },
                Poll::Pending => {
                    *state = State::Moved(task, looks);
                    Poll::Pending
                }
            },
            State::Gone => Poll::Ready(None),
        }
    }
}

impl<T: Send + 'static> Drop for Attended<T> {
    fn drop(&mut self) {
        let state = take(&mut *lock(&self.0.state));
        if self.0.if_left == IfLeft::GoOn {
            match state {
                State::Carried(work, _) => drop(self.0.runtime.spawn(work)),
                State::Moved(task, _) => drop(task.detach()),
                State::Gone => {}
            }
        }
    }
}
