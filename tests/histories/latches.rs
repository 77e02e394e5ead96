//! The rule of the latches. The [`checker`](super::checker) lists all rules.

use std::collections::HashSet;

use super::{
    checker::{Checker, Rule},
    history::COUNT,
    index::Latch,
};

impl Checker<'_> {
    /// Checks the latches. Each has a name of its own, is always set to the same count, and is
    /// never cleared.
    pub fn latches(&mut self) {
        for (name, latch) in &self.index.latches {
            self.tally.add("latches", 1);
            self.tally.add("steps of latches", latch.left.len());
            self.tally.add("latches that were waited for", usize::from(!latch.done.is_empty()));
            for broken in broken(latch) {
                self.violated(Rule::Latch, format!("{name}: {broken}: {latch:?}"));
            }
        }
    }
}

fn broken(latch: &Latch) -> Vec<String> {
    let mut all = Vec::new();
    let began_before = |time| latch.steps.iter().filter(|began| **began <= time).count();
    if latch.set.iter().filter(|(_, did)| *did).count() > 1 {
        all.push("the latch was set twice".to_owned());
    }
    let set = latch.set.iter().map(|(at, _)| *at).min();
    for asked in &latch.missed {
        if set.is_some_and(|set| set < *asked) {
            all.push(format!("the latch was missed at {asked}, but was set before"));
        }
    }
    let mut answers = HashSet::new();
    for (at, left) in &latch.left {
        // A step counts once, even if its answer was lost and it was sent again.
        if *left > 0 && !answers.insert(left) {
            all.push(format!("two steps were answered with {left} left"));
        }
        if *left >= COUNT || (COUNT - left) as usize > began_before(*at) {
            all.push(format!("{left} steps were left at {at}, after {} steps", began_before(*at)));
        }
    }
    for at in &latch.done {
        if began_before(*at) < COUNT as usize {
            all.push(format!("the latch was done at {at}, after {} steps", began_before(*at)));
        }
    }
    all
}
