//! The loop of an acquisition: send the claim, wait while other holders are in the way, and send
//! the claim again.
//!
//! The caller polls its own acquisition, and may stop polling. Then the granted lease stays in the
//! future: **a lease that its caller has not read is not renewed**. If the caller polls again while
//! the lease lasts, the caller has the lease. Otherwise the lease has ended by itself, and the
//! acquisition sends its claim again. So a future that is not polled delays other callers for its
//! lease at most, or for 2 s after a handover. No task watches a caller, and no task takes a lease
//! from a caller. The callers behind it in the local queue go on without it, as
//! [`local_queue`](super::local_queue) explains.
//!
//! A caller of several leases renews the leases that it has while it waits for the next lease. It
//! does so while it is polled.

use std::{
    future::pending,
    panic::AssertUnwindSafe,
    pin::{Pin, pin},
    sync::Arc,
    time::Duration,
};

use futures_util::{FutureExt, future::join_all};
use tokio::{
    runtime::Handle,
    time::{Instant, sleep, sleep_until},
};
use tracing::Instrument;

use super::{
    Acquisition, Engine, LeaseGuard, RetryStrategy, Upkeep, Waiting, Woken,
    held::renewal_at,
    keeper::KeptEntry,
    local_queue::{Entered, Slot, SlotNotice},
    try_limit,
};
use crate::{
    backend::{Change, Claim, Claimed, Mode, Renewal},
    error::{BackendError, BackendErrorKind, Error, ErrorKind},
    key::Key,
    spans,
    time::Pauses,
};

/// How long a process whose streak of passes has ended waits before it sends the next claim, so
/// that the next process comes first.
const GIVE_WAY: Duration = Duration::from_millis(1);

/// The least pause after a renewal by a caller that waits for further leases.
const RENEWAL_PAUSE: Duration = Duration::from_millis(10);

/// How leases are acquired and kept.
pub(crate) struct AcquireTerms {
    pub(crate) upkeep: Upkeep,
    pub(crate) retry: Arc<dyn RetryStrategy>,
    pub(crate) limit: Duration,
    /// Whether a long wait is no fault, such as the wait of a job or a candidate. Such a wait is
    /// not published as a metric.
    pub(crate) stands_by: bool,
}

impl Engine {
    /// Acquires a lease, waiting while other holders are in the way. A claim that does not wait is
    /// tried once. `what` is for logs.
    ///
    /// # Cancel safety
    ///
    /// When the future is dropped, a task releases the lease that may have been acquired. When the
    /// future is no longer polled, the lease ends by itself.
    pub(crate) async fn acquire(
        &self,
        what: &Key,
        claim: Claim,
        terms: AcquireTerms,
    ) -> Result<LeaseGuard, Error> {
        let tries_once = !claim.waits;
        let since = Instant::now();
        let acquiring = async {
            let acquired = self.acquire_one(since, claim, &terms).await?;
            // A lease that was granted has a guard.
            self.guard_of(acquired, terms.upkeep).ok_or_else(Error::shut_down)
        };
        self.observe(what, since, &terms, tries_once, Box::pin(acquiring)).await
    }

    /// Acquires leases of different names one after another, as [`acquire`](Self::acquire) does,
    /// within one limit. If a lease is not acquired, the leases before it are released. If a lease
    /// is lost meanwhile, the others are released, and all leases are acquired anew.
    pub(crate) async fn acquire_several(
        &self,
        what: &Key,
        claims: Vec<Claim>,
        terms: AcquireTerms,
    ) -> Result<Vec<LeaseGuard>, Error> {
        let tries_once = claims.iter().any(|claim| !claim.waits);
        let since = Instant::now();
        let acquiring = Box::pin(self.acquire_all(since, claims, &terms));
        self.observe(what, since, &terms, tries_once, acquiring).await
    }

    /// Runs an acquisition that began at `since`, and counts and logs its outcome. The future is in
    /// a box, because the wrappers around it would copy it.
    async fn observe<T>(
        &self,
        what: &Key,
        since: Instant,
        terms: &AcquireTerms,
        tries_once: bool,
        acquiring: Pin<Box<impl Future<Output = Result<T, Error>>>>,
    ) -> Result<T, Error> {
        let span = spans::lock(what);
        let is_published = self.renewals.meter.is_published() && !terms.stands_by;
        let _wait = if is_published { Some(self.waits.begin(since)) } else { None };
        let acquiring = self.janitor.polled.track_future(acquiring);
        // The retry strategy may be code of the user, which may panic.
        let acquiring = AssertUnwindSafe(acquiring).catch_unwind();
        let outcome = match acquiring.instrument(span.clone()).await {
            Ok(outcome) => outcome,
            Err(_panic) => Err(Error::new(ErrorKind::Panicked, "the retry strategy panicked")),
        };
        let mut error = outcome.as_ref().err();
        let result = match error.map(Error::kind) {
            None => "acquired",
            Some(ErrorKind::NotAcquired) if tries_once => {
                // A try that finds the lock taken has its answer, which is no fault.
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
        if is_published {
            self.renewals.meter.ended("bellwether_lock_wait_seconds", since, result);
        }
        outcome
    }

    /// Acquires several leases in rounds. If a lease is lost during a round, the round's
    /// leases are released and another round begins within the wait limit.
    async fn acquire_all(
        &self,
        since: Instant,
        mut claims: Vec<Claim>,
        terms: &AcquireTerms,
    ) -> Result<Vec<LeaseGuard>, Error> {
        loop {
            let mut granted = Vec::with_capacity(claims.len());
            let connections = self.backend.new_connections();
            let mut outcome = self.acquire_each(since, &claims, &mut granted, terms).await;
            let has_several = outcome.is_ok() && granted.len() > 1;
            if has_several && connections.has_changed().unwrap_or(false) {
                // The server behind the new connection may lack what was granted before.
                self.renew_granted(&mut granted).await;
            }
            let lost = lost_meanwhile(&granted, &claims);
            if outcome.is_ok() && lost.is_none() {
                let guards = granted.into_iter();
                return Ok(guards.filter_map(|one| self.guard_of(one, terms.upkeep)).collect());
            }
            if let Some(claim) = lost {
                let waiting = Waiting::new(terms.retry.as_ref(), terms.limit, since);
                let may_begin_anew = claim.waits && !waiting.left().is_zero();
                if outcome.is_ok() && !may_begin_anew {
                    outcome = Err(waiting.not_acquired(claim));
                }
            }
            // The outcomes of the releases are ignored, because the error of the acquisition says
            // more.
            join_all(granted.into_iter().map(Acquired::give_back)).await;
            outcome?;
            for claim in &mut claims {
                claim.owner = self.backend.new_owner();
            }
        }
    }

    /// Acquires leases one after another, and renews the granted leases meanwhile. Ends early if a
    /// granted lease is lost.
    async fn acquire_each(
        &self,
        since: Instant,
        claims: &[Claim],
        granted: &mut Vec<Acquired>,
        terms: &AcquireTerms,
    ) -> Result<(), Error> {
        for claim in claims {
            let acquiring = self.acquire_one(since, claim.clone(), terms);
            let next = if granted.is_empty() {
                acquiring.await?
            } else {
                let acquiring = Box::pin(acquiring);
                match self.renewing(granted, terms.upkeep, acquiring).await {
                    Some(next) => next?,
                    None => return Ok(()),
                }
            };
            granted.push(next);
        }
        Ok(())
    }

    /// Acquires a lease for a caller that has waited since this time.
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
            let mut contender = self.queue_up(claim, terms.upkeep, &mut waiting).await?;
            contender.acquire(&mut waiting).await?;
            self.renewals.meter.woken(waiting.pushed_at, "acquired");
            Ok(Acquired { acquisition: contender.acquisition, slot: contender.slot })
        });
        tokio::select! {
            biased;
            () = self.janitor.stop.cancelled() => Err(Error::shut_down()),
            acquired = acquiring => acquired,
        }
    }

    /// Waits for the slot of the local queue, if the mode has a local queue.
    async fn queue_up(
        &self,
        mut claim: Claim,
        upkeep: Upkeep,
        waiting: &mut Waiting<'_>,
    ) -> Result<Contender<'_>, Error> {
        // In any other mode, the queue at the backend grants all claims in order.
        if claim.mode != Mode::Exclusive {
            return Ok(self.contender(self.acquisition(claim), upkeep, None));
        }
        loop {
            let notices = match self.queues.enter(self.acquisition(claim.clone())) {
                Entered::First(SlotNotice { acquisition, slot }) => {
                    return Ok(self.contender(acquisition, upkeep, Some(slot)));
                }
                Entered::Behind(notices) => notices,
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
                    // The lease was not passed on, and another process may wait.
                    if !acquisition.is_granted() && slot.changes.is_some() {
                        Box::pin(sleep(GIVE_WAY)).await;
                    }
                    // The slot may have been given to this caller long before this poll.
                    if !acquisition.has_lease() {
                        slot.note_request();
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
        Contender { engine: self, upkeep, acquisition, slot, kept_entry: None }
    }

    /// Runs the acquisition of the next lease, and renews the granted leases meanwhile. Returns
    /// `None` if one of the granted leases is lost.
    async fn renewing<T>(
        &self,
        granted: &mut [Acquired],
        upkeep: Upkeep,
        next: impl Future<Output = T>,
    ) -> Option<T> {
        tokio::select! {
            biased;
            output = next => Some(output),
            () = Box::pin(self.renew_until_lost(granted, upkeep)) => None,
        }
    }

    /// Renews the leases of a caller that still waits for the next lease, until one of the leases
    /// is lost.
    async fn renew_until_lost(&self, granted: &mut [Acquired], upkeep: Upkeep) {
        for acquired in granted.iter() {
            acquired.note_end();
        }
        let Some(interval) = upkeep.renew_every else { return pending().await };
        let mut earliest = Instant::now();
        let mut pauses = Pauses::default();
        while granted.iter().all(Acquired::has_lease) {
            // The caller may be polled late, so the first try comes early.
            let due_times = granted
                .iter()
                .filter_map(|acquired| acquired.acquisition.renewal_due(interval / 2));
            let Some(next) = due_times.min() else { return pending().await };
            sleep_until(next.max(earliest)).await;
            let has_answered = self.renew_granted(granted).await;
            earliest = Instant::now();
            if has_answered {
                earliest += RENEWAL_PAUSE;
                pauses = Pauses::default();
            } else {
                // Leaves time for further tries before the first of the leases ends.
                let ends = granted.iter().filter_map(|acquired| acquired.acquisition.lease_ends());
                let left = ends.min().map_or(Duration::ZERO, |end| end - earliest);
                earliest += pauses.next().min((left / 8).max(RENEWAL_PAUSE));
            }
        }
    }

    /// Renews leases whose caller has no guard yet, and notes which leases were lost. Returns
    /// whether the backend has answered. Without an answer, the next renewal shows which leases
    /// were lost.
    async fn renew_granted(&self, granted: &mut [Acquired]) -> bool {
        let sent = Instant::now();
        let mut claims = Vec::with_capacity(granted.len());
        for acquired in granted.iter() {
            claims.push(acquired.acquisition.claim().clone());
        }
        let answer = self.backend.renew(&claims).await;
        for (at, acquired) in granted.iter_mut().enumerate() {
            match renewal_at(&answer, at) {
                Renewal::Held => acquired.acquisition.renewed(sent),
                Renewal::NotHeld => acquired.acquisition.lost(),
                Renewal::Unknown => {}
            }
            acquired.note_end();
        }
        answer.is_ok()
    }

    /// Creates the guard of a lease that was granted, which begins the renewals.
    fn guard_of(&self, acquired: Acquired, upkeep: Upkeep) -> Option<LeaseGuard> {
        let Acquired { mut acquisition, slot } = acquired;
        LeaseGuard::new(&self.renewals, &mut acquisition, upkeep, slot)
    }

    fn under_new_owner(&self, claim: &Claim) -> Claim {
        Claim { owner: self.backend.new_owner(), ..claim.clone() }
    }
}

/// What ends the wait of a caller in the local queue.
enum QueueEvent {
    /// The caller gets the slot.
    Slot(SlotNotice),
    /// The runtime of the holder that was passing the lease on has ended.
    PassCutOff,
    /// The caller with the slot has left an answer or a push unread for too long.
    Unread,
}

/// Returns the claim of a lease that has ended while its caller waited for further leases. Returns
/// `None` for a single claim, because the guard of its lease reports the loss.
fn lost_meanwhile<'a>(granted: &'a [Acquired], claims: &[Claim]) -> Option<&'a Claim> {
    if claims.len() == 1 {
        return None;
    }
    let lost = granted.iter().find(|acquired| !acquired.has_lease())?;
    Some(lost.acquisition.claim())
}

/// A lease that was granted, and whose caller has no guard yet. If it is dropped, a task releases
/// the lease.
struct Acquired {
    acquisition: Box<Acquisition>,
    /// The slot of the local queue. `None` if the mode has no local queue, or if the caller has
    /// left that queue behind a caller that is not polled.
    slot: Option<Slot>,
}

impl Acquired {
    fn has_lease(&self) -> bool {
        self.acquisition.has_lease()
    }

    /// Notes in the local queue when the lease ends, unless its caller renews the lease.
    fn note_end(&self) {
        if let (Some(slot), Some(end)) = (&self.slot, self.acquisition.lease_ends()) {
            slot.note_lease(end);
        }
    }

    /// Releases the lease.
    async fn give_back(self) {
        let _ = self.acquisition.give_back().await;
    }
}

/// A caller that sends its claim to the backend.
struct Contender<'a> {
    engine: &'a Engine,
    upkeep: Upkeep,
    acquisition: Box<Acquisition>,
    /// The slot of the local queue. `None` if the mode has no local queue, or if the caller has
    /// left that queue behind a caller that is not polled.
    slot: Option<Slot>,
    /// The entry in the queue of the backend, which the keeper keeps from the first sleep on.
    kept_entry: Option<KeptEntry>,
}

impl Contender<'_> {
    /// Sends the claim until the lease is granted or handed over. The local queue has noted already
    /// that the slot is used for a request.
    async fn acquire(&mut self, waiting: &mut Waiting<'_>) -> Result<(), Error> {
        if self.acquisition.has_lease() {
            // The last holder has passed the lease to this caller.
            return Ok(());
        }
        loop {
            let answer = self.send(waiting.strategy, waiting.deadline).await;
            let wake = match &answer {
                // A lease that was read too late has ended by itself.
                Ok(Claimed::Granted(_)) if self.acquisition.has_lease() => {
                    self.begin_streak();
                    return Ok(());
                }
                Ok(Claimed::Occupied(occupied)) => self.keep_entry(waiting, occupied.remaining),
                Err(error) if error.kind() == BackendErrorKind::Foreign => {
                    return Err(error.clone().into());
                }
                // The request failed, or the caller has read the grant too late.
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
                        self.begin_streak();
                        return Ok(());
                    }
                }
                Woken::TimeUp => {
                    return Err(match answer {
                        Err(error) => error.into(),
                        Ok(_) => waiting.not_acquired(self.acquisition.claim()),
                    });
                }
            }
            if let Some(slot) = &self.slot {
                slot.note_request();
            }
        }
    }

    /// Sends the claim once. Waits for the permit to send until `deadline` at most.
    async fn send(
        &mut self,
        strategy: &dyn RetryStrategy,
        deadline: Instant,
    ) -> Result<Claimed, BackendError> {
        self.acquisition.listen();
        let engine = self.engine;
        let limit = try_limit(strategy, engine.backend.as_ref());
        let shard = engine.backend.shard(&self.acquisition.claim().name);
        let owner = self.acquisition.claim().owner;
        let requests = &engine.requests;
        let answer =
            requests.acquire(shard, &mut self.acquisition, &mut self.slot, limit, deadline).await;
        if self.acquisition.claim().owner != owner {
            // The task of the request has ended with its runtime, and with the acquisition. The
            // queue entry is of the old owner.
            self.kept_entry = None;
        }
        if let Err(error) = &answer {
            self.restart_after(error);
        }
        answer
    }

    /// Lets the keeper keep the queue entry of a claim that waits. Returns when to send the claim
    /// again if no push comes, or `None` if the wait is over.
    fn keep_entry(&mut self, waiting: &mut Waiting<'_>, remaining: Duration) -> Option<Instant> {
        let wake = waiting.wakes_after_answer(&mut self.acquisition, remaining)?;
        let changes = self.acquisition.listen();
        let inbox = changes.inbox().clone();
        let claim = self.acquisition.claim();
        if claim.waits {
            self.kept_entry = Some(self.engine.keeper.keep(claim, inbox, remaining));
        }
        Some(wake)
    }

    async fn sleep(&mut self, waiting: &mut Waiting<'_>, wake: Instant) -> Woken {
        if let Some(slot) = &self.slot {
            let changes = self.acquisition.listen();
            slot.note_sleep(wake, changes.inbox().clone());
        }
        // In a box, so that an acquisition that need not wait stays small.
        Box::pin(waiting.sleep(&mut self.acquisition, wake)).await
    }

    /// Returns whether this push hands the lease over.
    fn is_handed_over(&mut self, change: &Change) -> bool {
        let Change::Granted(handover) = change else { return false };
        // A caller with a fixed lease needs the full lease, and refuses the short one.
        self.upkeep.renew_every.is_some() && self.acquisition.accept(handover)
    }

    /// Begins a streak of passes with the lease that the backend has granted.
    fn begin_streak(&mut self) {
        if let Some(slot) = &mut self.slot {
            slot.begin_streak(self.acquisition.take_changes());
        }
    }

    /// Goes on under a fresh owner in two cases: too few replicas confirmed a grant, or a permit
    /// with an id may be granted late. Such a permit has no guard that would release the late
    /// grant.
    fn restart_after(&mut self, error: &BackendError) {
        let is_permit = matches!(self.acquisition.claim().mode, Mode::Permit { .. });
        let has_id = is_permit && self.upkeep.renew_every.is_none();
        let is_late = has_id && error.kind() == BackendErrorKind::Unknown;
        if is_late || error.kind() == BackendErrorKind::Unreplicated {
            self.kept_entry = None;
            self.acquisition.restart(Handle::current());
        }
    }
}
