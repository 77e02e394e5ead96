//! The local queue: of the callers of one process that wait for one lease, only the first contends
//! at the backend.
//!
//! The caller that contends or holds has the one [`Slot`] of the queue. A holder that releases the
//! lease passes it to the next caller in one round trip, with a new fence. After [`PASSES`] times
//! or [`TURN`] in a row the lease is released instead, so that other processes get it. A dropped
//! slot goes to the next caller, which contends then.
//!
//! The future of a caller that has the slot may not be polled. The callers behind it do not wait
//! for that: once the caller with the slot has left something unread for [`UNREAD`], or its lease
//! has ended while it waits for further ones, they contend without a slot. The backend still
//! decides who gets the lease, so they need not take the slot away.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use dashmap::{DashMap, Entry};
use tokio::{
    sync::oneshot,
    time::{Instant, sleep_until},
};

use super::Acquisition;
use crate::{
    backend::{Changes, channels::Inbox},
    key::{Family, Name},
    random::Hasher,
};

/// How often a lease passes on within one process before others get it.
const PASSES: u32 = 16;
/// The same over a majority of servers, whose other processes come to the lock by chance.
const MAJORITY_PASSES: u32 = 9;
/// The longest time for which it passes on so.
const TURN: Duration = Duration::from_millis(50);

/// How long the caller with the slot may leave unread what it was given: the slot, an answer, or a
/// push. It is half of the lease, if that is shorter.
const UNREAD: Duration = Duration::from_secs(1);

/// The local queues of one engine. Each exists while a caller contends or holds.
#[derive(Default)]
pub(super) struct LocalQueues(DashMap<Name, LocalQueue, Hasher>);

struct LocalQueue {
    waiters: VecDeque<QueuedCaller>,
    slot: SlotUse,
}

/// What the caller with the slot does.
enum SlotUse {
    /// It has its guard.
    Holds,
    /// Since then it has had the slot, or a request under way.
    Asks(Instant),
    /// It sleeps until this time, or until a push comes into the inbox.
    Sleeps(Instant, Arc<Inbox>),
    /// It has a lease until this time, and waits for further ones.
    Has(Instant),
}

/// A caller that waits for the slot.
pub(super) struct QueuedCaller {
    /// It has asked for nothing yet.
    pub(super) acquisition: Box<Acquisition>,
    pub(super) notify: oneshot::Sender<SlotNotice>,
}

/// The slot for a caller in a local queue, with its acquisition. The lease may have been passed to
/// that already. Dropped unread, the lease is released, and the slot goes to the next caller.
pub(super) struct SlotNotice {
    pub(super) acquisition: Box<Acquisition>,
    pub(super) slot: Slot,
}

/// The right of one caller to contend for a lease, or to hold it, for this process.
pub(crate) struct Slot {
    queues: Arc<LocalQueues>,
    name: Name,
    passes: u32,
    /// How often the lease passes on in this turn.
    most_passes: u32,
    since: Instant,
    /// The registration of the last caller that had to wait for other processes. It keeps the
    /// channel open, and a release knows by it that others may wait.
    pub(super) changes: Option<Box<Changes>>,
}

impl LocalQueues {
    /// Enters the local queue of a claim. Returns the slot, or what tells of it later.
    pub(super) fn enter(
        self: &Arc<Self>,
        acquisition: Box<Acquisition>,
    ) -> Result<SlotNotice, oneshot::Receiver<SlotNotice>> {
        let name = acquisition.claim().name.clone();
        match self.0.entry(name.clone()) {
            Entry::Occupied(mut queue) => {
                let (notify, notices) = oneshot::channel();
                queue.get_mut().push(QueuedCaller { acquisition, notify });
                Err(notices)
            }
            Entry::Vacant(queue) => {
                let slot = SlotUse::Asks(Instant::now());
                queue.insert(LocalQueue { waiters: VecDeque::new(), slot });
                Ok(SlotNotice { acquisition, slot: Slot::new(self.clone(), name, None) })
            }
        }
    }

    /// Completes when the caller with the slot of a name has left something unread for too long.
    ///
    /// A waiter looks now and then, and no caller is woken for it: a caller that is not polled is
    /// rare.
    pub(super) async fn unread(&self, name: &Name, lease: Duration) {
        let limit = UNREAD.min(lease / 2);
        loop {
            let now = Instant::now();
            let next_look = now + limit;
            let unread_at = self.0.get(name).and_then(|queue| queue.slot.unread_at(limit));
            let is_unread_at = unread_at.unwrap_or(next_look);
            if is_unread_at <= now {
                return;
            }
            sleep_until(is_unread_at.min(next_look)).await;
        }
    }

    /// Returns how many callers wait behind the one with the slot, for each name that has some.
    pub(super) fn waiters(&self) -> Vec<(Name, usize)> {
        let mut waiters = Vec::new();
        for queue in &self.0 {
            let waits = |caller: &&QueuedCaller| !caller.notify.is_closed();
            let count = queue.waiters.iter().filter(waits).count();
            if count > 0 {
                waiters.push((queue.key().clone(), count));
            }
        }
        waiters
    }

    fn set_use(&self, name: &Name, slot: SlotUse) {
        if let Some(mut queue) = self.0.get_mut(name) {
            queue.slot = slot;
        }
    }
}

impl LocalQueue {
    fn push(&mut self, caller: QueuedCaller) {
        // Callers that left must not pile up for as long as the lease is held.
        if self.waiters.len() == self.waiters.capacity() {
            self.waiters.retain(|waiter| !waiter.notify.is_closed());
        }
        self.waiters.push_back(caller);
    }

    /// Takes the first caller that still waits, and gives it the slot.
    fn first(&mut self) -> Option<QueuedCaller> {
        while let Some(first) = self.waiters.pop_front() {
            if !first.notify.is_closed() {
                self.slot = SlotUse::Asks(Instant::now());
                return Some(first);
            }
        }
        None
    }
}

impl SlotUse {
    /// Returns when the caller with the slot will have left something unread for this limit.
    fn unread_at(&self, limit: Duration) -> Option<Instant> {
        match self {
            Self::Holds => None,
            Self::Asks(since) => Some(*since + limit),
            Self::Sleeps(until, inbox) => {
                let pushed = inbox.unread_since();
                Some(pushed.map_or(*until, |pushed| pushed.min(*until)) + limit)
            }
            Self::Has(end) => Some(*end),
        }
    }
}

impl Slot {
    fn new(queues: Arc<LocalQueues>, name: Name, changes: Option<Box<Changes>>) -> Self {
        let since = Instant::now();
        Self { queues, name, passes: 0, most_passes: PASSES, since, changes }
    }

    /// Begins the turn of this process, which has won the lease from others. Keeps the registration
    /// of the winner, if it had to wait for them.
    pub(super) fn begin_turn(&mut self, changes: Option<Changes>) {
        self.passes = 0;
        self.most_passes = PASSES;
        if self.name.family == Family::Redlock {
            self.most_passes = match changes {
                None => MAJORITY_PASSES,
                // The process had to wait for others. Each of its waiters has the lease once.
                Some(_) => self.waiters().clamp(1, PASSES),
            };
        }
        self.since = Instant::now();
        self.changes = changes.map(Box::new);
    }

    fn waiters(&self) -> u32 {
        let queue = self.queues.0.get(&self.name);
        let waiters = queue.map_or(0, |queue| queue.waiters.len());
        u32::try_from(waiters).unwrap_or(PASSES)
    }

    /// Notes that the caller sends a request.
    pub(super) fn asks(&self) {
        self.queues.set_use(&self.name, SlotUse::Asks(Instant::now()));
    }

    /// Notes that the caller sleeps until then, or until a push comes.
    pub(super) fn sleeps(&self, until: Instant, inbox: Arc<Inbox>) {
        self.queues.set_use(&self.name, SlotUse::Sleeps(until, inbox));
    }

    /// Notes that the caller has a lease until then, and waits for further ones.
    pub(super) fn lasts(&self, end: Instant) {
        self.queues.set_use(&self.name, SlotUse::Has(end));
    }

    /// Notes that the caller has its guard.
    pub(super) fn holds(&self) {
        self.queues.set_use(&self.name, SlotUse::Holds);
    }

    /// Takes the next caller to pass the lease to, while the turn of this process lasts.
    pub(super) fn next(&mut self) -> Option<QueuedCaller> {
        if self.passes >= self.most_passes || self.since.elapsed() >= TURN {
            return None;
        }
        self.passes += 1;
        self.queues.0.get_mut(&self.name)?.first()
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let Entry::Occupied(mut queue) = self.queues.0.entry(self.name.clone()) else { return };
        let Some(QueuedCaller { acquisition, notify }) = queue.get_mut().first() else {
            queue.remove();
            return;
        };
        // Unlocked: if the caller leaves just now, its slot is dropped here in turn.
        drop(queue);
        let slot = Self::new(self.queues.clone(), self.name.clone(), self.changes.take());
        drop(notify.send(SlotNotice { acquisition, slot }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        MemoryBackend,
        backend::{Claim, Mode},
        key::{Key, Namespace},
        lease::Janitor,
    };

    /// One caller holds the lease for long, and others try again and again.
    #[tokio::test]
    async fn callers_that_left_are_not_kept_during_a_hold() -> Result<(), crate::Error> {
        let name = Name::new(&Namespace::standard(), Family::Lock, &Key::from("k"), 512)?;
        let janitor = Janitor::new(Arc::new(MemoryBackend::new()));
        let queues = Arc::new(LocalQueues::default());
        let enter = || {
            let claim = Claim::new(name.clone(), Mode::Exclusive, TURN, TURN);
            queues.enter(Box::new(Acquisition::new(&janitor, claim)))
        };
        let Ok(first) = enter() else { panic!("another caller has the slot") };
        let Err(stays) = enter() else { panic!("there are two slots") };
        for _ in 0..10_000 {
            drop(enter());
        }
        assert!(queues.0.get(&name).is_some_and(|queue| queue.waiters.len() < 16));
        drop(first);
        assert!(stays.await.is_ok_and(|notice| !notice.acquisition.is_granted()));
        assert!(queues.0.is_empty());
        Ok(())
    }
}
