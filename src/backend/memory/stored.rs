//! The stored entries, latches and semaphores, each with the rules of its own. `entries` and
//! `semaphores` have the rules that concern several of them.

use std::{
    collections::{BTreeSet, HashMap, HashSet, VecDeque},
    sync::Arc,
    time::Duration,
};

use lru::LruCache;
use tokio::time::Instant;

use crate::{
    backend::{Claim, Entry, Need, Occupied, Owner, ProcessId, SemaphoreKind},
    key::Name,
};

/// The key of an entry: the prefix of its name, and its schema. Two schemas have separate entries.
type EntryKey = (Arc<str>, u16);

/// Returns how much of the limit an entry takes with its key.
pub(super) type Weigh = fn(&EntryKey, &Entry) -> usize;

/// The bytes that the tables take for an entry and its fence, beside its key and its payload. The
/// number was measured.
pub(super) const ROW: usize = 600;

pub(super) fn weigh_bytes((prefix, _): &EntryKey, entry: &Entry) -> usize {
    ROW + prefix.len() + entry.weight()
}

/// The entries. The least recently used entries make room for new entries.
pub(super) struct Entries {
    pub(super) stored: LruCache<EntryKey, (Entry, Instant)>,
    pub(super) ends: BTreeSet<(Instant, EntryKey)>,
    pub(super) weight: usize,
    pub(super) limit: usize,
    pub(super) weigh: Weigh,
}

impl Entries {
    pub(super) fn new(limit: usize, weigh: Weigh) -> Self {
        Self { stored: LruCache::unbounded(), ends: BTreeSet::new(), weight: 0, limit, weigh }
    }

    /// Returns an entry and when it expires. The entry does not count as used.
    pub(super) fn peek(&self, name: &Name) -> Option<&(Entry, Instant)> {
        self.stored.peek(&entry_key(name))
    }

    pub(super) fn fits(&self, name: &Name, entry: &Entry) -> bool {
        (self.weigh)(&entry_key(name), entry) <= self.limit
    }

    pub(super) fn put(&mut self, name: &Name, entry: Entry, ends: Instant) {
        let key = entry_key(name);
        self.weight += (self.weigh)(&key, &entry);
        self.ends.insert((ends, key.clone()));
        self.stored.put(key, (entry, ends));
    }

    /// Removes the least recently used entry if the entries are above the limit. Returns the prefix
    /// of its name.
    pub(super) fn evict(&mut self) -> Option<Arc<str>> {
        if self.weight <= self.limit {
            return None;
        }
        let (oldest, _) = self.stored.peek_lru()?;
        let oldest = oldest.clone();
        self.remove(&oldest);
        Some(oldest.0)
    }

    pub(super) fn remove(&mut self, key: &EntryKey) {
        if let Some((entry, ends)) = self.stored.pop(key) {
            self.weight -= (self.weigh)(key, &entry);
            self.ends.remove(&(ends, key.clone()));
        }
    }

    pub(super) fn expire(&mut self, now: Instant) {
        while let Some((ends, key)) = self.ends.first()
            && *ends <= now
        {
            self.remove(&key.clone());
        }
    }
}

pub(super) fn entry_key(name: &Name) -> EntryKey {
    (name.prefix.clone(), name.schema)
}

pub(super) struct StoredLatch {
    pub(super) left: u32,
    /// The id of the request that set the latch.
    pub(super) set: Owner,
    pub(super) ttl: Duration,
    /// The count that each step left.
    pub(super) counted: HashMap<Owner, u32>,
}

pub(super) type SemaphoreKey = (Arc<str>, SemaphoreKind);

/// A sole holder, or holders that share the semaphore, and one queue.
#[derive(Default)]
pub(super) struct StoredSemaphore {
    pub(super) holds: HashMap<Owner, StoredHold>,
    pub(super) queue: Queue,
}

pub(super) struct StoredHold {
    need: Need,
    pub(super) fence: u64,
    ends: Instant,
    pub(super) label: Option<Arc<str>>,
}

impl StoredSemaphore {
    pub(super) fn expire(&mut self, now: Instant) {
        self.holds.retain(|_, hold| hold.ends > now);
        self.queue.expire(now);
    }

    /// Returns when the last hold and the last queue entry end.
    pub(super) fn ends(&self) -> Option<Instant> {
        let entry_ends = self.queue.kept.values().copied();
        self.hold_ends().chain(entry_ends).max()
    }

    pub(super) fn hold_ends(&self) -> impl Iterator<Item = Instant> {
        self.holds.values().map(|hold| hold.ends)
    }

    pub(super) fn sole(&self) -> Option<(Owner, &StoredHold)> {
        let mut holds = self.holds.iter().map(|(owner, hold)| (*owner, hold));
        holds.find(|(_, hold)| hold.need == Need::Sole)
    }

    /// Returns the hold of a claim, if it is of the kind that the claim needs. Units of another
    /// limit count.
    pub(super) fn hold_of(&self, claim: &Claim) -> Option<&StoredHold> {
        let hold = self.holds.get(&claim.owner)?;
        let is_sole = hold.need == Need::Sole;
        if is_sole == claim.mode.is_fenced() { Some(hold) } else { None }
    }

    pub(super) fn is_held_by(&self, claim: &Claim) -> bool {
        self.hold_of(claim).is_some()
    }

    pub(super) fn hold(&mut self, claim: &Claim, fence: u64, ends: Instant) {
        let hold = StoredHold { need: claim.mode.need(), fence, ends, label: claim.label.clone() };
        self.holds.insert(claim.owner, hold);
    }

    /// Ends the hold of a claim. Returns whether the claim had a hold.
    pub(super) fn end(&mut self, claim: &Claim) -> bool {
        self.is_held_by(claim) && self.holds.remove(&claim.owner).is_some()
    }

    /// Returns the number of units that are out.
    pub(super) fn units(&self) -> u32 {
        self.holds.values().map(|hold| hold.need.units()).sum()
    }

    /// Returns what is before a claim that has no hold: other holders, or the first claim of the
    /// queue.
    pub(super) fn before(&self, claim: &Claim, now: Instant) -> Option<Occupied> {
        if let Some(occupied) = self.in_the_way(claim.mode.need(), now) {
            return Some(occupied);
        }
        let (first, _) = self.queue.entries.front()?;
        if first.owner == claim.owner {
            return None;
        }
        let remaining = self.queue.left(first, now);
        Some(Occupied { fence: 0, remaining, holders: self.units() })
    }

    /// Returns after how long the first hold ends.
    pub(super) fn first_end(&self, now: Instant) -> Duration {
        let first = self.hold_ends().min();
        first.map_or(Duration::ZERO, |ends| ends - now)
    }

    /// Returns the holders in the way of a need, if the need does not fit beside the holders.
    pub(super) fn in_the_way(&self, need: Need, now: Instant) -> Option<Occupied> {
        let (fence, holders) = match self.sole() {
            Some((_, sole)) => (sole.fence, 1),
            None => (0, self.units()),
        };
        let fits = match need {
            Need::Sole => self.holds.is_empty(),
            Need::Units { count, limit } => {
                self.sole().is_none() && holders.saturating_add(count) <= limit
            }
        };
        if fits {
            return None;
        }
        Some(Occupied { fence, remaining: self.first_end(now), holders })
    }
}

/// The claims that wait, in their order. The entries of a process last while the process keeps
/// them.
#[derive(Default)]
pub(super) struct Queue {
    /// The claims, each with the time at which it entered the queue.
    pub(super) entries: VecDeque<(Claim, Instant)>,
    /// The owners of the entries. With this set, the cost of a release does not depend on the
    /// length of the queue.
    pub(super) owners: HashSet<Owner>,
    /// Until when each process keeps its entries.
    pub(super) kept: HashMap<ProcessId, Instant>,
}

impl Queue {
    /// Enters the queue, or keeps the old entry of the owner.
    pub(super) fn enter(&mut self, claim: &Claim, now: Instant) {
        if self.owners.insert(claim.owner) {
            self.entries.push_back((claim.clone(), now));
        }
    }

    pub(super) fn leave(&mut self, owner: Owner) {
        if self.owners.remove(&owner)
            && let Some(at) = self.entries.iter().position(|(claim, _)| claim.owner == owner)
        {
            self.entries.remove(at);
        }
    }

    /// Returns for how long the process of a claim still keeps its entries.
    pub(super) fn left(&self, claim: &Claim, now: Instant) -> Duration {
        let ends = self.kept.get(&claim.owner.process());
        ends.map_or(Duration::ZERO, |ends| *ends - now)
    }

    /// Keeps the entries of the claim's process. Returns whether these entries were kept before.
    pub(super) fn keep(&mut self, claim: &Claim, until: Instant) -> bool {
        self.kept.insert(claim.owner.process(), until).is_some()
    }

    /// Removes the entries of each process that has stopped keeping its entries.
    pub(super) fn expire(&mut self, now: Instant) {
        let count = self.kept.len();
        self.kept.retain(|_, until| *until > now);
        if self.kept.len() < count {
            self.owners.retain(|owner| self.kept.contains_key(&owner.process()));
            self.entries.retain(|(claim, _)| self.owners.contains(&claim.owner));
        }
    }
}
