use std::{mem::replace, sync::Arc, time::Duration};

use tokio::{runtime::Handle, time::Instant};
use tracing::debug;

use super::{Upkeep, record::Granted, release::Janitor, trusted};
use crate::{
    backend::{
        Acquired, Claim, Claimed, Grant, HANDOVER_LIFE, Handover, Leases, Owner, answered_by,
    },
    error::{BackendError, Error},
    time::after,
};

/// One claim on its way to a lease. Dropped before it is [settled](Self::settle), it undoes itself.
pub(crate) struct Acquisition {
    janitor: Arc<Janitor>,
    claim: Claim,
    /// The runtime on which the acquisition began, for its undo.
    runtime: Handle,
    state: AcquisitionState,
    handover: HandoverCheck,
}

/// The state of the claim at the backend, as far as it is known.
#[derive(Clone, Copy, Debug, PartialEq)]
enum AcquisitionState {
    /// Nothing: no request was sent, or none left anything behind.
    Idle,
    /// A request is under way, and may be granted.
    Asking,
    /// Another holder was in the way. The claim may have a queue entry, which the undo leaves.
    Waiting,
    /// The last request was granted.
    Granted,
    /// A request ended without an answer. It may be granted at any time, even after a later request
    /// was, so this owner never leaves the state.
    Unknown,
}

/// The part of an answer that concerns a claim.
pub(crate) enum Said {
    /// The claim has the lease.
    Granted,
    /// A holder with this fence is in the way.
    Occupied(u64),
    /// The claim has nothing.
    Nothing,
}

impl From<&Acquired> for Said {
    fn from(answer: &Acquired) -> Self {
        match answer {
            Acquired::Granted(_) => Self::Granted,
            Acquired::Occupied(occupied) => Self::Occupied(occupied.fence),
        }
    }
}

impl From<&Claimed> for Said {
    fn from(answer: &Claimed) -> Self {
        match answer {
            Claimed::Granted(_) => Self::Granted,
            Claimed::Occupied(occupied) => Self::Occupied(occupied.fence),
            Claimed::Newer(_) | Claimed::BacksOff(..) => Self::Nothing,
        }
    }
}

impl From<&Option<Grant>> for Said {
    fn from(answer: &Option<Grant>) -> Self {
        Self::from(&answer.is_some())
    }
}

impl From<&bool> for Said {
    fn from(is_held: &bool) -> Self {
        if *is_held { Self::Granted } else { Self::Nothing }
    }
}

impl Acquisition {
    pub(crate) fn new(janitor: Arc<Janitor>, claim: Claim) -> Self {
        let (runtime, handover) = (Handle::current(), HandoverCheck::default());
        Self { janitor, claim, runtime, state: AcquisitionState::Idle, handover }
    }

    pub(crate) fn claim(&self) -> &Claim {
        &self.claim
    }

    /// Sends one request. Returns the answer and a time before it was sent.
    pub(crate) async fn ask<'a, T, F>(
        &'a mut self,
        limit: Duration,
        send: impl FnOnce(&'a dyn Leases, &'a Claim) -> F,
    ) -> Result<(T, Instant), BackendError>
    where
        F: Future<Output = Result<T, BackendError>> + 'a,
        for<'t> Said: From<&'t T>,
    {
        let sent = Instant::now();
        let Self { janitor, claim, state, handover, .. } = self;
        handover.asked(sent);
        let before = replace(state, AcquisitionState::Asking);
        let (janitor, claim): (&'a Janitor, &'a Claim) = (janitor, claim);
        let backend = janitor.backend().as_ref();
        let answer = answered_by(backend, limit, send(backend, claim)).await;
        *state = after_answer(before, answer.as_ref().map(Said::from), handover);
        Ok((answer?, sent))
    }

    /// Gives up an owner that may be granted the lease or may be released late, and goes on with a
    /// fresh one. A late release under the old owner must not end what the next request is granted.
    pub(super) fn restart(&mut self) {
        self.janitor.undo(self.claim.clone(), true, &self.runtime);
        self.state = AcquisitionState::Idle;
        self.handover = HandoverCheck::default();
        self.claim.owner = Owner::fresh();
    }

    /// Returns whether another holder was in the way.
    pub(super) fn is_waiting(&self) -> bool {
        self.handover.has_met_holder()
    }

    /// Returns whether the last request was granted, and every request had an answer.
    pub(crate) fn is_granted(&self) -> bool {
        self.state == AcquisitionState::Granted
    }

    /// Returns until when a lease is held that was handed over to the claim, if that is certain.
    ///
    /// A request that may still be on its way could be granted the lease again, after its end.
    pub(super) fn trusts(&self, handover: &Handover) -> Option<Instant> {
        let certain = self.state != AcquisitionState::Unknown;
        self.handover.trusts(handover).filter(|_| certain)
    }

    /// Ends the acquisition, which has the lease now: there is nothing to undo any more.
    ///
    /// `since` is a time before the request that was granted. `until` is the end of a lease that
    /// was handed over, which is short.
    pub(crate) fn settle(
        &mut self,
        upkeep: Upkeep,
        fence: u64,
        since: Instant,
        until: Option<Instant>,
    ) -> Granted {
        let outcome_unknown = self.state == AcquisitionState::Unknown;
        self.state = AcquisitionState::Idle;
        let (claim, runtime) = (self.claim.clone(), self.runtime.clone());
        Granted { claim, upkeep, runtime, fence, since, until, outcome_unknown }
    }

    /// Releases the lease that was granted. Dropping the future does not stop the release.
    pub(crate) async fn give_back(mut self) -> Result<(), Error> {
        self.state = AcquisitionState::Idle;
        self.janitor.end(self.claim.clone()).await
    }

    /// Keeps the lease beyond the acquisition: there is nothing to undo any more.
    pub(crate) fn keep(mut self) {
        self.state = AcquisitionState::Idle;
    }
}

/// The state after an answer.
fn after_answer(
    before: AcquisitionState,
    answer: Result<Said, &BackendError>,
    handover: &mut HandoverCheck,
) -> AcquisitionState {
    if let Ok(Said::Occupied(fence)) = answer {
        handover.met(fence);
    }
    match answer {
        Err(error) if error.may_have_happened() => AcquisitionState::Unknown,
        _ if before == AcquisitionState::Unknown => AcquisitionState::Unknown,
        Ok(Said::Granted) => AcquisitionState::Granted,
        Ok(Said::Occupied(_)) => AcquisitionState::Waiting,
        Ok(Said::Nothing) | Err(_) => before,
    }
}

impl Drop for Acquisition {
    fn drop(&mut self) {
        let outcome_unknown = match self.state {
            AcquisitionState::Idle => return,
            AcquisitionState::Waiting if !self.claim.waits => return,
            AcquisitionState::Waiting | AcquisitionState::Granted => false,
            AcquisitionState::Asking | AcquisitionState::Unknown => true,
        };
        if outcome_unknown {
            debug!(name = ?self.claim.name, "an acquisition with an unknown outcome is undone");
        }
        self.janitor.undo(self.claim.clone(), outcome_unknown, &self.runtime);
    }
}

/// A queue entry at the backend, as far as its waiter knows of it.
///
/// A release may hand the lease over to the first waiter in the queue. The push says when that
/// lease ends, counted from the time at which the entry was taken. The waiter knows since when it
/// waits, so it knows until when it has the lease, and need not ask.
///
/// As for the renewals, the count begins at a monotonic time *before* the first
/// request that may have taken the entry. So a late push tells of a lease that has ended. A push
/// that is older than a holder that was in the way is not trusted either.
#[derive(Default)]
struct HandoverCheck {
    /// A time before the first request.
    since: Option<Instant>,
    /// The greatest fence that was in the way, once another holder was.
    met: Option<u64>,
}

impl HandoverCheck {
    /// Notes a request that may take the entry, sent at `sent`.
    fn asked(&mut self, sent: Instant) {
        self.since.get_or_insert(sent);
    }

    /// Notes that a holder with this fence was in the way, so that the entry was taken or kept.
    fn met(&mut self, fence: u64) {
        self.met = self.met.max(Some(fence));
    }

    /// Returns whether another holder was in the way.
    fn has_met_holder(&self) -> bool {
        self.met.is_some()
    }

    /// Returns until when a lease that was handed over is held. Returns `None` if the handover
    /// cannot be trusted or is nearly over; the waiter then asks the backend.
    fn trusts(&self, handover: &Handover) -> Option<Instant> {
        let now = Instant::now();
        // Never longer than a push without delay is trusted. The clock of the server may be set
        // forward during the wait, and the clock of this process may stand still.
        let until = after(self.since?, trusted(handover.ends)).min(now + trusted(HANDOVER_LIFE));
        let left = until.saturating_duration_since(now);
        let is_newer = self.met.is_none_or(|met| handover.fence > met);
        (left >= HANDOVER_LIFE / 2 && is_newer).then_some(until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn handover(fence: u64, ends: Duration) -> Handover {
        Handover { owner: Owner::fresh(), fence, ends }
    }

    /// The answer to the first request is late, and so is the push.
    #[tokio::test(start_paused = true)]
    async fn a_handover_is_counted_from_before_the_first_request() {
        let mut check = HandoverCheck::default();
        assert_eq!(check.trusts(&handover(8, HANDOVER_LIFE)), None);
        let sent = Instant::now();
        check.asked(sent);
        tokio::time::sleep(HANDOVER_LIFE / 4).await;
        check.met(7);
        assert!(check.has_met_holder());
        // A second request keeps the entry.
        check.asked(Instant::now());
        let until = check.trusts(&handover(8, HANDOVER_LIFE)).unwrap();
        assert!(until < sent + HANDOVER_LIFE);
        assert_eq!(check.trusts(&handover(7, HANDOVER_LIFE)), None, "that one was met");
        tokio::time::sleep(HANDOVER_LIFE / 2).await;
        assert_eq!(check.trusts(&handover(8, HANDOVER_LIFE)), None, "too little is left");
        let until = check.trusts(&handover(9, 2 * HANDOVER_LIFE)).unwrap();
        assert!(until < sent + 2 * HANDOVER_LIFE && until > sent + HANDOVER_LIFE);
    }

    #[tokio::test(start_paused = true)]
    async fn a_handover_is_trusted_no_longer_than_it_lasts() {
        let mut check = HandoverCheck::default();
        check.asked(Instant::now());
        check.met(7);
        let now = Instant::now();
        for ends in [2 * HANDOVER_LIFE, Duration::from_secs(3600), Duration::MAX] {
            let until = check.trusts(&handover(8, ends)).unwrap();
            assert!(until < now + HANDOVER_LIFE && until > now + HANDOVER_LIFE / 2);
        }
    }

    /// Two clocks that both count the wait run apart by up to a hundredth of it.
    #[tokio::test(start_paused = true)]
    async fn after_a_long_wait_the_waiter_asks() {
        let mut check = HandoverCheck::default();
        check.asked(Instant::now());
        check.met(7);
        let long = 110 * HANDOVER_LIFE / 2;
        tokio::time::sleep(long).await;
        assert_eq!(check.trusts(&handover(8, long + HANDOVER_LIFE)), None);
        assert!(check.trusts(&handover(8, long + 2 * HANDOVER_LIFE)).is_some());
    }
}
