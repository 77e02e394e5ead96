//! The [`Leases`] of the memory backend: semaphores with their holders and their queues.

use std::{sync::Weak, time::Duration};

use async_trait::async_trait;

use super::{MemoryBackend, data::Data, stored::StoredSemaphore};
use crate::{
    backend::{
        Change, Changes, Claim, Claimed, FoundLocks, Grant, HANDOVER_LIFE, Handover, Holders,
        Holding, Kept, Leases, Mark, Marked, Mode, Owner, ProcessId, QUEUE_ENTRY_LIFE, Renewal,
        SearchFrom, SemaphoreKind, Tick, TickStep,
    },
    error::BackendError,
    key::{Family, Name, Namespace},
    time::after,
};

#[async_trait]
impl Leases for MemoryBackend {
    fn is_shared(&self) -> bool {
        false
    }

    fn process(&self) -> ProcessId {
        self.process
    }

    async fn acquire(&self, claim: &Claim) -> Result<Claimed, BackendError> {
        Ok(self.with_semaphore(&claim.name, claim.mode.into(), |data, semaphore| {
            let now = data.now;
            if !semaphore.is_held_by(claim)
                && let Some(occupied) = semaphore.before(claim, now)
            {
                if claim.waits {
                    semaphore.queue.enter(claim, now);
                    semaphore.queue.keep(claim, after(now, QUEUE_ENTRY_LIFE));
                }
                return Claimed::Occupied(occupied);
            }
            semaphore.queue.leave(claim.owner);
            Claimed::Granted(data.grant(semaphore, claim))
        }))
    }

    async fn renew(&self, claims: &[Claim]) -> Result<Vec<Renewal>, BackendError> {
        Ok(self.run(|data| {
            let mut renewals = Vec::with_capacity(claims.len());
            for claim in claims {
                data.with_semaphore(&claim.name, claim.mode.into(), |data, semaphore| {
                    let is_held = semaphore.is_held_by(claim);
                    if is_held {
                        data.grant(semaphore, claim);
                    }
                    renewals.push(Renewal::from(is_held));
                });
            }
            renewals
        }))
    }

    async fn keep(&self, claims: &[Claim], life: Duration) -> Result<Kept, BackendError> {
        let Some(first) = claims.first() else { return Ok(Kept::default()) };
        Ok(self.with_semaphore(&first.name, first.mode.into(), |data, semaphore| {
            let now = data.now;
            let has_lapsed = !semaphore.queue.keep(first, after(now, life));
            let owners = &semaphore.queue.owners;
            let stands = claims.iter().map(|claim| owners.contains(&claim.owner)).collect();
            let is_heard = self.has_waiters(&first.name);
            let handed_over = data.grant_next(semaphore, first, is_heard);
            let remaining = match semaphore.queue.entries.front() {
                // The lease is free, and the first waiter does not receive pushes.
                Some((next, _)) if semaphore.in_the_way(next.mode.need(), now).is_none() => {
                    semaphore.queue.left(next, now)
                }
                _ => semaphore.first_end(now),
            };
            Kept { remaining, has_lapsed, handed_over, stands }
        }))
    }

    async fn release(&self, claim: &Claim) -> Result<bool, BackendError> {
        Ok(self.with_semaphore(&claim.name, claim.mode.into(), |data, semaphore| {
            semaphore.queue.leave(claim.owner);
            let was_held = semaphore.end(claim);
            let is_heard = self.has_waiters(&claim.name);
            let is_handed_over = data.grant_next(semaphore, claim, is_heard);
            if was_held && !is_handed_over && claim.wakes_all() {
                data.push(&claim.name, Change::Wake);
            }
            was_held
        }))
    }

    async fn pass(&self, from: &Claim, to: &Claim) -> Result<Option<Grant>, BackendError> {
        Ok(self.with_semaphore(&from.name, from.mode.into(), |data, semaphore| {
            if semaphore.is_held_by(to) {
                if let Some((_, sole)) = semaphore.sole() {
                    return Some(Grant::new(sole.fence));
                }
            } else {
                if !semaphore.is_held_by(from) || semaphore.holds.len() > 1 {
                    return None;
                }
                semaphore.queue.leave(to.owner);
                semaphore.end(from);
            }
            let grant = data.grant(semaphore, to);
            if !to.mode.is_fenced() {
                data.grant_next(semaphore, to, self.has_waiters(&to.name));
            }
            Some(grant)
        }))
    }

    async fn set_fence(&self, claim: &Claim, fence: u64) -> Result<bool, BackendError> {
        Ok(self.with_semaphore(&claim.name, claim.mode.into(), |data, semaphore| {
            let is_held = semaphore.is_held_by(claim);
            if is_held {
                semaphore.hold(claim, fence, after(data.now, claim.lease));
                let last = data.fences.get(&claim.name.prefix).map_or(0, |(fence, _)| fence.last);
                data.set_fence(&claim.name, last.max(fence), claim.fence_life);
            }
            is_held
        }))
    }

    async fn mark(&self, claim: &Claim, tick: Tick) -> Result<Marked, BackendError> {
        Ok(self.with_semaphore(&claim.name, SemaphoreKind::Mutex, |data, semaphore| {
            let before = data.marks.get(&claim.name.prefix).map(|(mark, _)| *mark);
            if let TickStep::Forget(seen) = tick.step {
                let is_set = before.is_some() && (seen.is_none() || seen == before);
                if is_set {
                    data.marks.remove(&claim.name.prefix);
                }
                return Marked { before, is_set, now: data.clock() };
            }
            let is_set = semaphore.is_held_by(claim) && tick.is_possible(before, claim.owner);
            if is_set {
                let is_done = tick.step == TickStep::Done;
                let begun_by = if is_done { None } else { Some(claim.owner) };
                let mark = Mark { tick: tick.at, begun_by };
                data.marks.set(claim.name.prefix.clone(), mark, after(data.now, tick.kept));
            }
            Marked { before, is_set, now: data.clock() }
        }))
    }

    async fn inspect(&self, name: &Name, kind: SemaphoreKind) -> Result<Holding, BackendError> {
        Ok(self.with_semaphore(name, kind, |data, semaphore| {
            let waiting = match name.family {
                Family::Cache => u32::from(self.has_waiters(name)),
                _ => u32::try_from(semaphore.queue.entries.len()).unwrap_or(u32::MAX),
            };
            let last_end = semaphore.hold_ends().max();
            let holding = Holding {
                waiting,
                holders: semaphore.units(),
                expires_in: last_end.map_or(Duration::ZERO, |ends| ends - data.now),
                failed: data.failed(name),
                ..Holding::default()
            };
            let Some((owner, sole)) = semaphore.sole() else { return holding };
            let holding = Holding { holders: 1, ..holding };
            holding.by(owner, sole.fence, data.clock(), sole.label.as_deref())
        }))
    }

    async fn lock_names(
        &self,
        namespace: &Namespace,
        _from: &SearchFrom,
    ) -> Result<FoundLocks, BackendError> {
        let mut locks = Vec::new();
        self.run(|data| {
            for (prefix, kind) in data.semaphores.keys() {
                if let Some(name) = Name::from_prefix(namespace, Family::Lock, prefix) {
                    locks.push((name, *kind));
                }
            }
        });
        Ok(FoundLocks { locks, next: None })
    }

    async fn clear(&self, name: &Name, mode: Mode) -> Result<bool, BackendError> {
        Ok(self.with_semaphore(name, mode.into(), |data, semaphore| {
            data.push(name, Change::Wake);
            let cleared = std::mem::take(semaphore);
            for owner in cleared.holds.keys() {
                data.push(name, Change::Ended(*owner));
            }
            !cleared.holds.is_empty() || !cleared.queue.entries.is_empty()
        }))
    }

    async fn tell_ended(&self, name: &Name, owner: Owner) -> Result<(), BackendError> {
        self.channels.push(&name.prefix, Change::Ended(owner));
        Ok(())
    }

    fn watch(&self, holders: Weak<dyn Holders>) {
        self.channels.add_holders(holders);
    }

    fn listen(&self, name: &Name, claim: Option<&Claim>) -> Changes {
        self.channels.listen(&name.prefix, claim.map(|claim| claim.owner))
    }
}

impl Data {
    /// Reads or changes a semaphore. The semaphore lasts until its last hold and its last queue
    /// entry end.
    pub(super) fn with_semaphore<T>(
        &mut self,
        name: &Name,
        kind: SemaphoreKind,
        change: impl FnOnce(&mut Self, &mut StoredSemaphore) -> T,
    ) -> T {
        let key = (name.prefix.clone(), kind);
        let mut semaphore = self.semaphores.remove(&key).unwrap_or_default();
        semaphore.expire(self.now);
        let answer = change(self, &mut semaphore);
        if let Some(ends) = semaphore.ends() {
            self.semaphores.set(key, semaphore, ends);
        }
        answer
    }

    /// Grants the lease to a claim that fits. A claim that has the lease keeps its fence.
    pub(super) fn grant(&mut self, semaphore: &mut StoredSemaphore, claim: &Claim) -> Grant {
        let fence = match semaphore.hold_of(claim) {
            _ if !claim.mode.is_fenced() => 0,
            Some(hold) => {
                // A fence that has expired is not written again.
                self.fences.keep(&claim.name.prefix, after(self.now, claim.fence_life));
                hold.fence
            }
            None => self.next_fence(&claim.name, claim.fence_life),
        };
        semaphore.hold(claim, fence, after(self.now, claim.lease));
        Grant::new(fence)
    }

    /// Ends the lease of a load, which grants nothing to others. Returns whether the claim had the
    /// lease.
    pub(super) fn end(&mut self, claim: &Claim) -> bool {
        self.with_semaphore(&claim.name, claim.mode.into(), |_, semaphore| semaphore.end(claim))
    }

    /// Grants the free lease to the claims at the head of the queue, in their order and while they
    /// fit. `is_heard` says whether these claims receive pushes. Returns whether a claim was
    /// granted.
    fn grant_next(&mut self, semaphore: &mut StoredSemaphore, by: &Claim, is_heard: bool) -> bool {
        let mut is_granted = false;
        while let Some((first, since)) = semaphore.queue.entries.front().cloned()
            && semaphore.in_the_way(first.mode.need(), self.now).is_none()
        {
            // A claim that does not receive the push loses its entry if it is exclusive. Any other
            // claim keeps its entry.
            if !is_heard && first.mode != Mode::Exclusive {
                break;
            }
            semaphore.queue.leave(first.owner);
            if is_heard {
                let lease = first.lease.min(HANDOVER_LIFE);
                let next = Claim { lease, fence_life: by.fence_life, ..first };
                let grant = self.grant(semaphore, &next);
                let handover = Handover {
                    owner: next.owner,
                    // The time replaces the fence of a mode without fences.
                    fence: grant.fence().max(self.clock()),
                    ends: self.now - since + lease,
                    hold: next.mode.into(),
                };
                self.push(&by.name, Change::Granted(handover));
                is_granted = true;
            }
        }
        is_granted
    }
}
