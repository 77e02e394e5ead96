//! Jobs: work that one process of the fleet does once for each tick.

use std::{
    fmt,
    ops::Deref,
    time::{Duration, SystemTime},
};

use tokio::time::{Instant, sleep};
use tracing::warn;

use super::{
    Locks, MutexGuard,
    front::{Lock, Renews, ensure, through_outages},
};
use crate::{
    backend::{Mark, Mode, Owner, Tick, TickStep},
    error::{Error, ErrorKind},
    key::Key,
    lease::run_until,
    observe::Rarely,
    time::{instant, micros, utc},
};

const KEPT: Duration = Duration::from_secs(30 * 86_400);
/// How far a tick may be ahead of the server, unless a job sets another time.
const MOST_AHEAD: Duration = Duration::from_secs(86_400);
/// How often [`Ticks`] look at a mark that is ahead of the server, and tell the log of it.
const LOOK_AT_FUTURE: Duration = Duration::from_secs(60);
const SHORTEST_PERIOD: Duration = Duration::from_millis(10);
/// Backends compare ticks of at most 16 digits, which suffice until 2286.
const END_OF_TICKS: u64 = 10_u64.pow(16);

/// The kind of a [job](Locks::once) or of [`Ticks`].
#[derive(Clone, Debug)]
pub struct Scheduled<When> {
    runs_again: bool,
    when: When,
}

impl<When> Renews for Scheduled<When> {}

impl Locks {
    /// Returns a job for a tick, for which one process of the fleet gets a turn.
    ///
    /// The tick is the instant in the schedule, and not the time at which a process asks, so clocks
    /// may differ. The server remembers the last tick begun for 30 days, and gives no turn for one
    /// that is not greater. If it loses that, a tick may run once more. A tick that lies [too far
    /// ahead](Job::max_ahead) of the server's time is refused.
    pub fn once(&self, name: impl Into<Key>, tick: impl Into<SystemTime>) -> Job {
        let when = OneTick { tick: tick.into(), kept: KEPT, ahead: MOST_AHEAD };
        self.scheduled(name.into(), when)
    }

    /// Returns a job for an id that has no place in an order, such as the id of an event.
    ///
    /// The id is remembered for `keep` from the beginning of its turn and again from its end, so
    /// `keep` must be longer than the work. Turns of different ids run beside each other: each is
    /// the mutex of the name and the id, joined by a colon.
    pub fn once_id(&self, name: impl Into<Key>, id: impl Into<Key>, keep: Duration) -> Job {
        // The first colon ends the name.
        let name = name.into().as_str().replace('%', "%25").replace(':', "%3A");
        let when = OneTick { tick: SystemTime::UNIX_EPOCH, kept: keep, ahead: MOST_AHEAD };
        self.scheduled(format!("{name}:{}", id.into()).into(), when)
    }

    /// Returns the turns of a job that runs once in each period, in one process of the fleet. At
    /// its first start there it runs at once, for the period that has begun.
    pub fn every(&self, name: impl Into<Key>, period: Duration) -> Ticks {
        self.scheduled(name.into(), EachTick { period, last: None })
    }

    fn scheduled<When>(&self, name: Key, when: When) -> Lock<Scheduled<When>> {
        let kind = Scheduled { runs_again: false, when };
        Lock::new(&self.space, name, kind).standing_by()
    }
}

impl<When> Lock<Scheduled<When>> {
    /// Makes a tick whose turn crashes run again, unless a later one has begun. A turn crashes if
    /// it ends before it is [`done`](Turn::done): its process ends, its lease is lost, or it is
    /// dropped.
    ///
    /// Without this setting, the tick is skipped, so it runs at most once. The next turn
    /// [tells](Turn::previous) of it, and the [guide] says how to be told sooner. The ticks within
    /// a [lease](Self::lease) of a crash are missed too, and with this setting they wait. A process
    /// that was suspended past its lease may run a tick beside another one, and only the
    /// [fence](super::MutexGuard::fence) protects.
    ///
    /// [guide]: crate::guide#a-job-that-runs-once-in-the-fleet
    pub fn at_least_once(mut self) -> Self {
        self.kind.runs_again = true;
        self
    }

    /// Returns the mark of the job: the last tick whose turn was begun. Returns `None` if the
    /// server remembers none.
    ///
    /// # Errors and cancel safety
    ///
    /// As [all locks](super#errors-and-cancel-safety).
    ///
    /// # Examples
    ///
    /// ```
    /// # async fn free(locks: bellwether::Locks) -> Result<(), bellwether::Error> {
    /// use std::time::SystemTime;
    ///
    /// // Every tick of the name will do.
    /// let job = locks.once("report", SystemTime::UNIX_EPOCH);
    /// if let Some(mark) = job.mark().await? {
    ///     println!("the last tick: {mark}");
    ///     if mark.tick > mark.server_time {
    ///         job.clear_mark().await?;
    ///     }
    /// }
    /// # Ok(()) }
    /// ```
    pub async fn mark(&self) -> Result<Option<JobMark>, Error> {
        let look = self.look().await?;
        let mark = look.mark.map(|Mark { tick, begun_by }| JobMark {
            tick: instant(tick),
            is_done: begun_by.is_none(),
            server_time: instant(look.now),
        });
        Ok(mark)
    }

    /// Removes the mark of the job, or the foreign data in its place. Returns `true` if there was
    /// something to remove.
    ///
    /// This is for a mark that lies in the future, which keeps all earlier ticks from running. Any
    /// tick may begin then, also one that has run. A turn that is under way sets its mark again
    /// when it is [done](Turn::done).
    ///
    /// # Errors and cancel safety
    ///
    /// As [all locks](super#errors-and-cancel-safety). If an answer is lost, this asks again, and
    /// may return `false` although it has removed the mark.
    pub async fn clear_mark(&self) -> Result<bool, Error> {
        let claim = self.claim(Mode::Exclusive)?;
        let forget = Tick { at: 0, step: TickStep::Forget, kept: KEPT };
        Ok(self.space.engine.janitor.mark(&claim, forget).await?.is_set)
    }
}

/// The last tick of a job whose turn was begun, as the server remembers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct JobMark {
    /// The tick. It says nothing for an [id](Locks::once_id).
    pub tick: SystemTime,
    /// Whether its turn is [done](Turn::done). If not, the turn runs or has crashed.
    pub is_done: bool,
    /// The time of the server at the moment of asking. A mark that is ahead of it keeps all earlier
    /// ticks from running.
    pub server_time: SystemTime,
}

impl fmt::Display for JobMark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = if self.is_done { "done" } else { "begun and not done" };
        write!(f, "{}, {state}", utc(self.tick))?;
        if self.tick > self.server_time {
            write!(f, "; it is ahead of the server, whose time is {}", utc(self.server_time))?;
        }
        Ok(())
    }
}

/// The tick of a job, and how long it is remembered.
#[derive(Clone, Debug)]
pub struct OneTick {
    tick: SystemTime,
    kept: Duration,
    /// How far the tick may be ahead of the server.
    ahead: Duration,
}

/// A job that runs once, [for a tick](Locks::once) or [for an id](Locks::once_id), as the
/// [guide](crate::guide#a-job-that-runs-once-in-the-fleet) shows.
pub type Job = Lock<Scheduled<OneTick>>;

impl Job {
    /// Sets how far a tick may lie ahead of the server's time. Defaults to one day.
    ///
    /// The mark of a tick keeps all earlier ones from running. So one process whose clock is a year
    /// ahead would stop the job for everyone. Its tick is an
    /// [`InvalidConfig`](ErrorKind::InvalidConfig) in place of that. The error names both times.
    pub fn max_ahead(mut self, limit: Duration) -> Self {
        self.kind.when.ahead = limit;
        self
    }

    /// Begins the tick. Returns `None` if this tick or a later one was begun before, or if the
    /// [mutex](Locks::mutex) of the name is held, by a turn or by any other caller.
    ///
    /// A tick may be asked for late, and again after an error. A tick that comes while the turn of
    /// an earlier one still runs is missed, unless it is asked for again. With
    /// [`at_least_once`](Self::at_least_once) this waits while the mutex is held, so that the tick
    /// runs here if the turn in the way crashes.
    ///
    /// # Errors and cancel safety
    ///
    /// As [all locks](super#errors-and-cancel-safety), and [`Lost`](ErrorKind::Lost) if the lease
    /// was lost before the tick began. `InvalidConfig` also for a tick before 1970 or after 2286,
    /// and for one [too far ahead](Self::max_ahead) of the server. After `Backend`, or if the
    /// future is dropped, the tick may be begun, and counts as crashed then.
    pub async fn begin(&self) -> Result<Option<Turn>, Error> {
        let OneTick { tick, kept, ahead } = self.kind.when;
        let since = tick.duration_since(SystemTime::UNIX_EPOCH).ok();
        let Some(tick) = since.map(micros).filter(|tick| *tick < END_OF_TICKS) else {
            let why = format!("the tick of {:?} is not between 1970 and 2286", self.key);
            return Err(Error::new(ErrorKind::InvalidConfig, why));
        };
        let look = self.look().await?;
        let latest = look.now.saturating_add(micros(ahead));
        ensure(tick <= latest, || {
            let (name, tick, now) = (&self.key, utc(instant(tick)), utc(instant(look.now)));
            format!(
                "the tick of {name:?} is {tick}, which is more than {ahead:?} ahead of the \
                 server's time {now}; correct the clock, or set `max_ahead`"
            )
        })?;
        if look.mark.is_some_and(|mark| mark.tick > latest) {
            look.warn_of_future(&self.key);
        }
        match self.begin_due(&look, kept, self.kind.runs_again, |_| Some(tick), None).await? {
            DueTick::Begun(turn) => Ok(Some(turn)),
            DueTick::NotNow { .. } => Ok(None),
        }
    }
}

/// The turns of a job that runs at intervals, as the
/// [guide](crate::guide#a-job-that-runs-once-in-the-fleet) shows. Created by [`Locks::every`].
pub type Ticks = Lock<Scheduled<EachTick>>;

/// The schedule of [`Ticks`].
#[derive(Clone, Debug)]
pub struct EachTick {
    period: Duration,
    /// The tick of the last turn here, and when it began.
    last: Option<(u64, Instant)>,
}

impl Ticks {
    /// Waits for a tick that is to run here, and returns its turn.
    ///
    /// - **The ticks** are the multiples of the period since 1970, by the clock of the server. A
    ///   daily job runs at midnight UTC.
    /// - **Of the ticks that were missed**, the latest runs: after a turn that took longer than the
    ///   period, after an outage, and at the first start.
    /// - **If the backend does not answer**, this tries again after a pause, and says so in the log
    ///   once a minute.
    /// - **If the clock of the server was ahead**, by an hour say, and came back, the ticks up to
    ///   the last one that was begun have run, and none runs until the clock has passed that one.
    ///   The same holds for a [mark](Self::mark) that a [`once`](Locks::once) of this name has set
    ///   in the future. The log tells once a minute. [`clear_mark`](Self::clear_mark) ends the
    ///   wait within a minute, and ticks that have run may run again.
    /// - **A tick that crashes here** is returned again after a lease, if it runs [at least
    ///   once](Self::at_least_once). Other processes may run it at once.
    ///
    /// Only an error of this method ends a loop of turns. All others belong to one turn.
    ///
    /// # Errors
    ///
    /// The `ShutDown`, `InvalidKey` and `InvalidConfig` of [all
    /// locks](super#errors-and-cancel-safety). The period is from 10 ms to 30 days.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, a tick may be begun, and counts as crashed then.
    pub async fn next(&mut self) -> Result<Turn, Error> {
        let EachTick { period, last } = self.kind.when;
        ensure((SHORTEST_PERIOD..=KEPT).contains(&period), || {
            let name = &self.key;
            format!("the period of {name:?} is {period:?}; set it from 10 ms to 30 days")
        })?;
        let (period, lease) = (micros(period), self.lease);
        // Work that always crashes is not done without a pause.
        let rests = |tick| last.is_some_and(|(last, at)| last == tick && at.elapsed() < lease);
        let tick = |now| Some(now - now % period).filter(|tick| !rests(*tick));
        let due = async {
            let told = Rarely::default();
            loop {
                let begins = async || {
                    let look = self.look().await?;
                    let begun = self.begin_due(&look, KEPT, true, tick, Some(period)).await?;
                    Ok((look, begun))
                };
                let (look, begun) = through_outages("a job", begins).await?;
                let now = match begun {
                    DueTick::Begun(turn) => return Ok(turn),
                    DueTick::NotNow { now } => now,
                };
                let next = Duration::from_micros(period - now % period);
                let pause = if tick(now).is_some() { next } else { next.min(lease) };
                let is_ahead = look.mark.is_some_and(|mark| mark.tick > now);
                if is_ahead && told.first() {
                    look.warn_of_future(&self.key);
                }
                sleep(if is_ahead { pause.min(LOOK_AT_FUTURE) } else { pause }).await;
            }
        };
        let stopped = self.space.engine.janitor.stop.cancelled();
        let turn = run_until(stopped, due).await.unwrap_or_else(|| Err(Error::shut_down()))?;
        self.kind.when.last = Some((turn.tick.at, Instant::now()));
        Ok(turn)
    }
}

/// What the server said of a mark.
struct Look {
    mark: Option<Mark>,
    /// The time of the server, in microseconds since 1970.
    now: u64,
    /// When the answer came.
    at: Instant,
    /// An owner that has no lease.
    stranger: Owner,
}

impl Look {
    /// Returns the time of the server by now.
    fn now(&self) -> u64 {
        self.now.saturating_add(micros(self.at.elapsed()))
    }

    /// Tells the log that the mark is ahead of the server.
    fn warn_of_future(&self, name: &Key) {
        if let Some(mark) = self.mark {
            let (tick, now) = (utc(instant(mark.tick)), utc(instant(self.now)));
            warn!(
                "the last tick of the job {name:?} is {tick}, ahead of the server's time {now}; no \
                 earlier tick runs until its mark is removed"
            );
        }
    }
}

/// Whether the tick that is due was begun.
enum DueTick {
    Begun(Turn),
    /// No tick is to begin here, at this time of the server.
    NotNow {
        now: u64,
    },
}

impl<When> Lock<Scheduled<When>> {
    /// Reads the mark and the time of the server.
    async fn look(&self) -> Result<Look, Error> {
        self.upkeep()?;
        // The claim has no lease, so the question sets nothing.
        let claim = self.claim(Mode::Exclusive)?;
        let question = Tick { at: 0, step: TickStep::Begin, kept: KEPT };
        let seen = self.space.engine.janitor.mark(&claim, question).await?;
        Ok(Look { mark: seen.before, now: seen.now, at: Instant::now(), stranger: claim.owner })
    }

    /// Begins the tick that `tick` returns for the time of the server. Publishes the mark of a job
    /// with a `period`.
    async fn begin_due(
        &self,
        look: &Look,
        kept: Duration,
        waits: bool,
        tick: impl Fn(u64) -> Option<u64>,
        period: Option<u64>,
    ) -> Result<DueTick, Error> {
        let step = if self.kind.runs_again { TickStep::BeginAgain } else { TickStep::Begin };
        self.publish(period, look.mark.map(|mark| mark.tick));
        let tick = || Some(Tick { at: tick(look.now())?, step, kept });
        if !tick().is_some_and(|tick| tick.is_possible(look.mark, look.stranger)) {
            return Ok(DueTick::NotNow { now: look.now() });
        }
        let held = if waits {
            Some(self.acquire_in(Mode::Exclusive).await?)
        } else {
            self.try_acquire_in(Mode::Exclusive).await?
        };
        let (Some(held), Some(tick)) = (held, tick()) else {
            return Ok(DueTick::NotNow { now: look.now() });
        };
        let marked = self.space.engine.janitor.mark(&held.release.claim, tick).await?;
        if marked.is_set {
            self.publish(period, Some(tick.at));
            let turn = Turn { held: held.into(), tick, previous: marked.before };
            return Ok(DueTick::Begun(turn));
        }
        if tick.is_possible(marked.before, held.release.claim.owner) {
            return Err(held.lost_error());
        }
        Ok(DueTick::NotNow { now: look.now() })
    }
}

impl<When> Lock<Scheduled<When>> {
    fn publish(&self, period: Option<u64>, last_tick: Option<u64>) {
        if let Some(period) = period {
            let period = Duration::from_micros(period);
            self.space.engine.renewals.meter.job(&self.key.text, period, last_tick);
        }
    }
}

/// The right to do the work of a job for one tick: the held [mutex](Locks::mutex) of its name. Call
/// [`done`](Self::done) after the work: a turn that is dropped counts as a crash.
///
/// ```
/// # async fn clean_up() -> std::io::Result<()> { Ok(()) }
/// # async fn run(locks: bellwether::Locks) -> Result<(), bellwether::BoxError> {
/// use std::time::{Duration, SystemTime};
///
/// // `None` if a process has begun this tick before.
/// if let Some(turn) = locks.once("report", SystemTime::UNIX_EPOCH).begin().await? {
///     turn.run(clean_up()).await??;
///     turn.done().await?;
/// }
/// let turn = locks.every("clean-up", Duration::from_secs(60)).next().await?;
/// turn.retry(Duration::from_secs(5), 3, clean_up).await??;
/// turn.done().await?;
/// # Ok(()) }
/// ```
#[derive(Debug)]
#[must_use = "a turn that is dropped counts as a crash"]
pub struct Turn {
    held: MutexGuard,
    tick: Tick,
    previous: Option<Mark>,
}

impl Turn {
    /// Returns the tick, rounded down to a microsecond. It says nothing for an
    /// [id](Locks::once_id).
    pub fn tick(&self) -> SystemTime {
        instant(self.tick.at)
    }

    /// Returns the tick that was begun before this one, if one is remembered. It is an `Err` if its
    /// turn was not [done](Self::done): it has crashed.
    ///
    /// The ticks of the schedule between the two were missed. If crashed ticks [run
    /// again](Lock::at_least_once), it may be this tick.
    pub fn previous(&self) -> Option<Result<SystemTime, SystemTime>> {
        let Mark { tick, begun_by } = self.previous?;
        Some(if begun_by.is_none() { Ok(instant(tick)) } else { Err(instant(tick)) })
    }

    /// [Runs](crate::lease::Lease::run) work until it succeeds, up to `limit` times with a `delay`
    /// in between. Returns the last result of the work. All tries are in this turn: a crash ends
    /// them.
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
    /// # Errors and cancel safety
    ///
    /// As [all locks](super#errors-and-cancel-safety), and [`Lost`](ErrorKind::Lost) if the lease
    /// was no longer held: the turn has crashed. After `Backend`, or if the future is dropped, it
    /// may count as crashed. The lease is released all the same.
    pub async fn done(self) -> Result<(), Error> {
        let Self { held, tick, .. } = self;
        let done = Tick { step: TickStep::Done, ..tick };
        if held.is_lost() || !held.release.janitor.mark(&held.release.claim, done).await?.is_set {
            return Err(held.lost_error());
        }
        // The work is done, however the release ends. The log tells of an error.
        let _ = held.unlock().await;
        Ok(())
    }
}

impl Deref for Turn {
    type Target = MutexGuard;

    fn deref(&self) -> &MutexGuard {
        &self.held
    }
}
