use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use lru::LruCache;
use tokio::time::Instant;

use super::shared::{Latch, Shared};
use crate::{
    backend::{Acquired, Claim, Claimed, Committed, Entry, Grant, Mode, Occupied, Owner},
    key::Name,
    time::after,
};

/// The data and its rules, which are those of the scripts in `redis/lua`.
pub(super) struct State {
    leases: HashMap<Held, Lease>,
    pub(super) shared: HashMap<Arc<str>, Shared>,
    pub(super) latches: HashMap<Arc<str>, Latch>,
    fences: HashMap<Arc<str>, Fence>,
    entries: LruCache<Slot, Stored>,
    /// When which of them ends, so that what nobody asks for again is dropped too.
    pub(super) ends: BTreeSet<(Instant, End)>,
    weight: usize,
    limit: usize,
    /// The server's clock: microseconds at `origin`.
    origin: Instant,
    micros: u64,
}

/// Entries of two schemas lie side by side.
type Slot = (Arc<str>, u16);

/// The lease of a name, and that of its writer, lie side by side.
type Held = (Arc<str>, Sole);

#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Sole {
    Lease,
    Writer,
}

/// The fence of a lease that is kept for one who was called, and has not come yet.
pub(super) const CALLED: u64 = 0;

pub(super) struct Lease {
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

struct Stored {
    entry: Entry,
    ends: Instant,
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum End {
    Lease(Held),
    Hold(Arc<str>, Owner),
    Place(Arc<str>, Owner),
    Latch(Arc<str>),
    Fence(Arc<str>),
    Entry(Slot),
}

impl State {
    pub(super) fn new(limit: usize) -> Self {
        // Fences leave the house, so those of a new process must be greater than those of the last one.
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self {
            leases: HashMap::new(),
            shared: HashMap::new(),
            latches: HashMap::new(),
            fences: HashMap::new(),
            entries: LruCache::unbounded(),
            ends: BTreeSet::new(),
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
            return Claimed::Newer(entry.clone());
        }
        match self.acquire_sole(claim, now) {
            Acquired::Granted(grant) => Claimed::Granted(grant),
            Acquired::Held(occupied) => Claimed::Held(occupied),
        }
    }

    pub(super) fn get(&mut self, name: &Name, now: Instant) -> Option<Entry> {
        self.expire(now);
        self.entries.get(&slot(name)).map(|stored| stored.entry.clone())
    }

    /// The outcome, and whether the entry is to be pushed.
    pub(super) fn commit(
        &mut self,
        claim: &Claim,
        entry: &Entry,
        ttl: Option<Duration>,
        now: Instant,
    ) -> (Committed, bool) {
        self.expire(now);
        let name = claim.name.prefix();
        match self.fences.get(name) {
            Some(fence) if fence.last == entry.fence && fence.spent => {
                let stored = self.stored(&claim.name).is_some_and(|old| old.fence == entry.fence);
                return (if stored { Committed::Stored } else { Committed::HandedOver }, false);
            }
            Some(fence) if fence.last == entry.fence => {}
            _ => {
                return match self.stored(&claim.name) {
                    Some(stored) if stored.fence > entry.fence => {
                        (Committed::Newer(stored.clone()), false)
                    }
                    _ => (Committed::Refused, false),
                };
            }
        }
        let ends = self.fences.get(name).map_or(now, |fence| fence.ends);
        self.set_fence(name, entry.fence, true, ends);
        if self.lease(&claim.name, Sole::Lease).is_some_and(|l| l.owner == claim.owner) {
            self.drop_lease(&claim.name, Sole::Lease);
        }
        let Some(ttl) = ttl else { return (Committed::HandedOver, true) };
        match self.store(&claim.name, entry.clone(), after(now, ttl)) {
            true => (Committed::Stored, true),
            false => (Committed::HandedOver, true),
        }
    }

    /// The new fence; none, and nothing is changed, if the entry cannot be kept.
    pub(super) fn put(
        &mut self,
        name: &Name,
        entry: &Entry,
        ttl: Duration,
        fence_life: Duration,
        now: Instant,
    ) -> Option<u64> {
        if entry.weight() > self.limit {
            return None;
        }
        let fence = self.invalidate(name, fence_life, now);
        self.store(name, entry.clone().with_fence(fence), after(now, ttl));
        Some(fence)
    }

    pub(super) fn invalidate(&mut self, name: &Name, fence_life: Duration, now: Instant) -> u64 {
        self.expire(now);
        let fence = self.next_fence(name, now);
        for schema in [-1_i16, 0, 1] {
            self.drop_entry(&(name.prefix().clone(), name.schema().wrapping_add_signed(schema)));
        }
        self.drop_lease(name, Sole::Lease);
        self.set_fence(name.prefix(), fence, false, after(now, fence_life));
        fence
    }

    pub(super) fn is_free(&self, name: &Name) -> bool {
        self.lease(name, Sole::Lease).is_none()
    }

    /// Grants a lease that is free, and grants it again to the token that has it.
    pub(super) fn acquire_sole(&mut self, claim: &Claim, now: Instant) -> Acquired {
        match self.lease(&claim.name, sole(claim.mode)) {
            Some(lease) if lease.owner != claim.owner => Acquired::Held(lease.occupied(now)),
            _ => Acquired::Granted(self.grant(claim, now)),
        }
    }

    /// Grants a lease that is free or is the claim's own.
    pub(super) fn grant(&mut self, claim: &Claim, now: Instant) -> Grant {
        let fence = self.lease(&claim.name, sole(claim.mode)).map(|lease| lease.fence);
        if let Some(fence) = fence.filter(|fence| *fence != CALLED) {
            self.extend(claim, fence, now);
            return Grant::new(fence);
        }
        let fence = self.next_fence(&claim.name, now);
        self.set_lease(claim, fence, now);
        self.set_fence(claim.name.prefix(), fence, false, after(now, claim.fence_life));
        Grant::new(fence)
    }

    /// Makes a lease last its full time from now, and its fence with it. A fence that is gone stays gone.
    pub(super) fn extend(&mut self, claim: &Claim, fence: u64, now: Instant) {
        self.set_lease(claim, fence, now);
        let name = claim.name.prefix();
        if let Some((last, spent)) = self.fences.get(name).map(|fence| (fence.last, fence.spent)) {
            self.set_fence(name, last, spent, after(now, claim.fence_life));
        }
    }

    pub(super) fn lease(&self, name: &Name, sole: Sole) -> Option<&Lease> {
        self.leases.get(&(name.prefix().clone(), sole))
    }

    fn next_fence(&self, name: &Name, now: Instant) -> u64 {
        let clock = self.micros + u64::try_from((now - self.origin).as_micros()).unwrap_or(0);
        let last = self.fences.get(name.prefix()).map_or(0, |fence| fence.last);
        let stored = self.stored(name).map_or(0, |entry| entry.fence);
        clock.max(last + 1).max(stored + 1)
    }

    fn stored(&self, name: &Name) -> Option<&Entry> {
        self.entries.peek(&slot(name)).map(|stored| &stored.entry)
    }

    pub(super) fn set_lease(&mut self, claim: &Claim, fence: u64, now: Instant) {
        let sole = sole(claim.mode);
        self.drop_lease(&claim.name, sole);
        let held = (claim.name.prefix().clone(), sole);
        let ends = after(now, claim.lease);
        self.ends.insert((ends, End::Lease(held.clone())));
        self.leases.insert(held, Lease { owner: claim.owner, fence, ends });
    }

    pub(super) fn drop_lease(&mut self, name: &Name, sole: Sole) -> bool {
        let held = (name.prefix().clone(), sole);
        let Some(lease) = self.leases.remove(&held) else { return false };
        self.ends.remove(&(lease.ends, End::Lease(held)));
        true
    }

    fn set_fence(&mut self, name: &Arc<str>, last: u64, spent: bool, ends: Instant) {
        if let Some(old) = self.fences.insert(name.clone(), Fence { last, spent, ends }) {
            self.ends.remove(&(old.ends, End::Fence(name.clone())));
        }
        self.ends.insert((ends, End::Fence(name.clone())));
    }

    /// Writes an entry and makes room for it; says whether it is there now.
    fn store(&mut self, name: &Name, entry: Entry, ends: Instant) -> bool {
        let slot = slot(name);
        self.drop_entry(&slot);
        if entry.weight() > self.limit {
            return false;
        }
        self.weight += entry.weight();
        self.ends.insert((ends, End::Entry(slot.clone())));
        self.entries.put(slot, Stored { entry, ends });
        while self.weight > self.limit {
            let Some((slot, stored)) = self.entries.pop_lru() else { break };
            self.weight -= stored.entry.weight();
            self.ends.remove(&(stored.ends, End::Entry(slot)));
        }
        true
    }

    fn drop_entry(&mut self, slot: &Slot) {
        if let Some(stored) = self.entries.pop(slot) {
            self.weight -= stored.entry.weight();
            self.ends.remove(&(stored.ends, End::Entry(slot.clone())));
        }
    }

    /// Drops everything whose time has come.
    pub(super) fn expire(&mut self, now: Instant) {
        while let Some((at, _)) = self.ends.first()
            && *at <= now
            && let Some((_, end)) = self.ends.pop_first()
        {
            match end {
                End::Lease(held) => drop(self.leases.remove(&held)),
                End::Hold(name, token) => {
                    self.change_shared(&name, |shared| {
                        shared.readers.0.remove(&token);
                        shared.permits.0.remove(&token);
                    });
                }
                End::Place(name, token) => {
                    self.change_shared(&name, |shared| {
                        shared.sole.leave(token);
                        shared.read_write.leave(token);
                    });
                }
                End::Latch(name) => drop(self.latches.remove(&name)),
                End::Fence(name) => {
                    self.fences.remove(&name);
                    // The memory of a burst is given back.
                    if self.fences.capacity() > 1024
                        && self.fences.len() < self.fences.capacity() / 8
                    {
                        self.fences.shrink_to(self.fences.len() * 2);
                        self.leases.shrink_to(self.leases.len() * 2);
                    }
                }
                End::Entry(slot) => {
                    if let Some(stored) = self.entries.pop(&slot) {
                        self.weight -= stored.entry.weight();
                    }
                }
            }
        }
    }
}

impl Lease {
    pub(super) fn occupied(&self, now: Instant) -> Occupied {
        Occupied { fence: self.fence, remaining: self.ends - now, holders: 1 }
    }
}

/// Which lease it is that one holder has alone.
pub(super) fn sole(mode: Mode) -> Sole {
    match mode {
        Mode::Read | Mode::Write => Sole::Writer,
        _ => Sole::Lease,
    }
}

fn slot(name: &Name) -> Slot {
    (name.prefix().clone(), name.schema())
}
