//! The guard of a held lease, which releases the lease once, whatever its caller drops.

use std::{fmt, ops::Deref, pin::pin, sync::Arc, task::Poll, time::Duration};

use futures_util::poll;

use super::{
    Acquisition, Lease, Release, Upkeep,
    local_queue::{QueuedCaller, Slot, SlotNotice},
    release::Rest,
    renewals::Renewals,
};
use crate::{
    backend::{Claim, FurtherTries, Mode, Owner},
    error::{BackendError, BackendErrorKind, Error},
    key::Family,
    sync::lock,
};

/// The limit of a pass, which the backend alone bounds.
const NO_LIMIT: Duration = Duration::MAX;

/// The guard of a held lease. If the guard is dropped, a task releases the lease.
pub(crate) struct LeaseGuard {
    pub(crate) lease: Arc<Lease>,
    renewals: Arc<Renewals>,
    is_released: bool,
}

impl LeaseGuard {
    /// Creates the guard of the lease that an acquisition was granted. `slot` is the slot of the
    /// local queue, if the mode has a local queue. Returns `None` if the acquisition was granted
    /// nothing.
    pub(super) fn new(
        renewals: &Arc<Renewals>,
        acquisition: &mut Acquisition,
        upkeep: Upkeep,
        slot: Option<Slot>,
    ) -> Option<Self> {
        let lease = renewals.hold(acquisition, upkeep, slot)?;
        Some(Self { lease, renewals: renewals.clone(), is_released: false })
    }

    /// Releases the lease. Returns [`Lost`](crate::ErrorKind::Lost) if the lease was lost before.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the release goes on in a task. If the future was polled once and
    /// is not polled again, the release was sent, or the lease ends by itself.
    pub(crate) async fn release(mut self) -> Result<(), Error> {
        let was_lost = self.is_lost();
        let next = self.begin_release(was_lost);
        let lease = self.lease.clone();
        let release = lease.release.clone();
        let answer = match next {
            Some((next, slot)) => release.janitor.finish(pass(release.clone(), next, slot)).await,
            None => give_back(release, self.take_slot()).await,
        };
        // A reported loss stays a loss, even if the server still has the lease.
        if was_lost || matches!(answer, Ok(false)) {
            return Err(self.lost_error());
        }
        answer?;
        Ok(())
    }

    /// Stops the renewals without a release, and returns the owner.
    pub(crate) fn detach(mut self) -> Owner {
        self.close();
        self.is_released = true;
        self.release.claim.owner
    }

    /// Stops the renewals, because the lease is about to end with an operation. A renewal that came
    /// after the operation would be taken for a loss.
    pub(crate) fn close(&self) {
        self.renewals.close(&self.lease);
    }

    /// Disarms the guard of a lease that was [closed](Self::close), because the operation has ended
    /// the lease at the backend.
    pub(crate) fn settled(mut self) {
        self.is_released = true;
        self.renewals.guard_ended(&self.lease, self.is_over());
        if self.release.outcome_unknown {
            self.release.clone().go_on(Rest::LateGrant);
        }
    }

    /// Converts the lease to another mode in one step. Returns the guard unchanged if other holders
    /// are in the way.
    ///
    /// # Cancel safety
    ///
    /// When the future is dropped, both leases are released in tasks.
    pub(crate) async fn convert_to(self, mode: Mode) -> Result<Conversion, Error> {
        let from = &self.release.claim;
        let owner = self.release.janitor.backend.new_owner();
        let to = Claim { owner, mode, ..from.clone() };
        let mut acquisition = Acquisition::new(&self.release.janitor, to);
        // A renewal behind the pass would be taken for a loss.
        lock(&self.times).is_converting = true;
        let mut further_tries = FurtherTries::new(1);
        loop {
            let answer = acquisition.send(NO_LIMIT, |backend, to| backend.pass(from, to)).await;
            if !further_tries.next(is_unknown(&answer)).await {
                answer?;
                break;
            }
        }
        // The first try may have converted the lease, and a second try does not prolong the lease.
        acquisition.count_from_first_request();
        if let Some(converted) = Self::new(&self.renewals, &mut acquisition, self.upkeep, None) {
            self.close();
            self.settled();
            return Ok(Conversion::Done(converted));
        }
        // Other holders are in the way, or the lease is lost. A renewal finds out which.
        lock(&self.times).is_converting = false;
        self.renew().await?;
        Ok(Conversion::Refused(self))
    }

    /// Stops the renewals. Takes the slot and the next caller of this process, if the lease is to
    /// pass to that caller.
    fn begin_release(&mut self, is_lost: bool) -> Option<(QueuedCaller, Slot)> {
        self.close();
        self.is_released = true;
        self.renewals.guard_ended(&self.lease, is_lost);
        // Work that still runs under the lease must end. The counters count no loss.
        let _ = self.lost.set(());
        let mut held_slot = lock(&self.slot);
        let next = held_slot.as_mut()?.next()?;
        let slot = held_slot.take()?;
        Some((next, slot))
    }

    fn take_slot(&self) -> Option<Slot> {
        lock(&self.slot).take()
    }
}

impl Deref for LeaseGuard {
    type Target = Lease;

    fn deref(&self) -> &Lease {
        &self.lease
    }
}

impl Drop for LeaseGuard {
    fn drop(&mut self) {
        if self.is_released {
            return;
        }
        let next = self.begin_release(self.is_over());
        let release = self.release.clone();
        let runtime = &self.release.runtime;
        let tasks = &self.release.janitor.tasks;
        match next {
            Some((next, slot)) => tasks.spawn_on(pass(release, next, slot), runtime),
            None => tasks.spawn_on(give_back(release, self.take_slot()), runtime),
        };
    }
}

impl fmt::Debug for LeaseGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LeaseGuard").field(&self.lease).finish()
    }
}

/// The answer to [`LeaseGuard::convert_to`].
pub(crate) enum Conversion {
    /// The lease has the other mode.
    Done(LeaseGuard),
    /// Other holders are in the way, and the lease has its mode as before.
    Refused(LeaseGuard),
}

fn is_unknown<T>(answer: &Result<T, BackendError>) -> bool {
    answer.as_ref().is_err_and(|error| error.kind() == BackendErrorKind::Unknown)
}

/// Gives a lease back to the backend. Returns whether the lease was held.
async fn give_back(release: Release, mut slot: Option<Slot>) -> Result<bool, BackendError> {
    let is_at_one_server = release.claim.name.family != Family::Redlock;
    let mut released = pin!(release.send());
    if let Poll::Ready(answer) = poll!(released.as_mut()) {
        return answer;
    }
    if is_at_one_server {
        // The next caller of this process contends from here on. The server runs the release and
        // its handover before the request of that caller. Over several servers, the request could
        // overtake the release.
        slot = None;
    }
    let answer = released.await;
    drop(slot);
    answer
}

/// Passes a lease and the slot to the next caller of this process. Returns whether the lease was
/// held.
///
/// Until the next caller has its guard, its acquisition releases the lease if it is dropped.
async fn pass(release: Release, next: QueuedCaller, slot: Slot) -> Result<bool, BackendError> {
    let QueuedCaller { mut acquisition, notify } = next;
    let from = &release.claim;
    let answer = acquisition.send(NO_LIMIT, |backend, to| backend.pass(from, to)).await;
    let was_held = match answer {
        Ok(granted) => Ok(granted.is_some()),
        Err(error) => {
            // The next caller may be in another runtime than this caller.
            let runtime = acquisition.release.runtime.clone();
            acquisition.restart(runtime);
            // If too few replicas confirmed the pass, the lease has passed all the same.
            let has_passed = error.kind() == BackendErrorKind::Unreplicated;
            if has_passed { Ok(true) } else { Err(error) }
        }
    };
    // If the caller has left, the drop releases the lease, or gives up the slot.
    drop(notify.send(SlotNotice { acquisition, slot }));
    release.follow_up(was_held)
}
