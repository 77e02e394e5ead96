//! A worker process. Its callers load, read, insert, invalidate and lock until the process gets a
//! line on its standard input.

use std::{
    fmt,
    future::{Future, poll_fn},
    io::BufRead,
    panic,
    pin::pin,
    sync::{
        Arc, Once,
        atomic::{AtomicU64, Ordering},
    },
    task::Poll,
    time::{Duration, SystemTime},
};

use bellwether::{
    BoxError, Cache, Error, ErrorKind, Locks, RedisBackend,
    backend::Store,
    cache::{AfterFailure, Batch, EarlyRefresh, Lead, Loaded, LocalTier, Source as From},
    lock::{Term, Turn, Upgrade},
};
use fastrand::Rng;
use futures_util::future::join_all;
use serde::{Deserialize, Serialize};
use testkit::handover_life;
use testkit::primitives::Guard;
use tokio::{
    task::JoinSet,
    time::{Instant, sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use super::{
    history::{
        Act, Answer, COUNT, Event, JOBS, Kind, LatchStep, LoadStep, LockStep, PERMITS, Process,
        Source, Time, TurnStep, Value, Windows, now, runs_again,
    },
    recorder::{Log, Recorder},
};

/// The environment variable that makes a process a worker. The value is a [`Setup`].
pub const VARIABLE: &str = "BELLWETHER_HISTORIES_WORKER";

/// Short enough for many in a round.
const BACK_OFF: AfterFailure =
    AfterFailure::BackOff { first: Duration::from_millis(20), longest: Duration::from_millis(200) };

/// The text of every planned panic and every planned failure.
const PLANNED: &str = "as planned";

/// The shortest delay that is recorded as a pause of the process.
const PAUSE: Duration = Duration::from_millis(20);

/// The configuration of a worker.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Setup {
    pub url: String,
    pub process: Process,
    pub seed: u64,
    pub load: Workload,
}

/// The calls of all workers.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Workload {
    pub keys: usize,
    pub locks: usize,
    pub callers: usize,
    pub lockers: usize,
    /// The number of inserts and invalidations among a thousand calls.
    pub writes: u32,
    pub lease_ms: u64,
    pub ttl_ms: u64,
    /// The windows behind the time to live.
    pub stale_ms: u64,
    pub error_ms: u64,
    /// Values are refreshed early.
    pub early: bool,
    /// A load without callers is cancelled.
    pub cancel: bool,
    /// A key backs off after each failed load, also without a stale value.
    pub backs_off: bool,
    /// Values have tags.
    pub tags: bool,
}

/// How far a copy of a local tier may be behind in any worker.
pub const STALENESS: Duration = Duration::from_millis(200);

/// A tag of all values.
const OF_ALL: &str = "all";

/// Returns the tag of the values of a key.
fn tag_of(key: &str) -> String {
    format!("of {key}")
}

impl Setup {
    /// Returns whether the cache has a local tier. A cache without a tier reads the store each
    /// time.
    fn has_tier(&self) -> bool {
        !self.process.is_multiple_of(3)
    }

    /// Returns how far the copies of this process may be behind. A process that starts in place of
    /// another process may have another bound, as after a deploy.
    fn staleness(&self) -> Duration {
        if self.process % 4 < 2 { STALENESS / 2 } else { STALENESS }
    }
}

impl Workload {
    /// Returns the windows of all values.
    pub fn windows(&self, slack: Time) -> Windows {
        let [fresh, stale, error] =
            [self.ttl_ms, self.stale_ms, self.error_ms].map(|millis| millis * 1000);
        let refreshes = stale > 0 || self.early;
        Windows { fresh, stale, error, slack, refreshes, tags: self.tags }
    }
}

/// Works until the standard input ends, if this process is a worker.
pub fn work() {
    let Ok(setup) = std::env::var(VARIABLE) else { return };
    let setup: Setup = serde_json::from_str(&setup).unwrap();
    quiet_planned_panics();
    let stop = CancellationToken::new();
    let told = stop.clone();
    std::thread::spawn(move || {
        for _ in std::io::stdin().lock().lines().map_while(Result::ok) {
            told.cancel();
        }
        std::process::exit(0);
    });
    // On one thread all waits are late together. On two threads more can happen at once.
    let mut runtime = match setup.process % 2 {
        0 => tokio::runtime::Builder::new_current_thread(),
        _ => tokio::runtime::Builder::new_multi_thread(),
    };
    runtime.worker_threads(2).enable_all().build().unwrap().block_on(async move {
        // The task is spawned, because code inside `block_on` runs on no thread of the runtime.
        tokio::spawn(async move {
            Worker::new(setup).run(stop).await;
        })
        .await
        .unwrap();
    });
}

/// Keeps planned panics out of the output. Any other panic ends the worker, and so the test.
pub fn quiet_planned_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let is_worker = std::env::var(VARIABLE).is_ok();
        let usual = panic::take_hook();
        panic::set_hook(Box::new(move |panic| {
            if panic.payload().downcast_ref() != Some(&PLANNED) {
                usual(panic);
                if is_worker {
                    std::process::abort();
                }
            }
        }));
    });
}

#[derive(Clone)]
pub struct Worker {
    setup: Arc<Setup>,
    log: Log,
    cache: Cache<Value>,
    locks: Locks,
    numbers: Arc<AtomicU64>,
    /// The number of loads that run.
    running: Arc<AtomicU64>,
}

impl Worker {
    fn new(setup: Setup) -> Self {
        let backend = RedisBackend::open(&setup.url).unwrap();
        let log = Log::Output;
        Self::over(Recorder::over(backend, log.clone()), log, setup)
    }

    /// Creates a worker over a backend that records for the same log.
    pub fn over<B: Store + Clone>(backend: B, log: Log, setup: Setup) -> Self {
        let early = if setup.load.early { EarlyRefresh::LastPart(0.2) } else { EarlyRefresh::Off };
        let builder = Cache::builder(backend.clone(), "histories");
        let builder =
            if setup.load.backs_off { builder.after_failure(|_| Some(BACK_OFF)) } else { builder };
        let builder = if setup.has_tier() {
            builder.local(LocalTier::default().max_staleness(setup.staleness()))
        } else {
            builder
        };
        let builder = if setup.load.tags { builder.tags() } else { builder };
        let builder = if setup.load.cancel { builder.cancel_abandoned() } else { builder };
        Self {
            log,
            cache: builder
                .lease(Duration::from_millis(setup.load.lease_ms))
                .ttl(Duration::from_millis(setup.load.ttl_ms))
                .stale_while_revalidate(Duration::from_millis(setup.load.stale_ms))
                .stale_if_error(Duration::from_millis(setup.load.error_ms))
                .early_refresh(early)
                .wait_limit(Duration::from_secs(8))
                // Also over a backend in memory.
                .outage_memory(1 << 20)
                .build()
                .unwrap(),
            locks: Locks::new(backend, "bellwether"),
            numbers: Arc::default(),
            running: Arc::default(),
            setup: Arc::new(setup),
        }
    }

    /// Plays one caller of a schedule.
    pub async fn play(self, prefix: String, mut rng: Rng) {
        for _ in 0..rng.u8(4..12) {
            self.call(&prefix, &mut rng).await;
            let pause = [5, 40, 200][rng.usize(0..3)];
            sleep(Duration::from_millis(rng.u64(0..pause))).await;
        }
    }

    async fn run(self, stop: CancellationToken) {
        self.log.tell(Event::Ready);
        let pulse = tokio::spawn(pulse(self.log.clone()));
        let load = &self.setup.load;
        let mut callers = JoinSet::new();
        for number in 0..load.callers + load.lockers {
            let mut rng = Rng::with_seed(self.setup.seed.wrapping_mul(31) + number as u64);
            let worker = self.clone();
            let stop = stop.clone();
            callers.spawn(async move {
                while !stop.is_cancelled() {
                    if number < worker.setup.load.callers {
                        worker.call("k", &mut rng).await
                    } else {
                        worker.lock(&mut rng).await
                    }
                    sleep(Duration::from_micros(rng.u64(0..8_000))).await;
                }
            });
        }
        while let Some(caller) = callers.join_next().await {
            caller.unwrap();
        }
        self.settled().await;
        pulse.abort();
        self.log.tell(Event::Done { stats: format!("{:?}", self.cache.stats()) });
        std::future::pending().await
    }

    /// Waits until loads without callers have ended, all leases are released, and what was deferred
    /// is repeated.
    pub async fn settled(&self) {
        while self.cache.stats().flights > 0
            || self.cache.stats().deferred_writes > 0
            || self.running.load(Ordering::Relaxed) > 0
        {
            sleep(Duration::from_millis(1)).await;
        }
    }

    fn number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::Relaxed)
    }

    fn value(&self) -> Value {
        Value { by: self.setup.process, number: self.number(), began: self.log.now() }
    }

    /// Makes one call to the cache. The key begins with this prefix.
    pub async fn call(&self, prefix: &str, rng: &mut Rng) {
        let key = format!("{prefix}{}", rng.usize(0..self.setup.load.keys));
        let dice = rng.u32(0..1000);
        let writes = self.setup.load.writes;
        if dice < writes {
            self.write(key, rng).await;
        } else if dice < writes + 100 {
            let asked = self.log.now();
            let answer = match self.cache.get(key.as_str()).await {
                Ok(None) => Answer::Nothing,
                Ok(Some(value)) => {
                    // A `get` does not say whether the value was a copy.
                    let source = if self.setup.has_tier() { Source::Local } else { Source::Stored };
                    Answer::Value { value, source }
                }
                Err(error) => unavailable(error),
            };
            self.log.tell(Event::Read { key, asked, patience: None, answer });
        } else if dice < writes + 200 {
            self.load_many(prefix, rng).await;
        } else {
            let loader = self.loader(&key, Plan::new(rng));
            let patience = (rng.u8(0..4) == 0).then(|| rng.u64(1..20) * 1000);
            let asked = self.log.now();
            let request = self.cache.request(key.as_str());
            let request = match patience {
                Some(patience) => request.serve_stale_after(Duration::from_micros(patience)),
                None => request,
            };
            let request = request.load(loader);
            // Some callers go away at any point of the call.
            let loaded = match rng.u8(0..10) {
                0 => cut_off(request, rng).await,
                _ => Some(request.await),
            };
            if let Some(loaded) = loaded {
                self.log.tell(Event::Read { key, asked, patience, answer: answer(loaded) });
            }
        }
    }

    /// Loads some keys in one call.
    async fn load_many(&self, prefix: &str, rng: &mut Rng) {
        let mut ids: Vec<usize> = (0..self.setup.load.keys).filter(|_| rng.bool()).collect();
        rng.shuffle(&mut ids);
        let plans: Arc<[Plan]> = (0..self.setup.load.keys).map(|_| Plan::new(rng)).collect();
        let key = {
            let prefix = prefix.to_owned();
            move |id: &usize| format!("{prefix}{id}")
        };
        let worker = self.clone();
        let key_of = key.clone();
        let loader = move |batch: Batch<usize, Value>| {
            let worker = worker.clone();
            let key_of = key_of.clone();
            let plans = plans.clone();
            async move {
                // The loads end together, because the failure of a key is known when all are made.
                let takes = batch.ids().iter().map(|id| plans[*id].takes).max().unwrap_or_default();
                let loads = batch.leads().map(|(id, lead)| {
                    let plan = Plan { takes, ..plans[*id] };
                    // The panic of one load would end the loads of all keys.
                    let end = if let End::Panics = plan.end { End::Fails } else { plan.end };
                    worker.loader(&key_of(id), Plan { end, ..plan })(lead.clone())
                });
                let made = join_all(loads).await;
                let mut values = Vec::new();
                for (id, made) in batch.ids().iter().zip(made) {
                    match made {
                        Ok(value) => values.push((*id, value)),
                        Err(error) => batch.fail(*id, error),
                    }
                }
                Ok::<_, BoxError>(values)
            }
        };
        let asked = self.log.now();
        let call = self.cache.get_or_load_many(ids.clone(), &key, loader);
        let loaded = match rng.u8(0..10) {
            0 => cut_off(call, rng).await,
            1 => Some(left_alone(call, rng).await),
            _ => Some(call.await),
        };
        for (id, loaded) in ids.iter().zip(loaded.into_iter().flat_map(Result::unwrap)) {
            let answer = answer(loaded);
            self.log.tell(Event::Read { key: key(id), asked, patience: None, answer });
        }
    }

    fn asked(&self, write: u64, act: Act, key: &str, value: Option<Value>) {
        self.asked_of(write, act, key, None, value);
    }

    fn asked_of(&self, write: u64, act: Act, key: &str, tag: Option<String>, value: Option<Value>) {
        self.log.tell(Event::WriteAsked { write, act, key: key.to_owned(), tag, value });
    }

    fn write_answered(&self, write: u64, error: Option<&Error>) {
        let deferred = error.is_some_and(Error::is_deferred);
        let error = error.map(|error| format!("{:?}: {error:#}", error.kind()));
        self.log.tell(Event::WriteAnswered { write, error, deferred });
    }

    fn loads(&self, number: u64, step: LoadStep) {
        self.log.tell(Event::Load { number, step });
    }

    fn latches(&self, name: &str, step: LatchStep) {
        self.log.tell(Event::Latch { name: name.to_owned(), step });
    }

    async fn write(&self, key: String, rng: &mut Rng) {
        let write = self.number();
        let named = key.clone();
        let written = match rng.u8(0..10) {
            7.. if self.setup.load.tags => return self.end_tag(key, rng).await,
            0..2 => {
                let value = self.value();
                self.asked(write, Act::Insert, &named, Some(value));
                let request = self.cache.request(&key);
                let request = if self.setup.load.tags {
                    request.tag(tag_of(&key)).tag(OF_ALL)
                } else {
                    request
                };
                request.insert(&value).await.map(drop)
            }
            2..4 => {
                self.asked(write, Act::Invalidate, &named, None);
                self.cache.invalidate(key).await.map(drop)
            }
            4 => {
                self.asked(write, Act::Expire, &named, None);
                self.cache.expire(key).await.map(drop)
            }
            5 => {
                self.asked(write, Act::Touch, &named, None);
                self.cache.request(key).touch().await.map(drop)
            }
            _ => {
                let loader = self.loader(&key, Plan::new(rng));
                self.asked(write, Act::Refresh, &named, None);
                match self.cache.request(key).refresh(loader).await {
                    Ok(loaded) => {
                        self.log.tell(Event::Refreshed { write, value: loaded.value });
                        Ok(())
                    }
                    // The act was done, and the load after the act failed.
                    Err(error) if error.kind() != ErrorKind::Backend => Ok(()),
                    Err(error) => Err(error),
                }
            }
        };
        self.write_answered(write, written.err().as_ref());
    }

    /// Ends the tag of a key, or of all. The history has a write for each key.
    async fn end_tag(&self, key: String, rng: &mut Rng) {
        let tag = if rng.bool() { tag_of(&key) } else { OF_ALL.to_owned() };
        let expires = rng.u8(0..3) == 0;
        let prefix = key.trim_end_matches(|end: char| end.is_ascii_digit());
        let keys = if tag == OF_ALL {
            (0..self.setup.load.keys).map(|key| format!("{prefix}{key}")).collect()
        } else {
            vec![key.clone()]
        };
        let mut writes = Vec::new();
        for key in keys {
            let write = self.number();
            writes.push(write);
            let act = if expires { Act::Expire } else { Act::Invalidate };
            self.asked_of(write, act, &key, Some(tag.clone()), None);
        }
        let ended = if expires {
            self.cache.expire_tag(tag).await
        } else {
            self.cache.invalidate_tag(tag).await
        };
        let error = ended.err();
        for write in writes {
            self.write_answered(write, error.as_ref());
        }
    }

    fn loader(
        &self,
        key: &str,
        plan: Plan,
    ) -> impl FnOnce(
        Lead<Value>,
    ) -> futures_util::future::BoxFuture<'static, Result<Value, BoxError>>
    + Send
    + 'static {
        let worker = self.clone();
        let key = key.to_owned();
        move |lead| {
            Box::pin(async move {
                let value = worker.value();
                let tag = worker.setup.load.tags.then(|| tag_of(&key));
                tag.iter().for_each(|_| lead.tag(OF_ALL));
                worker.log.tell(Event::LoadBegan { key, value, fence: lead.fence() });
                // Dropped when the load has returned, panicked, or was cancelled.
                let _ended = Ended::after(&worker, value.number);
                let mut working = Box::pin(sleep(plan.takes));
                tokio::select! {
                    () = &mut working => {}
                    () = lead.lost() => {
                        worker.loads(value.number, LoadStep::Lost);
                        // A load that guards nothing else may continue.
                        working.await;
                    }
                }
                if let Some(tag) = tag {
                    lead.tag(tag);
                }
                match plan.end {
                    End::Value => {}
                    End::Unstored => {
                        lead.do_not_store();
                        worker.loads(value.number, LoadStep::Unstored);
                    }
                    End::Unchanged => {
                        if let Some(stale) = lead.stale() {
                            worker.loads(value.number, LoadStep::Unchanged(stale.value));
                            return Ok(lead.unchanged(stale));
                        }
                    }
                    End::Fails => {
                        worker.loads(value.number, LoadStep::Failed);
                        return Err(PLANNED.into());
                    }
                    End::Panics => {
                        worker.loads(value.number, LoadStep::Failed);
                        panic::panic_any(PLANNED)
                    }
                }
                Ok(value)
            })
        }
    }

    /// Acquires a lock, keeps the lock for a while, and releases the lock.
    pub async fn lock(&self, rng: &mut Rng) {
        match rng.u8(0..10) {
            0 => return self.latch(rng).await,
            1 => return self.lead(self.mutex_name(rng), rng).await,
            2 => return self.job(rng).await,
            _ => {}
        }
        let (name, mut how) = match rng.u8(0..9) {
            0..2 => (self.mutex_name(rng), How::Mutex),
            2 => (self.mutex_name(rng), How::Fair),
            3 => (String::new(), How::Several),
            4 => ("w0".to_owned(), How::Writer),
            5..7 => ("w0".to_owned(), How::Reader),
            _ => ("s0".to_owned(), How::Permits(rng.u32(1..=PERMITS))),
        };
        let mut asked = self.log.now();
        let taking = match rng.u8(0..4) {
            0 => self.take(&name, how, false).await,
            1 => cut_off(self.take(&name, how, true), rng).await.flatten(),
            2 if rng.bool() => left_alone(self.take(&name, how, true), rng).await,
            _ => self.take(&name, how, true).await,
        };
        let Some(mut guard) = taking else { return };
        loop {
            let names = match &guard {
                Guard::Several(all) => all
                    .iter()
                    .map(|(name, held)| (name.as_str().to_owned(), held.fence()))
                    .collect(),
                one => vec![(name.clone(), one.fence().unwrap_or(0))],
            };
            let mut holds = Vec::new();
            for (name, fence) in names {
                let hold = self.number();
                self.log.tell(Event::Locked { hold, name, kind: how.kind(), fence, asked });
                holds.push(hold);
            }
            let takes = Plan::new(rng).takes;
            tokio::select! {
                () = sleep(takes) => {}
                () = guard.lost() => lock_steps(&self.log, &holds, LockStep::Lost),
            }
            lock_steps(&self.log, &holds, LockStep::Unlocking);
            asked = self.log.now();
            guard = match (rng.u8(0..8), guard) {
                (0, guard) => return drop(guard),
                (1..4, Guard::Writer(writer)) => match writer.downgrade().await {
                    Ok(reader) => Guard::Reader(reader),
                    Err(_) => return,
                },
                (1..4, Guard::Reader(reader)) => match reader.try_upgrade().await {
                    Ok(Upgrade::Done(writer)) => Guard::Writer(writer),
                    Ok(Upgrade::Busy(reader)) => Guard::Reader(reader),
                    Err(_) => return,
                },
                (_, guard) => {
                    let held = match guard.give_back().await {
                        Ok(()) => Some(true),
                        // Of several leases, the error does not say which one was lost.
                        Err(error) if error.kind() == ErrorKind::Lost && holds.len() == 1 => {
                            Some(false)
                        }
                        Err(_) => None,
                    };
                    return lock_steps(&self.log, &holds, LockStep::Unlocked(held));
                }
            };
            how = if let Guard::Writer(_) = guard { How::Writer } else { How::Reader };
        }
    }

    fn mutex_name(&self, rng: &mut Rng) -> String {
        format!("m{}", rng.usize(0..self.setup.load.locks))
    }

    /// Stands as a candidate, and leads for a while. Each term is a hold.
    async fn lead(&self, name: String, rng: &mut Rng) {
        let candidate = self.locks.leader(name.as_str()).lease(self.lease(&name));
        let asked = self.log.now();
        let takes = Plan::new(rng).takes;
        let work = |term: Term| {
            let hold = self.number();
            let name = name.clone();
            let kind = Kind::Leader;
            self.log.tell(Event::Locked { hold, name, kind, fence: term.fence(), asked });
            // Dropped at the end of the work, and where a loss drops the work.
            let leads = Leads(self.log.clone(), hold);
            async move {
                sleep(takes).await;
                drop(leads);
            }
        };
        match rng.u8(0..3) {
            0 => drop(cut_off(candidate.run(work), rng).await),
            _ => drop(candidate.run(work).await),
        }
    }

    /// Waits for a turn of a job, and works for a while. Each turn is a hold. Now and then a turn
    /// ends without a word, as in a crash.
    async fn job(&self, rng: &mut Rng) {
        let job = JOBS[rng.usize(0..JOBS.len())];
        let asked = self.log.now();
        let Some(turn) = self.turn(job, rng).await else { return };
        let hold = self.number();
        let fence = turn.fence();
        let tick = turn.tick().duration_since(SystemTime::UNIX_EPOCH).unwrap();
        let tick = u64::try_from(tick.as_micros()).unwrap();
        let step = |step| Event::Turn { job: job.to_owned(), tick, fence, step };
        self.log.tell(step(TurnStep::Began));
        let name = job.to_owned();
        self.log.tell(Event::Locked { hold, name, kind: Kind::Mutex, fence, asked });
        tokio::select! {
            () = sleep(Plan::new(rng).takes) => {}
            () = turn.lost() => lock_step(&self.log, hold, LockStep::Lost),
        }
        lock_step(&self.log, hold, LockStep::Unlocking);
        if rng.u8(0..6) == 0 {
            return drop(turn);
        }
        let held = match turn.done().await {
            Ok(()) => {
                self.log.tell(step(TurnStep::Done));
                Some(true)
            }
            Err(error) if error.kind() == ErrorKind::Lost => Some(false),
            Err(_) => None,
        };
        lock_step(&self.log, hold, LockStep::Unlocked(held));
    }

    /// Asks for a turn of a job. Some callers go away at any point of the call, and none waits for
    /// more than two seconds.
    async fn turn(&self, job: &str, rng: &mut Rng) -> Option<Turn> {
        const PERIOD: Duration = Duration::from_millis(100);
        let lease = self.lease(job);
        if matches!(job, "j2" | "j3") {
            let ticks = self.locks.every(job, PERIOD).lease(lease);
            let mut ticks = if runs_again(job) { ticks.at_least_once() } else { ticks };
            return begun(patiently(ticks.next(), rng).await?);
        }
        // Some processes are late.
        let period = u64::try_from(PERIOD.as_micros()).unwrap();
        let tick = (self.log.now() / period).saturating_sub(rng.u64(0..3)) * period;
        let tick = SystemTime::UNIX_EPOCH + Duration::from_micros(tick);
        let once = self.locks.once(job, tick).lease(lease);
        let once = if runs_again(job) { once.at_least_once() } else { once };
        begun(patiently(once.begin(), rng).await?).flatten()
    }

    /// Sets the latch of the hour, counts the latch down, and waits for zero. All workers share one
    /// latch at a time, so that the latch can reach zero.
    async fn latch(&self, rng: &mut Rng) {
        const HOUR: u64 = 1_000_000;
        let name = format!("l{}", self.log.now() / HOUR);
        let latch = self.locks.latch(name.as_str()).wait_limit(Duration::from_secs(2));
        if rng.bool()
            && let Ok(did) = latch.set(COUNT).await
        {
            self.latches(&name, LatchStep::Set { did });
        }
        for _ in 0..rng.u8(0..3) {
            self.latches(&name, LatchStep::Begins);
            let asked = self.log.now();
            let stepping = latch.count_down();
            let stepped = match rng.u8(0..4) {
                0 => cut_off(stepping, rng).await,
                _ => Some(stepping.await),
            };
            match stepped {
                Some(Ok(left)) => self.latches(&name, LatchStep::Left(left)),
                Some(Err(error)) => self.missing(&name, asked, &error),
                None => {}
            }
        }
        let asked = self.log.now();
        match cut_off(latch.wait(), rng).await {
            Some(Ok(())) => self.latches(&name, LatchStep::Done),
            Some(Err(error)) => self.missing(&name, asked, &error),
            None => {}
        }
    }

    fn missing(&self, name: &str, asked: Time, error: &Error) {
        if error.kind() == ErrorKind::NotSet {
            self.latches(name, LatchStep::Missing { asked });
        }
    }

    /// Returns the lease of a name. In each round the lease of some names is long enough for a
    /// handover.
    fn lease(&self, name: &str) -> Duration {
        let long = match name {
            "m0" | "s0" => 0,
            "w0" => u64::from(self.setup.process) % 2,
            _ => 1,
        };
        if self.setup.seed % 2 == long {
            handover_life()
        } else {
            Duration::from_millis(self.setup.load.lease_ms)
        }
    }

    async fn take(&self, name: &str, how: How, waits: bool) -> Option<Guard> {
        let lease = self.lease(name);
        let locks = &self.locks;
        let wait = Duration::from_secs(2);
        let mutex = match how {
            How::Fair => locks.mutex(name).fair(),
            _ => locks.mutex(name),
        };
        let mutex = mutex.lease(lease).wait_limit(wait);
        let all = (0..self.setup.load.locks).map(|n| format!("m{n}"));
        let several = locks.several(all).lease(lease).wait_limit(wait);
        let rw_lock = locks.rw_lock(name).lease(lease).wait_limit(wait);
        let semaphore = locks.semaphore(name, PERMITS).lease(lease).wait_limit(wait);
        Some(match (how, waits) {
            (How::Mutex | How::Fair, true) => Guard::Mutex(mutex.lock().await.ok()?),
            (How::Mutex | How::Fair, false) => Guard::Mutex(mutex.try_lock().await.ok()??),
            (How::Several, true) => Guard::Several(several.lock().await.ok()?),
            (How::Several, false) => Guard::Several(several.try_lock().await.ok()??),
            (How::Reader, true) => Guard::Reader(rw_lock.read().await.ok()?),
            (How::Reader, false) => Guard::Reader(rw_lock.try_read().await.ok()??),
            (How::Writer, true) => Guard::Writer(rw_lock.write().await.ok()?),
            (How::Writer, false) => Guard::Writer(rw_lock.try_write().await.ok()??),
            (How::Permits(n), true) => Guard::Permit(semaphore.acquire_many(n).await.ok()?),
            (How::Permits(n), false) => Guard::Permit(semaphore.try_acquire_many(n).await.ok()??),
        })
    }
}

/// The kind of an acquisition. The first three acquire the same locks.
#[derive(Clone, Copy)]
enum How {
    Mutex,
    Fair,
    Several,
    Writer,
    Reader,
    Permits(u32),
}

impl How {
    fn kind(self) -> Kind {
        match self {
            Self::Mutex | Self::Fair | Self::Several => Kind::Mutex,
            Self::Writer => Kind::Writer,
            Self::Reader => Kind::Reader,
            Self::Permits(count) => Kind::Permits(count),
        }
    }
}

/// The behaviour of a load.
#[derive(Clone, Copy)]
struct Plan {
    takes: Duration,
    end: End,
}

#[derive(Clone, Copy)]
enum End {
    Value,
    Unstored,
    Unchanged,
    Fails,
    Panics,
}

impl Plan {
    fn new(rng: &mut Rng) -> Self {
        let takes = match rng.u8(0..100) {
            0..60 => rng.u64(0..5_000),
            60..85 => rng.u64(5_000..50_000),
            85..97 => rng.u64(50_000..300_000),
            // Longer than a lease.
            _ => rng.u64(300_000..1_200_000),
        };
        let end = match rng.u8(0..100) {
            0..75 => End::Value,
            75..90 => End::Unchanged,
            90..94 => End::Unstored,
            94..98 => End::Fails,
            _ => End::Panics,
        };
        Self { takes: Duration::from_micros(takes), end }
    }
}

struct Ended(Log, u64, Arc<AtomicU64>);

impl Ended {
    fn after(worker: &Worker, number: u64) -> Self {
        worker.running.fetch_add(1, Ordering::Relaxed);
        Self(worker.log.clone(), number, worker.running.clone())
    }
}

impl Drop for Ended {
    fn drop(&mut self) {
        self.0.tell(Event::Load { number: self.1, step: LoadStep::Ended });
        self.2.fetch_sub(1, Ordering::Relaxed);
    }
}

fn lock_step(log: &Log, hold: u64, step: LockStep) {
    log.tell(Event::Lock { hold, step });
}

/// Records a step of several locks that are held together.
fn lock_steps(log: &Log, holds: &[u64], step: LockStep) {
    for hold in holds {
        lock_step(log, *hold, step);
    }
}

/// Lives while a process believes that the process leads.
struct Leads(Log, u64);

impl Drop for Leads {
    fn drop(&mut self) {
        lock_step(&self.0, self.1, LockStep::Unlocking);
    }
}

/// Drops a future after a random time, or after a random number of polls, if the future has not
/// ended by then.
async fn cut_off<F: Future>(future: F, rng: &mut Rng) -> Option<F::Output> {
    if rng.bool() {
        return polled_at_most(rng.u32(1..12), future).await;
    }
    // Up to a tenth of a second, with short times as likely as long ones.
    let limit = Duration::from_micros(1 << rng.u32(0..17));
    timeout(limit, future).await.ok()
}

/// Returns what a job has begun. No error is expected but those of the server and of the lease.
fn begun<T>(answer: Result<T, Error>) -> Option<T> {
    let is_expected =
        |kind| matches!(kind, ErrorKind::Backend | ErrorKind::Lost | ErrorKind::NotAcquired);
    match answer {
        Ok(begun) => Some(begun),
        Err(error) => {
            assert!(is_expected(error.kind()), "{error:?}");
            None
        }
    }
}

/// Drives a future for two seconds at most. Now and then drops the future earlier.
async fn patiently<F: Future>(future: F, rng: &mut Rng) -> Option<F::Output> {
    match rng.u8(0..4) {
        0 => cut_off(future, rng).await,
        _ => timeout(Duration::from_secs(2), future).await.ok(),
    }
}

async fn polled_at_most<F: Future>(polls: u32, future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    let mut left = polls;
    poll_fn(|cx| match future.as_mut().poll(cx) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending => {
            left -= 1;
            if left == 0 { Poll::Ready(None) } else { Poll::Pending }
        }
    })
    .await
}

/// Polls a future for a while, then does not poll the future for a while, and then drives the
/// future to the end.
async fn left_alone<F: Future>(future: F, rng: &mut Rng) -> F::Output {
    let mut future = pin!(future);
    let [polled, alone] = [(), ()].map(|()| Duration::from_micros(1 << rng.u32(0..19)));
    match timeout(polled, future.as_mut()).await {
        Ok(output) => output,
        Err(_) => {
            sleep(alone).await;
            future.await
        }
    }
}

fn answer(loaded: Result<Loaded<Value>, Error>) -> Answer {
    match loaded {
        Ok(loaded) => {
            let source = match loaded.source {
                From::Degraded => Source::Degraded,
                From::Hit => Source::Hit,
                From::Stale => Source::Stale,
                From::Local => Source::Local,
                _ => Source::Shared,
            };
            Answer::Value { value: loaded.value, source }
        }
        Err(error) if format!("{error:#}").contains(PLANNED) => Answer::Failed,
        Err(error) => Answer::Error(format!("{:?}: {error:#}", error.kind())),
    }
}

/// Checks that a read failed only because the server did not answer.
fn unavailable(error: Error) -> Answer {
    match error.kind() {
        ErrorKind::Backend => Answer::Nothing,
        kind => Answer::Error(format!("{kind:?}: {error:#}")),
    }
}

/// Records the times at which the process did not run.
async fn pulse(log: Log) {
    let mut last = (now(), Instant::now());
    loop {
        sleep(Duration::from_millis(2)).await;
        if last.1.elapsed() > PAUSE {
            log.tell(Event::Paused { from: last.0 });
        }
        last = (now(), Instant::now());
    }
}

impl fmt::Display for Setup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&serde_json::to_string(self).unwrap())
    }
}
