//! Several leases at once, all or none.
//!
//! Nothing is held during the wait. A request that is not granted everything has given back what it
//! got by the time of its answer. The caller then waits for the one lease in the way. So two
//! callers that want the same leases do not wait for each other. The backend may keep a lease that
//! was in the way before for a caller whose turn it is, for [`TURN_LIFE`].

use std::{future::pending, sync::Arc, time::Duration};

use futures_util::future::join_all;
use tokio::time::{Instant, sleep_until};

use super::{
    Acquisition, Engine, LeaseGuard, RetryStrategy, Upkeep, WaitedFor, Waiting,
    acquire::{Answer, Attempt, drive},
    acquisition::ask_all,
    try_limit,
};
use crate::{
    backend::{AcquiredAll, Change, Claim, Grant, Owner, TURN_LIFE},
    error::{BackendError, BackendErrorKind, Error},
    time::after,
};

impl Engine {
    /// Acquires leases of different names, all or none. The order of the claims must be the same
    /// everywhere.
    ///
    /// # Cancel safety
    ///
    /// When the future is dropped or no longer polled, leases that it may have acquired are
    /// released in tasks.
    pub(crate) async fn acquire_all(
        self: &Arc<Self>,
        claims: Vec<Claim>,
        upkeep: Upkeep,
        strategy: Arc<dyn RetryStrategy>,
        limit: Duration,
    ) -> Result<Vec<LeaseGuard>, Error> {
        let deadline = after(Instant::now(), limit);
        let acquired = self.attendance().run(|| {
            let (engine, strategy) = (self.clone(), strategy.clone());
            let claims = claims.iter().map(|one| Claim { owner: Owner::fresh(), ..one.clone() });
            let claims = claims.collect();
            async move {
                engine.acquire_all_until(claims, upkeep, strategy.as_ref(), (limit, deadline)).await
            }
        });
        self.counted(acquired.await)
    }

    async fn acquire_all_until(
        self: &Arc<Self>,
        claims: Vec<Claim>,
        upkeep: Upkeep,
        strategy: &dyn RetryStrategy,
        (limit, deadline): (Duration, Instant),
    ) -> Result<Vec<LeaseGuard>, Error> {
        let Some(first) = claims.first() else { return Ok(Vec::new()) };
        let mut waiting =
            Waiting::new(&self.janitor, WaitedFor::Claim(first.clone()), strategy, limit);
        waiting.end_at(deadline);
        waiting.keep_entries(&self.keeper);
        let acquisitions = claims.into_iter();
        let acquisitions =
            acquisitions.map(|claim| Acquisition::new(self.janitor.clone(), claim)).collect();
        let mut attempt = SeveralAttempt {
            engine: self,
            acquisitions,
            upkeep,
            try_limit: try_limit(strategy, self.backend().as_ref()),
            begun: Instant::now(),
            leave_at: None,
            in_the_way: 0,
            failure: None,
        };
        drive(&mut attempt, &mut waiting).await
    }
}

/// The acquisition of several leases.
struct SeveralAttempt<'a> {
    engine: &'a Arc<Engine>,
    acquisitions: Vec<Acquisition>,
    upkeep: Upkeep,
    try_limit: Duration,
    begun: Instant,
    /// When it leaves the queues of the holders that are no longer in the way. It is not counted
    /// anew with each wait, since there may be many.
    leave_at: Option<Instant>,
    /// Which lease was in the way last.
    in_the_way: usize,
    /// Why the last request failed, if it did.
    failure: Option<BackendError>,
}

type LeasesOutcome = Result<Vec<LeaseGuard>, Error>;

impl Attempt for SeveralAttempt<'_> {
    type Outcome = LeasesOutcome;

    async fn ask(&mut self, waiting: &mut Waiting<'_>) -> Answer<LeasesOutcome> {
        if self.engine.janitor.is_stopped() {
            return Answer::Settled(Err(Error::shut_down()));
        }
        waiting.listening().forget_pushes();
        let janitor = &self.engine.janitor;
        let waited = self.begun.elapsed();
        let answer = ask_all(&mut self.acquisitions, janitor, self.try_limit, waited).await;
        let asked = match answer {
            Ok((AcquiredAll::Granted(grants), sent)) => {
                return Answer::Settled(Ok(self.granted(&grants, sent)));
            }
            Ok((AcquiredAll::Occupied(at, occupied), _)) => {
                if let Some(one) = self.acquisitions.get(at) {
                    waiting.turn_to(one.claim());
                }
                self.in_the_way = at;
                self.failure = None;
                Answer::Occupied(occupied.remaining)
            }
            Err(error) if error.kind() == BackendErrorKind::Foreign => {
                return Answer::Settled(Err(error.into()));
            }
            Err(error) => {
                self.failed(&error);
                self.failure = Some(error);
                Answer::Failed
            }
        };
        self.leave_at = match self.queued() > 1 {
            true => self.leave_at.or_else(|| Some(Instant::now() + TURN_LIFE)),
            false => None,
        };
        asked
    }

    fn pushed(&mut self, _: Change, _: &mut Waiting<'_>) -> Option<LeasesOutcome> {
        None
    }

    async fn interrupted(&self) -> Option<LeasesOutcome> {
        let leave = async {
            match self.leave_at {
                Some(at) => sleep_until(at).await,
                None => pending().await,
            }
        };
        tokio::select! {
            () = self.engine.janitor.stopped() => Some(Err(Error::shut_down())),
            () = leave => None,
        }
    }

    /// Leaves all queues but that of the lease in the way. A lease is kept for a moment for the
    /// caller whose turn it is. That moment is over, and it is the turn of the next waiter.
    async fn step_aside(&mut self, waiting: &mut Waiting<'_>) -> bool {
        self.leave_at = None;
        let others = self
            .acquisitions
            .iter_mut()
            .filter(|one| one.may_be_queued() && one.claim().name != *waiting.name());
        let left = join_all(others.map(Acquisition::leave_queue)).await;
        // A release without an answer may end the lease late, so all are asked for again.
        left.contains(&false)
    }

    fn time_up(&mut self, waiting: &Waiting<'_>) -> Option<LeasesOutcome> {
        let failure = self.failure.take().map(Error::from);
        Some(Err(failure.unwrap_or_else(|| {
            let what = self.acquisitions.get(self.in_the_way).map(|one| one.claim().what());
            Error::not_acquired(&what.unwrap_or_default(), waiting.limit_reached())
        })))
    }
}

impl SeveralAttempt<'_> {
    fn queued(&self) -> usize {
        self.acquisitions.iter().filter(|one| one.may_be_queued()).count()
    }

    /// Takes fresh owners where some of the leases may be held, or are on their way to be released.
    fn failed(&mut self, error: &BackendError) {
        if error.may_have_happened() {
            self.acquisitions.iter_mut().for_each(Acquisition::restart);
        }
    }

    fn granted(&mut self, grants: &[Grant], sent: Instant) -> Vec<LeaseGuard> {
        let each = self.acquisitions.iter_mut().zip(grants);
        let granted = each.map(|(one, grant)| one.settle(self.upkeep, grant.fence(), sent, None));
        granted.map(|granted| self.engine.hold(granted)).collect()
    }
}
