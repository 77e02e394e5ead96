//! The load: the loader runs, under the lease or without one. Its value is committed, or its
//! failure. Either ends the lease.

use std::{convert::Infallible, future::pending, time::Duration};

use tokio::time::{Instant, timeout};
use tokio_util::task::task_tracker::TaskTrackerToken;
use tracing::{debug, warn};

use super::{AskedKey, FlightEnd, ForLate, Held, Run, second_try, silence};
use crate::{
    advice,
    backend::{BackOff, Committed, Entry, EntryKind, Grant, Tagged, Windows, answered_by},
    cache::{
        AfterFailure, Lead, Loaded, Source,
        breaker::Outage,
        failures::whole_millis,
        lead::Keeping,
        loader::{self, Produced, Work},
        local::Fill,
        member::Permit,
        notes::EntryNote,
        outcome::{Alone, FlightResult, Head, Made, Record, cut_off},
        settings::UNCACHEABLE_LIFE,
    },
    error::{BackendError, Chain, Error, ErrorKind},
    flight::Epoch,
    lease::LeaseGuard,
};

/// A load under its lease, which [`Request::begin`] returns. Its caller makes the value, and
/// [commits](Self::commit) it. Dropped, it releases the lease in a task, and the next process
/// loads.
///
/// Its [`Lead`] has the fence, and sets how the value is kept. It is [lost](Lead::lost) at the
/// [load limit](crate::cache::Builder::load_limit). Until it ends it holds one of the
/// [permits](crate::cache::Builder::max_loads).
///
/// [`Request::begin`]: crate::cache::Request::begin
#[must_use = "a load that is dropped lets the next process load"]
pub struct Load<V> {
    pub(in crate::cache) asked: AskedKey<V>,
    pub(in crate::cache) lead: Lead<V>,
    pub(in crate::cache) guard: LeaseGuard,
    /// The number of its flight, or its own.
    pub(in crate::cache) number: u64,
    /// How many loads have failed in a row before this one.
    pub(super) failures: u32,
    /// There was no entry when the lease was granted.
    pub(super) has_no_entry: bool,
    pub(super) begun: LoadBegun,
    /// Held to the end of the load.
    _permit: Option<Permit>,
    /// Lets a shutdown wait for a load that belongs to no flight.
    _token: Option<TaskTrackerToken>,
}

/// The answer of [`Request::begin`](crate::cache::Request::begin).
#[derive(Debug)]
#[must_use = "a load that is dropped lets the next process load"]
pub enum Begun<V> {
    /// The value is fresh, or another process has just loaded it. Or the backend does not answer,
    /// and this process [remembered](crate::cache::Builder::outage_memory) the value.
    Ready(Loaded<V>),
    /// The value is stale, or it is time to refresh it
    /// [early](crate::cache::Builder::early_refresh). With a load if this process is the one that
    /// refreshes.
    Stale(Loaded<V>, Option<Load<V>>),
    /// There is no value that may be served, and this process loads it.
    Load(Load<V>),
    /// The caller loads for itself, without a lease, and nothing is stored.
    /// [`Source::Degraded`] lists the reasons.
    Alone,
}

/// When a load began, by the clock and by the acts of this process.
#[derive(Clone, Copy)]
pub(super) struct LoadBegun {
    pub(super) at: Instant,
    pub(super) mark: Option<Fill>,
}

impl<V: Clone + Send + Sync + 'static> Load<V> {
    pub(super) fn new(
        asked: AskedKey<V>,
        guard: LeaseGuard,
        grant: &Grant,
        held: &mut Held<V>,
        run: &Run<V>,
    ) -> Self {
        let previous = held.previous.as_ref().map(|(previous, _)| previous.clone());
        let lease = Some(guard.record.clone());
        Self {
            lead: Lead::new(lease, previous, Source::Led, run.wants_new()),
            guard,
            number: run.number(),
            failures: grant.failures(),
            has_no_entry: grant.has_no_entry,
            begun: asked.begin_load(),
            _permit: held.permit.take(),
            _token: run.leader.is_none().then(|| asked.core.begun.token()),
            asked,
        }
    }

    /// Begins the load: a tag that ends from here on ends its value.
    pub(super) async fn begin_tags(&mut self) {
        let AskedKey { core, .. } = &self.asked;
        self.lead.begin_tags(core.begin_tags(self.asked.options()).await);
        self.begun = self.asked.begin_load();
    }
}

impl<V: Clone + Send + Sync + 'static> Run<V> {
    /// Loads under the lease that was granted in this epoch, and commits.
    pub(super) async fn load(
        &self,
        work: &mut Option<Work<V>>,
        mut load: Box<Load<V>>,
        granted: Epoch,
    ) -> FlightEnd<V> {
        load.begin_tags().await;
        let produced = self.produce(work, &load.lead, Some(&load.guard), granted).await;
        // Before `closing` stops the renewals: the lease is renewed until this turn has come.
        let _turn = self.turn().await;
        // In boxes, which do not stay during the load.
        match produced {
            Ok(Produced::Value(made)) => {
                // Callers that join from here on get a look of their own.
                let committed = self.begin_epoch();
                let (loaded, late) = Box::pin(load.commit_value(made)).await;
                let (epoch, late) = match late {
                    None => (committed, ForLate::Look),
                    Some(late) => (granted, late),
                };
                FlightEnd { outcome: Ok(FlightResult::Loaded(loaded)), epoch, late }
            }
            Ok(Produced::Uncacheable | Produced::Failing(_)) => {
                Box::pin(load.commit_uncacheable()).await;
                FlightEnd::alone(Alone::Uncacheable)
            }
            Ok(Produced::Reserved) => {
                Box::pin(load.release()).await;
                FlightEnd::alone(Alone::Reserved)
            }
            Err(error) => FlightEnd::failed(Box::pin(load.fail_with(error)).await),
        }
    }

    /// Loads without a lease, for all callers of this process that wait, or for one without a
    /// flight.
    pub(super) async fn load_unleased(
        &self,
        work: &mut Option<Work<V>>,
        outage: Option<Outage>,
        held: &mut Held<V>,
    ) -> FlightEnd<V> {
        let AskedKey { core, key, .. } = &self.asked;
        if let Some(error) = core.failures.backs_off_here(key) {
            core.counters.backed_off.add();
            return FlightEnd::failed(error);
        }
        if let Err(error) = Box::pin(self.permit(held)).await {
            return self.full(error);
        }
        let previous = held.previous.as_ref().map(|(previous, _)| previous.clone());
        let lead = Lead::new(None, previous, Source::Degraded, self.wants_new());
        let begun = self.asked.begin_load();
        let (number, tagged) = (core.tags.greatest(), self.asked.options().tagged.clone());
        lead.begin_tags(Tagged { number, ..tagged });
        let produced = self.produce(work, &lead, None, Epoch::END).await;
        match produced {
            Ok(Produced::Value(made)) => {
                self.asked.remember(&made, begun, &lead, outage);
                FlightEnd::for_all(Ok(FlightResult::Loaded(Loaded::degraded(made.value))))
            }
            Ok(Produced::Reserved) => FlightEnd::alone(Alone::Reserved),
            Ok(Produced::Uncacheable | Produced::Failing(_)) => {
                FlightEnd::alone(Alone::Uncacheable)
            }
            Err(error) => FlightEnd::failed(self.asked.fail_alone(error, &lead)),
        }
    }

    /// Runs the loader, under this lease if there is one, and lands its head for the callers that
    /// joined before the epoch.
    async fn produce(
        &self,
        work: &mut Option<Work<V>>,
        lead: &Lead<V>,
        guard: Option<&LeaseGuard>,
        epoch: Epoch,
    ) -> Result<Produced<V>, Error> {
        let AskedKey { core, key, .. } = &self.asked;
        let work = work.take().ok_or_else(cut_off)?;
        core.counters.loads.add();
        let number = self.number();
        let limit = core.settings.load_limit;
        let produced = tokio::select! {
            biased;
            produced = loader::run(work, lead.clone(), limit, (number, &core.meter)) => {
                // The value may be whole at once. Its callers do not wait for the commit.
                if let (Ok(Produced::Value(_)), Some(head)) = (&produced, lead.head()) {
                    self.land_head(head, lead, epoch);
                }
                produced
            }
            // In a box, so that the future of a load stays small.
            never = Box::pin(self.serve_head(lead, guard, epoch)) => match never {},
        };
        let produced = match produced {
            // Other processes hear of the failure, and have the same stale value and setting.
            Ok(Produced::Failing(error)) if self.asked.shares_failure(&error, lead) => Err(error),
            produced => produced,
        };
        match &produced {
            // It says nothing to others.
            Ok(Produced::Reserved) => {}
            Ok(_) => core.failures.forget(key),
            Err(_) => {
                core.counters.failures.add();
                // No more callers take the head of a value that will never be whole.
                if let (Some(leader), Some(_)) = (&self.leader, lead.head()) {
                    leader.close_head();
                }
            }
        }
        produced
    }

    /// Lands the head of the value for the callers that joined before the epoch of its load.
    fn land_head(&self, head: &Head, lead: &Lead<V>, epoch: Epoch) {
        if let Some(leader) = &self.leader {
            leader.land_head(Ok(FlightResult::Head(head.clone(), lead.source())), epoch);
        }
    }

    /// Lands the head when it is announced, and admits the callers that join later.
    ///
    /// A late joiner may know of a change since the load began. Each act that changes the value
    /// ends the lease, so a lease that is held says that there was none.
    async fn serve_head(
        &self,
        lead: &Lead<V>,
        guard: Option<&LeaseGuard>,
        epoch: Epoch,
    ) -> Infallible {
        lead.announced().await;
        if let Some(head) = lead.head() {
            self.land_head(head, lead, epoch);
        }
        let (Some(guard), Some(leader)) = (guard, &self.leader) else { return pending().await };
        let asked = &self.asked;
        loop {
            leader.late_joiner().await;
            let epoch = leader.begin_epoch();
            let is_silent = asked.shard.breaker.is_open();
            let held = if is_silent { Ok(()) } else { Box::pin(guard.renew()).await };
            match held {
                Err(error) if error.kind() == ErrorKind::Lost => break,
                // The end of a tag takes no lease away.
                Ok(()) if !is_silent && !Box::pin(asked.are_current(lead)).await => break,
                // Without an answer, they are served as all callers are without a lease.
                Ok(()) | Err(_) => leader.admit(epoch),
            }
        }
        debug!("the lease is lost or a tag has ended, so no more callers are served this load");
        leader.close_head();
        pending().await
    }
}

impl<V: Clone + Send + Sync + 'static> AskedKey<V> {
    fn begin_load(&self) -> LoadBegun {
        LoadBegun { at: Instant::now(), mark: self.core.mark(&self.name) }
    }

    /// Returns whether a failure that answers its caller counts as a failed load for the others.
    fn shares_failure(&self, error: &Error, lead: &Lead<V>) -> bool {
        let rule = self.rule_after(error).or(lead.keeping().after_common_failure);
        lead.has_stand_in() || rule.is_some_and(|rule| rule != AfterFailure::LoadAgain)
    }

    /// Returns the entry of a value, and how long it is kept. `None` stores nothing.
    pub(super) fn entry(
        &self,
        made: &Made<V>,
        begun: LoadBegun,
        lead: &Lead<V>,
    ) -> (Entry, Option<Duration>) {
        let (core, keeping, cost) = (&self.core, &lead.keeping(), begun.at.elapsed());
        let (entry, windows) = match core.entry(made, cost, lead.tagged()) {
            Ok(entry) => (entry, self.windows(&made.value, keeping)),
            Err(error) => {
                let words = "a value is returned and not stored";
                match core.unstorable.first() {
                    true => warn!(error = %Chain(&error), "{words}"),
                    false => debug!(error = %Chain(&error), "{words}"),
                }
                core.counters.unstorable.add();
                (Entry::uncacheable(cost), Windows::fresh(UNCACHEABLE_LIFE))
            }
        };
        let served = windows.fresh.saturating_add(windows.stale);
        advice::loaded(&core.short_lived, &core.settings.namespace, cost, served);
        let ttl = (!keeping.do_not_store).then(|| windows.kept());
        (entry.with_windows(windows), ttl)
    }

    /// Returns the windows of a value. One that says that there is none may have its own.
    fn windows(&self, value: &V, keeping: &Keeping) -> Windows {
        self.core.windows(self.options(), self.core.negative_windows(value), keeping)
    }

    /// Remembers a value for the later callers of this process, if the outage has not ended since
    /// its load began.
    pub(super) fn remember(
        &self,
        made: &Made<V>,
        begun: LoadBegun,
        lead: &Lead<V>,
        outage: Option<Outage>,
    ) {
        let (core, keeping) = (&self.core, lead.keeping());
        let lasts = |outage: &Outage| self.shard.breaker.outage() == Some(*outage);
        let outage = outage.filter(|it| !keeping.do_not_store && lasts(it));
        let (Some(outage), Some((copies, mark))) = (outage, core.copies.as_ref().zip(begun.mark))
        else {
            return;
        };
        if let Ok(entry) = core.entry(made, begun.at.elapsed(), lead.tagged()) {
            let entry = entry.with_windows(self.windows(&made.value, &keeping));
            // It replaces the stored one.
            let entry = entry.with_fence(lead.previous().map_or(0, |previous| previous.fence));
            copies.note_loaded(mark, &self.key, outage, core.seen(&entry), made.value.clone());
        }
    }

    /// Returns whether no tag of the value has ended since its load began.
    pub(super) async fn are_current(&self, lead: &Lead<V>) -> bool {
        !self.core.tags.is_on || self.core.are_current(&lead.tagged()).await
    }
}

impl<V: Clone + Send + Sync + 'static> Load<V> {
    /// Commits a value that was loaded. Returns it for its callers. Callers that joined after the
    /// lease was granted may have to be served in another way.
    pub(in crate::cache) async fn commit_value(
        self,
        made: Made<V>,
    ) -> (Loaded<V>, Option<ForLate>) {
        self.guard.closing();
        let ended = Instant::now();
        let Self { asked, lead, guard, begun, .. } = &self;
        let (core, fence) = (&asked.core, guard.fence());
        let mark = core.mark(&asked.name);
        let (entry, ttl) = asked.entry(&made, *begun, lead);
        let (answer, are_current) =
            tokio::join!(self.try_commit(&entry, ttl), asked.are_current(lead));
        core.committed_local(&asked.name, fence);
        self.keep_copy(mark.filter(|_| are_current), &entry, &made.value, &answer);
        let is_stored = matches!(answer, Ok(Committed::Stored));
        let has_value = is_stored && are_current && entry.kind == EntryKind::Value;
        let record = Record::written(fence, &entry, ended, has_value);
        let led = |value| Loaded { value, source: Source::Led, record };
        // They may know of what has ended the value.
        let current = if are_current { None } else { Some(ForLate::Look) };
        match answer {
            Ok(Committed::Stored | Committed::Pushed) => {
                self.count_commit(is_stored, ttl);
                self.guard.settled();
                (led(made.value), current)
            }
            Ok(Committed::Newer(entry)) => match self.newer(entry).await {
                Some(newer) => (newer, current),
                None => (led(made.value), Some(ForLate::Look)),
            },
            Ok(Committed::Refused) => {
                core.counters.refused.add();
                debug!("commit refused: the key was invalidated, or the lease lost");
                (led(made.value), Some(ForLate::Look))
            }
            Err(error) => {
                core.counters.unstored.add();
                asked.shard.breaker.failed(&error, &core.counters);
                asked.remember(&made, *begun, lead, asked.shard.breaker.outage());
                (led(made.value), Some(ForLate::Degraded))
            }
        }
    }

    /// Keeps a copy of what was stored, or drops the copy that it replaces.
    fn keep_copy(
        &self,
        mark: Option<Fill>,
        entry: &Entry,
        value: &V,
        answer: &Result<Committed, BackendError>,
    ) {
        let AskedKey { core, key, .. } = &self.asked;
        let Some(copies) = &core.copies else { return };
        match (answer, mark) {
            (Ok(Committed::Stored), Some(mark)) => {
                let entry = entry.clone().with_fence(self.guard.fence());
                let seen = core.seen(&Entry { age: Some(Duration::ZERO), ..entry });
                let rules = &self.asked.options().rules;
                copies.note(mark, key, seen, || Some(value.clone()), false, rules);
            }
            (Ok(_), _) => core.drop_copy(key),
            (Err(_), _) => {}
        }
    }

    /// Returns the value of the newer entry that a commit has found, if it may be served.
    async fn newer(&self, entry: Entry) -> Option<Loaded<V>> {
        let AskedKey { core, key, name, .. } = &self.asked;
        core.counters.refused.add();
        debug!(fence = entry.fence, "commit refused: a newer entry is stored");
        let mut answer = Ok(Some(entry));
        core.judge(key, &mut answer).await;
        let newer = core.decide(name, &self.asked.options().rules, answer);
        Some(Loaded { source: Source::Received, ..newer.value()? })
    }

    fn count_commit(&self, is_stored: bool, ttl: Option<Duration>) {
        let AskedKey { core, name, .. } = &self.asked;
        if is_stored {
            core.counters.stored.add();
            if self.lead.keeping().is_unchanged {
                core.counters.unchanged.add();
            }
            core.refreshes.note(EntryNote::Stored, name, self.guard.fence(), Duration::MAX);
        } else if ttl.is_some() {
            core.counters.unstored.add();
        }
    }

    /// Commits that the load cannot be shared, and remembers it for a while.
    pub(super) async fn commit_uncacheable(self) {
        self.guard.closing();
        let AskedKey { core, name, .. } = &self.asked;
        let entry = Entry::uncacheable(self.begun.at.elapsed());
        let is_stored = !self.lead.keeping().do_not_store;
        let ttl = is_stored.then_some(UNCACHEABLE_LIFE);
        let answer = self.try_commit(&entry, ttl).await;
        core.committed_local(name, self.guard.fence());
        if let Ok(Committed::Stored | Committed::Pushed) = answer {
            self.guard.settled();
        }
    }

    /// Ends the lease without a word, so that the next process leads.
    pub(in crate::cache) async fn release(self) {
        if let Err(error) = self.guard.release().await {
            debug!(%error, "the lease of a load is released late, or was lost");
        }
    }

    async fn try_commit(
        &self,
        entry: &Entry,
        ttl: Option<Duration>,
    ) -> Result<Committed, BackendError> {
        let AskedKey { core, shard, .. } = &self.asked;
        let mut grant = Grant::new(self.guard.fence());
        grant.has_no_entry = self.has_no_entry;
        let backend = core.engine.backend().as_ref();
        let commit = async |limit| {
            let committed = core.store.commit(self.guard.claim(), &grant, entry, ttl);
            let answer = answered_by(backend, limit, committed).await;
            if let Ok(committed) = &answer {
                let is_made = matches!(committed, Committed::Stored | Committed::Pushed);
                shard.breaker.answered(is_made, &core.counters);
            }
            core.counted(answer)
        };
        let (first, limit) = (Instant::now(), core.try_limit);
        let answer = commit(limit).await;
        let Some(limit) = second_try(shard, limit, first, &answer) else { return answer };
        tokio::select! {
            biased;
            answer = commit(limit) => answer,
            () = shard.breaker.opened() => Err(silence()),
        }
    }

    /// Ends a lease whose load failed. Tells the processes that wait, and lets the key back off.
    /// Returns the error for the callers.
    pub(in crate::cache) async fn fail_with(self, error: Error) -> Error {
        self.guard.closing();
        let Self { asked, lead, guard, failures, .. } = self;
        let AskedKey { core, key, .. } = &asked;
        // An outage may have hidden the failures of this process from the others.
        let failed = failures.max(core.failures.failed_here(key));
        let back_off = asked.back_off(&error, &lead, failed);
        let failure = core.failures.told(guard.fence(), &error, back_off);
        let told = core.store.fail(guard.claim(), &failure, back_off);
        let told = timeout(core.try_limit, told).await;
        if let Ok(Ok(_)) = told {
            guard.settled();
        }
        match (told, back_off) {
            // The lease was lost, so this failure says nothing of the key.
            (Ok(Ok(false)), _) | (_, None) => error,
            (Ok(Ok(true)), Some(back_off)) => {
                core.failures.forget(key);
                asked.backing_off(error, back_off, &lead)
            }
            (Ok(Err(_)) | Err(_), Some(back_off)) => asked.fails_alone(error, back_off, &lead),
        }
    }
}

impl<V: Clone + Send + Sync + 'static> AskedKey<V> {
    /// Notes a load that failed without a lease. Returns the error for the callers.
    pub(super) fn fail_alone(&self, error: Error, lead: &Lead<V>) -> Error {
        let failed = self.core.failures.failed_here(&self.key);
        match self.back_off(&error, lead, failed) {
            Some(back_off) => self.fails_alone(error, back_off, lead),
            None => error,
        }
    }

    fn fails_alone(&self, error: Error, back_off: BackOff, lead: &Lead<V>) -> Error {
        let error = self.backing_off(error, back_off, lead);
        self.core.failures.fail_here(&self.key, &error, back_off);
        error
    }

    /// Returns how the key backs off after one more failure, if it does.
    fn back_off(&self, error: &Error, lead: &Lead<V>, failed: u32) -> Option<BackOff> {
        let (failures, random) = (failed.saturating_add(1), fastrand::f64());
        let keeping = lead.keeping();
        let wait = match keeping.after_failure.or_else(|| self.rule_after(error)) {
            Some(rule) => rule.wait(failures, random),
            None => match lead.fallback_for() {
                Some(left) => AfterFailure::BACK_OFF
                    .wait(failures, random)
                    .and_then(|wait| whole_millis(wait.min(left))),
                // Without a rule or an old value, later callers do not get this failure.
                None => keeping.after_common_failure?.wait(failures, random),
            },
        }?;
        Some(BackOff { wait, failures })
    }

    /// Returns what follows an error by the settings of the cache.
    pub(super) fn rule_after(&self, error: &Error) -> Option<AfterFailure> {
        self.core.failures.policy(error)
    }

    /// Notes that the key backs off after this error, if it does, and returns the error with that.
    fn backing_off(&self, error: Error, back_off: BackOff, lead: &Lead<V>) -> Error {
        if back_off.wait.is_zero() {
            return error;
        }
        if let Some(previous) = lead.previous() {
            self.leave_alone(previous.fence, back_off.wait);
        }
        let (name, wait, failures) = (&self.name, back_off.wait, back_off.failures);
        let words =
            "a load failed, and its key backs off; further ones are not logged for a minute";
        match self.core.failures.warned.first() {
            true => warn!(?name, ?wait, failures, error = %Chain(&error), "{words}"),
            false => debug!(?name, ?wait, failures, error = %Chain(&error), "the key backs off"),
        }
        error.with_retry_after(wait)
    }

    /// Lets this process serve the entry with this fence in place of a load for a time, without
    /// asking for it.
    pub(super) fn leave_alone(&self, fence: u64, wait: Duration) {
        for what in [EntryNote::BacksOff, EntryNote::Refreshed] {
            self.core.refreshes.note(what, &self.key, fence, wait);
        }
    }
}
