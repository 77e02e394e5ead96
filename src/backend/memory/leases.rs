//! The rules of the leases in each mode, which are those of the scripts in `redis/lua`.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{
    shared::{Hold, Holds, Place, Queue, Shared},
    state::{CALLED, End, Lease, Sole, State, sole},
};
use crate::{
    backend::{
        Acquired, AcquiredAll, Change, Claim, Grant, HANDOVER_LIFE, Handover, Mode, Occupied,
        Owner, TURN_LIFE,
    },
    key::Name,
    time::after,
};

impl State {
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
                    self.take_place(claim, now);
                    return AcquiredAll::Held(at, occupied);
                }
                _ => {}
            }
        }
        let grants = claims.iter().map(|claim| {
            self.leave(claim);
            self.grant(claim, now)
        });
        AcquiredAll::Granted(grants.collect())
    }

    fn acquire_queued(&mut self, claim: &Claim, now: Instant) -> Acquired {
        let lease = self.lease(&claim.name, sole(claim.mode));
        if lease.is_some_and(|lease| lease.owner == claim.owner) {
            self.leave(claim);
            return Acquired::Granted(self.grant(claim, now));
        }
        let shared = self.shared.get(claim.name.prefix());
        let reading = match claim.mode {
            Mode::Write => shared.and_then(|shared| shared.readers.occupied(now)),
            _ => None,
        };
        let first = shared.and_then(|shared| queue(shared, claim.mode).first_ordered());
        // Those who wait for a mutex are called in their order, and not held to it; nor is anyone to them.
        let any_order = claim.mode == Mode::Exclusive;
        let mine = any_order || first.is_none_or(|first| first.token == claim.owner);
        let turn = first.map_or(Duration::ZERO, |first| first.ends - now);
        let occupied = match lease.map(|lease| lease.occupied(now)).or(reading) {
            Some(occupied) => occupied,
            None if mine => {
                self.leave(claim);
                return Acquired::Granted(self.grant(claim, now));
            }
            None => Occupied { fence: 0, remaining: turn, holders: 0 },
        };
        self.take_place(claim, now);
        Acquired::Held(occupied)
    }

    fn acquire_read(&mut self, claim: &Claim, now: Instant) -> Acquired {
        let lease = self.lease(&claim.name, Sole::Writer).map(|lease| lease.occupied(now));
        let shared = self.shared.get(claim.name.prefix());
        let reads = shared.is_some_and(|shared| shared.readers.0.contains_key(&claim.owner));
        let readers = shared.map_or(0, |shared| shared.readers.count());
        let before = shared.and_then(|shared| shared.read_write.alone_before(claim.owner));
        let before = before.map(|writer| Occupied {
            fence: 0,
            remaining: writer.ends - now,
            holders: readers,
        });
        match lease.or(before) {
            Some(occupied) if !reads => {
                self.take_place(claim, now);
                Acquired::Held(occupied)
            }
            _ => {
                self.leave(claim);
                self.hold(claim, 1, now);
                Acquired::Granted(Grant::new(0))
            }
        }
    }

    fn acquire_permit(&mut self, claim: &Claim, limit: u32, count: u32, now: Instant) -> Acquired {
        let none = Holds::default();
        let permits = self.shared.get(claim.name.prefix()).map_or(&none, |shared| &shared.permits);
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
                let mine = |lease: &&Lease| lease.owner == claim.owner && lease.fence != CALLED;
                let Some(fence) = lease.filter(mine).map(|lease| lease.fence) else { return false };
                self.extend(claim, fence, now);
                true
            }
            Mode::Read => self.is_held(claim) && self.hold(claim, 1, now),
            Mode::Permit { count, .. } => self.is_held(claim) && self.hold(claim, count, now),
        }
    }

    /// Whether it was held, and what is to be pushed, to those who may hear it.
    pub(super) fn release(
        &mut self,
        claim: &Claim,
        heard: bool,
        now: Instant,
    ) -> (bool, Option<Change>) {
        self.expire(now);
        let name = &claim.name;
        let placed = self.leave(claim);
        let sole = sole(claim.mode);
        let lease = self.lease(name, sole).map(|lease| (lease.owner, lease.fence));
        let mine = lease.is_some_and(|(holder, _)| holder == claim.owner);
        let called = lease == Some((claim.owner, CALLED));
        let had = match claim.mode {
            Mode::Exclusive | Mode::Fair | Mode::Write => {
                mine && self.drop_lease(name, sole) && !called
            }
            Mode::Read | Mode::Permit { .. } => self.end_hold(claim),
        };
        // Also one who has no place any more: it may have been called, and leave instead.
        let shared = self.shared.get(name.prefix());
        let waited_for = claim.mode.queues()
            && shared.is_some_and(|shared| queue(shared, claim.mode).first().is_some());
        if !had && (lease.is_some() && !called || !(called || placed || waited_for)) {
            return (false, None);
        }
        (had, self.turn(claim, heard, now))
    }

    /// Who is told that something has become free, where anyone hears it.
    fn turn(&mut self, claim: &Claim, heard: bool, now: Instant) -> Option<Change> {
        loop {
            let shared = self.shared.get(claim.name.prefix());
            let first = match claim.mode {
                Mode::Permit { .. } => None,
                mode => shared.and_then(|shared| queue(shared, mode).first()),
            };
            let Some(first) = first.filter(|first| first.alone) else { return Some(Change::Wake) };
            let reads = matches!(claim.mode, Mode::Read | Mode::Write);
            if reads && shared.is_some_and(|shared| !shared.readers.0.is_empty()) {
                return None;
            }
            let token = first.token;
            let (ordered, takes_handover) = (first.ordered, first.takes_handover);
            let lease = (first.ends - now).min(HANDOVER_LIFE);
            let ends = now - first.since + lease;
            if ordered && !(heard && takes_handover) {
                return Some(Change::Turn(token));
            }
            let next = Claim { owner: token, ..claim.clone() };
            self.leave(&next);
            if heard && takes_handover {
                let fence = self.grant(&Claim { lease, ..next }, now).fence();
                return Some(Change::Granted(Handover { owner: token, fence, ends }));
            }
            // It lost the place, lest one that died be called again; and one whom nobody hears is passed over.
            if heard {
                self.set_lease(&Claim { lease: TURN_LIFE, ..next }, CALLED, now);
                return Some(Change::Turn(token));
            }
        }
    }

    /// The grant, and what is to be pushed; none of it, if `from` has nothing to pass.
    pub(super) fn pass(
        &mut self,
        from: &Claim,
        to: &Claim,
        now: Instant,
    ) -> Option<(Grant, Option<Change>)> {
        self.expire(now);
        let name = &from.name;
        let sole = sole(from.mode);
        let held = self.lease(name, sole).filter(|lease| lease.fence != CALLED);
        let lease = held.map(|lease| (lease.owner, lease.fence));
        match (to.mode, lease) {
            (Mode::Read, _) if self.is_held(to) => Some((Grant::new(0), None)),
            (_, Some((holder, fence))) if holder == to.owner => Some((Grant::new(fence), None)),
            (Mode::Read, Some((holder, _))) if holder == from.owner => {
                self.drop_lease(name, sole);
                self.hold(to, 1, now);
                let first = self.shared.get(name.prefix())?.read_write.first();
                let reader = first.is_some_and(|first| !first.alone);
                Some((Grant::new(0), reader.then_some(Change::Wake)))
            }
            (Mode::Write, None) if self.is_held(from) => {
                let readers = self.shared.get(name.prefix())?.readers.count();
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
        let shared = self.shared.get(name.prefix());
        match mode {
            Mode::Read => shared?.readers.occupied(now),
            Mode::Permit { .. } => shared?.permits.occupied(now),
            _ => self.lease(name, sole(mode)).map(|lease| lease.occupied(now)),
        }
    }

    pub(super) fn clear(&mut self, name: &Name, mode: Mode, now: Instant) -> bool {
        self.expire(now);
        let lease = !matches!(mode, Mode::Permit { .. }) && self.drop_lease(name, sole(mode));
        let mut ended = Vec::new();
        let prefix = name.prefix();
        let shared = self.change_shared(prefix, |shared| {
            let holds = match mode {
                Mode::Read | Mode::Write => Some(&mut shared.readers),
                Mode::Permit { .. } => Some(&mut shared.permits),
                _ => None,
            };
            let holds = holds.map(|holds| std::mem::take(&mut holds.0)).unwrap_or_default();
            let queue = match mode {
                Mode::Read | Mode::Write => std::mem::take(&mut shared.read_write.0),
                Mode::Exclusive | Mode::Fair => std::mem::take(&mut shared.sole.0),
                _ => Vec::new(),
            };
            let hold = |(token, hold): (Owner, Hold)| (hold.ends, End::Hold(prefix.clone(), token));
            ended.extend(holds.into_iter().map(hold));
            let place = |place: Place| (place.ends, End::Place(prefix.clone(), place.token));
            ended.extend(queue.into_iter().map(place));
            !ended.is_empty()
        });
        for end in ended {
            self.ends.remove(&end);
        }
        lease || shared == Some(true)
    }

    fn is_held(&self, claim: &Claim) -> bool {
        let shared = self.shared.get(claim.name.prefix());
        shared.is_some_and(|shared| holds(shared, claim.mode).0.contains_key(&claim.owner))
    }

    /// Makes a hold last its full time from now.
    fn hold(&mut self, claim: &Claim, count: u32, now: Instant) -> bool {
        let (name, token) = (claim.name.prefix().clone(), claim.owner);
        let ends = after(now, claim.lease);
        let shared = self.shared.entry(name.clone()).or_default();
        if let Some(old) = holds_mut(shared, claim.mode).0.insert(token, Hold { ends, count }) {
            self.ends.remove(&(old.ends, End::Hold(name.clone(), token)));
        }
        self.ends.insert((ends, End::Hold(name, token)));
        true
    }

    fn end_hold(&mut self, claim: &Claim) -> bool {
        let name = claim.name.prefix();
        let ended =
            self.change_shared(name, |shared| holds_mut(shared, claim.mode).0.remove(&claim.owner));
        match ended.flatten() {
            Some(hold) => self.ends.remove(&(hold.ends, End::Hold(name.clone(), claim.owner))),
            None => false,
        }
    }

    fn take_place(&mut self, claim: &Claim, now: Instant) {
        if !claim.waits {
            return;
        }
        let (name, token) = (claim.name.prefix().clone(), claim.owner);
        let ends = after(now, claim.queue_entry_life());
        let place = Place {
            token,
            since: now,
            ends,
            alone: claim.mode != Mode::Read,
            ordered: claim.mode != Mode::Exclusive,
            takes_handover: claim.takes_handover,
        };
        let shared = self.shared.entry(name.clone()).or_default();
        let old = queue_mut(shared, claim.mode).take(place);
        if let Some(old) = old {
            self.ends.remove(&(old, End::Place(name.clone(), token)));
        }
        self.ends.insert((ends, End::Place(name, token)));
    }

    /// Leaves the queue; says whether there was a place to leave.
    fn leave(&mut self, claim: &Claim) -> bool {
        if !claim.mode.queues() {
            return false;
        }
        let name = claim.name.prefix();
        let left =
            self.change_shared(name, |shared| queue_mut(shared, claim.mode).leave(claim.owner));
        match left.flatten() {
            Some(ends) => self.ends.remove(&(ends, End::Place(name.clone(), claim.owner))),
            None => false,
        }
    }

    /// Changes what several have of a name, and forgets it when nothing is left of it.
    pub(super) fn change_shared<T>(
        &mut self,
        name: &Arc<str>,
        change: impl FnOnce(&mut Shared) -> T,
    ) -> Option<T> {
        let shared = self.shared.get_mut(name)?;
        let outcome = change(shared);
        if shared.is_empty() {
            self.shared.remove(name);
        }
        Some(outcome)
    }
}

fn queue(shared: &Shared, mode: Mode) -> &Queue {
    match mode {
        Mode::Exclusive | Mode::Fair => &shared.sole,
        _ => &shared.read_write,
    }
}

fn queue_mut(shared: &mut Shared, mode: Mode) -> &mut Queue {
    match mode {
        Mode::Exclusive | Mode::Fair => &mut shared.sole,
        _ => &mut shared.read_write,
    }
}

fn holds(shared: &Shared, mode: Mode) -> &Holds {
    match mode {
        Mode::Permit { .. } => &shared.permits,
        _ => &shared.readers,
    }
}

fn holds_mut(shared: &mut Shared, mode: Mode) -> &mut Holds {
    match mode {
        Mode::Permit { .. } => &mut shared.permits,
        _ => &mut shared.readers,
    }
}
