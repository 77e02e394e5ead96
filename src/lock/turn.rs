//! The turn of a job: the right to do its work for one tick.

use std::{
    fmt,
    sync::Arc,
    time::{Duration, SystemTime},
};

use tokio::time::sleep;
use tracing::debug;

use super::{front::debug_guard, macros::guard};
use crate::{
    backend::{Mark, Tick, TickStep},
    error::{Chain, Error},
    lease::{Engine, LeaseGuard},
};

/// The right to do the work of a job for one tick: the [mutex](crate::Locks::mutex) of its name.
///
/// Returned by [`Job::begin`](super::Job::begin) and [`Ticks::next`](super::Ticks::next). Its lease
/// is renewed while the turn lives. Call [`done`](Self::done) after the work: a turn that is
/// dropped counts as [a crash](super::OnCrash).
///
/// # Examples
///
/// ```
/// # use std::time::{Duration, SystemTime};
/// # use bellwether::{Error, Locks};
/// # async fn send_report() -> Result<(), std::io::Error> { Ok(()) }
/// async fn report(locks: &Locks, tick: SystemTime) -> Result<(), Error> {
///     let Some(turn) = locks.once("report", tick).begin().await? else { return Ok(()) };
///     if let Err(error) = turn.retry(Duration::from_secs(10), 3, send_report).await? {
///         println!("no report for {:?}: {error}", turn.tick());
///     }
///     // Done, also without a report: the next tick makes the next one.
///     turn.done().await
/// }
/// ```
#[must_use = "a turn that is dropped counts as a crash"]
pub struct Turn {
    pub(super) held: LeaseGuard,
    pub(super) engine: Arc<Engine>,
    pub(super) tick: Tick,
    pub(super) previous: Option<Mark>,
}

impl Turn {
    guard!(fence);
    guard!(lease);

    /// Returns the tick, rounded down to a microsecond. It says nothing for an
    /// [id](crate::Locks::once_id).
    pub fn tick(&self) -> SystemTime {
        instant(self.tick.at)
    }

    /// Returns the tick that was begun before this one, if one is remembered.
    ///
    /// The ticks of the schedule between the two were missed. With
    /// [`RunAgain`](super::OnCrash::RunAgain), it may be this tick, whose turn has crashed.
    pub fn previous(&self) -> Option<PreviousTick> {
        let Mark { tick, begun_by } = self.previous?;
        Some(PreviousTick { tick: instant(tick), is_done: begun_by.is_none() })
    }

    /// Runs work until it succeeds, up to `limit` times with a `delay` in between. Returns the last
    /// result of the work.
    ///
    /// All tries are in this turn: a crash ends them, and a loss of the lease drops the work, as in
    /// [`run`](Self::run).
    ///
    /// # Errors
    ///
    /// [`Lost`](crate::ErrorKind::Lost) if the lease was lost before the last try completed.
    ///
    /// # Cancel safety
    ///
    /// Dropping the returned future drops the work. The turn goes on.
    pub async fn retry<T, E, Work: Future<Output = Result<T, E>>>(
        &self,
        delay: Duration,
        limit: u32,
        mut work: impl FnMut() -> Work,
    ) -> Result<Result<T, E>, Error> {
        let tries = async {
            for _ in 1..limit {
                let result = work().await;
                if result.is_ok() {
                    return result;
                }
                sleep(delay).await;
            }
            work().await
        };
        self.run(tries).await
    }

    /// Notes that the work of the tick is done, and releases the lease.
    ///
    /// # Errors
    ///
    /// - [`Lost`](crate::ErrorKind::Lost) if the lease was no longer held. The turn has crashed.
    /// - [`Backend`](crate::ErrorKind::Backend) if the backend did not answer. The turn may count
    ///   as crashed.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the turn may count as crashed. The lease is released all the same.
    pub async fn done(self) -> Result<(), Error> {
        let Self { held, engine, tick, .. } = self;
        let tick = Tick { step: TickStep::Done, ..tick };
        if held.is_lost() || !engine.mark(held.claim(), tick).await?.is_set {
            return Err(held.lost_error());
        }
        if let Err(error) = held.release().await {
            debug!(error = %Chain(&error), "the end of a turn has an error");
        }
        Ok(())
    }
}

fn instant(tick: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_micros(tick)
}

impl fmt::Debug for Turn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        debug_guard(f, "Turn", &self.held)
    }
}

/// The tick that was begun before that of a [`Turn`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PreviousTick {
    /// The tick.
    pub tick: SystemTime,
    /// Whether its turn was [done](Turn::done). If not, it has crashed.
    pub is_done: bool,
}
