//! The rules of the leases in each mode, which are those of the Redis scripts.

mod queue;

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{
    data::{Data, Expiry, KEPT, Sole, SoleHold, sole},
    occupancy::{Hold, Holds, Occupancy},
};
use crate::{
    backend::{Acquired, Change, Claim, Grant, Kept, Mode, Occupied, Owner, QueueKind},
    key::{Family, Name},
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
        // Unordered claims get their turns in order, but are not held to the order, and never block
        // an ordered claim.
        let queue = occupancy.map(|occupancy| occupancy.queue(claim.mode.into()));
        let first = queue.and_then(|queue| Some((queue, queue.first_ordered()?)));
        let first = first.filter(|_| claim.mode.is_ordered());
        let is_first = first.is_none_or(|(_, first)| first.claim.owner == claim.owner);
        let turn = first.map_or(Duration::ZERO, |(queue, first)| queue.left(first, now));
        let occupied = match lease.map(|lease| lease.occupied(now)).or(reading) {
            Some(occupied) => occupied,
            None if is_first => {
                self.leave_queue(claim);
                return Acquired::Granted(self.grant(claim, now));
            }
            None => Occupied { fence: 0, remaining: turn, holders: 0 },
        };
        self.enter_queue(claim, now);
        Acquired::Occupied(occupied)
    }

    fn acquire_read(&mut self, claim: &Claim, now: Instant) -> Acquired {
        let lease = self.lease(&claim.name, Sole::Writer).map(|lease| lease.occupied(now));
        let none = Occupancy::default();
        let occupancy = self.occupancies.get(claim.name.prefix()).unwrap_or(&none);
        let queue = &occupancy.read_write_queue;
        let before = queue.writer_before(claim.owner).map(|writer| Occupied {
            fence: 0,
            remaining: queue.left(writer, now),
            holders: occupancy.readers.count(),
        });
        match lease.or(before) {
            Some(occupied) if !occupancy.readers.0.contains_key(&claim.owner) => {
                self.enter_queue(claim, now);
                Acquired::Occupied(occupied)
            }
            _ => {
                self.leave_queue(claim);
                self.hold(claim, now);
                Acquired::Granted(Grant::new(0))
            }
        }
    }

    fn acquire_permit(&mut self, claim: &Claim, limit: u32, count: u32, now: Instant) -> Acquired {
        let none = Occupancy::default();
        let occupancy = self.occupancies.get(claim.name.prefix()).unwrap_or(&none);
        let (permits, queue) = (&occupancy.permits, &occupancy.permit_queue);
        let out = permits.count();
        let wanted = out.saturating_add(count);
        let before = queue.first().filter(|first| first.claim.owner != claim.owner);
        let fits = wanted <= limit && before.is_none();
        if permits.0.contains_key(&claim.owner) || fits {
            self.leave_queue(claim);
            self.hold(claim, now);
            return Acquired::Granted(Grant::new(0));
        }
        let remaining = match before {
            Some(before) if wanted <= limit => queue.left(before, now),
            _ => permits.back(wanted - limit).map_or(Duration::ZERO, |ends| ends - now),
        };
        self.enter_queue(claim, now);
        Acquired::Occupied(Occupied { fence: 0, remaining, holders: out })
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
                    self.hold(claim, now);
                }
                is_held
            }
        }
    }

    /// Keeps the queue entries of the process of some claims, and hands over what is free. Returns
    /// the pushes, too.
    pub(super) fn keep(
        &mut self,
        claims: &[Claim],
        heard: bool,
        now: Instant,
    ) -> (Kept, Vec<Change>) {
        self.expire(now);
        let Some(first) = claims.first() else {
            return (Kept::nothing(), Vec::new());
        };
        let has_lapsed = self.keep_entries(first, now).is_none();
        let has_entry = |claim: &Claim| {
            let occupancy = self.occupancies.get(claim.name.prefix());
            occupancy.is_some_and(|one| one.queue(claim.mode.into()).has(claim.owner))
        };
        let stands = claims.iter().map(has_entry).collect();
        let pushed = self.hand_over(first, heard, now);
        let none = Occupancy::default();
        let occupancy = self.occupancies.get(first.name.prefix()).unwrap_or(&none);
        let lease = self.lease(&first.name, sole(first.mode)).map(|lease| lease.ends - now);
        let remaining = match first.mode {
            Mode::Exclusive | Mode::Fair => lease,
            Mode::Read | Mode::Write => {
                lease.or_else(|| Some(occupancy.readers.occupied(now)?.remaining))
            }
            Mode::Permit { .. } => Some(occupancy.permits.first_end(now)),
        };
        let remaining = self.unheard(first, now).or(remaining).unwrap_or_default();
        let handed_over = !pushed.is_empty();
        (Kept { remaining, has_lapsed, handed_over, stands }, pushed)
    }

    /// Releases a lease. `heard` says whether the waiters hear a push. Returns whether it was held,
    /// and the pushes.
    pub(super) fn release(
        &mut self,
        claim: &Claim,
        heard: bool,
        now: Instant,
    ) -> (bool, Vec<Change>) {
        self.expire(now);
        let (name, sole) = (&claim.name, sole(claim.mode));
        self.leave_queue(claim);
        let lease = self.lease(name, sole).map(|lease| (lease.owner, lease.fence));
        let had_lease = lease.is_some_and(|(holder, _)| holder == claim.owner);
        let had = match claim.mode {
            Mode::Exclusive | Mode::Fair | Mode::Write => {
                had_lease && self.drop_lease(name, sole) && lease != Some((claim.owner, KEPT))
            }
            Mode::Read | Mode::Permit { .. } => self.end_hold(claim),
        };
        let mut pushed = self.hand_over(claim, heard, now);
        // Waiters for an entry have no queue.
        let is_mutex = matches!(claim.mode, Mode::Exclusive | Mode::Fair);
        if pushed.is_empty() && had_lease && is_mutex && name.family() == Family::Cache {
            pushed.push(Change::Wake);
        }
        (had, pushed)
    }

    /// Passes a lease on. Returns the grant and the pushes, or `None` if `from` has no lease to
    /// pass.
    pub(super) fn pass(
        &mut self,
        from: &Claim,
        to: &Claim,
        heard: bool,
        now: Instant,
    ) -> Option<(Grant, Vec<Change>)> {
        self.expire(now);
        let name = &from.name;
        let sole = sole(from.mode);
        let held = self.lease(name, sole).filter(|lease| lease.fence != KEPT);
        let lease = held.map(|lease| (lease.owner, lease.fence));
        match (to.mode, lease) {
            (Mode::Read, _) if self.is_held(to) => Some((Grant::new(0), Vec::new())),
            (_, Some((holder, fence))) if holder == to.owner => {
                Some((Grant::new(fence), Vec::new()))
            }
            (Mode::Read, Some((holder, _))) if holder == from.owner => {
                self.drop_lease(name, sole);
                self.hold(to, now);
                Some((Grant::new(0), self.hand_over(to, heard, now)))
            }
            (Mode::Write, None) if self.is_held(from) => {
                let readers = self.occupancies.get(name.prefix())?.readers.count();
                (readers == 1).then(|| {
                    self.end_hold(from);
                    (self.grant(to, now), Vec::new())
                })
            }
            (Mode::Exclusive | Mode::Fair, Some((holder, _))) if holder == from.owner => {
                self.drop_lease(name, sole);
                self.leave_queue(to);
                Some((self.grant(to, now), Vec::new()))
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
        let (prefix, of) = (name.prefix(), QueueKind::from(mode));
        let occupancy = self.change(prefix, |occupancy| {
            let holds = match mode {
                Mode::Read | Mode::Write => Some(&mut occupancy.readers),
                Mode::Permit { .. } => Some(&mut occupancy.permits),
                Mode::Exclusive | Mode::Fair => None,
            };
            let holds = holds.map(|holds| std::mem::take(&mut holds.0)).unwrap_or_default();
            let hold =
                |(owner, hold): (Owner, Hold)| (hold.ends, Expiry::Hold(prefix.clone(), owner));
            ended.extend(holds.into_iter().map(hold));
            let was_held = !ended.is_empty();
            let (had_entries, kept) = occupancy.queue_mut(of).clear();
            let entries =
                |(process, ends)| (ends, Expiry::QueueEntries(prefix.clone(), of, process));
            ended.extend(kept.into_iter().map(entries));
            was_held || had_entries
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
    fn hold(&mut self, claim: &Claim, now: Instant) {
        let (name, owner) = (claim.name.prefix().clone(), claim.owner);
        let ends = after(now, claim.lease);
        let count = match claim.mode {
            Mode::Permit { count, .. } => count,
            Mode::Exclusive | Mode::Fair | Mode::Read | Mode::Write => 1,
        };
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
