//! The leader of a flight, and the news that followers have for it.

use std::{
    future::poll_fn,
    pin::pin,
    sync::{Arc, atomic::Ordering},
    task::{Context, Poll, Waker},
};

use super::{
    flight::Flight,
    landing::{Epoch, Landing},
};
use crate::sync::checked::{Mutex, OnceLock, lock};

/// The duty to land a flight.
///
/// Dropped without an outcome, the leader sends its followers to join anew.
pub(crate) struct Leader<T> {
    pub(super) flight: Arc<Flight<T>>,
}

/// The duty to the callers that joined too late for an outcome. No caller can join any more.
///
/// Dropped without an outcome, it sends them to join anew.
pub(crate) struct LateJoiners<T>(Leader<T>);

impl<T> Leader<T> {
    /// Returns the number of this flight in the process.
    pub(crate) fn id(&self) -> u64 {
        self.flight.id
    }

    /// Begins an epoch. To be called before the backend is asked: its answer may go to the callers
    /// that joined before.
    pub(crate) fn begin_epoch(&self) -> Epoch {
        Epoch { joined: self.flight.joined.load(Ordering::Acquire) }
    }

    /// Returns when the leader's work has a task of its own.
    pub(crate) async fn own_task(&self) {
        self.flight.driver.own_task().await;
    }

    /// Completes when a follower gives this notice.
    pub(crate) async fn told(&self, notice: Notice) {
        poll_fn(|cx| self.flight.notices.poll(notice, cx)).await;
    }

    /// Asks a question in a new epoch, and awaits the answer. `None` if a follower is in a hurry.
    pub(crate) async fn ask<F: Future>(&self, question: F) -> (Option<F::Output>, Epoch) {
        let epoch = Epoch { joined: self.flight.joined.load(Ordering::Acquire) };
        let notices = &self.flight.notices;
        let mut question = pin!(question);
        let mut is_asked = false;
        let answer = poll_fn(|cx| {
            if !is_asked && notices.poll(Notice::Hurry, cx).is_ready() {
                return Poll::Ready(None);
            }
            is_asked = true;
            match question.as_mut().poll(cx) {
                Poll::Ready(answer) => Poll::Ready(Some(answer)),
                Poll::Pending => notices.poll(Notice::Hurry, cx).map(|()| None),
            }
        });
        (answer.await, epoch)
    }

    /// Lands the flight for the first time, for the followers that take it and joined before the
    /// epoch. The flight goes on, and callers may still join it.
    pub(crate) fn land_first(&self, outcome: T, epoch: Epoch) {
        self.flight.first.land(outcome);
        self.admit(epoch);
    }

    /// Admits the callers that joined before this epoch to the first landing.
    pub(crate) fn admit(&self, epoch: Epoch) {
        self.flight.first.admit(epoch);
        self.flight.waiters.wake();
    }

    /// Completes when a follower waits that joined too late for the first landing.
    pub(crate) async fn late_joiner(&self) {
        self.told(Notice::LateJoiner).await;
        self.flight.notices.forget(Notice::LateJoiner);
    }

    /// Sends the late joiners of the first landing to join anew. The next caller begins a new
    /// flight.
    pub(crate) fn close_first(&self) {
        let flight = &self.flight;
        // Out of the map first, so that no caller joins this flight again.
        flight.flights.map.remove(flight.hash, |other| other.id == flight.id);
        flight.first.close();
        flight.waiters.wake();
    }

    /// Lands the flight for the callers that joined before the epoch. The others are still owed an
    /// outcome.
    pub(crate) fn land(self, outcome: T, epoch: Epoch) -> Option<LateJoiners<T>> {
        let flight = &self.flight;
        // Out of the map first, so that no caller joins a flight that has landed.
        flight.flights.map.remove(flight.hash, |other| other.id == flight.id);
        let late = flight.joined.load(Ordering::Relaxed) > epoch.joined;
        let _ = flight.landing.set(match late {
            true => Landing::Before { epoch, outcome, late: OnceLock::default() },
            false => Landing::ForAll(Some(outcome)),
        });
        flight.waiters.wake();
        late.then(|| LateJoiners(self))
    }
}

impl<T> LateJoiners<T> {
    /// Lands the flight with the answer to a question that was asked after this duty began. `None`
    /// sends the late joiners to join anew.
    pub(crate) fn land(self, outcome: Option<T>) {
        if let Some(Landing::Before { late, .. }) = self.0.flight.landing.get() {
            let _ = late.set(outcome);
            self.0.flight.waiters.wake();
        }
    }
}

impl<T> Drop for Leader<T> {
    fn drop(&mut self) {
        let flight = &self.flight;
        match flight.landing.get() {
            Some(Landing::ForAll(_)) => {}
            Some(Landing::Before { late, .. }) => {
                if late.set(None).is_ok() {
                    flight.waiters.wake();
                }
            }
            None => {
                flight.flights.map.remove(flight.hash, |other| other.id == flight.id);
                let _ = flight.landing.set(Landing::ForAll(None));
                flight.waiters.wake();
            }
        }
        flight.flights.leaders.end();
    }
}

/// The news that followers have for the leader of their flight.
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
pub(super) struct Notices(Mutex<NoticeState>);

#[derive(Default)]
struct NoticeState {
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
