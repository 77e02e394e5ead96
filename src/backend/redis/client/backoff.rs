//! Pauses between failed attempts to connect.

use std::time::Duration;

const FIRST: Duration = Duration::from_millis(20);
/// The longest pause.
///
/// It bounds how late one process reconnects after another, and with it how long a lease that could
/// not be released meanwhile blocks the other process.
const LONGEST: Duration = Duration::from_millis(250);

/// A sequence of pauses that doubles from [`FIRST`] to [`LONGEST`], each shortened by up to a half.
///
/// Behind an attempt that took its time, the pause is as long as that within the bound of
/// [`LONGEST`]. So a server that is slow to refuse is not asked again at once.
#[derive(Default)]
pub(super) struct Backoff {
    attempts: u32,
}

impl Backoff {
    /// Returns the pause behind an attempt that took this long.
    pub(super) fn pause(&mut self, attempt: Duration) -> Duration {
        let bound = FIRST.saturating_mul(1 << self.attempts.min(5)).min(LONGEST);
        self.attempts = self.attempts.saturating_add(1);
        bound.max(attempt.min(LONGEST)).mul_f64(0.5 + fastrand::f64() / 2.0)
    }

    /// Returns a moment before the first attempt after a break, which many processes make.
    pub(super) fn jitter() -> Duration {
        (FIRST / 2).mul_f64(fastrand::f64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_with_the_attempts_and_with_their_time() {
        let mut backoff = Backoff::default();
        for bound in [20, 40, 80, 160, 250, 250] {
            let (pause, bound) = (backoff.pause(Duration::ZERO), Duration::from_millis(bound));
            assert!(pause >= bound / 2 && pause <= bound, "{pause:?} of {bound:?}");
        }
        for (attempt, bound) in [(100, 100), (1000, 250)]
            .map(|(attempt, bound)| (Duration::from_millis(attempt), Duration::from_millis(bound)))
        {
            let pause = Backoff::default().pause(attempt);
            assert!(pause >= bound / 2 && pause <= bound, "{pause:?} of {bound:?}");
        }
    }
}
