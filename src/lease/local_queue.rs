//! The local queue: of the callers of one process that wait for one lease, only the first contends
//! at the backend.
//!
//! The caller that contends or holds has the one [`Slot`] of the queue. A holder that releases the
//! lease passes the lease to the next caller in one round trip, with a new fence. A streak of such
//! passes ends after [`PASSES`] passes or [`LONGEST_STREAK`]. Then the lease is released, so that
//! other processes get it. A dropped slot goes to the next caller, which then contends.
//!
//! The future of the caller with the slot may not be polled. The callers behind it contend without
//! a slot in three cases:
//!
//! - The caller with the slot has not read an answer or a push for [`UNREAD`]. The time of an
//!   answer counts from the start of its request, because only the caller itself sees the answer.
//! - The caller with the slot waits for further leases, and its lease has ended.
//! - A task that waits for a permit has the slot for longer than such a wait takes.
//!
//! No caller takes the slot away, because the backend decides which claim is granted.

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

/// How often a lease passes on within one process before other processes get the lease.
const PASSES: u32 = 16;
/// The same over a majority of servers, where the next process gets the lock by chance.
const MAJORITY_PASSES: u32 = 9;
/// How long a lease passes on within one process before other processes get the lease.
const LONGEST_STREAK: Duration = Duration::from_millis(50);

/// How long the caller with the slot may leave the slot, an answer or a push unread. An answer
/// counts from the start of its request. The limit is half of the lease, if that is shorter.
const UNREAD: Duration = Duration::from_secs(1);

/// The local queues of one engine. Each exists while a caller contends or holds.
#[derive(Default)]
pub(super) struct LocalQueues {
    by_name: DashMap<Name, LocalQueue, Hasher>,
}

/// What a caller gets when it enters a local queue.
pub(super) enum Entered {
    /// The slot, because no other caller has it.
    First(SlotNotice),
    /// A receiver that gets the slot later.
    Behind(oneshot::Receiver<SlotNotice>),
}

struct LocalQueue {
    waiters: VecDeque<QueuedCaller>,
    slot_use: SlotUse,
}

/// What the caller with the slot does.
enum SlotUse {
    /// The caller has its guard.
    Guard,
    /// A task has the slot, and waits for a permit to send the request of the caller, until this
    /// time.
    PermitWait(Instant),
    /// The caller has had the slot, or a request under way, since this time.
    Request(Instant),
    /// The caller sleeps until this time, or until a push comes into the inbox.
    Sleep(Instant, Arc<Inbox>),
    /// The caller has a lease until this time, and waits for further leases.
    Lease(Instant),
}

/// A caller that waits for the slot.
pub(super) struct QueuedCaller {
    /// The acquisition, which has sent no request yet.
    pub(super) acquisition: Box<Acquisition>,
    pub(super) notify: oneshot::Sender<SlotNotice>,
}

/// The slot for a caller in a local queue, with the acquisition of the caller. The acquisition may
/// have the lease already, by a pass. If the notice is dropped unread, the lease is released, and
/// the slot goes to the next caller.
pub(super) struct SlotNotice {
    pub(super) acquisition: Box<Acquisition>,
    pub(super) slot: Slot,
}

/// The right of one caller to contend for a lease, or to hold the lease, for this process.
pub(crate) struct Slot {
    queues: Arc<LocalQueues>,
    name: Name,
    /// How often the lease has passed on in this streak.
    passes: u32,
    /// How often the lease may pass on in this streak.
    most_passes: u32,
    /// When the streak began.
    since: Instant,
    /// The registration of the last caller that had to wait for other processes. The registration
    /// keeps the channel open, and shows the next caller that other processes may wait.
    pub(super) changes: Option<Box<Changes>>,
}

impl LocalQueues {
    /// Enters the local queue of a claim.
    pub(super) fn enter(self: &Arc<Self>, acquisition: Box<Acquisition>) -> Entered {
        let name = acquisition.claim().name.clone();
        match self.by_name.entry(name.clone()) {
            Entry::Occupied(mut queue) => {
                let (notify, notices) = oneshot::channel();
                queue.get_mut().push(QueuedCaller { acquisition, notify });
                Entered::Behind(notices)
            }
            Entry::Vacant(queue) => {
                let now = Instant::now();
                let slot_use = SlotUse::Request(now);
                queue.insert(LocalQueue { waiters: VecDeque::new(), slot_use });
                let slot = Slot::new(self.clone(), name, now, None);
                Entered::First(SlotNotice { acquisition, slot })
            }
        }
    }

    /// Completes when the caller with the slot of a name has left the slot, an answer or a push
    /// unread for too long.
    ///
    /// A waiter checks this by a timer. No caller wakes the waiters, because a caller that is not
    /// polled is rare.
    pub(super) async fn unread(&self, name: &Name, lease: Duration) {
        let limit = UNREAD.min(lease / 2);
        loop {
            let now = Instant::now();
            let next_check = now + limit;
            let queue = self.by_name.get(name);
            let overdue_at = queue.and_then(|queue| queue.slot_use.overdue_at(limit));
            let overdue_at = overdue_at.unwrap_or(next_check);
            if overdue_at <= now {
                return;
            }
            sleep_until(overdue_at.min(next_check)).await;
        }
    }

    /// Returns how many callers wait behind the caller with the slot, for each name with waiters.
    pub(super) fn waiters(&self) -> Vec<(Name, usize)> {
        let mut waiters = Vec::new();
        for queue in &self.by_name {
            let count = queue.waiters.iter().filter(|caller| caller.still_waits()).count();
            if count > 0 {
                waiters.push((queue.key().clone(), count));
            }
        }
        waiters
    }

    fn set_use(&self, name: &Name, slot_use: SlotUse) {
        if let Some(mut queue) = self.by_name.get_mut(name) {
            queue.slot_use = slot_use;
        }
    }
}

impl LocalQueue {
    fn push(&mut self, caller: QueuedCaller) {
        // Callers that left must not pile up for as long as the lease is held.
        if self.waiters.len() == self.waiters.capacity() {
            self.waiters.retain(QueuedCaller::still_waits);
        }
        self.waiters.push_back(caller);
    }

    /// Takes the first caller that still waits out of the queue, because it gets the slot.
    fn take_first(&mut self) -> Option<QueuedCaller> {
        while let Some(first) = self.waiters.pop_front() {
            if first.still_waits() {
                return Some(first);
            }
        }
        None
    }
}

impl QueuedCaller {
    fn still_waits(&self) -> bool {
        !self.notify.is_closed()
    }
}

impl SlotUse {
    /// Returns when the caller with the slot will have left something unread for this limit.
    fn overdue_at(&self, limit: Duration) -> Option<Instant> {
        match self {
            Self::Guard => None,
            // The runtime of the task may stand still.
            Self::PermitWait(end) => Some(*end + limit),
            Self::Request(since) => Some(*since + limit),
            Self::Sleep(until, inbox) => {
                let pushed = inbox.unread_since();
                Some(pushed.map_or(*until, |pushed| pushed.min(*until)) + limit)
            }
            Self::Lease(end) => Some(*end),
        }
    }
}

impl Slot {
    fn new(
        queues: Arc<LocalQueues>,
        name: Name,
        since: Instant,
        changes: Option<Box<Changes>>,
    ) -> Self {
        Self { queues, name, passes: 0, most_passes: PASSES, since, changes }
    }

    /// Begins a streak of passes with a lease that the backend has granted to this process. Keeps
    /// the registration of the caller, if the caller had to wait for other processes.
    pub(super) fn begin_streak(&mut self, changes: Option<Changes>) {
        self.passes = 0;
        self.most_passes = PASSES;
        if self.name.family == Family::Redlock {
            self.most_passes = match changes {
                None => MAJORITY_PASSES,
                // The process had to wait, so each of its waiters gets the lease once.
                Some(_) => self.waiters().clamp(1, PASSES),
            };
        }
        self.since = Instant::now();
        self.changes = changes.map(Box::new);
    }

    fn waiters(&self) -> u32 {
        let queue = self.queues.by_name.get(&self.name);
        let waiters = queue.map_or(0, |queue| queue.waiters.len());
        u32::try_from(waiters).unwrap_or(PASSES)
    }

    /// Notes that a task waits for a permit to send the request of the caller, until this time.
    pub(super) fn note_permit_wait(&self, end: Instant) {
        self.queues.set_use(&self.name, SlotUse::PermitWait(end));
    }

    /// Notes that the caller sends a request.
    pub(super) fn note_request(&self) {
        self.queues.set_use(&self.name, SlotUse::Request(Instant::now()));
    }

    /// Notes that the caller sleeps until this time, or until a push comes.
    pub(super) fn note_sleep(&self, until: Instant, inbox: Arc<Inbox>) {
        self.queues.set_use(&self.name, SlotUse::Sleep(until, inbox));
    }

    /// Notes that the caller has a lease until this time, and waits for further leases.
    pub(super) fn note_lease(&self, end: Instant) {
        self.queues.set_use(&self.name, SlotUse::Lease(end));
    }

    /// Notes that the caller has its guard.
    pub(super) fn note_guard(&self) {
        self.queues.set_use(&self.name, SlotUse::Guard);
    }

    /// Notes that the holder sends a request that ends its lease. Takes the next caller to pass the
    /// lease to, while the streak of passes lasts.
    pub(super) fn next(&mut self) -> Option<QueuedCaller> {
        let now = Instant::now();
        let goes_on = self.passes < self.most_passes && now < self.since + LONGEST_STREAK;
        let mut queue = self.queues.by_name.get_mut(&self.name)?;
        // If the request is not polled, the callers behind the slot do not wait for it.
        queue.slot_use = SlotUse::Request(now);
        if !goes_on {
            return None;
        }
        self.passes += 1;
        queue.take_first()
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let Entry::Occupied(mut queue) = self.queues.by_name.entry(self.name.clone()) else {
            return;
        };
        let Some(QueuedCaller { acquisition, notify }) = queue.get_mut().take_first() else {
            queue.remove();
            return;
        };
        let now = Instant::now();
        queue.get_mut().slot_use = SlotUse::Request(now);
        // If the caller leaves now, its slot is dropped below and takes the same lock.
        drop(queue);
        let slot = Self::new(self.queues.clone(), self.name.clone(), now, self.changes.take());
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

    const LEASE: Duration = Duration::from_millis(50);

    /// One caller holds the lease for long, and others try again and again.
    #[tokio::test]
    async fn callers_that_left_are_not_kept_during_a_hold() -> Result<(), crate::Error> {
        let name = Name::new(&Namespace::standard(), Family::Lock, &Key::from("k"), 512)?;
        let janitor = Janitor::new(Arc::new(MemoryBackend::new()));
        let queues = Arc::new(LocalQueues::default());
        let enter = || {
            let claim = Claim::new(name.clone(), Mode::Exclusive, LEASE, LEASE);
            queues.enter(Box::new(Acquisition::new(&janitor, claim)))
        };
        let Entered::First(first) = enter() else { panic!("another caller has the slot") };
        let Entered::Behind(stays) = enter() else { panic!("there are two slots") };
        for _ in 0..10_000 {
            drop(enter());
        }
        assert!(queues.by_name.get(&name).is_some_and(|queue| queue.waiters.len() < 16));
        drop(first);
        assert!(stays.await.is_ok_and(|notice| !notice.acquisition.is_granted()));
        assert!(queues.by_name.is_empty());
        Ok(())
    }
}
