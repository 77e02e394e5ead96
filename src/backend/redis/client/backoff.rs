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
/// A pause is no shorter than the attempt before it. So a server that is slow to refuse, or does
/// not answer, is busy with a process for half of the time at most.
#[derive(Default)]
pub(super) struct Backoff {
    attempts: u32,
}

impl Backoff {
    /// Returns the pause behind an attempt that took this long.
    pub(super) fn pause(&mut self, attempt: Duration) -> Duration {
        let bound = FIRST.saturating_mul(1 << self.attempts.min(5)).min(LONGEST);
        self.attempts = self.attempts.saturating_add(1);
        bound.max(attempt.saturating_mul(2)).mul_f64(0.5 + fastrand::f64() / 2.0)
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
        let slow = Duration::from_secs(1);
        let pause = backoff.pause(slow);
        assert!(pause >= slow && pause <= slow * 2, "{pause:?}");
    }
}
