//! The rules of the locks. The [`checker`](super::checker) lists all rules.

use std::collections::{HashMap, HashSet};

use super::{
    checker::{Checker, Holder, Rule, SLACK},
    history::{Family, Kind, PERMITS},
    index::{Hold, Known, Taken, beside},
};

fn holder_of(hold: &Hold) -> Holder<'_> {
    Holder { family: Family::Lock, name: &hold.name, process: hold.process }
}

impl Checker<'_> {
    /// Checks the holds that exclude each other.
    pub fn holds(&mut self) {
        let mut names: HashMap<&str, Vec<&Hold>> = HashMap::new();
        for hold in self.index.holds.iter().filter(|hold| hold.fence > 0) {
            let what = match hold.kind {
                Kind::Mutex => "locks",
                Kind::Leader => "terms",
                _ => "writers",
            };
            self.tally.add(what, 1);
            names.entry(&hold.name).or_default().push(hold);
        }
        for (name, holds) in names {
            for (hold, running) in beside(holds, |hold| (hold.locked, hold.ended)) {
                for other in running {
                    let (older, newer) =
                        if other.fence <= hold.fence { (other, hold) } else { (hold, other) };
                    if !self.may_share(older, newer) {
                        self.violated(Rule::OneHolder, format!("{older:?} and {newer:?}"));
                    }
                }
            }
            let grants = self.index.fences.iter();
            let grants = grants.filter(|taken| taken.family == Family::Lock && taken.key == name);
            let asked_for: HashSet<_> = grants.clone().map(|taken| taken.fence).collect();
            let granted: Known<_, _> =
                grants.map(|grant| ((), grant.answered, grant.fence)).collect();
            let holds = self.index.holds.iter().filter(|hold| hold.name == name && hold.fence > 0);
            for hold in holds {
                self.tally.add("handed over", usize::from(!asked_for.contains(&hold.fence)));
                let Some(until) = hold.held_until else { continue };
                if let Some(later) = granted.before(&(), until)
                    && *later > hold.fence
                {
                    self.violated(Rule::OneHolder, format!("{hold:?} to the end, and {later}"));
                }
            }
        }
    }

    fn may_share(&self, older: &Hold, newer: &Hold) -> bool {
        let both = older.locked.max(newer.locked);
        let from = self.grant(older).map_or(older.asked, |taken| taken.sent);
        // A lease that was handed over was granted at some time after the waiter asked for it.
        let (sent, answered) = match self.grant(newer) {
            Some(taken) => (taken.sent, taken.answered),
            None => (newer.asked, both),
        };
        older.fence != newer.fence
            && (older.lost.is_some_and(|lost| lost <= both + SLACK)
                || self.evicted(&holder_of(older), from, answered, older.ended.min(newer.ended))
                || self.index.paused(older.process, sent.saturating_sub(SLACK), both + SLACK))
    }

    /// Returns the grant of a hold. A lease that was handed over has none.
    fn grant(&self, hold: &Hold) -> Option<&Taken> {
        self.index.grants(Family::Lock, &hold.name, hold.fence).next()
    }

    /// Checks the holds that several processes may have together.
    pub fn shared_holds(&mut self) {
        let mut names: HashMap<&str, Vec<&Hold>> = HashMap::new();
        for hold in self.index.holds.iter().filter(|hold| hold.kind != Kind::Mutex) {
            match hold.kind {
                Kind::Reader => self.tally.add("readers", 1),
                Kind::Permits(_) => self.tally.add("holds of permits", 1),
                _ => {}
            }
            names.entry(&hold.name).or_default().push(hold);
        }
        for holds in names.into_values() {
            for (hold, mut running) in beside(holds, |hold| (hold.locked, hold.ended)) {
                running.push(hold);
                let valid = running.iter().filter(|other| !self.is_excused(other, hold));
                let valid: Vec<_> = valid.copied().collect();
                self.tally.add("holds beside others", usize::from(valid.len() > 1));
                let any_writes = valid.iter().any(|hold| hold.kind == Kind::Writer);
                let any_reads = valid.iter().any(|hold| hold.kind == Kind::Reader);
                let out = valid.iter().map(|hold| match hold.kind {
                    Kind::Permits(count) => count,
                    _ => 0,
                });
                if any_writes && any_reads {
                    self.violated(Rule::NoneBesideWriter, format!("{valid:?}"));
                }
                if out.sum::<u32>() > PERMITS {
                    self.violated(Rule::Limit, format!("{valid:?}"));
                }
            }
        }
    }

    /// Returns `true` if the hold may have ended before another one began, and its holder did not
    /// know that yet.
    fn is_excused(&self, hold: &Hold, newer: &Hold) -> bool {
        let at = newer.locked;
        let until = hold.ended.min(newer.ended);
        hold.held_until.is_none()
            && (hold.lost.is_some_and(|lost| lost <= at + SLACK)
                || self.evicted(&holder_of(hold), hold.asked, at, until)
                || self.index.paused(hold.process, at.saturating_sub(SLACK), at + SLACK))
    }
}
