//! When to try to connect to a server that is away.
//!
//! The connections to one server share the attempts: one is under way at a time, and its success
//! lets the others connect at once. The pauses grow to seconds, and with the time that an attempt
//! takes. But the return of a server shows by an attempt only. So a caller that asks for the server
//! in vain shortens the present pause, and the more so if a lease depends on it.
//!
//! Where packets vanish, an attempt hangs until its time-out, even if the server is back. So while
//! a lease depends on the server, further attempts begin beside it (`attempts`). How long each
//! pause is stands in [`pauses`].

mod pauses;

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

use self::pauses::{FIRST, PacedAttempts, jitter};
use crate::{error::BackendError, sync::lock};

pub(super) use self::pauses::Demand;

/// The longest time before the first attempt after a break, which many processes make.
const BREAK: Duration = Duration::from_millis(10);
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

impl Pacer {
    /// Returns why the last attempt failed, if the server is away.
    pub(super) fn error(&self) -> Option<BackendError> {
        self.attempts().error()
    }

    /// Notes that a caller asks for the server. Returns whether an attempt begins now because of
    /// that, for which the caller may wait.
    pub(super) fn demand(&self, demand: Demand) -> bool {
        let before = Demand::from(self.demand.fetch_max(demand as u8, Ordering::Relaxed));
        if before >= demand {
            return false;
        }
        let begins = self.attempts().begins_by(before, demand);
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
        self.attempts().begin(begun);
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

/// An attempt to connect. Dropped without an outcome, it leaves everything as it is.
pub(super) struct ConnectAttempt<'a> {
    pacer: &'a Pacer,
    pub(super) begun: Instant,
}

impl ConnectAttempt<'_> {
    pub(super) fn succeeded(self) {
        self.pacer.attempts().succeeded(self.begun);
        self.pacer.back.notify_waiters();
    }

    pub(super) fn failed(self, error: BackendError) {
        self.pacer.attempts().failed(self.begun, error);
    }
}

impl Drop for ConnectAttempt<'_> {
    fn drop(&mut self) {
        self.pacer.attempts().end();
        self.pacer.changed.notify_waiters();
    }
}

async fn until(time: Option<Instant>) {
    match time {
        Some(time) => sleep_until(time).await,
        None => pending().await,
    }
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
