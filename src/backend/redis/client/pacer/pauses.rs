//! What is known of the attempts to connect to one server, and when the next one is due.

use std::time::Duration;

use tokio::time::Instant;

use crate::{error::BackendError, time::after};

/// The longest time between the beginnings of the first two attempts, which doubles.
pub(super) const FIRST: Duration = Duration::from_millis(20);

/// Why a connection is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(in super::super) enum Demand {
    /// No caller has asked for it.
    None,
    /// For a request that can do without, such as a read of a cache.
    Request,
    /// For a lease that is waited for, held or released.
    Lease,
}

impl Demand {
    /// The longest time between the beginnings of two attempts.
    ///
    /// The one for leases leaves a waiter a moment to get its lease within 250 ms of the return of
    /// the server.
    fn longest(self) -> Duration {
        Duration::from_millis(match self {
            Self::None => 5000,
            Self::Request => 1000,
            Self::Lease => 200,
        })
    }

    /// The shortest pause behind an attempt, as a part of the time that it took.
    fn rest(self) -> f64 {
        match self {
            Self::None => 1.0,
            Self::Request => 0.25,
            // The next attempt may begin before this one has ended.
            Self::Lease => 0.0,
        }
    }
}

impl From<u8> for Demand {
    fn from(number: u8) -> Self {
        match number {
            0 => Self::None,
            1 => Self::Request,
            _ => Self::Lease,
        }
    }
}

/// The attempts of all connections.
#[derive(Default)]
pub(super) struct PacedAttempts {
    under_way: u32,
    last: Option<LastAttempt>,
    success: Option<LastSuccess>,
    /// The server is away.
    outage: Option<FailedAttempts>,
}

#[derive(Clone, Copy)]
struct LastAttempt {
    begun: Instant,
    /// From 0.75 to 1.
    jitter: f64,
}

#[derive(Clone, Copy)]
struct LastSuccess {
    begun: Instant,
    took: Duration,
    /// How long the success before it took.
    before: Duration,
}

/// The failed attempts since the last success.
struct FailedAttempts {
    count: u32,
    error: BackendError,
    /// When the last one began, and how long it took.
    begun: Instant,
    took: Duration,
}

impl PacedAttempts {
    /// Returns why the last attempt failed, if the server is away.
    pub(super) fn error(&self) -> Option<BackendError> {
        self.outage.as_ref().map(|outage| outage.error.clone())
    }

    pub(super) fn begin(&mut self, begun: Instant) {
        self.under_way += 1;
        self.last = Some(LastAttempt { begun, jitter: jitter() });
    }

    pub(super) fn succeeded(&mut self, begun: Instant) {
        self.outage = None;
        let took = begun.elapsed();
        let before = self.success.map_or(took, |success| success.took);
        self.success = Some(LastSuccess { begun, took, before });
    }

    pub(super) fn failed(&mut self, begun: Instant, error: BackendError) {
        let count = self.outage.as_ref().map_or(0, |outage| outage.count.saturating_add(1));
        self.outage = Some(FailedAttempts { count, error, begun, took: begun.elapsed() });
    }

    /// Notes that an attempt is not under way any more.
    pub(super) fn end(&mut self) {
        self.under_way -= 1;
    }

    /// Returns whether an attempt begins now because the demand has grown.
    ///
    /// One beside an attempt that hangs does not count, since it probably hangs, too.
    pub(super) fn begins_by(&self, before: Demand, demand: Demand) -> bool {
        let is_due = |demand| self.due(demand).is_some_and(|due| due <= Instant::now());
        self.outage.is_some() && self.under_way == 0 && is_due(demand) && !is_due(before)
    }

    /// Returns when a connection need not wait for its turn.
    ///
    /// Its own attempts hang if a later one of another connection has succeeded.
    pub(super) fn at_once(&self, hanging: Option<Instant>) -> Option<Instant> {
        match hanging {
            None => self.outage.is_none().then(Instant::now),
            Some(begun) => {
                let later = self.success.filter(|success| success.begun > begun)?;
                Some(after(begun, later.patience()))
            }
        }
    }

    /// Returns when the next attempt is due, or `None` if another one must end before.
    pub(super) fn due(&self, demand: Demand) -> Option<Instant> {
        let Some(last) = self.last else { return Some(Instant::now()) };
        if self.under_way > 0 {
            // At its first connect, a process cannot tell an attempt that hangs from a slow one.
            let is_known = self.outage.is_some() || self.success.is_some();
            let patience = self.success.map_or(Duration::ZERO, LastSuccess::patience);
            let pause = Demand::Lease.longest().mul_f64(last.jitter).max(patience);
            return (is_known && demand == Demand::Lease).then(|| after(last.begun, pause));
        }
        let Some(outage) = &self.outage else { return Some(last.begun) };
        let grown = FIRST.saturating_mul(1 << outage.count.min(16)).min(demand.longest());
        let rest = outage.took.mul_f64(demand.rest()).min(demand.longest());
        let rested = outage.took + rest.mul_f64(last.jitter);
        Some(after(outage.begun, grown.mul_f64(last.jitter).max(rested)))
    }
}

impl LastSuccess {
    /// Returns how long another attempt takes at most, unless it hangs.
    ///
    /// An attempt that outlasts a stall of the server says nothing of the link. So the faster one
    /// of two counts.
    fn patience(self) -> Duration {
        self.took.min(self.before).saturating_mul(2)
    }
}

pub(super) fn jitter() -> f64 {
    0.75 + fastrand::f64() / 4.0
}
