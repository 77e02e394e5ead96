//! Waiting for a lease that another holder has: until a push, the next wait of the strategy, or the
//! end of the wait.
//!
//! A waiter with a queue entry is also woken by the [keeper](super::keeper) of its entry. Any other
//! one is woken by the end of the lease in the way, or after 5 s.

use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use super::{Acquisition, RetryStrategy};
use crate::{
    backend::Change,
    time::{Pauses, after},
};

/// The shortest wait of a strategy. Without it, a waiter whose backend answers at once would never
/// let go of its thread.
const SHORTEST_WAIT: Duration = Duration::from_millis(1);

/// The wait of one caller. It costs nothing before the caller has to wait.
pub(crate) struct Waiting<'a> {
    strategy: &'a dyn RetryStrategy,
    /// The waits of the strategy, once one was needed.
    waits: Option<Box<dyn Iterator<Item = Duration> + Send>>,
    /// When the strategy's present wait ends.
    until: Option<Instant>,
    limit: Duration,
    deadline: Instant,
    /// The pauses after requests that failed.
    pauses: Pauses,
    /// When the push came that has ended the last sleep, for the metrics.
    pub(crate) pushed_at: Option<Instant>,
}

/// The next step of a waiter.
pub(crate) enum Woken {
    /// It asks again.
    Again,
    /// It was told of a change, and asks again unless that settles the matter.
    Pushed(Change),
    /// Its wait is over.
    TimeUp,
}

impl<'a> Waiting<'a> {
    /// Returns the wait of a caller with this limit, which began at `since`.
    pub(crate) fn new(strategy: &'a dyn RetryStrategy, limit: Duration, since: Instant) -> Self {
        let (waits, until, pauses, pushed_at) = Default::default();
        Self { strategy, waits, until, limit, deadline: after(since, limit), pauses, pushed_at }
    }

    /// Returns the limit if it has ended the wait, and not the strategy.
    pub(crate) fn limit_reached(&self) -> Option<Duration> {
        (Instant::now() >= self.deadline).then_some(self.limit)
    }

    /// Returns how long it still waits at most.
    pub(crate) fn left(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }

    /// Waits for something else than a push. Returns `None` if the wait is over first.
    pub(crate) async fn bounded<T>(&mut self, event: impl Future<Output = T>) -> Option<T> {
        let mut event = std::pin::pin!(event);
        loop {
            let wake = self.until()?.min(self.deadline);
            tokio::select! {
                biased;
                outcome = &mut event => return Some(outcome),
                () = sleep_until(wake) => if let Woken::TimeUp = self.woken(wake) { return None },
            }
        }
    }

    /// Waits after a request that found the lease held for another `remaining`, or that failed.
    pub(crate) async fn after(
        &mut self,
        acquisition: &mut Acquisition,
        remaining: Option<Duration>,
    ) -> Woken {
        self.pushed_at = None;
        let Some(until) = self.until() else { return Woken::TimeUp };
        let look = match remaining {
            Some(remaining) => {
                self.pauses = Pauses::default();
                acquisition.next_look(remaining, self.deadline)
            }
            // Until the shard can be expected to answer.
            None => after(Instant::now(), self.pauses.next()),
        };
        let wake = look.min(until).min(self.deadline);
        tokio::select! {
            biased;
            told = acquisition.told() => match told {
                Some((change, at)) => {
                    self.pushed_at = at;
                    Woken::Pushed(change)
                }
                None => Woken::Again,
            },
            () = sleep_until(wake) => self.woken(wake),
        }
    }

    fn woken(&mut self, wake: Instant) -> Woken {
        if wake >= self.deadline {
            return Woken::TimeUp;
        }
        if self.until.is_some_and(|until| until <= wake) {
            self.until = None;
        }
        Woken::Again
    }

    /// The end of the strategy's present wait, or of its next one. Returns `None` if there is none.
    fn until(&mut self) -> Option<Instant> {
        if self.until.is_none() {
            let wait = self.waits.get_or_insert_with(|| self.strategy.waits()).next()?;
            self.until = Some(after(Instant::now(), wait.max(SHORTEST_WAIT)));
        }
        self.until
    }
}
