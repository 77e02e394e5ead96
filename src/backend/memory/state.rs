use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use lru::LruCache;
use tokio::time::Instant;

use crate::{
    backend::{Acquired, Claimed, Committed},
    entry::Entry,
    key::Name,
    lease::{Claim, Grant, Occupied, Token},
    time::after,
};

/// The data and its rules, which are those of the scripts in `redis/lua`.
pub(super) struct State {
    leases: HashMap<Arc<str>, Lease>,
    fences: HashMap<Arc<str>, Fence>,
    entries: LruCache<Slot, Stored>,
    /// When which of them ends, so that what nobody asks for again is dropped too.
    ends: BTreeSet<(Instant, End)>,
    weight: usize,
    limit: usize,
    /// The server's clock: microseconds at `origin`.
    origin: Instant,
    micros: u64,
}

/// Entries of two schemas lie side by side.
type Slot = (Arc<str>, u16);

struct Lease {
    holder: Token,
    fence: u64,
    ends: Instant,
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
enum End {
    Lease(Arc<str>),
    Fence(Arc<str>),
    Entry(Slot),
}

impl State {
    pub(super) fn new(limit: usize) -> Self {
        // Fences leave the house, so those of a new process must be greater than those of the last one.
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self {
            leases: HashMap::new(),
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

    pub(super) fn acquire(&mut self, claim: &Claim, now: Instant) -> Acquired {
        self.expire(now);
        match self.held_by_other(claim, now) {
            Some(occupied) => Acquired::Held(occupied),
            None => Acquired::Granted(self.grant(claim, now)),
        }
    }

    pub(super) fn claim(&mut self, claim: &Claim, seen: u64, now: Instant) -> Claimed {
        self.expire(now);
        let mine = self.leases.get(claim.name.prefix()).is_some_and(|l| l.holder == claim.holder);
        if !mine
            && let Some(entry) = self.stored(&claim.name)
            && entry.fence > seen
        {
            return Claimed::Newer(entry.clone());
        }
        match self.acquire(claim, now) {
            Acquired::Granted(grant) => Claimed::Granted(grant),
            Acquired::Held(occupied) => Claimed::Held(occupied),
        }
    }

    pub(super) fn renew(&mut self, claim: &Claim, now: Instant) -> bool {
        self.expire(now);
        let name = claim.name.prefix();
        let Some(lease) = self.leases.get(name).filter(|l| l.holder == claim.holder) else {
            return false;
        };
        let fence = lease.fence;
        self.extend(claim, fence, now);
        true
    }

    pub(super) fn release(&mut self, claim: &Claim, now: Instant) -> bool {
        self.expire(now);
        let name = claim.name.prefix();
        let mine = self.leases.get(name).is_some_and(|lease| lease.holder == claim.holder);
        if mine {
            self.drop_lease(name);
        }
        mine
    }

    pub(super) fn pass(&mut self, from: &Claim, to: &Claim, now: Instant) -> Option<Grant> {
        self.expire(now);
        let name = from.name.prefix();
        let lease = self.leases.get(name)?;
        if lease.holder == to.holder {
            return Some(Grant::new(lease.fence));
        }
        if lease.holder != from.holder {
            return None;
        }
        self.drop_lease(name);
        Some(self.grant(to, now))
    }

    pub(super) fn holder(&mut self, name: &Name, now: Instant) -> Option<Occupied> {
        self.expire(now);
        let lease = self.leases.get(name.prefix())?;
        Some(Occupied { fence: lease.fence, remaining: lease.ends - now })
    }

    pub(super) fn clear(&mut self, name: &Name, now: Instant) -> bool {
        self.expire(now);
        let there = self.leases.contains_key(name.prefix());
        self.drop_lease(name.prefix());
        there
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
        if self.leases.get(name).is_some_and(|lease| lease.holder == claim.holder) {
            self.drop_lease(name);
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
        self.drop_lease(name.prefix());
        self.set_fence(name.prefix(), fence, false, after(now, fence_life));
        fence
    }

    pub(super) fn is_free(&self, name: &Name) -> bool {
        !self.leases.contains_key(name.prefix())
    }

    fn held_by_other(&self, claim: &Claim, now: Instant) -> Option<Occupied> {
        let lease = self.leases.get(claim.name.prefix())?;
        (lease.holder != claim.holder)
            .then(|| Occupied { fence: lease.fence, remaining: lease.ends - now })
    }

    /// Grants a lease that is free or is the claim's own.
    fn grant(&mut self, claim: &Claim, now: Instant) -> Grant {
        let name = claim.name.prefix();
        if let Some(fence) = self.leases.get(name).map(|lease| lease.fence) {
            self.extend(claim, fence, now);
            return Grant::new(fence);
        }
        let fence = self.next_fence(&claim.name, now);
        self.set_lease(claim, fence, now);
        self.set_fence(name, fence, false, after(now, claim.fence_life));
        Grant::new(fence)
    }

    /// Makes a lease last its full time from now, and its fence with it. A fence that is gone stays gone.
    fn extend(&mut self, claim: &Claim, fence: u64, now: Instant) {
        self.set_lease(claim, fence, now);
        let name = claim.name.prefix();
        if let Some((last, spent)) = self.fences.get(name).map(|fence| (fence.last, fence.spent)) {
            self.set_fence(name, last, spent, after(now, claim.fence_life));
        }
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

    fn set_lease(&mut self, claim: &Claim, fence: u64, now: Instant) {
        let name = claim.name.prefix().clone();
        self.drop_lease(&name);
        let ends = after(now, claim.lease);
        self.ends.insert((ends, End::Lease(name.clone())));
        self.leases.insert(name, Lease { holder: claim.holder, fence, ends });
    }

    fn drop_lease(&mut self, name: &Arc<str>) {
        if let Some(lease) = self.leases.remove(name) {
            self.ends.remove(&(lease.ends, End::Lease(name.clone())));
        }
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
    fn expire(&mut self, now: Instant) {
        while let Some((at, _)) = self.ends.first()
            && *at <= now
            && let Some((_, end)) = self.ends.pop_first()
        {
            match end {
                End::Lease(name) => drop(self.leases.remove(&name)),
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

fn slot(name: &Name) -> Slot {
    (name.prefix().clone(), name.schema())
}
