//! Running the loader, under the lease or without one.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use tokio::time::Instant;
use tracing::{debug, warn};

use super::{EpochOutcome, Run, failed, look::uncacheable};
use crate::{
    advice,
    backend::{Entry, Windows},
    cache::{
        AfterFailure, Lead, Loaded, Source,
        breaker::Outage,
        freshness::Costs,
        lead::Keeping,
        loader::{self, Produced},
        outcome::{Alone, Made, Outcome},
    },
    error::{Chain, Error},
    flight::Epoch,
    lease::{LeaseGuard, LeaseRecord},
};

impl<V: Clone + Send + Sync + 'static> Run<V> {
    /// Loads under the lease that was granted in this epoch, and commits.
    pub(super) async fn load<F, Fut>(
        &self,
        work: F,
        guard: LeaseGuard,
        granted: Epoch,
    ) -> EpochOutcome<V>
    where
        F: FnOnce(Lead<V>) -> Fut,
        Fut: Future<Output = Result<Produced<V>, Error>>,
    {
        let lead = self.lead(Some(guard.record().clone()), Source::Led);
        let losses = self.core.tags.losses();
        let number = match self.core.tags.is_on {
            true => Box::pin(self.core.tag_number()).await,
            false => 0,
        };
        lead.begin_tags(self.core.tags.of_value(number, &self.options().tags), losses);
        let begun = Instant::now();
        let produced = self.produce(work, &lead, Some(&guard), granted).await;
        let cost = begun.elapsed();
        // The lease is renewed until this turn has come.
        let _turn = self.shard.turn().await;
        guard.closing();
        // In boxes, which do not stay during the load.
        match produced {
            Ok(Produced::Value(made)) => {
                Box::pin(self.commit(guard, made, cost, &lead, granted)).await
            }
            Ok(Produced::Uncacheable | Produced::Failing(_)) => {
                let ttl = self.core.settings.uncacheable_ttl;
                let ttl = (!lead.keeping().do_not_store).then_some(ttl);
                Box::pin(self.commit_uncacheable(guard, cost, ttl)).await
            }
            Ok(Produced::Reserved) => {
                // Without a word, so that the next process leads.
                if let Err(error) = Box::pin(guard.release()).await {
                    debug!(%error, "the lease of a reserved load is released late, or was lost");
                }
                reserved()
            }
            Err(error) => failed(Box::pin(self.fail(guard, error, &lead)).await),
        }
    }

    /// Loads without a lease, for all callers of this process that wait.
    pub(super) async fn load_alone<F, Fut>(
        &self,
        work: F,
        source: Source,
        outage: Option<Outage>,
    ) -> EpochOutcome<V>
    where
        F: FnOnce(Lead<V>) -> Fut,
        Fut: Future<Output = Result<Produced<V>, Error>>,
    {
        let lead = self.lead(None, source);
        let (begun, epoch) = (Instant::now(), self.epoch_alone());
        let tags = &self.core.tags;
        // A later joiner may ask after the end of a tag.
        let before = if tags.is_on { self.leader.begin_epoch() } else { epoch };
        lead.begin_tags(tags.of_value(tags.greatest(), &self.options().tags), tags.losses());
        if lead.is_rare() {
            self.core.counters.rare.add();
        }
        match self.produce(work, &lead, None, before).await {
            Ok(Produced::Value(made)) => {
                self.remember(&made, begun.elapsed(), &lead, outage);
                let epoch = if self.has_ended_here(&lead) { before } else { epoch };
                (Outcome::Value(Loaded { value: made.value, source, record: None }), epoch)
            }
            Ok(Produced::Reserved) => reserved(),
            Ok(Produced::Uncacheable | Produced::Failing(_)) => uncacheable(),
            Err(error) => failed(self.fail_alone(error, &lead)),
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
        let counters = &self.core.counters;
        counters.loads.add();
        let (begun, number) = (self.core.meter.begin(), Some(self.leader.id()));
        let produced = tokio::select! {
            biased;
            produced = loader::run(work, lead.clone(), self.options().load_limit, number) => {
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
            Ok(Produced::Failing(error)) if self.shares_failure(&error, lead) => Err(error),
            produced => produced,
        };
        self.core.loaded(begun, &produced);
        match &produced {
            // It says nothing to others.
            Ok(Produced::Reserved) => {}
            Ok(_) => self.core.failures.forget(self.leader.key()),
            Err(_) => counters.failures.add(),
        }
        produced
    }

    /// Returns whether a failure that is an answer for its caller concerns the other callers.
    fn shares_failure(&self, error: &Error, lead: &Lead<V>) -> bool {
        let rule = self.rule_after(error).or(lead.keeping().after_common_failure);
        lead.has_stand_in() || rule.is_some_and(|rule| rule != AfterFailure::LoadAgain)
    }

    /// Returns the lead for a loader, with the entry that its load is to replace.
    fn lead(&self, lease: Option<Arc<LeaseRecord>>, source: Source) -> Lead<V> {
        Lead::new(lease, self.known().map(|(known, _)| known), source, self.wants_new())
    }

    /// Returns what is new of an entry whose value is unchanged.
    pub(super) fn terms(&self, value: &V, cost: Duration, keeping: &Keeping) -> Entry {
        let entry = Entry::value(self.core.tag, cost, Bytes::new());
        self.with_costs(entry, cost).with_windows(self.windows(value, keeping))
    }

    /// Returns the entry of a value, and how long it is kept. `None` stores nothing.
    pub(super) fn entry(
        &self,
        made: &Made<V>,
        cost: Duration,
        lead: &Lead<V>,
    ) -> (Entry, Option<Duration>) {
        let (core, keeping) = (&self.core, &lead.keeping());
        let (entry, windows) = match core.entry(made, cost, lead.tagged()) {
            Ok(entry) => (self.with_costs(entry, cost), self.windows(&made.value, keeping)),
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
        advice::loaded(&core.settings.namespace, cost, served);
        let ttl = (!keeping.do_not_store).then(|| windows.kept());
        (entry.with_windows(windows), ttl)
    }

    /// Returns the entry with what loads cost, smoothed if the last entry is known.
    pub(super) fn with_costs(&self, entry: Entry, cost: Duration) -> Entry {
        let costs = match self.known() {
            Some((known, _)) => known.costs.and(cost),
            None => Costs::first(cost),
        };
        Entry { cost: costs.cost, ..entry.with_spread(costs.spread) }
    }

    /// Returns the windows of a value. One that says that there is none may have its own.
    pub(super) fn windows(&self, value: &V, keeping: &Keeping) -> Windows {
        let windows = self.options().windows_of(self.core.negative_windows(value), keeping);
        self.core.tags.limit(windows)
    }
}

/// Returns the landing with a load that is for its caller alone.
fn reserved<V>() -> EpochOutcome<V> {
    (Outcome::Alone(Alone::Reserved), Epoch::END)
}
