//! The loop of an acquisition: ask once, wait while others are in the way, and ask again.
//!
//! The caller polls its acquisition by itself, and may stop to poll. What it was granted then lies
//! with its future: **a lease that its caller has not read is not renewed**. If the caller polls
//! again while the lease lasts, it holds the lease. Otherwise the lease has ended by itself, and
//! the caller asks again. So a future that is not polled keeps others waiting for its lease at
//! most, or for 2 s after a handover. No task watches a caller, and nothing is taken from it: the
//! callers that queue behind it see how long its slot has been silent. A caller that waits for
//! further leases renews those that it has, while it is polled.

use std::{
    convert::Infallible, future::pending, panic::AssertUnwindSafe, pin::pin, sync::Arc,
    time::Duration,
};

use futures_util::{FutureExt, future::join_all};
use tokio::time::{Instant, sleep, sleep_until};
use tracing::Instrument;

use super::{
    Acquisition, Engine, LeaseGuard, RetryStrategy, Upkeep, Waiting, Woken,
    keeper::KeptPlace,
    local_queue::{Slot, SlotNotice},
    try_limit,
};
use crate::{
    backend::{Change, Claim, Claimed, Mode, Renewal},
    error::{BackendError, BackendErrorKind, Error, ErrorKind},
    key::Key,
    spans,
};

/// How long a process that has had its turn waits before it asks again, so that the next one comes
/// first.
const GIVE_WAY: Duration = Duration::from_millis(1);

/// The least pause between two renewals by a caller that waits for further leases.
const RENEWAL_PAUSE: Duration = Duration::from_millis(10);

/// Which leases are acquired, and how each is acquired and kept.
pub(crate) struct AcquireTerms {
    /// Claims of different names, in the order in which they are acquired.
    pub(crate) claims: Vec<Claim>,
    pub(crate) upkeep: Upkeep,
    pub(crate) retry: Arc<dyn RetryStrategy>,
    pub(crate) limit: Duration,
    /// To wait for long is no fault, as of a job or a leader.
    pub(crate) stands_by: bool,
}

impl Engine {
    /// Acquires leases one after another, within one limit, waiting while other holders are in the
    /// way. If one is not acquired, those before it are released. If one is lost meanwhile, all are
    /// acquired anew. `what` is for logs.
    ///
    /// # Cancel safety
    ///
    /// When the future is dropped, leases that it may have acquired are released in a task. When it
    /// is no longer polled, they end by themselves.
    pub(crate) async fn acquire(
        &self,
        what: &Key,
        terms: AcquireTerms,
    ) -> Result<Vec<LeaseGuard>, Error> {
        let begun = Instant::now();
        let span = spans::lock(what);
        let is_told = self.renewals.meter.is_published() && !terms.stands_by;
        let _wait = is_told.then(|| self.waits.begin(begun));
        let tries_once = terms.claims.iter().any(|claim| !claim.waits);
        // In a box, because the wrappers around the future would copy it.
        let acquiring = Box::pin(self.acquire_all(begun, &terms));
        let acquiring = self.janitor.polled.track_future(acquiring);
        // The retry strategy may be code of the user.
        let caught = AssertUnwindSafe(acquiring).catch_unwind().instrument(span.clone()).await;
        let outcome = caught.unwrap_or_else(|_panic| {
            Err(Error::new(ErrorKind::Panicked, "the retry strategy panicked"))
        });
        let mut error = outcome.as_ref().err();
        let result = match error.map(Error::kind) {
            None => "acquired",
            Some(ErrorKind::NotAcquired) if tries_once => {
                // That a try finds the lock taken is an answer, and no fault.
                self.counters.taken.add();
                error = None;
                "taken"
            }
            Some(ErrorKind::NotAcquired) => {
                self.counters.not_acquired.add();
                "error"
            }
            Some(_) => {
                self.counters.failed.add();
                "error"
            }
        };
        spans::ended(&span, result, error);
        self.renewals.meter.ended("bellwether_lock_wait_seconds", begun, result);
        outcome
    }

    async fn acquire_all(
        &self,
        since: Instant,
        terms: &AcquireTerms,
    ) -> Result<Vec<LeaseGuard>, Error> {
        let mut is_first_round = true;
        loop {
            let mut granted = Vec::with_capacity(terms.claims.len());
            let connections = self.backend.new_connections();
            let mut outcome = self.acquire_each(since, &mut granted, is_first_round, terms).await;
            if granted.len() > 1 && connections.has_changed().unwrap_or(false) {
                // The server behind the new connection may lack what was granted before.
                self.renew_granted(&mut granted).await;
            }
            let lost = lost_meanwhile(&granted);
            if outcome.is_ok() && lost.is_none() {
                let held = granted.into_iter().filter_map(|one| self.held(one, terms));
                return Ok(held.collect());
            }
            if let Some(claim) = lost {
                let waiting = Waiting::new(terms.retry.as_ref(), terms.limit, since);
                let may_begin_anew = claim.waits && !waiting.left().is_zero();
                if outcome.is_ok() && !may_begin_anew {
                    outcome = Err(waiting.not_acquired(claim));
                }
            }
            // The error says more than how the releases end.
            join_all(granted.into_iter().map(Acquired::give_back)).await;
            outcome?;
            is_first_round = false;
        }
    }

    /// Acquires leases one after another, and keeps those that were granted meanwhile.
    async fn acquire_each(
        &self,
        since: Instant,
        granted: &mut Vec<Acquired>,
        is_first_round: bool,
        terms: &AcquireTerms,
    ) -> Result<(), Error> {
        for claim in &terms.claims {
            let claim = if is_first_round { claim.clone() } else { self.under_new_owner(claim) };
            let next = if granted.is_empty() {
                self.acquire_one(since, claim, terms).await?
            } else {
                let acquiring = Box::pin(self.acquire_one(since, claim, terms));
                self.renewing(granted, terms.upkeep, acquiring).await?
            };
            granted.push(next);
        }
        Ok(())
    }

    /// Acquires a lease for a caller that has waited since then.
    async fn acquire_one(
        &self,
        since: Instant,
        claim: Claim,
        terms: &AcquireTerms,
    ) -> Result<Acquired, Error> {
        let mut waiting = Waiting::new(terms.retry.as_ref(), terms.limit, since);
        if !claim.waits {
            waiting.try_once();
        }
        let acquiring = pin!(async {
            let contender = self.queue_up(claim, terms.upkeep, &mut waiting).await?;
            let acquired = contender.acquire(&mut waiting).await?;
            self.renewals.meter.woken(waiting.pushed_at, "acquired");
            Ok(acquired)
        });
        tokio::select! {
            biased;
            () = self.janitor.stop.cancelled() => Err(Error::shut_down()),
            acquired = acquiring => acquired,
        }
    }

    /// Waits for the slot of the local queue, where the mode has one.
    async fn queue_up(
        &self,
        mut claim: Claim,
        upkeep: Upkeep,
        waiting: &mut Waiting<'_>,
    ) -> Result<Contender<'_>, Error> {
        // The other modes are granted in order by their queue at the backend.
        if claim.mode != Mode::Exclusive {
            return Ok(self.contender(self.acquisition(claim), upkeep, None));
        }
        loop {
            let notices = match self.queues.enter(self.acquisition(claim.clone())) {
                Ok(SlotNotice { acquisition, slot }) => {
                    return Ok(self.contender(acquisition, upkeep, Some(slot)));
                }
                Err(notices) => notices,
            };
            let unread = Box::pin(self.queues.unread(&claim.name, claim.lease));
            let event = Box::pin(waiting.bounded(async {
                tokio::select! {
                    biased;
                    notice = notices => match notice {
                        Ok(notice) => QueueEvent::Slot(notice),
                        Err(_) => QueueEvent::PassCutOff,
                    },
                    () = unread => QueueEvent::Unread,
                }
            }));
            match event.await {
                Some(QueueEvent::Slot(SlotNotice { acquisition, slot })) => {
                    if !acquisition.is_granted() && slot.changes.is_some() {
                        Box::pin(sleep(GIVE_WAY)).await;
                    }
                    return Ok(self.contender(acquisition, upkeep, Some(slot)));
                }
                Some(QueueEvent::PassCutOff) => claim = self.under_new_owner(&claim),
                Some(QueueEvent::Unread) => {
                    let acquisition = self.acquisition(self.under_new_owner(&claim));
                    return Ok(self.contender(acquisition, upkeep, None));
                }
                None => return Err(waiting.not_acquired(&claim)),
            }
        }
    }

    fn acquisition(&self, claim: Claim) -> Box<Acquisition> {
        Box::new(Acquisition::new(&self.janitor, claim))
    }

    fn contender(
        &self,
        acquisition: Box<Acquisition>,
        upkeep: Upkeep,
        slot: Option<Slot>,
    ) -> Contender<'_> {
        Contender { engine: self, upkeep, acquisition, slot, place: None }
    }

    /// Runs a future, and renews what was granted before it, for as long as this is polled.
    async fn renewing<T>(
        &self,
        granted: &mut [Acquired],
        upkeep: Upkeep,
        next: impl Future<Output = T>,
    ) -> T {
        tokio::select! {
            biased;
            output = next => output,
            never = Box::pin(self.renew_meanwhile(granted, upkeep)) => match never {},
        }
    }

    /// Renews leases whose caller still waits for others.
    async fn renew_meanwhile(&self, granted: &mut [Acquired], upkeep: Upkeep) -> Infallible {
        for one in granted.iter() {
            one.note_end();
        }
        let Some(interval) = upkeep.renew_every else { return pending().await };
        let mut earliest = Instant::now();
        loop {
            let due = granted.iter().filter_map(|one| one.acquisition.renewal_due(interval / 2));
            let Some(next) = due.min() else { return pending().await };
            sleep_until(next.max(earliest)).await;
            earliest = Instant::now() + RENEWAL_PAUSE;
            self.renew_granted(granted).await;
        }
    }

    /// Renews leases that their caller does not hold yet, and notes which were lost. Without an
    /// answer, the next renewal finds out.
    async fn renew_granted(&self, granted: &mut [Acquired]) {
        let sent = Instant::now();
        let mut claims = Vec::with_capacity(granted.len());
        for one in granted.iter() {
            claims.push(one.acquisition.claim().clone());
        }
        let Ok(renewals) = self.backend.renew(&claims).await else { return };
        for (one, renewal) in granted.iter_mut().zip(renewals) {
            match renewal {
                Renewal::Held => one.acquisition.renewed(sent),
                Renewal::NotHeld => one.acquisition.lost(),
                Renewal::Unknown => {}
            }
            one.note_end();
        }
    }

    fn held(&self, granted: Acquired, terms: &AcquireTerms) -> Option<LeaseGuard> {
        let Acquired { mut acquisition, slot } = granted;
        LeaseGuard::new(&self.renewals, &mut acquisition, terms.upkeep, slot)
    }

    fn under_new_owner(&self, claim: &Claim) -> Claim {
        Claim { owner: self.backend.new_owner(), ..claim.clone() }
    }
}

/// What ends the wait of a caller in the local queue.
enum QueueEvent {
    Slot(SlotNotice),
    /// The runtime of the holder that was passing the lease on has ended.
    PassCutOff,
    /// The caller with the slot has left something unread for too long.
    Unread,
}

/// Returns the claim of a lease that has ended while its caller waited for others. The holder of a
/// single lease learns of its loss by itself.
fn lost_meanwhile(granted: &[Acquired]) -> Option<&Claim> {
    if granted.len() == 1 {
        return None;
    }
    let lost = granted.iter().find(|one| !one.has_lease())?;
    Some(lost.acquisition.claim())
}

/// A lease that was granted, and that its caller does not hold yet. Dropped, it is released in a
/// task.
struct Acquired {
    acquisition: Box<Acquisition>,
    /// The slot of the local queue, where the mode has one.
    slot: Option<Slot>,
}

impl Acquired {
    fn has_lease(&self) -> bool {
        self.acquisition.has_lease()
    }

    /// Tells the local queue when the lease ends, unless its caller renews it.
    fn note_end(&self) {
        if let (Some(slot), Some(end)) = (&self.slot, self.acquisition.lease_ends()) {
            slot.lasts(end);
        }
    }

    async fn give_back(self) {
        let _ = self.acquisition.give_back().await;
    }
}

/// A caller that asks the backend.
struct Contender<'a> {
    engine: &'a Engine,
    upkeep: Upkeep,
    acquisition: Box<Acquisition>,
    /// The slot of the local queue, where the mode has one.
    slot: Option<Slot>,
    /// Its entry in the queue of the backend, which is kept from its first sleep on.
    place: Option<KeptPlace>,
}

impl Contender<'_> {
    /// Asks until the lease is granted or handed over.
    async fn acquire(mut self, waiting: &mut Waiting<'_>) -> Result<Acquired, Error> {
        if self.acquisition.has_lease() {
            // The last holder has passed it on.
            return Ok(self.granted());
        }
        loop {
            let answer = self.ask(waiting.strategy, waiting.left()).await;
            let wake = match &answer {
                // A lease that was read too late has ended by itself.
                Ok(Claimed::Granted(_)) if self.acquisition.has_lease() => {
                    return Ok(self.granted_by_backend());
                }
                Ok(Claimed::Occupied(occupied)) => {
                    self.wakes_after_look(waiting, occupied.remaining)
                }
                Err(error) if error.kind() == BackendErrorKind::Foreign => {
                    return Err(error.clone().into());
                }
                // The request failed, or its grant was read too late.
                Ok(_) | Err(_) => waiting.wakes_after_failure(),
            };
            let woken = match wake {
                Some(wake) => self.sleep(waiting, wake).await,
                None => Woken::TimeUp,
            };
            match woken {
                Woken::Again => {}
                Woken::Pushed(change) => {
                    if self.is_handed_over(&change) {
                        return Ok(self.granted_by_backend());
                    }
                }
                Woken::TimeUp => {
                    return Err(match answer {
                        Err(error) => error.into(),
                        Ok(_) => waiting.not_acquired(self.acquisition.claim()),
                    });
                }
            }
        }
    }

    /// Asks once. A permit for that is waited for no longer than `left`.
    async fn ask(
        &mut self,
        strategy: &dyn RetryStrategy,
        left: Duration,
    ) -> Result<Claimed, BackendError> {
        if let Some(slot) = &self.slot {
            slot.asks();
        }
        self.acquisition.listen();
        let engine = self.engine;
        let limit = try_limit(strategy, engine.backend.as_ref());
        let shard = engine.backend.shard(&self.acquisition.claim().name);
        let owner = self.acquisition.claim().owner;
        let asking = engine.asking.ask(shard, &mut self.acquisition, limit, left);
        let answer = asking.await;
        if self.acquisition.claim().owner != owner {
            // The acquisition has ended with the runtime of its task, and so has its queue entry.
            self.place = None;
        }
        if let Err(error) = &answer {
            self.restart_after(error);
        }
        answer
    }

    /// Has the queue entry of the claim kept, if it has one. Returns when to ask again if no push
    /// comes, or `None` if the wait is over.
    fn wakes_after_look(
        &mut self,
        waiting: &mut Waiting<'_>,
        remaining: Duration,
    ) -> Option<Instant> {
        let wake = waiting.wakes_after_look(&mut self.acquisition, remaining)?;
        let inbox = self.acquisition.listen().inbox().clone();
        let claim = self.acquisition.claim();
        if claim.waits {
            self.place = Some(self.engine.keeper.keep(claim, inbox, remaining));
        }
        Some(wake)
    }

    async fn sleep(&mut self, waiting: &mut Waiting<'_>, wake: Instant) -> Woken {
        if let Some(slot) = &self.slot {
            slot.sleeps(wake, self.acquisition.listen().inbox().clone());
        }
        // In a box, so that an acquisition that need not wait stays small.
        Box::pin(waiting.sleep(&mut self.acquisition, wake)).await
    }

    /// Returns whether this push hands the lease over.
    fn is_handed_over(&mut self, change: &Change) -> bool {
        let Change::Granted(handover) = change else { return false };
        // A caller with a fixed lease asks for the full time, and does not take the short one.
        self.upkeep.renew_every.is_some() && self.acquisition.accept(handover)
    }

    /// Takes what the backend has granted. A turn of this process begins with it.
    fn granted_by_backend(mut self) -> Acquired {
        if let Some(slot) = &mut self.slot {
            slot.begin_turn(self.acquisition.take_changes());
        }
        self.granted()
    }

    fn granted(self) -> Acquired {
        Acquired { acquisition: self.acquisition, slot: self.slot }
    }

    /// Goes on under a fresh owner if too few replicas confirmed a grant, or if a permit with an id
    /// may be granted late: it has no guard later that would release the late grant.
    fn restart_after(&mut self, error: &BackendError) {
        let is_permit = matches!(self.acquisition.claim().mode, Mode::Permit { .. });
        let has_id = is_permit && self.upkeep.renew_every.is_none();
        let is_late = has_id && error.kind() == BackendErrorKind::Unknown;
        if is_late || error.kind() == BackendErrorKind::Unreplicated {
            self.place = None;
            self.acquisition.restart();
        }
    }
}
