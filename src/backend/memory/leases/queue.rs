//! The queues, and the handovers to the claims at their heads.

use std::time::Duration;

use tokio::time::Instant;

use crate::{
    backend::{
        Change, Claim, HANDOVER_LIFE, Handover, Mode, QueueKind,
        memory::{
            data::{Data, Expiry, KEPT, Sole, sole},
            occupancy::QueueEntry,
        },
    },
    time::after,
};

impl Data {
    pub(super) fn enter_queue(&mut self, claim: &Claim, now: Instant) {
        if claim.waits {
            let occupancy = self.occupancies.entry(claim.name.prefix().clone()).or_default();
            occupancy.queue_mut(claim.mode.into()).enter(claim, now);
            self.keep_entries(claim, now);
        }
    }

    /// Keeps the queue entries of the process of a claim. Returns until when they were kept before.
    pub(super) fn keep_entries(&mut self, claim: &Claim, now: Instant) -> Option<Instant> {
        let (name, of) = (claim.name.prefix().clone(), QueueKind::from(claim.mode));
        let process = claim.owner.process_half();
        let until = after(now, claim.queue_entry_life());
        let occupancy = self.occupancies.entry(name.clone()).or_default();
        let before = occupancy.queue_mut(of).keep(process, until);
        let expiry = Expiry::QueueEntries(name, of, process);
        if let Some(before) = before {
            self.expiries.remove(&(before, expiry.clone()));
        }
        self.expiries.insert((until, expiry));
        before
    }

    /// Leaves the queue.
    pub(super) fn leave_queue(&mut self, claim: &Claim) {
        let of = claim.mode.into();
        self.change(claim.name.prefix(), |occupancy| occupancy.queue_mut(of).leave(claim.owner));
    }

    /// Hands what is free to the claims at the head of the queue. Returns the pushes.
    pub(super) fn hand_over(&mut self, by: &Claim, heard: bool, now: Instant) -> Vec<Change> {
        match by.mode {
            Mode::Exclusive | Mode::Fair => self.next_holder(by, heard, now).into_iter().collect(),
            Mode::Read | Mode::Write => self.next_rw_holders(by, heard, now),
            Mode::Permit { .. } => self.next_permits(by, heard, now),
        }
    }

    /// Returns the first claim in the queue, and how long its process keeps it.
    fn first_in_queue(&self, by: &Claim, now: Instant) -> Option<(QueueEntry, Duration)> {
        let queue = self.occupancies.get(by.name.prefix())?.queue(by.mode.into());
        let first = queue.first()?;
        Some((first.clone(), queue.left(first, now)))
    }

    /// Returns how long the process of the first claim in the queue keeps it, if the lease is free
    /// and the claim did not hear of that.
    pub(super) fn unheard(&self, by: &Claim, now: Instant) -> Option<Duration> {
        let (first, left) = self.first_in_queue(by, now)?;
        let occupancy = self.occupancies.get(by.name.prefix())?;
        let is_free = match first.claim.mode {
            Mode::Permit { limit, count } => {
                occupancy.permits.count().saturating_add(count) <= limit
            }
            Mode::Write if !occupancy.readers.0.is_empty() => false,
            mode => self.lease(&by.name, sole(mode)).is_none(),
        };
        is_free.then_some(left)
    }

    fn next_holder(&mut self, by: &Claim, heard: bool, now: Instant) -> Option<Change> {
        while self.lease(&by.name, sole(by.mode)).is_none() {
            let (first, left) = self.first_in_queue(by, now)?;
            if !heard && first.claim.mode.is_ordered() {
                return None;
            }
            self.leave_queue(&first.claim);
            // An unordered claim that does not hear is passed over.
            if heard {
                return Some(self.hand_lease_over(by, &first, left, now));
            }
        }
        None
    }

    /// Grants a lease to a claim that has left the queue, or keeps it for the claim's turn.
    fn hand_lease_over(
        &mut self,
        by: &Claim,
        to: &QueueEntry,
        left: Duration,
        now: Instant,
    ) -> Change {
        let owner = to.claim.owner;
        let next = Claim { fence_life: by.fence_life, ..to.claim.clone() };
        if !to.claim.takes_handover {
            let lease = left.min(to.claim.turn_life());
            self.set_lease(&Claim { lease, ..next }, KEPT, now);
            return Change::Turn(owner);
        }
        let lease = left.min(HANDOVER_LIFE);
        let fence = self.grant(&Claim { lease, ..next }, now).fence();
        Change::Granted(Handover { owner, fence, ends: now - to.since + lease })
    }

    fn next_rw_holders(&mut self, by: &Claim, heard: bool, now: Instant) -> Vec<Change> {
        if !heard || self.lease(&by.name, Sole::Writer).is_some() {
            return Vec::new();
        }
        let Some((first, left)) = self.first_in_queue(by, now) else { return Vec::new() };
        let occupancy = self.occupancies.get(by.name.prefix());
        if first.claim.mode == Mode::Write {
            if occupancy.is_some_and(|occupancy| !occupancy.readers.0.is_empty()) {
                return Vec::new();
            }
            self.leave_queue(&first.claim);
            return vec![self.hand_lease_over(by, &first, left, now)];
        }
        let readers = occupancy.map(|occupancy| occupancy.read_write_queue.first_readers());
        let readers = readers.unwrap_or_default();
        readers.into_iter().map(|reader| self.hand_hold_over(&reader, now)).collect()
    }

    fn next_permits(&mut self, by: &Claim, heard: bool, now: Instant) -> Vec<Change> {
        let mut pushed = Vec::new();
        while heard && let Some((first, _)) = self.first_in_queue(by, now) {
            let Mode::Permit { limit, count } = first.claim.mode else { break };
            let occupancy = self.occupancies.get(by.name.prefix());
            let out = occupancy.map_or(0, |occupancy| occupancy.permits.count());
            if out.saturating_add(count) > limit {
                break;
            }
            pushed.push(self.hand_hold_over(&first, now));
        }
        pushed
    }

    /// Grants a hold to a claim, which leaves the queue.
    fn hand_hold_over(&mut self, to: &QueueEntry, now: Instant) -> Change {
        let occupancy = self.occupancies.get(to.claim.name.prefix());
        let queue = occupancy.map(|occupancy| occupancy.queue(to.claim.mode.into()));
        let left = queue.map_or(Duration::ZERO, |queue| queue.left(to, now));
        let lease = left.min(HANDOVER_LIFE);
        self.leave_queue(&to.claim);
        self.hold(&Claim { lease, ..to.claim.clone() }, now);
        // A claim that takes no handover has to ask.
        let ends = if to.claim.takes_handover { now - to.since + lease } else { Duration::ZERO };
        Change::Granted(Handover { owner: to.claim.owner, fence: self.clock(now), ends })
    }
}
