//! The rules of the semaphores, which are those of the Redis scripts.

use std::time::Duration;

use tokio::time::Instant;

use super::{
    data::{Data, Expiry, SemaphoreKey},
    semaphore::{SharedHold, StoredSemaphore},
};
use crate::{
    backend::{
        Acquired, Change, Claim, Grant, Handover, Holding, Kept, Mode, Need, Occupied,
        SemaphoreKind,
    },
    key::{Family, Name, Namespace},
    time::after,
};

impl Data {
    /// Grants a claim that fits beside the holders while no claim is before it in the queue; or
    /// again to the owner that has it. A claim that is not granted enters the queue.
    pub(super) fn acquire(&mut self, claim: &Claim, now: Instant) -> Acquired {
        self.expire(now);
        let none = StoredSemaphore::default();
        let semaphore = self.semaphores.get(&key(claim)).unwrap_or(&none);
        let in_the_way = || {
            let first = semaphore.queue.first().filter(|first| first.claim.owner != claim.owner);
            let before = first.map(|first| Occupied {
                fence: 0,
                remaining: semaphore.queue.left(first, now),
                holders: semaphore.out(),
            });
            semaphore.in_the_way(claim.mode.need(), now).or(before)
        };
        match in_the_way().filter(|_| !semaphore.is_held_by(claim)) {
            Some(occupied) => {
                self.enter_queue(claim, now);
                Acquired::Occupied(occupied)
            }
            None => {
                self.leave_queue(claim);
                Acquired::Granted(self.grant(claim, now))
            }
        }
    }

    /// Grants what is free or is the claim's own.
    pub(super) fn grant(&mut self, claim: &Claim, now: Instant) -> Grant {
        match claim.mode.need() {
            Need::Sole => self.grant_sole(claim, now),
            Need::Units { count, .. } => {
                self.grant_units(claim, count, now);
                Grant::new(0)
            }
        }
    }

    pub(super) fn renew(&mut self, claim: &Claim, now: Instant) -> bool {
        self.expire(now);
        let is_held = self.semaphores.get(&key(claim)).is_some_and(|one| one.is_held_by(claim));
        if is_held {
            self.grant(claim, now);
        }
        is_held
    }

    /// Keeps the queue entries of the process of some claims, and grants what is free. Returns the
    /// pushes, too.
    pub(super) fn keep(
        &mut self,
        claims: &[Claim],
        life: Duration,
        heard: bool,
        now: Instant,
    ) -> (Kept, Vec<Change>) {
        self.expire(now);
        let Some(first) = claims.first() else {
            return (Kept::nothing(), Vec::new());
        };
        let has_lapsed = self.keep_entries(first, life, now).is_none();
        let semaphore = self.semaphores.get(&key(first));
        let has_entry = |claim: &Claim| semaphore.is_some_and(|one| one.queue.has(claim.owner));
        let stands = claims.iter().map(has_entry).collect();
        let pushed = self.grant_next(first, heard, now);
        let semaphore = self.semaphores.get(&key(first));
        let remaining = semaphore.map(|one| match one.queue.first() {
            Some(unheard) if one.in_the_way(unheard.claim.mode.need(), now).is_none() => {
                one.queue.left(unheard, now)
            }
            _ => one.first_end(now),
        });
        let (remaining, handed_over) = (remaining.unwrap_or_default(), !pushed.is_empty());
        (Kept { remaining, has_lapsed, handed_over, stands }, pushed)
    }

    /// Ends what the claim holds, and its queue entry, and grants what is free then. `heard` says
    /// whether the waiters hear a push. Returns whether it was held, and the pushes.
    pub(super) fn release(
        &mut self,
        claim: &Claim,
        heard: bool,
        now: Instant,
    ) -> (bool, Vec<Change>) {
        self.expire(now);
        self.leave_queue(claim);
        let had = self.end(claim);
        let mut pushed = self.grant_next(claim, heard, now);
        // Waiters for an entry, and those for a majority, have no queue.
        let is_mutex = matches!(claim.mode, Mode::Exclusive | Mode::Fair);
        let has_no_queue = matches!(claim.name.family(), Family::Cache | Family::Redlock);
        if pushed.is_empty() && had && is_mutex && has_no_queue {
            pushed.push(Change::Wake);
        }
        (had, pushed)
    }

    /// Converts what one owner holds into the hold of another one. Returns the grant and the
    /// pushes, or `None` if `from` has nothing to convert.
    pub(super) fn convert(
        &mut self,
        from: &Claim,
        to: &Claim,
        heard: bool,
        now: Instant,
    ) -> Option<(Grant, Vec<Change>)> {
        self.expire(now);
        let semaphore = self.semaphores.get(&key(from))?;
        if !semaphore.is_held_by(to) {
            let is_only = match from.mode.need() {
                Need::Sole => true,
                Need::Units { count, .. } => semaphore.out() == count,
            };
            if !semaphore.is_held_by(from) || !is_only {
                return None;
            }
            self.leave_queue(to);
            self.end(from);
        }
        let grant = match self.sole_fence(to) {
            Some(fence) => Grant::new(fence),
            None => self.grant(to, now),
        };
        let pushed = match to.mode.need() {
            Need::Sole => Vec::new(),
            Need::Units { .. } => self.grant_next(to, heard, now),
        };
        Some((grant, pushed))
    }

    /// Returns the fence of a claim that is the sole holder.
    fn sole_fence(&self, claim: &Claim) -> Option<u64> {
        let sole = self.sole(&claim.name, claim.mode)?;
        (sole.owner == claim.owner).then_some(sole.fence)
    }

    /// Returns who holds a semaphore, and how many wait.
    pub(super) fn inspect(&mut self, name: &Name, kind: SemaphoreKind, now: Instant) -> Holding {
        self.expire(now);
        let failed = self.failed(name, now);
        let Some(semaphore) = self.semaphores.get(&(name.prefix().clone(), kind)) else {
            return Holding { failed, ..Holding::default() };
        };
        let held = Holding { waiting: semaphore.queue.len(), failed, ..Holding::default() };
        match &semaphore.sole {
            Some(sole) => {
                let held = Holding { holders: 1, expires_in: sole.ends - now, ..held };
                held.by(sole.owner, sole.fence, self.clock(now), sole.label.as_deref())
            }
            None => {
                let last = semaphore.shared.values().map(|hold| hold.ends).max();
                let expires_in = last.map_or(Duration::ZERO, |ends| ends - now);
                Holding { holders: semaphore.out(), expires_in, ..held }
            }
        }
    }

    /// Returns the locks of a namespace that are held or waited for.
    pub(super) fn lock_names(
        &mut self,
        namespace: &Namespace,
        now: Instant,
    ) -> Vec<(Name, SemaphoreKind)> {
        self.expire(now);
        let named = |(prefix, kind): &SemaphoreKey| {
            Some((Name::from_prefix(namespace, Family::Lock, prefix)?, *kind))
        };
        self.semaphores.keys().filter_map(named).collect()
    }

    pub(super) fn clear(&mut self, name: &Name, mode: Mode, now: Instant) -> bool {
        self.expire(now);
        let key = (name.prefix().clone(), mode.into());
        let Some(semaphore) = self.semaphores.remove(&key) else { return false };
        if let Some(sole) = &semaphore.sole {
            self.expiries.remove(&(sole.ends, Expiry::Sole(key.clone())));
        }
        for (owner, hold) in &semaphore.shared {
            self.expiries.remove(&(hold.ends, Expiry::Shared(key.clone(), *owner)));
        }
        for (process, until) in semaphore.queue.kept() {
            self.expiries.remove(&(until, Expiry::QueueEntries(key.clone(), process)));
        }
        semaphore.sole.is_some()
            || !semaphore.shared.is_empty()
            || semaphore.queue.first().is_some()
    }

    fn enter_queue(&mut self, claim: &Claim, now: Instant) {
        if claim.waits {
            self.semaphores.entry(key(claim)).or_default().queue.enter(claim, now);
            self.keep_entries(claim, claim.queue_entry_life(), now);
        }
    }

    fn leave_queue(&mut self, claim: &Claim) {
        self.change(&key(claim), |semaphore| semaphore.queue.leave(claim.owner));
    }

    /// Keeps the queue entries of the process of a claim. Returns until when they were kept before.
    fn keep_entries(&mut self, claim: &Claim, life: Duration, now: Instant) -> Option<Instant> {
        let (key, process) = (key(claim), claim.owner.process_half());
        let until = after(now, life);
        let queue = &mut self.semaphores.entry(key.clone()).or_default().queue;
        let before = queue.keep(process, until);
        let expiry = Expiry::QueueEntries(key, process);
        if let Some(before) = before {
            self.expiries.remove(&(before, expiry.clone()));
        }
        self.expiries.insert((until, expiry));
        before
    }

    /// Grants what is free to the claims at the head of the queue, in their order and while they
    /// fit. Returns the pushes.
    fn grant_next(&mut self, by: &Claim, heard: bool, now: Instant) -> Vec<Change> {
        let (key, mut pushed) = (key(by), Vec::new());
        while let Some(semaphore) = self.semaphores.get(&key)
            && let Some(first) = semaphore.queue.first().cloned()
            && semaphore.in_the_way(first.claim.mode.need(), now).is_none()
        {
            // A claim that does not hear keeps its place, or is passed over.
            if !heard && first.claim.mode != Mode::Exclusive {
                break;
            }
            self.leave_queue(&first.claim);
            if heard {
                let owner = first.claim.owner;
                let lease = first.claim.handover_life();
                let next = Claim { lease, fence_life: by.fence_life, ..first.claim };
                // The time stands for a fence where there is none.
                let fence = self.grant(&next, now).fence().max(self.clock(now));
                let ends = now - first.since + lease;
                pushed.push(Change::Granted(Handover { owner, fence, ends }));
            }
        }
        pushed
    }

    /// Makes units last their full time from now.
    fn grant_units(&mut self, claim: &Claim, units: u32, now: Instant) {
        let (key, owner, ends) = (key(claim), claim.owner, after(now, claim.lease));
        let semaphore = self.semaphores.entry(key.clone()).or_default();
        let old = semaphore.shared.insert(owner, SharedHold { units, ends });
        let expiry = Expiry::Shared(key, owner);
        if let Some(old) = old {
            self.expiries.remove(&(old.ends, expiry.clone()));
        }
        self.expiries.insert((ends, expiry));
    }

    /// Ends what a claim holds. Returns whether it held it.
    fn end(&mut self, claim: &Claim) -> bool {
        match claim.mode.need() {
            Need::Sole => {
                self.sole_fence(claim).is_some() && self.end_sole(&claim.name, claim.mode)
            }
            Need::Units { .. } => {
                let key = key(claim);
                let ended = self.change(&key, |semaphore| semaphore.shared.remove(&claim.owner));
                let Some(hold) = ended.flatten() else { return false };
                self.expiries.remove(&(hold.ends, Expiry::Shared(key, claim.owner)))
            }
        }
    }

    /// Changes a semaphore, and forgets it when it is empty.
    pub(super) fn change<T>(
        &mut self,
        key: &SemaphoreKey,
        change: impl FnOnce(&mut StoredSemaphore) -> T,
    ) -> Option<T> {
        let semaphore = self.semaphores.get_mut(key)?;
        let outcome = change(semaphore);
        if semaphore.is_empty() {
            self.semaphores.remove(key);
        }
        Some(outcome)
    }
}

fn key(claim: &Claim) -> SemaphoreKey {
    (claim.name.prefix().clone(), claim.mode.into())
}
