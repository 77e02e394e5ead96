//! The wait of one caller for a lease that another holder has.
//!
//! A push, the next wait of the strategy, and the end of the wait each wake a waiter. The
//! [keeper](super::keeper) also wakes a waiter with a queue entry. A timer wakes any other waiter
//! at the end of the lease in the way, or after 5 s.

use std::{iter::empty, pin::pin, time::Duration};

use futures_util::FutureExt;
use tokio::time::{Instant, sleep_until};

use super::{Acquisition, RetryStrategy};
use crate::{
    backend::{Change, Claim, SemaphoreKind},
    error::{Error, ErrorKind},
    random,
    time::{Pauses, UNHEARD_LOOK, after},
};

/// How long a waiter without a queue entry sleeps at most.
const LONGEST_SLEEP: Duration = Duration::from_secs(5);
/// After the end of the lease in the way, the waiters send their claims at random times within
/// this.
const JITTER: Duration = Duration::from_millis(90);

/// The shortest wait of a strategy, so that a waiter yields its thread.
const SHORTEST_WAIT: Duration = Duration::from_millis(1);

/// The wait of one caller. Its cost begins when the caller has to wait.
pub(crate) struct Waiting<'a> {
    pub(super) strategy: &'a dyn RetryStrategy,
    /// The waits of the strategy. `None` before the first wait.
    waits: Option<Box<dyn Iterator<Item = Duration> + Send>>,
    /// When the present wait of the strategy ends.
    wait_end: Option<Instant>,
    limit: Duration,
    pub(super) deadline: Instant,
    /// The pauses after requests that failed.
    pauses: Pauses,
    /// When the push came that ended the last sleep, for the metrics.
    pub(crate) pushed_at: Option<Instant>,
}

/// What has ended the sleep of a waiter.
pub(crate) enum Woken {
    /// A timer. The waiter sends its claim again.
    Again,
    /// A push. The waiter sends its claim again, unless the push is an answer to the claim.
    Pushed(Change),
    /// The wait is over.
    TimeUp,
}

impl<'a> Waiting<'a> {
    /// Returns the wait of a caller with this limit, which began at `since`.
    pub(crate) fn new(strategy: &'a dyn RetryStrategy, limit: Duration, since: Instant) -> Self {
        Self {
            strategy,
            waits: None,
            wait_end: None,
            limit,
            deadline: after(since, limit),
            pauses: Pauses::default(),
            pushed_at: None,
        }
    }

    /// Ends the wait after one try, whatever the strategy.
    pub(super) fn try_once(&mut self) {
        self.waits = Some(Box::new(empty()));
    }

    /// Returns the error of a wait that the limit or the strategy has ended.
    pub(super) fn not_acquired(&self, claim: &Claim) -> Error {
        let why = if Instant::now() >= self.deadline {
            format!("within its wait limit of {:?}", self.limit)
        } else {
            "before its retry strategy ended".to_owned()
        };
        let key = claim.name.key();
        let kind = SemaphoreKind::from(claim.mode);
        Error::new(ErrorKind::NotAcquired, format!("{key:?} ({kind}) was not acquired {why}"))
    }

    pub(crate) fn left(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }

    /// Waits for an event. Returns `None` if the wait is over first. An event that has happened is
    /// returned, also after the end of the wait.
    pub(super) async fn bounded<T>(&mut self, event: impl Future<Output = T>) -> Option<T> {
        let mut event = pin!(event);
        loop {
            let Some(wake) = self.strategy_wakes() else { return event.now_or_never() };
            let wake = wake.min(self.deadline);
            tokio::select! {
                biased;
                outcome = &mut event => return Some(outcome),
                () = sleep_until(wake) => if let Woken::TimeUp = self.timer_fired(wake) {
                    return None;
                },
            }
        }
    }

    /// Returns when a waiter sends its claim again if no push comes. The last answer said that the
    /// lease in the way lasts for another `remaining`. Returns `None` if the wait is over.
    ///
    /// A waiter with a queue entry sleeps until its deadline, because the keeper keeps the entry.
    pub(crate) fn wakes_after_answer(
        &mut self,
        acquisition: &mut Acquisition,
        remaining: Duration,
    ) -> Option<Instant> {
        self.pauses = Pauses::default();
        let now = Instant::now();
        let is_subscribed = acquisition.listen().subscribe();
        let mut next_try = self.deadline;
        if !acquisition.claim().waits {
            let jitter = random::up_to(JITTER);
            next_try = now + remaining.saturating_add(jitter).min(LONGEST_SLEEP);
        }
        if !is_subscribed {
            next_try = next_try.min(now + random::upper_half(UNHEARD_LOOK));
        }
        Some(next_try.min(self.strategy_wakes()?).min(self.deadline))
    }

    /// Returns when a waiter sends its claim again after a request that failed. By then, the shard
    /// can be expected to answer. Returns `None` if the wait is over.
    pub(super) fn wakes_after_failure(&mut self) -> Option<Instant> {
        let next_try = after(Instant::now(), self.pauses.next());
        Some(next_try.min(self.strategy_wakes()?).min(self.deadline))
    }

    /// Sleeps until a push comes for the claim, or until `wake`.
    pub(crate) async fn sleep(&mut self, acquisition: &mut Acquisition, wake: Instant) -> Woken {
        self.pushed_at = None;
        tokio::select! {
            biased;
            (change, at) = acquisition.listen().next_push() => {
                self.pushed_at = Some(at);
                // A stream of pushes must not lengthen the wait.
                let is_over = change == Change::Wake && Instant::now() >= self.deadline;
                if is_over { Woken::TimeUp } else { Woken::Pushed(change) }
            }
            () = sleep_until(wake) => self.timer_fired(wake),
        }
    }

    fn timer_fired(&mut self, wake: Instant) -> Woken {
        if wake >= self.deadline {
            return Woken::TimeUp;
        }
        if self.wait_end.is_some_and(|end| end <= wake) {
            self.wait_end = None;
        }
        Woken::Again
    }

    /// Returns the end of the present wait of the strategy, or of its next wait. Returns `None` if
    /// the strategy has no further wait.
    fn strategy_wakes(&mut self) -> Option<Instant> {
        if self.wait_end.is_none() {
            let strategy = self.strategy;
            let waits = self.waits.get_or_insert_with(|| strategy.waits());
            let wait = waits.next()?;
            self.wait_end = Some(after(Instant::now(), wait.max(SHORTEST_WAIT)));
        }
        self.wait_end
    }
}
