//! The wait of one caller for a lease that another holder has.
//!
//! A waiter is woken by a push, the next wait of its strategy, or the end of its wait. The
//! [keeper](super::keeper) wakes a waiter with a queue entry. Any other waiter is woken by the end
//! of the lease in the way, or after 5 s.

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

const LONGEST_SLEEP: Duration = Duration::from_secs(5);
/// After the end of a lease, its waiters look at random times within this.
const JITTER: Duration = Duration::from_millis(90);

/// The shortest wait of a strategy, so that a waiter lets go of its thread.
const SHORTEST_WAIT: Duration = Duration::from_millis(1);

/// The wait of one caller. It costs nothing before the caller has to wait.
pub(crate) struct Waiting<'a> {
    pub(super) strategy: &'a dyn RetryStrategy,
    /// The waits of the strategy, once one was needed.
    waits: Option<Box<dyn Iterator<Item = Duration> + Send>>,
    /// When the strategy's present wait ends.
    until: Option<Instant>,
    limit: Duration,
    pub(super) deadline: Instant,
    /// The pauses after requests that failed.
    pauses: Pauses,
    /// When the push came that has ended the last sleep, for the metrics.
    pub(crate) pushed_at: Option<Instant>,
}

/// What has ended the sleep of a waiter.
pub(crate) enum Woken {
    /// The waiter asks again.
    Again,
    /// A push, after which the waiter asks again unless that settles the matter.
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
            until: None,
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

    /// Returns the error of a wait that its limit has ended, or the strategy.
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
    /// never too late.
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

    /// Returns when a waiter asks again that is not pushed to: one that finds the lease held for
    /// another `remaining`. Returns `None` if the wait is over.
    ///
    /// A queue entry, which the keeper keeps, lets the waiter sleep until its deadline.
    pub(crate) fn wakes_after_look(
        &mut self,
        acquisition: &mut Acquisition,
        remaining: Duration,
    ) -> Option<Instant> {
        self.pauses = Pauses::default();
        let now = Instant::now();
        let is_heard = acquisition.listen().subscribe();
        let mut look = self.deadline;
        if !acquisition.claim().waits {
            let jitter = random::up_to(JITTER);
            look = now + remaining.saturating_add(jitter).min(LONGEST_SLEEP);
        }
        if !is_heard {
            look = look.min(now + random::upper_half(UNHEARD_LOOK));
        }
        Some(look.min(self.strategy_wakes()?).min(self.deadline))
    }

    /// Returns when a waiter asks again whose request has failed: when the shard can be expected to
    /// answer. Returns `None` if the wait is over.
    pub(super) fn wakes_after_failure(&mut self) -> Option<Instant> {
        let pause = after(Instant::now(), self.pauses.next());
        Some(pause.min(self.strategy_wakes()?).min(self.deadline))
    }

    /// Sleeps until a push comes for the claim, or until `wake`.
    pub(crate) async fn sleep(&mut self, acquisition: &mut Acquisition, wake: Instant) -> Woken {
        self.pushed_at = None;
        tokio::select! {
            biased;
            (change, at) = acquisition.listen().next_push() => {
                self.pushed_at = Some(at);
                // Pushes that come again and again do not lengthen the wait.
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
        if self.until.is_some_and(|until| until <= wake) {
            self.until = None;
        }
        Woken::Again
    }

    /// Returns the end of the strategy's present wait, or of its next one. Returns `None` if there
    /// is none.
    fn strategy_wakes(&mut self) -> Option<Instant> {
        if self.until.is_none() {
            let strategy = self.strategy;
            let waits = self.waits.get_or_insert_with(|| strategy.waits());
            let wait = waits.next()?;
            self.until = Some(after(Instant::now(), wait.max(SHORTEST_WAIT)));
        }
        self.until
    }
}
