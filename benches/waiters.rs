//! The cost of a hold, of a wait and of an idle waiter, for a growing number of waiters.
//!
//! `cargo bench --bench waiters [-- word...]` starts a Redis server and worker processes. A word is
//! a kind (`mutex`, `fair`, `rw` or `semaphore`), a number of waiters, `processes=10`, or
//! `chart=flat.svg`, which draws the rows. A row is a number of waiters, all for one name:
//!
//! - holds: the waiters are in four processes and lock in turn, and a hold does nothing;
//! - commands: those of clients for each hold, with subscriptions;
//! - worst wait: the longest wait of a task, as a multiple of its fair share, which is the number
//!   of waiters times the mean time between two holds;
//! - idle: the waiters are in one process, another process holds, and the figure is the scripts in
//!   a second.
#![allow(missing_docs, unreachable_pub, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "waiters/chart.rs"]
mod chart;

use std::{
    fmt,
    io::{BufRead, BufReader, Write},
    path::Path,
    process::{Child, Command, Stdio},
    sync::Mutex,
    time::Duration,
};

use bellwether::{Locks, RedisBackend};
use serde::{Deserialize, Serialize};
use testkit::{Raw, RedisServer};
use tokio::{
    runtime::Builder,
    task::JoinSet,
    time::{Instant, sleep, sleep_until},
};

const WAITERS: [usize; 6] = [1, 10, 100, 1_000, 3_000, 10_000];
/// Unless `processes=` sets another number.
const PROCESSES: usize = 4;
/// The time in which all waiters connect and queue, before the figures begin.
const WARM_UP: Duration = Duration::from_secs(3);
const TURN: Duration = Duration::from_secs(4);
const WORKER: &str = "WAITERS_WORKER";
/// Longer than any turn, so that a wait that fails is a defect.
const WAIT: Duration = Duration::from_secs(300);

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
enum Kind {
    Mutex,
    Fair,
    /// One of ten tasks writes.
    Rw,
    /// One permit.
    Semaphore,
}

#[derive(Debug, Serialize, Deserialize)]
struct Task {
    url: String,
    kind: Kind,
    waiters: usize,
    turn: Duration,
    /// The waiters wait for a lock that stays held.
    idle: bool,
}

/// The figures of a worker.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Done {
    holds: usize,
    longest: Duration,
    failed: usize,
}

fn main() {
    if let Ok(task) = std::env::var(WORKER) {
        return work(&serde_json::from_str(&task).unwrap());
    }
    let wanted: Vec<String> =
        std::env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
    let numbers: Vec<usize> = wanted.iter().filter_map(|word| word.parse().ok()).collect();
    let waiters = if numbers.is_empty() { WAITERS.to_vec() } else { numbers };
    let value = |name| wanted.iter().find_map(|word| word.strip_prefix(name));
    let processes = value("processes=").map_or(PROCESSES, |number| number.parse().unwrap());
    let mut rows = Vec::new();
    let kinds = [
        ("mutex", Kind::Mutex),
        ("fair", Kind::Fair),
        ("rw", Kind::Rw),
        ("semaphore", Kind::Semaphore),
    ];
    let named = kinds.iter().any(|(name, _)| wanted.iter().any(|word| word == name));
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        println!("kind       waiters   holds/s  commands/hold  worst wait  failed  idle scripts/s");
        for (name, kind) in kinds {
            if named && !wanted.iter().any(|word| word == name) {
                continue;
            }
            for count in &waiters {
                let row = row(name, kind, processes, *count).await;
                println!("{row}");
                rows.push(row);
            }
        }
    });
    if let Some(path) = value("chart=") {
        chart::draw(Path::new(path), &rows).unwrap();
    }
}

/// The figures of one number of waiters.
struct Row {
    kind: String,
    waiters: usize,
    /// In a second.
    holds: f64,
    /// For each hold.
    commands: f64,
    /// As a multiple of the fair share.
    worst_wait: f64,
    failed: usize,
    /// The scripts of idle waiters in a second.
    idle: f64,
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Row { kind, waiters, holds, commands, worst_wait, failed, idle } = self;
        write!(f, "{kind:9}  {waiters:7}  {holds:8.0}  {commands:13.1}  {worst_wait:10.1}  ")?;
        write!(f, "{failed:6}  {idle:14.1}")
    }
}

async fn row(name: &str, kind: Kind, processes: usize, waiters: usize) -> Row {
    let server = RedisServer::start().await;
    let mut raw = server.raw().await;
    let each = |at: usize| waiters / processes + usize::from(at < waiters % processes);
    let task = |waiters, turn, idle| Task { url: server.url(), kind, waiters, turn, idle };
    let workers: Vec<_> = (0..processes)
        .filter(|at| each(*at) > 0)
        .map(|at| start(&task(each(at), TURN, false)))
        .collect();
    sleep(WARM_UP).await;
    let before = commands(&mut raw, false).await;
    sleep(TURN).await;
    let sent = commands(&mut raw, false).await - before;
    let done: Vec<_> = workers.into_iter().map(finish).collect();
    let holds: usize = done.iter().map(|done| done.holds).sum();
    let failed: usize = done.iter().map(|done| done.failed).sum();
    let longest = done.iter().map(|done| done.longest).max().unwrap_or_default();
    let share = TURN.as_secs_f64() / holds.max(1) as f64 * waiters as f64;
    let idle = idle(&mut raw, &task(waiters, TURN, true)).await;
    Row {
        kind: name.to_owned(),
        waiters,
        holds: holds as f64 / TURN.as_secs_f64(),
        commands: sent as f64 / holds.max(1) as f64,
        worst_wait: longest.as_secs_f64() / share,
        failed,
        idle,
    }
}

/// Returns the scripts in a second of waiters for a lock that stays held.
async fn idle(raw: &mut Raw, task: &Task) -> f64 {
    let locks = Locks::new(RedisBackend::open(&task.url).unwrap());
    let held = locks.rw_lock("idle").write().await.unwrap();
    let fair = locks.fair_mutex("idle").lock().await.unwrap();
    let permit = locks.semaphore("idle", 1).acquire().await.unwrap();
    let mut worker = start(task);
    sleep(WARM_UP).await;
    let (before, begun) = (commands(raw, true).await, Instant::now());
    sleep(TURN).await;
    let sent = commands(raw, true).await - before;
    let took = begun.elapsed();
    drop((held, fair, permit));
    locks.shutdown(Duration::from_secs(1)).await;
    let _ = worker.kill();
    let _ = worker.wait();
    sent as f64 / took.as_secs_f64()
}

fn start(task: &Task) -> Child {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .env(WORKER, serde_json::to_string(task).unwrap())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.as_mut().unwrap().write_all(b"go\n").unwrap();
    child
}

fn finish(mut child: Child) -> Done {
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    let _ = child.kill();
    let _ = child.wait();
    serde_json::from_str(&line).unwrap()
}

/// Returns the commands that clients have sent.
async fn commands(raw: &mut Raw, scripts: bool) -> u64 {
    let info: String = raw.run(&["INFO", "commandstats"]).await;
    let known: &[&str] = match scripts {
        true => &["evalsha", "eval"],
        false => &["evalsha", "eval", "subscribe", "unsubscribe", "ping"],
    };
    let calls = info.lines().filter_map(|line| {
        let (name, rest) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
        known.contains(&name).then(|| rest.split(',').next()?.parse::<u64>().ok())?
    });
    calls.sum()
}

fn work(task: &Task) {
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let done = runtime.block_on(async {
        let locks = Locks::new(RedisBackend::open(&task.url).unwrap());
        let begin = Instant::now() + WARM_UP;
        let mut tasks = JoinSet::new();
        for at in 0..task.waiters {
            tasks.spawn(hold(locks.clone(), task.kind, at, task.idle));
        }
        match task.idle {
            true => drop(tasks.join_all().await),
            false => {
                sleep_until(begin).await;
                for each in FIGURES.lock().unwrap().iter_mut() {
                    (each.holds, each.longest) = (0, Duration::ZERO);
                }
                sleep_until(begin + task.turn).await;
            }
        }
        let figures = FIGURES.lock().unwrap();
        figures.iter().fold(Done::default(), |all, each| Done {
            holds: all.holds + each.holds,
            failed: all.failed + each.failed,
            // A task that still waits has waited until now.
            longest: all.longest.max(each.longest).max(each.since.elapsed()),
        })
    });
    println!("{}", serde_json::to_string(&done).unwrap());
    std::process::exit(0);
}

/// The figures of a task.
struct Figures {
    holds: usize,
    failed: usize,
    longest: Duration,
    /// When the present wait began.
    since: Instant,
}

/// The figures of the tasks of this worker, which end with it.
static FIGURES: Mutex<Vec<Figures>> = Mutex::new(Vec::new());

/// Locks and unlocks until the end of the worker.
async fn hold(locks: Locks, kind: Kind, at: usize, idle: bool) {
    let name = if idle { "idle" } else { "busy" };
    let begun = Figures { holds: 0, failed: 0, longest: Duration::ZERO, since: Instant::now() };
    FIGURES.lock().unwrap().push(begun);
    loop {
        let held = once(&locks, kind, at, name).await;
        note(at, held);
        tokio::task::yield_now().await;
    }
}

fn note(at: usize, held: bool) {
    let mut figures = FIGURES.lock().unwrap();
    let figures = &mut figures[at];
    figures.holds += usize::from(held);
    figures.failed += usize::from(!held);
    figures.longest = figures.longest.max(figures.since.elapsed());
    figures.since = Instant::now();
}

/// Locks and unlocks. The unlock is short, and counts as a part of the wait.
async fn once(locks: &Locks, kind: Kind, at: usize, name: &str) -> bool {
    let done = async {
        match kind {
            Kind::Mutex => locks.mutex(name).wait_limit(WAIT).lock().await?.unlock().await,
            Kind::Fair => locks.fair_mutex(name).wait_limit(WAIT).lock().await?.unlock().await,
            Kind::Rw if at.is_multiple_of(10) => {
                locks.rw_lock(name).wait_limit(WAIT).write().await?.unlock().await
            }
            Kind::Rw => locks.rw_lock(name).wait_limit(WAIT).read().await?.unlock().await,
            Kind::Semaphore => {
                locks.semaphore(name, 1).wait_limit(WAIT).acquire().await?.release().await
            }
        }
    };
    done.await.is_ok()
}
