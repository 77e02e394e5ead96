//! Jobs: work that one process of the fleet does once for each tick.

use std::{
    fmt,
    ops::Deref,
    time::{Duration, SystemTime},
};

use tokio::time::{Instant, sleep};
use tracing::warn;

use super::{
    builder::{Lock, ensure, through_outages},
    mutex::MutexGuard,
    space::LockSpace,
    traits::{Renewed, sealed::Sealed},
};
use crate::{
    backend::{Mark, Mode, Owner, Tick, TickStep},
    error::{Error, ErrorKind},
    key::Key,
    lease::run_until,
    observe::Rarely,
    time::{instant, micros, utc},
};

/// How long the server keeps the mark of a tick.
const MARK_LIFE: Duration = Duration::from_secs(30 * 86_400);
/// How far a tick may be ahead of the server, unless a job sets another time.
const MOST_AHEAD: Duration = Duration::from_secs(86_400);
/// How often [`Ticks`] read a mark that is ahead of the server, and write that to the log.
const FUTURE_MARK_INTERVAL: Duration = Duration::from_secs(60);
const SHORTEST_PERIOD: Duration = Duration::from_millis(10);
/// Backends compare ticks of at most 16 digits, which suffice until 2286.
const END_OF_TICKS: u64 = 10_u64.pow(16);

/// The kind of a [`Job`] or of [`Ticks`].
#[derive(Clone, Debug)]
pub struct Scheduled<When> {
    runs_again: bool,
    when: When,
}

impl<When> Sealed for Scheduled<When> {}

impl<When> Renewed for Scheduled<When> {}

/// A job that runs once, [for a tick](super::Locks::once) or [for an id](super::Locks::once_id), as
/// the [guide](crate::guide#a-job-that-runs-once-in-the-fleet) shows.
pub type Job = Lock<Scheduled<OneTick>>;

/// The schedule of a [`Job`]: one tick, or one id.
#[derive(Clone, Debug)]
pub struct OneTick {
    /// `None` for an id.
    tick: Option<SystemTime>,
    /// How long the server keeps the mark.
    mark_life: Duration,
    /// How far the tick may be ahead of the server, if the program has set that.
    max_ahead: Option<Duration>,
}

impl Job {
    pub(super) fn for_tick(space: &LockSpace, name: Key, tick: SystemTime) -> Self {
        Lock::scheduled(
            space,
            name,
            OneTick { tick: Some(tick), mark_life: MARK_LIFE, max_ahead: None },
        )
    }

    pub(super) fn for_id(space: &LockSpace, name: &Key, id: &Key, keep: Duration) -> Self {
        // The first colon ends the name.
        let name = name.as_str().replace('%', "%25").replace(':', "%3A");
        let when = OneTick { tick: None, mark_life: keep, max_ahead: None };
        Lock::scheduled(space, format!("{name}:{id}").into(), when)
    }

    /// Begins the tick. Returns `None` if this tick or a later tick was begun before. Also returns
    /// `None` if a turn or any other caller holds the [mutex](super::Locks::mutex) of the name.
    ///
    /// A process may ask for a tick late, and again after an error. A tick that comes while the
    /// turn of an earlier tick still runs is missed, unless a process asks for it again. With
    /// [`at_least_once`](Self::at_least_once), the call waits while the mutex is held. So the tick
    /// runs here if the turn in the way crashes.
    ///
    /// # Errors and cancel safety
    ///
    /// As [all locks](super#errors-and-cancel-safety), and [`Lost`](ErrorKind::Lost) if the lease
    /// was lost before the tick began. `InvalidConfig` also for a tick before 1970 or after 2286,
    /// and for a tick [too far ahead](Self::max_ahead) of the server. After `Backend`, or if the
    /// future is dropped, the tick may be begun, and then counts as crashed.
    pub async fn begin(&self) -> Result<Option<Turn>, Error> {
        let OneTick { tick, mark_life, max_ahead } = self.kind.when;
        ensure(tick.is_some() || max_ahead.is_none(), || {
            format!("`max_ahead` has no effect on the id {:?}; remove the setting", self.key)
        })?;
        let max_ahead = max_ahead.unwrap_or(MOST_AHEAD);
        let tick = self.micros_of(tick.unwrap_or(SystemTime::UNIX_EPOCH))?;
        let seen = self.read_mark().await?;
        let latest = seen.server_time.saturating_add(micros(max_ahead));
        ensure(tick <= latest, || {
            let name = &self.key;
            let tick = utc(instant(tick));
            let server_time = utc(instant(seen.server_time));
            format!(
                "the tick of {name:?} is {tick}, which is more than {max_ahead:?} ahead of the \
                 server's time {server_time}; correct the clock, or set `max_ahead`"
            )
        })?;
        if seen.mark.is_some_and(|mark| mark.tick > latest) {
            seen.warn_of_future_mark(&self.key);
        }
        let waits = self.kind.runs_again;
        match self.begin_due(&DueRule::Once(tick), &seen, mark_life, waits).await? {
            DueTick::Begun(turn) => Ok(Some(turn)),
            DueTick::NotNow { .. } => Ok(None),
        }
    }

    /// Sets how far a tick may lie ahead of the server's time. Defaults to one day.
    ///
    /// The mark of a tick keeps all earlier ticks from running. So one process whose clock is a
    /// year ahead would stop the job for every process. Instead, the tick of that process is an
    /// [`InvalidConfig`](ErrorKind::InvalidConfig) error, which names both times. So is this
    /// setting for the job of an [id](super::Locks::once_id), which has no time.
    pub fn max_ahead(mut self, limit: Duration) -> Self {
        self.kind.when.max_ahead = Some(limit);
        self
    }

    /// Returns a tick in microseconds since 1970.
    fn micros_of(&self, tick: SystemTime) -> Result<u64, Error> {
        let since = tick.duration_since(SystemTime::UNIX_EPOCH).map(micros);
        match since {
            Ok(since) if since < END_OF_TICKS => Ok(since),
            _ => {
                let why = format!("the tick of {:?} is not between 1970 and 2286", self.key);
                Err(Error::new(ErrorKind::InvalidConfig, why))
            }
        }
    }
}

/// The turns of a job that runs at intervals, as the
/// [guide](crate::guide#a-job-that-runs-once-in-the-fleet) shows.
/// [`Locks::every`](super::Locks::every) creates it.
pub type Ticks = Lock<Scheduled<EachTick>>;

/// The schedule of [`Ticks`].
#[derive(Clone, Debug)]
pub struct EachTick {
    period: Duration,
    last_turn: Option<LastTurn>,
}

/// The last turn that [`Ticks`] have returned.
#[derive(Clone, Copy, Debug)]
struct LastTurn {
    tick: u64,
    returned_at: Instant,
}

impl Ticks {
    pub(super) fn new(space: &LockSpace, name: Key, period: Duration) -> Self {
        Lock::scheduled(space, name, EachTick { period, last_turn: None })
    }

    /// Waits for a tick that is to run here, and returns its turn.
    ///
    /// - **The ticks** are the multiples of the period since 1970, by the clock of the server. A
    ///   daily job runs at midnight UTC.
    /// - **Of the ticks that were missed**, the latest runs: after a turn that took longer than the
    ///   period, after an outage, and at the first start.
    /// - **If the backend does not answer**, the call tries again after a pause, and writes that to
    ///   the log once a minute.
    /// - **If the clock of the server was ahead**, by an hour say, and came back, the ticks up to
    ///   the last tick that was begun have run. No tick runs until the clock has passed that tick.
    ///   The same holds for a [mark](Self::mark) that a [`once`](super::Locks::once) of this name
    ///   has set in the future. The log has a line once a minute. [`clear_mark`](Self::clear_mark)
    ///   ends the wait within a minute, and ticks that have run may run again.
    /// - **A tick that crashes here** is returned again after a lease, if it runs [at least
    ///   once](Self::at_least_once). Other processes may run it at once.
    ///
    /// Only an error of this method ends a loop of turns. Any other error belongs to one turn.
    ///
    /// # Errors
    ///
    /// The `ShutDown`, `InvalidKey` and `InvalidConfig` of [all
    /// locks](super#errors-and-cancel-safety). The period is from 10 ms to 30 days.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, a tick may be begun, and then counts as crashed.
    pub async fn next(&mut self) -> Result<Turn, Error> {
        let period = self.kind.when.period;
        ensure((SHORTEST_PERIOD..=MARK_LIFE).contains(&period), || {
            let name = &self.key;
            format!("the period of {name:?} is {period:?}; set it from 10 ms to 30 days")
        })?;
        let stopped = self.space.engine.janitor.stop.cancelled();
        let turn = match run_until(stopped, self.next_turn()).await {
            Some(turn) => turn?,
            None => return Err(Error::shut_down()),
        };
        self.kind.when.last_turn =
            Some(LastTurn { tick: turn.tick.at, returned_at: Instant::now() });
        Ok(turn)
    }

    async fn next_turn(&self) -> Result<Turn, Error> {
        let logged = Rarely::default();
        let EachTick { period, last_turn } = self.kind.when;
        let period = micros(period);
        let schedule = DueRule::Every { period, last_turn, rest: self.lease };
        loop {
            let attempt = async || {
                let seen = self.read_mark().await?;
                let due = self.begin_due(&schedule, &seen, MARK_LIFE, true).await?;
                Ok((seen, due))
            };
            let (seen, due) = through_outages("a job", attempt).await?;
            let server_time = match due {
                DueTick::Begun(turn) => return Ok(turn),
                DueTick::NotNow { server_time } => server_time,
            };
            let mut pause = Duration::from_micros(period - server_time % period);
            if schedule.tick_at(server_time).is_none() {
                // A tick that crashed here rests for a lease.
                pause = pause.min(self.lease);
            }
            if seen.mark.is_some_and(|mark| mark.tick > server_time) {
                if logged.first() {
                    seen.warn_of_future_mark(&self.key);
                }
                pause = pause.min(FUTURE_MARK_INTERVAL);
            }
            sleep(pause).await;
        }
    }
}

impl<When> Lock<Scheduled<When>> {
    fn scheduled(space: &LockSpace, name: Key, when: When) -> Self {
        let kind = Scheduled { runs_again: false, when };
        Lock::with_kind(space, name, kind).standing_by()
    }

    /// Makes a tick whose turn crashes run again, unless a later tick has begun. A turn crashes if
    /// it ends before it is [`done`](Turn::done): its process ends, its lease is lost, or it is
    /// dropped.
    ///
    /// Without this setting, the tick is skipped, so it runs at most once. The next turn
    /// [reports](Turn::previous) the crash, and the [guide] says how to learn of it sooner. The
    /// ticks within a [lease](Self::lease) of a crash are missed too. With this setting, these
    /// ticks wait. A process that was suspended past its lease may run a tick at the same time as
    /// another process, and only the [fence](super::MutexGuard::fence) protects.
    ///
    /// [guide]: crate::guide#a-job-that-runs-once-in-the-fleet
    pub fn at_least_once(mut self) -> Self {
        self.kind.runs_again = true;
        self
    }

    /// Returns the mark of the job: the last tick whose turn was begun. Returns `None` if the
    /// server remembers no tick.
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
    ///         job.clear_mark_if(mark).await?;
    ///     }
    /// }
    /// # Ok(()) }
    /// ```
    pub async fn mark(&self) -> Result<Option<JobMark>, Error> {
        let seen = self.read_mark().await?;
        let Some(stored) = seen.mark else { return Ok(None) };
        Ok(Some(JobMark {
            tick: instant(stored.tick),
            is_done: stored.begun_by.is_none(),
            server_time: instant(seen.server_time),
            stored,
        }))
    }

    /// Removes the mark of the job, or the foreign data in its place. Returns `true` if there was
    /// something to remove.
    ///
    /// This is for a mark that lies in the future, which keeps all earlier ticks from running.
    /// After the call, any tick may begin, also a tick that has run. A turn that is under way sets
    /// its mark again when the turn is [done](Turn::done). To remove only the mark that you have
    /// seen, call [`clear_mark_if`](Self::clear_mark_if).
    ///
    /// # Errors and cancel safety
    ///
    /// As [all locks](super#errors-and-cancel-safety). If an answer is lost, the call repeats its
    /// request. The repeated request may remove a mark that was set meanwhile. The call may return
    /// `false` although it has removed a mark.
    ///
    /// # Examples
    ///
    /// ```
    /// # async fn forget(locks: bellwether::Locks) -> Result<(), bellwether::Error> {
    /// use std::time::SystemTime;
    ///
    /// // From now on, every tick of the name may run again.
    /// locks.once("report", SystemTime::now()).clear_mark().await?;
    /// # Ok(()) }
    /// ```
    pub async fn clear_mark(&self) -> Result<bool, Error> {
        self.forget_mark(None).await
    }

    /// Removes the mark of the job, if the mark is still the mark that [`mark`](Self::mark) has
    /// returned. Returns `false` if there is another mark or none. So a tick that has begun since
    /// then keeps its mark, and does not run twice.
    ///
    /// # Errors and cancel safety
    ///
    /// As [all locks](super#errors-and-cancel-safety). If an answer is lost, the call repeats its
    /// request, and may return `false` although it has removed the mark.
    pub async fn clear_mark_if(&self, seen: JobMark) -> Result<bool, Error> {
        self.forget_mark(Some(seen.stored)).await
    }

    async fn forget_mark(&self, seen: Option<Mark>) -> Result<bool, Error> {
        let claim = self.claim(Mode::Exclusive)?;
        let forget = Tick { at: 0, step: TickStep::Forget(seen), kept: MARK_LIFE };
        let marked = self.space.engine.janitor.mark(&claim, forget).await?;
        Ok(marked.is_set)
    }

    /// Reads the mark and the time of the server.
    async fn read_mark(&self) -> Result<SeenMark, Error> {
        self.checked_upkeep()?;
        // The claim has no lease, so the request sets no mark.
        let claim = self.claim(Mode::Exclusive)?;
        let question = Tick { at: 0, step: TickStep::Begin, kept: MARK_LIFE };
        let marked = self.space.engine.janitor.mark(&claim, question).await?;
        Ok(SeenMark {
            mark: marked.before,
            server_time: marked.now,
            at: Instant::now(),
            stranger: claim.owner,
        })
    }

    /// Begins the tick of the schedule that is due. `waits` says whether to wait for the mutex.
    async fn begin_due(
        &self,
        schedule: &DueRule,
        seen: &SeenMark,
        mark_life: Duration,
        waits: bool,
    ) -> Result<DueTick, Error> {
        let step = if self.kind.runs_again { TickStep::BeginAgain } else { TickStep::Begin };
        self.publish(schedule, seen.mark.map(|mark| mark.tick));
        let Some(at) = schedule.tick_at(seen.server_time_now()) else { return Ok(seen.not_now()) };
        let tick = Tick { at, step, kept: mark_life };
        if !tick.is_possible(seen.mark, seen.stranger) {
            return Ok(seen.not_now());
        }
        let acquired = if waits {
            Some(self.acquire_in(Mode::Exclusive).await?)
        } else {
            self.try_acquire_in(Mode::Exclusive).await?
        };
        let Some(lease) = acquired else { return Ok(seen.not_now()) };
        // During the wait, a later tick may have become due.
        let Some(at) = schedule.tick_at(seen.server_time_now()) else { return Ok(seen.not_now()) };
        let tick = Tick { at, ..tick };
        let marked = self.space.engine.janitor.mark(&lease.release.claim, tick).await?;
        if marked.is_set {
            self.publish(schedule, Some(tick.at));
            let turn = Turn { guard: MutexGuard::new(lease), tick, previous: marked.before };
            return Ok(DueTick::Begun(turn));
        }
        if tick.is_possible(marked.before, lease.release.claim.owner) {
            return Err(lease.lost_error());
        }
        Ok(seen.not_now())
    }

    /// Publishes the period and the last tick of a job that runs at intervals.
    fn publish(&self, schedule: &DueRule, last_tick: Option<u64>) {
        if let DueRule::Every { period, .. } = schedule {
            let period = Duration::from_micros(*period);
            self.space.engine.renewals.meter.job(&self.key.text, period, last_tick);
        }
    }
}

/// The last tick of a job whose turn was begun, as the server remembers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct JobMark {
    /// The tick. The tick of an [id](super::Locks::once_id) has no meaning.
    pub tick: SystemTime,
    /// Whether the turn of the tick is [done](Turn::done). If not, the turn runs or has crashed.
    pub is_done: bool,
    /// The time of the server when it answered. A mark that is ahead of this time keeps all earlier
    /// ticks from running.
    pub server_time: SystemTime,
    /// The mark as the server keeps it.
    stored: Mark,
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

/// Which tick is due at a time of the server. Ticks and times are microseconds since 1970.
enum DueRule {
    /// This tick, at any time.
    Once(u64),
    /// The last multiple of the period. A tick whose turn has begun here rests, so that work that
    /// always crashes is not tried without a pause.
    Every { period: u64, last_turn: Option<LastTurn>, rest: Duration },
}

impl DueRule {
    /// Returns the tick that is due at this time of the server, if a tick is due.
    fn tick_at(&self, server_time: u64) -> Option<u64> {
        match self {
            Self::Once(tick) => Some(*tick),
            Self::Every { period, last_turn, rest } => {
                let tick = server_time - server_time % period;
                let rests = last_turn
                    .is_some_and(|last| last.tick == tick && last.returned_at.elapsed() < *rest);
                if rests { None } else { Some(tick) }
            }
        }
    }
}

/// A mark as the server has returned it.
struct SeenMark {
    mark: Option<Mark>,
    /// The time of the server, in microseconds since 1970.
    server_time: u64,
    /// When the answer came.
    at: Instant,
    /// An owner that has no lease.
    stranger: Owner,
}

impl SeenMark {
    /// Returns the present time of the server.
    fn server_time_now(&self) -> u64 {
        self.server_time.saturating_add(micros(self.at.elapsed()))
    }

    fn not_now(&self) -> DueTick {
        DueTick::NotNow { server_time: self.server_time_now() }
    }

    /// Writes to the log that the mark is ahead of the server.
    fn warn_of_future_mark(&self, name: &Key) {
        if let Some(mark) = self.mark {
            let tick = utc(instant(mark.tick));
            let server_time = utc(instant(self.server_time));
            warn!(
                "the last tick of the job {name:?} is {tick}, ahead of the server's time \
                 {server_time}; no earlier tick runs until its mark is removed"
            );
        }
    }
}

/// Whether the tick that is due was begun.
enum DueTick {
    Begun(Turn),
    /// No tick is to begin here, at this time of the server.
    NotNow {
        server_time: u64,
    },
}

/// The right to do the work of a job for one tick. A turn holds the [mutex](super::Locks::mutex) of
/// the job's name. Call [`done`](Self::done) after the work: a turn that is dropped counts as a
/// crash.
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
    guard: MutexGuard,
    tick: Tick,
    previous: Option<Mark>,
}

impl Turn {
    /// Returns the tick, rounded down to a microsecond. The tick of an
    /// [id](super::Locks::once_id) has no meaning.
    pub fn tick(&self) -> SystemTime {
        instant(self.tick.at)
    }

    /// Returns the tick that was begun before this tick, and how its turn ended. Returns `None` if
    /// the server remembers no tick.
    ///
    /// The ticks of the schedule between the two ticks were missed. If crashed ticks [run
    /// again](Lock::at_least_once), the previous tick may be this tick.
    pub fn previous(&self) -> Option<PreviousTick> {
        let Mark { tick, begun_by } = self.previous?;
        let tick = instant(tick);
        Some(if begun_by.is_none() {
            PreviousTick::Done(tick)
        } else {
            PreviousTick::Crashed(tick)
        })
    }

    /// [Runs](crate::lease::Lease::run) work until it succeeds, up to `limit` times with a `delay`
    /// in between. Returns the last result of the work. All tries are in this turn, so a crash ends
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
    /// was no longer held. The turn has crashed then. After `Backend`, or if the future is dropped,
    /// the turn may count as crashed. The lease is released in all cases.
    pub async fn done(self) -> Result<(), Error> {
        let Self { guard, tick, .. } = self;
        if guard.is_lost() {
            return Err(guard.lost_error());
        }
        let done = Tick { step: TickStep::Done, ..tick };
        let marked = guard.release.janitor.mark(&guard.release.claim, done).await?;
        if !marked.is_set {
            return Err(guard.lost_error());
        }
        // The work is done, however the release ends. The log has its error.
        let _ = guard.unlock().await;
        Ok(())
    }
}

/// The tick that was begun before a turn, and how its own turn ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PreviousTick {
    /// The turn of this tick was [done](Turn::done).
    Done(SystemTime),
    /// The turn of this tick has crashed.
    Crashed(SystemTime),
}

impl Deref for Turn {
    type Target = MutexGuard;

    fn deref(&self) -> &MutexGuard {
        &self.guard
    }
}
