//! The rules of the leases in each mode, which are those of the Redis scripts.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{
    data::{Data, Expiry, KEPT, Sole, SoleHold, sole},
    occupancy::{Hold, Holds, Occupancy, Queue, QueueEntry},
};
use crate::{
    backend::{
        Acquired, AcquiredAll, Change, Claim, Grant, HANDOVER_LIFE, Handover, Mode, Occupied,
        Owner, TURN_LIFE,
    },
    key::Name,
    time::after,
};

impl Data {
    pub(super) fn acquire(&mut self, claim: &Claim, now: Instant) -> Acquired {
        self.expire(now);
        match claim.mode {
            Mode::Exclusive | Mode::Fair | Mode::Write => self.acquire_queued(claim, now),
            Mode::Read => self.acquire_read(claim, now),
            Mode::Permit { limit, count } => self.acquire_permit(claim, limit, count, now),
        }
    }

    pub(super) fn acquire_all(&mut self, claims: &[Claim], now: Instant) -> AcquiredAll {
        self.expire(now);
        for (at, claim) in claims.iter().enumerate() {
            match self.lease(&claim.name, Sole::Lease) {
                Some(lease) if lease.owner != claim.owner => {
                    let occupied = lease.occupied(now);
                    self.enter_queue(claim, now);
                    return AcquiredAll::Held(at, occupied);
                }
                _ => {}
            }
        }
        let grants = claims.iter().map(|claim| {
            self.leave_queue(claim);
            self.grant(claim, now)
        });
        AcquiredAll::Granted(grants.collect())
    }

    fn acquire_queued(&mut self, claim: &Claim, now: Instant) -> Acquired {
        let lease = self.lease(&claim.name, sole(claim.mode));
        if lease.is_some_and(|lease| lease.owner == claim.owner) {
            self.leave_queue(claim);
            return Acquired::Granted(self.grant(claim, now));
        }
        let occupancy = self.occupancies.get(claim.name.prefix());
        let reading = match claim.mode {
            Mode::Write => occupancy.and_then(|occupancy| occupancy.readers.occupied(now)),
            Mode::Exclusive | Mode::Fair | Mode::Read | Mode::Permit { .. } => None,
        };
        let first = occupancy.and_then(|occupancy| queue(occupancy, claim.mode).first_ordered());
        // Claims that wait for a mutex get their turns in order, but are not held to the order, and
        // never block a fair claim.
        let any_order = claim.mode == Mode::Exclusive;
        let mine = any_order || first.is_none_or(|first| first.owner == claim.owner);
        let turn = first.map_or(Duration::ZERO, |first| first.ends - now);
        let occupied = match lease.map(|lease| lease.occupied(now)).or(reading) {
            Some(occupied) => occupied,
            None if mine => {
                self.leave_queue(claim);
                return Acquired::Granted(self.grant(claim, now));
            }
            None => Occupied { fence: 0, remaining: turn, holders: 0 },
        };
        self.enter_queue(claim, now);
        Acquired::Held(occupied)
    }

    fn acquire_read(&mut self, claim: &Claim, now: Instant) -> Acquired {
        let lease = self.lease(&claim.name, Sole::Writer).map(|lease| lease.occupied(now));
        let occupancy = self.occupancies.get(claim.name.prefix());
        let reads =
            occupancy.is_some_and(|occupancy| occupancy.readers.0.contains_key(&claim.owner));
        let readers = occupancy.map_or(0, |occupancy| occupancy.readers.count());
        let before =
            occupancy.and_then(|occupancy| occupancy.read_write_queue.alone_before(claim.owner));
        let before = before.map(|writer| Occupied {
            fence: 0,
            remaining: writer.ends - now,
            holders: readers,
        });
        match lease.or(before) {
            Some(occupied) if !reads => {
                self.enter_queue(claim, now);
                Acquired::Held(occupied)
            }
            _ => {
                self.leave_queue(claim);
                self.hold(claim, 1, now);
                Acquired::Granted(Grant::new(0))
            }
        }
    }

    fn acquire_permit(&mut self, claim: &Claim, limit: u32, count: u32, now: Instant) -> Acquired {
        let none = Holds::default();
        let permits =
            self.occupancies.get(claim.name.prefix()).map_or(&none, |occupancy| &occupancy.permits);
        let out = permits.count();
        let wanted = out.saturating_add(count);
        if permits.0.contains_key(&claim.owner) || wanted <= limit {
            self.hold(claim, count, now);
            return Acquired::Granted(Grant::new(0));
        }
        let remaining = permits.back(wanted - limit).map_or(Duration::ZERO, |ends| ends - now);
        Acquired::Held(Occupied { fence: 0, remaining, holders: out })
    }

    pub(super) fn renew(&mut self, claim: &Claim, now: Instant) -> bool {
        self.expire(now);
        match claim.mode {
            Mode::Exclusive | Mode::Fair | Mode::Write => {
                let lease = self.lease(&claim.name, sole(claim.mode));
                let mine = |lease: &&SoleHold| lease.owner == claim.owner && lease.fence != KEPT;
                let Some(fence) = lease.filter(mine).map(|lease| lease.fence) else { return false };
                self.extend(claim, fence, now);
                true
            }
            Mode::Read | Mode::Permit { .. } => {
                let is_held = self.is_held(claim);
                if is_held {
                    let count = if let Mode::Permit { count, .. } = claim.mode { count } else { 1 };
                    self.hold(claim, count, now);
                }
                is_held
            }
        }
    }

    /// Releases a lease. `heard` says whether a waiter hears a push. Returns whether it was held,
    /// and the push.
    pub(super) fn release(
        &mut self,
        claim: &Claim,
        heard: bool,
        now: Instant,
    ) -> (bool, Option<Change>) {
        self.expire(now);
        let name = &claim.name;
        let queued = self.leave_queue(claim);
        let sole = sole(claim.mode);
        let lease = self.lease(name, sole).map(|lease| (lease.owner, lease.fence));
        let mine = lease.is_some_and(|(holder, _)| holder == claim.owner);
        let kept = lease == Some((claim.owner, KEPT));
        let had = match claim.mode {
            Mode::Exclusive | Mode::Fair | Mode::Write => {
                mine && self.drop_lease(name, sole) && !kept
            }
            Mode::Read | Mode::Permit { .. } => self.end_hold(claim),
        };
        // Also without a queue entry: it may be the claim's turn, and the claim leaves instead.
        let occupancy = self.occupancies.get(name.prefix());
        let waited_for = claim.mode.queues()
            && occupancy.is_some_and(|occupancy| queue(occupancy, claim.mode).first().is_some());
        if !had && (lease.is_some() && !kept || !(kept || queued || waited_for)) {
            return (false, None);
        }
        (had, self.next_turn(claim, heard, now))
    }

    /// Returns the push that tells the next claim that the lease is free.
    fn next_turn(&mut self, claim: &Claim, heard: bool, now: Instant) -> Option<Change> {
        loop {
            let occupancy = self.occupancies.get(claim.name.prefix());
            let first = match claim.mode {
                Mode::Permit { .. } => None,
                mode => occupancy.and_then(|occupancy| queue(occupancy, mode).first()),
            };
            let Some(first) = first.filter(|first| first.alone) else { return Some(Change::Wake) };
            let reads = matches!(claim.mode, Mode::Read | Mode::Write);
            if reads && occupancy.is_some_and(|occupancy| !occupancy.readers.0.is_empty()) {
                return None;
            }
            let owner = first.owner;
            let (ordered, takes_handover) = (first.ordered, first.takes_handover);
            let lease = (first.ends - now).min(HANDOVER_LIFE);
            let ends = now - first.since + lease;
            if ordered && !(heard && takes_handover) {
                return Some(Change::Turn(owner));
            }
            let next = Claim { owner, ..claim.clone() };
            self.leave_queue(&next);
            if heard && takes_handover {
                let fence = self.grant(&Claim { lease, ..next }, now).fence();
                return Some(Change::Granted(Handover { owner, fence, ends }));
            }
            // The entry is gone, so that a dead claim gets one turn only. A claim that does not
            // hear is passed over.
            if heard {
                self.set_lease(&Claim { lease: TURN_LIFE, ..next }, KEPT, now);
                return Some(Change::Turn(owner));
            }
        }
    }

    /// Passes a lease on. Returns the grant and the push, or `None` if `from` has no lease to pass.
    pub(super) fn pass(
        &mut self,
        from: &Claim,
        to: &Claim,
        now: Instant,
    ) -> Option<(Grant, Option<Change>)> {
        self.expire(now);
        let name = &from.name;
        let sole = sole(from.mode);
        let held = self.lease(name, sole).filter(|lease| lease.fence != KEPT);
        let lease = held.map(|lease| (lease.owner, lease.fence));
        match (to.mode, lease) {
            (Mode::Read, _) if self.is_held(to) => Some((Grant::new(0), None)),
            (_, Some((holder, fence))) if holder == to.owner => Some((Grant::new(fence), None)),
            (Mode::Read, Some((holder, _))) if holder == from.owner => {
                self.drop_lease(name, sole);
                self.hold(to, 1, now);
                let first = self.occupancies.get(name.prefix())?.read_write_queue.first();
                let reader = first.is_some_and(|first| !first.alone);
                Some((Grant::new(0), reader.then_some(Change::Wake)))
            }
            (Mode::Write, None) if self.is_held(from) => {
                let readers = self.occupancies.get(name.prefix())?.readers.count();
                (readers == 1).then(|| {
                    self.end_hold(from);
                    (self.grant(to, now), None)
                })
            }
            (Mode::Exclusive | Mode::Fair, Some((holder, _))) if holder == from.owner => {
                self.drop_lease(name, sole);
                Some((self.grant(to, now), None))
            }
            _ => None,
        }
    }

    pub(super) fn holder(&mut self, name: &Name, mode: Mode, now: Instant) -> Option<Occupied> {
        self.expire(now);
        let occupancy = self.occupancies.get(name.prefix());
        match mode {
            Mode::Read => occupancy?.readers.occupied(now),
            Mode::Permit { .. } => occupancy?.permits.occupied(now),
            Mode::Exclusive | Mode::Fair | Mode::Write => {
                self.lease(name, sole(mode)).map(|lease| lease.occupied(now))
            }
        }
    }

    pub(super) fn clear(&mut self, name: &Name, mode: Mode, now: Instant) -> bool {
        self.expire(now);
        let lease = !matches!(mode, Mode::Permit { .. }) && self.drop_lease(name, sole(mode));
        let mut ended = Vec::new();
        let prefix = name.prefix();
        let occupancy = self.change(prefix, |occupancy| {
            let holds = match mode {
                Mode::Read | Mode::Write => Some(&mut occupancy.readers),
                Mode::Permit { .. } => Some(&mut occupancy.permits),
                Mode::Exclusive | Mode::Fair => None,
            };
            let holds = holds.map(|holds| std::mem::take(&mut holds.0)).unwrap_or_default();
            let queue = match mode {
                Mode::Read | Mode::Write => std::mem::take(&mut occupancy.read_write_queue.0),
                Mode::Exclusive | Mode::Fair => std::mem::take(&mut occupancy.sole_queue.0),
                Mode::Permit { .. } => Vec::new(),
            };
            let hold =
                |(owner, hold): (Owner, Hold)| (hold.ends, Expiry::Hold(prefix.clone(), owner));
            ended.extend(holds.into_iter().map(hold));
            let entry =
                |entry: QueueEntry| (entry.ends, Expiry::QueueEntry(prefix.clone(), entry.owner));
            ended.extend(queue.into_iter().map(entry));
            !ended.is_empty()
        });
        for end in ended {
            self.expiries.remove(&end);
        }
        lease || occupancy == Some(true)
    }

    fn is_held(&self, claim: &Claim) -> bool {
        let occupancy = self.occupancies.get(claim.name.prefix());
        occupancy.is_some_and(|occupancy| holds(occupancy, claim.mode).0.contains_key(&claim.owner))
    }

    /// Makes a hold last its full time from now.
    fn hold(&mut self, claim: &Claim, count: u32, now: Instant) {
        let (name, owner) = (claim.name.prefix().clone(), claim.owner);
        let ends = after(now, claim.lease);
        let occupancy = self.occupancies.entry(name.clone()).or_default();
        if let Some(old) = holds_mut(occupancy, claim.mode).0.insert(owner, Hold { ends, count }) {
            self.expiries.remove(&(old.ends, Expiry::Hold(name.clone(), owner)));
        }
        self.expiries.insert((ends, Expiry::Hold(name, owner)));
    }

    fn end_hold(&mut self, claim: &Claim) -> bool {
        let name = claim.name.prefix();
        let ended =
            self.change(name, |occupancy| holds_mut(occupancy, claim.mode).0.remove(&claim.owner));
        match ended.flatten() {
            Some(hold) => {
                self.expiries.remove(&(hold.ends, Expiry::Hold(name.clone(), claim.owner)))
            }
            None => false,
        }
    }

    fn enter_queue(&mut self, claim: &Claim, now: Instant) {
        if !claim.waits {
            return;
        }
        let (name, owner) = (claim.name.prefix().clone(), claim.owner);
        let ends = after(now, claim.queue_entry_life());
        let entry = QueueEntry {
            owner,
            since: now,
            ends,
            alone: claim.mode != Mode::Read,
            ordered: claim.mode != Mode::Exclusive,
            takes_handover: claim.takes_handover,
        };
        let occupancy = self.occupancies.entry(name.clone()).or_default();
        let old = queue_mut(occupancy, claim.mode).enter(entry);
        if let Some(old) = old {
            self.expiries.remove(&(old, Expiry::QueueEntry(name.clone(), owner)));
        }
        self.expiries.insert((ends, Expiry::QueueEntry(name, owner)));
    }

    /// Leaves the queue. Returns whether there was an entry.
    fn leave_queue(&mut self, claim: &Claim) -> bool {
        if !claim.mode.queues() {
            return false;
        }
        let name = claim.name.prefix();
        let left =
            self.change(name, |occupancy| queue_mut(occupancy, claim.mode).leave(claim.owner));
        match left.flatten() {
            Some(ends) => {
                self.expiries.remove(&(ends, Expiry::QueueEntry(name.clone(), claim.owner)))
            }
            None => false,
        }
    }

    /// Changes the occupancy of a name, and forgets it when it is empty.
    pub(super) fn change<T>(
        &mut self,
        name: &Arc<str>,
        change: impl FnOnce(&mut Occupancy) -> T,
    ) -> Option<T> {
        let occupancy = self.occupancies.get_mut(name)?;
        let outcome = change(occupancy);
        if occupancy.is_empty() {
            self.occupancies.remove(name);
        }
        Some(outcome)
    }
}

fn queue(occupancy: &Occupancy, mode: Mode) -> &Queue {
    match mode {
        Mode::Exclusive | Mode::Fair => &occupancy.sole_queue,
        Mode::Read | Mode::Write | Mode::Permit { .. } => &occupancy.read_write_queue,
    }
}

fn queue_mut(occupancy: &mut Occupancy, mode: Mode) -> &mut Queue {
    match mode {
        Mode::Exclusive | Mode::Fair => &mut occupancy.sole_queue,
        Mode::Read | Mode::Write | Mode::Permit { .. } => &mut occupancy.read_write_queue,
    }
}

fn holds(occupancy: &Occupancy, mode: Mode) -> &Holds {
    match mode {
        Mode::Permit { .. } => &occupancy.permits,
        Mode::Exclusive | Mode::Fair | Mode::Read | Mode::Write => &occupancy.readers,
    }
}

fn holds_mut(occupancy: &mut Occupancy, mode: Mode) -> &mut Holds {
    match mode {
        Mode::Permit { .. } => &mut occupancy.permits,
        Mode::Exclusive | Mode::Fair | Mode::Read | Mode::Write => &mut occupancy.readers,
    }
}
