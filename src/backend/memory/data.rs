mod entries;
mod failures;

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};

use lru::LruCache;
use tokio::time::Instant;

use self::failures::StoredFailure;
use super::occupancy::{Occupancy, StoredLatch};
use crate::{
    backend::{Acquired, Claim, Claimed, Entry, Grant, Mode, Occupied, Owner, QueueKind},
    key::Name,
    time::after,
};

/// The data and its rules, which are those of the Redis scripts.
pub(super) struct Data {
    leases: HashMap<SoleKey, SoleHold>,
    /// The holds and the queues of a name.
    pub(super) occupancies: HashMap<Arc<str>, Occupancy>,
    pub(super) latches: HashMap<Arc<str>, StoredLatch>,
    fences: HashMap<Arc<str>, Fence>,
    /// The names whose last loads failed.
    failures: HashMap<Arc<str>, StoredFailure>,
    entries: LruCache<EntryKey, StoredEntry>,
    /// When each of them ends, so that data without another request is dropped too.
    pub(super) expiries: BTreeSet<(Instant, Expiry)>,
    weight: usize,
    limit: usize,
    /// The clock of the backend: microseconds at `origin`.
    origin: Instant,
    micros: u64,
}

/// The key of an entry. Entries of two schemas lie side by side.
type EntryKey = (Arc<str>, u16);

/// The key of a lease with one holder. The lease of a name and that of its writer lie side by side.
type SoleKey = (Arc<str>, Sole);

#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Sole {
    Lease,
    Writer,
}

/// The fence of a lease that is kept for the claim whose turn it is, until it asks.
pub(super) const KEPT: u64 = 0;

/// A lease with one holder.
pub(super) struct SoleHold {
    pub(super) owner: Owner,
    pub(super) fence: u64,
    pub(super) ends: Instant,
}

struct Fence {
    last: u64,
    /// The grant of this fence was committed.
    spent: bool,
    ends: Instant,
}

struct StoredEntry {
    entry: Entry,
    ends: Instant,
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Expiry {
    Lease(SoleKey),
    Hold(Arc<str>, Owner),
    QueueEntries(Arc<str>, QueueKind, u64),
    Latch(Arc<str>),
    Fence(Arc<str>),
    Failure(Arc<str>),
    Entry(EntryKey),
}

impl Data {
    pub(super) fn new(limit: usize) -> Self {
        // Fences leave the process, so those of a new process must be greater than its last ones.
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self {
            leases: HashMap::new(),
            occupancies: HashMap::new(),
            latches: HashMap::new(),
            fences: HashMap::new(),
            failures: HashMap::new(),
            entries: LruCache::unbounded(),
            expiries: BTreeSet::new(),
            weight: 0,
            limit,
            origin: Instant::now(),
            micros: u64::try_from(since.as_micros()).unwrap_or(u64::MAX / 2),
        }
    }

    pub(super) fn weight(&self) -> usize {
        self.weight
    }

    pub(super) fn claim(&mut self, claim: &Claim, seen: u64, now: Instant) -> Claimed {
        self.expire(now);
        let mine = self.lease(&claim.name, Sole::Lease).is_some_and(|l| l.owner == claim.owner);
        if !mine
            && let Some(entry) = self.stored(&claim.name)
            && entry.fence > seen
        {
            return Claimed::Newer(entry.clone().read_at(self.clock(now)));
        }
        let failed = self.failures.get(claim.name.prefix());
        if self.is_free(&claim.name)
            && let Some(back_off) = failed.and_then(|failed| failed.back_off(now))
        {
            return back_off;
        }
        let failures = failed.map_or(0, |failed| failed.failures);
        match self.acquire_sole(claim, now) {
            Acquired::Granted(grant) => Claimed::Granted(grant.after_failures(failures)),
            Acquired::Occupied(occupied) => Claimed::Occupied(occupied),
        }
    }

    pub(super) fn is_free(&self, name: &Name) -> bool {
        self.lease(name, Sole::Lease).is_none()
    }

    /// Grants a lease that is free, and grants it again to its owner.
    pub(super) fn acquire_sole(&mut self, claim: &Claim, now: Instant) -> Acquired {
        match self.lease(&claim.name, sole(claim.mode)) {
            Some(lease) if lease.owner != claim.owner => Acquired::Occupied(lease.occupied(now)),
            _ => Acquired::Granted(self.grant(claim, now)),
        }
    }

    /// Grants a lease that is free or is the claim's own.
    pub(super) fn grant(&mut self, claim: &Claim, now: Instant) -> Grant {
        let fence = self.lease(&claim.name, sole(claim.mode)).map(|lease| lease.fence);
        if let Some(fence) = fence.filter(|fence| *fence != KEPT) {
            self.extend(claim, fence, now);
            return Grant::new(fence);
        }
        let fence = self.next_fence(&claim.name, now);
        self.set_lease(claim, fence, now);
        self.set_fence(claim.name.prefix(), fence, false, after(now, claim.fence_life));
        Grant::new(fence)
    }

    /// Makes a lease last its full time from now, and its fence with it. A forgotten fence stays
    /// forgotten.
    pub(super) fn extend(&mut self, claim: &Claim, fence: u64, now: Instant) {
        self.set_lease(claim, fence, now);
        let name = claim.name.prefix();
        if let Some((last, spent)) = self.fences.get(name).map(|fence| (fence.last, fence.spent)) {
            self.set_fence(name, last, spent, after(now, claim.fence_life));
        }
    }

    pub(super) fn lease(&self, name: &Name, sole: Sole) -> Option<&SoleHold> {
        self.leases.get(&(name.prefix().clone(), sole))
    }

    /// Returns the time of the backend in microseconds.
    pub(super) fn clock(&self, now: Instant) -> u64 {
        self.micros + u64::try_from((now - self.origin).as_micros()).unwrap_or(0)
    }

    fn next_fence(&self, name: &Name, now: Instant) -> u64 {
        let clock = self.clock(now);
        let last = self.fences.get(name.prefix()).map_or(0, |fence| fence.last);
        let stored = self.stored(name).map_or(0, |entry| entry.fence);
        clock.max(last + 1).max(stored + 1)
    }

    pub(super) fn set_lease(&mut self, claim: &Claim, fence: u64, now: Instant) {
        let sole = sole(claim.mode);
        self.drop_lease(&claim.name, sole);
        let held = (claim.name.prefix().clone(), sole);
        let ends = after(now, claim.lease);
        self.expiries.insert((ends, Expiry::Lease(held.clone())));
        self.leases.insert(held, SoleHold { owner: claim.owner, fence, ends });
    }

    pub(super) fn drop_lease(&mut self, name: &Name, sole: Sole) -> bool {
        let held = (name.prefix().clone(), sole);
        let Some(lease) = self.leases.remove(&held) else { return false };
        self.expiries.remove(&(lease.ends, Expiry::Lease(held)));
        true
    }

    fn set_fence(&mut self, name: &Arc<str>, last: u64, spent: bool, ends: Instant) {
        if let Some(old) = self.fences.insert(name.clone(), Fence { last, spent, ends }) {
            self.expiries.remove(&(old.ends, Expiry::Fence(name.clone())));
        }
        self.expiries.insert((ends, Expiry::Fence(name.clone())));
    }

    /// Drops all data whose time has come.
    pub(super) fn expire(&mut self, now: Instant) {
        while let Some((at, _)) = self.expiries.first()
            && *at <= now
            && let Some((_, end)) = self.expiries.pop_first()
        {
            match end {
                Expiry::Lease(key) => drop(self.leases.remove(&key)),
                Expiry::Hold(name, owner) => {
                    self.change(&name, |occupancy| {
                        occupancy.readers.0.remove(&owner);
                        occupancy.permits.0.remove(&owner);
                    });
                }
                Expiry::QueueEntries(name, of, process) => {
                    self.change(&name, |occupancy| occupancy.queue_mut(of).lapse(process));
                }
                Expiry::Failure(name) => drop(self.failures.remove(&name)),
                Expiry::Latch(name) => drop(self.latches.remove(&name)),
                Expiry::Fence(name) => {
                    self.fences.remove(&name);
                    // Returns the memory of a burst.
                    if self.fences.capacity() > 1024
                        && self.fences.len() < self.fences.capacity() / 8
                    {
                        self.fences.shrink_to(self.fences.len() * 2);
                        self.leases.shrink_to(self.leases.len() * 2);
                    }
                }
                Expiry::Entry(key) => {
                    if let Some(stored) = self.entries.pop(&key) {
                        self.weight -= stored.entry.weight();
                    }
                }
            }
        }
    }
}

impl SoleHold {
    pub(super) fn occupied(&self, now: Instant) -> Occupied {
        Occupied { fence: self.fence, remaining: self.ends - now, holders: 1 }
    }
}

/// Returns the lease with one holder that a mode is about.
pub(super) fn sole(mode: Mode) -> Sole {
    match mode {
        Mode::Read | Mode::Write => Sole::Writer,
        Mode::Exclusive | Mode::Fair | Mode::Permit { .. } => Sole::Lease,
    }
}
