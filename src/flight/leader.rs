use std::sync::{Arc, atomic::Ordering};

use super::group::{Flight, Group, Landed};

/// The duty to land a flight.
///
/// Dropped without an outcome, it tells its followers that there will be none.
pub(crate) struct Leader<T: Clone> {
    group: Arc<Group<T>>,
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
    pub(super) fn new(group: Arc<Group<T>>, flight: Arc<Flight<T>>) -> Self {
        Self { group, flight, landed: false }
    }

    /// The number of this flight in the process.
    pub(crate) fn id(&self) -> u64 {
        self.flight.id
    }

    /// To be called before the backend is asked: its answer may go to those who joined before this.
    pub(crate) fn mark(&self) -> Mark {
        Mark(self.flight.marks.fetch_add(1, Ordering::AcqRel) + 1)
    }

    /// Completes when nobody waits any more, if the flight is to be cancelled for that.
    pub(crate) async fn unwanted(&self) {
        self.flight.unwanted.cancelled().await;
    }

    /// Ends the flight.
    pub(crate) fn land(mut self, outcome: T, before: Mark) {
        self.landed = true;
        self.end(Landed::Outcome(outcome, before));
    }

    fn end(&self, landed: Landed<T>) {
        // First out of the group, so that nobody joins a flight that has landed.
        self.group.remove(&self.flight);
        let _ = self.flight.landed.set(landed);
        self.flight.done.notify_waiters();
    }
}

impl<T: Clone> Drop for Leader<T> {
    fn drop(&mut self) {
        if !self.landed {
            self.end(Landed::Lost);
        }
    }
}
