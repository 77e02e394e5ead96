use std::{
    future::poll_fn,
    pin::pin,
    sync::{Arc, atomic::Ordering},
    task::{Poll, ready},
};

use super::{
    driver::Task,
    flight::Flight,
    landing::{First, Landing, Waited},
    notices::Notice,
};

/// One caller in a flight. Dropping it leaves the flight.
pub(crate) struct Follower<T> {
    pub(super) flight: Arc<Flight<T>>,
    /// How many callers had joined before it.
    number: u64,
    /// Whether the first of two landings is of use to it.
    takes_first: bool,
    stage: Stage,
}

enum Stage {
    /// It polls the leader's work, until a task does.
    Carrying,
    /// It waits for the landing.
    Waiting,
    /// It has what it waited for.
    Served,
}

impl<T> Follower<T> {
    /// Joins a flight. To be called under the lock of the map.
    pub(super) fn new(flight: Arc<Flight<T>>) -> Self {
        flight.flights.waiting.fetch_add(1, Ordering::Relaxed);
        let number = flight.joined.fetch_add(1, Ordering::Release);
        Self { flight, number, takes_first: false, stage: Stage::Waiting }
    }

    /// Makes the leader's work independent of its caller, if this is the second caller. The later
    /// ones find it so. To be called without the lock of the map.
    pub(super) fn depend(&self) {
        if self.number == 1 {
            self.flight.driver.detach();
        }
    }

    /// Returns the number of the flight in the process.
    pub(crate) fn flight_id(&self) -> u64 {
        self.flight.id
    }

    /// Takes the outcome of the first landing, if there are two.
    pub(crate) fn take_first(&mut self) {
        self.takes_first = true;
    }

    /// Waits for the last landing from here on, even if there was a first one.
    pub(crate) fn leave_first(&mut self) {
        self.takes_first = false;
    }

    pub(crate) fn tell(&self, notice: Notice) {
        self.flight.notices.tell(notice);
    }
}

impl<T> Follower<T> {
    /// Lets the flight go on, even if no caller is left.
    pub(crate) fn leave_behind(&self) {
        let _ = self.flight.goes_on.set(());
    }
}

impl<T: Clone> Follower<T> {
    /// Brings the leader's work, and polls it while no other caller depends on it. `None` if there
    /// is still something to [wait](Self::wait) for.
    ///
    /// # Cancel safety
    ///
    /// As [`wait`](Self::wait). The work goes on in a task.
    pub(crate) fn lead(&mut self, work: Task) -> impl Future<Output = Option<Waited<T>>> {
        self.stage = Stage::Carrying;
        let mut work = Some(work);
        // Not an async function, whose future would hold its arguments twice.
        poll_fn(move |cx| {
            ready!(self.flight.driver.poll(&mut work, cx));
            self.stage = Stage::Waiting;
            // The last caller that has the flight needs no copy of the outcome.
            let landing = Arc::get_mut(&mut self.flight).and_then(|flight| flight.landing.take());
            let waited = landing.map(|landing| match landing {
                // The leader's caller joined before each epoch.
                Landing::ForAll(Some(outcome)) | Landing::Before { outcome, .. } => {
                    Waited::Outcome(outcome)
                }
                Landing::ForAll(None) => Waited::JoinAgain,
            });
            if waited.is_some() {
                self.stage = Stage::Served;
            }
            Poll::Ready(waited)
        })
    }

    /// Waits until the flight has landed, for the first time if that is of use to this follower.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future and the follower leaves the flight, which goes on for the others.
    pub(crate) async fn wait(&mut self) -> Waited<T> {
        let waited = self.landed().await;
        self.stage = Stage::Served;
        waited
    }

    async fn landed(&self) -> Waited<T> {
        let (flight, number) = (&*self.flight, self.number);
        let first = || self.takes_first.then(|| flight.first.of(number));
        let mut waiting = pin!(flight.waiters.until(|| match first() {
            Some(First::Admitted(outcome)) => Some(Waited::Outcome(outcome.clone())),
            Some(First::Closed) => Some(Waited::JoinAgain),
            _ => Some(flight.landing.get()?.of(number)?.cloned()),
        }));
        let waited = poll_fn(|cx| {
            let waited = waiting.as_mut().poll(cx);
            // After the registration: a first landing that comes later wakes this follower.
            if waited.is_pending() && matches!(first(), Some(First::Late)) {
                flight.notices.tell(Notice::LateJoiner);
            }
            waited
        });
        waited.await
    }
}

impl<T> Drop for Follower<T> {
    fn drop(&mut self) {
        let flight = &self.flight;
        if let Stage::Carrying = self.stage {
            flight.driver.detach();
        }
        flight.flights.waiting.fetch_sub(1, Ordering::Relaxed);
        let left = flight.left.fetch_add(1, Ordering::AcqRel) + 1;
        let is_last = left == flight.joined.load(Ordering::Relaxed);
        if is_last && !matches!(self.stage, Stage::Served) {
            flight.abandon();
        }
    }
}
