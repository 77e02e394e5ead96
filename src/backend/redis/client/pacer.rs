//! When to try to connect to a server that is away.
//!
//! The connections to one server share the attempts: one is under way at a time, and its success
//! lets the others connect at once. The pauses grow to seconds, and with the time that an attempt
//! takes. But the return of a server shows by an attempt only. So a caller that asks for the server
//! in vain shortens the present pause, and the more so if a lease depends on it.
//!
//! Where packets vanish, an attempt hangs until its time-out, even if the server is back. So while
//! a lease depends on the server, further attempts begin beside it (`attempts`).

use std::{
    convert::Infallible,
    future::pending,
    pin::pin,
    sync::{
        Mutex, MutexGuard,
        atomic::{AtomicU8, Ordering},
    },
    time::Duration,
};

use tokio::{
    sync::{Mutex as AsyncMutex, MutexGuard as AsyncMutexGuard, Notify},
    time::{Instant, sleep_until},
};

use crate::{error::BackendError, sync::lock, time::after};

/// The longest time before the first attempt after a break, which many processes make.
const BREAK: Duration = Duration::from_millis(10);
/// The longest time between the beginnings of the first two attempts, which doubles.
const FIRST: Duration = Duration::from_millis(20);

/// Why a connection is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(super) enum Demand {
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
            Self::Lease => 220,
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

/// Paces the attempts to connect to one server.
#[derive(Default)]
pub(super) struct Pacer {
    attempts: Mutex<PacedAttempts>,
    /// The strongest demand since the last attempt began.
    demand: AtomicU8,
    /// Notified when the demand grows, and when an attempt begins or ends.
    changed: Notify,
    /// The right to begin the next attempt.
    turn: AsyncMutex<()>,
    /// Notified when the server is back.
    back: Notify,
}

/// The attempts of all connections.
#[derive(Default)]
struct PacedAttempts {
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

impl Pacer {
    /// Returns why the last attempt failed, if the server is away.
    pub(super) fn error(&self) -> Option<BackendError> {
        self.attempts().outage.as_ref().map(|outage| outage.error.clone())
    }

    /// Notes that a caller asks for the server. Returns whether an attempt begins now because of
    /// that, for which the caller may wait.
    pub(super) fn demand(&self, demand: Demand) -> bool {
        let before = Demand::from(self.demand.fetch_max(demand as u8, Ordering::Relaxed));
        if before >= demand {
            return false;
        }
        let begins = {
            let attempts = self.attempts();
            let is_due = |demand| attempts.due(demand).is_some_and(|due| due <= Instant::now());
            // Behind one that hangs, the next one probably hangs, too.
            let is_first = attempts.outage.is_some() && attempts.under_way == 0;
            is_first && is_due(demand) && !is_due(before)
        };
        // The attempt begins behind the lock, and may end at once on another thread.
        self.changed.notify_waiters();
        begins
    }

    /// Notes that a caller waits for the outcome of an attempt, as long as this is polled.
    pub(super) async fn keep_demanding(&self, demand: Demand) -> Infallible {
        loop {
            let changed = self.changed.notified();
            self.demand(demand);
            changed.await;
        }
    }

    /// Waits for [`attempt`](Self::attempt). An event that may bring the server back demands it.
    pub(super) async fn attempt_after(
        &self,
        event: impl Future<Output = ()>,
        hanging: Option<Instant>,
    ) -> ConnectAttempt<'_> {
        let mut attempt = pin!(self.attempt(hanging));
        tokio::select! {
            attempt = &mut attempt => return attempt,
            () = event => {}
        }
        self.demand(Demand::Lease);
        attempt.await
    }

    /// Waits until a connection may make an attempt: at once, unless the server is away.
    ///
    /// `hanging` tells when the last attempt of the connection began, if one is still under way.
    pub(super) async fn attempt(&self, hanging: Option<Instant>) -> ConnectAttempt<'_> {
        let _turn = loop {
            let back = self.back.notified();
            let at_once = self.attempts().at_once(hanging);
            tokio::select! {
                () = until(at_once) => break None,
                turn = self.due() => break Some(turn),
                () = back => {}
            }
        };
        self.demand.store(Demand::None as u8, Ordering::Relaxed);
        let begun = Instant::now();
        {
            let mut attempts = self.attempts();
            attempts.under_way += 1;
            attempts.last = Some(LastAttempt { begun, jitter: jitter() });
        }
        self.changed.notify_waiters();
        ConnectAttempt { pacer: self, begun }
    }

    /// Waits for the turn of this connection, and then for the end of the pause.
    async fn due(&self) -> AsyncMutexGuard<'_, ()> {
        let turn = self.turn.lock().await;
        loop {
            let changed = self.changed.notified();
            let due = self.attempts().due(Demand::from(self.demand.load(Ordering::Relaxed)));
            tokio::select! {
                () = until(due) => return turn,
                () = changed => {}
            }
        }
    }

    fn attempts(&self) -> MutexGuard<'_, PacedAttempts> {
        lock(&self.attempts)
    }
}

impl PacedAttempts {
    /// Returns when a connection need not wait for its turn.
    ///
    /// Its own attempts hang if a later one of another connection has succeeded.
    fn at_once(&self, hanging: Option<Instant>) -> Option<Instant> {
        match hanging {
            None => self.outage.is_none().then(Instant::now),
            Some(begun) => {
                let later = self.success.filter(|success| success.begun > begun)?;
                Some(after(begun, later.patience()))
            }
        }
    }

    /// Returns when the next attempt is due, or `None` if another one must end before.
    fn due(&self, demand: Demand) -> Option<Instant> {
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
    fn patience(self) -> Duration {
        self.took.min(self.before).saturating_mul(2)
    }
}

/// An attempt to connect. Dropped without an outcome, it leaves everything as it is.
pub(super) struct ConnectAttempt<'a> {
    pacer: &'a Pacer,
    pub(super) begun: Instant,
}

impl ConnectAttempt<'_> {
    pub(super) fn succeeded(self) {
        let mut attempts = self.pacer.attempts();
        attempts.outage = None;
        let took = self.begun.elapsed();
        // An attempt that ends with a stall of the server says nothing of the link.
        let before = attempts.success.map_or(took, |success| success.took);
        attempts.success = Some(LastSuccess { begun: self.begun, took, before });
        self.pacer.back.notify_waiters();
    }

    pub(super) fn failed(self, error: BackendError) {
        let mut attempts = self.pacer.attempts();
        let count = attempts.outage.as_ref().map_or(0, |outage| outage.count.saturating_add(1));
        let (begun, took) = (self.begun, self.begun.elapsed());
        attempts.outage = Some(FailedAttempts { count, error, begun, took });
    }
}

impl Drop for ConnectAttempt<'_> {
    fn drop(&mut self) {
        self.pacer.attempts().under_way -= 1;
        self.pacer.changed.notify_waiters();
    }
}

async fn until(time: Option<Instant>) {
    match time {
        Some(time) => sleep_until(time).await,
        None => pending().await,
    }
}

fn jitter() -> f64 {
    0.75 + fastrand::f64() / 4.0
}

/// Returns the pause before the first attempt after a break. It is longer if the connection broke
/// soon after it was made, and does not grow: each connection may serve those that wait for one.
pub(super) fn after_break(soon: bool) -> Duration {
    match soon {
        false => BREAK.mul_f64(fastrand::f64()),
        true => FIRST.mul_f64(jitter()),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::time::sleep;

    use super::*;
    use crate::error::BackendErrorKind;

    const MS: Duration = Duration::from_millis(1);

    fn refused() -> BackendError {
        BackendError::new(BackendErrorKind::Unavailable, "connection refused")
    }

    /// Fails for as long, and returns the number of attempts, each of which `takes` its time.
    async fn attempts(pacer: &Pacer, length: Duration, takes: Duration) -> u32 {
        let begun = Instant::now();
        let mut count = 0;
        while begun.elapsed() < length {
            let attempt = pacer.attempt(None).await;
            sleep(takes).await;
            attempt.failed(refused());
            count += 1;
        }
        count
    }

    /// A process tried to connect every 187 ms, and each of its connections by itself.
    #[tokio::test(start_paused = true)]
    async fn attempts_become_rare_where_no_caller_asks() {
        for (takes, expected) in [(0, 18..26), (1000, 14..22)] {
            let count = attempts(&Pacer::default(), 60_000 * MS, takes * MS).await;
            assert!(expected.contains(&count), "{count} attempts of {takes} ms");
        }
    }

    async fn demanding(pacer: Arc<Pacer>, demand: Demand) {
        loop {
            assert!(!pacer.demand(demand), "an attempt began before it was due");
            sleep(5 * MS).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn callers_shorten_the_pauses_by_what_they_want() {
        for (demand, takes, expected) in [
            (Demand::Request, 0, 60..90),
            (Demand::Lease, 0, 270..370),
            (Demand::Request, 1000, 46..52),
        ] {
            let pacer = Arc::new(Pacer::default());
            let asks = tokio::spawn(demanding(pacer.clone(), demand));
            let count = attempts(&pacer, 60_000 * MS, takes * MS).await;
            asks.abort();
            assert!(expected.contains(&count), "{count} attempts of {takes} ms for {demand:?}");
        }
    }

    /// A caller that comes in a long pause need not wait for its end.
    #[tokio::test(start_paused = true)]
    async fn a_late_caller_ends_a_long_pause() {
        let pacer = Arc::new(Pacer::default());
        attempts(&pacer, 30_000 * MS, Duration::ZERO).await;
        let asked = pacer.clone();
        tokio::spawn(async move {
            sleep(1500 * MS).await;
            assert!(asked.demand(Demand::Request) && !asked.demand(Demand::Request));
        });
        let begun = Instant::now();
        pacer.attempt(None).await.failed(refused());
        assert!((1500 * MS..1505 * MS).contains(&begun.elapsed()), "{:?}", begun.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn connections_take_turns_and_the_first_success_lets_all_connect() {
        let pacer = Arc::new(Pacer::default());
        pacer.attempt(None).await.failed(refused());
        let under_way = pacer.attempt(None).await;
        let others: Vec<_> = (0..3)
            .map(|_| {
                let pacer = pacer.clone();
                tokio::spawn(async move { pacer.attempt(None).await.succeeded() })
            })
            .collect();
        sleep(60_000 * MS).await;
        assert!(others.iter().all(|other| !other.is_finished()));
        under_way.succeeded();
        let begun = Instant::now();
        for other in others {
            assert!(other.await.is_ok());
        }
        assert_eq!(begun.elapsed(), Duration::ZERO);
        assert!(pacer.error().is_none());
    }

    /// A connection may end with its runtime in the middle of an attempt.
    #[tokio::test(start_paused = true)]
    async fn an_attempt_that_is_dropped_blocks_no_other() {
        let pacer = Pacer::default();
        pacer.attempt(None).await.failed(refused());
        drop(pacer.attempt(None).await);
        pacer.attempt(None).await.succeeded();
        assert!(pacer.error().is_none());
    }
}
