//! The state of a semaphore: its holders, and the queue of those that wait.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use tokio::time::Instant;

use crate::backend::{Claim, Need, Occupied, Owner};

/// A sole holder, or holders that share it, and one queue.
#[derive(Default)]
pub(super) struct StoredSemaphore {
    pub(super) sole: Option<SoleHold>,
    pub(super) shared: HashMap<Owner, SharedHold>,
    pub(super) queue: Queue,
}

pub(super) struct SoleHold {
    pub(super) owner: Owner,
    pub(super) fence: u64,
    pub(super) ends: Instant,
    /// The label of the holder's process.
    pub(super) label: Option<Arc<str>>,
}

pub(super) struct SharedHold {
    pub(super) units: u32,
    pub(super) ends: Instant,
}

impl StoredSemaphore {
    pub(super) fn is_empty(&self) -> bool {
        self.sole.is_none() && self.shared.is_empty() && self.queue.is_empty()
    }

    /// Returns whether a claim holds what it needs.
    pub(super) fn is_held_by(&self, claim: &Claim) -> bool {
        match claim.mode.need() {
            Need::Sole => self.sole.as_ref().is_some_and(|sole| sole.owner == claim.owner),
            Need::Units { .. } => self.shared.contains_key(&claim.owner),
        }
    }

    /// Returns the units that are out.
    pub(super) fn out(&self) -> u32 {
        self.shared.values().map(|hold| hold.units).sum()
    }

    /// Returns what is in the way of a need, whatever waits.
    pub(super) fn in_the_way(&self, need: Need, now: Instant) -> Option<Occupied> {
        if let Some(sole) = &self.sole {
            return Some(sole.occupied(now));
        }
        let out = self.out();
        let missing = match need {
            Need::Sole => out,
            Need::Units { count, limit } => out.saturating_add(count).saturating_sub(limit),
        };
        let remaining = self.back(missing).map_or(Duration::ZERO, |ends| ends - now);
        (missing > 0).then_some(Occupied { fence: 0, remaining, holders: out })
    }

    /// Returns when so many units are back at the latest.
    fn back(&self, needed: u32) -> Option<Instant> {
        let mut holds: Vec<_> = self.shared.values().map(|hold| (hold.ends, hold.units)).collect();
        holds.sort_unstable();
        let mut back = 0;
        let ends = holds.iter().find(|(_, units)| {
            back += units;
            back >= needed
        });
        ends.or(holds.last()).map(|(ends, _)| *ends)
    }

    /// Returns after how long the first hold ends.
    pub(super) fn first_end(&self, now: Instant) -> Duration {
        let shared = self.shared.values().map(|hold| hold.ends);
        let ends = self.sole.iter().map(|sole| sole.ends).chain(shared).min();
        ends.map_or(Duration::ZERO, |ends| ends - now)
    }
}

impl SoleHold {
    pub(super) fn occupied(&self, now: Instant) -> Occupied {
        Occupied { fence: self.fence, remaining: self.ends - now, holders: 1 }
    }
}

/// The claims that wait, in their order. Their entries last while their process keeps them.
#[derive(Default)]
pub(super) struct Queue {
    entries: BTreeMap<u64, QueueEntry>,
    tickets: HashMap<Owner, u64>,
    /// Until when each process keeps its entries.
    kept: HashMap<u64, Instant>,
    last: u64,
}

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

    pub(super) fn len(&self) -> u32 {
        u32::try_from(self.entries.len()).unwrap_or(u32::MAX)
    }

    pub(super) fn has(&self, owner: Owner) -> bool {
        self.tickets.contains_key(&owner)
    }

    pub(super) fn first(&self) -> Option<&QueueEntry> {
        self.entries.values().next()
    }

    /// Enters the queue, or keeps the old entry of the owner.
    pub(super) fn enter(&mut self, claim: &Claim, now: Instant) {
        if !self.has(claim.owner) {
            self.last += 1;
            self.tickets.insert(claim.owner, self.last);
            self.entries.insert(self.last, QueueEntry { claim: claim.clone(), since: now });
        }
    }

    pub(super) fn leave(&mut self, owner: Owner) {
        if let Some(ticket) = self.tickets.remove(&owner) {
            self.entries.remove(&ticket);
        }
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

    /// Returns until when each process keeps its entries.
    pub(super) fn kept(&self) -> impl Iterator<Item = (u64, Instant)> {
        self.kept.iter().map(|(process, until)| (*process, *until))
    }
}
