use std::{
    future::poll_fn,
    sync::{Arc, atomic::Ordering},
};

use super::{driver::Task, flight::Flight, landing::Waited, notices::Notice};

/// One caller in a flight. Dropping it leaves the flight.
pub(crate) struct Follower<T> {
    pub(super) flight: Arc<Flight<T>>,
    /// How many callers had joined before it.
    number: u64,
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
        Self { flight, number, stage: Stage::Waiting }
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

    pub(crate) fn tell(&self, notice: Notice) {
        self.flight.notices.tell(notice);
    }
}

impl<T: Clone> Follower<T> {
    /// Brings the leader's work, polls it while no other caller depends on it, and waits.
    ///
    /// # Cancel safety
    ///
    /// As [`wait`](Self::wait). The work goes on in a task.
    pub(crate) async fn lead(&mut self, work: Task) -> Waited<T> {
        self.stage = Stage::Carrying;
        self.flight.driver.carry(work);
        poll_fn(|cx| self.flight.driver.poll(cx)).await;
        self.stage = Stage::Waiting;
        // The last caller that has the flight needs no copy of the outcome.
        let landing = Arc::get_mut(&mut self.flight).and_then(|flight| flight.landing.take());
        match landing.and_then(|landing| landing.into(self.number)) {
            Some(waited) => {
                self.stage = Stage::Served;
                waited
            }
            None => self.wait().await,
        }
    }

    /// Waits until the flight has landed.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future and the follower leaves the flight, which goes on for the others.
    pub(crate) async fn wait(&mut self) -> Waited<T> {
        let follower = &*self;
        let landed = || Some(follower.flight.landing.get()?.of(follower.number)?.cloned());
        let waited = self.flight.waiters.until(landed).await;
        self.stage = Stage::Served;
        waited
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
