//! Sums of time that cannot overflow, and growing pauses.

use std::time::Duration;

use tokio::time::Instant;

use crate::random;

/// Returns the time `wait` after `start`, at most thirty years after it.
pub(crate) fn after(start: Instant, wait: Duration) -> Instant {
    const FAR: Duration = Duration::from_secs(30 * 365 * 86_400);
    start.checked_add(wait.min(FAR)).unwrap_or(start)
}

/// How often a waiter asks that no push reaches.
pub(crate) const UNHEARD_LOOK: Duration = Duration::from_millis(100);

/// The pauses between tries that fail: 20 ms, doubled up to a second, each less a random part of
/// up to a half.
///
/// A longer limit lets a process be late after an outage. A shorter one lets a thousand processes
/// keep a server busy that is coming up.
#[derive(Clone, Copy, Default)]
pub(crate) struct Pauses {
    failures: u32,
}

impl Pauses {
    const FIRST: Duration = Duration::from_millis(20);
    const LONGEST: Duration = Duration::from_secs(1);

    /// Returns the next pause.
    pub(crate) fn next(&mut self) -> Duration {
        let pause = Self::FIRST.saturating_mul(1 << self.failures.min(6)).min(Self::LONGEST);
        self.failures = self.failures.saturating_add(1);
        random::upper_half(pause)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_up_to_a_second() {
        let mut pauses = Pauses::default();
        for longest in [20, 40, 80, 160, 320, 640, 1000, 1000, 1000] {
            let (longest, pause) = (Duration::from_millis(longest), pauses.next());
            assert!(pause >= longest / 2 && pause <= longest, "{pause:?} of {longest:?}");
        }
    }
}
