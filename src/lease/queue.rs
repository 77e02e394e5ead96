//! The local queue: of the callers of one process that wait for one lease, only the first contends
//! at the backend.
//!
//! The caller that contends or holds has the one [`Slot`] of the queue. A holder that releases the
//! lease passes it to the next caller in one round trip, with a new fence. After [`PASSES`] times
//! or [`TURN`] in a row the lease is released instead, so that other processes get it. A dropped
//! slot goes to the next caller, which contends then.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex},
    time::Duration,
};

use hashbrown::{HashMap, hash_map::Entry};
use tokio::{sync::oneshot, time::Instant};

use super::{Acquisition, Engine, LeaseGuard, Upkeep};
use crate::{
    backend::Changes,
    key::{Family, Name},
    sync::lock,
};

/// How often a lease passes on within one process before others get it.
const PASSES: u32 = 16;
/// The same over a majority of servers, whose other processes come to the lock by chance.
const MAJORITY_PASSES: u32 = 9;
/// For how long it does.
const TURN: Duration = Duration::from_millis(50);

/// The local queues of one engine. Each exists while a caller contends or holds.
#[derive(Default)]
pub(super) struct LocalQueues(Mutex<HashMap<Name, VecDeque<QueuedCaller>>>);

pub(super) struct QueuedCaller {
    /// It has asked for nothing yet.
    pub(super) acquisition: Box<Acquisition>,
    pub(super) upkeep: Upkeep,
    pub(super) notify: oneshot::Sender<SlotNotice>,
}

/// The news that a caller in a local queue gets. Dropped unread, it goes to the next caller.
pub(super) enum SlotNotice {
    Passed(LeaseGuard),
    Contend(Box<Acquisition>, Slot),
}

/// The right of one caller to contend for a lease, or to hold it, for this process.
pub(crate) struct Slot {
    engine: Arc<Engine>,
    name: Name,
    passes: u32,
    /// How often the lease passes on in this turn.
    most_passes: u32,
    since: Instant,
    /// The registration of the last caller that had to wait for other processes. It keeps the
    /// channel open, and a release knows by it that others may wait.
    pub(super) changes: Option<Box<Changes>>,
}

impl Engine {
    /// Enters the local queue of a claim. Returns the slot, or what tells of it later.
    pub(super) fn enter_queue(
        self: &Arc<Self>,
        acquisition: Box<Acquisition>,
        upkeep: Upkeep,
    ) -> Result<SlotNotice, oneshot::Receiver<SlotNotice>> {
        let name = acquisition.release.claim.name.clone();
        match lock(&self.queues.0).entry(name.clone()) {
            Entry::Occupied(mut queue) => {
                let (notify, notices) = oneshot::channel();
                let queue = queue.get_mut();
                // Callers that left must not pile up for as long as the lease is held.
                if queue.len() == queue.capacity() {
                    queue.retain(|waiter| !waiter.notify.is_closed());
                }
                queue.push_back(QueuedCaller { acquisition, upkeep, notify });
                Err(notices)
            }
            Entry::Vacant(queue) => {
                queue.insert(VecDeque::new());
                Ok(SlotNotice::Contend(acquisition, Slot::new(self.clone(), name, None)))
            }
        }
    }
}

impl Slot {
    fn new(engine: Arc<Engine>, name: Name, changes: Option<Box<Changes>>) -> Self {
        Self { engine, name, passes: 0, most_passes: PASSES, since: Instant::now(), changes }
    }

    /// Begins the turn of this process, which has won the lease from others. Keeps the registration
    /// of the winner, if it had to wait for them.
    pub(super) fn begin(&mut self, changes: Option<Changes>) {
        let waiting = || lock(&self.engine.queues.0).get(&self.name).map_or(0, VecDeque::len);
        self.passes = 0;
        self.most_passes = match (self.name.family, changes.is_some()) {
            (Family::Redlock, false) => MAJORITY_PASSES,
            // The process had to wait for others. Each of its waiters has the lease once now.
            (Family::Redlock, true) => u32::try_from(waiting()).unwrap_or(PASSES).clamp(1, PASSES),
            _ => PASSES,
        };
        self.since = Instant::now();
        self.changes = changes.map(Box::new);
    }

    /// Takes the next caller to pass the lease to, while the turn of this process lasts.
    pub(super) fn next(&mut self) -> Option<QueuedCaller> {
        if self.passes >= self.most_passes || self.since.elapsed() >= TURN {
            return None;
        }
        self.passes += 1;
        first(lock(&self.engine.queues.0).get_mut(&self.name)?)
    }
}

fn first(queue: &mut VecDeque<QueuedCaller>) -> Option<QueuedCaller> {
    std::iter::from_fn(|| queue.pop_front()).find(|waiter| !waiter.notify.is_closed())
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut queues = lock(&self.engine.queues.0);
        let Some(queue) = queues.get_mut(&self.name) else { return };
        let Some(QueuedCaller { acquisition, notify, .. }) = first(queue) else {
            queues.remove(&self.name);
            return;
        };
        // Unlocked: if the caller leaves just now, its slot is dropped here in turn.
        drop(queues);
        let slot = Self::new(self.engine.clone(), self.name.clone(), self.changes.take());
        drop(notify.send(SlotNotice::Contend(acquisition, slot)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        MemoryBackend,
        backend::{Claim, Mode},
        key::{Key, Namespace},
        lease::Engine,
    };

    /// One caller holds the lease for long, and others try again and again.
    #[tokio::test]
    async fn callers_that_left_are_not_kept_during_a_hold() -> Result<(), crate::Error> {
        let name = Name::new(&Namespace::standard(), Family::Lock, &Key::from("k"), 512)?;
        let engine = Engine::new(Arc::new(MemoryBackend::new()));
        let enter = || {
            let claim = Claim::new(name.clone(), Mode::Exclusive, TURN, TURN);
            let upkeep = Upkeep { renew_every: None, max_hold: Duration::MAX };
            engine.enter_queue(Box::new(Acquisition::new(&engine.janitor, claim)), upkeep)
        };
        let Ok(first) = enter() else { panic!("another caller has the slot") };
        let Err(stays) = enter() else { panic!("there are two slots") };
        for _ in 0..10_000 {
            drop(enter());
        }
        assert!(lock(&engine.queues.0).get(&name).is_some_and(|queue| queue.len() < 16));
        drop(first);
        assert!(matches!(stays.await, Ok(SlotNotice::Contend(..))));
        assert!(lock(&engine.queues.0).is_empty());
        Ok(())
    }
}
