//! The round trip to a server, as it was measured last.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use tokio::time::Instant;

/// No connection was made yet.
const UNMEASURED: u64 = u64::MAX;

/// A round trip of so many microseconds lengthens no limit, so it need not become shorter.
const SHORT: u64 = 10_000;

/// The round trip in microseconds. It outlives the connection that it was measured on.
///
/// A question that the server answers at once measures it. An answer to a command takes a round
/// trip and the time of the command, so it shows only that the round trip has become shorter.
pub(super) struct MeasuredRoundTrip(AtomicU64);

impl MeasuredRoundTrip {
    pub(super) fn get(&self) -> Option<Duration> {
        let micros = self.0.load(Ordering::Relaxed);
        (micros != UNMEASURED).then(|| Duration::from_micros(micros))
    }

    /// Notes how long a question took that is answered at once.
    pub(super) fn measured(&self, took: Duration) {
        self.0.store(in_micros(took), Ordering::Relaxed);
    }

    /// Notes that a command was answered that began then.
    pub(super) fn answered(&self, begun: Instant) {
        // Each command comes here, so most of them read no clock.
        if self.0.load(Ordering::Relaxed) > SHORT {
            self.0.fetch_min(in_micros(begun.elapsed()), Ordering::Relaxed);
        }
    }
}

impl Default for MeasuredRoundTrip {
    fn default() -> Self {
        Self(AtomicU64::new(UNMEASURED))
    }
}

fn in_micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(UNMEASURED - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[tokio::test(start_paused = true)]
    async fn a_command_shortens_the_round_trip_and_a_question_sets_it() {
        let round_trip = MeasuredRoundTrip::default();
        assert_eq!(round_trip.get(), None);
        round_trip.measured(40 * MS);
        let begun = Instant::now();
        for (at, expected) in [(300, 40), (20, 20), (5, 5), (2, 5)] {
            round_trip.answered(begun - at * MS);
            assert_eq!(round_trip.get(), Some(expected * MS), "{at} ms");
        }
        round_trip.measured(100 * MS);
        assert_eq!(round_trip.get(), Some(100 * MS));
    }
}
