use std::sync::{Arc, atomic::Ordering};

use super::{group::Flight, work::Task};

/// One caller's place in a flight. Dropping it leaves the flight.
pub(crate) struct Follower<T: Clone> {
    flight: Arc<Flight<T>>,
    /// How many marks there were when he joined.
    joined: u32,
    /// He polls the leader's work, until it gets a task.
    carries: bool,
}

/// What a follower got.
#[derive(Debug)]
pub(crate) enum Waited<T> {
    Outcome(T),
    /// Nothing for him: he joined too late for this outcome, or its leader is gone. Join again.
    Again,
}

impl<T: Clone> Follower<T> {
    /// To be called under the lock of the map.
    pub(super) fn new(flight: Arc<Flight<T>>) -> Self {
        flight.followers.fetch_add(1, Ordering::SeqCst);
        flight.group.enter();
        let joined = flight.marks.load(Ordering::Acquire);
        flight.last_joined.fetch_max(joined, Ordering::AcqRel);
        Self { flight, joined, carries: false }
    }

    /// The number of the flight in the process.
    pub(crate) fn flight(&self) -> u64 {
        self.flight.id
    }

    /// Takes the leader's work along, to poll it while nobody else depends on it.
    pub(crate) fn carry(&mut self, task: Task) {
        self.carries = true;
        self.flight.work.carry(task);
        if self.flight.followers.load(Ordering::SeqCst) > 1 {
            self.flight.work.detach();
        }
    }

    /// Says that someone other than the leader's caller depends on the work.
    pub(super) fn depend(&self) {
        self.flight.work.detach();
    }

    /// Says that it is a loader that will wait.
    pub(crate) fn is_loader(&self) {
        self.flight.needed.give();
    }

    /// Waits until the flight has landed.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the flight, which goes on for the others.
    pub(crate) async fn wait(self) -> Waited<T> {
        if self.carries {
            std::future::poll_fn(|cx| self.flight.work.poll(cx)).await;
        }
        loop {
            // Who carried the work to its end finds its outcome.
            if let Some(waited) = self.outcome() {
                return waited;
            }
            // Made before the next look, it also completes if the flight lands between the two.
            let done = self.flight.done.notified();
            if let Some(waited) = self.outcome() {
                return waited;
            }
            done.await;
        }
    }

    /// What the flight has for him, if it has landed.
    fn outcome(&self) -> Option<Waited<T>> {
        if let Some((outcome, before)) = self.flight.landed.get()
            && self.joined < before.0
        {
            return Some(Waited::Outcome(outcome.clone()));
        }
        Some(match self.flight.ended.get()? {
            Some(outcome) => Waited::Outcome(outcome.clone()),
            None => Waited::Again,
        })
    }
}

impl<T: Clone> Drop for Follower<T> {
    fn drop(&mut self) {
        self.flight.group.leave();
        if self.carries {
            self.flight.work.detach();
        }
        if self.flight.followers.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.flight.group.left(&self.flight);
        }
    }
}
