//! The claim: the leader acquires the lease, or waits for what its holder makes.

use std::{sync::atomic::Ordering, time::Duration};

use tokio::time::Instant;
use tracing::debug;

use super::{Run, Step, failed, look::uncacheable, second_try, silence};
use crate::{
    backend::{
        Announcement, Change, Claim, Claimed, Entry, EntryKind, Grant, Mode, Occupied, Owner,
        TagVerdict,
    },
    cache::{
        breaker::RequestKind, core::Permit, error_codec, settings::OnUncacheable, tags::Judged,
    },
    error::{BackendError, BackendErrorKind},
    flight::Epoch,
    lease::{Acquisition, AskOutcome, Attempt, Waiting, drive},
};

impl<V: Clone + Send + Sync + 'static> Run<V> {
    /// Claims the lease, or waits for what its holder makes. `seen` is the fence of the last entry
    /// that was not good enough.
    pub(super) async fn claim(&self, seen: u64, permit: &mut Option<Permit>) -> Step<V> {
        let settings = &self.core.settings;
        let mut claim =
            Claim::new(self.name.clone(), Mode::Exclusive, settings.lease, settings.fence_life());
        // The claims of a cache have no queue at the backend.
        claim.waits = false;
        claim.listens = self.waits;
        let (engine, retry) = (&self.core.engine, settings.retry.as_ref());
        let limit = self.options().wait_limit;
        let mut waiting = Waiting::new(engine.janitor(), claim.clone(), retry, limit);
        let mut claiming = Claiming {
            run: self,
            permit,
            acquisition: Acquisition::new(engine.janitor().clone(), claim),
            seen,
            unanswered: None,
            asked_at: Instant::now(),
            time_up: false,
            epoch: Epoch::END,
            fence: 0,
            announced: None,
            tagged: None,
            is_told: false,
        };
        drive(&mut claiming, &mut waiting).await
    }
}

/// The claim of one leader.
pub(super) struct Claiming<'a, V: Clone> {
    pub(super) run: &'a Run<V>,
    /// The permit to load in this process.
    permit: &'a mut Option<Permit>,
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
    pub(super) epoch: Epoch,
    /// The fence of the holder that was in the way.
    fence: u64,
    /// An entry that is to be fetched.
    announced: Option<Announcement>,
    /// An entry that was pushed, and whose tags are to be asked for.
    tagged: Option<Entry>,
    /// An answer has told a fence whose load may have begun before the callers asked.
    is_told: bool,
}

impl<V: Clone + Send + Sync + 'static> Attempt for Claiming<'_, V> {
    type Outcome = Step<V>;

    async fn ask(&mut self, waiting: &mut Waiting<'_>) -> AskOutcome<Step<V>> {
        let run = self.run;
        if let Some(step) = self.follow_push(waiting.left()).await {
            return AskOutcome::Settled(step);
        }
        if let Err(error) = run.permit(self.permit).await {
            return AskOutcome::Settled(Step::Land(run.look_instead(error).await));
        }
        let turn = run.shard.turn().await;
        if !run.shard.breaker.admits_claim() {
            return AskOutcome::Settled(run.away());
        }
        if run.shard.breaker.is_unconfirmed() {
            self.probe();
            return AskOutcome::Settled(run.away());
        }
        // Another process is likely to load. A second claim would read its entry out of turn.
        waiting.listen();
        self.epoch = run.leader.begin_epoch();
        let answer = self.ask_once().await;
        drop(turn);
        if let Ok((claimed, _)) = &answer {
            let is_granted = matches!(claimed, Claimed::Granted(_));
            run.shard.breaker.answered(RequestKind::changed(is_granted), &run.core.counters);
        }
        match run.core.counted(answer) {
            Ok((Claimed::Granted(grant), sent)) => AskOutcome::Settled(self.granted(&grant, sent)),
            Ok((Claimed::BacksOff(back_off, failure), _)) => {
                AskOutcome::Settled(run.backs_off(back_off, &failure, self.epoch))
            }
            Ok((Claimed::Newer(entry), _)) => self.newer(entry).await,
            Ok((Claimed::Occupied(occupied), _)) => self.occupied(&occupied),
            Err(error) => self.failed(&error),
        }
    }

    fn pushed(&mut self, change: Change, _: &mut Waiting<'_>) -> Option<Step<V>> {
        if matches!(change, Change::Announced(_) | Change::Invalidated(_)) {
            self.run.forget();
        }
        match change {
            // A push that is older than the present holder is late or doubled.
            Change::Entry(entry) if self.awaits(entry.fence) => match entry.tagged {
                None => self.judged((Ok(Some(entry)), TagVerdict::Current)),
                Some(_) => {
                    self.tagged = Some(entry);
                    None
                }
            },
            Change::Announced(announced) if self.awaits(announced.fence) => {
                self.announced = Some(announced);
                None
            }
            Change::Failed(failure) if self.awaits(failure.fence()) => {
                let codec = self.run.core.error_codec.as_deref();
                Some(Step::Land(failed(error_codec::error(codec, failure))))
            }
            _ => None,
        }
    }

    async fn interrupted(&self) -> Step<V> {
        self.run.shard.breaker.opened().await;
        debug!("nothing can be pushed any more");
        self.run.away()
    }

    fn time_up(&mut self, _: &Waiting<'_>) -> Option<Step<V>> {
        self.time_up = true;
        None
    }
}

impl<V: Clone + Send + Sync + 'static> Claiming<'_, V> {
    /// Asks for what a push has left open. Returns the step that follows the entry, if it is of
    /// use.
    async fn follow_push(&mut self, left: Duration) -> Option<Step<V>> {
        if let Some(announced) = self.announced.take()
            && let Some(step) = self.fetch(announced, left).await
        {
            return Some(step);
        }
        let entry = self.tagged.take()?;
        self.received(entry).await
    }

    /// Returns the step that follows an entry of the holder, if it is of use.
    pub(super) async fn received(&self, entry: Entry) -> Option<Step<V>> {
        let judged = self.run.core.judge(Ok(Some(entry))).await;
        self.judged(judged)
    }

    fn judged(&self, judged: Judged) -> Option<Step<V>> {
        let run = self.run;
        let is_uncacheable = |entry: &Entry| entry.kind == EntryKind::Uncacheable;
        if matches!(&judged.0, Ok(Some(entry)) if is_uncacheable(entry))
            && run.options().sharing.on_uncacheable == OnUncacheable::Claim
        {
            // The callers decide whether they try once more.
            return Some(Step::Land(uncacheable()));
        }
        match run.received(judged, self.entry_epoch()) {
            Step::Claim { .. } => None,
            step => Some(step),
        }
    }

    /// Returns what follows an entry that a claim was answered with.
    async fn newer(&mut self, entry: Entry) -> AskOutcome<Step<V>> {
        if self.is_first_told(entry.fence) {
            return AskOutcome::Again;
        }
        let judged = self.run.core.judge(Ok(Some(entry))).await;
        match self.run.received(judged, self.entry_epoch()) {
            Step::Claim { seen } => {
                self.seen = seen;
                AskOutcome::Again
            }
            step => AskOutcome::Settled(step),
        }
    }

    /// Returns whether an entry that is pushed may be good enough.
    fn awaits(&self, fence: u64) -> bool {
        fence >= self.fence && (!self.run.is_anew() || fence > self.seen)
    }

    /// Returns whether a fence is the first that a claim of an [anew](Run::is_anew) run was told.
    /// Its load is not good enough.
    fn is_first_told(&mut self, fence: u64) -> bool {
        let is_first = self.run.is_anew() && !std::mem::replace(&mut self.is_told, true);
        if is_first {
            self.seen = self.seen.max(fence);
        }
        is_first
    }

    /// Returns which callers an entry is good enough for.
    fn entry_epoch(&self) -> Epoch {
        self.run.asked().unwrap_or(self.epoch)
    }

    /// Claims once in a task, to see whether replicas confirm grants again. No caller waits for it:
    /// replicas may be away for long.
    fn probe(&self) {
        let (core, shard, seen) = (self.run.core.clone(), self.run.shard.clone(), self.seen);
        let claim = self.acquisition.claim();
        let claim = Claim { owner: Owner::fresh(), listens: false, ..claim.clone() };
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
        let Run { core, shard, .. } = self.run;
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
        let (core, fence) = (&self.run.core, grant.fence());
        debug!(fence, "lease taken");
        self.run.failures.store(grant.failures(), Ordering::Relaxed);
        self.run.has_no_entry.store(grant.has_no_entry(), Ordering::Relaxed);
        let upkeep = core.settings.upkeep(self.run.options());
        let granted = self.acquisition.settle(upkeep, fence, sent, None);
        Step::Load(core.engine.hold(granted), self.epoch)
    }

    fn occupied(&mut self, occupied: &Occupied) -> AskOutcome<Step<V>> {
        // A leader that waits for another process needs no permit to load.
        *self.permit = None;
        self.run.options().will_wait();
        if !self.run.waits {
            debug!("another process refreshes");
            let (refreshes, key) = (&self.run.core.refreshes, self.run.leader.key());
            refreshes.silence(key, self.seen, occupied.remaining);
            return AskOutcome::Settled(Step::LoadAlone(None));
        }
        self.unanswered = None;
        self.is_first_told(occupied.fence);
        let met = std::mem::replace(&mut self.fence, occupied.fence);
        let is_next = met != 0 && met != occupied.fence;
        if self.time_up || (is_next && self.run.options().sharing.waits_once) {
            debug!("the wait for another process is over");
            return AskOutcome::Settled(Step::LoadAlone(None));
        }
        debug!(fence = occupied.fence, remaining = ?occupied.remaining, "another process loads");
        AskOutcome::Occupied(occupied.remaining)
    }

    fn failed(&mut self, error: &BackendError) -> AskOutcome<Step<V>> {
        let breaker = &self.run.shard.breaker;
        // A request that an open breaker has cut short says nothing.
        if !breaker.is_open() {
            if error.kind() == BackendErrorKind::Unknown && self.unanswered.is_none() {
                self.unanswered = Some(self.asked_at);
                return AskOutcome::Again;
            }
            breaker.failed(error, &self.run.core.counters);
        }
        AskOutcome::Settled(self.run.away())
    }
}
