//! The guard of a lease that is held. It gives the lease back once, whatever its caller drops.

use std::{fmt, ops::Deref, pin::pin, sync::Arc, task::Poll, time::Duration};

use futures_util::poll;

use super::{
    Acquisition, Lease, Release, Upkeep,
    local_queue::{QueuedCaller, Slot, SlotNotice},
    renewals::Renewals,
};
use crate::{
    backend::{Claim, Mode, Owner},
    error::{BackendError, BackendErrorKind, Error},
    key::Family,
    sync::lock,
};

/// A pass takes as long as the backend lets it.
const NO_LIMIT: Duration = Duration::MAX;

/// A lease that is held. Dropped, it is released in a task.
pub(crate) struct LeaseGuard {
    pub(crate) lease: Arc<Lease>,
    renewals: Arc<Renewals>,
    is_released: bool,
}

impl LeaseGuard {
    /// Holds the lease that an acquisition was granted, with the slot of the local queue if it has
    /// one. Returns `None` if the acquisition was granted nothing.
    pub(super) fn new(
        renewals: &Arc<Renewals>,
        acquisition: &mut Acquisition,
        upkeep: Upkeep,
        slot: Option<Slot>,
    ) -> Option<Self> {
        let lease = renewals.hold(acquisition, upkeep, slot)?;
        Some(Self { lease, renewals: renewals.clone(), is_released: false })
    }

    /// Releases the lease, and returns [`Lost`](crate::ErrorKind::Lost) if it was lost before.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the release goes on in a task. If it was polled once and is not
    /// polled again, the release was sent, or the lease ends by itself.
    pub(crate) async fn release(mut self) -> Result<(), Error> {
        let was_lost = self.is_lost();
        self.begin_release();
        let lease = self.lease.clone();
        let release = lease.release.clone();
        let answer = match self.next_caller() {
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

    /// Stops the renewals. The lease is about to end with an operation, and a renewal that came
    /// after that would be taken for a loss.
    pub(crate) fn close(&self) {
        self.renewals.close(&self.lease);
    }

    /// Disarms the guard of a lease that was [closed](Self::close): the backend has ended it with
    /// the operation that it was for.
    pub(crate) fn settled(mut self) {
        self.is_released = true;
        self.renewals.guard_ended(&self.lease);
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
        let owner = self.release.janitor.backend.new_owner();
        let to = Claim { owner, mode, ..from.clone() };
        let mut acquisition = Acquisition::new(&self.release.janitor, to);
        // A renewal behind the pass would be taken for a loss.
        lock(&self.times).is_passing = true;
        let mut answer = acquisition.ask(NO_LIMIT, |backend, to| backend.pass(from, to)).await;
        if answer.as_ref().is_err_and(|error| error.kind() == BackendErrorKind::Unknown) {
            answer = acquisition.ask(NO_LIMIT, |backend, to| backend.pass(from, to)).await;
            acquisition.count_from_first_request();
        }
        answer?;
        if let Some(passed_on) = Self::new(&self.renewals, &mut acquisition, self.upkeep, None) {
            self.close();
            self.settled();
            return Ok(Ok(passed_on));
        }
        // Other holders are in the way, or the lease is lost. A renewal finds out which.
        lock(&self.times).is_passing = false;
        self.renew().await?;
        Ok(Err(self))
    }

    fn begin_release(&mut self) {
        self.close();
        self.is_released = true;
        self.renewals.guard_ended(&self.lease);
        // Work that still runs under the lease learns that it ends. It is no loss.
        let _ = self.lost.set(());
        // From now on the slot moves on, or the callers behind it do not wait for it.
        if let Some(slot) = lock(&self.slot).as_ref() {
            slot.asks();
        }
    }

    /// Takes the next caller of this process, with the slot, if the lease is to pass to it.
    fn next_caller(&self) -> Option<(QueuedCaller, Slot)> {
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
        self.begin_release();
        let release = self.release.clone();
        let tasks = &self.release.janitor.tasks;
        match self.next_caller() {
            Some((next, slot)) => {
                tasks.spawn_on(pass(release, next, slot), &self.release.runtime);
            }
            None => {
                tasks.spawn_on(give_back(release, self.take_slot()), &self.release.runtime);
            }
        }
    }
}

impl fmt::Debug for LeaseGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LeaseGuard").field(&self.lease).finish()
    }
}

/// Gives a lease back to the backend. Returns whether it was held.
async fn give_back(release: Release, mut slot: Option<Slot>) -> Result<bool, BackendError> {
    let is_at_one_server = release.claim.name.family != Family::Redlock;
    let mut released = pin!(release.end());
    if let Poll::Ready(answer) = poll!(released.as_mut()) {
        return answer;
    }
    if is_at_one_server {
        // The next caller of this process contends from here on. The server runs the release, and
        // what that hands over, before the request of this caller. Over several servers, the
        // request could overtake the release.
        slot = None;
    }
    let answer = released.await;
    drop(slot);
    answer
}

/// Passes a lease to the next caller of this process, and the slot with it. Returns whether the
/// lease was held.
///
/// Until the caller has the lease, its acquisition owes the release.
async fn pass(release: Release, next: QueuedCaller, slot: Slot) -> Result<bool, BackendError> {
    let QueuedCaller { mut acquisition, notify } = next;
    let from = &release.claim;
    let answer = acquisition.ask(NO_LIMIT, |backend, to| backend.pass(from, to)).await;
    let was_held = match answer {
        Ok(granted) => Ok(granted.is_some()),
        Err(error) => {
            acquisition.restart();
            // Where too few replicas confirmed it, it was given away all the same.
            let is_away = error.kind() == BackendErrorKind::Unreplicated;
            if is_away { Ok(true) } else { Err(error) }
        }
    };
    // If the caller has left, the drop releases the lease, or gives up the slot.
    drop(notify.send(SlotNotice { acquisition, slot }));
    release.ended(was_held)
}
