use std::{future::poll_fn, pin::pin, sync::Arc, task::Poll};

use super::{flight::Flight, landing::Landing, members::Epoch, notices::Notice};
use crate::sync::checked::OnceLock;

/// The duty to land a flight.
///
/// Dropped without an outcome, the leader tells its followers that there is none.
pub(crate) struct Leader<T> {
    flight: Arc<Flight<T>>,
}

/// The duty to the callers that joined too late for an outcome. No caller can join any more.
///
/// Dropped without an outcome, it sends them to join anew.
pub(crate) struct LateJoiners<T>(Leader<T>);

impl<T> Leader<T> {
    pub(super) fn new(flight: Arc<Flight<T>>) -> Self {
        Self { flight }
    }

    /// Returns the number of this flight in the process.
    pub(crate) fn id(&self) -> u64 {
        self.flight.id
    }

    /// Begins an epoch. To be called before the backend is asked: its answer may go to the callers that
    /// joined before.
    pub(crate) fn begin_epoch(&self) -> Epoch {
        self.flight.members.epoch()
    }

    /// Returns when the leader's work has a task of its own.
    pub(crate) async fn own_task(&self) {
        self.flight.driver.own_task().await;
    }

    /// Completes when a follower gives this notice.
    pub(crate) async fn told(&self, notice: Notice) {
        poll_fn(|cx| self.flight.notices.poll(notice, cx)).await;
    }

    /// Awaits a question, until a follower gives the notice. `None` if it has.
    pub(crate) async fn unless_told<F: Future>(
        &self,
        notice: Notice,
        question: F,
    ) -> Option<F::Output> {
        let notices = &self.flight.notices;
        if notices.is_told(notice) {
            return None;
        }
        let mut question = pin!(question);
        poll_fn(|cx| match question.as_mut().poll(cx) {
            Poll::Ready(answer) => Poll::Ready(Some(answer)),
            Poll::Pending => notices.poll(notice, cx).map(|()| None),
        })
        .await
    }

    /// Lands the flight for the callers that joined before the epoch. Others are still owed an outcome.
    pub(crate) fn land(self, outcome: T, epoch: Epoch) -> Option<LateJoiners<T>> {
        let flight = &self.flight;
        flight.withdraw();
        if flight.members.joined_since(epoch) {
            flight.land(Landing::Before { epoch, outcome, late: OnceLock::new() });
            return Some(LateJoiners(self));
        }
        flight.land(Landing::ForAll(Some(outcome)));
        None
    }

    /// Ends the flight for the callers that have no outcome yet.
    fn end(&self, outcome: Option<T>) {
        match self.flight.landing.get() {
            None => {
                self.flight.withdraw();
                self.flight.land(Landing::ForAll(outcome));
            }
            Some(landing) => {
                if landing.end(outcome) {
                    self.flight.waiters.wake();
                }
            }
        }
    }
}

impl<T> LateJoiners<T> {
    /// Lands the flight with the answer to a question that was asked after this duty began. `None` sends
    /// the late joiners to join anew.
    pub(crate) fn land(self, outcome: Option<T>) {
        self.0.end(outcome);
    }
}

impl<T> Drop for Leader<T> {
    fn drop(&mut self) {
        self.end(None);
        self.flight.flights.census.end();
    }
}
