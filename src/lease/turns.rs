//! Turns to ask a shard.
//!
//! Thousands of requests at once would wait in our own connection until their time-outs. So each
//! shard has a number of turns for the requests of acquisitions. Renewals and releases need none.
//!
//! A caller may stop polling a request, and keep its turn meanwhile. So a caller that sees no
//! answer for a while asks without a turn.

use std::{
    pin::pin,
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use tokio::{
    sync::{Semaphore, SemaphorePermit},
    time::timeout,
};

use crate::error::{BackendError, BackendErrorKind};

/// How many acquisitions a shard is asked for at once. They are enough to keep a connection busy,
/// and few enough for an answer well within the time-out.
const TURNS: usize = 128;

/// How long a caller waits for a turn while no request is answered: about a command time-out.
const SILENCE: Duration = Duration::from_millis(250);

/// The turns of one shard.
pub(super) struct Turns {
    free: Semaphore,
    /// The number of requests that were answered.
    answered: AtomicUsize,
}

impl Default for Turns {
    fn default() -> Self {
        Self { free: Semaphore::new(TURNS), answered: AtomicUsize::new(0) }
    }
}

impl Turns {
    /// Waits for a turn while requests are answered. Returns `None` if none is answered any more,
    /// and the caller asks without a turn.
    pub(super) async fn next(&self) -> Option<SemaphorePermit<'_>> {
        match self.free.try_acquire() {
            Ok(turn) => Some(turn),
            Err(_) => Box::pin(self.queued()).await,
        }
    }

    /// Notes how a request ended.
    pub(super) fn ended(&self, error: Option<&BackendError>) {
        let silence = [BackendErrorKind::Unavailable, BackendErrorKind::Unknown];
        if error.is_none_or(|error| !silence.contains(&error.kind())) {
            self.answered.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Waits in the order of the callers.
    async fn queued(&self) -> Option<SemaphorePermit<'_>> {
        let mut queued = pin!(self.free.acquire());
        loop {
            let answered = self.answered.load(Ordering::Relaxed);
            match timeout(SILENCE, queued.as_mut()).await {
                Ok(permit) => return permit.ok(),
                Err(_) if answered == self.answered.load(Ordering::Relaxed) => return None,
                Err(_) => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use futures_util::{FutureExt, future::join_all};
    use tokio::time::{Instant, sleep};

    use super::*;

    impl Turns {
        /// Sends a request in its turn.
        async fn run<T>(
            &self,
            request: impl Future<Output = Result<T, BackendError>>,
        ) -> Result<T, BackendError> {
            let _turn = self.next().await;
            let answer = request.await;
            self.ended(answer.as_ref().err());
            answer
        }
    }

    /// A burst takes longer than a time-out, and each request is answered in ten milliseconds.
    #[tokio::test(start_paused = true)]
    async fn a_burst_is_sent_in_turns_while_it_is_answered() {
        let turns = Turns::default();
        let under_way = AtomicUsize::new(0);
        let requests = (0..100 * TURNS).map(|_| {
            turns.run(async {
                assert!(under_way.fetch_add(1, Ordering::SeqCst) < TURNS);
                sleep(Duration::from_millis(10)).await;
                under_way.fetch_sub(1, Ordering::SeqCst);
                Ok(())
            })
        });
        let begun = Instant::now();
        assert!(join_all(requests).await.into_iter().all(|answer| answer.is_ok()));
        assert!(begun.elapsed() > 2 * SILENCE, "{:?}", begun.elapsed());
    }

    /// A server that hangs costs a burst one silence and one time-out, not one for each turn.
    #[tokio::test(start_paused = true)]
    async fn a_burst_does_not_queue_before_a_server_that_hangs() {
        let turns = Turns::default();
        let requests = (0..20 * TURNS).map(|_| {
            turns.run(async {
                sleep(SILENCE).await;
                Err::<(), _>(BackendError::new(BackendErrorKind::Unknown, "silence"))
            })
        });
        let begun = Instant::now();
        assert!(join_all(requests).await.into_iter().all(|answer| answer.is_err()));
        assert!(begun.elapsed() <= 2 * SILENCE + Duration::from_millis(2), "{:?}", begun.elapsed());
    }

    /// A task keeps many acquisitions that it no longer polls, for example in a stream, and needs
    /// one more lock itself.
    #[tokio::test(start_paused = true)]
    async fn requests_that_are_not_polled_do_not_block_others_for_good() {
        let turns = Arc::new(Turns::default());
        let mut unpolled = Vec::new();
        for _ in 0..TURNS {
            let turns = turns.clone();
            let mut request = Box::pin(async move {
                turns.run(std::future::pending::<Result<(), BackendError>>()).await
            });
            assert!(request.as_mut().now_or_never().is_none());
            unpolled.push(request);
        }
        assert!(turns.run(async { Ok(()) }).await.is_ok());
        drop(unpolled);
        assert_eq!(turns.free.available_permits(), TURNS);
    }
}
