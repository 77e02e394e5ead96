//! The rule of the ticks of jobs. The [`checker`](super::checker) lists all rules.

use super::{
    checker::{Checker, Rule},
    history::runs_again,
    index::{BegunTick, Ticks},
};

impl Checker<'_> {
    /// Checks the turns of each job.
    pub fn ticks(&mut self) {
        for (job, ticks) in &self.index.ticks {
            self.tally.add("turns of jobs", ticks.begun.len());
            self.tally.add("turns that were done", ticks.done.len());
            for broken in broken(ticks, runs_again(job)) {
                self.violated(Rule::Ticks, format!("{job}: {broken}"));
            }
        }
    }
}

fn broken(ticks: &Ticks, runs_again: bool) -> Vec<String> {
    let mut all = Vec::new();
    for (at, turn) in ticks.begun.iter().enumerate() {
        for earlier in &ticks.begun[..at] {
            if earlier.tick == turn.tick && !runs_again {
                all.push(format!("a tick was begun twice: {earlier:?} and {turn:?}"));
            }
            if is_too_late(earlier, turn) {
                all.push(format!("{turn:?} after the later tick {earlier:?}"));
            }
        }
        let done = ticks.done.iter().find(|done| done.tick == turn.tick && done.at < turn.asked);
        if let Some(done) = done {
            all.push(format!("{turn:?} after {done:?}"));
        }
    }
    all
}

/// Returns whether a turn was asked for after a later tick had been begun.
fn is_too_late(earlier: &BegunTick, turn: &BegunTick) -> bool {
    earlier.tick > turn.tick && earlier.at < turn.asked
}
