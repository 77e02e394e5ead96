//! When to try to connect to a server that is away.
//!
//! The connections to one server share the attempts: one is under way at a time, and its success
//! lets the others connect at once. The pauses grow to seconds, and with the time that an attempt
//! takes. But the return of a server shows by an attempt only. So a caller that asks for the server
//! in vain shortens the present pause, and the more so if a lease depends on it.

use std::{
    pin::pin,
    sync::{
        Mutex, MutexGuard,
        atomic::{AtomicU8, Ordering},
    },
    time::Duration,
};

use tokio::{
    sync::{Notify, Semaphore, SemaphorePermit},
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
            Self::Request | Self::Lease => 0.25,
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
pub(super) struct Pacer {
    outage: Mutex<Option<FailedAttempts>>,
    /// The strongest demand since the last attempt began.
    demand: AtomicU8,
    /// Notified when the demand grows.
    demanded: Notify,
    /// The right to make the next attempt.
    next: Semaphore,
    /// Notified when the server is back.
    back: Notify,
}

/// The failed attempts since the last success.
struct FailedAttempts {
    count: u32,
    error: BackendError,
    /// When the last attempt began, and how long it took.
    begun: Instant,
    took: Duration,
    /// From 0.75 to 1.
    jitter: f64,
    /// The next attempt is under way.
    is_attempting: bool,
}

impl Default for Pacer {
    fn default() -> Self {
        Self {
            outage: Mutex::default(),
            demand: AtomicU8::new(Demand::None as u8),
            demanded: Notify::new(),
            next: Semaphore::new(1),
            back: Notify::new(),
        }
    }
}

impl Pacer {
    /// Returns why the last attempt failed, if the server is away.
    pub(super) fn error(&self) -> Option<BackendError> {
        self.outage().as_ref().map(|outage| outage.error.clone())
    }

    /// Notes that a caller asks for the server. Returns whether an attempt begins now because of
    /// that, for which the caller may wait.
    pub(super) fn demand(&self, demand: Demand) -> bool {
        let before = Demand::from(self.demand.fetch_max(demand as u8, Ordering::Relaxed));
        if before >= demand {
            return false;
        }
        let now = Instant::now();
        let is_due = |outage: &FailedAttempts| {
            !outage.is_attempting && outage.due(demand) <= now && now < outage.due(before)
        };
        // Before the attempt begins, which may end at once on another thread.
        let begins = self.outage().as_ref().is_some_and(is_due);
        self.demanded.notify_waiters();
        begins
    }

    /// Waits for [`attempt`](Self::attempt). An event that may bring the server back demands it.
    pub(super) async fn attempt_after(
        &self,
        event: impl Future<Output = ()>,
    ) -> ConnectAttempt<'_> {
        let mut attempt = pin!(self.attempt());
        tokio::select! {
            attempt = &mut attempt => return attempt,
            () = event => {}
        }
        self.demand(Demand::Lease);
        attempt.await
    }

    /// Waits until an attempt may be made: at once, unless the server is away.
    pub(super) async fn attempt(&self) -> ConnectAttempt<'_> {
        let permit = loop {
            let back = self.back.notified();
            if self.outage().is_none() {
                break None;
            }
            tokio::select! {
                () = back => {}
                permit = self.due() => break permit,
            }
        };
        self.demand.store(Demand::None as u8, Ordering::Relaxed);
        self.set_attempting(true);
        ConnectAttempt { pacer: self, begun: Instant::now(), _permit: permit }
    }

    /// Waits for the turn of this connection, and then for the end of the pause.
    async fn due(&self) -> Option<SemaphorePermit<'_>> {
        let permit = self.next.acquire().await.ok();
        loop {
            let demanded = self.demanded.notified();
            let demand = Demand::from(self.demand.load(Ordering::Relaxed));
            let due = self.outage().as_ref().map(|outage| outage.due(demand));
            let Some(at) = due else { return permit };
            tokio::select! {
                () = sleep_until(at) => return permit,
                () = demanded => {}
            }
        }
    }

    fn set_attempting(&self, is_attempting: bool) {
        if let Some(outage) = self.outage().as_mut() {
            outage.is_attempting = is_attempting;
        }
    }

    fn outage(&self) -> MutexGuard<'_, Option<FailedAttempts>> {
        lock(&self.outage)
    }
}

impl FailedAttempts {
    fn due(&self, demand: Demand) -> Instant {
        let grown = FIRST.saturating_mul(1 << self.count.min(16)).min(demand.longest());
        let pause = self.took.mul_f64(demand.rest()).min(demand.longest());
        after(self.begun, grown.mul_f64(self.jitter).max(self.took + pause.mul_f64(self.jitter)))
    }
}

/// An attempt to connect. Dropped without an outcome, it leaves everything as it is.
pub(super) struct ConnectAttempt<'a> {
    pacer: &'a Pacer,
    begun: Instant,
    /// While the server is away, no other attempt is made beside this one.
    _permit: Option<SemaphorePermit<'a>>,
}

impl ConnectAttempt<'_> {
    pub(super) fn succeeded(self) {
        let was_away = self.pacer.outage().take().is_some();
        if was_away {
            self.pacer.back.notify_waiters();
        }
    }

    pub(super) fn failed(self, error: BackendError) {
        let mut outage = self.pacer.outage();
        let count = outage.as_ref().map_or(0, |outage| outage.count.saturating_add(1));
        let (begun, took) = (self.begun, self.begun.elapsed());
        *outage = Some(FailedAttempts {
            count,
            error,
            begun,
            took,
            jitter: jitter(),
            is_attempting: false,
        });
    }
}

impl Drop for ConnectAttempt<'_> {
    fn drop(&mut self) {
        self.pacer.set_attempting(false);
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
            let attempt = pacer.attempt().await;
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
            (Demand::Lease, 1000, 46..52),
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
        pacer.attempt().await.failed(refused());
        assert!((1500 * MS..1505 * MS).contains(&begun.elapsed()), "{:?}", begun.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn connections_take_turns_and_the_first_success_lets_all_connect() {
        let pacer = Arc::new(Pacer::default());
        pacer.attempt().await.failed(refused());
        let under_way = pacer.attempt().await;
        let others: Vec<_> = (0..3)
            .map(|_| {
                let pacer = pacer.clone();
                tokio::spawn(async move { pacer.attempt().await.succeeded() })
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
        pacer.attempt().await.failed(refused());
        drop(pacer.attempt().await);
        pacer.attempt().await.succeeded();
        assert!(pacer.error().is_none());
    }
}
