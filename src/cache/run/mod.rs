//! The run of a leader: look, claim, load and commit, or wait for the process that has the lease.
//!
//! - `look` reads the entry, and claims the lease unless the entry is good enough.
//! - `load` runs the loader, under the lease or without one. It ends the lease, with a value or a
//!   failure.
//!
//! A run always ends with an outcome. Where the backend fails, the leader loads without a lease,
//! for this process alone, and stores nothing. Until the backend answers again, the later callers
//! of this process are served what it loaded.

mod load;
mod look;

use std::{panic::AssertUnwindSafe, pin::pin, sync::Arc, time::Duration};

use futures_util::FutureExt;
use tokio::time::Instant;
use tracing::{Instrument, Span, debug};

pub use self::load::Load;
use super::{
    Lead, Loaded, Source,
    begin::{Begun, WhyAlone},
    breaker::{Outage, RequestKind, Shard},
    core::{Core, Decision, Permit},
    freshness::Rules,
    loader::{self, Produced},
    outcome::{Alone, Flown, Outcome, ended, failed},
    previous::Previous,
    refresh::QuietEntry,
    settings::{OnFull, Options},
};
use crate::{
    error::{BackendError, BackendErrorKind, Error, ErrorKind},
    flight::{self, Epoch, LateJoiners, Leader, Notice},
    key::{Key, Name},
    spans,
};

/// A key that is asked for, and how.
pub(super) struct AskedKey<V> {
    pub(super) core: Arc<Core<V>>,
    pub(super) key: Key,
    name: Name,
    /// The part of the backend that keeps the name.
    shard: Arc<Shard>,
    own: Option<Box<Options>>,
}

impl<V: Clone + Send + Sync + 'static> AskedKey<V> {
    pub(super) fn new(
        core: &Arc<Core<V>>,
        key: &Key,
        own: Option<Box<Options>>,
    ) -> Result<Self, Error> {
        let name = core.name(key)?;
        Ok(Self { core: core.clone(), key: key.clone(), shard: core.shard(&name), name, own })
    }
}

impl<V> AskedKey<V> {
    pub(super) fn options(&self) -> &Options {
        self.core.options(self.own.as_deref())
    }
}

impl<V> Clone for AskedKey<V> {
    fn clone(&self) -> Self {
        let Self { core, key, name, shard, own } = self;
        let (core, shard) = (core.clone(), shard.clone());
        Self { core, key: key.clone(), name: name.clone(), shard, own: own.clone() }
    }
}

/// One leader, on its way to an outcome. Or one caller that leads no flight, on its way to a load.
pub(super) struct Run<V> {
    asked: AskedKey<V>,
    leader: Option<Leader<Outcome<V>>>,
    start: RunStart,
}

/// How a run begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RunStart {
    /// With a look.
    Look,
    /// The callers have waited for the backend in vain already, so it is not asked.
    Away,
    /// With a look for the entry to replace. This fence was burnt for the run, so an older entry is
    /// not good enough.
    Supersede(u64),
    /// With an entry to refresh. The run does not wait for another process that has the lease.
    Behind,
}

/// How a flight ends.
pub(super) struct FlightEnd<V> {
    outcome: Outcome<V>,
    /// The outcome is for the callers that joined before it.
    epoch: Epoch,
    late: ForLate,
}

/// The outcome for the callers that joined after the epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ForLate {
    /// They get the answer of a second look.
    Look,
    /// The same. If it finds an old value, that is served: they have waited for the failed load.
    Fallback,
    /// The value, though it may be older than an act that they know of: the backend cannot be
    /// asked.
    Degraded,
}

impl<V> FlightEnd<V> {
    /// Ends with a value of an entry.
    fn found(loaded: Loaded<V>, epoch: Epoch) -> Self {
        Self { outcome: Outcome::Value(loaded), epoch, late: ForLate::Look }
    }

    /// Ends with the same outcome for all callers.
    fn for_all(outcome: Outcome<V>) -> Self {
        Self { outcome, epoch: Epoch::END, late: ForLate::Look }
    }

    fn failed(error: Error) -> Self {
        Self::for_all(Outcome::Failed(error))
    }

    /// Lets each caller load for itself.
    fn alone(why: Alone) -> Self {
        Self::for_all(Outcome::Alone(why))
    }

    /// Ends with an old value in place of a load that failed.
    fn fallback(previous: &Previous<V>, epoch: Epoch) -> Option<Self>
    where
        V: Clone + 'static,
    {
        Some(Self { late: ForLate::Fallback, ..Self::found(previous.fallback()?, epoch) })
    }
}

/// An entry that a load is to replace, read in this epoch.
type PreviousRead<V> = (Arc<Previous<V>>, Epoch);

/// The next step of a run.
enum Step<V> {
    /// Claim the lease. `seen` is the fence of the last entry that was not good enough.
    Claim { seen: u64, previous: Option<PreviousRead<V>> },
    /// Load under a lease that was granted in this epoch.
    Load(Box<Load<V>>, Epoch),
    /// Load without a lease. In an outage, the value is remembered until its end.
    LoadAlone { outage: Option<Outage>, previous: Option<PreviousRead<V>> },
    /// Land the flight.
    Land(FlightEnd<V>),
    /// Land the flight, and refresh this entry in the background.
    LandAndRefresh(FlightEnd<V>, Arc<Previous<V>>),
}

impl<V> Step<V> {
    const LOAD_ALONE: Self = Self::LoadAlone { outage: None, previous: None };
}

/// The state of a run on its way to a load.
struct Held<V> {
    permit: Option<Permit>,
    previous: Option<PreviousRead<V>>,
}

impl<V> Default for Held<V> {
    fn default() -> Self {
        Self { permit: None, previous: None }
    }
}

impl<V: Clone + Send + Sync + 'static> Run<V> {
    pub(super) fn new(
        core: &Arc<Core<V>>,
        key: &Key,
        own: Option<Box<Options>>,
        leader: Option<Leader<Outcome<V>>>,
        start: RunStart,
    ) -> Result<Self, Error> {
        Ok(Self { asked: AskedKey::new(core, key, own)?, leader, start })
    }

    /// Returns the run of a leader whose caller has waited for an answer for this long, in vain.
    pub(super) fn of_caller(
        core: &Arc<Core<V>>,
        key: &Key,
        own: Option<Box<Options>>,
        leader: Leader<Outcome<V>>,
        unanswered: Option<Duration>,
    ) -> Result<Self, Error> {
        let start = if unanswered.is_some() { RunStart::Away } else { RunStart::Look };
        Self::new(core, key, own, Some(leader), start)
    }

    /// Runs to the end.
    pub(super) async fn run<F, Fut>(self, work: F)
    where
        F: FnOnce(Lead<V>) -> Fut + Send + 'static,
        Fut: Future<Output = Result<Produced<V>, Error>> + Send + 'static,
    {
        let end = async {
            let step = match self.start {
                RunStart::Supersede(fence) => Box::pin(self.look_for_old(fence)).await,
                RunStart::Away => self.away(),
                RunStart::Look | RunStart::Behind => self.look().await,
            };
            match step {
                Step::Land(end) => end,
                Step::LandAndRefresh(end, previous) => {
                    self.begin_refresh(work, previous);
                    end
                }
                // In boxes of their own, so that the future of a hit stays small. A future holds
                // its arguments twice.
                step => Box::pin(self.traced(Box::pin(self.beyond(step, work)))).await,
            }
        };
        // A codec may panic, too. That is an outcome like any other.
        let end = {
            let end = pin!(AssertUnwindSafe(end).catch_unwind());
            spans::within_caller(end).await
        };
        let end = end.unwrap_or_else(|panic| FlightEnd::failed(loader::panicked(panic.as_ref())));
        let Self { asked, leader: Some(leader), .. } = self else { return };
        let degraded = match (&end.outcome, end.late) {
            (Outcome::Value(loaded), ForLate::Degraded) => {
                Some(Outcome::Value(Loaded::degraded(loaded.value.clone())))
            }
            _ => None,
        };
        if let Some(late) = leader.land(end.outcome, end.epoch) {
            match degraded {
                Some(_) => late.land(degraded),
                // In a box, which a flight without late joiners does not need.
                None => Box::pin(asked.land_late(late, end.late)).await,
            }
        }
    }

    /// Awaits the rest of the run in a span that tells how it ends, and publishes how long it took.
    /// A hit has none.
    fn traced(
        &self,
        rest: impl Future<Output = FlightEnd<V>>,
    ) -> impl Future<Output = FlightEnd<V>> {
        let span = match self.start {
            RunStart::Supersede(_) => spans::refresh(&self.asked.key),
            _ => spans::load(&self.asked.key),
        };
        let (begun, meter) = (Instant::now(), &self.asked.core.meter);
        let ends = move |end: &FlightEnd<V>, span: &Span| {
            end.outcome.ends(span, true);
            meter.ended("bellwether_wait_seconds", begun, end.outcome.result(true));
        };
        spans::within(span, self.unless_cancelled(rest), ends)
    }

    /// Runs the steps that follow the look.
    async fn beyond<F, Fut>(&self, step: Step<V>, work: F) -> FlightEnd<V>
    where
        F: FnOnce(Lead<V>) -> Fut,
        Fut: Future<Output = Result<Produced<V>, Error>>,
    {
        if let Some(leader) = &self.leader {
            leader.own_task().await;
        }
        let mut held = Held::default();
        // In a box, which does not stay during the load.
        let step = Box::pin(self.claimed(step, &mut held)).await;
        let end = match step {
            Step::Land(end) | Step::LandAndRefresh(end, _) => end,
            // In boxes, which a process that waits for another one does not need.
            Step::Load(load, granted) => Box::pin(self.load(work, load, granted)).await,
            Step::LoadAlone { outage, previous } => {
                held.previous = held.previous.or(previous);
                Box::pin(self.load_alone(work, outage, &mut held)).await
            }
            Step::Claim { .. } => Box::pin(self.load_alone(work, None, &mut held)).await,
        };
        self.or_fallback(end, held.previous)
    }

    /// Loads for one caller, without a flight and a lease. Nothing is stored.
    pub(super) async fn load_for_caller<F, Fut>(&self, work: F) -> Result<Flown<V>, Error>
    where
        F: FnOnce(Lead<V>) -> Fut,
        Fut: Future<Output = Result<Produced<V>, Error>>,
    {
        let end = self.load_alone(work, None, &mut Held::default()).await;
        ended(&self.asked.core, end.outcome, true, None)
    }

    /// Claims the lease, if that is the next step. Returns the step that follows.
    async fn claimed(&self, step: Step<V>, held: &mut Held<V>) -> Step<V> {
        let Step::Claim { seen, previous } = step else { return step };
        held.previous = previous;
        match self.asked.options().sharing.is_local {
            true => Step::LOAD_ALONE,
            false => self.claim(seen, held).await,
        }
    }

    /// Returns the end with the entry that is kept for this case, if a load has failed.
    fn or_fallback(&self, end: FlightEnd<V>, previous: Option<PreviousRead<V>>) -> FlightEnd<V> {
        let Outcome::Failed(error) = &end.outcome else { return end };
        let is_of_load = matches!(
            error.kind(),
            ErrorKind::Load
                | ErrorKind::Panicked
                | ErrorKind::LoadTimeout
                | ErrorKind::BackingOff
                | ErrorKind::Overloaded
        );
        let is_served = is_of_load && !self.wants_new();
        let fallback = previous
            .filter(|_| is_served)
            .and_then(|(previous, epoch)| FlightEnd::fallback(&previous, epoch));
        let Some(fallback) = fallback else { return end };
        debug!(%error, "the stale value is served, because the load failed");
        fallback
    }

    /// Awaits the rest of the run, unless it is cancelled. Dropping the rest releases what it
    /// holds, and undoes what it may hold.
    async fn unless_cancelled(&self, rest: impl Future<Output = FlightEnd<V>>) -> FlightEnd<V> {
        let error = tokio::select! {
            biased;
            end = rest => return end,
            () = self.told(Notice::Unwanted) => {
                Error::new(ErrorKind::Cancelled, "no caller waited for the load any more")
            }
            () = self.asked.core.abort.cancelled() => {
                Error::new(ErrorKind::ShutDown, "the cache was shut down")
            }
        };
        debug!(%error, "load cancelled");
        FlightEnd::failed(error)
    }

    /// Looks, and claims the lease unless the entry is good enough, for a caller that loads itself.
    pub(super) async fn begin(&self) -> Result<Begun<V>, Error> {
        let AskedKey { core, shard, .. } = &self.asked;
        let mut held = Held::default();
        let step = self.look().await;
        let (end, old) = match self.claimed(step, &mut held).await {
            Step::Load(mut load, _) => {
                load.begin_tags().await;
                core.counters.loads.add();
                return Ok(Begun::Load(*load));
            }
            Step::LandAndRefresh(end, old) => (end, Some(old)),
            Step::Land(end) => (self.or_fallback(end, held.previous), None),
            Step::Claim { .. } | Step::LoadAlone { .. } => {
                let is_silent = shard.breaker.is_troubled();
                let why = if is_silent { WhyAlone::Unanswered } else { WhyAlone::WaitOver };
                return Ok(Begun::Alone(why));
            }
        };
        let loaded = match end.outcome {
            Outcome::Value(loaded) => loaded,
            Outcome::Failed(error) => return Err(failed(core, error)),
            Outcome::Alone(Alone::Uncacheable) => return Ok(Begun::Alone(WhyAlone::Uncacheable)),
            // Not the end of a run without a flight.
            Outcome::Alone(_) | Outcome::Head(..) | Outcome::Unanswered(_) => {
                return Ok(Begun::Alone(WhyAlone::Unanswered));
            }
        };
        core.counters.served(loaded.source());
        let load = match old {
            Some(old) => self.begin_refresh_of(old).await,
            None => None,
        };
        let is_old = loaded.source() == Source::Stale || load.is_some();
        Ok(if is_old { Begun::Stale(loaded, load) } else { Begun::Ready(loaded) })
    }

    /// Begins to refresh an entry, for a caller that loads itself.
    async fn begin_refresh_of(&self, old: Arc<Previous<V>>) -> Option<Load<V>> {
        let AskedKey { core, key, .. } = &self.asked;
        if core.refreshes.knows(QuietEntry::Refreshed, key, old.fence) {
            return None;
        }
        let refresh = Self { asked: self.asked.clone(), leader: None, start: RunStart::Behind };
        let (mut load, _) = refresh.begin_behind(old).await?;
        load.begin_tags().await;
        core.counters.refreshes.add();
        core.counters.loads.add();
        Some(*load)
    }

    /// Begins to refresh an entry, unless that is under way or not to be tried now.
    fn begin_refresh<F, Fut>(&self, work: F, previous: Arc<Previous<V>>)
    where
        F: FnOnce(Lead<V>) -> Fut + Send + 'static,
        Fut: Future<Output = Result<Produced<V>, Error>> + Send + 'static,
    {
        let asked = &self.asked;
        let begun = asked.core.refreshes.begin(&asked.key, previous.fence);
        let Some(leader) = begun else { return };
        let refresh = Self { asked: asked.clone(), leader: Some(leader), start: RunStart::Behind };
        let span = spans::refresh_behind(&asked.key);
        tokio::spawn(refresh.run_behind(work, previous, span.clone()).instrument(span));
    }

    async fn run_behind<F, Fut>(self, work: F, previous: Arc<Previous<V>>, span: Span)
    where
        F: FnOnce(Lead<V>) -> Fut,
        Fut: Future<Output = Result<Produced<V>, Error>>,
    {
        // A panic of a codec ends the refresh, and nothing else.
        let refreshed = AssertUnwindSafe(self.refresh(work, previous)).catch_unwind();
        tokio::select! {
            biased;
            () = self.asked.core.refreshes.stopped() => debug!("refresh cancelled by the shutdown"),
            refreshed = refreshed => match refreshed {
                Ok(Some(outcome)) => outcome.ends(&span, true),
                Ok(None) => spans::ended(&span, "not_begun", None),
                Err(_) => spans::ended(&span, "error", None),
            }
        }
    }

    /// Refreshes an entry under the lease, if the process gets the lease and a permit at once.
    /// Returns `None` if it does not.
    async fn refresh<F, Fut>(&self, work: F, previous: Arc<Previous<V>>) -> Option<Outcome<V>>
    where
        F: FnOnce(Lead<V>) -> Fut,
        Fut: Future<Output = Result<Produced<V>, Error>>,
    {
        let (core, seen) = (&self.asked.core, previous.fence);
        let (load, granted) = self.begin_behind(previous).await?;
        core.counters.refreshes.add();
        let outcome = self.load(work, load, granted).await.outcome;
        let is_settled = match &outcome {
            Outcome::Value(_) => true,
            // The key backs off.
            Outcome::Failed(error) => error.retry_after().is_some(),
            _ => false,
        };
        if !is_settled {
            core.refreshes.note(QuietEntry::Refreshed, &self.asked.key, seen, PAUSE);
        }
        Some(outcome)
    }

    /// Returns a load that refreshes an entry, if the process gets the lease and a permit at once.
    async fn begin_behind(&self, previous: Arc<Previous<V>>) -> Option<(Box<Load<V>>, Epoch)> {
        let Some(permit) = self.asked.core.try_permit(self.asked.options()) else {
            debug!("no refresh: too many loads are under way");
            return None;
        };
        let seen = previous.fence;
        let previous = Some((previous, Epoch::END));
        let mut held = Held { permit: Some(permit), previous };
        match self.claim(seen, &mut held).await {
            Step::Load(load, granted) => Some((load, granted)),
            _ => None,
        }
    }

    /// Waits for a permit to load in this process. A load that a loader waits for needs none, or
    /// loads could wait for each other.
    async fn permit(&self, held: &mut Held<V>) -> Result<(), Error> {
        if held.permit.is_some() {
            return Ok(());
        }
        tokio::select! {
            biased;
            () = self.told(Notice::NeededByLoader) => {}
            granted = self.asked.core.permit(self.asked.options()) => held.permit = Some(granted?),
        }
        Ok(())
    }

    /// Returns the end of a flight that has no permit to load.
    fn full(&self, error: Error) -> FlightEnd<V> {
        match self.asked.options().sharing.on_full {
            OnFull::Pass => FlightEnd::alone(Alone::Full),
            OnFull::Queue | OnFull::Refuse => FlightEnd::failed(error),
        }
    }

    /// Returns the number of the flight or load. Loads that it asks for need no permit. A load for
    /// a loader belongs to that one's flight.
    fn number(&self) -> u64 {
        match &self.leader {
            Some(leader) => leader.id(),
            None => flight::current().unwrap_or_else(flight::next_id),
        }
    }

    fn begin_epoch(&self) -> Epoch {
        self.leader.as_ref().map_or(Epoch::END, Leader::begin_epoch)
    }

    /// Completes when a follower gives this notice.
    async fn told(&self, notice: Notice) {
        match &self.leader {
            Some(leader) => leader.told(notice).await,
            None if notice == Notice::NeededByLoader && flight::current().is_some() => {}
            None => std::future::pending().await,
        }
    }

    /// Returns whether no value is good enough whose load began before the run.
    fn wants_new(&self) -> bool {
        matches!(self.start, RunStart::Supersede(_))
    }
}

/// How long a process does not refresh a key that does not back off, after a refresh made no value.
/// A shorter time costs more claims of refreshes that make nothing.
const PAUSE: Duration = Duration::from_secs(1);

impl<V: Clone + Send + Sync + 'static> AskedKey<V> {
    /// Looks for the callers that joined too late for the outcome, and lands for them.
    async fn land_late(&self, joiners: LateJoiners<Outcome<V>>, late: ForLate) {
        let begun = Instant::now();
        let outcome = match self.stored(&self.options().rules).await {
            // If they joined anew, each would wait for another time-out.
            Decision::Unanswered(_) => Some(Outcome::Unanswered(begun.elapsed())),
            Decision::Old(previous) if late == ForLate::Fallback => {
                FlightEnd::fallback(&previous, Epoch::END).map(|end| end.outcome)
            }
            decision => decision.value().map(Outcome::Value),
        };
        joiners.land(outcome);
    }

    /// Asks the backend for the entry, unless it has not answered lately.
    pub(super) async fn stored(&self, rules: &Rules) -> Decision<V> {
        let (core, breaker) = (&self.core, &self.shard.breaker);
        if breaker.is_troubled() && !breaker.admits() {
            return Decision::Unanswered(silence());
        }
        let decision = core.read(&self.key, &self.name, rules).await;
        match &decision {
            Decision::Unanswered(error) => breaker.failed(error, &core.counters),
            _ if breaker.is_troubled() => breaker.answered(RequestKind::Read, &core.counters),
            _ => {}
        }
        decision
    }

    /// Reads the value that may be served in place of a load that is too slow for its caller.
    pub(super) async fn in_place_of_slow_load(&self, rules: &Rules) -> Option<Loaded<V>> {
        let remembered = || {
            let outage = self.shard.breaker.outage()?;
            let decision = self.core.recall(&self.key, &self.name, rules, outage)?;
            Some(Loaded { source: Source::Degraded, ..decision.value_or_fallback()? })
        };
        // To ask a silent server takes as long as its time-out, so the memory comes first.
        if self.shard.breaker.is_silent()
            && let Some(old) = remembered()
        {
            return Some(old);
        }
        match self.stored(rules).await {
            Decision::Unanswered(_) => remembered(),
            decision => decision.value_or_fallback(),
        }
    }
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
        let cache =
            Cache::<Bytes>::builder(MemoryBackend::new(), "bellwether").codec(Raw).build().unwrap();
        let run = |key: &str| {
            let key = Key::from(key);
            let leader = cache.core.flights.join(&key).unwrap().leader;
            Run::new(&cache.core, &key, None, leader, RunStart::Look).unwrap()
        };
        let work = |_: Lead<Bytes>| std::future::pending::<Result<Produced<Bytes>, Error>>();
        let [first, second] = ["first", "second"].map(run);
        let mut held = Held::default();
        let sizes = [
            size_of_val(&second.beyond(Step::LOAD_ALONE, work)),
            size_of_val(&second.load_alone(work, None, &mut held)),
            size_of_val(&first.run(work)),
        ];
        assert!(sizes.iter().sum::<usize>() <= 2048, "{sizes:?}");
    }
}
