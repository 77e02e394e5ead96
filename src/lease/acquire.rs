//! The loop of every acquisition: ask once, wait while others are in the way, and ask again.
//!
//! [`drive`] is the loop. An [`Attempt`] says what is asked, what a push may settle, and what ends
//! the wait early. One lease, the claim of a cache and the wait for a latch
//! are attempts.

use std::{sync::Arc, time::Duration};

use futures_util::future::join_all;
use tokio::{
    sync::oneshot,
    time::{Instant, sleep},
};

use super::{
    Acquisition, Engine, LeaseGuard, LeaseRecord, RetryStrategy, Upkeep, Waiting, Woken,
    queue::{Entered, FailedPass, SlotNotice},
    record::LeaseSlot,
    try_limit,
};
use crate::{
    backend::{Acquired, Change, Changes, Claim, Mode, Owner},
    error::{BackendError, BackendErrorKind, Error},
    time::after,
};

/// How long a process whose turn is over waits before it asks again. So the process whose turn it
/// is comes first, and has the machine to itself: it waits for less than the local queue may.
const GIVE_WAY: Duration = Duration::from_millis(1);

/// One acquisition, in the terms of the loop.
pub(crate) trait Attempt {
    /// How the acquisition ends, well or not.
    type Outcome;

    /// Asks once.
    fn ask(
        &mut self,
        waiting: &mut Waiting<'_>,
    ) -> impl Future<Output = AskOutcome<Self::Outcome>> + Send;

    /// Returns the outcome if a push settles it. Otherwise the loop asks again.
    fn pushed(&mut self, change: Change, waiting: &mut Waiting<'_>) -> Option<Self::Outcome>;

    /// Completes if the wait is to end early.
    fn interrupted(&self) -> impl Future<Output = Self::Outcome> + Send;

    /// Returns the outcome of a wait that is over, or `None` to ask a last time.
    fn time_up(&mut self, waiting: &Waiting<'_>) -> Option<Self::Outcome>;
}

/// The result of one request.
pub(crate) enum AskOutcome<O> {
    /// The acquisition has ended.
    Settled(O),
    /// The next request is due at once.
    Again,
    /// Another holder is in the way, for so long.
    Occupied(Duration),
    /// The request failed, and another one may not.
    Failed,
}

/// Drives an attempt to its outcome. Both are borrowed, since a future holds its arguments twice.
///
/// # Cancel safety
///
/// The caller drops the attempt with its own future, and its [`Acquisition`]s undo themselves.
pub(crate) async fn drive<A: Attempt>(attempt: &mut A, waiting: &mut Waiting<'_>) -> A::Outcome {
    loop {
        let remaining = match attempt.ask(waiting).await {
            AskOutcome::Settled(outcome) => return outcome,
            AskOutcome::Again => continue,
            AskOutcome::Occupied(remaining) => Some(remaining),
            AskOutcome::Failed => None,
        };
        // In a box, so that an acquisition that need not wait stays small.
        let woken = tokio::select! {
            woken = Box::pin(waiting.after(remaining)) => woken,
            outcome = attempt.interrupted() => return outcome,
        };
        let outcome = match woken {
            Woken::TimeUp => attempt.time_up(waiting),
            Woken::Pushed(change) => attempt.pushed(change, waiting),
            Woken::Again => None,
        };
        if let Some(outcome) = outcome {
            return outcome;
        }
    }
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
        upkeep: Upkeep,
        strategy: Arc<dyn RetryStrategy>,
        limit: Duration,
    ) -> Result<LeaseGuard, Error> {
        let (begun, deadline) = (self.meter.begin(), after(Instant::now(), limit));
        let acquired = self.janitor.watch().acquire(|| {
            let (engine, strategy) = (self.clone(), strategy.clone());
            let claim = Claim { owner: Owner::fresh(), ..claim.clone() };
            async move {
                engine.acquire_until(claim, upkeep, strategy.as_ref(), (limit, deadline)).await
            }
        });
        self.counted(begun, acquired.await)
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
        upkeep: Upkeep,
        strategy: Arc<dyn RetryStrategy>,
        limit: Duration,
    ) -> Result<Vec<LeaseGuard>, Error> {
        let (begun, deadline) = (self.meter.begin(), after(Instant::now(), limit));
        let acquired = self.janitor.watch().acquire(|| {
            let (engine, strategy, claims) = (self.clone(), strategy.clone(), claims.clone());
            async move {
                engine.acquire_in_order(&claims, upkeep, strategy.as_ref(), (limit, deadline)).await
            }
        });
        self.counted(begun, acquired.await)
    }

    async fn acquire_in_order(
        self: &Arc<Self>,
        claims: &[Claim],
        upkeep: Upkeep,
        strategy: &dyn RetryStrategy,
        limits: (Duration, Instant),
    ) -> Result<Vec<LeaseGuard>, Error> {
        loop {
            let connections = self.backend().new_connections();
            let (mut held, mut outcome) = (Vec::with_capacity(claims.len()), Ok(()));
            for claim in claims {
                let claim = Claim { owner: Owner::fresh(), ..claim.clone() };
                match self.acquire_until(claim, upkeep, strategy, limits).await {
                    Ok(lease) => held.push(lease),
                    Err(error) => {
                        outcome = Err(error);
                        break;
                    }
                }
            }
            let is_new = connections.is_some_and(|new| new.has_changed().unwrap_or(false));
            if outcome.is_ok() && held.len() > 1 && is_new {
                // The first leases may be lost with the data of their server. Each notes its loss,
                // and no other answer matters.
                join_all(held.iter().map(LeaseGuard::renew)).await;
            }
            if outcome.is_ok() && !held.iter().any(|lease| lease.is_lost()) {
                return Ok(held);
            }
            // An error says more than how the releases end.
            join_all(held.into_iter().map(LeaseGuard::release)).await;
            outcome?;
        }
    }

    async fn acquire_until(
        self: &Arc<Self>,
        claim: Claim,
        upkeep: Upkeep,
        strategy: &dyn RetryStrategy,
        (limit, deadline): (Duration, Instant),
    ) -> Result<LeaseGuard, Error> {
        let mut waiting = Waiting::new(&self.janitor, claim.clone(), strategy, limit);
        waiting.end_at(deadline);
        waiting.keep_entries(&self.keeper);
        let mut attempt = OneAttempt {
            engine: self,
            acquisition: Acquisition::new(self.janitor.clone(), claim),
            upkeep,
            strategy,
            slot: None,
            failure: None,
        };
        drive(&mut attempt, &mut waiting).await
    }
}

/// The acquisition of one lease.
struct OneAttempt<'a> {
    engine: &'a Arc<Engine>,
    acquisition: Acquisition,
    upkeep: Upkeep,
    strategy: &'a dyn RetryStrategy,
    /// The slot of the local queue, once this caller has it.
    slot: Option<LeaseSlot>,
    /// The error of the last request, if it failed.
    failure: Option<BackendError>,
}

type LeaseOutcome = Result<LeaseGuard, Error>;

impl Attempt for OneAttempt<'_> {
    type Outcome = LeaseOutcome;

    async fn ask(&mut self, waiting: &mut Waiting<'_>) -> AskOutcome<LeaseOutcome> {
        if self.engine.janitor.is_stopped() {
            return AskOutcome::Settled(Err(Error::shut_down()));
        }
        if self.slot.is_none()
            && let Some(asked) = self.queue_up(waiting).await
        {
            return asked;
        }
        waiting.listen();
        let limit = try_limit(self.strategy, self.engine.backend().as_ref());
        match self.acquisition.ask(limit, |backend, claim| backend.acquire(claim)).await {
            Ok((Acquired::Granted(grant), sent)) => {
                let waited = self.acquisition.is_waiting();
                let changes = if waited { waiting.take_changes() } else { None };
                AskOutcome::Settled(Ok(self.hold(grant.fence(), sent, None, changes)))
            }
            Ok((Acquired::Occupied(occupied), _)) => {
                self.failure = None;
                AskOutcome::Occupied(occupied.remaining)
            }
            Err(error) if error.kind() == BackendErrorKind::Foreign => {
                AskOutcome::Settled(Err(error.into()))
            }
            Err(error) => {
                if self.must_restart(&error) {
                    self.restart(waiting);
                }
                self.failure = Some(error);
                AskOutcome::Failed
            }
        }
    }

    fn pushed(&mut self, change: Change, waiting: &mut Waiting<'_>) -> Option<LeaseOutcome> {
        let Change::Granted(handover) = change else { return None };
        // One that is not renewed asks, so that it has its full time.
        self.upkeep.renew_every?;
        let until = self.acquisition.trusts(&handover)?;
        let is_fenced = self.acquisition.claim().mode.is_fenced();
        let fence = if is_fenced { handover.fence } else { 0 };
        Some(Ok(self.hold(fence, Instant::now(), Some(until), waiting.take_changes())))
    }

    async fn interrupted(&self) -> LeaseOutcome {
        self.engine.janitor.stopped().await;
        Err(Error::shut_down())
    }

    fn time_up(&mut self, waiting: &Waiting<'_>) -> Option<LeaseOutcome> {
        let failure = self.failure.take().map(Error::from);
        Some(Err(failure.unwrap_or_else(|| self.not_acquired(waiting))))
    }
}

impl OneAttempt<'_> {
    /// Holds what was granted. The local queue slot and the waiter's registration move on with the
    /// lease.
    fn hold(
        &mut self,
        fence: u64,
        since: Instant,
        until: Option<Instant>,
        changes: Option<Changes>,
    ) -> LeaseGuard {
        let mut granted = self.acquisition.settle(self.upkeep, fence, since, until);
        granted.slot = self.slot.take();
        if let Some(slot) = &mut granted.slot {
            slot.begin(changes);
        }
        self.engine.hold(granted)
    }

    /// Takes the slot of the local queue, and waits for it while another caller has it.
    ///
    /// Returns `None` if this caller contends at the backend now.
    async fn queue_up(&mut self, waiting: &mut Waiting<'_>) -> Option<AskOutcome<LeaseOutcome>> {
        let claim = self.acquisition.claim();
        let notices = match self.engine.queues.enter(claim, self.upkeep) {
            Entered::None => return None,
            Entered::First(slot) => {
                self.slot = Some(slot);
                return None;
            }
            Entered::Behind(notices) => notices,
        };
        let mut queued = LocalPlace { engine: self.engine, notices };
        let notice = tokio::select! {
            notice = Box::pin(waiting.bounded(&mut queued.notices)) => notice,
            () = self.engine.janitor.stopped() => {
                return Some(AskOutcome::Settled(Err(Error::shut_down())));
            }
        };
        match notice {
            Some(Ok(SlotNotice::Passed(record))) => {
                Some(AskOutcome::Settled(Ok(LeaseGuard::new(self.engine.clone(), record))))
            }
            Some(Ok(SlotNotice::Contend { slot, failed })) => {
                self.contend(slot, failed, waiting).await;
                None
            }
            // The holder that was passing the lease on is gone with its runtime, and may have done
            // so.
            Some(Err(_)) => {
                self.restart(waiting);
                Some(AskOutcome::Again)
            }
            None => Some(AskOutcome::Settled(Err(self.not_acquired(waiting)))),
        }
    }

    /// Takes over the slot. The registration of the last caller that contended ends when this one
    /// has its own, so that the channel stays open.
    async fn contend(
        &mut self,
        mut slot: LeaseSlot,
        failed: Option<Box<FailedPass>>,
        waiting: &mut Waiting<'_>,
    ) {
        if let Some(failed) = failed {
            let FailedPass { kind, owed } = *failed;
            match kind {
                BackendErrorKind::Unreplicated => self.restart(waiting),
                _ => self.acquisition.may_have_been_passed(),
            }
            // The acquisition undoes itself.
            owed.disarm();
        }
        if let Some(changes) = slot.take_changes() {
            waiting.listen().subscribe();
            drop(changes);
            // The turn of this process is over, and it is the turn of another one.
            Box::pin(sleep(GIVE_WAY)).await;
        }
        self.slot = Some(slot);
    }

    /// Returns whether the next request needs a fresh owner. It does if too few replicas confirmed
    /// a grant, or if a permit may be granted late. A permit leaves with its id, and no guard would
    /// undo that.
    fn must_restart(&self, error: &BackendError) -> bool {
        let is_permit = matches!(self.acquisition.claim().mode, Mode::Permit { .. });
        match error.kind() {
            BackendErrorKind::Unreplicated => true,
            BackendErrorKind::Unknown => is_permit && self.upkeep.renew_every.is_none(),
            _ => false,
        }
    }

    fn restart(&mut self, waiting: &mut Waiting<'_>) {
        self.acquisition.restart();
        waiting.turn_to(self.acquisition.claim());
    }

    fn not_acquired(&self, waiting: &Waiting<'_>) -> Error {
        Error::not_acquired(&self.acquisition.claim().what(), waiting.limit_reached())
    }
}

/// A place in the local queue. Dropped, it releases a lease that was passed to it meanwhile, or may
/// have been.
struct LocalPlace<'a> {
    engine: &'a Arc<Engine>,
    notices: oneshot::Receiver<SlotNotice<Arc<LeaseRecord>>>,
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
