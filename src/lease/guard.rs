//! The guard of a lease that is held. It gives the lease back once, whatever its caller drops.

use std::{ops::Deref, sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{
    Acquisition, Engine, Granted, Lease, Release,
    queue::{QueuedCaller, Slot, SlotNotice},
};
use crate::{
    advice,
    backend::{Claim, Mode, Owner},
    error::{BackendError, BackendErrorKind, Error},
    sync::lock,
};

/// A pass takes as long as the backend lets it.
const NO_LIMIT: Duration = Duration::MAX;

/// A lease that is held. Dropped, it is released in a task.
#[derive(Debug)]
pub(crate) struct LeaseGuard {
    pub(crate) record: Arc<Lease>,
    pub(super) released: bool,
}

impl LeaseGuard {
    /// Releases the lease, and returns [`Lost`](crate::ErrorKind::Lost) if it was lost before.
    ///
    /// Dropping the future does not stop the release.
    pub(crate) async fn release(mut self) -> Result<(), Error> {
        let lost = self.is_lost();
        let given_back = self.give_back();
        match self.engine.janitor.finish(given_back).await {
            // A reported loss stays a loss, even if the server still has the lease.
            answer if lost || matches!(answer, Ok(false)) => Err(self.lost_error()),
            answer => Ok(answer.map(drop)?),
        }
    }

    /// Stops the renewals without a release, and returns the owner.
    pub(crate) fn detach(mut self) -> Owner {
        self.closing();
        self.released = true;
        self.release.claim.owner
    }

    /// Disarms the guard of a lease that was [closing](Lease::closing): the backend has ended it
    /// with the operation that it was for.
    pub(crate) fn settled(mut self) {
        self.end();
        if self.release.outcome_unknown {
            self.release.clone().go_on(true);
        }
    }

    /// Passes the lease on to another mode in one step. Returns the guard unchanged if other
    /// holders are in the way.
    ///
    /// # Cancel safety
    ///
    /// When the future is dropped, both leases are released in tasks.
    pub(crate) async fn pass_to(self, mode: Mode) -> Result<Result<Self, Self>, Error> {
        let from = &self.release.claim;
        let to = Claim { owner: Owner::fresh(), mode, ..from.clone() };
        let mut acquisition = Acquisition::new(&self.engine.janitor, to);
        let since = Instant::now();
        // A renewal behind the pass would be taken for a loss.
        lock(&self.times).renewing = true;
        let mut answer = acquisition.ask(NO_LIMIT, |backend, to| backend.pass(from, to)).await;
        if answer.as_ref().is_err_and(|error| error.kind() == BackendErrorKind::Unknown) {
            // The first try may have begun the lease, and the second one only tells of it.
            answer = acquisition.ask(NO_LIMIT, |backend, to| backend.pass(from, to)).await;
        }
        if let (Some(grant), _) = answer? {
            let fence = grant.fence();
            let granted = Granted { fence, since, until: None, ..self.granted };
            let passed_on = self.engine.hold(&mut acquisition, granted, None);
            self.closing();
            self.settled();
            return Ok(Ok(passed_on));
        }
        // Other holders are in the way, or the lease is lost. A renewal finds out which.
        lock(&self.times).renewing = false;
        self.renew().await.map(|()| Err(self))
    }

    fn end(&mut self) {
        self.released = true;
        let result = if self.is_lost() { "lost" } else { "held" };
        self.engine.meter.ended("bellwether_lock_hold_seconds", self.granted.since, result);
        if self.granted.upkeep.renew_every.is_none() && self.is_lost() {
            advice::fixed_lease_ended(&self.engine.outlasted, &self.release.claim);
        }
    }

    fn give_back(&mut self) -> impl Future<Output = Result<bool, BackendError>> + Send + use<> {
        self.closing();
        self.end();
        // Work that still runs under the lease learns that it ends. It is no loss.
        let _ = self.lost.set(());
        give_back(self.engine.clone(), self.release.clone(), lock(&self.slot).take())
    }
}

impl Deref for LeaseGuard {
    type Target = Lease;

    fn deref(&self) -> &Lease {
        &self.record
    }
}

impl Drop for LeaseGuard {
    fn drop(&mut self) {
        if !self.released {
            let given_back = self.give_back();
            self.engine.janitor.tasks.spawn_on(given_back, &self.release.runtime);
        }
    }
}

/// Gives a lease back: to the next caller of this process, or to the backend. Returns whether it
/// was held.
async fn give_back(
    engine: Arc<Engine>,
    release: Release,
    mut slot: Option<Slot>,
) -> Result<bool, BackendError> {
    let next = slot.as_mut().and_then(Slot::next);
    let answer = match (next, slot) {
        (Some(next), Some(slot)) => Box::pin(pass(&engine, &release.claim, next, slot)).await,
        (_, slot) => {
            let answer = release.janitor.backend.release(&release.claim).await;
            // The next caller contends from here on, since other processes were told first.
            drop(slot);
            answer
        }
    };
    release.ended(answer)
}

/// Passes a lease to the next caller of this process, and the slot with it. Returns whether the
/// lease was held.
///
/// Until the caller has the lease, its acquisition owes the release.
async fn pass(
    engine: &Arc<Engine>,
    from: &Claim,
    next: QueuedCaller,
    slot: Slot,
) -> Result<bool, BackendError> {
    let QueuedCaller { mut acquisition, upkeep, notify } = next;
    let answer = acquisition.ask(NO_LIMIT, |backend, to| backend.pass(from, to)).await;
    let (notice, was_held) = match answer {
        Ok((Some(grant), sent)) => {
            let granted = Granted { upkeep, fence: grant.fence(), since: sent, until: None };
            let passed_on = engine.hold(&mut acquisition, granted, Some(slot));
            (SlotNotice::Passed(passed_on), Ok(true))
        }
        Ok((None, _)) => (SlotNotice::Contend(acquisition, slot), Ok(false)),
        Err(error) => {
            acquisition.restart();
            // Where too few replicas confirmed it, it was given away all the same.
            let is_away = error.kind() == BackendErrorKind::Unreplicated;
            let was_held = if is_away { Ok(true) } else { Err(error) };
            (SlotNotice::Contend(acquisition, slot), was_held)
        }
    };
    // If the caller has left, the drop releases the lease, or gives up the slot.
    drop(notify.send(notice));
    was_held
}
