//! The cost of a hold, of a wait and of an idle waiter, for a growing number of waiters.
//!
//! `cargo bench --bench waiters [-- word...]` starts Redis servers and worker processes. A word is
//! a kind (`mutex`, `fair`, `rw`, `semaphore`, `redlock` over three servers, `redlock5` over five,
//! or `redlock-` and `redlock5-` of which one is down), a number of waiters, `processes=10`, the
//! time of a hold such as `5ms`, or `chart=flat.svg`, which draws the rows. A row is a number of
//! waiters, all for one name:
//!
//! - holds: the waiters lock in turn, and a hold does nothing, or lasts for an argument like `5ms`;
//! - commands: those of clients for each hold, with subscriptions, at all servers;
//! - fewest: the holds of the waiter with the fewest, as a part of those with the most;
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

use bellwether::{Locks, RedisBackend, Redlock};
use report::figures::{Chart, Rows, Statistic, lasts};
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
/// The time in which idle waiters look often, because no push has told them of a release.
const DOUBT: Duration = Duration::from_secs(8);
const TURN: Duration = Duration::from_secs(4);
/// The parts of a turn, whose holds are counted apart.
const PARTS: u32 = 8;
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
    /// A mutex over several servers.
    Majority,
}

/// How many waiters a row has.
#[derive(Clone, Copy)]
struct Waiters {
    processes: usize,
    all: usize,
}

/// The servers of a row.
#[derive(Clone, Copy)]
struct Servers {
    count: usize,
    down: usize,
}

#[derive(Debug, Serialize, Deserialize)]
struct Task {
    urls: Vec<String>,
    kind: Kind,
    waiters: usize,
    /// How long each hold lasts.
    hold: Duration,
    turn: Duration,
    /// The waiters wait for a lock that stays held.
    idle: bool,
}

/// The figures of a worker.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Done {
    holds: usize,
    /// The holds of each part of the turn.
    parts: Vec<usize>,
    fewest: usize,
    most: usize,
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
    let hold = wanted.iter().find_map(|word| word.strip_suffix("ms")?.parse().ok());
    let hold = Duration::from_millis(hold.unwrap_or(0));
    let is_idle_wanted = !wanted.iter().any(|word| word == "busy");
    let mut rows: Vec<Row> = Vec::new();
    let [one, three, five] = [1, 3, 5].map(|count| Servers { count, down: 0 });
    let [two_of_three, four_of_five] = [3, 5].map(|count| Servers { count, down: 1 });
    let kinds = [
        ("mutex", Kind::Mutex, one),
        ("fair", Kind::Fair, one),
        ("rw", Kind::Rw, one),
        ("semaphore", Kind::Semaphore, one),
        ("redlock", Kind::Majority, three),
        ("redlock5", Kind::Majority, five),
        ("redlock-", Kind::Majority, two_of_three),
        ("redlock5-", Kind::Majority, four_of_five),
    ];
    let named = kinds.iter().any(|(name, ..)| wanted.iter().any(|word| word == name));
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        println!(
            "kind       waiters   holds/s  commands/hold  fewest/most  worst wait  failed  \
             idle scripts/s"
        );
        for (name, kind, servers) in kinds {
            if named && !wanted.iter().any(|word| word == name) {
                continue;
            }
            for count in &waiters {
                let waiters = Waiters { processes, all: *count };
                let row = row(name, kind, servers, waiters, hold, is_idle_wanted).await;
                println!("{row}");
                let alone = rows.iter().find(|row| row.kind == name && row.waiters == 1);
                if let Some(alone) = alone {
                    row.note(alone);
                }
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
    /// The fewest holds of a waiter, as a part of the most.
    fewest: f64,
    /// As a multiple of the fair share.
    worst_wait: f64,
    failed: usize,
    /// The scripts of idle waiters in a second.
    idle: f64,
    /// The mean time between two holds, in each part of the turn.
    between: Vec<Duration>,
}

impl Row {
    /// Notes the time between two holds, beside a waiter alone.
    fn note(&self, alone: &Self) {
        let rows = Rows {
            chart: Chart::Waiters,
            command: "cargo bench --bench waiters -- busy",
            statistic: Statistic::Median,
        };
        let what = format!("{}, {} waiters", self.kind, self.waiters);
        let alone = (format!("{}, one waiter", alone.kind), &alone.between);
        rows.floor((&what, &self.between), (&alone.0, alone.1)).unwrap();
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Row { kind, waiters, holds, commands, fewest, worst_wait, failed, idle, .. } = self;
        write!(f, "{kind:9}  {waiters:7}  {holds:8.0}  {commands:13.1}  ")?;
        write!(f, "{fewest:11.2}  {worst_wait:10.1}  {failed:6}  {idle:14.1}")
    }
}

async fn row(
    name: &str,
    kind: Kind,
    servers: Servers,
    waiters: Waiters,
    hold: Duration,
    is_idle_wanted: bool,
) -> Row {
    let mut running = Vec::new();
    for _ in 0..servers.count {
        running.push(RedisServer::start().await);
    }
    let urls: Vec<_> = running.iter().map(RedisServer::url).collect();
    for server in &mut running[..servers.down] {
        server.kill();
    }
    let mut raws = Vec::new();
    for server in &running[servers.down..] {
        raws.push(server.raw().await);
    }
    let Waiters { processes, all } = waiters;
    let each = |at: usize| all / processes + usize::from(at < all % processes);
    let task = |waiters, turn, idle| Task { urls: urls.clone(), kind, waiters, hold, turn, idle };
    let workers: Vec<_> = (0..processes)
        .filter(|at| each(*at) > 0)
        .map(|at| start(&task(each(at), lasts(TURN), false)))
        .collect();
    sleep(lasts(WARM_UP)).await;
    let before = commands(&mut raws, false).await;
    sleep(lasts(TURN)).await;
    let sent = commands(&mut raws, false).await - before;
    let done: Vec<_> = workers.into_iter().map(finish).collect();
    let holds: usize = done.iter().map(|done| done.holds).sum();
    let failed: usize = done.iter().map(|done| done.failed).sum();
    let fewest = done.iter().map(|done| done.fewest).min().unwrap_or_default();
    let most = done.iter().map(|done| done.most).max().unwrap_or_default();
    let longest = done.iter().map(|done| done.longest).max().unwrap_or_default();
    let share = lasts(TURN).as_secs_f64() / holds.max(1) as f64 * all as f64;
    let idle = if is_idle_wanted { idle(&mut raws, &task(all, TURN, true)).await } else { 0.0 };
    let part = |at: usize| done.iter().map(|done| done.parts[at]).sum::<usize>() as u32;
    let between = |at| lasts(TURN) / PARTS / part(at).max(1);
    Row {
        kind: name.to_owned(),
        waiters: all,
        holds: holds as f64 / lasts(TURN).as_secs_f64(),
        commands: sent as f64 / holds.max(1) as f64,
        fewest: fewest as f64 / most.max(1) as f64,
        worst_wait: longest.as_secs_f64() / share,
        failed,
        idle,
        between: (0..PARTS as usize).map(between).collect(),
    }
}

/// Returns the scripts in a second of waiters for a lock that stays held.
async fn idle(raws: &mut [Raw], task: &Task) -> f64 {
    let (locks, redlock) = fronts(task);
    let majority = redlock.mutex("idle").lock().await.unwrap();
    let held = locks.rw_lock("idle").write().await.unwrap();
    let fair = locks.mutex("idle").fair().lock().await.unwrap();
    let permit = locks.semaphore("idle", 1).acquire().await.unwrap();
    let mut worker = start(task);
    sleep(WARM_UP + DOUBT).await;
    let before = commands(raws, true).await;
    let begun = Instant::now();
    sleep(TURN).await;
    let sent = commands(raws, true).await - before;
    let took = begun.elapsed();
    drop((held, fair, permit, majority));
    locks.shutdown(Duration::from_secs(1)).await;
    redlock.shutdown(Duration::from_secs(1)).await;
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

/// Returns the locks at the last server, which is never down, and those of a majority.
fn fronts(task: &Task) -> (Locks, Redlock) {
    let backends: Vec<_> = task.urls.iter().map(|url| RedisBackend::open(url).unwrap()).collect();
    (
        Locks::new(backends.last().unwrap().clone(), "bellwether"),
        Redlock::over(backends, "bellwether").unwrap(),
    )
}

/// Returns the commands that clients have sent to all servers.
async fn commands(raws: &mut [Raw], scripts: bool) -> u64 {
    let known: &[&str] = if scripts {
        &["evalsha", "eval"]
    } else {
        &["evalsha", "eval", "subscribe", "unsubscribe", "ping"]
    };
    let mut sum = 0;
    for raw in raws {
        let info: String = raw.run(&["INFO", "commandstats"]).await;
        let calls = info.lines().filter_map(|line| {
            let (name, rest) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
            known.contains(&name).then(|| rest.split(',').next()?.parse::<u64>().ok())?
        });
        sum += calls.sum::<u64>();
    }
    sum
}

fn work(task: &Task) {
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let done = runtime.block_on(async {
        let (locks, redlock) = fronts(task);
        let begin = Instant::now() + lasts(WARM_UP);
        let mut tasks = JoinSet::new();
        let mut parts: Vec<usize> = Vec::new();
        for at in 0..task.waiters {
            let name = if task.idle { "idle" } else { "busy" };
            let locks = locks.clone();
            let redlock = redlock.clone();
            tasks.spawn(hold(Waiter { locks, redlock, kind: task.kind, at, name }, task.hold));
        }
        match task.idle {
            true => drop(tasks.join_all().await),
            false => {
                sleep_until(begin).await;
                for each in FIGURES.lock().unwrap().iter_mut() {
                    (each.holds, each.longest) = (0, Duration::ZERO);
                }
                let mut before = 0;
                for part in 1..=PARTS {
                    sleep_until(begin + task.turn * part / PARTS).await;
                    let holds = FIGURES.lock().unwrap().iter().map(|each| each.holds).sum();
                    parts.push(holds - before);
                    before = holds;
                }
            }
        }
        let figures = FIGURES.lock().unwrap();
        let none = Done { fewest: usize::MAX, parts, ..Done::default() };
        figures.iter().fold(none, |all, each| Done {
            holds: all.holds + each.holds,
            parts: all.parts,
            fewest: all.fewest.min(each.holds),
            most: all.most.max(each.holds),
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

/// A task that locks and unlocks until the end of the worker.
struct Waiter {
    locks: Locks,
    redlock: Redlock,
    kind: Kind,
    at: usize,
    name: &'static str,
}

async fn hold(waiter: Waiter, lasts: Duration) {
    let begun = Figures { holds: 0, failed: 0, longest: Duration::ZERO, since: Instant::now() };
    FIGURES.lock().unwrap().push(begun);
    loop {
        let held = waiter.once(lasts).await;
        note(waiter.at, held.is_ok());
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

/// Holds a lock for a while.
macro_rules! hold {
    ($lock:expr, $acquire:ident, $lasts:expr) => {{
        let guard = $lock.wait_limit(WAIT).$acquire().await?;
        if !$lasts.is_zero() {
            sleep($lasts).await;
        }
        guard.unlock().await
    }};
}

impl Waiter {
    /// Locks and unlocks. The hold and the unlock are short, and count as a part of the wait.
    async fn once(&self, lasts: Duration) -> Result<(), bellwether::Error> {
        let locks = &self.locks;
        let name = self.name;
        match self.kind {
            Kind::Mutex => hold!(locks.mutex(name), lock, lasts),
            Kind::Fair => hold!(locks.mutex(name).fair(), lock, lasts),
            Kind::Rw if self.at.is_multiple_of(10) => {
                hold!(locks.rw_lock(name), write, lasts)
            }
            Kind::Rw => hold!(locks.rw_lock(name), read, lasts),
            Kind::Semaphore => hold!(locks.semaphore(name, 1), acquire, lasts),
            Kind::Majority => hold!(self.redlock.mutex(name), lock, lasts),
        }
    }
}
