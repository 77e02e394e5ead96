//! The holds of a name that stand beside each other, its queues, and its latch.

use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

use tokio::time::Instant;

use crate::backend::{Countdown, Occupied, Owner};

/// The holds of one name that several holders may have, and its queues.
#[derive(Default)]
pub(super) struct Occupancy {
    pub(super) readers: Holds,
    pub(super) permits: Holds,
    /// Waits for the lease that one holder has.
    pub(super) sole_queue: Queue,
    /// Waits to read or to write.
    pub(super) read_write_queue: Queue,
}

impl Occupancy {
    pub(super) fn is_empty(&self) -> bool {
        self.readers.0.is_empty()
            && self.permits.0.is_empty()
            && self.sole_queue.0.is_empty()
            && self.read_write_queue.0.is_empty()
    }
}

/// The holders, each with its end and the number that it counts for.
#[derive(Default)]
pub(super) struct Holds(pub(super) HashMap<Owner, Hold>);

pub(super) struct Hold {
    pub(super) ends: Instant,
    pub(super) count: u32,
}

impl Holds {
    pub(super) fn count(&self) -> u32 {
        self.0.values().map(|hold| hold.count).sum()
    }

    /// Returns what is in the way of others, if there is a holder.
    pub(super) fn occupied(&self, now: Instant) -> Option<Occupied> {
        let last = self.0.values().map(|hold| hold.ends).max()?;
        Some(Occupied { fence: 0, remaining: last - now, holders: self.count() })
    }

    /// Returns when so many are back at the latest.
    pub(super) fn back(&self, needed: u32) -> Option<Instant> {
        let mut holds: Vec<_> = self.0.values().map(|hold| (hold.ends, hold.count)).collect();
        holds.sort_unstable();
        let mut back = 0;
        let ends = holds.iter().find(|(_, count)| {
            back += count;
            back >= needed
        });
        ends.or(holds.last()).map(|(ends, _)| *ends)
    }
}

/// The claims that wait, in their order.
#[derive(Default)]
pub(super) struct Queue(pub(super) Vec<QueueEntry>);

pub(super) struct QueueEntry {
    pub(super) owner: Owner,
    /// When the claim entered the queue.
    pub(super) since: Instant,
    pub(super) ends: Instant,
    /// It waits for all other holders to leave.
    pub(super) alone: bool,
    /// It is held to the order, and not passed over when it does not hear of its turn.
    pub(super) ordered: bool,
    pub(super) takes_handover: bool,
}

impl Queue {
    pub(super) fn first(&self) -> Option<&QueueEntry> {
        self.0.first()
    }

    /// Returns the first entry that is held to the order.
    pub(super) fn first_ordered(&self) -> Option<&QueueEntry> {
        self.0.iter().find(|entry| entry.ordered)
    }

    /// Returns the first entry before an owner that waits for all other holders to leave. If the
    /// owner has no entry, all entries are before it.
    pub(super) fn alone_before(&self, owner: Owner) -> Option<&QueueEntry> {
        let before = self.0.iter().take_while(|entry| entry.owner != owner);
        before.into_iter().find(|entry| entry.alone)
    }

    /// Enters the queue, or keeps the old entry of the owner until the end of the new one. Returns
    /// when the old entry would have ended.
    pub(super) fn enter(&mut self, entry: QueueEntry) -> Option<Instant> {
        match self.0.iter_mut().find(|old| old.owner == entry.owner) {
            Some(old) => Some(std::mem::replace(&mut old.ends, entry.ends)),
            None => {
                self.0.push(entry);
                None
            }
        }
    }

    /// Leaves the queue. Returns when the entry would have ended.
    pub(super) fn leave(&mut self, owner: Owner) -> Option<Instant> {
        let at = self.0.iter().position(|entry| entry.owner == owner)?;
        Some(self.0.remove(at).ends)
    }
}

/// A count-down latch.
pub(super) struct StoredLatch {
    pub(super) left: u32,
    /// The id of the setting that made it.
    pub(super) set: Owner,
    pub(super) ttl: Duration,
    pub(super) ends: Instant,
    /// The ids of the steps; empty once nothing is left.
    pub(super) counted: HashSet<Owner>,
}

impl StoredLatch {
    pub(super) fn countdown(&self, now: Instant) -> Countdown {
        Countdown { left: self.left, remaining: self.ends - now }
    }
}
