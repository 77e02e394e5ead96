//! The [`Leases`]: semaphores with their holders, and the queue of those that wait.

use std::{sync::Weak, time::Duration};

use async_trait::async_trait;

use super::{
    MemoryBackend,
    data::Data,
    stored::{SemaphoreKey, StoredSemaphore},
};
use crate::{
    backend::{
        Change, Changes, Claim, Claimed, FoundLocks, Grant, HANDOVER_LIFE, Handover, Holders,
        Holding, Kept, Leases, Mark, Marked, Mode, Occupied, Owner, ProcessId, QUEUE_ENTRY_LIFE,
        Renewal, SearchFrom, SemaphoreKind, Tick, TickStep,
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
        Ok(self.on(&claim.name, claim.mode.into(), |data, semaphore| {
            let now = data.now;
            let in_the_way = || {
                let (first, _) = semaphore.queue.entries.front()?;
                let remaining = semaphore.queue.left(first, now);
                let before = Occupied { fence: 0, remaining, holders: semaphore.out() };
                (first.owner != claim.owner).then_some(before)
            };
            let occupied = semaphore.in_the_way(claim.mode.need(), now).or_else(in_the_way);
            if let Some(occupied) = occupied.filter(|_| !semaphore.is_held_by(claim)) {
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
            let renew = |claim: &Claim| {
                data.on(&claim.name, claim.mode.into(), |data, semaphore| {
                    let is_held = semaphore.is_held_by(claim);
                    is_held.then(|| data.grant(semaphore, claim)).is_some().into()
                })
            };
            claims.iter().map(renew).collect()
        }))
    }

    async fn keep(&self, claims: &[Claim], life: Duration) -> Result<Kept, BackendError> {
        let Some(first) = claims.first() else { return Ok(Kept::default()) };
        Ok(self.on(&first.name, first.mode.into(), |data, semaphore| {
            let now = data.now;
            let has_lapsed = !semaphore.queue.keep(first, after(now, life));
            let owners = &semaphore.queue.owners;
            let stands = claims.iter().map(|claim| owners.contains(&claim.owner)).collect();
            let heard = self.is_waited_for(&first.name);
            let handed_over = data.grant_next(semaphore, first, heard);
            let remaining = match semaphore.queue.entries.front() {
                Some((unheard, _)) if semaphore.in_the_way(unheard.mode.need(), now).is_none() => {
                    semaphore.queue.left(unheard, now)
                }
                _ => semaphore.hold_ends().min().map_or(Duration::ZERO, |ends| ends - now),
            };
            Kept { remaining, has_lapsed, handed_over, stands }
        }))
    }

    async fn release(&self, claim: &Claim) -> Result<bool, BackendError> {
        Ok(self.on(&claim.name, claim.mode.into(), |data, semaphore| {
            semaphore.queue.leave(claim.owner);
            let was_held = semaphore.end(claim);
            let heard = self.is_waited_for(&claim.name);
            if !data.grant_next(semaphore, claim, heard) && was_held && claim.wakes_all() {
                data.push(&claim.name, Change::Wake);
            }
            was_held
        }))
    }

    async fn pass(&self, from: &Claim, to: &Claim) -> Result<Option<Grant>, BackendError> {
        Ok(self.on(&from.name, from.mode.into(), |data, semaphore| {
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
                data.grant_next(semaphore, to, self.is_waited_for(&to.name));
            }
            Some(grant)
        }))
    }

    async fn set_fence(&self, claim: &Claim, fence: u64) -> Result<bool, BackendError> {
        Ok(self.on(&claim.name, claim.mode.into(), |data, semaphore| {
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
        Ok(self.on(&claim.name, SemaphoreKind::Mutex, |data, semaphore| {
            let before = data.marks.get(&claim.name.prefix).map(|(mark, _)| *mark);
            if tick.step == TickStep::Forget {
                let is_set = data.marks.remove(&claim.name.prefix).is_some();
                return Marked { before, is_set, now: data.clock() };
            }
            let is_set = semaphore.is_held_by(claim) && tick.is_possible(before, claim.owner);
            if is_set {
                let begun_by = (tick.step != TickStep::Done).then_some(claim.owner);
                let mark = Mark { tick: tick.at, begun_by };
                data.marks.set(claim.name.prefix.clone(), mark, after(data.now, tick.kept));
            }
            Marked { before, is_set, now: data.clock() }
        }))
    }

    async fn inspect(&self, name: &Name, kind: SemaphoreKind) -> Result<Holding, BackendError> {
        Ok(self.on(name, kind, |data, semaphore| {
            let waiting = match name.family {
                Family::Cache => u32::from(self.is_waited_for(name)),
                _ => u32::try_from(semaphore.queue.entries.len()).unwrap_or(u32::MAX),
            };
            let (failed, last) = (data.failed(name), semaphore.hold_ends().max());
            let expires_in = last.map_or(Duration::ZERO, |ends| ends - data.now);
            let holders = semaphore.out();
            let held = Holding { waiting, holders, expires_in, failed, ..Holding::default() };
            let Some((owner, sole)) = semaphore.sole() else { return held };
            let held = Holding { holders: 1, ..held };
            held.by(owner, sole.fence, data.clock(), sole.label.as_deref())
        }))
    }

    async fn lock_names(
        &self,
        namespace: &Namespace,
        _from: &SearchFrom,
    ) -> Result<FoundLocks, BackendError> {
        let named = |(prefix, kind): &SemaphoreKey| {
            Some((Name::from_prefix(namespace, Family::Lock, prefix)?, *kind))
        };
        let locks = self.run(|data| data.semaphores.keys().filter_map(named).collect());
        Ok(FoundLocks { locks, next: None })
    }

    async fn clear(&self, name: &Name, mode: Mode) -> Result<bool, BackendError> {
        Ok(self.on(name, mode.into(), |data, semaphore| {
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
    /// Looks at a semaphore, or changes it. It lasts until its last hold and queue entry end.
    pub(super) fn on<T>(
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

    /// Grants what is free; or again what the claim has, which keeps its fence.
    pub(super) fn grant(&mut self, semaphore: &mut StoredSemaphore, claim: &Claim) -> Grant {
        let fence = match semaphore.hold_of(claim) {
            _ if !claim.mode.is_fenced() => 0,
            Some(held) => {
                // A fence that was forgotten stays forgotten.
                self.fences.keep(&claim.name.prefix, after(self.now, claim.fence_life));
                held.fence
            }
            None => self.next_fence(&claim.name, claim.fence_life),
        };
        semaphore.hold(claim, fence, after(self.now, claim.lease));
        Grant::new(fence)
    }

    /// Ends what the claim of a load holds, which grants nothing. Returns whether it was held.
    pub(super) fn end(&mut self, claim: &Claim) -> bool {
        self.on(&claim.name, claim.mode.into(), |_, semaphore| semaphore.end(claim))
    }

    /// Grants what is free to the claims at the head of the queue, in their order and while they
    /// fit. Returns whether it pushes a grant.
    fn grant_next(&mut self, semaphore: &mut StoredSemaphore, by: &Claim, heard: bool) -> bool {
        let mut is_granted = false;
        while let Some((first, since)) = semaphore.queue.entries.front().cloned()
            && semaphore.in_the_way(first.mode.need(), self.now).is_none()
        {
            // A claim that does not hear keeps its place, or is passed over.
            if !heard && first.mode != Mode::Exclusive {
                break;
            }
            semaphore.queue.leave(first.owner);
            if heard {
                let (owner, lease) = (first.owner, first.lease.min(HANDOVER_LIFE));
                let next = Claim { lease, fence_life: by.fence_life, ..first };
                // The time stands for a fence where there is none.
                let fence = self.grant(semaphore, &next).fence().max(self.clock());
                let ends = self.now - since + lease;
                let hold = next.mode.into();
                self.push(&by.name, Change::Granted(Handover { owner, fence, ends, hold }));
                is_granted = true;
            }
        }
        is_granted
    }
}
