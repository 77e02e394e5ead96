//! Several leases at once, all or none.
//!
//! Nothing is held while waiting: a try that does not get all has given back what it got by the time that it
//! is answered, and what is waited for is the one lease that stood in the way. So two who want the same
//! leases do not wait for each other. (One that was in the way before may be kept for who was called, for
//! [`CALL_LIFE`].)

use std::{collections::BTreeSet, mem, sync::Arc, time::Duration};

use futures_util::future::join_all;
use tokio::{
    runtime::Handle,
    time::{Instant, sleep_until},
};
use tracing::debug;

use super::{CALL_LIFE, Claim, Engine, Grant, Held, Owner, RetryStrategy, Turn, Upkeep, Waiting};
use crate::{
    backend::{ANSWER_LIMIT, AcquiredAll, answered_by},
    error::{BackendError, BackendErrorKind, Error, ErrorKind},
    key::Name,
};

impl Engine {
    /// Acquires leases of different names, all or none, in the order of the claims, which is the same
    /// everywhere.
    ///
    /// # Cancel safety
    ///
    /// When the future is dropped, whatever it may have acquired is released by tasks of the engine's.
    pub(crate) async fn acquire_all(
        self: &Arc<Self>,
        claims: Vec<Claim>,
        upkeep: Upkeep,
        strategy: &dyn RetryStrategy,
        limit: Duration,
    ) -> Result<Vec<Held>, Error> {
        let Some(first) = claims.first() else { return Ok(Vec::new()) };
        let shut_down = || Error::new(ErrorKind::ShutDown, "the locks are shut down");
        let mut waiting = Waiting::new(self.clone(), first, strategy, limit);
        let mut pending = Pending::new(self.clone(), claims);
        // When it leaves the queues of those who are no longer in the way.
        let mut leaves = None;
        loop {
            if self.stop.is_cancelled() {
                return Err(shut_down());
            }
            waiting.forget_pushes();
            // Why it would be over, if the wait ends now.
            let (remaining, why) = match pending.attempt(strategy.try_limit()).await {
                Ok((AcquiredAll::Granted(grants), sent)) => {
                    return Ok(pending.granted(&grants, upkeep, sent));
                }
                Ok((AcquiredAll::Held(at, occupied), _)) => {
                    pending.placed.insert(at);
                    let in_the_way = pending.claims.get(at);
                    if let Some(claim) = in_the_way {
                        waiting.turn_to(claim);
                    }
                    let why = not_acquired(in_the_way.map(|claim| &claim.name));
                    (Some(occupied.remaining), why)
                }
                Err(error) if error.kind() == BackendErrorKind::Foreign => return Err(error.into()),
                Err(error) => {
                    pending.contend_anew();
                    (None, error.into())
                }
            };
            // (Not counted anew with each turn, for they may come more often.)
            let until = *leaves.get_or_insert_with(|| Instant::now() + CALL_LIFE);
            let turn = loop {
                tokio::select! {
                    turn = waiting.after(remaining) => break turn,
                    () = self.stop.cancelled() => return Err(shut_down()),
                    () = sleep_until(until), if pending.placed.len() > 1 => {
                        leaves = None;
                        if pending.leave_others(waiting.name()).await {
                            break Turn::Again;
                        }
                    }
                }
            };
            if pending.placed.len() < 2 {
                leaves = None;
            }
            if let Turn::TimeUp = turn {
                return Err(why);
            }
        }
    }
}

fn not_acquired(in_the_way: Option<&Name>) -> Error {
    let name = in_the_way.map_or("one", |name| name.prefix().trim_end_matches(':'));
    let why = format!("the locks were not acquired before the wait ended: {name} was held");
    Error::new(ErrorKind::NotAcquired, why)
}

/// An acquisition under way. Dropped before its outcome is known, it undoes itself.
struct Pending {
    engine: Arc<Engine>,
    claims: Vec<Claim>,
    runtime: Handle,
    /// A try is under way.
    trying: bool,
    /// A try with these tokens ended without an answer, and may yet be granted.
    doubtful: bool,
    /// Of which there is a place in the queue of who is in the way.
    placed: BTreeSet<usize>,
}

impl Pending {
    fn new(engine: Arc<Engine>, claims: Vec<Claim>) -> Self {
        Self {
            engine,
            claims,
            runtime: Handle::current(),
            trying: false,
            doubtful: false,
            placed: BTreeSet::new(),
        }
    }

    /// One try, with the answer and the time at which it was sent. It has `limit` for each claim, for a
    /// backend may have to ask for one after another.
    async fn attempt(&mut self, limit: Duration) -> Result<(AcquiredAll, Instant), BackendError> {
        self.trying = true;
        let sent = Instant::now();
        let limit = limit.saturating_mul(u32::try_from(self.claims.len()).unwrap_or(u32::MAX));
        let backend = self.engine.backend().as_ref();
        let answer = match answered_by(backend, limit, backend.acquire_all(&self.claims)).await {
            Ok(AcquiredAll::Granted(grants)) if grants.len() != self.claims.len() => {
                let why = "not one grant for each claim";
                Err(BackendError::new(BackendErrorKind::Unknown, why))
            }
            answer => answer,
        };
        self.trying = false;
        self.doubtful |= answer.as_ref().is_err_and(BackendError::may_have_happened);
        answer.map(|answer| (answer, sent))
    }

    /// The last try, sent at `sent`, was granted.
    fn granted(mut self, grants: &[Grant], upkeep: Upkeep, sent: Instant) -> Vec<Held> {
        self.doubtful = false;
        let held = mem::take(&mut self.claims).into_iter().zip(grants).map(|(claim, grant)| {
            let watch = self.engine.watchdog.watch(claim, upkeep, self.runtime.clone(), sent);
            Held::new(self.engine.clone(), grant.fence(), watch, self.runtime.clone())
        });
        held.collect()
    }

    /// Leaves the queues of all but the one who is in the way. For who was called in one of them the lease is kept for
    /// a moment; that is over, and the next who waits there is to be called. Says whether to begin anew, for it is not
    /// known whether they were left.
    async fn leave_others(&mut self, in_the_way: &Name) -> bool {
        let backend = self.engine.backend().as_ref();
        let placed = self.placed.iter().filter_map(|at| self.claims.get(*at));
        let others = placed.filter(|claim| claim.name != *in_the_way);
        let left = others.map(|claim| answered_by(backend, ANSWER_LIMIT, backend.release(claim)));
        let left = join_all(left).await;
        self.doubtful |= left.iter().any(Result::is_err);
        let is_in_the_way = |claim: &Claim| claim.name == *in_the_way;
        self.placed.retain(|at| self.claims.get(*at).is_some_and(is_in_the_way));
        self.contend_anew()
    }

    /// Of a try that was not answered something may be held, or on its way to be given back: the next one has
    /// tokens of its own, for a late release must not end what it is granted. Says whether that is so.
    fn contend_anew(&mut self) -> bool {
        let doubtful = mem::take(&mut self.doubtful);
        if doubtful {
            self.placed.clear();
            for claim in &mut self.claims {
                let fresh = Claim { owner: Owner::fresh(), ..claim.clone() };
                self.engine.undo(mem::replace(claim, fresh), true, &self.runtime);
            }
        }
        doubtful
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        let doubtful = self.trying || self.doubtful;
        if doubtful {
            debug!("an acquisition of several leases with an unknown outcome is undone");
        }
        for (at, claim) in mem::take(&mut self.claims).into_iter().enumerate() {
            if doubtful || (claim.waits && self.placed.contains(&at)) {
                self.engine.undo(claim, doubtful, &self.runtime);
            }
        }
    }
}
