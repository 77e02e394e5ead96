//! The loop of an acquisition: ask once, wait while others are in the way, and ask again.

use std::{sync::Arc, time::Duration};

use futures_util::future::join_all;
use tokio::{
    sync::oneshot,
    time::{Instant, sleep, timeout},
};

use super::{
    Acquisition, Engine, LeaseGuard, RetryStrategy, Upkeep, Waiting, Woken,
    attended::attended,
    queue::{Slot, SlotNotice},
    try_limit,
};
use crate::{
    backend::{Acquired, Change, Claim, Mode, Owner},
    error::{BackendError, BackendErrorKind, Error},
};

/// How long a process whose turn is over waits before it asks again. So the process whose turn it
/// is comes first, and has the machine to itself: it waits for less than the local queue may.
const GIVE_WAY: Duration = Duration::from_millis(1);

/// After how long a caller asks a shard without a turn. It is longer than a burst of 20,000 callers
/// takes. A server that hangs may keep all turns.
const LONGEST_TURN: Duration = Duration::from_secs(2);

/// How a lease is acquired and kept.
#[derive(Clone)]
pub(crate) struct AcquireTerms {
    pub(crate) upkeep: Upkeep,
    pub(crate) retry: Arc<dyn RetryStrategy>,
    /// How long the caller waits.
    pub(crate) limit: Duration,
}

impl Engine {
    /// Acquires a lease, waiting while other holders are in the way.
    ///
    /// # Cancel safety
    ///
    /// When the future is dropped or no longer polled, a lease that it may have acquired is
    /// released in a task.
    pub(crate) async fn acquire(
        self: &Arc<Self>,
        claim: Claim,
        terms: AcquireTerms,
    ) -> Result<LeaseGuard, Error> {
        let since = Instant::now();
        let begin = || {
            let (engine, claim, terms) = (self.clone(), claim.clone(), terms.clone());
            async move {
                let acquiring = engine.acquire_since(since, &claim, &terms);
                engine.janitor.track(acquiring).await
            }
        };
        attended(begin).await
    }

    /// Acquires leases of different names one after another, within one limit. If one is not
    /// acquired, those before it are released. If one is lost meanwhile, all are acquired anew.
    ///
    /// # Cancel safety
    ///
    /// When the future is dropped or no longer polled, leases that it may have acquired are
    /// released in tasks.
    pub(crate) async fn acquire_each(
        self: &Arc<Self>,
        claims: Vec<Claim>,
        terms: AcquireTerms,
    ) -> Result<Vec<LeaseGuard>, Error> {
        let since = Instant::now();
        let begin = || {
            let (engine, claims, terms) = (self.clone(), claims.clone(), terms.clone());
            async move {
                let acquiring = engine.acquire_in_order(since, &claims, &terms);
                engine.janitor.track(acquiring).await
            }
        };
        attended(begin).await
    }

    async fn acquire_in_order(
        self: &Arc<Self>,
        since: Instant,
        claims: &[Claim],
        terms: &AcquireTerms,
    ) -> Result<Vec<LeaseGuard>, Error> {
        loop {
            let mut held = Vec::with_capacity(claims.len());
            let outcome: Result<(), Error> = async {
                for claim in claims {
                    held.push(self.acquire_since(since, claim, terms).await?);
                }
                Ok(())
            }
            .await;
            if outcome.is_ok() && !held.iter().any(|lease| lease.is_lost()) {
                return Ok(held);
            }
            // An error says more than how the releases end.
            join_all(held.into_iter().map(LeaseGuard::release)).await;
            outcome?;
        }
    }

    /// Acquires a lease under a fresh owner, for a caller that has waited since then.
    async fn acquire_since(
        self: &Arc<Self>,
        since: Instant,
        claim: &Claim,
        terms: &AcquireTerms,
    ) -> Result<LeaseGuard, Error> {
        if self.janitor.is_stopped() {
            return Err(Error::shut_down());
        }
        let AcquireTerms { upkeep, limit, .. } = *terms;
        let retry = terms.retry.as_ref();
        let mut waiting = Waiting::new(retry, limit, since);
        let acquisition = self.acquisition(Claim { owner: Owner::fresh(), ..claim.clone() });
        let mut contender = Contender { engine: self, acquisition, upkeep, slot: None };
        let try_limit = try_limit(retry, self.backend().as_ref());
        let held = tokio::select! {
            biased;
            held = contender.acquire(&mut waiting, try_limit) => held?,
            () = self.janitor.stopped() => return Err(Error::shut_down()),
        };
        self.meter.woken(waiting.pushed_at, "acquired");
        Ok(held)
    }
}

/// One caller that wants a lease.
struct Contender<'a> {
    engine: &'a Arc<Engine>,
    acquisition: Acquisition,
    upkeep: Upkeep,
    /// The slot of the local queue, once this caller has it.
    slot: Option<Slot>,
}

impl Contender<'_> {
    /// Asks until the lease is granted, handed over, or passed on in this process.
    async fn acquire(
        &mut self,
        waiting: &mut Waiting<'_>,
        try_limit: Duration,
    ) -> Result<LeaseGuard, Error> {
        if let Some(passed) = self.queue_up(waiting).await? {
            return Ok(passed);
        }
        loop {
            let (remaining, failure) = match self.ask(try_limit, waiting.left()).await {
                Ok((Acquired::Granted(grant), sent)) => {
                    return Ok(self.hold(grant.fence(), sent, None));
                }
                Ok((Acquired::Occupied(occupied), _)) => (Some(occupied.remaining), None),
                Err(error) if error.kind() == BackendErrorKind::Foreign => return Err(error.into()),
                Err(error) => {
                    self.restart_after(&error);
                    (None, Some(error))
                }
            };
            // In a box, so that an acquisition that need not wait stays small.
            let held = match Box::pin(waiting.after(&mut self.acquisition, remaining)).await {
                Woken::Again => None,
                Woken::Pushed(change) => self.handed_over(&change),
                Woken::TimeUp => {
                    return Err(failure.map_or_else(|| self.not_acquired(waiting), Error::from));
                }
            };
            if let Some(held) = held {
                return Ok(held);
            }
        }
    }

    /// Asks once, in a turn if there is one within the time that is `left`.
    async fn ask(
        &mut self,
        limit: Duration,
        left: Duration,
    ) -> Result<(Acquired, Instant), BackendError> {
        let shard = self.engine.turns_of(&self.acquisition.claim().name);
        let _turn = timeout(LONGEST_TURN.min(left), shard.0.acquire()).await;
        self.acquisition.ask(limit, |backend, claim| backend.acquire(claim)).await
    }

    /// Returns the lease if this push hands it over.
    fn handed_over(&mut self, change: &Change) -> Option<LeaseGuard> {
        let Change::Granted(handover) = change else { return None };
        // One that is not renewed asks, so that it has its full time.
        self.upkeep.renew_every?;
        let until = self.acquisition.trusts(handover)?;
        let is_fenced = self.acquisition.claim().mode.is_fenced();
        let fence = if is_fenced { handover.fence } else { 0 };
        Some(self.hold(fence, Instant::now(), Some(until)))
    }

    /// Holds what was granted. The local queue slot and the waiter's registration move on with the
    /// lease.
    fn hold(&mut self, fence: u64, since: Instant, until: Option<Instant>) -> LeaseGuard {
        let granted = self.acquisition.settle(self.upkeep, fence, since, until);
        let mut slot = self.slot.take();
        if let Some(slot) = &mut slot {
            slot.begin(self.acquisition.take_changes());
        }
        let record = self.engine.renewals.start(granted, slot);
        LeaseGuard::new(self.engine.clone(), record)
    }

    /// Takes the slot of the local queue, and waits for it while another caller has it. Returns the
    /// lease if it is passed to this caller.
    async fn queue_up(&mut self, waiting: &mut Waiting<'_>) -> Result<Option<LeaseGuard>, Error> {
        // The other modes are granted in order by their queue at the backend.
        while self.acquisition.claim().mode == Mode::Exclusive {
            let notices = match self.engine.queues.enter(self.acquisition.claim(), self.upkeep) {
                Ok(slot) => {
                    self.slot = Some(slot);
                    break;
                }
                Err(notices) => notices,
            };
            let mut queued = LocalPlace { engine: self.engine, notices };
            match Box::pin(waiting.bounded(&mut queued.notices)).await {
                Some(Ok(SlotNotice::Passed(record))) => {
                    return Ok(Some(LeaseGuard::new(self.engine.clone(), record)));
                }
                Some(Ok(SlotNotice::Contend(slot))) => {
                    self.contend(slot).await;
                    break;
                }
                // The holder that was passing the lease on is gone with its runtime.
                Some(Err(_)) => {}
                None => return Err(self.not_acquired(waiting)),
            }
        }
        Ok(None)
    }

    /// Takes over the slot. The registration of the last caller that contended ends when this one
    /// has its own, so that the channel stays open.
    async fn contend(&mut self, mut slot: Slot) {
        if let Some(changes) = slot.take_changes() {
            self.acquisition.subscribe();
            drop(changes);
            // The turn of this process is over, and it is the turn of another one.
            Box::pin(sleep(GIVE_WAY)).await;
        }
        self.slot = Some(slot);
    }

    /// Goes on under a fresh owner if this error asks for it. It does if too few replicas confirmed
    /// a grant, or if a permit may be granted late. A permit leaves with its id, and no guard would
    /// undo that.
    fn restart_after(&mut self, error: &BackendError) {
        let is_permit = matches!(self.acquisition.claim().mode, Mode::Permit { .. });
        let restarts = match error.kind() {
            BackendErrorKind::Unreplicated => true,
            BackendErrorKind::Unknown => is_permit && self.upkeep.renew_every.is_none(),
            _ => false,
        };
        if restarts {
            self.acquisition.restart();
        }
    }

    fn not_acquired(&self, waiting: &Waiting<'_>) -> Error {
        Error::not_acquired(&self.acquisition.claim().what(), waiting.limit_reached())
    }
}

/// A place in the local queue. Dropped, it releases a lease that was passed to it meanwhile.
struct LocalPlace<'a> {
    engine: &'a Arc<Engine>,
    notices: oneshot::Receiver<SlotNotice>,
}

impl Drop for LocalPlace<'_> {
    fn drop(&mut self) {
        // After this, the holder learns that the caller has left.
        self.notices.close();
        if let Ok(SlotNotice::Passed(record)) = self.notices.try_recv() {
            drop(LeaseGuard::new(self.engine.clone(), record));
        }
    }
}
