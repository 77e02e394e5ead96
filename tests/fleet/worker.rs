//! A worker process.

use std::{
    collections::HashMap,
    io::{BufRead, Write},
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bellwether::{Cache, Locks, RedisBackend, lease::Retry};
use futures_util::future::BoxFuture;
use testkit::primitives::{self, Asked, Guard, WAIT};
use tokio::{runtime::Builder, sync::Barrier, time::sleep};

use super::protocol::{Command, Event, Load, Report, Round, Setup, VARIABLE, now};

/// The longest time for a command.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(2);

/// Works until the standard input ends, if this process is a worker.
pub fn work() {
    let Ok(setup) = std::env::var(VARIABLE) else { return };
    let setup: Setup = serde_json::from_str(&setup).unwrap();
    tell_in_a_thread();
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let worker = runtime.block_on(Worker::new(&setup));
    tell(Event::Ready);
    for line in std::io::stdin().lock().lines() {
        let Ok(line) = line else { break };
        let command: Command = serde_json::from_str(&line).unwrap();
        let worker = worker.clone();
        runtime.spawn(async move { worker.obey(command).await });
    }
    std::process::exit(0);
}

static TOLD: OnceLock<std::sync::mpsc::Sender<Event>> = OnceLock::new();

/// Writes events in a thread of their own. A task whose time is measured never waits for the test
/// to read them.
fn tell_in_a_thread() {
    let (sender, told) = std::sync::mpsc::channel();
    TOLD.set(sender).unwrap();
    std::thread::spawn(move || {
        let mut out = std::io::stdout();
        for event in told {
            // The test harness may have begun a line, so the event starts a new one.
            let written = writeln!(out, "\n{}", serde_json::to_string(&event).unwrap());
            if written.and_then(|()| out.flush()).is_err() {
                std::process::exit(0);
            }
        }
    });
}

pub fn tell(event: Event) {
    TOLD.get().unwrap().send(event).unwrap();
}

#[derive(Clone)]
struct Worker {
    cache: Cache<String>,
    locks: Locks,
    raw: redis::aio::MultiplexedConnection,
    held: Arc<Mutex<HashMap<String, Arc<Guard>>>>,
    loads: Arc<AtomicU64>,
}

impl Worker {
    async fn new(setup: &Setup) -> Self {
        // The tests are about counts, and a busy machine must not cause a time-out.
        let builder = RedisBackend::builder().server(&setup.url);
        let backend = builder.command_timeout(COMMAND_TIMEOUT).build().unwrap();
        backend.ping().await.unwrap();
        Self {
            cache: Cache::builder(backend.clone(), "fleet")
                .lease(Duration::from_millis(setup.lease_ms))
                .wait_limit(Duration::from_millis(setup.wait_ms))
                .ttl(Duration::from_millis(setup.ttl_ms))
                .stale_while_revalidate(Duration::from_millis(setup.stale_ms))
                .retry(Retry::on_demand().try_limit(COMMAND_TIMEOUT))
                .build()
                .unwrap(),
            locks: Locks::new(backend, "bellwether"),
            raw: testkit::patient(&setup.url).await.unwrap(),
            held: Arc::default(),
            loads: Arc::default(),
        }
    }

    async fn obey(self, command: Command) {
        match command {
            Command::Round(round) => tell(Event::Report(self.play(round).await)),
            Command::Count { name, tasks, times } => {
                let counting = (0..tasks).map(|_| {
                    let worker = self.clone();
                    let name = name.clone();
                    tokio::spawn(async move {
                        for _ in 0..times {
                            worker.count(&name).await;
                        }
                    })
                });
                for task in counting.collect::<Vec<_>>() {
                    task.await.unwrap();
                }
                tell(Event::Done);
            }
            Command::Hold { name, pair, rival, lease_ms } => {
                let pair = primitives::pair(&pair);
                let primitive = if rival { pair.rival } else { pair.one };
                let asked = Asked {
                    locks: self.locks.clone(),
                    name: name.clone(),
                    lease: Duration::from_millis(lease_ms),
                    wait: WAIT,
                };
                let guard = Arc::new((primitive.take)(asked).await.unwrap());
                self.held.lock().unwrap().insert(name.clone(), guard.clone());
                let fence = guard.fence().unwrap_or(0);
                tell(Event::Held { name: name.clone(), fence, at: now() });
                let watched = Arc::downgrade(&guard);
                drop(guard);
                // Upgrades anew each time, so that the guard can be removed and unlocked.
                while let Some(guard) = watched.upgrade() {
                    if guard.is_lost() {
                        guard.lost().await;
                        tell(Event::Lost { name, at: now() });
                        return;
                    }
                    drop(guard);
                    sleep(Duration::from_millis(1)).await;
                }
            }
            Command::Unlock { name } => {
                let mut guard = self.held.lock().unwrap().remove(&name).unwrap();
                let guard = loop {
                    match Arc::try_unwrap(guard) {
                        Ok(guard) => break guard,
                        Err(shared) => guard = shared,
                    }
                    sleep(Duration::from_millis(1)).await;
                };
                let was_lost = guard.is_lost();
                let error =
                    guard.give_back().await.err().map(|error| format!("{:?}", error.kind()));
                tell(Event::Unlocked { was_lost, error });
            }
        }
    }

    async fn count(&self, name: &str) {
        let mut raw = self.raw.clone();
        let number = format!("number:{name}");
        let fences = format!("fences:{name}");
        let guard = self.locks.mutex(name).lock().await.unwrap();
        let read: Option<u64> = redis::cmd("GET").arg(&number).query_async(&mut raw).await.unwrap();
        tokio::task::yield_now().await;
        let mut write = redis::pipe();
        write.cmd("RPUSH").arg(fences).arg(guard.fence()).ignore();
        write.cmd("SET").arg(number).arg(read.unwrap_or(0) + 1).ignore();
        write.exec_async(&mut raw).await.unwrap();
        guard.unlock().await.unwrap();
    }

    async fn play(&self, round: Round) -> Report {
        let barrier = Arc::new(Barrier::new(round.callers + 1));
        let callers: Vec<_> = (0..round.callers)
            .map(|number| {
                let worker = self.clone();
                let barrier = barrier.clone();
                let load = round.load.clone();
                let key = round.key.replace('#', &number.to_string());
                tokio::spawn(async move {
                    barrier.wait().await;
                    let loader = worker.loader(key.clone(), number, load);
                    let loaded = worker.cache.request(key).load(|_lead| loader).await;
                    (loaded, now())
                })
            })
            .collect();
        sleep(Duration::from_micros(round.at.saturating_sub(now()))).await;
        let mut report = Report { began: now(), ..Report::default() };
        barrier.wait().await;
        for caller in callers {
            let (loaded, at) = caller.await.unwrap();
            report.ended = report.ended.max(at);
            match loaded {
                Ok(loaded) => {
                    *report.sources.entry(format!("{:?}", loaded.source)).or_default() += 1;
                    *report.values.entry(loaded.value).or_default() += 1;
                }
                Err(error) => {
                    let error = format!("{:?}: {error:#}", error.kind());
                    *report.errors.entry(error).or_default() += 1;
                }
            }
        }
        report.degraded = self.cache.stats().degraded;
        report.stats = format!("{:?}", self.cache.stats());
        report
    }

    /// Returns a loader that records its beginning and its end.
    fn loader(
        &self,
        key: String,
        caller: usize,
        load: Load,
    ) -> BoxFuture<'static, Result<String, bellwether::BoxError>> {
        let worker = self.clone();
        Box::pin(async move {
            tell(Event::LoadBegun { key: key.clone(), at: now() });
            let loaded: Result<String, bellwether::BoxError> = match load {
                Load::Value { ms } => {
                    sleep(Duration::from_millis(ms)).await;
                    let load = worker.loads.fetch_add(1, Ordering::Relaxed);
                    Ok(format!("{key} by {}/{load}", std::process::id()))
                }
                Load::Ask { ms, key: other, then } => {
                    sleep(Duration::from_millis(ms)).await;
                    let other = other.replace('#', &caller.to_string());
                    let loader = worker.loader(other.clone(), caller, *then);
                    let inner = worker.cache.get_or_load(other, |_lead| loader).await;
                    inner.map(|inner| format!("{key} with {inner}")).map_err(Into::into)
                }
            };
            tell(Event::LoadEnded { key, at: now() });
            loaded
        })
    }
}
