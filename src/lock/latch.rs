//! The count-down latch.

use std::{fmt, sync::Arc, time::Duration};

use futures_util::future::BoxFuture;
use tokio::time::{Instant, sleep_until, timeout_at};
use tracing::Instrument;

use super::{
    Locks,
    front::{LockSpace, ensure},
};
use crate::{
    backend::{Claim, Countdown, Mode, Owner, Store},
    error::{BackendError, BackendErrorKind, Error, ErrorKind},
    key::{Key, Name},
    lease::run_until,
    random,
    time::{Pauses, after},
};

/// The largest count. The latch remembers each step until it ends, so that a step that is sent
/// twice counts once. Ten thousand steps take a megabyte.
const MOST: u32 = 10_000;

/// A waiter that is told nothing looks after this time and the jitter, or without a subscription.
const LOOK: Duration = Duration::from_millis(610);
const UNHEARD_LOOK: Duration = Duration::from_millis(10);
const JITTER: Duration = Duration::from_millis(90);

const SHORTEST_TTL: Duration = Duration::from_secs(1);
const LONGEST_TTL: Duration = Duration::from_secs(30 * 86_400);

/// A count-down latch: set once, counted down by many, waited for by many.
///
/// Created by [`Locks::latch`]. It ends with its [time to live](Self::ttl). It has no holder, so it
/// loses nothing when a process dies. After [`Locks::shutdown`] it can still be counted down. If
/// the server loses its data, the latch is [not set](ErrorKind::NotSet) any more, and the waiters
/// learn this within 0.7 s.
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

impl Locks {
    /// Returns a count-down latch: set once, counted down by many, waited for by many.
    pub fn latch(&self, name: impl Into<Key>) -> Latch {
        let (space, latches) = (self.space.clone(), self.servers.latches.clone());
        let (ttl, wait_limit) = (Duration::from_secs(3600), Duration::from_secs(30));
        Latch { space, latches, name: name.into(), ttl, wait_limit }
    }
}

impl Latch {
    /// Sets the latch to a count from 1 to 10,000, unless it is set already. Returns `true` if this
    /// call set it. A finished latch counts as set until its time is over, or it is
    /// [cleared](Self::clear).
    ///
    /// # Errors and cancel safety
    ///
    /// As [all locks](super#errors-and-cancel-safety), and `InvalidConfig` for a count outside its
    /// range. `Backend` comes after the wait limit, and at once if the server is full or the user
    /// lacks a right. The message says whether the latch may have been set.
    pub async fn set(&self, count: u32) -> Result<bool, Error> {
        let (name, count) = (self.space.name(&self.name)?, in_range(count)?);
        ensure((SHORTEST_TTL..=LONGEST_TTL).contains(&self.ttl), || {
            let (name, ttl) = (&self.name, self.ttl);
            format!("the time to live of the latch {name} is {ttl:?}; set it from 1 s to 30 days")
        })?;
        let id = Owner::fresh();
        let set = || self.latches.set_latch(&name, id, count, self.ttl);
        self.send("set", set).instrument(self.span()).await
    }

    /// Counts down by one. Returns the count that this step left.
    ///
    /// If an answer is lost, the call asks again. It counts once, and returns the count that it
    /// left the first time, also if the latch is done by then. So each step that counts returns a
    /// count of its own, and one of them returns zero.
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
    /// If the future is dropped, the step may or may not have counted. Another call counts once
    /// more.
    pub async fn count_down(&self) -> Result<u32, Error> {
        self.count_down_by(1).await
    }

    /// Counts down by a number from 1 to 10,000, but not below zero, as
    /// [`count_down`](Self::count_down) does by one.
    pub async fn count_down_by(&self, count: u32) -> Result<u32, Error> {
        let (name, count) = (self.space.name(&self.name)?, in_range(count)?);
        let id = Owner::fresh();
        let step = || self.latches.count_down(&name, id, count);
        let countdown = self.send("counted down", step).instrument(self.span()).await?;
        Ok(countdown.ok_or_else(|| self.not_set())?.left)
    }

    /// Returns the count that was left at the moment of asking. Zero if the latch is done.
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
    /// limit ended first, and [`NotSet`](ErrorKind::NotSet) if the latch is not set, or no longer.
    pub async fn wait(&self) -> Result<(), Error> {
        let name = self.space.name(&self.name)?;
        let waiting = self.wait_for(&name).instrument(self.span());
        let stopped = self.space.engine.janitor.stop.cancelled();
        run_until(stopped, waiting).await.unwrap_or_else(|| Err(Error::shut_down()))
    }

    /// Removes the latch, whatever its count, or the foreign data in its place. Returns `true` if
    /// there was something to remove. Its waiters get [`NotSet`](ErrorKind::NotSet). A step that is
    /// on its way meanwhile may count on the latch that is set next.
    ///
    /// # Errors and cancel safety
    ///
    /// As [all locks](super#errors-and-cancel-safety).
    pub async fn clear(&self) -> Result<bool, Error> {
        let name = self.space.name(&self.name)?;
        Ok(self.latches.clear_latch(&name).await?)
    }

    /// Sets how long an unfinished latch stands after it was [set](Self::set), and a finished one
    /// after it was done. Defaults to 1 h; from 1 s to 30 days. Only the call that sets it counts.
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

    async fn wait_for(&self, name: &Name) -> Result<(), Error> {
        let (deadline, mut pauses) = (after(Instant::now(), self.wait_limit), Pauses::default());
        // Its pushes are for all, so the claim is never sent and needs no queue entry.
        let claim = Claim::under(
            self.space.engine.backend.new_owner(),
            name.clone(),
            Mode::Read,
            self.wait_limit,
            self.wait_limit,
        );
        let claim = Claim { waits: false, ..claim };
        let mut changes = self.space.engine.backend.listen(name, Some(&claim));
        loop {
            let look = if changes.subscribe() { LOOK } else { UNHEARD_LOOK };
            // A push may have been lost, so a last look decides.
            let is_last = Instant::now() >= deadline;
            let (pause, failure) = match self.latches.latch(name).await {
                Ok(None) => return Err(self.not_set()),
                Ok(Some(Countdown { left: 0, .. })) => return Ok(()),
                Ok(Some(latch)) => {
                    pauses = Pauses::default();
                    let jitter = random::up_to(JITTER);
                    (latch.remaining.min(look) + jitter, self.not_done(latch.left))
                }
                Err(error) if error.kind() == BackendErrorKind::Foreign => {
                    return Err(error.into());
                }
                Err(error) => (pauses.next(), error.into()),
            };
            if is_last {
                return Err(failure);
            }
            let look = after(Instant::now(), pause).min(deadline);
            let _ = timeout_at(look, changes.next()).await;
        }
    }

    /// Sends an operation that may be sent twice, until it is answered or the wait limit ends.
    ///
    /// A refusal that passes by itself, as during a failover, is no answer yet.
    async fn send<'a, T>(
        &self,
        done: &str,
        operation: impl Fn() -> BoxFuture<'a, Result<T, BackendError>>,
    ) -> Result<T, Error> {
        let (deadline, mut pauses) = (after(Instant::now(), self.wait_limit), Pauses::default());
        let mut known = "was not";
        loop {
            let error = match operation().await {
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            if error.kind() == BackendErrorKind::Unknown {
                known = "may or may not have been";
            }
            let next = after(Instant::now(), pauses.next());
            if !error.is_lasting() {
                sleep_until(next.min(deadline)).await;
            }
            if error.is_lasting() || next >= deadline {
                let why = format!("the latch {:?} {known} {done}", self.name);
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
        let (name, limit) = (&self.name, self.wait_limit);
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
    let why = || format!("the count is {count}; pass one from 1 to {MOST}");
    ensure((1..=MOST).contains(&count), why).map(|()| count)
}
