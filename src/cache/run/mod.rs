//! The run of a leader: look, claim, load and commit, or wait for the process that has the lease.
//!
//! - `look` reads the entry, and claims the lease unless the entry is good enough.
//! - `produce` runs the loader, under the lease or without one, and `made` is what the loader has
//!   made.
//! - `load` is a load under its lease. `commit` ends the load with a value, `failure` with an
//!   error.
//!
//! A run always ends with an outcome. Where the backend fails, the leader loads without a lease,
//! for this process alone, and stores nothing. Until the backend answers again, the later callers
//! of this process are served what the leader loaded.

mod commit;
mod failure;
mod load;
mod look;
mod made;
mod produce;

use std::{panic::AssertUnwindSafe, sync::Arc, time::Duration};

use futures_util::FutureExt;
use tokio::time::Instant;
use tracing::{Instrument, Span, debug};

pub use self::load::{Begun, Load};
use super::{
    Loaded, Source,
    breaker::Shard,
    core::Core,
    freshness::Rules,
    lead::Previous,
    loader::{self, Work},
    member::Permit,
    outcome::{Alone, FlightResult, Outcome, result, value_of},
    read::Decision,
    refreshes::{EntryNote, PAUSE},
    settings::Options,
};
use crate::{
    error::{BackendError, BackendErrorKind, Error, ErrorKind},
    flight::{self, Epoch, KeyUse, Landing, Leader},
    key::{Key, Name},
    lease::Upkeep,
    spans,
};

/// A key that is asked for, and how.
#[derive(Clone)]
struct AskedKey<V> {
    core: Arc<Core<V>>,
    key: Key,
    name: Name,
    /// The part of the backend that keeps the name.
    shard: Arc<Shard>,
    options: Arc<Options>,
}

/// Looks for one caller whose key no other caller asks for, without a flight. A panic, also of a
/// codec, becomes an error outcome.
pub(super) async fn look_alone<V: Clone + Send + Sync + 'static>(
    core: &Arc<Core<V>>,
    key: &Key,
    options: Arc<Options>,
    _key_use: KeyUse,
) -> Result<LoneLook<V>, Error> {
    let asked = AskedKey::new(core, key, options)?;
    let look = AssertUnwindSafe(asked.read_alone()).catch_unwind().await;
    Ok(look.unwrap_or_else(|panic| LoneLook::Served(Err(loader::panicked(panic.as_ref())))))
}

/// One leader, on its way to an outcome.
pub(super) struct Run<V> {
    asked: AskedKey<V>,
    leader: Leader<Outcome<V>>,
    start: RunStart,
    /// The span of the caller. Another task may poll the run.
    caller: Span,
}

/// How a run begins.
#[derive(Clone, Copy)]
pub(super) enum RunStart {
    /// With a look, unless the caller that leads has [looked](look_alone) already.
    Look,
    /// With a look for the entry to replace. The run has taken this fence first, so an entry with
    /// an older fence is not good enough.
    Supersede(u64),
    /// With an entry to refresh. The run does not wait for another process that has the lease.
    Behind,
    /// With the load, without a lease. Nothing is stored, and a shutdown does not end the run.
    Unleased,
}

pub(super) struct FlightEnd<V> {
    outcome: Outcome<V>,
    /// The outcome is for the callers that joined before this epoch.
    epoch: Epoch,
    late: ForLate,
    /// The entry to refresh in the background.
    refresh: Option<Arc<Previous<V>>>,
}

/// The outcome for the callers that joined after the epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ForLate {
    /// They get the answer of a second look.
    Look,
    /// The same. If the look finds an old value, that is served: these callers have waited for the
    /// failed load.
    Fallback,
    /// They get the value, though an act that they know of may be newer: the backend cannot be
    /// asked.
    Degraded,
}

impl<V> FlightEnd<V> {
    /// Ends with a value of an entry.
    fn found(loaded: Loaded<V>, epoch: Epoch) -> Self {
        let outcome = Ok(FlightResult::Loaded(loaded));
        Self { outcome, epoch, late: ForLate::Look, refresh: None }
    }

    /// Ends with the same outcome for all callers.
    fn for_all(outcome: Outcome<V>) -> Self {
        Self { outcome, epoch: Epoch::END, late: ForLate::Look, refresh: None }
    }

    fn failed(error: Error) -> Self {
        Self::for_all(Err(error))
    }

    /// Lets each caller load for itself.
    fn alone(why: Alone) -> Self {
        Self::for_all(Ok(FlightResult::Alone(why)))
    }
}

/// The next step of a run.
enum Step<V> {
    Land(FlightEnd<V>),
    /// Claim the lease. `seen` is the fence of the last entry that was not good enough.
    Claim {
        seen: u64,
    },
    Load(Box<Load<V>>),
    LoadUnleased,
}

/// What a run knows after its look.
pub(super) struct Looked<V> {
    step: Step<V>,
    held: Held<V>,
}

/// The end of a lone look.
pub(super) enum LoneLook<V> {
    Served(Outcome<V>),
    /// The caller is served, and the entry is to be refreshed.
    Refreshes(Outcome<V>, Box<DueRefresh<V>>),
    /// There is nothing to serve. A flight goes on from here.
    Loads(Box<Looked<V>>),
    /// Too many lone looks are under way, so a flight looks.
    NoTurn,
}

/// A refresh of the entry that a lone look has found.
pub(super) struct DueRefresh<V> {
    run: Run<V>,
    previous: Arc<Previous<V>>,
}

impl<V: Clone + Send + Sync + 'static> DueRefresh<V> {
    /// Begins the refresh. Without work there is none.
    pub(super) fn begin(self, work: Option<Work<V>>) {
        if let Some(work) = work {
            self.run.begin_refresh(work, self.previous);
        }
    }
}

/// The state of a run on its way to a load.
struct Held<V> {
    permit: Option<Permit>,
    /// The entry that the load is to replace, read in this epoch.
    previous: Option<(Arc<Previous<V>>, Epoch)>,
}

impl<V: Clone + 'static> Held<V> {
    const NOTHING: Self = Self { permit: None, previous: None };

    /// Returns the end with the entry that is kept for failures, if that entry may be served.
    fn fallback(&self) -> Option<FlightEnd<V>> {
        let (previous, epoch) = self.previous.as_ref()?;
        Some(FlightEnd {
            late: ForLate::Fallback,
            ..FlightEnd::found(previous.fallback()?, *epoch)
        })
    }
}

impl<V: Clone + Send + Sync + 'static> Run<V> {
    pub(super) fn new(
        core: &Arc<Core<V>>,
        key: &Key,
        options: Arc<Options>,
        leader: Leader<Outcome<V>>,
        start: RunStart,
    ) -> Result<Self, Error> {
        let asked = AskedKey::new(core, key, options)?;
        Ok(Self { asked, leader, start, caller: Span::current() })
    }

    /// Creates a run for one caller, which leads no flight.
    pub(super) fn alone(
        core: &Arc<Core<V>>,
        key: &Key,
        options: Arc<Options>,
        start: RunStart,
    ) -> Result<Self, Error> {
        Self::new(core, key, options, Leader::alone(flight::current()), start)
    }

    /// Runs to the end, and lands the flight.
    pub(super) async fn run(self, work: Work<V>, looked: Option<Box<Looked<V>>>) {
        let end = self.end(work, looked).await;
        if self.leader.land(Landing::Outcome(end.outcome), end.epoch) {
            // In a box, which a flight without late joiners does not need.
            Box::pin(self.land_late(end.late)).await;
        }
    }

    /// Runs to the end, for one caller.
    pub(super) async fn load(self, work: Work<V>) -> Outcome<V> {
        self.end(work, None).await.outcome
    }

    /// Returns how the run ends. A panic, also of a codec, becomes an error outcome.
    async fn end(&self, work: Work<V>, looked: Option<Box<Looked<V>>>) -> FlightEnd<V> {
        let end = async {
            let looked = match looked {
                Some(looked) => *looked,
                None => self.looked().await,
            };
            match looked.step {
                Step::Land(mut end) => {
                    if let Some(previous) = end.refresh.take() {
                        self.begin_refresh(work, previous);
                    }
                    end
                }
                // In boxes of their own, so that the future of a hit stays small.
                step => {
                    let traced = self.traced(Box::pin(self.beyond(step, looked.held, work)));
                    // In the span of the caller, too, because the span of the load may be disabled.
                    Box::pin(traced.instrument(self.caller.clone())).await
                }
            }
        };
        let end = AssertUnwindSafe(end).catch_unwind().await;
        end.unwrap_or_else(|panic| FlightEnd::failed(loader::panicked(panic.as_ref())))
    }

    async fn looked(&self) -> Looked<V> {
        let mut held = Held::NOTHING;
        let step = self.look(&mut held).await;
        Looked { step, held }
    }

    /// Awaits the rest of the run in a span that tells how it ends, and publishes how long it took.
    /// A hit has no such span.
    async fn traced(&self, rest: impl Future<Output = FlightEnd<V>>) -> FlightEnd<V> {
        let begun = Instant::now();
        let key = &self.asked.key;
        let span = if self.wants_new() { spans::refresh(key) } else { spans::load(key) };
        let end = self.unless_cancelled(rest).instrument(span.clone()).await;
        let result = result(&end.outcome, true);
        spans::ended(&span, result, end.outcome.as_ref().err());
        self.asked.core.meter.ended("bellwether_wait_seconds", begun, result);
        end
    }

    /// Runs the steps that follow the look.
    async fn beyond(&self, mut step: Step<V>, mut held: Held<V>, work: Work<V>) -> FlightEnd<V> {
        // In boxes, which do not stay during the load, or are not needed by a process that waits
        // for another process.
        if let Step::Claim { seen } = step {
            step = Box::pin(self.claim(seen, &mut held)).await;
        }
        let end = match step {
            Step::Land(end) => end,
            Step::Load(load) => Box::pin(self.load_leased(work, load)).await,
            Step::Claim { .. } | Step::LoadUnleased => {
                Box::pin(self.load_unleased(work, &mut held)).await
            }
        };
        self.or_fallback(end, &held)
    }

    /// Returns the end with the entry that is kept for failures, if the load has failed.
    fn or_fallback(&self, end: FlightEnd<V>, held: &Held<V>) -> FlightEnd<V> {
        let Err(error) = &end.outcome else { return end };
        let is_of_load = matches!(
            error.kind(),
            ErrorKind::Load
                | ErrorKind::Panicked
                | ErrorKind::LoadTimeout
                | ErrorKind::BackingOff
                | ErrorKind::Overloaded
        );
        let is_served = is_of_load && !self.wants_new();
        let fallback = if is_served { held.fallback() } else { None };
        let Some(fallback) = fallback else { return end };
        debug!(%error, "the stale value is served, because the load failed");
        fallback
    }

    /// Awaits the rest of the run, unless it is cancelled. Dropping the rest releases what the run
    /// holds, and undoes what the run may hold.
    async fn unless_cancelled(&self, rest: impl Future<Output = FlightEnd<V>>) -> FlightEnd<V> {
        let is_leased = !matches!(self.start, RunStart::Unleased);
        let error = tokio::select! {
            biased;
            end = rest => return end,
            () = self.leader.abandoned() => {
                Error::new(ErrorKind::Cancelled, "no caller waited for the load any more")
            }
            () = self.asked.core.loads.abort.cancelled(), if is_leased => {
                Error::new(ErrorKind::ShutDown, "the cache was shut down")
            }
        };
        debug!(%error, "load cancelled");
        FlightEnd::failed(error)
    }

    /// Looks, and claims the lease unless the entry is good enough, for a caller that loads itself.
    pub(super) async fn begin(&self) -> Result<Begun<V>, Error> {
        let core = &self.asked.core;
        let mut held = Held::NOTHING;
        let mut step = self.look(&mut held).await;
        if let Step::Claim { seen } = step {
            step = self.claim(seen, &mut held).await;
        }
        let end = match step {
            Step::Load(load) => {
                // A shutdown has waited for each load that had begun, and not for this call.
                if core.loads.begun.is_closed() {
                    return Ok(Begun::Alone);
                }
                core.counters.loads.add();
                return Ok(Begun::Load(*load));
            }
            Step::Land(end) => self.or_fallback(end, &held),
            Step::Claim { .. } | Step::LoadUnleased => return Ok(Begun::Alone),
        };
        if let Ok(FlightResult::Head(..) | FlightResult::Alone(_)) = end.outcome {
            return Ok(Begun::Alone);
        }
        let loaded = value_of(end.outcome, &core.counters)?;
        let mut load = None;
        if let Some(old) = end.refresh
            && core.loads.refreshes.begin(&self.asked.key, old.fence)
            && let Some(begun) = self.behind(flight::current()).begin_behind(old).await
        {
            core.counters.loads.add();
            load = Some(*begun);
        }
        let is_old = loaded.source == Source::Stale || load.is_some();
        Ok(if is_old { Begun::Stale(loaded, load) } else { Begun::Ready(loaded) })
    }

    /// Begins to refresh an entry, unless a refresh is under way or was tried lately.
    fn begin_refresh(&self, work: Work<V>, previous: Arc<Previous<V>>) {
        let AskedKey { core, key, .. } = &self.asked;
        if !core.loads.refreshes.begin(key, previous.fence) {
            return;
        }
        let span = self.caller.in_scope(|| spans::refresh_behind(key));
        // The caller of the leader, who may poll this, may be a loader.
        let refreshed = self.behind(None).refresh(work, previous, span.clone());
        core.loads.begun.spawn(refreshed.instrument(span));
    }

    /// Returns the run of a refresh, which belongs to the flight of `loader`, if a loader asks for
    /// it.
    fn behind(&self, loader: Option<u64>) -> Self {
        Self {
            asked: self.asked.clone(),
            leader: Leader::alone(loader),
            start: RunStart::Behind,
            caller: Span::none(),
        }
    }

    /// Refreshes an entry under the lease, if the process gets the lease and a permit at once.
    async fn refresh(self, work: Work<V>, previous: Arc<Previous<V>>, span: Span) {
        let AskedKey { core, key, .. } = &self.asked;
        let seen = previous.fence;
        let refreshed = async {
            let load = self.begin_behind(previous).await?;
            core.loads.refreshes.note(EntryNote::Refreshed, key, seen, core.settings.lease);
            Some(self.load_leased(work, load).await.outcome)
        };
        let outcome = tokio::select! {
            biased;
            () = core.loads.refreshes.stop.cancelled() => {
                return debug!("refresh cancelled by the shutdown");
            }
            // A panic of a codec ends the refresh, and nothing else.
            refreshed = AssertUnwindSafe(refreshed).catch_unwind() => match refreshed {
                Ok(Some(outcome)) => outcome,
                Ok(None) => return spans::ended(&span, "not_begun", None),
                Err(panic) => Err(loader::panicked(panic.as_ref())),
            }
        };
        spans::ended(&span, result(&outcome, true), outcome.as_ref().err());
        let backs_off = outcome.is_err_and(|error| error.retry_after().is_some());
        if !backs_off {
            // The next refresh may be of a caller that gets another answer.
            let pause = if self.fails_alone() { Duration::ZERO } else { PAUSE };
            core.loads.refreshes.note(EntryNote::Refreshed, key, seen, pause);
        }
    }

    /// Returns a load that refreshes an entry, if the process gets the lease and a permit at once.
    async fn begin_behind(&self, previous: Arc<Previous<V>>) -> Option<Box<Load<V>>> {
        let AskedKey { core, key, .. } = &self.asked;
        let seen = previous.fence;
        let Some(permit) = core.loads.permit(&self.asked.options, Duration::ZERO).await else {
            debug!("no refresh: too many loads are under way");
            core.loads.refreshes.note(EntryNote::Refreshed, key, seen, Duration::ZERO);
            return None;
        };
        let mut held = Held { permit: Some(permit), previous: Some((previous, Epoch::END)) };
        match self.claim(seen, &mut held).await {
            // After a shutdown, no load begins.
            Step::Load(load) if !core.loads.begun.is_closed() => {
                core.counters.refreshes.add();
                Some(load)
            }
            _ => None,
        }
    }

    /// Looks for the callers that joined too late for the outcome, and lands for these callers.
    /// Without an answer, these callers get the value that was loaded, or join anew: the key may
    /// have a new flight.
    async fn land_late(&self, late: ForLate) {
        let outcome = match late {
            ForLate::Degraded => self.led().map(degraded),
            ForLate::Look | ForLate::Fallback => self.look_for_late(late).await,
        };
        self.leader.land_late(match outcome {
            Some(outcome) => Landing::Outcome(outcome),
            None => Landing::JoinAnew,
        });
    }

    async fn look_for_late(&self, late: ForLate) -> Option<Outcome<V>> {
        let found = match self.asked.stored(&self.asked.options.rules).await {
            Decision::Unanswered(_) => return self.away_for_late(),
            Decision::Old(previous) if late == ForLate::Fallback => previous.fallback(),
            decision => decision.value(),
        };
        Some(Ok(FlightResult::Loaded(found?)))
    }

    /// Returns the outcome of late joiners whose look has no answer.
    fn away_for_late(&self) -> Option<Outcome<V>> {
        let mut held = Held::NOTHING;
        if let Step::Land(end) = self.away(&mut held) {
            return Some(end.outcome);
        }
        // The late joiners may know of the act for which a value was refused. The answer to its
        // commit may have come after its windows.
        let loaded = self.led()?;
        let is_fresh = !loaded.expires_in()?.is_zero();
        if is_fresh { Some(degraded(loaded)) } else { None }
    }

    /// Returns the value that the flight has landed with, if its own load has made the value.
    fn led(&self) -> Option<Loaded<V>> {
        match self.leader.outcome()?.as_ref() {
            Ok(FlightResult::Loaded(loaded)) if loaded.source == Source::Led => {
                Some(loaded.clone())
            }
            _ => None,
        }
    }

    /// Waits for a permit to load in this process, or returns how the run ends without one. A load
    /// that a loader waits for needs no permit, or loads could wait for each other.
    async fn permit(&self) -> Result<Option<Permit>, FlightEnd<V>> {
        let AskedKey { core, options, .. } = &self.asked;
        let sharing = &options.sharing;
        let limit = if sharing.never_queues { Duration::ZERO } else { options.wait_limit };
        let permit = tokio::select! {
            biased;
            () = self.leader.needed_by_loader() => return Ok(None),
            permit = core.loads.permit(options, limit) => permit,
        };
        permit.map(Some).ok_or_else(|| {
            if sharing.passes_full {
                return FlightEnd::alone(Alone::Full);
            }
            let loads = core.settings.max_loads;
            let words = format!("{loads} loads are under way: ask later, or raise `max_loads`");
            FlightEnd::failed(Error::new(ErrorKind::Overloaded, words))
        })
    }

    /// Reads the value that may be served in place of a load that is too slow for its caller.
    pub(super) async fn in_place_of_slow_load(&self, rules: &Rules) -> Option<Loaded<V>> {
        // To ask a silent server takes as long as its time-out, so the memory comes first.
        if self.asked.shard.breaker.is_silent()
            && let Some(old) = self.asked.remembered(rules)
        {
            return Some(old);
        }
        match self.asked.stored(rules).await {
            Decision::Unanswered(_) => self.asked.remembered(rules),
            decision => decision.value_or_fallback(),
        }
    }

    /// Returns whether a failed load decides nothing for other callers.
    fn fails_alone(&self) -> bool {
        self.asked.options.sharing.fails_alone
    }

    /// Returns whether only a value whose load begins in this run is good enough.
    fn wants_new(&self) -> bool {
        matches!(self.start, RunStart::Supersede(_))
    }
}

impl<V: Clone + Send + Sync + 'static> AskedKey<V> {
    fn new(core: &Arc<Core<V>>, key: &Key, options: Arc<Options>) -> Result<Self, Error> {
        let name = core.name(key)?;
        let shard = core.backend.shard_of(&name);
        Ok(Self { core: core.clone(), key: key.clone(), name, shard, options })
    }

    /// Returns the value that this process remembers in an outage, also a value that is kept for
    /// failures only.
    fn remembered(&self, rules: &Rules) -> Option<Loaded<V>> {
        let outage = self.shard.breaker.outage()?;
        let decision = self.core.recall(&self.key, &self.name, rules, outage)?;
        let old = decision.value_or_fallback()?;
        Some(Loaded { source: Source::Degraded, ..old })
    }

    /// Asks the backend for the entry, unless the backend has not answered lately.
    async fn stored(&self, rules: &Rules) -> Decision<V> {
        let core = &self.core;
        let breaker = &self.shard.breaker;
        if breaker.is_troubled() && !breaker.admits() {
            return Decision::Unanswered(silence());
        }
        let decision = core.read(&self.key, &self.name, rules).await;
        match &decision {
            Decision::Unanswered(error) => breaker.failed(error, &core.counters),
            _ if breaker.is_troubled() => breaker.answered(false, &core.counters),
            _ => {}
        }
        decision
    }

    /// Returns how the lease of a load is kept. The hold includes the commit after the load. A
    /// renewal that fails is repeated several times before the lease ends.
    fn upkeep(&self) -> Upkeep {
        let settings = &self.core.settings;
        let load = settings.load_limit.saturating_add(self.options.sharing.rest_limit);
        let max_hold = load.saturating_add(settings.lease);
        Upkeep { renew_every: Some(settings.lease / 3), max_hold }
    }

    /// Returns the limit of a second try, if the first one had no answer: perhaps only the answer
    /// was lost. The backend recognises the repetition.
    ///
    /// The limit includes what the first try left of its limit, because a connection that breaks
    /// ends a try early.
    fn second_try<T>(&self, first: Instant, answer: &Result<T, BackendError>) -> Option<Duration> {
        let Err(error) = answer else { return None };
        if error.kind() != BackendErrorKind::Unknown || self.shard.breaker.is_open() {
            return None;
        }
        let left = self.core.backend.try_limit.saturating_sub(first.elapsed());
        Some(left.saturating_add(SECOND_TRY))
    }
}

fn degraded<V>(loaded: Loaded<V>) -> Outcome<V> {
    Ok(FlightResult::Loaded(Loaded::degraded(loaded.value)))
}

/// How much longer the second try of a claim or a commit may take, after the first had no answer.
/// It is enough for a new connection and a round trip.
const SECOND_TRY: Duration = Duration::from_millis(150);

/// Returns the error for a backend that the breaker keeps a caller from, or whose answer the
/// breaker has ended.
fn silence() -> BackendError {
    BackendError::new(BackendErrorKind::Unknown, "the backend does not answer")
}
