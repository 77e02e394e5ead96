//! The clock of a server, as seen through one connection.
//!
//! Each second, one read of an entry carries a `TIME` in its write. In between, the time is
//! extrapolated by the clock of the process that only goes forward. So a read costs one bare
//! command, and no wall clock of a process decides anything. The sample counts from the question,
//! because the process may be suspended before it reads the answer. So the time is never behind
//! that of the server, but for the drift of two clocks within a few seconds. It may be ahead by the
//! time that the answer took.

use std::{
    sync::{
        LazyLock,
        atomic::{AtomicI64, AtomicU64, Ordering},
    },
    time::Instant,
};

use redis::Value;

/// How often a sample is taken while entries are read, in microseconds.
const EVERY: u64 = 1_000_000;
/// An older sample is not used, in microseconds.
const OLDEST: u64 = 5_000_000;

static START: LazyLock<Instant> = LazyLock::new(Instant::now);

/// Returns the time of this process in microseconds; never zero.
fn local() -> u64 {
    u64::try_from(START.elapsed().as_micros()).unwrap_or(u64::MAX).saturating_add(1)
}

#[derive(Default)]
pub(super) struct ServerClock {
    /// How far the server is ahead of this process.
    ahead: AtomicI64,
    /// When that was found. Zero if it never was.
    sampled: AtomicU64,
    /// When a sample was last asked for.
    asked: AtomicU64,
}

/// A sample that was asked for.
pub(super) struct ClockSample(u64);

impl ServerClock {
    /// Returns the time of the server in microseconds, if it was asked for lately.
    pub(super) fn now(&self) -> Option<u64> {
        self.at(local())
    }

    /// Returns whether this read is to carry a `TIME`. One of all reads takes the turn each second,
    /// and each does as long as the time is not known.
    pub(super) fn takes_turn(&self) -> bool {
        let (now, asked) = (local(), self.asked.load(Ordering::Relaxed));
        if asked != 0 && now.saturating_sub(asked) < EVERY {
            return self.at(now).is_none();
        }
        let swapped = self.asked.compare_exchange(asked, now, Ordering::Relaxed, Ordering::Relaxed);
        swapped.is_ok() || self.at(now).is_none()
    }

    pub(super) fn ask() -> ClockSample {
        ClockSample(local())
    }

    /// Takes the reply to a `TIME`.
    pub(super) fn sample(&self, asked: &ClockSample, reply: Option<Value>) {
        let Some(server) = reply.and_then(micros) else { return };
        self.ahead.store(server.wrapping_sub(asked.0).cast_signed(), Ordering::Relaxed);
        self.sampled.store(local(), Ordering::Relaxed);
    }

    fn at(&self, local: u64) -> Option<u64> {
        let sampled = self.sampled.load(Ordering::Relaxed);
        let is_recent = sampled != 0 && local.saturating_sub(sampled) < OLDEST;
        is_recent.then(|| local.wrapping_add_signed(self.ahead.load(Ordering::Relaxed)))
    }
}

/// Reads the reply to a `TIME`: seconds and microseconds.
pub(in super::super) fn micros(reply: Value) -> Option<u64> {
    let (seconds, micros): (u64, u64) = redis::from_redis_value(reply).ok()?;
    seconds.checked_mul(1_000_000)?.checked_add(micros)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn time(seconds: i64, micros: i64) -> Option<Value> {
        Some(Value::Array(vec![Value::Int(seconds), Value::Int(micros)]))
    }

    #[test]
    fn one_read_a_second_asks_for_the_time() {
        let clock = ServerClock::default();
        assert!(clock.takes_turn() && clock.takes_turn() && clock.now().is_none());
        clock.sample(&ServerClock::ask(), time(1_790_000_000, 5));
        assert!(!clock.takes_turn());
        let now = clock.now().unwrap();
        assert!((1_790_000_000_000_005..1_790_000_060_000_000).contains(&now));
        assert!(clock.now().unwrap() >= now);
    }

    /// A process that was suspended before it read the answer took the values for younger than they
    /// were, by half of that time.
    #[test]
    fn the_time_is_never_behind_that_of_the_server() {
        let (clock, pause) = (ServerClock::default(), 10_000_000);
        let asked = ClockSample(local());
        clock.sample(&asked, time(1_790_000_000, 0));
        let read = asked.0 + pause;
        clock.sampled.store(read, Ordering::Relaxed);
        assert_eq!(clock.at(read), Some(1_790_000_000_000_000 + pause));
    }

    #[test]
    fn a_sample_is_not_used_for_long() {
        let clock = ServerClock::default();
        clock.sample(&ServerClock::ask(), time(1_790_000_000, 0));
        let sampled = clock.sampled.load(Ordering::Relaxed);
        assert!(clock.at(sampled + OLDEST - 1).is_some());
        assert!(clock.at(sampled + OLDEST).is_none());
    }

    #[test]
    fn any_other_reply_is_no_sample() {
        let clock = ServerClock::default();
        let replies = [None, Some(Value::Nil), Some(Value::Int(5)), time(-1, 0), time(1, -1)];
        for reply in replies {
            clock.sample(&ServerClock::ask(), reply);
            assert!(clock.now().is_none());
        }
    }
}
