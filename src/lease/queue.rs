//! The local queue: of the callers of one process that wait for one lease, only the first contends
//! at the backend.
//!
//! The caller that contends or holds has the one [`Slot`] of the queue. A holder that releases the
//! lease passes it to the next caller in one round trip, with a new fence. After [`PASSES`] times
//! or [`TURN`] in a row the lease is released instead, so that other processes get it. A dropped
//! slot goes to the next caller, which contends then.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use hashbrown::{HashMap, hash_map::Entry};
use tokio::{runtime::Handle, sync::oneshot, time::Instant};

use super::{Lease, Upkeep};
use crate::{
    backend::{Changes, Claim},
    key::{Family, Name},
    sync::lock,
};

/// How often a lease passes on within one process before other processes get it.
const PASSES: u32 = 16;
/// The same over a majority of servers, whose other processes come to the lock by chance.
const MAJORITY_PASSES: u32 = 9;
/// For how long it does.
const TURN: Duration = Duration::from_millis(50);

/// The local queues of one engine. Each exists while a caller contends or holds.
#[derive(Default)]
pub(super) struct LocalQueues(Mutex<CallersByName>);

type CallersByName = HashMap<Name, VecDeque<QueuedCaller>>;

/// A caller in a local queue.
pub(super) struct QueuedCaller {
    pub(super) claim: Claim,
    pub(super) upkeep: Upkeep,
    pub(super) runtime: Handle,
    notify: oneshot::Sender<SlotNotice>,
}

/// The news that a caller in a local queue gets.
pub(super) enum SlotNotice {
    /// The lease was passed to it.
    Passed(Arc<Lease>),
    /// It contends now.
    Contend(Slot),
}

/// The right of one caller to contend for a lease, or to hold it, for this process.
pub(super) struct Slot {
    queues: Arc<LocalQueues>,
    name: Name,
    passes: u32,
    /// How often the lease passes on in this turn.
    most_passes: u32,
    since: Instant,
    /// The subscription of the last caller that contended, for the next one.
    changes: Option<Box<Changes>>,
}

impl LocalQueues {
    /// Enters the queue of a claim. Returns the slot, or what tells of it later.
    pub(super) fn enter(
        self: &Arc<Self>,
        claim: &Claim,
        upkeep: Upkeep,
    ) -> Result<Slot, oneshot::Receiver<SlotNotice>> {
        match self.queues().entry(claim.name.clone()) {
            Entry::Occupied(mut queue) => {
                let (notify, notices) = oneshot::channel();
                let queue = queue.get_mut();
                // Callers that left must not pile up for as long as the lease is held.
                if queue.len() == queue.capacity() {
                    queue.retain(|waiter| !waiter.notify.is_closed());
                }
                let (claim, runtime) = (claim.clone(), Handle::current());
                queue.push_back(QueuedCaller { claim, upkeep, runtime, notify });
                Err(notices)
            }
            Entry::Vacant(queue) => {
                queue.insert(VecDeque::new());
                Ok(Slot::new(self.clone(), claim.name.clone()))
            }
        }
    }

    fn queues(&self) -> MutexGuard<'_, CallersByName> {
        lock(&self.0)
    }
}

impl QueuedCaller {
    /// Notifies the caller. Returns the notice if the caller has left.
    pub(super) fn notify(self, notice: SlotNotice) -> Option<SlotNotice> {
        self.notify.send(notice).err()
    }
}

impl Slot {
    fn new(queues: Arc<LocalQueues>, name: Name) -> Self {
        let since = Instant::now();
        Self { queues, name, passes: 0, most_passes: PASSES, since, changes: None }
    }

    /// Begins the turn of this process, which has won the lease from others, and keeps the
    /// subscription of the winner for the next caller.
    ///
    /// A subscription that no caller needs ends with the hold, and not while others wait.
    pub(super) fn begin(&mut self, changes: Option<Changes>) {
        self.passes = 0;
        self.most_passes = match (self.name.family(), &changes) {
            (Family::Redlock, None) => MAJORITY_PASSES,
            // The process had to wait for others. Each of its waiters has the lease once now.
            (Family::Redlock, Some(_)) => self.waiting().clamp(1, PASSES),
            _ => PASSES,
        };
        self.since = Instant::now();
        self.changes = changes.map(Box::new);
    }

    /// Returns the number of callers behind this one.
    fn waiting(&self) -> u32 {
        let waiting = self.queues.queues().get(&self.name).map_or(0, VecDeque::len);
        u32::try_from(waiting).unwrap_or(u32::MAX)
    }

    /// Takes the subscription of the last caller that contended.
    pub(super) fn take_changes(&mut self) -> Option<Changes> {
        self.changes.take().map(|changes| *changes)
    }

    /// Takes the next caller to pass the lease to, while the turn of this process lasts.
    pub(super) fn next(&mut self) -> Option<QueuedCaller> {
        if self.passes >= self.most_passes || self.since.elapsed() >= TURN {
            return None;
        }
        self.passes += 1;
        first(self.queues.queues().get_mut(&self.name)?)
    }
}

/// Takes the first caller that has not left.
fn first(queue: &mut VecDeque<QueuedCaller>) -> Option<QueuedCaller> {
    std::iter::from_fn(|| queue.pop_front()).find(|waiter| !waiter.notify.is_closed())
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut queues = self.queues.queues();
        let Some(queue) = queues.get_mut(&self.name) else { return };
        let Some(waiter) = first(queue) else {
            queues.remove(&self.name);
            return;
        };
        // Unlocked: if the caller leaves just now, its slot is dropped here in turn.
        drop(queues);
        let mut slot = Self::new(self.queues.clone(), self.name.clone());
        slot.changes = self.changes.take();
        drop(waiter.notify(SlotNotice::Contend(slot)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        backend::Mode,
        key::{Key, Namespace},
    };

    /// One caller holds the lease for long, and others try again and again.
    #[tokio::test]
    async fn callers_that_left_are_not_kept_during_a_hold() -> Result<(), crate::Error> {
        let name = Name::new(&Namespace::standard(), Family::Lock, &Key::from("k"), 512)?;
        let claim = Claim::new(name.clone(), Mode::Exclusive, TURN, TURN);
        let upkeep = Upkeep { renew_every: None, max_hold: Duration::MAX };
        let queues = Arc::<LocalQueues>::default();
        let Ok(slot) = queues.enter(&claim, upkeep) else { panic!("another caller has the slot") };
        let Err(stays) = queues.enter(&claim, upkeep) else { panic!("there are two slots") };
        for _ in 0..10_000 {
            drop(queues.enter(&claim, upkeep));
        }
        assert!(queues.queues().get(&name).is_some_and(|queue| queue.len() < 16));
        drop(slot);
        assert!(matches!(stays.await, Ok(SlotNotice::Contend(_))));
        assert!(queues.queues().is_empty());
        Ok(())
    }
}
