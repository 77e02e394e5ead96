//! Decides how an entry may be used. It is one pure function of its age, its windows, the settings,
//! and the turn of the process.

use std::time::Duration;

use crate::{
    backend::{Entry, Windows},
    flight::Accepted,
};

/// When an entry is refreshed before its fresh window ends, so that a hot one never becomes stale.
///
/// One process of the fleet refreshes in the background, and all callers are served the entry
/// meanwhile. No refresh begins in the first half of the fresh window.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub enum EarlyRefresh {
    /// Never.
    #[default]
    Off,
    /// This long before the fresh window ends. Give it the time of two loads: if one process dies
    /// in mid-load, the next one can still be in time.
    Within(Duration),
    /// In this part of the fresh window, counted from its end. A part over 0.5 counts as 0.5.
    LastPart(f64),
}

impl EarlyRefresh {
    /// Returns how long before the end of a fresh window it begins.
    fn before(self, fresh: Duration) -> Duration {
        // Otherwise each read of a short life would refresh.
        let half = fresh / 2;
        match self {
            Self::Within(time) => time.min(half),
            Self::LastPart(part) if part > 0.0 => fresh.mul_f64(part.min(0.5)).min(half),
            // A part that is no number, too.
            Self::Off | Self::LastPart(_) => Duration::ZERO,
        }
    }
}

/// The settings that a decision depends on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Rules {
    pub(super) early: EarlyRefresh,
    /// A fresh entry is replaced, too, whatever its age.
    pub(super) replaces: bool,
    /// The age of an entry is asked for, also if no window depends on it.
    pub(super) aged: bool,
    /// The longest stale window and the longest error window that the caller accepts.
    pub(super) stale: Duration,
    pub(super) error: Duration,
    /// The greatest age of a copy in this process that the caller accepts or makes.
    pub(super) copy: Duration,
    /// The least fence of what this process serves without an answer of the backend.
    pub(super) least_fence: u64,
}

impl Rules {
    /// Accepts whatever the backend has.
    pub(super) const ALL: Self = Self {
        early: EarlyRefresh::Off,
        replaces: false,
        aged: false,
        stale: Duration::MAX,
        error: Duration::MAX,
        copy: Duration::MAX,
        least_fence: 0,
    };

    /// Returns what a caller accepts of a flight.
    pub(super) fn accepted(&self) -> Accepted {
        Accepted { stale: self.stale, error: self.error, least_fence: self.least_fence }
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

/// The longest time that a process waits for its turn to refresh an entry. A shorter one lets more
/// processes claim at once, a longer one serves the old value for longer.
const LONGEST_DELAY: Duration = Duration::from_millis(700);
/// The delays that a thousand processes draw are spread over so many steps: `e^7` is about a
/// thousand.
const STEPS: f64 = 7.0;

/// Returns how long a process waits within a window for its turn to refresh an entry, for a number
/// that is random from 0 to 1. At most half of the window, so that the load has the other half.
///
/// The number of processes whose turn has come grows by `e` in each step, so few of them claim
/// before the first load ends (Nonnenmacher and Biersack, "Scalable Feedback for Large Multicast
/// Groups", 1999).
pub(super) fn refresh_delay(window: Duration, uniform: f64) -> Duration {
    let uniform = uniform.clamp(f64::MIN_POSITIVE, 1.0);
    LONGEST_DELAY.min(window / 2).mul_f64((1.0 + uniform.ln() / STEPS).max(0.0))
}

/// Decides what may be done with an entry. The delay within a window is drawn if it matters.
///
/// An entry of unknown age or without windows is fresh, for the backend drops it at its end.
pub(super) fn decide(
    entry: &Entry,
    rules: &Rules,
    delay: impl FnOnce(Duration) -> Duration,
) -> Window {
    let (Some(age), Some(windows)) = (entry.age, entry.windows) else { return Window::Fresh };
    decide_at(age, windows, rules, delay)
}

/// Decides the same for an entry of this age.
pub(super) fn decide_at(
    age: Duration,
    windows: Windows,
    rules: &Rules,
    delay: impl FnOnce(Duration) -> Duration,
) -> Window {
    let (stale, is_fresh) = (windows.stale.min(rules.stale), age < windows.fresh);
    let over = age.saturating_sub(windows.fresh);
    if is_fresh && rules.replaces {
        return Window::Early;
    }
    if !is_fresh && over >= stale {
        let is_kept = over < error_window(&windows).min(rules.error);
        return if is_kept { Window::OnError } else { Window::Over };
    }
    let before = rules.early.before(windows.fresh);
    // For how long a refresh may have begun.
    let since = age.saturating_add(before).checked_sub(windows.fresh);
    let is_due = since.is_some_and(|since| since >= delay(before.saturating_add(stale)));
    match (is_fresh, is_due) {
        (true, true) => Window::Early,
        (true, false) => Window::Fresh,
        (false, true) => Window::Stale,
        (false, false) => Window::Deferred,
    }
}

/// Returns for how long after its fresh window an entry may be served in place of a failure.
fn error_window(windows: &Windows) -> Duration {
    windows.stale.max(windows.error)
}

/// Returns for how much longer an entry may be served in place of a failure.
pub(super) fn left_on_error(entry: &Entry, rules: &Rules) -> Option<Duration> {
    let (age, windows) = (entry.age?, entry.windows?);
    let end = windows.fresh.saturating_add(error_window(&windows).min(rules.error));
    end.checked_sub(age)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// The mean over many refreshes: the number for one varies by as much as its mean.
    #[test]
    fn a_refresh_in_place_of_a_process_that_is_gone_costs_three_claims_at_most() {
        let mut random = fastrand::Rng::with_seed(1);
        for processes in [1, 16, 64, 256, 1024] {
            let rounds = 1000;
            let claims: usize = (0..rounds).map(|_| claims(processes, &mut random)).sum();
            assert!(claims <= 3 * rounds, "{processes} processes: {claims}");
        }
    }

    /// Returns how many processes claim before the load of the first one is over, after 50 ms.
    fn claims(processes: usize, random: &mut fastrand::Rng) -> usize {
        let mut delay = |_| refresh_delay(1000 * MS, random.f64());
        let delays: Vec<_> = (0..processes).map(&mut delay).collect();
        let end = delays.iter().min().map_or(MS, |first| *first + 50 * MS);
        delays.iter().filter(|delay| **delay < end).count()
    }
}
