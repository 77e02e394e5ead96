//! What is stored, and how it changes by itself: entries, latches and semaphores. Their rules
//! together are in `entries` and `semaphores`.

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

/// The key of an entry. Entries of two schemas lie side by side.
type EntryKey = (Arc<str>, u16);

/// How much of the limit an entry takes under its key.
pub(super) type Weigh = fn(&EntryKey, &Entry) -> usize;

/// The bytes that the tables take for an entry and its fence, beside its key and its payload. They
/// are measured.
pub(super) const ROW: usize = 600;

pub(super) fn weigh_bytes((prefix, _): &EntryKey, entry: &Entry) -> usize {
    ROW + prefix.len() + entry.weight()
}

/// The entries, of which the least recently used ones make room.
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

    /// Returns an entry and when it ends. It does not count as used.
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

    /// Removes the least recently used entry if all are too heavy together. Returns its name.
    pub(super) fn evict(&mut self) -> Option<Arc<str>> {
        let (oldest, _) = self.stored.peek_lru().filter(|_| self.weight > self.limit)?;
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
    /// The id of the setting that made it.
    pub(super) set: Owner,
    pub(super) ttl: Duration,
    /// The count that each step left.
    pub(super) counted: HashMap<Owner, u32>,
}

pub(super) type SemaphoreKey = (Arc<str>, SemaphoreKind);

/// A sole holder, or holders that share it, and one queue.
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

    pub(super) fn ends(&self) -> Option<Instant> {
        self.hold_ends().chain(self.queue.kept.values().copied()).max()
    }

    pub(super) fn hold_ends(&self) -> impl Iterator<Item = Instant> {
        self.holds.values().map(|hold| hold.ends)
    }

    pub(super) fn sole(&self) -> Option<(Owner, &StoredHold)> {
        let mut holds = self.holds.iter().map(|(owner, hold)| (*owner, hold));
        holds.find(|(_, hold)| hold.need == Need::Sole)
    }

    /// Returns what a claim holds, if that is what it needs. The limit of units may be another one.
    pub(super) fn hold_of(&self, claim: &Claim) -> Option<&StoredHold> {
        let is_sole = claim.mode.is_fenced();
        self.holds.get(&claim.owner).filter(|hold| (hold.need == Need::Sole) == is_sole)
    }

    pub(super) fn is_held_by(&self, claim: &Claim) -> bool {
        self.hold_of(claim).is_some()
    }

    pub(super) fn hold(&mut self, claim: &Claim, fence: u64, ends: Instant) {
        let (need, label) = (claim.mode.need(), claim.label.clone());
        self.holds.insert(claim.owner, StoredHold { need, fence, ends, label });
    }

    /// Ends what a claim holds. Returns whether it held it.
    pub(super) fn end(&mut self, claim: &Claim) -> bool {
        self.is_held_by(claim) && self.holds.remove(&claim.owner).is_some()
    }

    pub(super) fn out(&self) -> u32 {
        self.holds.values().map(|hold| hold.need.units()).sum()
    }

    /// Returns what is in the way of a need, whatever waits.
    pub(super) fn in_the_way(&self, need: Need, now: Instant) -> Option<Occupied> {
        let sole = self.sole();
        let (fence, holders) = sole.map_or((0, self.out()), |(_, sole)| (sole.fence, 1));
        let fits = match need {
            Need::Sole => self.holds.is_empty(),
            Need::Units { count, limit } => {
                sole.is_none() && holders.saturating_add(count) <= limit
            }
        };
        let first = self.hold_ends().min().map_or(Duration::ZERO, |ends| ends - now);
        (!fits).then_some(Occupied { fence, remaining: first, holders })
    }
}

/// The claims that wait, in their order. Their entries last while their process keeps them.
#[derive(Default)]
pub(super) struct Queue {
    /// Each with the time at which it entered.
    pub(super) entries: VecDeque<(Claim, Instant)>,
    /// The owners of the entries. A release asks here, so that it costs the same behind any number.
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

    pub(super) fn left(&self, claim: &Claim, now: Instant) -> Duration {
        let ends = self.kept.get(&claim.owner.process());
        ends.map_or(Duration::ZERO, |ends| *ends - now)
    }

    /// Keeps the entries of the process of a claim. Returns whether they were kept before.
    pub(super) fn keep(&mut self, claim: &Claim, until: Instant) -> bool {
        self.kept.insert(claim.owner.process(), until).is_some()
    }

    /// Removes the entries of each process that has stopped to keep them.
    pub(super) fn expire(&mut self, now: Instant) {
        let count = self.kept.len();
        self.kept.retain(|_, until| *until > now);
        if self.kept.len() < count {
            self.owners.retain(|owner| self.kept.contains_key(&owner.process()));
            self.entries.retain(|(claim, _)| self.owners.contains(&claim.owner));
        }
    }
}
