//! The run of a leader: look, claim, load and commit, or wait for the process that has the lease.
//!
//! A run always ends with an outcome. Where the backend fails, the leader loads without a lease,
//! for this process alone, and stores nothing. Until the backend answers again, the later callers
//! of this process are served what it loaded.

mod away;
mod claim;
mod commit;
mod fail;
mod fetch;
mod head;
mod load;
pub(super) mod look;
mod refresh;

use std::{
    panic::AssertUnwindSafe,
    pin::pin,
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicBool, AtomicU32},
    },
    time::Duration,
};

use futures_util::FutureExt;
use tokio::time::Instant;
use tracing::debug;

use super::{
    Lead,
    breaker::Outage,
    core::{Core, Decision, Permit},
    freshness::Rules,
    known::Known,
    loader::{self, Produced},
    outcome::{Alone, Outcome},
    settings::{OnFull, Options},
    shard::Shard,
};
use crate::{
    error::{BackendError, BackendErrorKind, Error, ErrorKind},
    flight::{Epoch, Leader, Notice},
    key::{Key, Name},
    lease::LeaseGuard,
    spans,
    sync::lock,
};

/// One leader, on its way to an outcome.
pub(super) struct Run<V: Clone> {
    core: Arc<Core<V>>,
    name: Name,
    /// The part of the backend that keeps the name.
    shard: Arc<Shard>,
    own: Option<Box<Options>>,
    leader: Leader<Outcome<V>>,
    /// The outcome for late joiners, if the backend cannot be asked for it.
    for_late: OnceLock<Outcome<V>>,
    /// The callers have waited for the backend in vain already, so it is not asked.
    is_alone: bool,
    /// Whether to wait for another process that has the lease.
    waits: bool,
    /// How many loads have failed in a row before this one.
    failures: AtomicU32,
    /// There was no entry when the lease was granted.
    has_no_entry: AtomicBool,
    /// The entry that the load is to replace, read in this epoch.
    known: Mutex<Option<(Arc<Known<V>>, Epoch)>>,
    /// Set if the load has failed, and this entry is served in its place.
    stood_in: OnceLock<()>,
    /// The fence that was burnt for this run. An older entry is not good enough.
    supersedes: Option<u64>,
}

/// An outcome, and the epoch that it belongs to.
type EpochOutcome<V> = (Outcome<V>, Epoch);

/// The next step of a run.
enum Step<V> {
    /// Claim the lease. `seen` is the fence of the last entry that was not good enough.
    Claim { seen: u64 },
    /// Load under this lease, which was granted in this epoch.
    Load(LeaseGuard, Epoch),
    /// Load without a lease. In an outage, the value is remembered until its end.
    LoadAlone(Option<Outage>),
    /// Land the flight.
    Land(EpochOutcome<V>),
    /// Land the flight, and refresh this entry in the background.
    LandAndRefresh(EpochOutcome<V>, Arc<Known<V>>),
}

impl<V: Clone + Send + Sync + 'static> Run<V> {
    pub(super) fn new(
        core: &Arc<Core<V>>,
        key: &Key,
        own: Option<Box<Options>>,
        leader: Leader<Outcome<V>>,
        is_alone: bool,
    ) -> Result<Self, Error> {
        let name = core.name(key)?;
        Ok(Self {
            core: core.clone(),
            shard: core.shard(&name),
            name,
            own,
            leader,
            for_late: OnceLock::new(),
            is_alone,
            waits: true,
            failures: AtomicU32::new(0),
            has_no_entry: AtomicBool::new(false),
            known: Mutex::default(),
            stood_in: OnceLock::new(),
            supersedes: None,
        })
    }

    /// Returns the run of a refresh that beats the loads before this fence.
    pub(super) fn superseding(self, fence: u64) -> Self {
        Self { supersedes: Some(fence), ..self }
    }

    /// Runs to the end.
    pub(super) async fn run<F, Fut>(self, work: F)
    where
        F: FnOnce(Lead<V>) -> Fut + Send + 'static,
        Fut: Future<Output = Result<Produced<V>, Error>> + Send + 'static,
    {
        let landing = async {
            let step = match self.supersedes {
                Some(fence) => Box::pin(self.look_for_old(fence)).await,
                None if self.is_alone => self.away(),
                None => self.look().await,
            };
            match step {
                Step::Land(landing) => landing,
                Step::LandAndRefresh(landing, known) => {
                    self.begin_refresh(work, known);
                    landing
                }
                // In boxes of their own, so that the future of a hit stays small. A future holds
                // its arguments twice.
                step => Box::pin(self.traced(Box::pin(self.beyond(step, work)))).await,
            }
        };
        // A codec may panic, too. That is an outcome like any other.
        let landing = {
            let landing = pin!(AssertUnwindSafe(landing).catch_unwind());
            spans::within_caller(landing).await
        };
        let (outcome, epoch) =
            landing.unwrap_or_else(|panic| failed(loader::panicked(panic.as_ref())));
        let Self { core, name, shard, own, leader, for_late, stood_in, .. } = self;
        if let Some(late) = leader.land(outcome, epoch) {
            let outcome = match for_late.into_inner() {
                Some(outcome) => Some(outcome),
                None => {
                    let rules = &core.options(own.as_deref()).rules;
                    let stood_in = stood_in.get().is_some();
                    // In a box, which a flight without late joiners does not need.
                    Box::pin(look_late(&core, &shard, late.key(), &name, rules, stood_in)).await
                }
            };
            late.land(outcome);
        }
    }

    /// Awaits the rest of the run in a span that tells how it ends.
    fn traced(
        &self,
        rest: impl Future<Output = EpochOutcome<V>>,
    ) -> impl Future<Output = EpochOutcome<V>> {
        let key = self.leader.key();
        let span = match self.supersedes {
            None => spans::load(key),
            Some(_) => spans::refresh(key),
        };
        spans::within(span, self.unless_cancelled(rest), |(outcome, _), span| {
            outcome.ends(span, true);
        })
    }

    /// Runs the steps that follow the look.
    async fn beyond<F, Fut>(&self, mut step: Step<V>, work: F) -> EpochOutcome<V>
    where
        F: FnOnce(Lead<V>) -> Fut,
        Fut: Future<Output = Result<Produced<V>, Error>>,
    {
        self.leader.own_task().await;
        let begun = self.core.meter.begin();
        let mut permit = None;
        if let Step::Claim { seen } = step {
            step = match self.options().sharing.is_local {
                // In a box, which does not stay during the load.
                false => Box::pin(self.claim(seen, &mut permit)).await,
                true => Step::LoadAlone(None),
            };
        }
        let landing = match step {
            Step::Land(landing) | Step::LandAndRefresh(landing, _) => landing,
            // In a box, which a process that waits for another one does not need.
            Step::Load(guard, granted) => Box::pin(self.load(work, guard, granted)).await,
            step @ (Step::LoadAlone(_) | Step::Claim { .. }) => {
                let outage = if let Step::LoadAlone(outage) = step { outage } else { None };
                match self.core.failures.backs_off_alone(self.leader.key()) {
                    Some(error) => {
                        self.core.counters.backed_off.add();
                        failed(error)
                    }
                    None => match Box::pin(self.permit(&mut permit)).await {
                        Ok(()) => Box::pin(self.load_alone(work, outage)).await,
                        Err(error) => self.full(error),
                    },
                }
            }
        };
        let landing = self.or_stale(landing);
        self.core.waited(begun, &landing.0);
        landing
    }

    /// Returns the landing with the entry that is kept for this case, if a load has failed.
    fn or_stale(&self, landing: EpochOutcome<V>) -> EpochOutcome<V> {
        let Outcome::Failed(error) = &landing.0 else { return landing };
        let is_of_load = matches!(
            error.kind(),
            ErrorKind::Load
                | ErrorKind::Panicked
                | ErrorKind::LoadTimeout
                | ErrorKind::BackingOff
                | ErrorKind::Overloaded
        );
        // A caller that asked for a new value is told of the failure.
        let is_kept = self.known().filter(|_| is_of_load && self.supersedes.is_none());
        let old = is_kept.and_then(|(known, epoch)| {
            Some((look::found(known.in_place_of_failure()?, known.source, known.record), epoch))
        });
        let Some(old) = old else { return landing };
        debug!(%error, "the stale value is served, because the load failed");
        let _ = self.stood_in.set(());
        old
    }

    /// Returns the entry that the load is to replace, if there is one.
    fn known(&self) -> Option<(Arc<Known<V>>, Epoch)> {
        lock(&self.known).clone()
    }

    /// Awaits the rest of the run, unless it is cancelled. Dropping the rest releases what it
    /// holds, and undoes what it may hold.
    async fn unless_cancelled(
        &self,
        rest: impl Future<Output = EpochOutcome<V>>,
    ) -> EpochOutcome<V> {
        let error = tokio::select! {
            biased;
            landing = rest => return landing,
            () = self.leader.told(Notice::Unwanted) => {
                Error::new(ErrorKind::Cancelled, "no caller waited for the load any more")
            }
            () = self.core.abort.cancelled() => {
                Error::new(ErrorKind::ShutDown, "the cache was shut down")
            }
        };
        debug!(%error, "load cancelled");
        failed(error)
    }

    fn options(&self) -> &Options {
        self.core.options(self.own.as_deref())
    }

    /// Waits for a permit to load in this process. A load that a loader waits for needs none, or
    /// loads could wait for each other.
    async fn permit(&self, permit: &mut Option<Permit>) -> Result<(), Error> {
        if permit.is_some() {
            return Ok(());
        }
        tokio::select! {
            biased;
            () = self.leader.told(Notice::NeededByLoader) => {}
            granted = self.core.permit(self.options()) => *permit = Some(granted?),
        }
        Ok(())
    }

    /// Returns the landing of a flight that has no permit to load.
    fn full(&self, error: Error) -> EpochOutcome<V> {
        match self.options().sharing.on_full {
            OnFull::Pass => (Outcome::Alone(Alone::Full), Epoch::END),
            OnFull::Queue | OnFull::Refuse => failed(error),
        }
    }
}

/// Looks for the callers that joined too late for the outcome. Returns `None` if they join anew.
async fn look_late<V: Clone + Send + Sync + 'static>(
    core: &Core<V>,
    shard: &Shard,
    key: &Key,
    name: &Name,
    rules: &Rules,
    has_failed: bool,
) -> Option<Outcome<V>> {
    let begun = Instant::now();
    match look::stored(core, shard, key, name, rules).await {
        // If they joined anew, each would wait for another time-out.
        Decision::Unanswered(_) => Some(Outcome::Unanswered(begun.elapsed())),
        // They have waited for the load that failed, too.
        Decision::Old(known) if has_failed => {
            let value = known.in_place_of_failure()?;
            Some(look::found(value, known.source, known.record))
        }
        decision => {
            decision.value().map(|(value, record, source)| look::found(value, source, record))
        }
    }
}

/// Returns the landing with an error, for all callers.
fn failed<V>(error: Error) -> EpochOutcome<V> {
    (Outcome::Failed(error), Epoch::END)
}

/// How much longer the second try of a claim or a commit may take, after the first had no answer.
/// It is enough for a new connection and a round trip.
const SECOND_TRY: Duration = Duration::from_millis(150);

/// Returns the limit of the second try, if the first began at `first`. It includes what the first
/// try left of its own time, because a connection that breaks ends it early.
fn second_try(first: Instant, limit: Duration) -> Duration {
    limit.saturating_sub(first.elapsed()).saturating_add(SECOND_TRY)
}

/// Returns the error of a try that ended because the breaker opened.
fn silence() -> BackendError {
    BackendError::new(BackendErrorKind::Unknown, "the backend does not answer")
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::{
        MemoryBackend,
        cache::{Cache, Raw},
    };

    /// A process may have 100,000 flights under way. These futures are most of each.
    #[tokio::test]
    async fn the_futures_of_a_flight_are_small() {
        let cache = Cache::<Bytes>::builder(MemoryBackend::new()).codec(Raw).build().unwrap();
        let run = |key: &str| {
            let key = Key::from(key);
            let leader = cache.core.flights.join(&key).unwrap().leader.unwrap();
            Run::new(&cache.core, &key, None, leader, false).unwrap()
        };
        let work = |_: Lead<Bytes>| std::future::pending::<Result<Produced<Bytes>, Error>>();
        let [first, second] = ["first", "second"].map(run);
        let sizes = [
            size_of_val(&second.beyond(Step::LoadAlone(None), work)),
            size_of_val(&second.load_alone(work, None)),
            size_of_val(&first.run(work)),
        ];
        assert!(sizes.iter().sum::<usize>() <= 2048, "{sizes:?}");
    }
}
