use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use tokio::{
    runtime::Handle,
    time::{Instant, sleep_until},
};

use super::{Upkeep, queue::Slot, trusted};
use crate::{backend::Claim, observe::LockCounters, signal::Signal, sync::lock, time::after};

/// One held lease, as its guard and the renewals share it.
pub(crate) struct LeaseRecord {
    pub(super) granted: Granted,
    /// When the total hold ends.
    ends: Instant,
    lost: Signal,
    counters: Arc<LockCounters>,
    times: Mutex<Times>,
    /// The holder's slot in the local queue. It is given up when the lease is lost, so that a
    /// holder that is stuck does not keep the next callers from contending. A holder whose lease is
    /// not renewed would never be told of a loss, and has no slot.
    slot: Mutex<Option<Slot>>,
}

#[derive(Clone, Copy)]
pub(super) struct Times {
    /// When the lease counts as lost unless it is renewed before.
    pub(super) deadline: Instant,
    /// The timer that the renewals have set for it.
    pub(super) timer: Instant,
    pub(super) renewing: bool,
}

/// A grant: its fence, and since when the lease counts.
pub(crate) struct Granted {
    pub(super) claim: Claim,
    pub(super) upkeep: Upkeep,
    /// The runtime on which the lease was acquired.
    pub(super) runtime: Handle,
    pub(super) fence: u64,
    /// A time before the request that was granted.
    pub(super) since: Instant,
    /// When the lease ends, if a holder handed it over for less than its full time.
    pub(super) until: Option<Instant>,
    /// A request of the acquisition had no answer, and may be granted after the release.
    pub(super) outcome_unknown: bool,
}

impl LeaseRecord {
    pub(super) fn new(granted: Granted, slot: Option<Slot>, counters: Arc<LockCounters>) -> Self {
        let Granted { upkeep, since, until, .. } = granted;
        let ends = after(since, upkeep.max_hold);
        let deadline = until.unwrap_or_else(|| after(since, trusted(granted.claim.lease)));
        let times = Times { deadline: deadline.min(ends), timer: since, renewing: false };
        let slot = slot.filter(|_| upkeep.renew_every.is_some());
        let (times, slot) = (Mutex::new(times), Mutex::new(slot));
        Self { granted, ends, lost: Signal::default(), counters, times, slot }
    }

    /// Completes when the lease is lost, also if no renewal finds that out.
    pub(crate) async fn lost(&self) {
        loop {
            let deadline = self.deadline();
            tokio::select! {
                () = self.lost.given() => return,
                () = sleep_until(deadline) => if self.is_lost() { return },
            }
        }
    }

    pub(crate) fn is_lost(&self) -> bool {
        self.lost.is_given() || self.deadline() <= Instant::now()
    }

    pub(crate) fn claim(&self) -> &Claim {
        &self.granted.claim
    }

    pub(crate) fn fence(&self) -> u64 {
        self.granted.fence
    }

    /// How long the lease is held for certain if no renewal succeeds.
    pub(crate) fn remaining(&self) -> Duration {
        match self.is_lost() {
            true => Duration::ZERO,
            false => self.deadline().saturating_duration_since(Instant::now()),
        }
    }

    pub(super) fn tell_lost(&self) {
        if self.lost.give() {
            self.counters.lost.add();
        }
        drop(self.take_slot());
    }

    /// Tells the work that still runs under the lease that it ends without a loss.
    pub(super) fn end(&self) {
        self.lost.give();
    }

    pub(super) fn take_slot(&self) -> Option<Slot> {
        lock(&self.slot).take()
    }

    pub(super) fn deadline(&self) -> Instant {
        self.times().deadline
    }

    /// Extends the lease, which a request sent at `sent` renewed.
    pub(super) fn renewed(&self, sent: Instant) {
        let deadline = after(sent, trusted(self.granted.claim.lease)).min(self.ends);
        let mut times = self.times();
        times.deadline = times.deadline.max(deadline);
    }

    pub(super) fn times(&self) -> MutexGuard<'_, Times> {
        lock(&self.times)
    }

    /// Returns whether the lease is to be renewed at `now`.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.granted.upkeep.renew_every.is_some() && now < self.ends
    }

    /// When to look at the lease next, after a renewal that began at `sent`.
    pub(super) fn next_look(&self, sent: Instant) -> Instant {
        let deadline = self.deadline();
        match self.granted.upkeep.renew_every {
            Some(every) if after(sent, every) < self.ends => deadline.min(after(sent, every)),
            _ => deadline,
        }
    }
}

impl fmt::Debug for LeaseRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeaseRecord")
            .field("name", &self.granted.claim.name.key())
            .field("fence", &self.granted.fence)
            .field("remaining", &self.remaining())
            .finish_non_exhaustive()
    }
}
