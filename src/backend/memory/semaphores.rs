//! The semaphores: their holders, the queue of those that wait, and the rules of the Redis scripts.

use std::time::Duration;

use super::{
    data::Data,
    stored::{SemaphoreKey, StoredSemaphore},
};
use crate::{
    backend::{
        Change, Claim, Claimed, Grant, Handover, Holding, Kept, Mode, Need, Occupied, SemaphoreKind,
    },
    key::{Family, Name, Namespace},
    time::after,
};

impl Data {
    /// Looks at a semaphore, or changes it. It lasts until its last hold and queue entry end.
    pub(super) fn on<T>(
        &mut self,
        name: &Name,
        kind: SemaphoreKind,
        change: impl FnOnce(&mut Self, &mut StoredSemaphore) -> T,
    ) -> T {
        let key = (name.prefix().clone(), kind);
        let mut semaphore = self.semaphores.remove(&key).unwrap_or_default();
        semaphore.expire(self.now);
        let answer = change(self, &mut semaphore);
        if let Some(ends) = semaphore.ends() {
            self.semaphores.set(key, semaphore, ends);
        }
        answer
    }

    /// Grants a claim that fits beside the holders while no claim is before it in the queue; or
    /// again to the owner that has it. A claim that is not granted enters the queue.
    pub(super) fn acquire(&mut self, claim: &Claim) -> Claimed {
        self.on(&claim.name, claim.mode.into(), |data, semaphore| {
            let now = data.now;
            let in_the_way = || {
                let first = semaphore.queue.entries.front()?;
                let remaining = semaphore.queue.left(first, now);
                let before = Occupied { fence: 0, remaining, holders: semaphore.out() };
                (first.claim.owner != claim.owner).then_some(before)
            };
            let occupied = semaphore.in_the_way(claim.mode.need(), now).or_else(in_the_way);
            if let Some(occupied) = occupied.filter(|_| !semaphore.is_held_by(claim)) {
                if claim.waits {
                    semaphore.queue.enter(claim, now);
                    semaphore.queue.keep(claim, after(now, claim.queue_entry_life()));
                }
                return Claimed::Occupied(occupied);
            }
            semaphore.queue.leave(claim.owner);
            Claimed::Granted(data.grant(semaphore, claim))
        })
    }

    /// Grants what is free; or again what the claim has, which keeps its fence.
    pub(super) fn grant(&mut self, semaphore: &mut StoredSemaphore, claim: &Claim) -> Grant {
        let held = semaphore.sole.as_ref().filter(|sole| sole.owner == claim.owner);
        let fence = match (claim.mode.need(), held) {
            (Need::Units { .. }, _) => 0,
            (Need::Sole, Some(held)) => {
                // A fence that was forgotten stays forgotten.
                self.fences.keep(claim.name.prefix(), after(self.now, claim.fence_life));
                held.fence
            }
            (Need::Sole, None) => self.next_fence(&claim.name, claim.fence_life),
        };
        semaphore.hold(claim, fence, after(self.now, claim.lease));
        Grant::new(fence)
    }

    pub(super) fn renew(&mut self, claim: &Claim) -> bool {
        self.on(&claim.name, claim.mode.into(), |data, semaphore| {
            let is_held = semaphore.is_held_by(claim);
            if is_held {
                data.grant(semaphore, claim);
            }
            is_held
        })
    }

    /// Keeps the queue entries of the process of some claims, and grants what is free. `heard` says
    /// whether the waiters hear a push.
    pub(super) fn keep(&mut self, claims: &[Claim], life: Duration, heard: bool) -> Kept {
        let Some(first) = claims.first() else { return Kept::default() };
        self.on(&first.name, first.mode.into(), |data, semaphore| {
            let now = data.now;
            let has_lapsed = !semaphore.queue.keep(first, after(now, life));
            let stands = claims.iter().map(|claim| semaphore.queue.has(claim.owner)).collect();
            let handed_over = data.grant_next(semaphore, first, heard);
            let remaining = match semaphore.queue.entries.front() {
                Some(unheard) if semaphore.in_the_way(unheard.claim.mode.need(), now).is_none() => {
                    semaphore.queue.left(unheard, now)
                }
                _ => semaphore.hold_ends().min().map_or(Duration::ZERO, |ends| ends - now),
            };
            Kept { remaining, has_lapsed, handed_over, stands }
        })
    }

    /// Ends what the claim holds, and its queue entry, and grants what is free then. Returns
    /// whether it was held.
    pub(super) fn release(&mut self, claim: &Claim, heard: bool) -> bool {
        self.on(&claim.name, claim.mode.into(), |data, semaphore| {
            semaphore.queue.leave(claim.owner);
            let was_held = semaphore.end(claim);
            if !data.grant_next(semaphore, claim, heard) && was_held && claim.wakes_all() {
                data.push(&claim.name, Change::Wake);
            }
            was_held
        })
    }

    /// Ends what the claim of a load holds, which grants nothing. Returns whether it was held.
    pub(super) fn end(&mut self, claim: &Claim) -> bool {
        self.on(&claim.name, claim.mode.into(), |_, semaphore| semaphore.end(claim))
    }

    /// Converts what one owner holds into the hold of another one. Returns `None` if `from` has
    /// nothing to convert.
    pub(super) fn convert(&mut self, from: &Claim, to: &Claim, heard: bool) -> Option<Grant> {
        self.on(&from.name, from.mode.into(), |data, semaphore| {
            if !semaphore.is_held_by(to) {
                let is_only = match from.mode.need() {
                    Need::Sole => true,
                    Need::Units { count, .. } => semaphore.out() == count,
                };
                if !semaphore.is_held_by(from) || !is_only {
                    return None;
                }
                semaphore.queue.leave(to.owner);
                semaphore.end(from);
            } else if let Some(sole) = &semaphore.sole {
                return Some(Grant::new(sole.fence));
            }
            let grant = data.grant(semaphore, to);
            if let Need::Units { .. } = to.mode.need() {
                data.grant_next(semaphore, to, heard);
            }
            Some(grant)
        })
    }

    /// Renews a lease with this fence. Returns whether the claim has it.
    pub(super) fn set_lease_fence(&mut self, claim: &Claim, fence: u64) -> bool {
        self.on(&claim.name, claim.mode.into(), |data, semaphore| {
            let is_held = semaphore.is_held_by(claim);
            if is_held {
                semaphore.hold(claim, fence, after(data.now, claim.lease));
                let last = data.fences.get(claim.name.prefix()).map_or(0, |fence| fence.last);
                data.set_fence(&claim.name, last.max(fence), claim.fence_life);
            }
            is_held
        })
    }

    /// Returns who holds a semaphore, and how many wait.
    pub(super) fn inspect(&mut self, name: &Name, kind: SemaphoreKind) -> Holding {
        let failed = self.failures.get(name.prefix()).map(|failed| failed.record(self.now));
        self.on(name, kind, |data, semaphore| {
            let waiting = u32::try_from(semaphore.queue.entries.len()).unwrap_or(u32::MAX);
            let holders = semaphore.out();
            let last = semaphore.hold_ends().max();
            let expires_in = last.map_or(Duration::ZERO, |ends| ends - data.now);
            let held = Holding { waiting, holders, expires_in, failed, ..Holding::default() };
            let Some(sole) = &semaphore.sole else { return held };
            let held = Holding { holders: 1, ..held };
            held.by(sole.owner, sole.fence, data.clock(), sole.label.as_deref())
        })
    }

    /// Returns the locks of a namespace that are held or waited for.
    pub(super) fn lock_names(&mut self, namespace: &Namespace) -> Vec<(Name, SemaphoreKind)> {
        let named = |(prefix, kind): &SemaphoreKey| {
            Some((Name::from_prefix(namespace, Family::Lock, prefix)?, *kind))
        };
        self.semaphores.keys().filter_map(named).collect()
    }

    pub(super) fn clear(&mut self, name: &Name, mode: Mode) -> bool {
        self.push(name, Change::Wake);
        self.on(name, mode.into(), |_, semaphore| {
            let cleared = std::mem::take(semaphore);
            cleared.hold_ends().next().is_some() || !cleared.queue.entries.is_empty()
        })
    }

    /// Grants what is free to the claims at the head of the queue, in their order and while they
    /// fit. Returns whether it pushes a grant.
    fn grant_next(&mut self, semaphore: &mut StoredSemaphore, by: &Claim, heard: bool) -> bool {
        let mut is_granted = false;
        while let Some(first) = semaphore.queue.entries.front().cloned()
            && semaphore.in_the_way(first.claim.mode.need(), self.now).is_none()
        {
            // A claim that does not hear keeps its place, or is passed over.
            if !heard && first.claim.mode != Mode::Exclusive {
                break;
            }
            semaphore.queue.leave(first.claim.owner);
            if heard {
                let (owner, lease) = (first.claim.owner, first.claim.handover_life());
                let next = Claim { lease, fence_life: by.fence_life, ..first.claim };
                // The time stands for a fence where there is none.
                let fence = self.grant(semaphore, &next).fence().max(self.clock());
                let ends = self.now - first.since + lease;
                self.push(&by.name, Change::Granted(Handover { owner, fence, ends }));
                is_granted = true;
            }
        }
        is_granted
    }
}
