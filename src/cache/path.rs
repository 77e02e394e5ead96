//! The leader's way: look, claim, [load and commit](super::commit); or wait for the process that has the lease.
//!
//! Whatever the backend does, the way ends with an outcome. Where the backend fails, the leader loads
//! without a lease, for this process alone, and stores nothing.

use std::{
    panic::AssertUnwindSafe,
    sync::{Arc, OnceLock},
    time::Duration,
};

use futures_util::FutureExt;
use tokio::{sync::SemaphorePermit, time::Instant};
use tracing::debug;

use super::{
    Decision, Inner, Lead, Source,
    breaker::Answered,
    load::{self, Produced},
    request::Options,
    shard::Shard,
};
use crate::{
    error::{BackendError, BackendErrorKind, Error, ErrorKind},
    flight::{Epoch, Leader, Notice},
    key::Name,
    lease::LeaseGuard,
};

/// What a flight lands with.
#[derive(Clone)]
pub(super) enum Outcome<V> {
    Value(V, Source),
    /// Everyone for himself.
    Uncacheable,
    Failed(Error),
    /// For those who joined late: the backend did not say for so long what they may have, so load without it.
    Unanswered(Duration),
}

/// What to do while the verdict stands that what a key loads cannot be shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OnUncacheable {
    /// The callers of this process share one load.
    Coalesce,
    /// Each caller loads for itself.
    #[cfg_attr(not(feature = "http"), allow(dead_code))]
    Pass,
}

/// How long the second try of a claim or a commit may take, after the first was not answered: a new
/// connection and a round trip; and what the first left of its own time, for one that breaks ends early. It
/// ends early when nobody else is answered either.
const SECOND_TRY: Duration = Duration::from_millis(150);

/// The limit of the second try, when the first began at `first`.
pub(super) fn second_try(first: Instant, limit: Duration) -> Duration {
    limit.saturating_sub(first.elapsed()).saturating_add(SECOND_TRY)
}

/// One leader on its way.
pub(super) struct Path<V: Clone> {
    pub(super) inner: Arc<Inner<V>>,
    pub(super) name: Name,
    /// What of the backend keeps the name.
    pub(super) shard: Arc<Shard>,
    pub(super) options: Options,
    pub(super) leader: Leader<Outcome<V>>,
    /// What those are served who joined too late for the outcome, if the backend cannot be asked for it.
    pub(super) for_late: OnceLock<Outcome<V>>,
    /// Do not ask the backend: those who wait have waited for it already.
    alone: bool,
}

/// An outcome, and the epoch that it belongs to.
pub(super) type Landing<V> = (Outcome<V>, Epoch);

/// Where the way goes on.
pub(super) enum Step<V> {
    /// The flight has its outcome.
    Land(Landing<V>),
    /// The lease is ours.
    Load(LeaseGuard, Epoch),
    /// Load without a lease.
    Alone,
}

impl<V: Clone + Send + Sync + 'static> Path<V> {
    pub(super) fn new(
        inner: Arc<Inner<V>>,
        name: Name,
        options: Options,
        leader: Leader<Outcome<V>>,
        alone: bool,
    ) -> Self {
        let shard = inner.shards.of(inner.store.shard(&name));
        Self { inner, name, shard, options, leader, for_late: OnceLock::new(), alone }
    }

    /// Goes the way to its end.
    pub(super) async fn run<F, Fut>(self, work: F)
    where
        F: FnOnce(Lead) -> Fut,
        Fut: Future<Output = Result<Produced<V>, Error>>,
    {
        let way = AssertUnwindSafe(self.way(work)).catch_unwind();
        // A codec may panic, too; for everyone who waits that is an outcome like any other.
        let landing = way
            .await
            .unwrap_or_else(|panic| (Outcome::Failed(load::panicked(panic.as_ref())), Epoch::END));
        let (outcome, before) = landing;
        let Some(late) = self.leader.land(outcome, before) else { return };
        if let Some(outcome) = self.for_late.into_inner() {
            return late.land(Some(outcome));
        }
        let begun = Instant::now();
        // Were they only sent to join anew, each would wait for another time-out.
        late.land(match self.inner.ask(&self.shard, &self.name).await {
            None | Some(Err(_)) => Some(Outcome::Unanswered(begun.elapsed())),
            Some(Ok(Decision::Fresh(value))) => Some(Outcome::Value(value, Source::Hit)),
            Some(Ok(_)) => None,
        });
    }

    async fn way<F, Fut>(&self, work: F) -> Landing<V>
    where
        F: FnOnce(Lead) -> Fut,
        Fut: Future<Output = Result<Produced<V>, Error>>,
    {
        let looked = match self.alone {
            true => Err(Step::Alone),
            false => self.look().await,
        };
        match looked {
            Err(Step::Land(landing)) => landing,
            // In a box of its own, so that the way of a hit stays small.
            looked => Box::pin(self.unless_cancelled(self.beyond(looked, work))).await,
        }
    }

    /// The rest of the way, unless it is cancelled. Dropping it releases what it holds and undoes what it
    /// may hold.
    async fn unless_cancelled(&self, rest: impl Future<Output = Landing<V>>) -> Landing<V> {
        let (kind, why) = tokio::select! {
            biased;
            landing = rest => return landing,
            () = self.leader.told(Notice::Unwanted) => {
                (ErrorKind::Cancelled, "no caller waited for the load any more")
            }
            () = self.inner.abort.cancelled() => (ErrorKind::ShutDown, "the cache was shut down"),
        };
        debug!(why, "load cancelled");
        (Outcome::Failed(Error::new(kind, why)), Epoch::END)
    }

    /// The way where the look did not end it.
    async fn beyond<F, Fut>(&self, looked: Result<u64, Step<V>>, work: F) -> Landing<V>
    where
        F: FnOnce(Lead) -> Fut,
        Fut: Future<Output = Result<Produced<V>, Error>>,
    {
        self.leader.own_task().await;
        let mut permit = None;
        let step = match looked {
            Ok(seen) => self.claim(seen, &mut permit).await,
            Err(step) => step,
        };
        match step {
            Step::Land(landing) => landing,
            Step::Load(held, epoch) => self.load(work, held, epoch).await,
            Step::Alone => match self.permit(&mut permit).await {
                Ok(()) => self.alone(work).await,
                Err(error) => (Outcome::Failed(error), Epoch::END),
            },
        }
    }

    /// Looks into the backend; the fence of what it saw, if that is not the end of the way.
    async fn look(&self) -> Result<u64, Step<V>> {
        let _turn = match self.shard.turn_at_once() {
            Some(turn) => turn,
            None => {
                // A caller who polls it may stop doing so, and in the queue he would stand in everyone's way.
                self.leader.own_task().await;
                self.shard.turn().await
            }
        };
        let epoch = self.leader.begin_epoch();
        let asked = self.inner.ask(&self.shard, &self.name);
        match self.leader.unless_told(Notice::Hurry, asked).await.flatten() {
            Some(Ok(decision)) => self.serve(decision, Source::Hit, epoch),
            None | Some(Err(_)) => Err(Step::Alone),
        }
    }

    /// Serves what an entry is good for; the fence to claim with, if it is not good enough.
    pub(super) fn serve(
        &self,
        decision: Decision<V>,
        source: Source,
        epoch: Epoch,
    ) -> Result<u64, Step<V>> {
        match decision {
            Decision::Fresh(value) => Err(Step::Land((Outcome::Value(value, source), epoch))),
            Decision::Uncacheable => Err(match self.options.on_uncacheable {
                OnUncacheable::Coalesce => Step::Alone,
                OnUncacheable::Pass => Step::Land((Outcome::Uncacheable, Epoch::END)),
            }),
            Decision::Miss { seen } => Ok(seen),
        }
    }

    /// There is no place to load; but another process may have loaded meanwhile.
    pub(super) async fn crowded_out(&self, error: Error) -> Landing<V> {
        let _turn = self.shard.turn().await;
        let epoch = self.leader.begin_epoch();
        match self.inner.ask(&self.shard, &self.name).await {
            Some(Ok(Decision::Fresh(value))) => (Outcome::Value(value, Source::HandedOver), epoch),
            _ => (Outcome::Failed(error), Epoch::END),
        }
    }

    /// A place among the loads of this process. Loads that a loader waits for need none, or they could
    /// wait for each other.
    pub(super) async fn permit<'a>(
        &'a self,
        permit: &mut Option<SemaphorePermit<'a>>,
    ) -> Result<(), Error> {
        if permit.is_some() {
            return Ok(());
        }
        tokio::select! {
            biased;
            () = self.leader.told(Notice::NeededByLoader) => Ok(()),
            place = self.inner.place(self.options.wait_limit) => {
                *permit = Some(place?);
                Ok(())
            }
        }
    }
}

pub(super) fn silence() -> BackendError {
    BackendError::new(BackendErrorKind::Unknown, "the backend answers nobody")
}

impl<V: Clone + Send + Sync + 'static> Inner<V> {
    /// What stands under a name; nothing, if the backend is not to be asked now.
    async fn ask(&self, shard: &Shard, name: &Name) -> Option<Result<Decision<V>, BackendError>> {
        if !shard.breaker.admits() {
            return None;
        }
        let answer = self.look(name).await;
        match &answer {
            Ok(_) => shard.breaker.answered(Answered::Read),
            Err(error) => shard.breaker.failed(error),
        }
        Some(answer)
    }
}
