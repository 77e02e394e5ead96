//! Work that its caller keeps and does not poll, such as an arm of a loop around `select!`.
//!
//! It must not hold other callers up. So an acquisition that was woken and is not polled within
//! [`PATIENCE`] is dropped, and so undone: the next caller gets what it was offered. If its caller
//! polls it again, it begins anew, at the end of the queue. A release goes on in a task instead.

use std::{
    collections::VecDeque,
    pin::Pin,
    sync::{Arc, Mutex, Weak},
    task::{Context, Poll, Wake, Waker},
    time::Duration,
};

use futures_util::{FutureExt, future::BoxFuture, task::AtomicWaker};
use tokio::{
    runtime::Handle,
    task::{JoinHandle, yield_now},
    time::{Instant, sleep, sleep_until},
};
use tracing::debug;

use crate::{
    error::{Error, ErrorKind},
    sync::lock,
};

/// How long an acquisition that was woken may stay unpolled. With the undo and the grant to the
/// next caller it takes 50 ms.
const PATIENCE: Duration = Duration::from_millis(40);
/// How soon the watch looks again at a runtime that is busy.
const BUSY: Duration = Duration::from_millis(5);
/// The time for the undo of an acquisition that begins anew, which would meet its own claim.
const UNDO: Duration = Duration::from_millis(10);

/// The acquisitions of one engine that were woken.
#[derive(Clone, Default)]
pub(crate) struct Attendance(Arc<Mutex<WokenWork>>);

#[derive(Default)]
struct WokenWork {
    /// When each was woken, in order.
    queue: VecDeque<(Instant, Weak<dyn Attended>)>,
    is_watched: bool,
}

impl Attendance {
    /// Runs work for as long as its caller polls it. Begins it anew if it was given up meanwhile.
    pub(crate) async fn run<T: Send + 'static, F>(&self, mut begin: impl FnMut() -> F) -> T
    where
        F: Future<Output = T> + Send + 'static,
    {
        loop {
            let begun = Work::new(self, begin().boxed(), Handle::current(), false);
            if let Some(outcome) = Polled(begun).await {
                return outcome;
            }
            sleep(UNDO).await;
        }
    }

    /// Runs a release that goes on in a task if it is dropped or not polled.
    pub(super) fn finish(
        &self,
        release: impl Future<Output = Result<(), Error>> + Send + 'static,
        runtime: Handle,
    ) -> Unstoppable {
        Unstoppable(Polled(Work::new(self, release.boxed(), runtime, true)))
    }

    fn note(&self, at: Instant, work: Weak<dyn Attended>, runtime: &Handle) {
        let mut woken = lock(&self.0);
        woken.queue.push_back((at, work));
        if !std::mem::replace(&mut woken.is_watched, true) {
            drop(woken);
            runtime.spawn(UnpolledWatch { attendance: self.clone(), has_ended: false }.run());
        }
    }
}

/// The task that looks after what is not polled. It ends when nothing was woken for a moment.
struct UnpolledWatch {
    attendance: Attendance,
    has_ended: bool,
}

impl UnpolledWatch {
    async fn run(mut self) {
        while let Some(first) = self.first() {
            sleep_until(first + PATIENCE).await;
            let now = Instant::now();
            let due: Vec<_> = {
                let queue = &mut lock(&self.attendance.0).queue;
                let count = queue.partition_point(|(at, _)| *at + PATIENCE <= now);
                queue.drain(..count).collect()
            };
            // A busy runtime may not have come to them yet. It comes to this task behind them.
            while Handle::current().metrics().global_queue_depth() > 0 {
                sleep(BUSY).await;
            }
            for _ in 0..3 {
                yield_now().await;
            }
            due.iter().filter_map(|(_, work)| work.upgrade()).for_each(|work| work.look(now));
        }
    }

    fn first(&mut self) -> Option<Instant> {
        let mut woken = lock(&self.attendance.0);
        let first = woken.queue.front().map(|(at, _)| *at);
        self.has_ended = first.is_none();
        woken.is_watched = first.is_some();
        first
    }
}

impl Drop for UnpolledWatch {
    fn drop(&mut self) {
        // Its runtime is gone. The next one that is woken starts it anew.
        if !self.has_ended {
            lock(&self.attendance.0).is_watched = false;
        }
    }
}

/// Work as the [`UnpolledWatch`] sees it.
trait Attended: Send + Sync {
    /// Gives the work up, or moves it to a task, if it was woken too long ago.
    fn look(&self, now: Instant);
}

/// Work, and the waker that it is polled with.
struct Work<T> {
    state: Mutex<State<T>>,
    /// When it was woken, if it was not polled since.
    woken: Mutex<Option<Instant>>,
    caller: AtomicWaker,
    attendance: Attendance,
    runtime: Handle,
    /// It must not end when it is not polled.
    goes_on: bool,
}

enum State<T> {
    /// Its caller polls it.
    Carried(BoxFuture<'static, T>),
    /// A task polls it.
    Moved(JoinHandle<T>),
    /// It has ended, or was given up.
    Gone,
}

impl<T> Work<T> {
    fn new(
        attendance: &Attendance,
        future: BoxFuture<'static, T>,
        runtime: Handle,
        goes_on: bool,
    ) -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::new(State::Carried(future)),
            woken: Mutex::default(),
            caller: AtomicWaker::new(),
            attendance: attendance.clone(),
            runtime,
            goes_on,
        })
    }
}

impl<T: Send + 'static> Attended for Work<T> {
    fn look(&self, now: Instant) {
        // Its caller polls it just now, or has panicked.
        let Ok(mut state) = self.state.try_lock() else { return };
        if lock(&self.woken).is_none_or(|at| at + PATIENCE > now) {
            return;
        }
        match std::mem::replace(&mut *state, State::Gone) {
            State::Carried(future) if self.goes_on => *state = State::Moved(tokio::spawn(future)),
            State::Carried(future) => {
                drop(state);
                debug!("an acquisition that is not polled is undone");
                drop(future);
            }
            other => *state = other,
        }
    }
}

impl<T: Send + 'static> Wake for Work<T> {
    fn wake(self: Arc<Self>) {
        let now = Instant::now();
        let mut woken = lock(&self.woken);
        let is_first = woken.is_none();
        woken.get_or_insert(now);
        drop(woken);
        if is_first {
            let this = Arc::downgrade(&self);
            self.attendance.note(now, this, &self.runtime);
        }
        self.caller.wake();
    }
}

/// The caller's side of the work. Dropped, it drops the work, or moves it to a task. Returns `None`
/// if the work was given up, or its task has ended without an outcome.
struct Polled<T: Send + 'static>(Arc<Work<T>>);

impl<T: Send + 'static> Future for Polled<T> {
    type Output = Option<T>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<T>> {
        let work = &self.0;
        work.caller.register(cx.waker());
        let mut state = lock(&work.state);
        *lock(&work.woken) = None;
        let polled = match &mut *state {
            State::Carried(future) => {
                let waker = Waker::from(work.clone());
                future.as_mut().poll(&mut Context::from_waker(&waker)).map(Some)
            }
            State::Moved(task) => task.poll_unpin(cx).map(Result::ok),
            State::Gone => Poll::Ready(None),
        };
        if polled.is_ready() {
            *state = State::Gone;
        }
        polled
    }
}

impl<T: Send + 'static> Drop for Polled<T> {
    fn drop(&mut self) {
        // Not with the last waker, which may be kept for long.
        let state = std::mem::replace(&mut *lock(&self.0.state), State::Gone);
        if let State::Carried(future) = state
            && self.0.goes_on
        {
            self.0.runtime.spawn(future);
        }
    }
}

/// A release that goes on in a task when it is dropped or not polled before its end.
#[must_use = "dropping it costs a task"]
pub(crate) struct Unstoppable(Polled<Result<(), Error>>);

impl Future for Unstoppable {
    type Output = Result<(), Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let ended = || Err(Error::new(ErrorKind::Backend, "the runtime of the release has ended"));
        self.0.poll_unpin(cx).map(|outcome| outcome.unwrap_or_else(ended))
    }
}
