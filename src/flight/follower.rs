use std::{future::poll_fn, sync::Arc};

use super::{driver::Task, flight::Flight, landing::Waited, notices::Notice};

/// One caller in a flight. Dropping it leaves the flight.
pub(crate) struct Follower<T> {
    flight: Arc<Flight<T>>,
    /// The number that it joined with.
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
        flight.flights.census.enter();
        let number = flight.members.join();
        Self { flight, number, stage: Stage::Waiting }
    }

    /// Makes the leader's work independent of its caller, if this is the second caller. The later ones
    /// find it so. To be called without the lock of the map.
    pub(super) fn depend(&self) {
        if self.number == 1 {
            self.flight.driver.detach();
        }
    }

    /// Returns the number of the flight in the process.
    pub(crate) fn flight_id(&self) -> u64 {
        self.flight.id
    }

    /// Takes the leader's work along, to poll it while no other caller depends on it.
    pub(crate) fn carry(&mut self, task: Task) {
        self.stage = Stage::Carrying;
        self.flight.driver.carry(task);
    }

    pub(crate) fn tell(&self, notice: Notice) {
        self.flight.notices.tell(notice);
    }
}

impl<T: Clone> Follower<T> {
    /// Waits until the flight has landed.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future and the follower leaves the flight, which goes on for the others.
    pub(crate) async fn wait(&mut self) -> Waited<T> {
        if let Stage::Carrying = self.stage {
            poll_fn(|cx| self.flight.driver.poll(cx)).await;
            self.stage = Stage::Waiting;
            // The last caller that has the flight needs no copy of the outcome.
            let landing = Arc::get_mut(&mut self.flight).and_then(|flight| flight.landing.take());
            if let Some(waited) = landing.and_then(|landing| landing.into(self.number)) {
                self.stage = Stage::Served;
                return waited;
            }
        }
        let follower = &*self;
        let landed = || Some(follower.flight.landing.get()?.of(follower.number)?.cloned());
        let waited = self.flight.waiters.until(landed).await;
        self.stage = Stage::Served;
        waited
    }
}

impl<T> Drop for Follower<T> {
    fn drop(&mut self) {
        if let Stage::Carrying = self.stage {
            self.flight.driver.detach();
        }
        self.flight.flights.census.leave();
        let last = self.flight.members.leave();
        if last && !matches!(self.stage, Stage::Served) {
            self.flight.abandon();
        }
    }
}
