use std::{
    pin::pin,
    sync::{Arc, atomic::Ordering},
    task::Poll,
};

use super::group::Flight;

/// The duty to land a flight.
///
/// Dropped without an outcome, it tells its followers that there will be none.
pub(crate) struct Leader<T: Clone> {
    flight: Arc<Flight<T>>,
    landed: bool,
}

/// A point in a flight: an outcome may go to those who joined before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Mark(pub(super) u32);

impl Mark {
    /// After everyone: the outcome may go to whoever joined.
    pub(crate) const END: Self = Self(u32::MAX);
}

impl<T: Clone> Leader<T> {
    pub(super) fn new(flight: Arc<Flight<T>>) -> Self {
        Self { flight, landed: false }
    }

    /// The number of this flight in the process.
    pub(crate) fn id(&self) -> u64 {
        self.flight.id
    }

    /// To be called before the backend is asked: its answer may go to those who joined before this.
    pub(crate) fn mark(&self) -> Mark {
        Mark(self.flight.marks.fetch_add(1, Ordering::AcqRel) + 1)
    }

    /// Returns when the leader's work has a task of its own (see [`work`](super::work)).
    pub(crate) async fn own_task(&self) {
        self.flight.work.own_task().await;
    }

    /// What a question brings; nothing, once someone waits who has waited for an answer in vain already.
    pub(crate) async fn unless_hurried<F: Future>(&self, question: F) -> Option<F::Output> {
        let mut question = pin!(question);
        if self.flight.work.is_hurried() {
            return None;
        }
        std::future::poll_fn(|cx| {
            if let Poll::Ready(answer) = question.as_mut().poll(cx) {
                return Poll::Ready(Some(answer));
            }
            match self.flight.work.poll_hurried(cx) {
                Poll::Ready(()) => Poll::Ready(None),
                Poll::Pending => Poll::Pending,
            }
        })
        .await
    }

    /// Completes when a loader waits for this flight.
    pub(crate) async fn needed_by_loader(&self) {
        self.flight.needed.given().await;
    }

    /// Completes when nobody waits any more, if the flight is to be cancelled for that.
    pub(crate) async fn unwanted(&self) {
        self.flight.unwanted.given().await;
    }

    /// Ends the flight for those who joined before the mark. If others joined later, they are still owed
    /// an outcome.
    pub(crate) fn land(mut self, outcome: T, before: Mark) -> Option<Late<T>> {
        let late = self.leave();
        if self.flight.last_joined.load(Ordering::Acquire) < before.0 {
            // It is for everyone who joined.
            late.land(Some(outcome));
            return None;
        }
        let _ = self.flight.landed.set((outcome, before));
        self.flight.waiters.wake();
        Some(late)
    }

    /// Out of the group before anything else, so that nobody joins a flight that has landed.
    fn leave(&mut self) -> Late<T> {
        self.landed = true;
        self.flight.group.remove(&self.flight);
        Late { flight: self.flight.clone(), landed: false }
    }
}

impl<T: Clone> Drop for Leader<T> {
    fn drop(&mut self) {
        if !self.landed {
            self.leave().land(None);
        }
    }
}

/// The duty to those who joined too late for an outcome. Nobody can join any more.
pub(crate) struct Late<T: Clone> {
    flight: Arc<Flight<T>>,
    landed: bool,
}

impl<T: Clone> Late<T> {
    /// Gives them the answer to a question that was asked after this duty began, or sends them to join
    /// anew.
    pub(crate) fn land(mut self, outcome: Option<T>) {
        self.landed = true;
        self.end(outcome);
    }

    fn end(&self, outcome: Option<T>) {
        let _ = self.flight.ended.set(outcome);
        self.flight.waiters.wake();
    }
}

impl<T: Clone> Drop for Late<T> {
    fn drop(&mut self) {
        if !self.landed {
            self.end(None);
        }
        self.flight.group.led();
    }
}
