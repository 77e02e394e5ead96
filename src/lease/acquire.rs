//! The loop of an acquisition: ask once, wait while others are in the way, and ask again.

use std::{
    panic::AssertUnwindSafe,
    sync::{Arc, Mutex},
    time::Duration,
};

use futures_util::{FutureExt, future::join_all};
use tokio::{
    runtime::Handle,
    sync::{Notify, Semaphore},
    task::yield_now,
    time::{Instant, sleep, timeout},
};
use tokio_util::task::AbortOnDropHandle;
use tracing::{Instrument, Span, debug};

use super::{
    Acquisition, Engine, Granted, LeaseGuard, RetryStrategy, Upkeep, Waiting, Woken,
    queue::{Slot, SlotNotice},
    run_until, try_limit,
};
use crate::{
    backend::{Change, Claim, Claimed, Mode, Owner},
    error::{BackendError, BackendErrorKind, Error, ErrorKind},
    key::Key,
    spans,
    sync::lock,
};

/// How long a process that has had its turn waits before it asks again, so that the next one comes
/// first.
const GIVE_WAY: Duration = Duration::from_millis(1);

/// The acquisitions that may be under way at one shard: enough to keep a connection busy, and few
/// enough for an answer in time.
const TURNS: usize = 128;

/// After how long a caller asks without a turn: a server that hangs may keep all of them. A burst
/// of 20,000 callers takes less.
const LONGEST_WAIT_FOR_TURN: Duration = Duration::from_secs(2);

/// How long an outcome waits for its caller, and longer while the runtime is busy.
const PATIENCE: Duration = Duration::from_millis(30);
const BUSY: Duration = Duration::from_millis(5);
/// The time for the release of what was dropped, which an acquisition that begins anew would meet.
const UNDO: Duration = Duration::from_millis(10);

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

type Leased = Result<Vec<LeaseGuard>, Error>;

impl Engine {
    /// Acquires leases one after another, within one limit, waiting while other holders are in the
    /// way. If one is not acquired, those before it are released. If one is lost meanwhile, all are
    /// acquired anew. `what` is for logs.
    ///
    /// # Cancel safety
    ///
    /// When the future is dropped or no longer polled, leases that it may have acquired are
    /// released in a task.
    pub(crate) async fn acquire(self: &Arc<Self>, what: &Key, terms: AcquireTerms) -> Leased {
        let (begun, span) = (Instant::now(), spans::lock(what));
        let is_told = self.meter.is_published() && !terms.stands_by;
        let _wait = is_told.then(|| self.waits.begin(begun));
        let outcome = self.attended(begun, Arc::new(terms)).instrument(span.clone()).await;
        let error = outcome.as_ref().err();
        let result = if error.is_none() { "acquired" } else { "error" };
        spans::ended(&span, result, error);
        self.meter.ended("bellwether_lock_wait_seconds", begun, result);
        match error.map(Error::kind) {
            None => {}
            Some(ErrorKind::NotAcquired) => self.counters.not_acquired.add(),
            Some(_) => self.counters.failed.add(),
        }
        outcome
    }

    /// Acquires for a caller, which may keep the future and not poll it, such as an arm of a loop
    /// around `select!`. It must not hold other callers up.
    ///
    /// An acquisition that does not end at once goes on in a task, and the task offers the outcome
    /// to the caller. If the caller does not take it in time, the task drops it, and so releases
    /// it: the next caller gets the lock. A caller that polls again later begins anew, at the end
    /// of the queue.
    async fn attended(self: &Arc<Self>, since: Instant, terms: Arc<AcquireTerms>) -> Leased {
        loop {
            let acquiring = self.clone().acquire_in_order(since, terms.clone());
            let acquiring = self.janitor.tasks.track_future(acquiring).instrument(Span::current());
            // The retry strategy may be code of the user.
            let panicked = |_| Err(Error::new(ErrorKind::Panicked, "the retry strategy panicked"));
            let caught = AssertUnwindSafe(acquiring).catch_unwind();
            let mut acquiring = Box::pin(caught.map(move |it| it.unwrap_or_else(panicked)));
            if let Some(outcome) = (&mut acquiring).now_or_never() {
                return outcome;
            }
            let offer = Arc::<Offer>::default();
            let mut task = AbortOnDropHandle::new(tokio::spawn(offer.clone().make(acquiring)));
            tokio::select! {
                biased;
                () = offer.made.notified() => {}
                _ = &mut task => {}
            }
            if let Some(outcome) = offer.take() {
                return outcome;
            }
            sleep(UNDO).await;
        }
    }

    async fn acquire_in_order(self: Arc<Self>, since: Instant, terms: Arc<AcquireTerms>) -> Leased {
        loop {
            let mut held = Vec::with_capacity(terms.claims.len());
            let outcome: Result<(), Error> = async {
                for claim in &terms.claims {
                    held.push(self.acquire_since(since, claim, &terms).await?);
                }
                Ok(())
            }
            .await;
            // The holder of a single lease learns of its loss by itself.
            let is_late = held.len() > 1 && held.iter().any(|lease| lease.is_lost());
            if outcome.is_ok() && !is_late {
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
        let mut waiting = Waiting::new(terms.retry.as_ref(), terms.limit, since);
        if !claim.waits {
            waiting.try_once();
        }
        let upkeep = terms.upkeep;
        let acquisition = || {
            let claim = Claim { owner: Owner::fresh(), ..claim.clone() };
            Box::new(Acquisition::new(&self.janitor, claim))
        };
        let acquiring = async {
            let (acquisition, slot) = match claim.mode {
                Mode::Exclusive => match self.queue_up(acquisition, upkeep, &mut waiting).await {
                    Some(SlotNotice::Passed(lease)) => return Ok(lease),
                    Some(SlotNotice::Contend(acquisition, slot)) => (acquisition, Some(slot)),
                    None => return Err(waiting.not_acquired(claim)),
                },
                // These are granted in order by their queue at the backend.
                _ => (acquisition(), None),
            };
            Contender { engine: self, acquisition, upkeep, slot }.acquire(&mut waiting).await
        };
        let held = run_until(self.janitor.stop.cancelled(), acquiring).await;
        let held = held.unwrap_or_else(|| Err(Error::shut_down()))?;
        self.meter.woken(waiting.pushed_at, "acquired");
        Ok(held)
    }

    /// Takes the slot of the local queue. Returns `None` if the wait for it is over first.
    async fn queue_up(
        self: &Arc<Self>,
        acquisition: impl Fn() -> Box<Acquisition>,
        upkeep: Upkeep,
        waiting: &mut Waiting<'_>,
    ) -> Option<SlotNotice> {
        loop {
            let mut notices = match self.enter_queue(acquisition(), upkeep) {
                Ok(notice) => return Some(notice),
                Err(notices) => notices,
            };
            // An error: the holder that was passing the lease on is gone with its runtime.
            if let Ok(notice) = Box::pin(waiting.bounded(&mut notices)).await? {
                if matches!(&notice, SlotNotice::Contend(_, slot) if slot.changes.is_some()) {
                    Box::pin(sleep(GIVE_WAY)).await;
                }
                return Some(notice);
            }
        }
    }
}

struct Contender<'a> {
    engine: &'a Arc<Engine>,
    acquisition: Box<Acquisition>,
    upkeep: Upkeep,
    /// The slot of the local queue, where the mode has one.
    slot: Option<Slot>,
}

impl Contender<'_> {
    /// Asks until the lease is granted or handed over.
    async fn acquire(mut self, waiting: &mut Waiting<'_>) -> Result<LeaseGuard, Error> {
        let try_limit = try_limit(waiting.strategy, self.engine.backend.as_ref());
        loop {
            let (remaining, failure) = match self.ask(try_limit, waiting.left()).await {
                Ok((Claimed::Granted(grant), sent)) => {
                    return Ok(self.hold(grant.fence(), sent, None));
                }
                Ok((Claimed::Occupied(occupied), _)) => (Some(occupied.remaining), None),
                // No lock is answered in another way.
                Ok(_) => (None, None),
                Err(error) if error.kind() == BackendErrorKind::Foreign => return Err(error.into()),
                Err(error) => {
                    self.restart_after(&error);
                    (None, Some(error))
                }
            };
            // In a box, so that an acquisition that need not wait stays small.
            let woken = Box::pin(waiting.after(self.engine, &mut self.acquisition, remaining));
            match woken.await {
                Woken::Again => {}
                Woken::Pushed(change) => {
                    if let Some(held) = self.handed_over(&change) {
                        return Ok(held);
                    }
                }
                Woken::TimeUp => {
                    let why = || waiting.not_acquired(&self.acquisition.release.claim);
                    return Err(failure.map_or_else(why, Error::from));
                }
            }
        }
    }

    /// Asks once, in a turn if there is one within the time that is `left`.
    async fn ask(
        &mut self,
        limit: Duration,
        left: Duration,
    ) -> Result<(Claimed, Instant), BackendError> {
        let shard = self.engine.backend.shard(&self.acquisition.release.claim.name);
        let turns = self.engine.turns.of(shard);
        let turn = turns.get_or_init(|| Semaphore::new(TURNS)).acquire();
        let _turn = timeout(LONGEST_WAIT_FOR_TURN.min(left), turn).await;
        self.acquisition.listen();
        self.acquisition.ask(limit, |backend, claim| backend.acquire(claim)).await
    }

    /// Returns the lease if this push hands it over.
    fn handed_over(&mut self, change: &Change) -> Option<LeaseGuard> {
        let Change::Granted(handover) = change else { return None };
        // A lease that is never renewed asks, so that it does not begin with the short time.
        self.upkeep.renew_every?;
        let until = self.acquisition.trusts(handover)?;
        let is_fenced = self.acquisition.release.claim.mode.is_fenced();
        let fence = if is_fenced { handover.fence } else { 0 };
        Some(self.hold(fence, Instant::now(), Some(until)))
    }

    /// Holds what was granted. The slot of the local queue moves on with the lease.
    fn hold(&mut self, fence: u64, since: Instant, until: Option<Instant>) -> LeaseGuard {
        let granted = Granted { upkeep: self.upkeep, fence, since, until };
        let mut slot = self.slot.take();
        if let Some(slot) = &mut slot {
            slot.begin(self.acquisition.take_changes());
        }
        self.engine.hold(&mut self.acquisition, granted, slot)
    }

    /// Goes on under a fresh owner if too few replicas confirmed a grant, or if a permit may be
    /// granted late. A permit leaves with its id, and no guard would undo that.
    fn restart_after(&mut self, error: &BackendError) {
        let is_permit = matches!(self.acquisition.release.claim.mode, Mode::Permit { .. });
        let has_id = is_permit && self.upkeep.renew_every.is_none();
        let is_late = has_id && error.kind() == BackendErrorKind::Unknown;
        if is_late || error.kind() == BackendErrorKind::Unreplicated {
            self.acquisition.restart();
        }
    }
}

/// An outcome that waits for its caller.
#[derive(Default)]
struct Offer {
    outcome: Mutex<Option<Leased>>,
    made: Notify,
}

impl Offer {
    async fn make(self: Arc<Self>, acquiring: impl Future<Output = Leased>) {
        let outcome = acquiring.await;
        *lock(&self.outcome) = Some(outcome);
        self.made.notify_one();
        sleep(PATIENCE).await;
        // A busy runtime may not have polled the caller yet. It polls the caller before this task.
        while Handle::current().metrics().global_queue_depth() > 0 {
            sleep(BUSY).await;
        }
        for _ in 0..3 {
            yield_now().await;
        }
        if self.take().is_some() {
            debug!("an acquisition that is not polled is undone");
        }
    }

    fn take(&self) -> Option<Leased> {
        lock(&self.outcome).take()
    }
}
