//! Pauses between failed attempts to connect.

use std::time::Duration;

const FIRST: Duration = Duration::from_millis(20);
/// The longest pause.
///
/// It bounds how late one process reconnects after another, and with it how long a lease that could
/// not be released meanwhile blocks the other process.
const LONGEST: Duration = Duration::from_millis(250);

/// A sequence of pauses that doubles from [`FIRST`] to [`LONGEST`], each shortened by up to a half.
#[derive(Default)]
pub(super) struct Backoff {
    attempts: u32,
}

impl Backoff {
    pub(super) fn pause(&mut self) -> Duration {
        let bound = FIRST.saturating_mul(1 << self.attempts.min(5)).min(LONGEST);
        self.attempts = self.attempts.saturating_add(1);
        bound.mul_f64(0.5 + fastrand::f64() / 2.0)
    }
}
