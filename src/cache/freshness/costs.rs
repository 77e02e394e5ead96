//! The costs of the loads of a name, and when the turn of a process to refresh it comes.

use std::time::Duration;

use crate::backend::Entry;

/// The costs of the loads of a name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::cache) struct Costs {
    pub(in crate::cache) cost: Duration,
    pub(in crate::cache) spread: Duration,
}

/// Over how many times the cost of a load the claims for a refresh are spread. Of a thousand
/// processes about one claims at the start, because `e^7` is about a thousand.
const STEPS: u32 = 7;

/// The time of a refresh beside its load: a claim, a commit, and the next look of each process.
const ROUND_TRIPS: Duration = Duration::from_millis(5);

/// The lot of a process for one entry. It decides when the process claims the refresh.
#[derive(Clone, Copy, Debug)]
pub(in crate::cache) struct Lot {
    /// This process has stored the entry, and claims first.
    pub(in crate::cache) is_first: bool,
    /// A random number from 0 to 1.
    pub(in crate::cache) random: f64,
}

impl Costs {
    pub(in crate::cache) fn of(entry: &Entry) -> Self {
        Self { cost: entry.cost, spread: entry.spread }
    }

    /// Returns the costs of a first load.
    pub(in crate::cache) fn first(cost: Duration) -> Self {
        Self { cost, spread: cost / 2 }
    }

    /// Returns the costs after one more load, smoothed as round trips are (RFC 6298).
    pub(in crate::cache) fn and(self, cost: Duration) -> Self {
        if self.cost.is_zero() {
            return Self::first(cost);
        }
        Self {
            cost: self.cost * 7 / 8 + cost / 8,
            spread: self.spread * 3 / 4 + self.cost.abs_diff(cost) / 4,
        }
    }

    /// Returns how long before the end of the fresh window a process claims a refresh.
    pub(super) fn refresh_before(self, lot: Lot) -> Duration {
        self.time_for_two().saturating_add(self.cost.mul_f64(lot.chance()))
    }

    /// Returns twice about the 95th percentile of the costs.
    fn time_for_two(self) -> Duration {
        self.cost.saturating_add(self.spread.saturating_mul(2)).saturating_mul(2)
    }

    /// Returns whether it is the turn of a process to claim a refresh. The first process may claim
    /// it since this time, and callers do not wait for it within `room`.
    ///
    /// The expected number of claims grows by `e` in the time of each load. So few follow the first
    /// one until its load ends, whatever the number of processes (Nonnenmacher and Biersack,
    /// "Scalable Feedback for Large Multicast Groups", 1999).
    pub(super) fn is_turn(self, since: Duration, room: Duration, lot: Lot) -> bool {
        let step = self.cost.saturating_add(ROUND_TRIPS);
        let room = room.saturating_sub(self.time_for_two()).max(room / 2);
        let all = step.saturating_mul(STEPS).min(room);
        lot.is_first || since.saturating_add(step.mul_f64(lot.chance())) >= all
    }
}

impl Lot {
    /// Returns a number of loads by which a process is early. Large ones are exponentially rare.
    fn chance(self) -> f64 {
        -self.random.clamp(f64::MIN_POSITIVE, 1.0).ln()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn costs_follow_the_loads() {
        let mut costs = Costs::default().and(80 * MS);
        assert_eq!(costs, Costs { cost: 80 * MS, spread: 40 * MS });
        costs = costs.and(160 * MS);
        assert_eq!(costs, Costs { cost: 90 * MS, spread: 50 * MS });
        for _ in 0..100 {
            costs = costs.and(160 * MS);
        }
        assert!(costs.cost > 155 * MS && costs.spread < 5 * MS, "{costs:?}");
    }
}
