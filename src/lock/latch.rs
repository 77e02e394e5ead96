use std::{fmt, time::Duration};

use futures_util::future::BoxFuture;
use tracing::Instrument;

use super::Locks;
use crate::{
    backend::{ANSWER_LIMIT, Countdown, Owner, in_time},
    error::{BackendError, BackendErrorKind, Error, ErrorKind},
    key::{Key, Name},
    lease::{Retry, Turn, Waiting},
};

/// The largest count. Each step is remembered until nothing is left, so that it counts once though it be sent
/// twice: ten thousand of them are a megabyte.
const MOST: u32 = 10_000;

/// A count-down latch: set once, counted down by many, waited for by many. Made by [`Locks::latch`].
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// use bellwether::{Locks, MemoryBackend};
///
/// let parts = Locks::new(MemoryBackend::new()).latch("import:7");
/// parts.set(2).await?;
/// assert_eq!(parts.count_down().await?, 1);
/// assert_eq!(parts.count_down().await?, 0);
/// parts.wait().await?;
/// # Ok::<_, bellwether::Error>(()) }).unwrap();
/// ```
///
/// It needs no cleaning up. Unfinished, it ends with its [time to live](Self::ttl); done, it stands for that
/// time once more, so that who comes late is told that it is done and not that it was never set.
///
/// Nobody holds a latch, so nothing of it is lost with a process; and after [`Locks::shutdown`] it can still
/// be counted down. If the server loses its data, the latch is [not set](ErrorKind::NotSet) any more, and who
/// waits is told so within 5 s.
#[derive(Clone)]
#[must_use = "a latch does nothing until it is set, counted down or waited for"]
pub struct Latch {
    locks: Locks,
    name: Key,
    ttl: Duration,
    wait_limit: Duration,
}

impl Latch {
    pub(super) fn new(locks: Locks, name: Key) -> Self {
        let (ttl, wait_limit) = (Duration::from_secs(3600), Duration::from_secs(30));
        Self { locks, name, ttl, wait_limit }
    }

    /// How long the latch stands, unfinished, after it was [set](Self::set), and how long again when it is done:
    /// 1 h unless set. From 1 s to 30 days.
    ///
    /// It is what was set that counts; for counting down and waiting this setting does nothing.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// How long to wait for the end of the count, or for a backend that does not answer: 30 s unless set.
    pub fn wait_limit(mut self, limit: Duration) -> Self {
        self.wait_limit = limit;
        self
    }

    /// Sets the latch to a count from 1 to 10,000, unless it is set already. Says whether this did it.
    ///
    /// One that is done counts as set until its time is over, or until it is [cleared](Self::clear).
    ///
    /// # Errors
    ///
    /// [`Backend`](ErrorKind::Backend) if the backend did not answer within the wait limit (it may or may not
    /// have been set, and the error says which of these is known), or if something else stands under the name;
    /// [`InvalidKey`](ErrorKind::InvalidKey) and [`InvalidConfig`](ErrorKind::InvalidConfig) for a name, a count
    /// or a time outside its range.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the latch may or may not have been set.
    pub async fn set(&self, count: u32) -> Result<bool, Error> {
        let (name, count) = (self.full_name()?, in_range(count)?);
        if self.ttl < Duration::from_secs(1) || self.ttl > Duration::from_secs(30 * 86_400) {
            let why = "the time to live is not from 1 s to 30 days";
            return Err(Error::new(ErrorKind::InvalidConfig, why));
        }
        let id = Owner::fresh();
        let set = || self.locks.latches.set_latch(&name, id, count, self.ttl);
        self.send(&name, "set", set).await
    }

    /// Counts down by one. Returns what is left.
    ///
    /// One that is done stays at zero. An answer that is lost is asked for again, and is counted once.
    ///
    /// # Errors
    ///
    /// [`NotSet`](ErrorKind::NotSet) if the latch is not set; [`Backend`](ErrorKind::Backend) if the backend
    /// did not answer within the wait limit (it may or may not have counted, and the error says which of these
    /// is known), or if something else stands under the name; [`InvalidKey`](ErrorKind::InvalidKey) for a name
    /// outside its range.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, it may or may not have counted, and one more call counts anew.
    pub async fn count_down(&self) -> Result<u32, Error> {
        self.count_down_by(1).await
    }

    /// Counts down by so many at once, from 1 to 10,000; to zero, if fewer are left. Returns what is left.
    ///
    /// # Errors
    ///
    /// As [`count_down`](Self::count_down), and [`InvalidConfig`](ErrorKind::InvalidConfig) for a number outside
    /// its range.
    ///
    /// # Cancel safety
    ///
    /// As [`count_down`](Self::count_down).
    pub async fn count_down_by(&self, count: u32) -> Result<u32, Error> {
        let (name, count) = (self.full_name()?, in_range(count)?);
        let id = Owner::fresh();
        let step = || self.locks.latches.count_down(&name, id, count);
        let countdown: Option<Countdown> = self.send(&name, "counted", step).await?;
        Ok(countdown.ok_or_else(|| self.not_set())?.left)
    }

    /// What is left, at the moment of asking; zero, if the latch is done.
    ///
    /// # Errors
    ///
    /// [`NotSet`](ErrorKind::NotSet) if the latch is not set; [`Backend`](ErrorKind::Backend) if the backend did
    /// not answer, or if something else stands under the name; [`InvalidKey`](ErrorKind::InvalidKey) for a name
    /// outside its range.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    pub async fn left(&self) -> Result<u32, Error> {
        let name = self.full_name()?;
        let countdown = self.locks.latches.latch(&name).await?;
        Ok(countdown.ok_or_else(|| self.not_set())?.left)
    }

    /// Waits until nothing is left.
    ///
    /// Who waits is woken by a push; behind it, he looks every 5 s, and when the latch's time is over.
    ///
    /// # Errors
    ///
    /// [`NotDone`](ErrorKind::NotDone) if the wait limit ended first; [`NotSet`](ErrorKind::NotSet) if the latch
    /// is not set, or is no longer: its time was over, or it was cleared; [`Backend`](ErrorKind::Backend) if the
    /// last look within the wait limit failed, or if something else stands under the name;
    /// [`InvalidKey`](ErrorKind::InvalidKey) for a name outside its range; [`ShutDown`](ErrorKind::ShutDown)
    /// after [`Locks::shutdown`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    pub async fn wait(&self) -> Result<(), Error> {
        let name = self.full_name()?;
        self.wait_for(&name).instrument(self.span()).await
    }

    /// Removes the latch, whatever is left of it, or whatever else stands in its place; it can be set again then.
    /// Says whether something was there.
    ///
    /// Who waits for it is told that it is [not set](ErrorKind::NotSet). A step that is on its way meanwhile
    /// may count on the latch that is set next.
    ///
    /// # Errors
    ///
    /// [`Backend`](ErrorKind::Backend) if the backend did not answer: it may or may not have been removed;
    /// [`InvalidKey`](ErrorKind::InvalidKey) for a name outside its range.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, it may or may not have been removed.
    pub async fn clear(&self) -> Result<bool, Error> {
        let name = self.full_name()?;
        Ok(self.locks.latches.clear_latch(&name).await?)
    }

    async fn wait_for(&self, name: &Name) -> Result<(), Error> {
        let mut waiting = self.waiting(name);
        let engine = &self.locks.scope.engine;
        let mut time_up = false;
        loop {
            if engine.is_stopped() {
                return Err(shut_down());
            }
            // Why it would be over, if the wait ends now.
            let (remaining, why) = match in_time(ANSWER_LIMIT, self.locks.latches.latch(name)).await
            {
                Ok(None) => return Err(self.not_set()),
                Ok(Some(Countdown { left: 0, .. })) => return Ok(()),
                Ok(Some(Countdown { left, remaining })) => (Some(remaining), self.not_done(left)),
                Err(error) if error.kind() == BackendErrorKind::Foreign => return Err(error.into()),
                Err(error) => (None, error.into()),
            };
            if time_up {
                return Err(why);
            }
            tokio::select! {
                // Then one last look, for the push may have been lost.
                turn = waiting.after(remaining) => time_up = matches!(turn, Turn::TimeUp),
                () = engine.stopped() => return Err(shut_down()),
            }
        }
    }

    /// Sends what may be sent twice until it is answered, or until the wait limit ends.
    async fn send<'a, T>(
        &self,
        name: &Name,
        done: &str,
        operation: impl Fn() -> BoxFuture<'a, Result<T, BackendError>>,
    ) -> Result<T, Error> {
        let sending = async {
            let mut waiting = self.waiting(name);
            let mut doubtful = false;
            loop {
                let error = match in_time(ANSWER_LIMIT, operation()).await {
                    Ok(answer) => return Ok(answer),
                    Err(error) => error,
                };
                doubtful |= error.kind() == BackendErrorKind::Unknown;
                let over = error.kind() == BackendErrorKind::Foreign
                    || matches!(waiting.after_failure().await, Turn::TimeUp);
                if over {
                    let known = if doubtful { "it may or may not have been" } else { "it was not" };
                    let why = format!("{known} {done}");
                    return Err(Error::with_source(ErrorKind::Backend, why, error));
                }
            }
        };
        sending.instrument(self.span()).await
    }

    fn waiting(&self, name: &Name) -> Waiting {
        let (engine, strategy) = (self.locks.scope.engine.clone(), Retry::on_demand());
        Waiting::on(engine, name.clone(), Owner::fresh(), &strategy, self.wait_limit)
    }

    fn span(&self) -> tracing::Span {
        tracing::debug_span!("latch", name = %self.name)
    }

    fn full_name(&self) -> Result<Name, Error> {
        self.locks.scope.name(&self.name)
    }

    fn not_set(&self) -> Error {
        Error::new(ErrorKind::NotSet, format!("the latch {} is not set", self.name))
    }

    fn not_done(&self, left: u32) -> Error {
        let why = format!("the wait ended before the latch {} did: {left} left", self.name);
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
    match count {
        1..=MOST => Ok(count),
        _ => {
            let why = format!("the count {count} is not from 1 to {MOST}");
            Err(Error::new(ErrorKind::InvalidConfig, why))
        }
    }
}

fn shut_down() -> Error {
    Error::new(ErrorKind::ShutDown, "the locks are shut down")
}
