//! The count-down latch.

use std::{fmt, sync::Arc, time::Duration};

use futures_util::future::BoxFuture;
use tokio::time::{Instant, sleep_until, timeout_at};
use tracing::Instrument;

use super::{
    builder::ensure,
    space::{LockSpace, OneServer},
};
use crate::{
    backend::{Claim, Countdown, Mode, Owner, Store},
    error::{BackendError, BackendErrorKind, Error, ErrorKind},
    key::{Key, Name},
    lease::run_until,
    random,
    time::{Pauses, after},
};

/// The largest count. The latch remembers each step until the latch ends, so that a step that is
/// sent twice counts once. Ten thousand steps take a megabyte.
const MOST: u32 = 10_000;

/// How often a waiter reads the latch if no push comes. The jitter is added.
const READ_INTERVAL: Duration = Duration::from_millis(610);
/// How often a waiter reads the latch while its subscription is not confirmed.
const UNSUBSCRIBED_INTERVAL: Duration = Duration::from_millis(10);
const JITTER: Duration = Duration::from_millis(90);

const SHORTEST_TTL: Duration = Duration::from_secs(1);
const LONGEST_TTL: Duration = Duration::from_secs(30 * 86_400);

/// A count-down latch: set once, counted down by many, waited for by many.
///
/// [`Locks::latch`](super::Locks::latch) creates it. A latch ends with its [time to
/// live](Self::ttl). A latch has no holder, so nothing is lost when a process dies. After
/// [`Locks::shutdown`](super::Locks::shutdown), a latch can still be counted down. If the server
/// loses its data, the latch is [not set](ErrorKind::NotSet) any more, and the waiters notice this
/// within 0.7 s.
///
/// # Examples
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// use std::time::Duration;
/// use bellwether::{Locks, MemoryBackend};
///
/// let parts = Locks::new(MemoryBackend::new(), "shop")
///     .latch("import:7")
///     .ttl(Duration::from_secs(600))
///     .wait_limit(Duration::from_secs(5));
/// assert!(parts.set(4).await?);
/// assert_eq!(parts.count_down().await?, 3);
/// assert_eq!(parts.count_down_by(2).await?, 1);
/// assert_eq!(parts.left().await?, 1);
/// assert_eq!(parts.count_down().await?, 0);
/// parts.wait().await?;
/// assert!(parts.clear().await?);
/// # Ok::<_, bellwether::Error>(()) }).unwrap();
/// ```
#[derive(Clone)]
#[must_use = "a latch does nothing until it is set, counted down or waited for"]
pub struct Latch {
    space: LockSpace,
    latches: Arc<dyn Store>,
    name: Key,
    ttl: Duration,
    wait_limit: Duration,
}

impl Latch {
    pub(super) fn new(space: &LockSpace, server: &OneServer, name: Key) -> Self {
        Self {
            space: space.clone(),
            latches: server.latches.clone(),
            name,
            ttl: Duration::from_secs(3600),
            wait_limit: Duration::from_secs(30),
        }
    }

    /// Sets the latch to a count from 1 to 10,000, unless the latch is set already. Returns `true`
    /// if this call set the latch. A finished latch counts as set until its time to live is over,
    /// or until a call [clears](Self::clear) it.
    ///
    /// # Errors and cancel safety
    ///
    /// As [all locks](super#errors-and-cancel-safety), and `InvalidConfig` for a count outside its
    /// range. `Backend` comes after the wait limit, and at once if the server is full or the user
    /// lacks a right. The message says whether the latch may have been set.
    pub async fn set(&self, count: u32) -> Result<bool, Error> {
        let name = self.space.name(&self.name)?;
        let count = in_range(count)?;
        let ttl = self.ttl;
        ensure((SHORTEST_TTL..=LONGEST_TTL).contains(&ttl), || {
            let name = &self.name;
            format!("the time to live of the latch {name} is {ttl:?}; set it from 1 s to 30 days")
        })?;
        let id = Owner::fresh();
        let set = || self.latches.set_latch(&name, id, count, ttl);
        self.send("set", set).instrument(self.span()).await
    }

    /// Counts down by one. Returns the count that this step left.
    ///
    /// If an answer is lost, the call sends the step again. The step counts once, and the call
    /// returns the count that the step left the first time, also if the latch is done by then. So
    /// each step that counts returns a count of its own, and one step returns zero.
    ///
    /// A step that finds the latch done counts nothing, and returns zero as well. So the caller
    /// that gets zero may do the rest of the work if no more steps are made than the latch counts.
    ///
    /// # Errors
    ///
    /// [`NotSet`](ErrorKind::NotSet) if the latch is not set, and the errors of [`set`](Self::set).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the step may or may not have counted. Another call is another
    /// step.
    pub async fn count_down(&self) -> Result<u32, Error> {
        self.count_down_by(1).await
    }

    /// Counts down by a number from 1 to 10,000, but not below zero, as
    /// [`count_down`](Self::count_down) does by one.
    pub async fn count_down_by(&self, count: u32) -> Result<u32, Error> {
        let name = self.space.name(&self.name)?;
        let count = in_range(count)?;
        let id = Owner::fresh();
        let step = || self.latches.count_down(&name, id, count);
        let countdown = self.send("counted down", step).instrument(self.span()).await?;
        Ok(countdown.ok_or_else(|| self.not_set())?.left)
    }

    /// Returns the count that was left when the server answered. Zero if the latch is done.
    ///
    /// # Errors and cancel safety
    ///
    /// As [all locks](super#errors-and-cancel-safety). `NotSet` if there is no latch.
    pub async fn left(&self) -> Result<u32, Error> {
        let name = self.space.name(&self.name)?;
        let countdown = self.latches.latch(&name).await?;
        Ok(countdown.ok_or_else(|| self.not_set())?.left)
    }

    /// Waits until the count is zero. A push wakes the waiter, which also polls every 0.7 s.
    ///
    /// # Errors and cancel safety
    ///
    /// As [all locks](super#errors-and-cancel-safety). [`NotDone`](ErrorKind::NotDone) if the wait
    /// limit ended first, and [`NotSet`](ErrorKind::NotSet) if the latch is not set, or is no
    /// longer set.
    pub async fn wait(&self) -> Result<(), Error> {
        let name = self.space.name(&self.name)?;
        let waiting = self.wait_for(&name).instrument(self.span());
        let stopped = self.space.engine.janitor.stop.cancelled();
        match run_until(stopped, waiting).await {
            Some(outcome) => outcome,
            None => Err(Error::shut_down()),
        }
    }

    /// Removes the latch, whatever its count, or the foreign data under its name. Returns `true` if
    /// there was something to remove. The waiters of the latch get [`NotSet`](ErrorKind::NotSet). A
    /// step that is on its way meanwhile may count on the latch that is set next.
    ///
    /// # Errors and cancel safety
    ///
    /// As [all locks](super#errors-and-cancel-safety).
    pub async fn clear(&self) -> Result<bool, Error> {
        let name = self.space.name(&self.name)?;
        Ok(self.latches.clear_latch(&name).await?)
    }

    /// Sets how long an unfinished latch stands after it was [set](Self::set), and how long a
    /// finished latch stands after it was done. Defaults to 1 h; from 1 s to 30 days. The time of
    /// the call that sets the latch counts.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// Sets how long to wait for the end of the count, or for a backend that does not answer.
    /// Defaults to 30 s.
    pub fn wait_limit(mut self, limit: Duration) -> Self {
        self.wait_limit = limit;
        self
    }

    /// Reads the latch after each push and each interval, until the latch is done, is not set, or
    /// the wait limit has passed.
    async fn wait_for(&self, name: &Name) -> Result<(), Error> {
        let deadline = after(Instant::now(), self.wait_limit);
        let mut pauses = Pauses::default();
        let mut changes = self.space.engine.backend.listen(name, Some(&self.silent_claim(name)));
        loop {
            let is_subscribed = changes.subscribe();
            let interval = if is_subscribed { READ_INTERVAL } else { UNSUBSCRIBED_INTERVAL };
            // A push may have been lost, so the latch is read once more after the deadline.
            let is_last = Instant::now() >= deadline;
            let (pause, failure) = match self.latches.latch(name).await {
                Ok(None) => return Err(self.not_set()),
                Ok(Some(Countdown { left: 0, .. })) => return Ok(()),
                Ok(Some(latch)) => {
                    pauses = Pauses::default();
                    let pause = latch.remaining.min(interval) + random::up_to(JITTER);
                    (pause, self.not_done(latch.left))
                }
                Err(error) if error.kind() == BackendErrorKind::Foreign => {
                    return Err(error.into());
                }
                Err(error) => (pauses.next(), error.into()),
            };
            if is_last {
                return Err(failure);
            }
            let next_read = after(Instant::now(), pause).min(deadline);
            // A push and the end of the pause both lead to the next read.
            let _ = timeout_at(next_read, changes.next()).await;
        }
    }

    /// Returns a claim that registers a waiter for the pushes to all waiters. The claim is never
    /// sent, so its mode does not matter, and it needs no queue entry.
    fn silent_claim(&self, name: &Name) -> Claim {
        let owner = self.space.engine.backend.new_owner();
        let limit = self.wait_limit;
        let claim = Claim::with_owner(owner, name.clone(), Mode::Read, limit, limit);
        Claim { waits: false, ..claim }
    }

    /// Sends an operation that may be sent twice, until an answer comes or the wait limit ends.
    ///
    /// A refusal that passes by itself, such as during a failover, is not an answer yet. `done` is
    /// the operation in the words of the error: the latch was not `done`.
    async fn send<'a, T>(
        &self,
        done: &str,
        operation: impl Fn() -> BoxFuture<'a, Result<T, BackendError>>,
    ) -> Result<T, Error> {
        let deadline = after(Instant::now(), self.wait_limit);
        let mut pauses = Pauses::default();
        let mut certainty = "was not";
        loop {
            let error = match operation().await {
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            if error.kind() == BackendErrorKind::Unknown {
                certainty = "may or may not have been";
            }
            let next = after(Instant::now(), pauses.next());
            let is_lasting = error.is_lasting();
            if !is_lasting {
                sleep_until(next.min(deadline)).await;
            }
            if is_lasting || next >= deadline {
                let why = format!("the latch {:?} {certainty} {done}", self.name);
                return Err(Error::with_source(ErrorKind::Backend, why, error));
            }
        }
    }

    fn span(&self) -> tracing::Span {
        tracing::debug_span!("latch", name = %self.name)
    }

    fn not_set(&self) -> Error {
        Error::new(ErrorKind::NotSet, format!("the latch {:?} is not set", self.name))
    }

    fn not_done(&self, left: u32) -> Error {
        let name = &self.name;
        let limit = self.wait_limit;
        let why = format!("the latch {name:?} was not done within {limit:?}; {left} left");
        Error::new(ErrorKind::NotDone, why)
    }
}

impl fmt::Debug for Latch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Latch")
            .field("name", &self.name)
            .field("ttl", &self.ttl)
            .field("wait_limit", &self.wait_limit)
            .finish_non_exhaustive()
    }
}

fn in_range(count: u32) -> Result<u32, Error> {
    ensure((1..=MOST).contains(&count), || {
        format!("the count is {count}; pass a count from 1 to {MOST}")
    })?;
    Ok(count)
}
