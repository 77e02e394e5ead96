//! The lots of a process: when it claims the refresh of each entry.
//!
//! The process that stored an entry claims first, because it is likely to be asked for it again.
//! The others claim later, at random times, and mostly find the new entry before. If the first
//! process is gone, a few of the others claim in its place. The backend sends nothing for that.

use std::{
    hash::{BuildHasher, Hash},
    sync::OnceLock,
    time::Duration,
};

use fastrand::Rng;
use hashbrown::DefaultHashBuilder;

use super::{freshness::Lot, quiet::QuietKeys};

pub(super) struct Lots {
    /// Differs between processes, so that their lots differ.
    seed: u64,
    hasher: DefaultHashBuilder,
    /// The entries that this process stored or touched. A forgotten one is refreshed later.
    stored: OnceLock<QuietKeys>,
}

impl Default for Lots {
    fn default() -> Self {
        let (seed, hasher) = (fastrand::u64(..), DefaultHashBuilder::default());
        Self { seed, hasher, stored: OnceLock::new() }
    }
}

impl Lots {
    /// Notes that this process stored the entry with this fence.
    pub(super) fn stored(&self, name: &impl Hash, fence: u64) {
        self.stored.get_or_init(QuietKeys::default).add(name, fence, Duration::MAX);
    }

    /// Returns the lot for an entry. It is the same each time.
    pub(super) fn draw(&self, name: &impl Hash, fence: u64) -> Lot {
        let is_first = self.stored.get().is_some_and(|stored| stored.contain(name, fence));
        let random = Rng::with_seed(self.hasher.hash_one((self.seed, name, fence))).f64();
        Lot { is_first, random }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lot_is_drawn_once_for_each_entry_and_process() {
        let [here, there] = [Lots::default(), Lots::default()];
        let random = |lots: &Lots, fence| lots.draw(&"one", fence).random;
        assert!((random(&here, 1) - random(&here, 1)).abs() < f64::EPSILON);
        let drawn: Vec<_> =
            (0..1000).flat_map(|fence| [random(&here, fence), random(&there, fence)]).collect();
        for tenth in 0..10 {
            let from = f64::from(tenth) / 10.0;
            let within = drawn.iter().filter(|&&it| it >= from && it < from + 0.1).count();
            assert!((100..300).contains(&within), "{within} of 2000 from {from}");
        }
        here.stored(&"one", 5);
        assert!(here.draw(&"one", 5).is_first && !here.draw(&"one", 6).is_first);
        assert!(!there.draw(&"one", 5).is_first);
    }
}
