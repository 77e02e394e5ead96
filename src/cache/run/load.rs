//! Running the loader, under the lease or without one.

use std::{convert::Infallible, future::pending, time::Duration};

use tokio::time::Instant;
use tokio_util::task::task_tracker::TaskTrackerToken;
use tracing::{debug, warn};

use super::{AskedKey, FlightEnd, ForLate, Held, Run, commit::CommitEnd};
use crate::{
    advice,
    backend::{Entry, Grant, Tagged, Windows},
    cache::{
        AfterFailure, Lead, Loaded, Source,
        breaker::Outage,
        core::Permit,
        lead::Keeping,
        loader::{self, Produced},
        local::Fill,
        outcome::{Alone, Head, Made, Outcome},
    },
    error::{Chain, Error, ErrorKind},
    flight::{self, Epoch},
    lease::LeaseGuard,
};

/// A load under its lease, which [`Cache::begin`] returns. Its caller makes the value, and
/// [commits](Self::commit) it. Dropped, it releases the lease, and the next process loads.
///
/// It is lost at the [load limit](crate::cache::Builder::load_limit). Until it ends it holds one of
/// the [permits](crate::cache::Builder::max_loads).
///
/// [`Cache::begin`]: crate::Cache::begin
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
        let lease = Some(guard.record().clone());
        Self {
            lead: Lead::new(lease, previous, Source::Led, run.wants_new()),
            guard,
            number: run.leader.as_ref().map_or_else(flight::next_id, |leader| leader.id()),
            failures: grant.failures(),
            has_no_entry: grant.has_no_entry(),
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
    pub(super) async fn load<F, Fut>(
        &self,
        work: F,
        mut load: Box<Load<V>>,
        granted: Epoch,
    ) -> FlightEnd<V>
    where
        F: FnOnce(Lead<V>) -> Fut,
        Fut: Future<Output = Result<Produced<V>, Error>>,
    {
        load.begin_tags().await;
        let produced = self.produce(work, &load.lead, Some(&load.guard), granted).await;
        // The lease is renewed until this turn has come.
        let _turn = self.asked.shard.turn().await;
        // In boxes, which do not stay during the load.
        match produced {
            Ok(Produced::Value(made)) => {
                // Callers that join from here on get a look of their own.
                let committed = self.begin_epoch();
                let (loaded, kept) = Box::pin(load.commit_value(made)).await;
                let (epoch, late) = match kept {
                    CommitEnd::Current => (committed, ForLate::Look),
                    // Late joiners must not be served this value.
                    CommitEnd::Refused => (granted, ForLate::Look),
                    CommitEnd::Unknown => (granted, ForLate::Degraded),
                };
                FlightEnd { outcome: Outcome::Value(loaded), epoch, late }
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

    /// Loads without a lease, for all callers of this process that wait.
    pub(super) async fn load_alone<F, Fut>(
        &self,
        work: F,
        outage: Option<Outage>,
        held: &mut Held<V>,
    ) -> FlightEnd<V>
    where
        F: FnOnce(Lead<V>) -> Fut,
        Fut: Future<Output = Result<Produced<V>, Error>>,
    {
        let AskedKey { core, key, .. } = &self.asked;
        if let Some(error) = core.failures.backs_off_alone(key) {
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
        match self.produce(work, &lead, None, Epoch::END).await {
            Ok(Produced::Value(made)) => {
                self.asked.remember(&made, begun, &lead, outage);
                FlightEnd::new(Outcome::Value(Loaded::degraded(made.value)), Epoch::END)
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
    async fn produce<F, Fut>(
        &self,
        work: F,
        lead: &Lead<V>,
        guard: Option<&LeaseGuard>,
        epoch: Epoch,
    ) -> Result<Produced<V>, Error>
    where
        F: FnOnce(Lead<V>) -> Fut,
        Fut: Future<Output = Result<Produced<V>, Error>>,
    {
        let AskedKey { core, key, .. } = &self.asked;
        core.counters.loads.add();
        let number = self.leader.as_ref().map(|leader| leader.id());
        let limit = self.asked.options().load_limit;
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
            Err(_) => core.counters.failures.add(),
        }
        produced
    }

    /// Lands the head of the value for the callers that joined before the epoch of its load.
    fn land_head(&self, head: &Head, lead: &Lead<V>, epoch: Epoch) {
        if let Some(leader) = &self.leader {
            leader.land_head(Outcome::Head(head.clone(), lead.source()), epoch);
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

    /// Returns whether a failure that is an answer for its caller concerns the other callers.
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
                (Entry::uncacheable(cost), Windows::fresh(core.settings.uncacheable_ttl))
            }
        };
        let served = windows.fresh.saturating_add(windows.stale);
        advice::loaded(&core.short_lived, &core.settings.namespace, cost, served);
        let ttl = (!keeping.do_not_store).then(|| windows.kept());
        (entry.with_windows(windows), ttl)
    }

    /// Returns the windows of a value. One that says that there is none may have its own.
    fn windows(&self, value: &V, keeping: &Keeping) -> Windows {
        let windows = self.options().windows_of(self.core.negative_windows(value), keeping);
        self.core.tags.limit(windows)
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
