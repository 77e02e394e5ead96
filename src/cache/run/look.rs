//! The look of a leader into the backend, and the claim of the leader: the claim acquires the
//! lease, or waits for what the holder of the lease makes.

use std::{
    convert::Infallible,
    ops::ControlFlow::{self, Break, Continue},
    pin::pin,
    time::Duration,
};

use tokio::{
    sync::SemaphorePermit,
    time::{Instant, sleep},
};
use tracing::{Span, debug};

use super::{
    AskedKey, DueRefresh, FlightEnd, Held, Load, LoneLook, Looked, Run, RunStart, Step, silence,
};
use crate::{
    backend::{
        Announcement, BackOff, Change, Claim, Claimed, Entry, EntryKind, Failure, Mode, Occupied,
    },
    cache::{
        Loaded, Source,
        core::CacheBackend,
        outcome::{Alone, FlightResult, result},
        read::Decision,
        refreshes::EntryNote,
    },
    error::BackendError,
    flight::{self, Epoch, Leader},
    lease::{Acquisition, Waiting, Woken},
    random,
};

impl<V: Clone + Send + Sync + 'static> Run<V> {
    /// Asks the backend for the entry, unless the run needs none, or a call for many keys has done
    /// so.
    pub(super) async fn look(&self, held: &mut Held<V>) -> Step<V> {
        let options = &self.asked.options;
        if let RunStart::Unleased = self.start {
            return Step::LoadUnleased;
        }
        if let Some(seen) = options.batch.as_ref().and_then(|member| member.missed) {
            // If there is an entry by now, the claim returns it.
            return Step::Claim { seen };
        }
        let _turn = self.turn().await;
        let epoch = self.leader.begin_epoch();
        let decision = self.asked.stored(&options.rules).await;
        self.after_look(decision, epoch, held)
    }

    /// Returns the step that follows a look, whose read began in this epoch.
    fn after_look(&self, decision: Decision<V>, epoch: Epoch, held: &mut Held<V>) -> Step<V> {
        match (decision, self.start) {
            // The load needs a lease with a greater fence, whatever there is.
            (decision, RunStart::Supersede(seen)) => {
                if let Decision::Served(_, Some(previous)) | Decision::Old(previous) = decision {
                    held.previous = Some((previous, epoch));
                }
                Step::Claim { seen }
            }
            (Decision::Served(loaded, refresh), _) => {
                Step::Land(FlightEnd { refresh, ..FlightEnd::found(loaded, epoch) })
            }
            (decision, _) => self.decided(decision, epoch, held),
        }
    }

    /// Waits for a turn to ask the shard. A run without a flight asks without a turn, because the
    /// caller may stop polling, and a turn of that caller would block the queue for all. Every run
    /// does so while the breaker is open, because a turn would be kept for a whole time-out.
    pub(super) async fn turn(&self) -> Option<SemaphorePermit<'_>> {
        if self.leader.is_alone() {
            return None;
        }
        let shard = &self.asked.shard;
        let turn = shard.permits.acquire().await.ok()?;
        if shard.breaker.is_open() { None } else { Some(turn) }
    }

    /// Returns the step that follows a decision about an entry of another process.
    fn decided(&self, decision: Decision<V>, epoch: Epoch, held: &mut Held<V>) -> Step<V> {
        match decision {
            Decision::Served(loaded, _) => {
                let loaded = Loaded { source: Source::Received, ..loaded };
                Step::Land(FlightEnd::found(loaded, epoch))
            }
            Decision::Old(previous) => {
                let AskedKey { core, key, .. } = &self.asked;
                let seen = previous.fence;
                held.previous = Some((previous, epoch));
                if core.loads.refreshes.knows(EntryNote::BacksOff, key, seen)
                    && let Some(end) = held.fallback()
                {
                    core.counters.backed_off.add();
                    return Step::Land(end);
                }
                Step::Claim { seen }
            }
            Decision::Miss { seen } => Step::Claim { seen },
            Decision::Unanswered(_) => self.away(held),
            Decision::Uncacheable { seen } => {
                let sharing = &self.asked.options.sharing;
                if sharing.claims_uncacheable {
                    Step::Claim { seen }
                } else if sharing.passes_uncacheable {
                    Step::Land(FlightEnd::alone(Alone::Uncacheable))
                } else {
                    Step::LoadUnleased
                }
            }
        }
    }

    /// Returns the step of a run that the backend does not answer. A value that this process
    /// remembers is served, where its windows allow it.
    pub(super) fn away(&self, held: &mut Held<V>) -> Step<V> {
        let AskedKey { core, key, name, shard, .. } = &self.asked;
        // A refresh does not want an old value.
        let outage = shard.breaker.outage().filter(|_| matches!(self.start, RunStart::Look));
        let epoch = self.leader.begin_epoch();
        let rules = &self.asked.options.rules;
        match outage.and_then(|outage| core.recall(key, name, rules, outage)) {
            Some(Decision::Old(previous)) => {
                held.previous.get_or_insert((previous, epoch));
            }
            Some(Decision::Served(loaded, _)) => {
                return Step::Land(FlightEnd::found(loaded, epoch));
            }
            _ => {}
        }
        Step::LoadUnleased
    }

    /// Claims the lease, or waits for what its holder makes. `seen` is the fence of the last entry
    /// that was not good enough.
    pub(super) async fn claim(&self, seen: u64, held: &mut Held<V>) -> Step<V> {
        let AskedKey { core, name, options, .. } = &self.asked;
        if options.sharing.is_local {
            return Step::LoadUnleased;
        }
        let CacheBackend { store, engine, fence_life, .. } = &core.backend;
        let settings = &core.settings;
        let owner = store.new_owner();
        let mut claim =
            Claim::with_owner(owner, name.clone(), Mode::Exclusive, settings.lease, *fence_life);
        // The claims of a cache have no queue at the backend.
        claim.waits = false;
        claim.listens = !matches!(self.start, RunStart::Behind);
        let mut waiting = Waiting::new(settings.retry.as_ref(), options.wait_limit, Instant::now());
        let acquisition = Acquisition::new(&engine.janitor, claim);
        let mut claiming =
            Claiming { run: self, held, acquisition, seen, epoch: Epoch::END, met: 0 };
        let Break(step) = claiming.settle(&mut waiting).await;
        if let Step::Land(end) = &step {
            core.meter.woken(waiting.pushed_at, result(&end.outcome, true));
        }
        step
    }
}

impl<V: Clone + Send + Sync + 'static> AskedKey<V> {
    /// Reads the entry for one caller, without a flight. A fresh value is served without a run.
    pub(super) async fn read_alone(&self) -> LoneLook<V> {
        let Ok(turn) = self.shard.lone_looks.try_acquire() else { return LoneLook::NoTurn };
        let decision = self.stored(&self.options.rules).await;
        drop(turn);
        if let Decision::Served(loaded, None) = decision {
            return LoneLook::Served(Ok(FlightResult::Loaded(loaded)));
        }
        let run = Run {
            asked: self.clone(),
            leader: Leader::alone(flight::current()),
            start: RunStart::Look,
            caller: Span::current(),
        };
        let mut held = Held::NOTHING;
        match run.after_look(decision, Epoch::LEADER, &mut held) {
            Step::Land(FlightEnd { outcome, refresh: None, .. }) => LoneLook::Served(outcome),
            Step::Land(FlightEnd { outcome, refresh: Some(previous), .. }) => {
                LoneLook::Refreshes(outcome, Box::new(DueRefresh { run, previous }))
            }
            step => LoneLook::Loads(Box::new(Looked { step, held })),
        }
    }
}

struct Claiming<'a, V> {
    run: &'a Run<V>,
    held: &'a mut Held<V>,
    acquisition: Acquisition,
    /// The fence of the last entry that was not good enough.
    seen: u64,
    /// The epoch of the last request: later joiners have no part in its answer.
    epoch: Epoch,
    /// The fence of the holder that was in the way.
    met: u64,
}

/// Breaks with the step that the claim leads to.
type ClaimFlow<V, T> = ControlFlow<Step<V>, T>;

impl<V: Clone + Send + Sync + 'static> Claiming<'_, V> {
    /// Asks, and waits while another holder is in the way, until the next step is known.
    async fn settle(&mut self, waiting: &mut Waiting<'_>) -> ClaimFlow<V, Infallible> {
        let mut is_last = false;
        loop {
            let Some(remaining) = self.ask(is_last, waiting).await? else { continue };
            let Some(wake) = waiting.wakes_after_answer(&mut self.acquisition, remaining) else {
                is_last = true;
                continue;
            };
            // In a box, so that a claim that need not wait stays small.
            let woken = Box::pin(waiting.sleep(&mut self.acquisition, wake));
            let woken = tokio::select! {
                woken = woken => woken,
                () = self.run.asked.shard.breaker.opened() => {
                    debug!("nothing can be pushed any more");
                    return Break(self.run.away(self.held));
                }
            };
            match woken {
                Woken::Again => {}
                Woken::TimeUp => is_last = true,
                Woken::Pushed(change) => Box::pin(self.pushed(change, waiting.left())).await?,
            }
        }
    }

    /// Asks once. Returns for how long another holder is in the way, unless the leader can ask
    /// again at once.
    async fn ask(
        &mut self,
        is_last: bool,
        waiting: &mut Waiting<'_>,
    ) -> ClaimFlow<V, Option<Duration>> {
        let run = self.run;
        let shard = &run.asked.shard;
        if self.held.permit.is_none() {
            self.permitted(waiting).await?;
        }
        let turn = run.turn().await;
        if !shard.breaker.admits_claim() {
            return Break(run.away(self.held));
        }
        self.epoch = run.leader.begin_epoch();
        let answer = self.ask_backend().await;
        drop(turn);
        match answer {
            Ok(Claimed::Granted(grant)) => {
                let engine = &run.asked.core.backend.engine;
                let Some(guard) = engine.hold(&mut self.acquisition, run.asked.upkeep()) else {
                    return Break(run.away(self.held));
                };
                let load = Load::granted(run, self.held, guard, grant, self.epoch).await;
                Break(Step::Load(Box::new(load)))
            }
            Ok(Claimed::BacksOff(back_off, failure)) => Break(self.backs_off(back_off, &failure)),
            Ok(Claimed::Newer(entry)) => self.received(entry).await.map_continue(|()| None),
            Ok(Claimed::Occupied(occupied)) => self.occupied(&occupied, is_last).map_continue(Some),
            Err(error) => {
                // A request that an open breaker has cut short says nothing.
                if !shard.breaker.is_open() {
                    shard.breaker.failed(&error, &run.asked.core.counters);
                }
                Break(run.away(self.held))
            }
        }
    }

    /// Waits for a permit to load. Meanwhile the load that was in the way may end, which makes this
    /// one needless.
    async fn permitted(&mut self, waiting: &mut Waiting<'_>) -> ClaimFlow<V, ()> {
        let mut permit = pin!(self.run.permit());
        let permitted = loop {
            tokio::select! {
                biased;
                permitted = &mut permit => break permitted,
                (change, at) = self.acquisition.listen().next_push(), if self.met > 0 => {
                    waiting.pushed_at = Some(at);
                    Box::pin(self.pushed(change, waiting.left())).await?;
                }
            }
        };
        match permitted {
            Ok(permit) => {
                self.held.permit = permit;
                Continue(())
            }
            Err(end) => Break(self.look_instead(end).await),
        }
    }

    /// Looks once more, where this process may not load: another process may have loaded meanwhile.
    async fn look_instead(&mut self, end: FlightEnd<V>) -> Step<V> {
        // A refresh does not want an old value.
        if self.run.wants_new() {
            return Step::Land(end);
        }
        let _turn = self.run.turn().await;
        let epoch = self.run.leader.begin_epoch();
        let decision = self.run.asked.stored(&self.run.asked.options.rules).await;
        match self.run.decided(decision, epoch, self.held) {
            step @ Step::Land(..) => step,
            _ => Step::Land(end),
        }
    }

    async fn ask_backend(&mut self) -> Result<Claimed, BackendError> {
        let AskedKey { core, shard, .. } = &self.run.asked;
        let CacheBackend { store, try_limit, .. } = &core.backend;
        let first = Instant::now();
        let mut limit = *try_limit;
        let mut is_second = false;
        let answer = loop {
            self.acquisition.listen();
            let claim = self.acquisition.send(limit, |_, claim| store.claim(claim, self.seen));
            let answer = core.counted(tokio::select! {
                biased;
                answer = claim => answer,
                // Others have waited for a time-out already.
                () = shard.breaker.opened() => Err(silence()),
            });
            match self.run.asked.second_try(first, &answer) {
                Some(more) if !is_second => {
                    limit = more;
                    is_second = true;
                }
                _ => break answer,
            }
        };
        if let Ok(claimed) = &answer {
            let is_granted = matches!(claimed, Claimed::Granted(_));
            shard.breaker.answered(is_granted, &core.counters);
        }
        answer
    }

    /// Breaks with the step that a push settles. Otherwise the leader asks again.
    async fn pushed(&mut self, change: Change, left: Duration) -> ClaimFlow<V, ()> {
        let AskedKey { core, key, .. } = &self.run.asked;
        if matches!(change, Change::Announced(_) | Change::Invalidated(_)) {
            core.local.drop_copy(key);
        }
        match change {
            Change::Entry(entry) if !self.is_late(entry.fence) => self.received(entry).await,
            Change::Announced(announced) if !self.is_late(announced.fence) => {
                self.fetch(&announced, left).await
            }
            Change::Failed(failure) if !self.is_late(failure.fence()) => {
                Break(Step::Land(FlightEnd::failed(core.loads.failures.of_another(failure))))
            }
            // The load that was in the way made nothing for other callers. Their patience is
            // bounded. A flight that waits once claims again, and waits no more.
            Change::Wake if self.run.fails_alone() && !self.waits_once() => {
                Break(Step::Land(FlightEnd::alone(Alone::Reserved)))
            }
            _ => Continue(()),
        }
    }

    /// Returns whether a push is late. A push that is older than the present holder is late or
    /// doubled. For a refresh, a push under a fence that the run has seen is late, too: if a
    /// failover has lost the fence of the refresh, such a load may have begun before the refresh.
    fn is_late(&self, fence: u64) -> bool {
        fence < self.met || (self.run.wants_new() && fence <= self.seen)
    }

    fn waits_once(&self) -> bool {
        self.run.asked.options.sharing.waits_once
    }

    /// Fetches an entry that is too large to be pushed, when it is this process's turn, within half
    /// of the time `left`. If the entry is gone or of no use, the process claims the lease.
    async fn fetch(&mut self, announced: &Announcement, left: Duration) -> ClaimFlow<V, ()> {
        let run = self.run;
        let AskedKey { core, name, shard, .. } = &run.asked;
        tokio::select! {
            biased;
            () = sleep(turn_to_fetch(announced).min(left / 2)) => {}
            () = shard.breaker.opened() => return Break(run.away(self.held)),
        }
        let turn = run.turn().await;
        self.epoch = run.leader.begin_epoch();
        let fetched = core.counted(core.backend.store.get(name).await);
        drop(turn);
        match fetched {
            Ok(Some(entry)) if entry.fence >= announced.fence => self.received(entry).await,
            _ => Continue(()),
        }
    }

    /// Breaks with the step that follows an entry of another process, if the entry is of use.
    /// Otherwise the next claim has seen it.
    async fn received(&mut self, entry: Entry) -> ClaimFlow<V, ()> {
        let AskedKey { core, key, name, .. } = &self.run.asked;
        let options = &self.run.asked.options;
        let is_uncacheable = entry.kind == EntryKind::Uncacheable;
        if is_uncacheable && options.sharing.claims_uncacheable {
            return Break(Step::Land(FlightEnd::alone(Alone::Uncacheable)));
        }
        let mut answer = Ok(Some(entry));
        core.judge(key, &mut answer).await;
        // A push may be of an entry that is not stored, so the entry is not remembered.
        core.local.drop_copy(key);
        let decision = core.decide(name, &options.rules, &mut answer);
        match self.run.decided(decision, self.epoch, self.held) {
            Step::Claim { seen } => {
                self.seen = seen.max(self.seen);
                Continue(())
            }
            step => Break(step),
        }
    }

    fn backs_off(&self, back_off: BackOff, failure: &Failure) -> Step<V> {
        debug!(?back_off, "the key backs off");
        let asked = &self.run.asked;
        asked.core.counters.backed_off.add();
        if let Some((previous, _)) = &self.held.previous {
            asked.leave_alone(previous.fence, back_off.wait);
        }
        let error = asked.core.loads.failures.backing_off(failure, back_off.wait);
        Step::Land(FlightEnd { epoch: self.epoch, ..FlightEnd::failed(error) })
    }

    /// Returns for how long another holder is in the way, if the leader waits for it.
    fn occupied(&mut self, occupied: &Occupied, is_last: bool) -> ClaimFlow<V, Duration> {
        // A leader that waits for another process needs no permit to load.
        self.held.permit = None;
        let AskedKey { core, key, .. } = &self.run.asked;
        let options = &self.run.asked.options;
        options.will_wait();
        let &Occupied { fence, remaining, .. } = occupied;
        if let RunStart::Behind = self.run.start {
            debug!("another process refreshes");
            let pause = if self.run.fails_alone() { remaining.min(MEANWHILE) } else { remaining };
            core.loads.refreshes.note(EntryNote::Refreshed, key, self.seen, pause);
            return Break(Step::LoadUnleased);
        }
        let before = std::mem::replace(&mut self.met, fence);
        let is_next = before != 0 && before != fence;
        if is_last || (is_next && self.waits_once()) {
            debug!("the wait for another process is over");
            return Break(Step::LoadUnleased);
        }
        debug!(fence, ?remaining, "another process loads");
        Continue(remaining)
    }
}

/// How long a process leaves a refresh to another process whose refresh may fail alone.
const MEANWHILE: Duration = Duration::from_millis(100);

/// The turns that processes choose from if the backend does not know their number.
const TURNS: u32 = 64;

/// Returns how long a process waits for its turn to fetch an entry: a random turn of as many turns
/// as there are processes. A turn takes 4 ms for 1 MiB. In more turns, fetches would outlast their
/// time-outs.
fn turn_to_fetch(announced: &Announcement) -> Duration {
    let turns = if announced.crowd == 0 { TURNS } else { announced.crowd };
    let bytes = u32::try_from(announced.bytes).unwrap_or(u32::MAX);
    Duration::from_millis(4).mul_f64(f64::from(bytes) / f64::from(1 << 20)) * random::below(turns)
}
