use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use lru::LruCache;
use tokio::time::Instant;

use super::{
    failures::StoredFailure,
    occupancy::{Occupancy, StoredLatch},
};
use crate::{
    backend::{
        Acquired, Claim, Claimed, Committed, Entry, Grant, Mode, Occupied, Owner, QueueKind,
        Windows,
    },
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
    pub(super) failures: HashMap<Arc<str>, StoredFailure>,
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
            Acquired::Held(occupied) => Claimed::Held(occupied),
        }
    }

    pub(super) fn get(&mut self, name: &Name, now: Instant) -> Option<Entry> {
        self.expire(now);
        let clock = self.clock(now);
        self.entries.get(&entry_key(name)).map(|stored| stored.entry.clone().read_at(clock))
    }

    /// Commits an entry. Returns the outcome, and whether the entry is to be pushed.
    pub(super) fn commit(
        &mut self,
        claim: &Claim,
        entry: &Entry,
        ttl: Option<Duration>,
        now: Instant,
    ) -> (Committed, bool) {
        if let Some(settled) = self.settled_commit(claim, entry.fence, now) {
            return (settled, false);
        }
        self.end_load(claim, entry.fence, now);
        let Some(ttl) = ttl else { return (Committed::Pushed, true) };
        match self.store(&claim.name, entry.clone(), after(now, ttl)) {
            true => (Committed::Stored, true),
            false => (Committed::Pushed, true),
        }
    }

    /// Renews the entry with the fence `seen`. Returns the outcome, and the entry if it is to be
    /// pushed.
    pub(super) fn commit_unchanged(
        &mut self,
        claim: &Claim,
        fence: u64,
        seen: u64,
        terms: &Entry,
        now: Instant,
    ) -> (Committed, Option<Entry>) {
        if let Some(settled) = self.settled_commit(claim, fence, now) {
            return (settled, None);
        }
        let Some(stored) = self.stored(&claim.name).filter(|stored| stored.fence == seen) else {
            return (Committed::Gone, None);
        };
        let Entry { cost, spread, windows, .. } = *terms;
        let renewed = Entry { cost, spread, windows, ..stored.clone() };
        let entry = renewed.with_fence(fence).with_stored_at(self.clock(now));
        let kept = windows.map_or(Duration::ZERO, |windows| windows.kept());
        self.end_load(claim, fence, now);
        self.store(&claim.name, entry.clone(), after(now, kept));
        (Committed::Stored, Some(entry))
    }

    /// Returns the outcome of a commit that changes nothing: its fence is not the last one, or it
    /// was made already.
    fn settled_commit(&mut self, claim: &Claim, fence: u64, now: Instant) -> Option<Committed> {
        self.expire(now);
        let stored = self.stored(&claim.name);
        match self.fences.get(claim.name.prefix()) {
            Some(last) if last.last == fence && last.spent => {
                let is_stored = stored.is_some_and(|stored| stored.fence == fence);
                Some(if is_stored { Committed::Stored } else { Committed::Pushed })
            }
            Some(last) if last.last == fence => None,
            _ => Some(match stored {
                Some(stored) if stored.fence > fence => {
                    Committed::Newer(stored.clone().read_at(self.clock(now)))
                }
                _ => Committed::Refused,
            }),
        }
    }

    /// Marks a fence as committed, ends its lease, and forgets failures.
    fn end_load(&mut self, claim: &Claim, fence: u64, now: Instant) {
        let name = claim.name.prefix();
        let ends = self.fences.get(name).map_or(now, |fence| fence.ends);
        self.set_fence(name, fence, true, ends);
        self.forget_failure(name);
        if self.lease(&claim.name, Sole::Lease).is_some_and(|l| l.owner == claim.owner) {
            self.drop_lease(&claim.name, Sole::Lease);
        }
    }

    /// Writes an entry. Returns it under its new fence, or `None` if there is no room; then nothing
    /// changes.
    pub(super) fn put(
        &mut self,
        name: &Name,
        entry: &Entry,
        ttl: Duration,
        fence_life: Duration,
        now: Instant,
    ) -> Option<Entry> {
        if entry.weight() > self.limit {
            return None;
        }
        let fence = self.invalidate(name, fence_life, now);
        let entry = entry.clone().with_fence(fence).with_stored_at(self.clock(now));
        self.store(name, entry.clone(), after(now, ttl));
        Some(entry)
    }

    /// Sets the windows of an entry. Returns its new fence, or `None` if there is no entry.
    pub(super) fn touch(
        &mut self,
        name: &Name,
        windows: Windows,
        fence_life: Duration,
        now: Instant,
    ) -> Option<u64> {
        self.expire(now);
        let entry = self.stored(name)?;
        if entry.windows.is_some_and(|windows| windows.are_ended()) {
            return None;
        }
        let entry = entry.clone().with_windows(windows);
        let fence = self.supersede(name, fence_life, now);
        let entry = entry.with_fence(fence).with_stored_at(self.clock(now));
        let kept = entry.windows.map_or(Duration::ZERO, |windows| windows.kept());
        self.store(name, entry, after(now, kept));
        Some(fence)
    }

    /// Ends the fresh and the stale window of an entry. Returns the fence that was burnt.
    pub(super) fn end_windows(&mut self, name: &Name, fence_life: Duration, now: Instant) -> u64 {
        self.expire(now);
        let ended = self.entries.peek(&entry_key(name)).and_then(|stored| {
            let error = stored.entry.windows?.error.min(stored.ends - now);
            (!error.is_zero()).then(|| (stored.entry.clone(), error))
        });
        let fence = self.invalidate(name, fence_life, now);
        if let Some((entry, error)) = ended {
            let age = self.clock(now).saturating_sub(entry.stored_at);
            let kept = Duration::from_micros(age).saturating_add(error);
            let windows = Windows::fresh(Duration::ZERO).error(kept);
            let entry = Entry { windows: Some(windows), ..entry.with_fence(fence) };
            self.store(name, entry, after(now, error));
        }
        fence
    }

    /// Burns a fence and ends the lease, so that no load under way is stored.
    pub(super) fn supersede(&mut self, name: &Name, fence_life: Duration, now: Instant) -> u64 {
        self.expire(now);
        let fence = self.next_fence(name, now);
        self.drop_lease(name, Sole::Lease);
        self.forget_failure(name.prefix());
        self.set_fence(name.prefix(), fence, false, after(now, fence_life));
        fence
    }

    pub(super) fn invalidate(&mut self, name: &Name, fence_life: Duration, now: Instant) -> u64 {
        let fence = self.supersede(name, fence_life, now);
        for schema in [-1_i16, 0, 1] {
            self.drop_entry(&(name.prefix().clone(), name.schema().wrapping_add_signed(schema)));
        }
        fence
    }

    pub(super) fn is_free(&self, name: &Name) -> bool {
        self.lease(name, Sole::Lease).is_none()
    }

    /// Grants a lease that is free, and grants it again to its owner.
    pub(super) fn acquire_sole(&mut self, claim: &Claim, now: Instant) -> Acquired {
        match self.lease(&claim.name, sole(claim.mode)) {
            Some(lease) if lease.owner != claim.owner => Acquired::Held(lease.occupied(now)),
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

    fn stored(&self, name: &Name) -> Option<&Entry> {
        self.entries.peek(&entry_key(name)).map(|stored| &stored.entry)
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

    /// Writes an entry and makes room for it. Returns whether it is there now.
    fn store(&mut self, name: &Name, entry: Entry, ends: Instant) -> bool {
        let key = entry_key(name);
        self.drop_entry(&key);
        if entry.weight() > self.limit {
            return false;
        }
        self.weight += entry.weight();
        self.expiries.insert((ends, Expiry::Entry(key.clone())));
        self.entries.put(key, StoredEntry { entry, ends });
        while self.weight > self.limit {
            let Some((key, stored)) = self.entries.pop_lru() else { break };
            self.weight -= stored.entry.weight();
            self.expiries.remove(&(stored.ends, Expiry::Entry(key)));
        }
        true
    }

    fn drop_entry(&mut self, key: &EntryKey) {
        if let Some(stored) = self.entries.pop(key) {
            self.weight -= stored.entry.weight();
            self.expiries.remove(&(stored.ends, Expiry::Entry(key.clone())));
        }
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

fn entry_key(name: &Name) -> EntryKey {
    (name.prefix().clone(), name.schema())
}
