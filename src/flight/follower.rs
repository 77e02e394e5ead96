use std::{
    sync::{Arc, atomic::Ordering},
    task::Poll,
};

use super::{group::Flight, waiters::Slot, work::Task};

/// One caller's place in a flight. Dropping it leaves the flight.
pub(crate) struct Follower<T: Clone> {
    flight: Arc<Flight<T>>,
    /// How many marks there were when he joined.
    joined: u32,
    /// He polls the leader's work, until it gets a task.
    carries: bool,
    /// His place among those who wait for the landing.
    slot: Option<Slot>,
    /// He has what he waited for.
    served: bool,
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
        // Most join at the mark of the one before.
        if flight.last_joined.load(Ordering::Acquire) < joined {
            flight.last_joined.fetch_max(joined, Ordering::AcqRel);
        }
        Self { flight, joined, carries: false, slot: None, served: false }
    }

    /// The number of the flight in the process.
    pub(crate) fn flight(&self) -> u64 {
        self.flight.id
    }

    /// Takes the leader's work along, to poll it while nobody else depends on it.
    pub(crate) fn carry(&mut self, task: Task) {
        self.carries = true;
        self.flight.work.carry(task);
        let flight = &self.flight;
        if flight.followers.load(Ordering::SeqCst) > 1 || flight.group.must_run(flight) {
            flight.work.detach();
        }
    }

    /// Says that someone other than the leader's caller depends on the work.
    pub(super) fn depend(&self) {
        self.flight.work.detach();
    }

    /// Says that he has waited for an answer in vain already.
    pub(crate) fn hurry(&self) {
        self.flight.work.hurry();
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
    pub(crate) async fn wait(&mut self) -> Waited<T> {
        if self.carries {
            std::future::poll_fn(|cx| self.flight.work.poll(cx)).await;
            let last = Arc::get_mut(&mut self.flight);
            if let Some(waited) = last.and_then(|flight| flight.take(self.joined)) {
                self.served = true;
                return waited;
            }
        }
        let waited = std::future::poll_fn(|cx| {
            let Self { flight, joined, slot, .. } = &mut *self;
            match flight.outcome(*joined) {
                Some(waited) => Poll::Ready(waited),
                None => flight.waiters.poll(slot, cx, || flight.outcome(*joined)),
            }
        })
        .await;
        // Landed, the flight has woken everyone, or is about to.
        self.slot = None;
        self.served = true;
        waited
    }
}

impl<T: Clone> Flight<T> {
    /// As [`outcome`](Self::outcome), for the only one who has the flight, and so needs no copy.
    fn take(&mut self, joined: u32) -> Option<Waited<T>> {
        match self.landed.take() {
            Some((outcome, before)) if joined < before.0 => Some(Waited::Outcome(outcome)),
            _ => Some(self.ended.take()?.map_or(Waited::Again, Waited::Outcome)),
        }
    }

    /// What it has for who joined at a mark, if it has landed.
    fn outcome(&self, joined: u32) -> Option<Waited<T>> {
        if let Some((outcome, before)) = self.landed.get()
            && joined < before.0
        {
            return Some(Waited::Outcome(outcome.clone()));
        }
        Some(match self.ended.get()? {
            Some(outcome) => Waited::Outcome(outcome.clone()),
            None => Waited::Again,
        })
    }
}

impl<T: Clone> Drop for Follower<T> {
    fn drop(&mut self) {
        if let Some(slot) = self.slot {
            self.flight.waiters.leave(slot);
        }
        self.flight.group.leave();
        if self.carries {
            self.flight.work.detach();
        }
        if self.flight.followers.fetch_sub(1, Ordering::AcqRel) == 1 && !self.served {
            self.flight.group.left(&self.flight);
        }
    }
}
