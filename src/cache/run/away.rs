//! A run whose backend does not answer, and what the process remembers for that time.

use std::time::Duration;

use super::{Run, Step, look::found};
use crate::{
    cache::{Lead, Source, breaker::Outage, core::Decision, outcome::Made},
    sync::lock,
};

impl<V: Clone + Send + Sync + 'static> Run<V> {
    /// Returns the step of a run that the backend does not answer. A value that this process
    /// remembers is served, where its windows allow it.
    pub(super) fn away(&self) -> Step<V> {
        // A refresh does not want an old value.
        let outage = self.shard.breaker.outage().filter(|_| !self.is_refresh());
        let Some(outage) = outage else { return Step::LoadAlone(None) };
        let epoch = self.leader.begin_epoch();
        let (core, rules) = (&self.core, &self.options().rules);
        match core.recall(self.leader.key(), &self.name, rules, outage) {
            Some(Decision::Old(known)) => {
                lock(&self.known).get_or_insert((known, epoch));
            }
            Some(decision) => {
                if let Some((value, record, _)) = decision.value() {
                    return Step::Land((found(value, Source::Degraded, record), epoch));
                }
            }
            None => {}
        }
        Step::LoadAlone(Some(outage))
    }

    /// Remembers a value for the later callers of this process, if the outage has not ended since
    /// its load began.
    pub(super) fn remember(
        &self,
        made: &Made<V>,
        cost: Duration,
        lead: &Lead<V>,
        begun: Option<Outage>,
    ) {
        let (core, keeping) = (&self.core, lead.keeping());
        // An act does not end the flight of a refresh, so its value could undo the act.
        let is_refused = keeping.do_not_store || self.is_refresh() || !core.memory.is_on();
        let outage = begun.filter(|_| !is_refused && self.shard.breaker.outage() == begun);
        if let Some(outage) = outage
            && let Ok(entry) = core.entry(made, cost, lead.tagged())
        {
            let entry =
                self.with_costs(entry, cost).with_windows(self.windows(&made.value, &keeping));
            let is_current = || self.leader.is_joinable();
            let seen = self.known().map_or(0, |(known, _)| known.fence);
            core.memory.remember(self.leader.key(), outage, entry, seen, is_current);
        }
    }

    /// Notes that there is a newer entry than the one that was seen last, or none.
    pub(super) fn forget(&self) {
        self.core.memory.forget(self.leader.key());
    }

    fn is_refresh(&self) -> bool {
        !self.waits || self.wants_new()
    }
}
