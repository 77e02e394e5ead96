//! The look of a leader into the backend, and its claim: it acquires the lease, or waits for what
//! its holder makes.

use std::{pin::pin, time::Duration};

use tokio::{
    sync::SemaphorePermit,
    time::{Instant, sleep},
};
use tracing::debug;

use super::{AskedKey, FlightEnd, ForLate, Held, Load, Run, RunStart, Step, second_try, silence};
use crate::{
    backend::{
        Announcement, BackOff, Change, Claim, Claimed, Entry, EntryKind, Failure, Grant, Mode,
        Occupied, Owner,
    },
    cache::{
        Loaded, Source,
        breaker::RequestKind,
        core::Decision,
        failures,
        freshness::Rules,
        outcome::{Alone, Outcome},
        previous::Previous,
        refresh::QuietEntry,
        settings::OnUncacheable,
    },
    error::{BackendError, BackendErrorKind, Chain, Error},
    flight::Epoch,
    lease::{Acquisition, Waiting, Woken},
};

impl<V: Clone + Send + Sync + 'static> Run<V> {
    /// Asks the backend for the entry, unless a call for many keys has done so.
    pub(super) async fn look(&self) -> Step<V> {
        let member = self.asked.options().batch.as_ref();
        if let Some(seen) = member.and_then(|member| member.missed) {
            // If there is an entry by now, the claim returns it.
            return Step::Claim { seen, previous: None };
        }
        let _turn = match self.asked.shard.at_once.try_acquire() {
            Ok(turn) => Some(turn),
            // In a box, which most looks do not need.
            Err(_) => Box::pin(self.turn()).await,
        };
        // Pinned here, since a future holds its arguments twice.
        let stored = pin!(self.asked.stored(&self.asked.options().rules));
        let (decision, epoch) = match &self.leader {
            Some(leader) => leader.ask(stored).await,
            None => (Some(stored.await), Epoch::END),
        };
        match decision {
            Some(Decision::Served(loaded)) => Step::Land(FlightEnd::found(loaded, epoch)),
            Some(Decision::Refresh(loaded, previous)) => {
                Step::LandAndRefresh(FlightEnd::found(loaded, epoch), previous)
            }
            Some(decision) => self.decided(decision, epoch),
            None => self.away(),
        }
    }

    /// Waits for a turn to ask the shard, in a task. A caller that polls the work may stop, and
    /// would block the queue for all. One without a leader has no task, so it asks without a turn.
    pub(super) async fn turn(&self) -> Option<SemaphorePermit<'_>> {
        let leader = self.leader.as_ref()?;
        // A refresh behind its callers is a task from its beginning.
        if self.start != RunStart::Behind {
            leader.own_task().await;
        }
        self.asked.shard.turn().await
    }

    /// Asks for the entry that a refresh is to replace, and has none if there is no answer. The
    /// load needs a lease with a greater fence.
    pub(super) async fn look_for_old(&self, fence: u64) -> Step<V> {
        let _turn = self.turn().await;
        let epoch = self.begin_epoch();
        let rules = Rules { replaces: true, ..self.asked.options().rules };
        let previous = match self.asked.stored(&rules).await {
            Decision::Refresh(_, previous) | Decision::Old(previous) => Some((previous, epoch)),
            _ => None,
        };
        Step::Claim { seen: fence, previous }
    }

    /// Returns the step that follows a decision about an entry of another process.
    fn decided(&self, decision: Decision<V>, epoch: Epoch) -> Step<V> {
        match decision {
            Decision::Served(loaded) | Decision::Refresh(loaded, _) => {
                let received = Loaded { source: Source::Received, ..loaded };
                Step::Land(FlightEnd::found(received, epoch))
            }
            Decision::Old(previous) => match self.while_backing_off(&previous, epoch) {
                Some(end) => Step::Land(end),
                None => Step::Claim { seen: previous.fence, previous: Some((previous, epoch)) },
            },
            Decision::Miss { seen } => Step::Claim { seen, previous: None },
            Decision::Unanswered(_) => self.away(),
            Decision::Uncacheable { seen } => match self.asked.options().sharing.on_uncacheable {
                OnUncacheable::Coalesce => Step::LOAD_ALONE,
                OnUncacheable::Pass => Step::Land(FlightEnd::alone(Alone::Uncacheable)),
                OnUncacheable::Claim => Step::Claim { seen, previous: None },
            },
        }
    }

    /// Returns the step of a run that the backend does not answer. A value that this process
    /// remembers is served, where its windows allow it.
    pub(super) fn away(&self) -> Step<V> {
        let AskedKey { core, key, name, shard, .. } = &self.asked;
        // A refresh does not want an old value.
        let is_refresh = self.start == RunStart::Behind || self.wants_new();
        let outage = shard.breaker.outage().filter(|_| !is_refresh);
        let Some(outage) = outage else { return Step::LOAD_ALONE };
        let epoch = self.begin_epoch();
        let previous = match core.recall(key, name, &self.asked.options().rules, outage) {
            Some(Decision::Old(previous)) => Some((previous, epoch)),
            Some(decision) => match decision.value() {
                Some(loaded) => return Step::Land(FlightEnd::found(loaded, epoch)),
                None => None,
            },
            None => None,
        };
        Step::LoadAlone { outage: Some(outage), previous }
    }

    /// Returns the end with the entry that is served in place of a load, if this process knows that
    /// the key backs off.
    fn while_backing_off(&self, previous: &Previous<V>, epoch: Epoch) -> Option<FlightEnd<V>> {
        let AskedKey { core, key, .. } = &self.asked;
        if !core.refreshes.knows(QuietEntry::BacksOff, key, previous.fence) {
            return None;
        }
        let end = FlightEnd::fallback(previous, epoch)?;
        core.counters.backed_off.add();
        Some(end)
    }

    /// Looks once more, where this process may not load: another process may have loaded meanwhile.
    async fn look_instead(&self, error: Error) -> FlightEnd<V> {
        let _turn = self.turn().await;
        let epoch = self.begin_epoch();
        let decision = self.asked.stored(&self.asked.options().rules).await;
        match decision.value() {
            Some(loaded) => {
                let is_hit = loaded.source == Source::Hit;
                let source = if is_hit { Source::Received } else { loaded.source };
                FlightEnd::found(Loaded { source, ..loaded }, epoch)
            }
            None => self.full(error),
        }
    }

    /// Claims the lease, or waits for what its holder makes. `seen` is the fence of the last entry
    /// that was not good enough.
    pub(super) async fn claim(&self, seen: u64, held: &mut Held<V>) -> Step<V> {
        let (core, options) = (&self.asked.core, self.asked.options());
        let settings = &core.settings;
        let name = self.asked.name.clone();
        let mut claim = Claim::new(name, Mode::Exclusive, settings.lease, settings.fence_life());
        // The claims of a cache have no queue at the backend.
        claim.waits = false;
        claim.listens = self.start != RunStart::Behind;
        let (engine, retry) = (&core.engine, settings.retry.as_ref());
        let limit = options.wait_limit;
        let mut waiting = Waiting::new(engine.janitor(), claim.clone(), retry, limit);
        let mut claiming = Claiming {
            run: self,
            held,
            acquisition: Acquisition::new(engine.janitor().clone(), claim),
            seen,
            unanswered: None,
            asked_at: Instant::now(),
            time_up: false,
            epoch: Epoch::END,
            fence: 0,
            told: None,
        };
        let step = claiming.settle(&mut waiting).await;
        if let Step::Land(end) = &step {
            core.meter.woken(waiting.pushed_at, end.outcome.result(true));
        }
        step
    }
}

/// The next act of the leader after one request.
enum AskOutcome<V> {
    Settled(Step<V>),
    /// It asks again at once.
    Again,
    /// It waits: another holder is in the way, for so long.
    Occupied(Duration),
}

/// The claim of one leader.
struct Claiming<'a, V> {
    run: &'a Run<V>,
    held: &'a mut Held<V>,
    acquisition: Acquisition,
    /// The fence of the last entry that was not good enough.
    seen: u64,
    /// When the last request began, if it had no answer. Perhaps only the answer was lost, so the
    /// same owner asks a second time.
    unanswered: Option<Instant>,
    /// When the last request that was not a repetition began.
    asked_at: Instant,
    /// The wait for another process is over, and the last request decides.
    time_up: bool,
    /// The epoch of the last request: later joiners have no part in its answer.
    epoch: Epoch,
    /// The fence of the holder that was in the way.
    fence: u64,
    /// A push of the holder that tells of an entry.
    told: Option<Change>,
}

impl<V: Clone + Send + Sync + 'static> Claiming<'_, V> {
    /// Asks, and waits while another holder is in the way, until the next step is known.
    async fn settle(&mut self, waiting: &mut Waiting<'_>) -> Step<V> {
        loop {
            let remaining = match self.ask(waiting).await {
                AskOutcome::Settled(step) => return step,
                AskOutcome::Again => continue,
                AskOutcome::Occupied(remaining) => remaining,
            };
            let woken = tokio::select! {
                // In a box, so that a claim that need not wait stays small.
                woken = Box::pin(waiting.after(Some(remaining))) => woken,
                () = self.run.asked.shard.breaker.opened() => {
                    debug!("nothing can be pushed any more");
                    return self.run.away();
                }
            };
            match woken {
                Woken::Again => {}
                Woken::TimeUp => self.time_up = true,
                Woken::Pushed(change) => {
                    if let Some(step) = self.pushed(change) {
                        return step;
                    }
                }
            }
        }
    }

    async fn ask(&mut self, waiting: &mut Waiting<'_>) -> AskOutcome<V> {
        let (run, core, shard) = (self.run, &self.run.asked.core, &self.run.asked.shard);
        if let Some(step) = self.follow_push(waiting.left()).await {
            return AskOutcome::Settled(step);
        }
        if let Err(error) = run.permit(self.held).await {
            return AskOutcome::Settled(Step::Land(run.look_instead(error).await));
        }
        let turn = run.turn().await;
        if !shard.breaker.admits_claim() {
            return AskOutcome::Settled(run.away());
        }
        if shard.breaker.is_unconfirmed() {
            self.probe();
            return AskOutcome::Settled(run.away());
        }
        // Another process is likely to load. A second claim would read its entry out of turn.
        waiting.listen();
        self.epoch = run.begin_epoch();
        let answer = self.ask_once().await;
        drop(turn);
        if let Ok((claimed, _)) = &answer {
            let is_granted = matches!(claimed, Claimed::Granted(_));
            shard.breaker.answered(RequestKind::changed(is_granted), &core.counters);
        }
        match core.counted(answer) {
            Ok((Claimed::Granted(grant), sent)) => AskOutcome::Settled(self.granted(&grant, sent)),
            Ok((Claimed::BacksOff(back_off, failure), _)) => {
                AskOutcome::Settled(self.backs_off(back_off, &failure))
            }
            Ok((Claimed::Newer(entry), _)) => match self.received(entry).await {
                None => AskOutcome::Again,
                Some(step) => AskOutcome::Settled(step),
            },
            Ok((Claimed::Occupied(occupied), _)) => self.occupied(&occupied),
            Err(error) => self.failed(&error),
        }
    }

    /// Returns the step that a push settles. Otherwise the leader asks again.
    fn pushed(&mut self, change: Change) -> Option<Step<V>> {
        let AskedKey { core, key, .. } = &self.run.asked;
        if matches!(change, Change::Announced(_) | Change::Invalidated(_)) {
            core.drop_copy(key);
        }
        match change {
            // A push that is older than the present holder is late or doubled.
            Change::Entry(Entry { fence, .. }) | Change::Announced(Announcement { fence, .. })
                if fence >= self.fence =>
            {
                self.told = Some(change);
                None
            }
            Change::Failed(failure) if failure.fence() >= self.fence => {
                let codec = core.error_codec.as_deref();
                Some(Step::Land(FlightEnd::failed(failures::error(codec, failure))))
            }
            _ => None,
        }
    }

    /// Asks for what a push has left open. Returns the step that follows the entry, if it is of
    /// use.
    async fn follow_push(&mut self, left: Duration) -> Option<Step<V>> {
        match self.told.take()? {
            Change::Announced(announced) => self.fetch(&announced, left).await,
            Change::Entry(entry) => self.received(entry).await,
            _ => None,
        }
    }

    /// Fetches an entry that is too large to be pushed, when it is this process's turn, within half
    /// of the time `left`.
    ///
    /// All processes hear of the entry at once. If all fetched it at once, their requests would
    /// wait for each other beyond their time-outs, and each process would load by itself.
    ///
    /// Returns `None` if the entry is gone or of no use. The process then claims the lease.
    async fn fetch(&mut self, announced: &Announcement, left: Duration) -> Option<Step<V>> {
        let (run, AskedKey { core, name, shard, .. }) = (self.run, &self.run.asked);
        tokio::select! {
            biased;
            () = sleep(turn_to_fetch(announced).min(left / 2)) => {}
            () = shard.breaker.opened() => return Some(run.away()),
        }
        let turn = run.turn().await;
        self.epoch = run.begin_epoch();
        let fetched = core.counted(core.store.get(name).await);
        drop(turn);
        match fetched {
            Ok(entry) => self.received(entry.filter(|it| it.fence >= announced.fence)?).await,
            Err(error) => {
                debug!(error = %Chain(&error), "an announced entry could not be fetched");
                None
            }
        }
    }

    /// Returns the step that follows an entry of another process, if the entry is of use. If it is
    /// of no use, the next claim has seen it.
    async fn received(&mut self, entry: Entry) -> Option<Step<V>> {
        let AskedKey { core, key, name, .. } = &self.run.asked;
        let options = self.run.asked.options();
        let is_uncacheable = entry.kind == EntryKind::Uncacheable;
        if is_uncacheable && options.sharing.on_uncacheable == OnUncacheable::Claim {
            return Some(Step::Land(FlightEnd::alone(Alone::Uncacheable)));
        }
        let mut answer = Ok(Some(entry));
        core.judge(key, &mut answer).await;
        // A push may be of an entry that is not stored, so it is not remembered.
        core.drop_copy(key);
        match self.run.decided(core.decide(name, &options.rules, answer), self.epoch) {
            Step::Claim { seen, previous } => {
                self.seen = seen.max(self.seen);
                if previous.is_some() {
                    self.held.previous = previous;
                }
                None
            }
            step => Some(step),
        }
    }

    /// Claims once in a task, to see whether replicas confirm grants again. No caller waits for it:
    /// replicas may be away for long.
    fn probe(&self) {
        let AskedKey { core, shard, .. } = self.run.asked.clone();
        let (claim, seen) = (self.acquisition.claim().clone(), self.seen);
        let claim = Claim { owner: Owner::fresh(), listens: false, ..claim };
        let janitor = core.engine.janitor().clone();
        let mut acquisition = Acquisition::new(janitor.clone(), claim);
        // Dropped at the end, the acquisition releases what it was granted.
        janitor.spawn(async move {
            let claim = |_, claim| core.store.claim(claim, seen);
            match core.counted(acquisition.ask(core.try_limit, claim).await) {
                Ok((claimed, _)) => {
                    let is_granted = matches!(claimed, Claimed::Granted(_));
                    shard.breaker.answered(RequestKind::changed(is_granted), &core.counters);
                }
                Err(error) => shard.breaker.failed(&error, &core.counters),
            }
        });
    }

    async fn ask_once(&mut self) -> Result<(Claimed, Instant), BackendError> {
        let AskedKey { core, shard, .. } = &self.run.asked;
        let (seen, limit) = (self.seen, core.try_limit);
        let limit = match self.unanswered {
            Some(first) => second_try(first, limit),
            None => {
                self.asked_at = Instant::now();
                limit
            }
        };
        let claim = |_, claim| async move {
            tokio::select! {
                biased;
                answer = core.store.claim(claim, seen) => answer,
                // Others have waited for a time-out already.
                () = shard.breaker.opened() => Err(silence()),
            }
        };
        self.acquisition.ask(limit, claim).await
    }

    fn granted(&mut self, grant: &Grant, sent: Instant) -> Step<V> {
        let (asked, fence) = (&self.run.asked, grant.fence());
        debug!(fence, "lease taken");
        let upkeep = asked.core.settings.upkeep(asked.options());
        let granted = self.acquisition.settle(upkeep, fence, sent, None);
        let guard = asked.core.engine.hold(granted);
        let load = Load::new(asked.clone(), guard, grant, self.held, self.run);
        Step::Load(Box::new(load), self.epoch)
    }

    /// Returns the step of a run whose claim was told that the key backs off.
    fn backs_off(&self, back_off: BackOff, failure: &Failure) -> Step<V> {
        debug!(?back_off, "the key backs off");
        let AskedKey { core, .. } = &self.run.asked;
        core.counters.backed_off.add();
        if let Some((previous, _)) = &self.held.previous {
            self.run.asked.leave_alone(previous.fence, back_off.wait);
        }
        let error = failures::backing_off(core.error_codec.as_deref(), failure, back_off.wait);
        Step::Land(FlightEnd {
            outcome: Outcome::Failed(error),
            epoch: self.epoch,
            late: ForLate::Look,
        })
    }

    fn occupied(&mut self, occupied: &Occupied) -> AskOutcome<V> {
        // A leader that waits for another process needs no permit to load.
        self.held.permit = None;
        let AskedKey { core, key, .. } = &self.run.asked;
        let options = self.run.asked.options();
        options.will_wait();
        if self.run.start == RunStart::Behind {
            debug!("another process refreshes");
            let time = occupied.remaining;
            core.refreshes.note(QuietEntry::Refreshed, key, self.seen, time);
            return AskOutcome::Settled(Step::LOAD_ALONE);
        }
        self.unanswered = None;
        let met = std::mem::replace(&mut self.fence, occupied.fence);
        let is_next = met != 0 && met != occupied.fence;
        if self.time_up || (is_next && options.sharing.waits_once) {
            debug!("the wait for another process is over");
            return AskOutcome::Settled(Step::LOAD_ALONE);
        }
        debug!(fence = occupied.fence, remaining = ?occupied.remaining, "another process loads");
        AskOutcome::Occupied(occupied.remaining)
    }

    fn failed(&mut self, error: &BackendError) -> AskOutcome<V> {
        let AskedKey { core, shard, .. } = &self.run.asked;
        // A request that an open breaker has cut short says nothing.
        if !shard.breaker.is_open() {
            if error.kind() == BackendErrorKind::Unknown && self.unanswered.is_none() {
                self.unanswered = Some(self.asked_at);
                return AskOutcome::Again;
            }
            shard.breaker.failed(error, &core.counters);
        }
        AskOutcome::Settled(self.run.away())
    }
}

/// For how long each process has the server to itself: 4 ms for an entry of 1 MiB. With more, the
/// fetches would outlast their time-outs.
const BYTES_PER_MS: u32 = 256 << 10;
/// The turns that processes choose from if the backend does not know their number.
const TURNS: u32 = 64;

/// Returns how long a process waits for its turn to fetch an entry: a random one of as many as
/// there are processes.
fn turn_to_fetch(announced: &Announcement) -> Duration {
    let turns = if announced.crowd == 0 { TURNS } else { announced.crowd };
    let turn = fastrand::u32(0..turns);
    let bytes = u32::try_from(announced.bytes).unwrap_or(u32::MAX);
    Duration::from_millis(1).mul_f64(f64::from(bytes) / f64::from(BYTES_PER_MS)) * turn
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn turns_are_spread_by_the_size_of_the_entry() {
        let longest = |bytes, crowd| {
            let turn = |_| turn_to_fetch(&Announcement { fence: 1, bytes, crowd });
            (0..1000).map(turn).max().unwrap_or_default()
        };
        assert_eq!(longest(1 << 20, 1), Duration::ZERO);
        assert_eq!(longest(1 << 20, 3), 8 * MS);
        assert_eq!(longest(64 << 10, 9), 2 * MS);
        assert!((200 * MS..64 * 4 * MS).contains(&longest(1 << 20, 0)));
    }
}
