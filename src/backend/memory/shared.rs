//! Holds that stand beside each other, and the queues for those that do not.

use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

use tokio::time::Instant;

use crate::backend::{Countdown, Occupied, Owner};

/// What of one name several may have at a time.
#[derive(Default)]
pub(super) struct Shared {
    pub(super) readers: Holds,
    pub(super) permits: Holds,
    /// Who waits for the lease that one has alone.
    pub(super) sole: Queue,
    /// Who waits to read or to write.
    pub(super) read_write: Queue,
}

impl Shared {
    pub(super) fn is_empty(&self) -> bool {
        self.readers.0.is_empty()
            && self.permits.0.is_empty()
            && self.sole.0.is_empty()
            && self.read_write.0.is_empty()
    }
}

/// Who holds, until when, and how many each counts for.
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

    /// What a look at them says; none, if nobody holds.
    pub(super) fn occupied(&self, now: Instant) -> Option<Occupied> {
        let last = self.0.values().map(|hold| hold.ends).max()?;
        Some(Occupied { fence: 0, remaining: last - now, holders: self.count() })
    }

    /// When so many will be back at the latest.
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

/// Who waits, in their order.
#[derive(Default)]
pub(super) struct Queue(pub(super) Vec<Place>);

pub(super) struct Place {
    pub(super) token: Owner,
    /// When it was taken.
    pub(super) since: Instant,
    pub(super) ends: Instant,
    /// Waits for all others to leave.
    pub(super) alone: bool,
    /// Is held to the order, and not passed over when he does not hear.
    pub(super) ordered: bool,
    pub(super) takes_handover: bool,
}

impl Queue {
    pub(super) fn first(&self) -> Option<&Place> {
        self.0.first()
    }

    /// The first who is held to the order.
    pub(super) fn first_ordered(&self) -> Option<&Place> {
        self.0.iter().find(|place| place.ordered)
    }

    /// The first who waits for all others to leave, before a token or, if that has no place, in all.
    pub(super) fn alone_before(&self, token: Owner) -> Option<&Place> {
        let before = self.0.iter().take_while(|place| place.token != token);
        before.into_iter().find(|place| place.alone)
    }

    /// Takes a place, or keeps the one that was taken before until `place` ends. Returns when that one would
    /// have ended.
    pub(super) fn take(&mut self, place: Place) -> Option<Instant> {
        match self.0.iter_mut().find(|old| old.token == place.token) {
            Some(old) => Some(std::mem::replace(&mut old.ends, place.ends)),
            None => {
                self.0.push(place);
                None
            }
        }
    }

    pub(super) fn leave(&mut self, token: Owner) -> Option<Instant> {
        let at = self.0.iter().position(|place| place.token == token)?;
        Some(self.0.remove(at).ends)
    }
}

/// A count-down latch.
pub(super) struct Latch {
    pub(super) left: u32,
    /// The id of the setting that made it.
    pub(super) set: Owner,
    pub(super) ttl: Duration,
    pub(super) ends: Instant,
    /// The ids of the steps; empty once nothing is left.
    pub(super) counted: HashSet<Owner>,
}

impl Latch {
    pub(super) fn countdown(&self, now: Instant) -> Countdown {
        Countdown { left: self.left, remaining: self.ends - now }
    }
}
