mod entries;
mod inspect;
mod tags;

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};

use lru::LruCache;
use tokio::time::Instant;

use self::entries::StoredFailure;
use super::{
    latches::StoredLatch,
    semaphore::{SoleHold, StoredSemaphore},
};
use crate::{
    backend::{
        Claim, Claimed, Entry, Grant, Mark, Marked, Mode, Owner, SemaphoreKind, TagEnds, Tick,
        TickStep,
    },
    key::Name,
    time::after,
};

/// The data and its rules, which are those of the Redis scripts.
pub(super) struct Data {
    pub(super) semaphores: HashMap<SemaphoreKey, StoredSemaphore>,
    pub(super) latches: HashMap<Arc<str>, StoredLatch>,
    fences: HashMap<Arc<str>, Fence>,
    /// The marks, and when each ends.
    marks: HashMap<Arc<str>, (Mark, Instant)>,
    /// The names whose last loads failed.
    failures: HashMap<Arc<str>, StoredFailure>,
    entries: LruCache<EntryKey, StoredEntry>,
    /// The last tag number of all namespaces.
    pub(super) tag_number: u64,
    /// The ends of tags, and when each is forgotten.
    tag_ends: HashMap<Arc<str>, (TagEnds, Instant)>,
    /// When each of them ends, so that data without another request is dropped too.
    pub(super) expiries: BTreeSet<(Instant, Expiry)>,
    weight: usize,
    limit: usize,
    /// How much of the limit an entry takes.
    weigh: fn(&Entry) -> usize,
    /// The clock of the backend: microseconds at `origin`.
    origin: Instant,
    micros: u64,
}

/// The key of an entry. Entries of two schemas lie side by side.
type EntryKey = (Arc<str>, u16);

pub(super) type SemaphoreKey = (Arc<str>, SemaphoreKind);

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
    Sole(SemaphoreKey),
    Shared(SemaphoreKey, Owner),
    QueueEntries(SemaphoreKey, u64),
    Latch(Arc<str>),
    Fence(Arc<str>),
    Mark(Arc<str>),
    Failure(Arc<str>),
    Entry(EntryKey),
    Tag(Arc<str>),
}

impl Data {
    pub(super) fn new(limit: usize, weigh: fn(&Entry) -> usize) -> Self {
        // Fences leave the process, so those of a new process must be greater than its last ones.
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let micros = u64::try_from(since.as_micros()).unwrap_or(u64::MAX / 2);
        Self {
            semaphores: HashMap::new(),
            latches: HashMap::new(),
            fences: HashMap::new(),
            marks: HashMap::new(),
            failures: HashMap::new(),
            entries: LruCache::unbounded(),
            tag_number: micros,
            tag_ends: HashMap::new(),
            expiries: BTreeSet::new(),
            weight: 0,
            limit,
            weigh,
            origin: Instant::now(),
            micros,
        }
    }

    pub(super) fn weight(&self) -> usize {
        self.weight
    }

    pub(super) fn claim(&mut self, claim: &Claim, seen: u64, now: Instant) -> Claimed {
        self.expire(now);
        let sole = self.sole(&claim.name, claim.mode);
        let (is_free, mine) = (sole.is_none(), sole.is_some_and(|l| l.owner == claim.owner));
        let occupied = sole.map(|sole| sole.occupied(now));
        if !mine
            && let Some(entry) = self.stored(&claim.name)
            && entry.fence > seen
        {
            return Claimed::Newer(entry.clone().read_at(self.clock(now)));
        }
        let failed = self.failures.get(claim.name.prefix());
        if is_free && let Some(back_off) = failed.and_then(|failed| failed.back_off(now)) {
            return back_off;
        }
        let failures = failed.map_or(0, |failed| failed.failures);
        match occupied.filter(|_| !mine) {
            Some(occupied) => Claimed::Occupied(occupied),
            None => Claimed::Granted(self.grant_sole(claim, now).after_failures(failures)),
        }
    }

    pub(super) fn is_free(&self, name: &Name) -> bool {
        self.sole(name, Mode::Exclusive).is_none()
    }

    /// Grants a sole hold that is free or is the claim's own. That keeps its fence, and a forgotten
    /// fence stays forgotten.
    pub(super) fn grant_sole(&mut self, claim: &Claim, now: Instant) -> Grant {
        let (name, fence_ends) = (claim.name.prefix(), after(now, claim.fence_life));
        let held = self.sole(&claim.name, claim.mode).map(|sole| sole.fence);
        let fence = held.unwrap_or_else(|| self.next_fence(&claim.name, now));
        self.set_sole(claim, fence, now);
        let known = self.fences.get(name).map(|fence| (fence.last, fence.spent));
        match (held, known) {
            (None, _) => self.set_fence(name, fence, false, fence_ends),
            (Some(_), Some((last, spent))) => self.set_fence(name, last, spent, fence_ends),
            (Some(_), None) => {}
        }
        Grant::new(fence)
    }

    fn set_sole(&mut self, claim: &Claim, fence: u64, now: Instant) {
        let key = (claim.name.prefix().clone(), claim.mode.into());
        let ends = after(now, claim.lease);
        let label = claim.label.clone();
        let sole = Some(SoleHold { owner: claim.owner, fence, ends, label });
        let semaphore = self.semaphores.entry(key.clone()).or_default();
        if let Some(old) = std::mem::replace(&mut semaphore.sole, sole) {
            self.expiries.remove(&(old.ends, Expiry::Sole(key.clone())));
        }
        self.expiries.insert((ends, Expiry::Sole(key)));
    }

    /// Returns the sole holder of a semaphore.
    pub(super) fn sole(&self, name: &Name, mode: Mode) -> Option<&SoleHold> {
        self.semaphores.get(&(name.prefix().clone(), mode.into()))?.sole.as_ref()
    }

    /// Ends a sole hold. Returns whether there was one.
    pub(super) fn end_sole(&mut self, name: &Name, mode: Mode) -> bool {
        let key = (name.prefix().clone(), mode.into());
        let Some(sole) = self.change(&key, |semaphore| semaphore.sole.take()).flatten() else {
            return false;
        };
        self.expiries.remove(&(sole.ends, Expiry::Sole(key)))
    }

    /// Passes a lease on, or renews it, with this fence. Returns `None` if neither has it.
    pub(super) fn pass_with_fence(
        &mut self,
        from: &Claim,
        to: &Claim,
        fence: u64,
        now: Instant,
    ) -> Option<Grant> {
        self.expire(now);
        let holder = self.sole(&from.name, from.mode)?.owner;
        if ![from.owner, to.owner].contains(&holder) {
            return None;
        }
        self.set_sole(to, fence, now);
        let name = to.name.prefix();
        let last = self.fences.get(name).map_or(0, |fence| fence.last);
        self.set_fence(name, last.max(fence), false, after(now, to.fence_life));
        Some(Grant::new(fence))
    }

    /// Sets the mark of a name to a tick, if the claim has the mutex and the tick is possible.
    pub(super) fn mark(&mut self, claim: &Claim, tick: Tick, now: Instant) -> Marked {
        self.expire(now);
        let (name, owner) = (claim.name.prefix(), claim.owner);
        let is_held = self.sole(&claim.name, claim.mode).is_some_and(|sole| sole.owner == owner);
        let before = self.marks.get(name).map(|(mark, _)| *mark);
        let is_set = is_held && tick.is_possible(before, owner);
        if is_set {
            let begun_by = (tick.step != TickStep::Done).then_some(owner);
            let (mark, ends) = (Mark { tick: tick.at, begun_by }, after(now, tick.kept));
            if let Some((_, old)) = self.marks.insert(name.clone(), (mark, ends)) {
                self.expiries.remove(&(old, Expiry::Mark(name.clone())));
            }
            self.expiries.insert((ends, Expiry::Mark(name.clone())));
        }
        Marked { before, is_set, now: self.clock(now) }
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
                Expiry::Sole(key) => drop(self.change(&key, |semaphore| semaphore.sole.take())),
                Expiry::Shared(key, owner) => {
                    self.change(&key, |semaphore| semaphore.shared.remove(&owner));
                }
                Expiry::QueueEntries(key, process) => {
                    self.change(&key, |semaphore| semaphore.queue.lapse(process));
                }
                Expiry::Failure(name) => drop(self.failures.remove(&name)),
                Expiry::Tag(tag) => drop(self.tag_ends.remove(&tag)),
                Expiry::Mark(name) => drop(self.marks.remove(&name)),
                Expiry::Latch(name) => drop(self.latches.remove(&name)),
                Expiry::Fence(name) => {
                    self.fences.remove(&name);
                    // Returns the memory of a burst.
                    if self.fences.capacity() > 1024
                        && self.fences.len() < self.fences.capacity() / 8
                    {
                        self.fences.shrink_to(self.fences.len() * 2);
                        self.semaphores.shrink_to(self.semaphores.len() * 2);
                    }
                }
                Expiry::Entry(key) => {
                    if let Some(stored) = self.entries.pop(&key) {
                        self.weight -= (self.weigh)(&stored.entry);
                    }
                }
            }
        }
    }
}
