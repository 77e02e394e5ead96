//! The rules of failed loads and of refreshes.

use super::{
    checker::{Checker, MILLISECOND, Rule},
    history::{Act, Family, Time},
    index::BackedOff,
};

impl Checker<'_> {
    pub fn back_offs(&mut self) {
        for backed_off in &self.index.backed_off {
            self.tally.add("back-offs", 1);
            let grants = self.index.fences.iter().filter(|taken| {
                taken.family == Family::Cache
                    && taken.owner.is_some()
                    && taken.key == backed_off.key
                    && taken.sent > backed_off.answered
            });
            for grant in grants {
                let is_within = grant.answered + MILLISECOND < backed_off.sent + backed_off.wait;
                if is_within && !self.is_ended(backed_off, grant.answered) {
                    self.violated(Rule::BackOff, format!("{grant:?} after {backed_off:?}"));
                }
            }
        }
    }

    /// Returns whether an act may have ended a back-off before this time.
    fn is_ended(&self, backed_off: &BackedOff, before: Time) -> bool {
        self.index.writes.iter().any(|write| {
            write.key == backed_off.key
                && write.asked <= before
                && (!write.done || write.answered.is_none_or(|at| at >= backed_off.sent))
        })
    }

    pub fn failures(&mut self) {
        for read in &self.index.failed {
            self.tally.add("failed reads", 1);
            if !self.has_failed(&read.key, read.asked, read.at) {
                self.violated(Rule::Failure, format!("{read:?}"));
            }
        }
    }

    pub fn refreshes(&mut self) {
        for (refresh, value) in &self.index.refreshed {
            self.tally.add("refreshes", 1);
            let made = match self.index.inserts.get(value) {
                Some(insert) if insert.done => insert.answered,
                Some(_) => None,
                None => Some(value.began),
            };
            let renewals = self.index.renewals.iter().filter(|renewal| renewal.value == *value);
            let renewed = renewals.map(|renewal| renewal.began).max().unwrap_or(0);
            let is_touched = self.index.writes.iter().any(|write| {
                write.act == Act::Touch
                    && write.key == refresh.key
                    && (!write.done || write.answered.is_none_or(|at| at >= refresh.asked))
            });
            let is_older = made.is_some_and(|made| made.max(renewed) < refresh.asked);
            if is_older && !is_touched {
                self.violated(Rule::Refreshed, format!("{value:?} for {refresh:?}"));
            }
        }
    }
}
