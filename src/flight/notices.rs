//! The news that followers have for the leader of their flight.

use std::task::{Context, Poll, Waker};

use crate::sync::checked::{Mutex, lock};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Notice {
    /// A follower has waited for an answer in vain already, so the leader should not wait for one.
    Hurry,
    /// A loader waits for this flight, so the leader must not wait for a permit that loaders hold.
    NeededByLoader,
    /// No caller waits any more, and the flight is to be cancelled for that.
    Unwanted,
    /// A follower waits that joined too late for the first landing.
    LateJoiner,
}

#[derive(Default)]
pub(super) struct Notices(Mutex<State>);

#[derive(Default)]
struct State {
    /// By the number of the notice.
    told: [bool; 4],
    /// The leader's task, if it waits for a notice.
    leader: Option<Waker>,
}

impl Notices {
    pub(super) fn tell(&self, notice: Notice) {
        let mut state = lock(&self.0);
        state.told[notice as usize] = true;
        let leader = state.leader.take();
        drop(state);
        if let Some(leader) = leader {
            leader.wake();
        }
    }

    /// Forgets a notice, which may then be given again.
    pub(super) fn forget(&self, notice: Notice) {
        lock(&self.0).told[notice as usize] = false;
    }

    /// Polls for a notice, on behalf of the leader's one task.
    pub(super) fn poll(&self, notice: Notice, cx: &Context<'_>) -> Poll<()> {
        let mut state = lock(&self.0);
        if state.told[notice as usize] {
            return Poll::Ready(());
        }
        let last = match &state.leader {
            Some(leader) if leader.will_wake(cx.waker()) => None,
            _ => state.leader.replace(cx.waker().clone()),
        };
        // Without the lock, because the last reference to a task may drop a follower of this
        // flight.
        drop(state);
        drop(last);
        Poll::Pending
    }
}
