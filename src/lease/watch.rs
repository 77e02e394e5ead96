use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::{
    runtime::Handle,
    time::{Instant, sleep_until},
};

use super::{Claim, Upkeep, drift, line::Seat};
use crate::{signal::Signal, time::after};

/// One held lease, as its holder and the watchdog share it.
pub(crate) struct Watch {
    pub(super) claim: Claim,
    pub(super) upkeep: Upkeep,
    /// When the total hold ends.
    pub(super) until: Instant,
    /// Of whose it is.
    pub(super) runtime: Handle,
    lost: Signal,
    times: Mutex<Times>,
    /// The holder's seat in the line of this process. Given up with the lease: a holder that is stuck with
    /// a lost lease must not keep those behind him from contending.
    seat: Mutex<Option<Seat>>,
}

#[derive(Clone, Copy)]
pub(super) struct Times {
    pub(super) deadline: Instant,
    /// The timer that the watchdog has set for it.
    pub(super) timer: Instant,
    pub(super) renewing: bool,
}

impl Watch {
    pub(super) fn new(
        claim: Claim,
        upkeep: Upkeep,
        runtime: Handle,
        since: Instant,
        deadline: Instant,
    ) -> Self {
        let until = after(since, upkeep.max_hold);
        Self {
            until,
            runtime,
            upkeep,
            lost: Signal::default(),
            seat: Mutex::default(),
            times: Mutex::new(Times {
                deadline: deadline.min(until),
                timer: since,
                renewing: false,
            }),
            claim,
        }
    }

    /// Completes when the lease is lost, with or without a watchdog to say so.
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
        &self.claim
    }

    pub(crate) fn upkeep(&self) -> Upkeep {
        self.upkeep
    }

    pub(super) fn is_renewed(&self) -> bool {
        self.upkeep.refresh.is_some()
    }

    pub(crate) fn tell_lost(&self) {
        self.lost.give();
        drop(self.leave_seat());
    }

    pub(crate) fn take_seat(&self, seat: Seat) {
        *self.seat.lock().unwrap_or_else(PoisonError::into_inner) = Some(seat);
    }

    pub(crate) fn leave_seat(&self) -> Option<Seat> {
        self.seat.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// When the lease counts as lost unless it is renewed before.
    pub(crate) fn deadline(&self) -> Instant {
        self.times().deadline
    }

    /// Takes over that the lease was renewed by a request sent at `sent`.
    pub(crate) fn renewed(&self, sent: Instant) {
        let lease = self.claim.lease;
        let deadline = after(sent, lease.saturating_sub(drift(lease))).min(self.until);
        let mut times = self.times();
        times.deadline = times.deadline.max(deadline);
    }

    pub(super) fn times(&self) -> MutexGuard<'_, Times> {
        self.times.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// When to look at it next, after a renewal that began at `sent`.
    pub(super) fn next_look(&self, sent: Instant) -> Instant {
        let deadline = self.deadline();
        match self.upkeep.refresh {
            Some(refresh) if after(sent, refresh) < self.until => {
                deadline.min(after(sent, refresh))
            }
            _ => deadline,
        }
    }
}
