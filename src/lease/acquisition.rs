//! One claim on its way to a lease, and the undo of the claim.

use std::{mem::replace, sync::Arc, time::Duration};

use tokio::{runtime::Handle, time::Instant};
use tracing::debug;

use super::{Janitor, Release, trusted};
use crate::{
    backend::{Changes, Claim, Claimed, Grant, HANDOVER_LIFE, Handover, Leases, answered_by},
    error::BackendError,
    time::after,
};

/// After how long a lease that was handed over is renewed. By then, most holders of a contended
/// lease have released their lease.
pub(super) const SOON: Duration = Duration::from_millis(100);

/// One claim on its way to a lease. An acquisition that is dropped before it is
/// [settled](Self::settle) undoes its claim.
///
/// A lease that was granted is renewed for its guard. Before that, only a polled caller that waits
/// for further leases renews the lease. So if the caller does not read the grant, the lease ends by
/// itself.
///
/// A release may hand the lease over to the first claim in the queue. The push says when that lease
/// ends, counted from the time at which the claim entered the queue. This process counts from a
/// time *before* the first request. So after a late push, the lease ends here before it ends at the
/// server.
pub(crate) struct Acquisition {
    /// The release of what the claim may have. Its outcome is unknown while a request is under way,
    /// and stays unknown after a request without an answer.
    pub(crate) release: Release,
    state: AcquisitionState,
    /// A time before the first request.
    first_sent: Option<Instant>,
    /// A time before the last request.
    last_sent: Option<Instant>,
    /// When a lease that was handed over ends, which is before its full time.
    ends_early: Option<Instant>,
    /// The greatest fence of another holder that was in the way. `None` if no holder was.
    greatest_fence_met: Option<u64>,
    /// The registration for pushes.
    changes: Option<Changes>,
}

/// The state of the claim at the backend, after the last answer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum AcquisitionState {
    /// The claim has neither a lease nor a queue entry.
    Idle,
    /// A holder with this fence was in the way. The claim may have a queue entry, which the undo
    /// removes.
    Waiting(u64),
    /// The claim has the lease, with this fence.
    Granted(u64),
}

/// The fence and the times of a lease that was granted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Granted {
    pub(crate) fence: u64,
    /// The time from which the lease counts: before the granted request, or of the handover.
    pub(crate) since: Instant,
    /// When the lease ends, if another holder handed the lease over for less than its full time.
    pub(crate) ends_early: Option<Instant>,
}

impl From<&Claimed> for AcquisitionState {
    fn from(answer: &Claimed) -> Self {
        match answer {
            Claimed::Granted(grant) => Self::Granted(grant.fence()),
            Claimed::Occupied(occupied) => Self::Waiting(occupied.fence),
            Claimed::Newer(_) | Claimed::BacksOff(..) => Self::Idle,
        }
    }
}

impl From<&Option<Grant>> for AcquisitionState {
    fn from(answer: &Option<Grant>) -> Self {
        match answer {
            Some(grant) => Self::Granted(grant.fence()),
            None => Self::Idle,
        }
    }
}

impl Acquisition {
    pub(crate) fn new(janitor: &Arc<Janitor>, claim: Claim) -> Self {
        Self {
            release: Release::new(janitor, claim),
            state: AcquisitionState::Idle,
            first_sent: None,
            last_sent: None,
            ends_early: None,
            greatest_fence_met: None,
            changes: None,
        }
    }

    pub(crate) fn claim(&self) -> &Claim {
        &self.release.claim
    }

    /// Sends one request. A waiter [registers](Self::listen) first.
    pub(crate) async fn send<'a, T, F>(
        &'a mut self,
        limit: Duration,
        request: impl FnOnce(&'a dyn Leases, &'a Claim) -> F,
    ) -> Result<T, BackendError>
    where
        F: Future<Output = Result<T, BackendError>> + 'a,
        for<'t> AcquisitionState: From<&'t T>,
    {
        let sent = Instant::now();
        self.first_sent.get_or_insert(sent);
        self.last_sent = Some(sent);
        let Release { janitor, claim, outcome_unknown, .. } = &mut self.release;
        let was_unknown = replace(outcome_unknown, true);
        let backend: &'a dyn Leases = &*janitor.backend;
        let answer = answered_by(backend, limit, request(backend, claim)).await;
        let may_happen = answer.as_ref().is_err_and(BackendError::may_have_happened);
        *outcome_unknown = was_unknown || may_happen;
        let answer = answer?;
        self.state = AcquisitionState::from(&answer);
        self.ends_early = None;
        if let AcquisitionState::Waiting(fence) = self.state {
            self.greatest_fence_met = self.greatest_fence_met.max(Some(fence));
        }
        Ok(answer)
    }

    /// Sends one request for the lease.
    pub(super) async fn acquire(&mut self, limit: Duration) -> Result<Claimed, BackendError> {
        self.send(limit, |backend, claim| backend.acquire(claim)).await
    }

    /// Returns a new acquisition of the same claim, under another owner. The runtime is that of the
    /// caller who gets the lease.
    pub(super) fn under_new_owner(&self, runtime: Handle) -> Self {
        let Release { janitor, claim, .. } = &self.release;
        let owner = janitor.backend.new_owner();
        let mut next = Self::new(janitor, Claim { owner, ..claim.clone() });
        next.release.runtime = runtime;
        next
    }

    /// Registers the claim for pushes, so that the claim misses no push after its next request.
    pub(crate) fn listen(&mut self) -> &mut Changes {
        let Release { janitor, claim, .. } = &self.release;
        let backend = &janitor.backend;
        self.changes.get_or_insert_with(|| backend.listen(&claim.name, Some(claim)))
    }

    /// Takes the registration, if another holder was in the way. Otherwise the registration stays
    /// until the lease is held, so that a late push finds its owner.
    pub(super) fn take_changes(&mut self) -> Option<Changes> {
        if self.greatest_fence_met.is_some() { self.changes.take() } else { None }
    }

    /// Goes on with a fresh owner. A late release under the old owner must not end what the next
    /// request is granted.
    pub(super) fn restart(&mut self, runtime: Handle) {
        // The server may grant the failed request later.
        self.release.outcome_unknown = true;
        self.settle().undo();
        *self = self.under_new_owner(runtime);
    }

    /// Returns whether the last request was granted, and every request had an answer.
    pub(crate) fn is_granted(&self) -> bool {
        self.granted().is_some() && !self.release.outcome_unknown
    }

    /// Returns the lease that the last answer or a push has granted.
    pub(crate) fn granted(&self) -> Option<Granted> {
        let AcquisitionState::Granted(fence) = self.state else { return None };
        Some(Granted { fence, since: self.last_sent?, ends_early: self.ends_early })
    }

    /// Returns whether the claim has a lease that has not ended. If the caller reads a grant late,
    /// the lease may have ended.
    pub(super) fn has_lease(&self) -> bool {
        self.lease_ends().is_some_and(|end| Instant::now() < end)
    }

    /// Returns when the granted lease ends.
    pub(super) fn lease_ends(&self) -> Option<Instant> {
        let granted = self.granted()?;
        let full = after(granted.since, trusted(self.release.claim.lease));
        Some(granted.ends_early.unwrap_or(full))
    }

    /// Returns when a lease with this interval of renewal is to be renewed. A lease that was handed
    /// over is short, and is renewed soon.
    pub(super) fn renewal_due(&self, interval: Duration) -> Option<Instant> {
        let granted = self.granted()?;
        let is_short = granted.ends_early.is_some();
        let wait = if is_short { interval.min(SOON) } else { interval };
        Some(granted.since + wait)
    }

    /// Counts the granted lease from the first request. That request may have begun the lease, and
    /// its answer was lost.
    pub(super) fn count_from_first_request(&mut self) {
        self.last_sent = self.first_sent;
    }

    /// Notes that a renewal of the granted lease, sent at this time, was answered.
    pub(super) fn renewed(&mut self, sent: Instant) {
        self.last_sent = Some(sent);
        self.ends_early = None;
    }

    /// Notes that the claim has no lease any more.
    pub(super) fn lost(&mut self) {
        self.state = AcquisitionState::Idle;
    }

    /// Accepts a lease that was handed over to the claim. Returns whether the claim certainly has
    /// the lease, and for long enough.
    ///
    /// That is not certain while the outcome of a request is unknown, because the server may grant
    /// the lease once more, after its end, to that request. A push with a smaller fence than a
    /// holder that was in the way came late.
    pub(super) fn accept(&mut self, handover: &Handover) -> bool {
        let Some(first_sent) = self.first_sent else { return false };
        let now = Instant::now();
        // The clock of the server may be set forward during the wait.
        let longest = now + trusted(HANDOVER_LIFE);
        let until = after(first_sent, trusted(handover.ends)).min(longest);
        let left = until.saturating_duration_since(now);
        let is_newer = self.greatest_fence_met.is_none_or(|greatest| handover.fence > greatest);
        if left < HANDOVER_LIFE / 2 || !is_newer || self.release.outcome_unknown {
            return false;
        }
        let is_fenced = self.release.claim.mode.is_fenced();
        self.state = AcquisitionState::Granted(if is_fenced { handover.fence } else { 0 });
        self.last_sent = Some(now);
        self.ends_early = Some(until);
        true
    }

    /// Ends the acquisition. Returns the release that the acquisition would have made when dropped.
    pub(super) fn settle(&mut self) -> Release {
        let release = self.release.clone();
        self.state = AcquisitionState::Idle;
        self.release.outcome_unknown = false;
        release
    }

    /// Releases the lease that was granted. Dropping the future does not stop the release.
    pub(crate) async fn give_back(mut self) -> Result<bool, BackendError> {
        self.settle().send().await
    }

    /// Keeps the lease beyond the acquisition: there is nothing to undo any more.
    pub(crate) fn keep(mut self) {
        self.settle();
    }
}

impl Drop for Acquisition {
    fn drop(&mut self) {
        let Release { claim, outcome_unknown, .. } = &self.release;
        let is_left = match self.state {
            AcquisitionState::Idle => false,
            AcquisitionState::Waiting(_) => claim.waits,
            AcquisitionState::Granted(_) => true,
        };
        if *outcome_unknown {
            debug!(name = ?claim.name, "an acquisition with an unknown outcome is undone");
        }
        if is_left || *outcome_unknown {
            self.release.undo();
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::sleep;

    use super::*;
    use crate::{
        MemoryBackend,
        backend::{HandedHold, Mode, Owner},
        key::{Family, Key, Name, Namespace},
    };

    /// The answer to the first request is late, and so is the push.
    #[tokio::test(start_paused = true)]
    async fn a_handover_is_counted_from_before_the_first_request() -> Result<(), crate::Error> {
        let name = Name::new(&Namespace::standard(), Family::Lock, &Key::from("k"), 512)?;
        let janitor = Janitor::new(Arc::new(MemoryBackend::new()));
        // Returns until when the lease is held, for a claim that was first sent then.
        let accept = |first_sent, fence, ends| {
            let claim = Claim::new(name.clone(), Mode::Fair, HANDOVER_LIFE, HANDOVER_LIFE);
            let mut acquisition = Acquisition::new(&janitor, claim);
            acquisition.first_sent = first_sent;
            acquisition.greatest_fence_met = Some(7);
            let handover = Handover { owner: Owner::fresh(), fence, ends, hold: HandedHold::Mutex };
            let accepted = acquisition.accept(&handover);
            let until = acquisition.granted().and_then(|granted| granted.ends_early);
            acquisition.lost();
            accepted.then_some(until).flatten()
        };
        assert_eq!(accept(None, 8, HANDOVER_LIFE), None);
        let sent = Instant::now();
        sleep(HANDOVER_LIFE / 4).await;
        let until = accept(Some(sent), 8, HANDOVER_LIFE);
        assert!(until.is_some_and(|until| until < sent + HANDOVER_LIFE));
        assert_eq!(accept(Some(sent), 7, HANDOVER_LIFE), None, "that one was met");
        let longest = accept(Some(sent), 8, Duration::MAX);
        assert!(longest.is_some_and(|until| until < Instant::now() + HANDOVER_LIFE));
        sleep(HANDOVER_LIFE / 2).await;
        assert_eq!(accept(Some(sent), 8, HANDOVER_LIFE), None, "too little is left");
        // Two clocks that both count a long wait run apart by up to a hundredth of it.
        let long = 110 * HANDOVER_LIFE / 2;
        sleep(long).await;
        let ends = sent.elapsed();
        assert_eq!(accept(Some(sent), 8, ends + HANDOVER_LIFE), None);
        assert!(accept(Some(sent), 8, ends + 2 * HANDOVER_LIFE).is_some());
        Ok(())
    }
}
