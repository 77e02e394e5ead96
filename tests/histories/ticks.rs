//! The rule of the ticks of jobs. The [`checker`](super::checker) lists all rules.

use super::{
    checker::{Checker, Rule},
    history::runs_again,
    index::Turns,
};

impl Checker<'_> {
    /// Checks the turns of each job.
    pub fn ticks(&mut self) {
        for (job, turns) in &self.index.turns {
            self.tally.add("turns of jobs", turns.begun.len());
            self.tally.add("turns that were done", turns.done.len());
            for broken in broken(turns, runs_again(job)) {
                self.violated(Rule::Ticks, format!("{job}: {broken}"));
            }
        }
    }
}

/// Compares each turn with the turn before it. A turn begins while its process has the lease of the
/// job, so fences give the order of the turns.
fn broken(turns: &Turns, runs_again: bool) -> Vec<String> {
    let mut all = Vec::new();
    for pair in turns.begun.windows(2) {
        let [before, turn] = pair else { continue };
        let may_be_the_same = runs_again && !turns.done.contains(&before.fence);
        let is_due = turn.tick > before.tick || may_be_the_same && turn.tick == before.tick;
        if !is_due {
            all.push(format!("{turn:?} after {before:?}, done: {:?}", turns.done));
        }
    }
    all
}
