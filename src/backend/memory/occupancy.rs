//! The holds of a name that stand beside each other, its queues, and its latch.

use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

use tokio::time::Instant;

use crate::backend::{Claim, Countdown, Mode, Occupied, Owner, QueueKind};

/// The holds of one name that several holders may have, and its queues.
#[derive(Default)]
pub(super) struct Occupancy {
    pub(super) readers: Holds,
    pub(super) permits: Holds,
    /// Waits for the lease that one holder has.
    pub(super) mutex_queue: Queue,
    /// Waits to read or to write.
    pub(super) read_write_queue: Queue,
    pub(super) permit_queue: Queue,
}

impl Occupancy {
    pub(super) fn is_empty(&self) -> bool {
        self.readers.0.is_empty()
            && self.permits.0.is_empty()
            && [&self.mutex_queue, &self.read_write_queue, &self.permit_queue]
                .iter()
                .all(|queue| queue.is_empty())
    }

    pub(super) fn queue(&self, of: QueueKind) -> &Queue {
        match of {
            QueueKind::Mutex => &self.mutex_queue,
            QueueKind::ReadWrite => &self.read_write_queue,
            QueueKind::Permits => &self.permit_queue,
        }
    }

    pub(super) fn queue_mut(&mut self, of: QueueKind) -> &mut Queue {
        match of {
            QueueKind::Mutex => &mut self.mutex_queue,
            QueueKind::ReadWrite => &mut self.read_write_queue,
            QueueKind::Permits => &mut self.permit_queue,
        }
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

    /// Returns after how long the first hold ends.
    pub(super) fn first_end(&self, now: Instant) -> Duration {
        self.0.values().map(|hold| hold.ends - now).min().unwrap_or_default()
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

/// The claims that wait, in their order. Their entries last while their process keeps them.
#[derive(Default)]
pub(super) struct Queue {
    entries: BTreeMap<Ticket, QueueEntry>,
    tickets: HashMap<Owner, Ticket>,
    /// Until when each process keeps its entries.
    kept: HashMap<u64, Instant>,
    last: u64,
}

/// When the caller of an entry began to wait, and a number that no other entry has.
type Ticket = (Instant, u64);

#[derive(Clone)]
pub(super) struct QueueEntry {
    pub(super) claim: Claim,
    /// When the claim entered the queue.
    pub(super) since: Instant,
}

impl Queue {
    fn is_empty(&self) -> bool {
        self.entries.is_empty() && self.kept.is_empty()
    }

    pub(super) fn has(&self, owner: Owner) -> bool {
        self.tickets.contains_key(&owner)
    }

    pub(super) fn first(&self) -> Option<&QueueEntry> {
        self.entries.values().next()
    }

    /// Returns the first entry that is held to the order.
    pub(super) fn first_ordered(&self) -> Option<&QueueEntry> {
        self.entries.values().find(|entry| entry.claim.mode.is_ordered())
    }

    /// Returns the readers before the first writer.
    pub(super) fn first_readers(&self) -> Vec<QueueEntry> {
        let readers = self.entries.values().take_while(|entry| entry.claim.mode == Mode::Read);
        readers.cloned().collect()
    }

    /// Returns the first writer before an owner. If the owner has no entry, all are before it.
    pub(super) fn writer_before(&self, owner: Owner) -> Option<&QueueEntry> {
        let own = self.tickets.get(&owner);
        let before =
            self.entries.iter().take_while(|(ticket, _)| own.is_none_or(|own| *ticket < own));
        before.map(|(_, entry)| entry).find(|one| one.claim.mode == Mode::Write)
    }

    /// Enters the queue, or keeps the old entry of the owner.
    pub(super) fn enter(&mut self, claim: &Claim, now: Instant) {
        if !self.has(claim.owner) {
            self.last += 1;
            let ticket = (now, self.last);
            self.tickets.insert(claim.owner, ticket);
            self.entries.insert(ticket, QueueEntry { claim: claim.clone(), since: now });
        }
    }

    /// Leaves the queue. Returns whether there was an entry.
    pub(super) fn leave(&mut self, owner: Owner) -> bool {
        let ticket = self.tickets.remove(&owner);
        ticket.is_some_and(|ticket| self.entries.remove(&ticket).is_some())
    }

    /// Returns for how long an entry is kept.
    pub(super) fn left(&self, entry: &QueueEntry, now: Instant) -> Duration {
        let ends = self.kept.get(&entry.claim.owner.process_half());
        ends.map_or(Duration::ZERO, |ends| ends.saturating_duration_since(now))
    }

    /// Keeps the entries of a process. Returns until when they were kept before.
    pub(super) fn keep(&mut self, process: u64, until: Instant) -> Option<Instant> {
        self.kept.insert(process, until)
    }

    /// Removes the entries of a process.
    pub(super) fn lapse(&mut self, process: u64) {
        self.kept.remove(&process);
        self.entries.retain(|_, entry| entry.claim.owner.process_half() != process);
        self.tickets.retain(|owner, _| owner.process_half() != process);
    }

    /// Removes all entries. Returns whether there were any, and until when each process kept them.
    pub(super) fn clear(&mut self) -> (bool, HashMap<u64, Instant>) {
        let all = std::mem::take(self);
        (!all.entries.is_empty(), all.kept)
    }
}

/// A count-down latch.
pub(super) struct StoredLatch {
    pub(super) left: u32,
    /// The id of the setting that made it.
    pub(super) set: Owner,
    pub(super) ttl: Duration,
    pub(super) ends: Instant,
    /// The count that each step left; empty once nothing is left.
    pub(super) counted: HashMap<Owner, u32>,
}

impl StoredLatch {
    pub(super) fn countdown(&self, now: Instant) -> Countdown {
        Countdown { left: self.left, remaining: self.ends - now }
    }
}
