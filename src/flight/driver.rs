//! The leader's work, and which task polls it.
//!
//! While the leader's caller is the only one that depends on the work, it polls the work itself: a
//! hit needs no task. As soon as another caller depends on it, the work moves to a task of its own,
//! and never back. That is when a follower joins, when the leader's caller leaves, and when the
//! group is closed. It is also before a load begins, because a load must not stop when its caller
//! is not polled.

use std::{
    mem,
    pin::Pin,
    task::{Context, Poll, Waker},
};

use crate::sync::checked::{Mutex, Runtime, lock};

pub(crate) type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

#[derive(Default)]
pub(super) struct Driver(Mutex<State>);

#[derive(Default)]
enum State {
    /// The work has not come yet. The leader's caller is going to bring it.
    #[default]
    Expected,
    /// The work has not come yet. A task gets it as soon as it comes.
    Claimed,
    /// The leader's caller polls the work, which is here between two polls.
    Parked(Parked),
    /// The leader's caller is polling the work.
    Polled,
    /// The leader's caller is polling the work for the last time, then a task gets it.
    PolledLast,
    /// A task polls the work, or the work has ended.
    Away,
}

struct Parked {
    task: Task,
    runtime: Runtime,
    /// Wakes the leader's caller when a task has taken the work.
    caller: Option<Waker>,
}

impl Driver {
    /// Moves the work to a task of its own, unless it is there already. To be called without a lock
    /// of the map: a runtime that is gone drops the work at once, and so lands the flight.
    pub(super) fn detach(&self) {
        let mut state = lock(&self.0);
        let (next, parked) = match mem::replace(&mut *state, State::Away) {
            State::Expected | State::Claimed => (State::Claimed, None),
            State::Parked(parked) => (State::Away, Some(parked)),
            State::Polled | State::PolledLast => (State::PolledLast, None),
            State::Away => (State::Away, None),
        };
        *state = next;
        drop(state);
        if let Some(parked) = parked {
            parked.spawn();
        }
    }

    /// Takes the work from the leader's caller, which must be in a runtime.
    pub(super) fn bring(&self, task: Task) {
        let parked = Parked { task, runtime: Runtime::current(), caller: None };
        let mut state = lock(&self.0);
        match mem::replace(&mut *state, State::Away) {
            State::Expected => *state = State::Parked(parked),
            _ => {
                drop(state);
                parked.spawn();
            }
        }
    }

    /// Polls the work for the leader's caller. Ready when there is nothing more for it to poll.
    pub(super) fn poll(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = lock(&self.0);
        let mut parked = match mem::replace(&mut *state, State::Polled) {
            State::Parked(parked) => parked,
            other => {
                *state = other;
                return Poll::Ready(());
            }
        };
        drop(state);
        let polled = parked.task.as_mut().poll(cx);
        let mut state = lock(&self.0);
        if polled.is_ready() {
            *state = State::Away;
            return Poll::Ready(());
        }
        if let State::PolledLast = *state {
            *state = State::Away;
            drop(state);
            parked.spawn();
            return Poll::Ready(());
        }
        let last = match &parked.caller {
            Some(caller) if caller.will_wake(cx.waker()) => None,
            _ => parked.caller.replace(cx.waker().clone()),
        };
        *state = State::Parked(parked);
        drop(state);
        // Without the lock: the drop of a waker may run any code.
        drop(last);
        Poll::Pending
    }

    /// Returns when the work has a task of its own. To be awaited by the work itself.
    pub(super) async fn own_task(&self) {
        std::future::poll_fn(|_| {
            let mut state = lock(&self.0);
            match *state {
                // The caller spawns the work after this poll, so no waker is needed.
                State::Polled | State::PolledLast => {
                    *state = State::PolledLast;
                    Poll::Pending
                }
                _ => Poll::Ready(()),
            }
        })
        .await;
    }
}

impl Parked {
    fn spawn(self) {
        self.runtime.spawn(self.task);
        if let Some(caller) = self.caller {
            caller.wake();
        }
    }
}
