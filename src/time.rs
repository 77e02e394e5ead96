//! Sums of time that cannot overflow, growing pauses, and times of a server.

use std::time::{Duration, SystemTime};

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

/// Returns a time in microseconds, as ticks and the clock of a backend count it.
pub(crate) fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// Returns the instant this many microseconds after 1970.
pub(crate) fn instant(micros: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_micros(micros)
}

/// Returns a time as text, such as `2026-11-28T06:00:00Z`, for logs and errors.
pub(crate) fn utc(time: SystemTime) -> String {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
    let (days, second) = (since / 86_400, since % 86_400);
    // The years count from a first of March, so that a leap day is the last day of its year: H.
    // Hinnant, "chrono-Compatible Low-Level Date Algorithms", `civil_from_days`.
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let (month, next) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    let year = 400 * era + year + next;
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_told_by_its_date() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (951_868_799, "2000-02-29T23:59:59Z"),
            (1_798_761_599, "2026-12-31T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(utc(instant(seconds * 1_000_000)), text);
        }
    }

    #[test]
    fn pauses_grow_up_to_a_second() {
        let mut pauses = Pauses::default();
        for longest in [20, 40, 80, 160, 320, 640, 1000, 1000, 1000] {
            let (longest, pause) = (Duration::from_millis(longest), pauses.next());
            assert!(pause >= longest / 2 && pause <= longest, "{pause:?} of {longest:?}");
        }
    }
}
