//! Decides how an entry may be used. It is one pure function of its age, its windows, the cost of
//! its load, the settings, and the lot of the process.

use std::time::Duration;

use crate::backend::{Entry, Windows};

mod costs;

pub(super) use costs::{Costs, Lot};

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
    /// This long before the fresh window ends, and never before half of it. That window may be
    /// shorter than the [`ttl`](super::Builder::ttl) of the cache, such as by
    /// [`none_ttl`](super::Builder::none_ttl).
    Within(Duration),
    /// When the load has just about enough time to end twice, by what the last loads cost. If one
    /// process dies in mid-load, the next one can still be in time.
    ///
    /// Each process adds a random time in proportion to the cost (XFetch: Vattani, Chierichetti and
    /// Lowenstein, "Optimal Probabilistic Cache Stampede Prevention", VLDB 2015). It thins the
    /// claims; the lease makes the refresh one. It never begins before half of the fresh window.
    ByCost,
}

/// The settings that a decision depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rules {
    pub(super) early: EarlyRefresh,
    /// A fresh entry is replaced, too, whatever its age.
    pub(super) replaces: bool,
    /// The longest stale window and the longest error window that the caller accepts.
    pub(super) stale: Duration,
    pub(super) error: Duration,
    /// The greatest age of a copy in this process that the caller accepts or makes.
    pub(super) copy: Duration,
}

impl Rules {
    /// Accepts whatever the backend has.
    pub(super) const ALL: Self = Self {
        early: EarlyRefresh::Off,
        replaces: false,
        stale: Duration::MAX,
        error: Duration::MAX,
        copy: Duration::MAX,
    };

    /// Returns the same rules for a caller that accepts nothing stale.
    pub(super) fn without_stale(self) -> Self {
        Self { stale: Duration::ZERO, error: Duration::ZERO, ..self }
    }
}

/// The window of its life that an entry is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Window {
    /// It is served.
    Fresh,
    /// It is served, and it is time to refresh it.
    Early,
    /// It is served stale, and the turn of this process to refresh it comes later.
    Deferred,
    /// It is served while it is refreshed.
    Stale,
    /// It is served if the load fails.
    OnError,
    /// It is of no use.
    Over,
}

/// Decides what may be done with an entry. The lot is drawn if it matters.
///
/// An entry of unknown age or without windows is fresh, for the backend drops it at its end.
pub(super) fn decide(entry: &Entry, rules: &Rules, lot: impl FnOnce() -> Lot) -> Window {
    let (Some(age), Some(windows)) = (entry.age, entry.windows) else { return Window::Fresh };
    decide_at(age, windows, Costs::of(entry), rules, lot)
}

/// Decides the same for an entry of this age.
pub(super) fn decide_at(
    age: Duration,
    windows: Windows,
    costs: Costs,
    rules: &Rules,
    lot: impl FnOnce() -> Lot,
) -> Window {
    let stale = windows.stale.min(rules.stale);
    // Otherwise each read of a short life would refresh.
    let half = windows.fresh / 2;
    if let Some(left) = windows.fresh.checked_sub(age).filter(|left| !left.is_zero()) {
        let is_due = match rules.early {
            _ if rules.replaces => true,
            EarlyRefresh::Off => false,
            EarlyRefresh::Within(before) => {
                let before = before.min(half);
                before
                    .checked_sub(left)
                    .is_some_and(|since| costs.is_turn(since, before.saturating_add(stale), lot()))
            }
            EarlyRefresh::ByCost => left <= half && left <= costs.refresh_before(lot()),
        };
        return if is_due { Window::Early } else { Window::Fresh };
    }
    let over = age.saturating_sub(windows.fresh);
    if over < stale {
        let before = match rules.early {
            EarlyRefresh::Off => Duration::ZERO,
            EarlyRefresh::Within(before) => before.min(half),
            // Each process had its turn.
            EarlyRefresh::ByCost => return Window::Stale,
        };
        let (since, room) = (before.saturating_add(over), before.saturating_add(stale));
        return match costs.is_turn(since, room, lot()) {
            true => Window::Stale,
            false => Window::Deferred,
        };
    }
    if over < error_window(&windows).min(rules.error) { Window::OnError } else { Window::Over }
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

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use proptest::prelude::*;

    use super::*;

    const MS: Duration = Duration::from_millis(1);
    const ALL: Rules = Rules::ALL;

    fn first(random: f64) -> impl FnOnce() -> Lot {
        move || Lot { is_first: true, random }
    }

    fn entry(age: u32, [fresh, stale, error]: [u32; 3], cost: u32, spread: u32) -> Entry {
        let windows = Windows::fresh(fresh * MS).stale(stale * MS).error(error * MS);
        let entry = Entry::value(0, cost * MS, Bytes::new()).with_spread(spread * MS);
        Entry { age: Some(age * MS), ..entry.with_windows(windows) }
    }

    #[test]
    fn each_window_begins_and_ends_at_its_edge() {
        use Window::{Fresh, OnError, Over, Stale};
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
                assert_eq!(decide(&entry, &ALL, first(0.5)), freshness, "{windows:?} at {age}");
            }
        }
    }

    #[test]
    fn an_early_refresh_begins_at_its_edge() {
        use Window::{Early, Fresh, Over};
        let within = |ms| Rules { early: EarlyRefresh::Within(ms * MS), ..ALL };
        let by_cost = Rules { early: EarlyRefresh::ByCost, ..ALL };
        let table = [
            (within(0), 0, 1.0, vec![(999, Fresh), (1000, Over)]),
            (within(100), 0, 1.0, vec![(899, Fresh), (900, Early), (999, Early), (1000, Over)]),
            (within(9999), 0, 1.0, vec![(499, Fresh), (500, Early), (1000, Over)]),
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
                assert_eq!(decide(&entry, &rules, first(random)), freshness, "{rules:?} at {age}");
            }
        }
    }

    #[test]
    fn a_process_that_did_not_store_the_entry_claims_later() {
        use Window::{Deferred, Early, Fresh, Stale};
        let [all, rare] = [1.0, (-3.0_f64).exp()];
        let within = Rules { early: EarlyRefresh::Within(100 * MS), ..ALL };
        let table = [
            // Seven times the cost and the round trips.
            (ALL, 5000, 45, all, vec![(999, Fresh), (1000, Deferred), (1349, Deferred)]),
            (ALL, 5000, 45, all, vec![(1350, Stale)]),
            (ALL, 5000, 45, rare, vec![(1199, Deferred), (1201, Stale)]),
            (ALL, 5000, 45, 0.0, vec![(999, Fresh), (1000, Stale)]),
            // Half of the window is left for the load.
            (ALL, 160, 45, all, vec![(1079, Deferred), (1080, Stale)]),
            // Time for two loads is left.
            (ALL, 200, 45, all, vec![(1109, Deferred), (1110, Stale)]),
            (within, 5000, 45, all, vec![(999, Fresh), (1000, Deferred), (1250, Stale)]),
            (within, 0, 45, all, vec![(949, Fresh), (950, Early)]),
            (within, 5000, 45, 0.0, vec![(899, Fresh), (900, Early), (1000, Stale)]),
        ];
        for (rules, stale, cost, random, expected) in table {
            for (age, freshness) in expected {
                let entry = entry(age, [1000, stale, 0], cost, 0);
                let lot = || Lot { is_first: false, random };
                assert_eq!(decide(&entry, &rules, lot), freshness, "{rules:?} at {age}");
            }
        }
    }

    #[test]
    fn an_early_refresh_costs_three_claims_at_most() {
        for early in [EarlyRefresh::ByCost, EarlyRefresh::Within(500 * MS)] {
            assert_three_claims_at_most(early, Some(0));
        }
    }

    #[test]
    fn a_refresh_in_place_of_a_process_that_is_gone_costs_three_claims_at_most() {
        for early in [EarlyRefresh::Off, EarlyRefresh::Within(500 * MS)] {
            assert_three_claims_at_most(early, None);
        }
    }

    /// Asserts the mean over many refreshes. The number for one varies by as much as its mean.
    fn assert_three_claims_at_most(early: EarlyRefresh, first: Option<u32>) {
        let mut random = fastrand::Rng::with_seed(1);
        for processes in [1, 16, 64, 256] {
            let rounds = 1000;
            let claims: u32 =
                (0..rounds).map(|_| claims(early, first, processes, &mut random)).sum();
            assert!(claims <= 3 * rounds, "{early:?}, {processes} processes: {claims}");
        }
    }

    /// Returns how many processes claim before the load of the first one is over.
    fn claims(
        early: EarlyRefresh,
        first: Option<u32>,
        processes: u32,
        random: &mut fastrand::Rng,
    ) -> u32 {
        let rules = Rules { early, ..ALL };
        let stale = if first.is_none() { 1000 } else { 0 };
        let claim_at = |process| {
            let lot = Lot { is_first: first == Some(process), random: random.f64() };
            let decide = |age| decide(&entry(age, [1000, stale, 0], 50, 5), &rules, || lot);
            bisect(500..2000, |age| !matches!(decide(age), Window::Fresh | Window::Deferred))
        };
        let ages: Vec<_> = (0..processes).map(claim_at).collect();
        let end = ages.iter().min().map_or(0, |first| first + 50);
        ages.iter().map(|&age| u32::from(age < end)).sum()
    }

    /// Returns the first number for which the condition holds. It holds for all later ones.
    fn bisect(mut range: std::ops::Range<u32>, holds: impl Fn(u32) -> bool) -> u32 {
        while !range.is_empty() {
            let middle = range.start.midpoint(range.end);
            if holds(middle) { range.end = middle } else { range.start = middle + 1 }
        }
        range.start
    }

    #[test]
    fn without_age_or_windows_an_entry_is_fresh() {
        let rules = Rules { replaces: true, ..ALL };
        let known = entry(10_000, [10, 0, 0], 5, 5);
        assert_eq!(decide(&known, &rules, first(0.5)), Window::Over);
        let ageless = Entry { age: None, ..known.clone() };
        assert_eq!(decide(&ageless, &rules, first(0.5)), Window::Fresh);
        assert_eq!(decide(&Entry { windows: None, ..known }, &rules, first(0.5)), Window::Fresh);
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
            (cost, spread) in (0..500_u32, 0..500_u32),
            (is_first, random) in (any::<bool>(), 0.0..=1.0),
            early in early(),
        ) {
            let [stale, error] = limits.map(|limit| limit * MS);
            let rules = Rules { early, stale, error, ..ALL };
            let [fresh, to_stale, to_error] = [windows[0].max(1), windows[1], windows[2]];
            let stages = [
                Window::Fresh, Window::Early, Window::Deferred, Window::Stale,
                Window::OnError, Window::Over,
            ];
            let stage = |age| {
                let lot = || Lot { is_first, random };
                let decided = decide(&entry(age, windows, cost, spread), &rules, lot);
                stages.iter().position(|stage| *stage == decided)
            };
            let mut last = stage(0);
            for age in (0..6000).step_by(37).chain([fresh - 1, fresh, fresh + to_stale]) {
                let now = stage(age);
                prop_assert!(age >= fresh || now <= Some(1));
                prop_assert!(now != Some(1) || age >= fresh / 2);
                prop_assert!(age < fresh || now >= Some(2));
                let limit = to_stale.min(limits[0]);
                let is_stale = now == Some(2) || now == Some(3);
                prop_assert_eq!(is_stale, age >= fresh && age - fresh < limit);
                prop_assert!(!is_first || now != Some(2));
                let kept = fresh + to_stale.max(to_error);
                prop_assert!(age < kept || now == Some(5));
            }
            for age in (0..6000).step_by(37) {
                prop_assert!(stage(age) >= last);
                last = stage(age);
            }
        }
    }
}
