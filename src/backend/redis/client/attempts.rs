//! The attempts of one connection to connect.

use std::pin::pin;

use futures_util::{
    FutureExt,
    future::{BoxFuture, select_all},
};
use tokio::time::Instant;

use super::pacer::{ConnectAttempt, Pacer};

/// The most attempts of one connection that are under way at once.
const MOST: usize = 5;

/// The attempts of one connection that are under way, in the order in which they began.
///
/// The pacer lets the next one begin beside those that hang. The first success is enough. At the
/// bound, the next one takes the place of the second. So the first always has its whole time-out,
/// which a slow link may need.
pub(super) struct Attempts<'a, T> {
    pacer: &'a Pacer,
    under_way: Vec<UnderWay<'a, T>>,
}

struct UnderWay<'a, T> {
    begun: Instant,
    outcome: BoxFuture<'a, (ConnectAttempt<'a>, T)>,
}

impl<'a, T: Send + 'a> Attempts<'a, T> {
    pub(super) fn new(pacer: &'a Pacer) -> Self {
        Self { pacer, under_way: Vec::new() }
    }

    /// Returns the next attempt that has ended, with its outcome. Begins attempts when they are
    /// due, also because of an event that may bring the server back.
    ///
    /// # Cancel safety
    ///
    /// The attempts that are under way go on with the next call.
    pub(super) async fn next<F>(
        &mut self,
        event: impl Future<Output = ()>,
        connect: impl Fn() -> F,
    ) -> (ConnectAttempt<'a>, T)
    where
        F: Future<Output = T> + Send + 'a,
    {
        let mut event = pin!(event.fuse());
        loop {
            let hanging = self.under_way.last().map(|last| last.begun);
            tokio::select! {
                ended = first(&mut self.under_way) => return ended,
                attempt = self.pacer.attempt_after(&mut event, hanging) => {
                    if self.under_way.len() == MOST {
                        self.under_way.remove(1);
                    }
                    let (begun, connecting) = (attempt.begun, connect());
                    let outcome = async move { (attempt, connecting.await) }.boxed();
                    self.under_way.push(UnderWay { begun, outcome });
                }
            }
        }
    }

    /// Drops the attempts that are still under way. Returns whether there were any.
    pub(super) fn end(&mut self) -> bool {
        self.under_way.drain(..).next().is_some()
    }
}

async fn first<'a, T>(under_way: &mut Vec<UnderWay<'a, T>>) -> (ConnectAttempt<'a>, T) {
    if under_way.is_empty() {
        return std::future::pending().await;
    }
    let outcomes = under_way.iter_mut().map(|attempt| &mut attempt.outcome);
    let (ended, at, _) = select_all(outcomes).await;
    under_way.remove(at);
    ended
}

#[cfg(test)]
mod tests {
    use std::{
        cell::Cell,
        ops::Range,
        sync::{
            Arc,
            atomic::{AtomicUsize, Ordering},
        },
        time::Duration,
    };

    use futures_util::future::join;
    use tokio::time::{sleep, sleep_until, timeout_at};

    use super::*;
    use crate::{
        backend::redis::client::pacer::Demand,
        error::{BackendError, BackendErrorKind},
    };

    const MS: Duration = Duration::from_millis(1);
    const SECOND: Duration = Duration::from_secs(1);

    type Outcome = Result<(), BackendError>;

    /// A server whose packets vanish until it is back.
    #[derive(Default)]
    struct Silent {
        pacer: Pacer,
        begun: AtomicUsize,
        under_way: Arc<AtomicUsize>,
        most: AtomicUsize,
    }

    /// Counts an attempt that is under way.
    struct Counted(Arc<AtomicUsize>);

    impl Drop for Counted {
        fn drop(&mut self) {
            self.0.fetch_sub(1, Ordering::Relaxed);
        }
    }

    impl Silent {
        /// Returns a server that a process has known, or has failed to reach.
        async fn after(outcome: Outcome) -> Self {
            let server = Self::default();
            let attempt = server.pacer.attempt(None).await;
            match outcome {
                Ok(()) => attempt.succeeded(),
                Err(error) => attempt.failed(error),
            }
            server
        }

        /// Connects, which takes its time, or the time-out before the server is back.
        fn connect(
            &self,
            back: Instant,
            takes: Duration,
            limit: Duration,
        ) -> impl Future<Output = Outcome> + Send + use<> {
            self.begun.fetch_add(1, Ordering::Relaxed);
            let under_way = self.under_way.fetch_add(1, Ordering::Relaxed) + 1;
            self.most.fetch_max(under_way, Ordering::Relaxed);
            let counted = Counted(self.under_way.clone());
            let hangs = Instant::now() < back;
            async move {
                let _counted = counted;
                sleep(if hangs { limit } else { takes }).await;
                if hangs { Err(no_answer()) } else { Ok(()) }
            }
        }

        async fn connected(&self, back: Instant, takes: Duration, limit: Duration) {
            let mut attempts = Attempts::new(&self.pacer);
            loop {
                let connect = || self.connect(back, takes, limit);
                match attempts.next(std::future::pending(), connect).await {
                    (attempt, Ok(())) => return attempt.succeeded(),
                    (attempt, Err(error)) => attempt.failed(error),
                }
            }
        }

        /// Runs something while callers ask, as often as waiters do.
        async fn asked<T>(&self, demand: Demand, work: impl Future<Output = T>) -> T {
            let asks = async {
                loop {
                    self.pacer.demand(demand);
                    sleep(80 * MS).await;
                }
            };
            tokio::select! {
                done = work => done,
                () = asks => unreachable!(),
            }
        }

        fn begun(&self) -> usize {
            self.begun.load(Ordering::Relaxed)
        }
    }

    fn no_answer() -> BackendError {
        BackendError::new(BackendErrorKind::Unavailable, "no answer")
    }

    /// A waiter was back only after the connect time-out of an attempt that hung.
    #[tokio::test(start_paused = true)]
    async fn waiters_find_a_silent_server_again_although_attempts_hang() {
        for away in [300, 700, 1100, 5000, 60_000] {
            for (before, limit) in [
                (Ok(()), SECOND),
                (Ok(()), 30 * SECOND),
                (Err(no_answer()), SECOND),
                (Err(no_answer()), 30 * SECOND),
            ] {
                let server = Silent::after(before).await;
                let back = Instant::now() + away * MS;
                let both =
                    join(server.connected(back, MS, limit), server.connected(back, MS, limit));
                server.asked(Demand::Lease, both).await;
                let late = back.elapsed();
                assert!(late <= 230 * MS, "{late:?} after {away} ms, limit {limit:?}");
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn only_waiters_let_attempts_begin_beside_those_that_hang() {
        let cases: [(_, Range<usize>, usize); 3] =
            [(Demand::None, 14..22, 1), (Demand::Request, 46..52, 1), (Demand::Lease, 270..370, 7)];
        for (demand, expected, most) in cases {
            let server = Silent::after(Err(no_answer())).await;
            let back = Instant::now() + 60 * SECOND;
            let both = join(server.connected(back, MS, SECOND), server.connected(back, MS, SECOND));
            assert!(timeout_at(back, server.asked(demand, both)).await.is_err());
            let (begun, at_once) = (server.begun(), server.most.load(Ordering::Relaxed));
            assert!(expected.contains(&begun), "{begun} attempts for {demand:?}");
            assert!(at_once <= most, "{at_once} attempts at once for {demand:?}");
            assert_eq!(server.under_way.load(Ordering::Relaxed), 0);
        }
    }

    /// The link is slow, and nothing hangs.
    #[tokio::test(start_paused = true)]
    async fn a_slow_link_needs_one_attempt() {
        let server = Silent::default();
        for attempts in 1..4 {
            let connected = server.connected(Instant::now(), 600 * MS, SECOND);
            server.asked(Demand::Lease, connected).await;
            assert_eq!(server.begun(), attempts);
        }
    }

    /// The server stood still for ten seconds while an attempt was under way. Its time was taken
    /// for that of the link, and no attempt began beside one that hung.
    #[tokio::test(start_paused = true)]
    async fn a_stall_is_not_taken_for_a_slow_link() {
        let server = Silent::after(Ok(())).await;
        server.connected(Instant::now(), 10 * SECOND, 30 * SECOND).await;
        let back = Instant::now() + SECOND;
        server.asked(Demand::Lease, server.connected(back, MS, 30 * SECOND)).await;
        assert!(back.elapsed() <= 230 * MS, "{:?}", back.elapsed());
    }

    /// Nothing is known of the link but a failure, and each attempt takes longer than those after
    /// the first may hang.
    #[tokio::test(start_paused = true)]
    async fn the_first_attempt_has_its_whole_time_out() {
        let server = Silent::after(Err(no_answer())).await;
        let begun = Cell::new(None);
        let back = Instant::now();
        let mut attempts = Attempts::new(&server.pacer);
        let connect = || {
            begun.set(begun.get().or(Some(Instant::now())));
            server.connect(back, 5 * SECOND, 10 * SECOND)
        };
        let next = attempts.next(std::future::pending(), connect);
        let (first, outcome) = server.asked(Demand::Lease, next).await;
        assert!(outcome.is_ok());
        assert_eq!(Some(first.begun), begun.get());
        assert_eq!(server.most.load(Ordering::Relaxed), MOST);
        assert!(attempts.end() && !attempts.end());
        assert_eq!(server.under_way.load(Ordering::Relaxed), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn attempts_go_on_where_a_call_was_dropped() {
        let server = Silent::default();
        let mut attempts = Attempts::new(&server.pacer);
        let connect = || server.connect(Instant::now(), SECOND, SECOND);
        let half = Instant::now() + SECOND / 2;
        tokio::select! {
            _ = attempts.next(std::future::pending(), connect) => panic!("it takes a second"),
            () = sleep_until(half) => {}
        }
        let (attempt, outcome) = attempts.next(std::future::pending(), connect).await;
        assert!(outcome.is_ok());
        assert_eq!((attempt.begun.elapsed(), server.begun()), (SECOND, 1));
    }
}
