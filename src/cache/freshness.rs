//! What may be done with an entry: one pure function of its age, its windows, the cost of its load,
//! the settings, and a random number.

use std::time::Duration;

use crate::backend::{Entry, Windows};

/// When an entry is refreshed before its fresh window ends, so that a hot one never becomes stale.
///
/// The refresh runs in the background, under the lease. While it runs, all callers are served the
/// entry. One process of the fleet refreshes, whatever the number of processes.
///
/// ```
/// use std::time::Duration;
/// use bellwether::{Cache, MemoryBackend, cache::EarlyRefresh};
///
/// let cache: Cache<String> = Cache::builder(MemoryBackend::new())
///     .ttl(Duration::from_secs(60))
///     .early_refresh(EarlyRefresh::ByCost)
///     .build()?;
/// # Ok::<_, bellwether::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum EarlyRefresh {
    /// Never.
    #[default]
    Off,
    /// This long before the fresh window ends.
    Within(Duration),
    /// When the load has just about enough time to end twice, by what the last loads cost. If one
    /// process dies in mid-load, the next one can still be in time.
    ///
    /// Each reader adds a random time in proportion to the cost (XFetch: Vattani, Chierichetti and
    /// Lowenstein, "Optimal Probabilistic Cache Stampede Prevention", VLDB 2015). It thins the
    /// claims; the lease makes the refresh one. It never begins before half of the fresh window.
    ByCost,
}

/// The settings that a decision depends on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rules {
    pub(super) early: EarlyRefresh,
    /// The longest stale window and the longest error window that the caller accepts.
    pub(super) stale: Duration,
    pub(super) error: Duration,
}

impl Rules {
    /// Accepts whatever the backend has.
    pub(super) const ALL: Self =
        Self { early: EarlyRefresh::Off, stale: Duration::MAX, error: Duration::MAX };
}

/// What may be done with an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Freshness {
    /// It is served.
    Fresh,
    /// It is served, and it is time to refresh it.
    Early,
    /// It is served while it is refreshed.
    Stale,
    /// It is served if the load fails.
    OnError,
    /// It is of no use.
    Over,
}

/// What the loads of a name cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Costs {
    pub(super) cost: Duration,
    pub(super) spread: Duration,
}

/// Decides what may be done with an entry. `random` is from 0 to 1.
///
/// An entry of unknown age or without windows is fresh, for the backend drops it at its end.
pub(super) fn decide(entry: &Entry, rules: &Rules, random: f64) -> Freshness {
    let (Some(age), Some(windows)) = (entry.age, entry.windows) else { return Freshness::Fresh };
    if let Some(left) = windows.fresh.checked_sub(age).filter(|left| !left.is_zero()) {
        let starts = match rules.early {
            EarlyRefresh::Off => return Freshness::Fresh,
            EarlyRefresh::Within(before) => before,
            EarlyRefresh::ByCost => Costs::of(entry).refresh_before(random).min(windows.fresh / 2),
        };
        return if left <= starts { Freshness::Early } else { Freshness::Fresh };
    }
    let over = age.saturating_sub(windows.fresh);
    if over < windows.stale.min(rules.stale) {
        Freshness::Stale
    } else if over < error_window(&windows).min(rules.error) {
        Freshness::OnError
    } else {
        Freshness::Over
    }
}

/// Returns for how long after its fresh window an entry may stand in for a failure.
fn error_window(windows: &Windows) -> Duration {
    windows.stale.max(windows.error)
}

/// Returns for how much longer an entry may stand in for a failure.
pub(super) fn left_on_error(entry: &Entry, rules: &Rules) -> Option<Duration> {
    let (age, windows) = (entry.age?, entry.windows?);
    let end = windows.fresh.saturating_add(error_window(&windows).min(rules.error));
    end.checked_sub(age)
}

impl Costs {
    pub(super) fn of(entry: &Entry) -> Self {
        Self { cost: entry.cost, spread: entry.spread }
    }

    /// Returns the costs of a first load.
    pub(super) fn first(cost: Duration) -> Self {
        Self { cost, spread: cost / 2 }
    }

    /// Returns the costs after one more load, smoothed as round trips are (RFC 6298).
    pub(super) fn and(self, cost: Duration) -> Self {
        if self.cost.is_zero() {
            return Self::first(cost);
        }
        Self {
            cost: self.cost * 7 / 8 + cost / 8,
            spread: self.spread * 3 / 4 + self.cost.abs_diff(cost) / 4,
        }
    }

    /// Returns how long before the end of the fresh window a reader claims a refresh.
    fn refresh_before(self, random: f64) -> Duration {
        // About the 95th percentile of the costs.
        let long = self.cost.saturating_add(self.spread.saturating_mul(2));
        let chance = -random.clamp(f64::MIN_POSITIVE, 1.0).ln();
        long.saturating_mul(2).saturating_add(self.cost.mul_f64(chance))
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use proptest::prelude::*;

    use super::*;

    const MS: Duration = Duration::from_millis(1);
    const ALL: Rules = Rules::ALL;

    fn entry(age: u32, [fresh, stale, error]: [u32; 3], cost: u32, spread: u32) -> Entry {
        let windows = Windows::fresh(fresh * MS).stale(stale * MS).error(error * MS);
        let entry = Entry::value(0, cost * MS, Bytes::new()).with_spread(spread * MS);
        Entry { age: Some(age * MS), ..entry.with_windows(windows) }
    }

    #[test]
    fn each_window_begins_and_ends_at_its_edge() {
        use Freshness::{Fresh, OnError, Over, Stale};
        let table = [
            ([10, 0, 0], vec![(0, Fresh), (9, Fresh), (10, Over)]),
            ([10, 5, 0], vec![(9, Fresh), (10, Stale), (14, Stale), (15, Over)]),
            ([10, 0, 5], vec![(9, Fresh), (10, OnError), (14, OnError), (15, Over)]),
            ([10, 5, 20], vec![(14, Stale), (15, OnError), (29, OnError), (30, Over)]),
            ([10, 20, 5], vec![(29, Stale), (30, Over)]),
        ];
        for (windows, expected) in table {
            for (age, freshness) in expected {
                let entry = entry(age, windows, 0, 0);
                assert_eq!(decide(&entry, &ALL, 0.5), freshness, "{windows:?} at {age}");
            }
        }
    }

    #[test]
    fn an_early_refresh_begins_at_its_edge() {
        use Freshness::{Early, Fresh, Over};
        let within = |ms| Rules { early: EarlyRefresh::Within(ms * MS), ..ALL };
        let by_cost = Rules { early: EarlyRefresh::ByCost, ..ALL };
        let table = [
            (within(0), 0, 1.0, vec![(999, Fresh), (1000, Over)]),
            (within(100), 0, 1.0, vec![(899, Fresh), (900, Early), (999, Early), (1000, Over)]),
            (within(9999), 0, 1.0, vec![(0, Early), (1000, Over)]),
            // Twice the cost and its spread, and nothing by chance.
            (by_cost, 50, 1.0, vec![(859, Fresh), (860, Early), (999, Early), (1000, Over)]),
            // By chance, one cost more.
            (by_cost, 50, (-1.0_f64).exp(), vec![(809, Fresh), (811, Early)]),
            (by_cost, 50, 0.0, vec![(499, Fresh), (500, Early)]),
            (by_cost, 9000, 0.5, vec![(499, Fresh), (500, Early)]),
            (by_cost, 0, 0.0, vec![(999, Fresh), (1000, Over)]),
        ];
        for (rules, cost, random, expected) in table {
            for (age, freshness) in expected {
                let entry = entry(age, [1000, 0, 0], cost, cost / 5);
                assert_eq!(decide(&entry, &rules, random), freshness, "{rules:?} at {age}");
            }
        }
    }

    #[test]
    fn without_age_or_windows_an_entry_is_fresh() {
        let rules = Rules { early: EarlyRefresh::Within(Duration::MAX), ..ALL };
        let known = entry(10_000, [10, 0, 0], 5, 5);
        assert_eq!(decide(&known, &rules, 0.5), Freshness::Over);
        let ageless = Entry { age: None, ..known.clone() };
        assert_eq!(decide(&ageless, &rules, 0.5), Freshness::Fresh);
        assert_eq!(decide(&Entry { windows: None, ..known }, &rules, 0.5), Freshness::Fresh);
    }

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

    fn early() -> impl Strategy<Value = EarlyRefresh> {
        prop_oneof![
            Just(EarlyRefresh::Off),
            (0..3000_u32).prop_map(|ms| EarlyRefresh::Within(ms * MS)),
            Just(EarlyRefresh::ByCost),
        ]
    }

    proptest! {
        /// An entry only ever goes on to a later stage, and each stage keeps within its window.
        #[test]
        fn an_entry_never_becomes_fresher(
            windows in prop::array::uniform3(0..2000_u32),
            limits in prop::array::uniform2(0..2000_u32),
            (cost, spread, random) in (0..500_u32, 0..500_u32, 0.0..=1.0),
            early in early(),
        ) {
            let [stale, error] = limits.map(|limit| limit * MS);
            let rules = Rules { early, stale, error };
            let [fresh, to_stale, to_error] = [windows[0].max(1), windows[1], windows[2]];
            let stages = [
                Freshness::Fresh, Freshness::Early, Freshness::Stale, Freshness::OnError,
                Freshness::Over,
            ];
            let stage = |age| {
                let decided = decide(&entry(age, windows, cost, spread), &rules, random);
                stages.iter().position(|stage| *stage == decided)
            };
            let mut last = stage(0);
            for age in (0..6000).step_by(37).chain([fresh - 1, fresh, fresh + to_stale]) {
                let now = stage(age);
                prop_assert!(age >= fresh || now <= Some(1));
                prop_assert!(age < fresh || now >= Some(2));
                let limit = to_stale.min(limits[0]);
                prop_assert_eq!(now == Some(2), age >= fresh && age - fresh < limit);
                let kept = fresh + to_stale.max(to_error);
                prop_assert!(age < kept || now == Some(4));
            }
            for age in (0..6000).step_by(37) {
                prop_assert!(stage(age) >= last);
                last = stage(age);
            }
        }
    }
}
