//! Decides how an entry may be used: a pure function of its age, its windows, the rules of the
//! caller, and the delay of the process.

use std::time::Duration;

use crate::{
    backend::{Entry, Windows},
    flight::Accepted,
};

/// When an entry is refreshed before its fresh window ends, so that a hot entry never becomes
/// stale.
///
/// One process of the fleet refreshes in the background. Meanwhile all callers are served the
/// entry. No refresh begins in the first half of the fresh window.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub enum EarlyRefresh {
    /// Never.
    #[default]
    Off,
    /// This long before the fresh window ends. Choose the time of two loads: if a process dies
    /// during its load, another process can still be in time.
    Within(Duration),
    /// In this part of the fresh window, counted from its end. A part over 0.5 counts as 0.5.
    LastPart(f64),
}

impl EarlyRefresh {
    /// Returns how long before the end of a fresh window the refresh begins.
    fn before(self, fresh: Duration) -> Duration {
        // Without this limit, each read of an entry with a short life would refresh it.
        let half = fresh / 2;
        match self {
            Self::Within(time) => time.min(half),
            Self::LastPart(part) if part > 0.0 => fresh.mul_f64(part.min(0.5)).min(half),
            // Also a part that is `NaN`.
            Self::Off | Self::LastPart(_) => Duration::ZERO,
        }
    }
}

/// What a caller accepts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Rules {
    pub(super) early: EarlyRefresh,
    /// The load replaces any entry, even a fresh one.
    pub(super) replaces: bool,
    /// Reads ask for the age of the entry, even if no window depends on the age.
    pub(super) asks_age: bool,
    /// The longest stale window that the caller accepts.
    pub(super) stale: Duration,
    /// The longest window for failures that the caller accepts.
    pub(super) error: Duration,
    /// The greatest age of a copy in this process that the caller accepts or makes.
    pub(super) copy: Duration,
    /// The least fence of a value that this process serves without an answer of the backend.
    pub(super) least_fence: u64,
}

impl Rules {
    /// Accepts every entry of the backend.
    pub(super) const ALL: Self = Self {
        early: EarlyRefresh::Off,
        replaces: false,
        asks_age: false,
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
    /// The entry is served.
    Fresh,
    /// The entry is served, and this process refreshes it early.
    Early,
    /// The entry is served stale, and this process does not refresh it yet.
    Deferred,
    /// The entry is served stale, and this process refreshes it.
    Stale,
    /// The entry is served only if the load fails.
    OnError,
    /// The entry is never served.
    Over,
}

/// The longest delay of a process before it refreshes an entry. With a shorter delay, more
/// processes claim at once. With a longer delay, the old value is served for longer.
const LONGEST_DELAY: Duration = Duration::from_millis(700);
/// The delays of a thousand processes are spread over this many steps: `e^7` is about a thousand.
const STEPS: f64 = 7.0;

/// Returns the delay of a process before it refreshes an entry in a window. `uniform` is a random
/// number from 0 to 1. The delay is at most half of the window, so that the load has the other
/// half.
///
/// In each step, the number of processes whose delay is over grows by `e`. So few processes claim
/// before the first load ends (Nonnenmacher and Biersack, "Scalable Feedback for Large Multicast
/// Groups", 1999).
pub(super) fn refresh_delay(window: Duration, uniform: f64) -> Duration {
    let longest = LONGEST_DELAY.min(window / 2);
    let uniform = uniform.clamp(f64::MIN_POSITIVE, 1.0);
    let part = 1.0 + uniform.ln() / STEPS;
    longest.mul_f64(part.max(0.0))
}

/// Decides in which window an entry is. Calls `delay` only if the decision depends on the delay.
///
/// An entry of unknown age or without windows is fresh, because the backend drops it when its life
/// ends.
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
    let is_fresh = age < windows.fresh;
    let stale = windows.stale.min(rules.stale);
    let over = age.saturating_sub(windows.fresh);
    if is_fresh && rules.replaces {
        return Window::Early;
    }
    if !is_fresh && over >= stale {
        let is_kept = over < error_window(&windows).min(rules.error);
        return if is_kept { Window::OnError } else { Window::Over };
    }
    let before = rules.early.before(windows.fresh);
    // How long ago the time for refreshes began, if it has begun.
    let since = age.saturating_add(before).checked_sub(windows.fresh);
    let is_due = since.is_some_and(|since| since >= delay(before.saturating_add(stale)));
    match (is_fresh, is_due) {
        (true, true) => Window::Early,
        (true, false) => Window::Fresh,
        (false, true) => Window::Stale,
        (false, false) => Window::Deferred,
    }
}

/// Returns how long after its fresh window an entry may be served in place of a failure.
fn error_window(windows: &Windows) -> Duration {
    windows.stale.max(windows.error)
}

/// Returns how much longer an entry may be served in place of a failure.
pub(super) fn left_on_error(entry: &Entry, rules: &Rules) -> Option<Duration> {
    let age = entry.age?;
    let windows = entry.windows?;
    let accepted = error_window(&windows).min(rules.error);
    let end = windows.fresh.saturating_add(accepted);
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
