//! Sums of time that cannot overflow, growing pauses, and times of a server.

use std::time::{Duration, SystemTime};

use tokio::time::Instant;

use crate::random;

/// Returns the time `wait` after `start`, at most thirty years after it.
pub(crate) fn after(start: Instant, wait: Duration) -> Instant {
    const FAR: Duration = Duration::from_secs(30 * 365 * 86_400);
    start.checked_add(wait.min(FAR)).unwrap_or(start)
}

/// How often a waiter asks if no push can reach it.
pub(crate) const UNHEARD_LOOK: Duration = Duration::from_millis(100);

/// The pauses between failed tries: 20 ms, doubled up to a second. Each pause is shortened by a
/// random part of up to a half.
///
/// With a longer limit, a process would notice the end of an outage later. With a shorter limit, a
/// thousand processes would keep a starting server busy.
#[derive(Clone, Copy, Default)]
pub(crate) struct Pauses {
    failures: u32,
}

impl Pauses {
    const FIRST: Duration = Duration::from_millis(20);
    const LONGEST: Duration = Duration::from_secs(1);

    /// Returns the next pause.
    pub(crate) fn next(&mut self) -> Duration {
        let doublings = self.failures.min(6);
        self.failures = self.failures.saturating_add(1);
        let pause = Self::FIRST.saturating_mul(1 << doublings);
        random::upper_half(pause.min(Self::LONGEST))
    }
}

/// Returns a time in microseconds, the unit of ticks and of the backend's clock.
pub(crate) fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// Returns the instant this many microseconds after 1970.
pub(crate) fn instant(micros: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_micros(micros)
}

/// Returns a time as text, such as `2026-11-28T06:00:00Z`, for logs and errors.
pub(crate) fn utc(time: SystemTime) -> String {
    let since_epoch = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let seconds = since_epoch.as_secs();
    // The years count from a first of March, so that a leap day is the last day of its year: H.
    // Hinnant, "chrono-Compatible Low-Level Date Algorithms", `civil_from_days`.
    let days = seconds / 86_400 + 719_468;
    let era = days / 146_097;
    let day_of_era = days % 146_097;
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let march_year = 400 * era + year_of_era;
    let (year, month) = if month_from_march < 10 {
        (march_year, month_from_march + 3)
    } else {
        (march_year + 1, month_from_march - 9)
    };
    let hour = seconds / 3600 % 24;
    let minute = seconds / 60 % 60;
    let second = seconds % 60;
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
            let longest = Duration::from_millis(longest);
            let pause = pauses.next();
            assert!(pause >= longest / 2 && pause <= longest, "{pause:?} of {longest:?}");
        }
    }
}
