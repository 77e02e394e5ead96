//! One contended lock: the gap between two holders, the fairness, and the cost for Redis.
//!
//! `cargo bench --manifest-path peers/Cargo.toml [-- [seconds] [row] [processes x tasks]]` starts a
//! Redis server and worker processes. Pin it to one core (`taskset -c 1`) to measure the work
//! without the wake-ups across cores. Each hold lasts 1 ms, or no time with a single process. The
//! *gap* is the time from the beginning of a release to the next acquisition by another process.
//! *Across* is the number of grants to another process than the last holder's. *Fair* is the number
//! of holds of the process with the fewest, divided by that of the process with the most.
//!
//! `RUEIDIS` names the worker of `peers/go`, which `scripts/report` builds where Go is installed.
#![allow(
    dead_code,
    missing_docs,
    unreachable_pub,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic
)]

use std::{
    io::{BufRead, BufReader, Read, Write},
    process::{Child, Command, Stdio},
    sync::Arc,
    time::Duration,
};

use bellwether::{Locks, RedisBackend};
use redis::{Client, Script, aio::MultiplexedConnection};
use report::figures::{Chart, Rows, Statistic, turns};
use rustix::time::{ClockId, clock_gettime};
use testkit::RedisServer;
use tokio::{
    runtime::{Builder, Runtime},
    time::sleep,
};

/// The kind of lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum How {
    Mutex,
    Fair,
    /// Every task has a front of its own, so that none uses the local queue of its process.
    Contending,
    /// `SET NX PX`, repeated every millisecond, and compare-and-delete.
    Polling,
    /// `WATCH`, `GET`, `MULTI`, `SET`, `EXEC`, repeated every millisecond.
    Watching,
    /// The crate `rslock`, with the shortest pauses that it accepts.
    Rslock,
    /// The library `rueidislock`, in processes of Go.
    Rueidis,
}

/// The variable that names the worker in Go.
const RUEIDIS: &str = "RUEIDIS";

/// The duration of each hold of a contended lock.
const HELD: Duration = Duration::from_millis(1);

const ALL: [(&str, How); 7] = [
    ("mutex", How::Mutex),
    ("fair mutex", How::Fair),
    ("no local queue", How::Contending),
    ("SET NX PX, polling", How::Polling),
    ("WATCH, polling", How::Watching),
    ("rslock", How::Rslock),
    ("rueidislock", How::Rueidis),
];

fn rows(statistic: Statistic) -> Rows {
    let command = "cargo bench --manifest-path peers/Cargo.toml --bench hot_lock";
    Rows { chart: Chart::HotLock, command, statistic }
}

fn main() {
    let words: Vec<_> = std::env::args().skip(1).collect();
    if let [word, how, url, tasks, held, seconds] = words.as_slice()
        && word == "worker"
    {
        let (_, how) = ALL[how.parse::<usize>().unwrap()];
        let held = HELD * held.parse().unwrap();
        return work(url, (how, held), tasks.parse().unwrap(), seconds.parse().unwrap());
    }
    let seconds = words.iter().find_map(|word| word.parse().ok()).unwrap_or(5);
    let only = words.iter().find(|word| ALL.iter().any(|(name, _)| name == word));
    let runtime = runtime();
    let server = runtime.block_on(RedisServer::start());
    let url = server.url();
    let bare = runtime.block_on(async {
        tokio::spawn(async move {
            uncontended(&url).await;
            bare_cycle(&url).await
        })
        .await
        .unwrap()
    });
    println!("a bare lock and unlock around a hold: {:.0} us", micros(median(&bare)));
    println!();
    println!(
        "{:<24} {:>9} {:>7} {:>14} {:>14} {:>8} {:>7} {:>10} {:>6}",
        "", "processes", "tasks", "gap, median", "gap, p99", "across/s", "calls", "holds/s", "fair"
    );
    let shape = words.iter().find_map(|word| {
        let (processes, tasks) = word.split_once('x')?;
        Some((processes.parse().ok()?, tasks.parse().ok()?))
    });
    for shape in shape.map_or(vec![(4, 8), (10, 20), (1, 64)], |shape| vec![shape]) {
        contended(&runtime, &server, &bare, shape, seconds, only);
    }
}

/// Measures and prints all kinds of lock, for so many processes of so many tasks.
fn contended(
    runtime: &Runtime,
    server: &RedisServer,
    bare: &[Duration],
    (processes, tasks): (usize, usize),
    seconds: u64,
    only: Option<&String>,
) {
    let mut runs = Vec::new();
    for (at, (name, how)) in ALL.iter().enumerate() {
        let pollers = matches!(how, How::Polling | How::Watching | How::Rslock | How::Rueidis);
        let is_missing = *how == How::Rueidis && std::env::var_os(RUEIDIS).is_none();
        if is_missing || pollers && tasks > 8 || only.is_some_and(|only| only != name) {
            continue;
        }
        let run = measure(runtime, server, at, processes, tasks, seconds);
        let mut gaps = run.gaps.clone();
        gaps.sort_unstable();
        let ratio = |time: Duration| {
            format!("{:.0} us {:.1}x", micros(time), time.div_duration_f64(median(bare)))
        };
        let (half, p99) = match gaps.len() {
            0 => ("-".to_owned(), "-".to_owned()),
            count => (ratio(gaps[count / 2]), ratio(gaps[count * 99 / 100])),
        };
        println!(
            "{name:<24} {processes:>9} {tasks:>7} {half:>14} {p99:>14} \
             {:>8.0} {:>7.2} {:>10.0} {:>6.2}",
            run.across, run.calls, run.holds, run.fair
        );
        runs.push((*how, *name, run.gaps));
    }
    if (processes, tasks) == (4, 8) {
        note(&runs, bare);
    }
    println!();
}

/// Notes the gaps of this crate beside the bare commands, and beside those of the peers.
fn note(runs: &[(How, &str, Vec<Duration>)], bare: &[Duration]) {
    let rows = rows(Statistic::Median);
    let is_ours = |how: &How| matches!(how, How::Mutex | How::Fair);
    for (_, name, gaps) in runs.iter().filter(|(how, ..)| is_ours(how)) {
        let what = format!("{name}: from a holder to the next");
        rows.floor((&what, gaps), ("a bare lock and unlock", bare)).unwrap();
    }
    let Some((_, _, ours)) = runs.iter().find(|(how, ..)| *how == How::Mutex) else { return };
    let peers = [
        (How::Polling, "SET NX PX, polling each ms"),
        (How::Rslock, "rslock, polling each ms"),
        (How::Rueidis, "rueidislock"),
    ];
    for (peer, name) in peers {
        if let Some((_, _, theirs)) = runs.iter().find(|(how, ..)| *how == peer) {
            rows.peer(("mutex: from a holder to the next", ours), (name, theirs)).unwrap();
        }
    }
}

fn median(times: &[Duration]) -> Duration {
    let mut sorted = times.to_vec();
    sorted.sort_unstable();
    sorted[sorted.len() / 2]
}

fn runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

/// Returns the time in nanoseconds on a clock that all processes of this machine share.
fn now() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    u64::try_from(time.tv_sec).unwrap() * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap()
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

struct Run {
    gaps: Vec<Duration>,
    /// The grants a second to another process than the last holder's.
    across: f64,
    calls: f64,
    holds: f64,
    fair: f64,
}

fn measure(
    runtime: &Runtime,
    server: &RedisServer,
    how: usize,
    processes: usize,
    tasks: usize,
    seconds: u64,
) -> Run {
    let mut workers: Vec<_> = (0..processes)
        .map(|_| {
            let (program, words) = match ALL[how].1 {
                How::Rueidis => {
                    (std::env::var_os(RUEIDIS).unwrap().into(), vec!["lock".to_owned()])
                }
                _ => (std::env::current_exe().unwrap(), vec!["worker".to_owned(), how.to_string()]),
            };
            Command::new(program)
                .args(words)
                .arg(server.url())
                .args([&tasks, &usize::from(processes > 1)].map(ToString::to_string))
                .arg(seconds.to_string())
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .unwrap()
        })
        .collect();
    // All workers are connected, and begin together.
    let mut outputs: Vec<_> =
        workers.iter_mut().map(|worker| BufReader::new(worker.stdout.take().unwrap())).collect();
    for output in &mut outputs {
        output.read_line(&mut String::new()).unwrap();
    }
    let before = runtime.block_on(calls(server));
    for worker in &mut workers {
        writeln!(worker.stdin.as_mut().unwrap(), "go").unwrap();
    }
    let mut holds = Vec::new();
    let mut each = Vec::new();
    for (process, output) in outputs.iter_mut().enumerate() {
        let mut text = String::new();
        output.read_to_string(&mut text).unwrap();
        let mine = text.lines().map(|line| {
            let (from, to) = line.split_once(' ').unwrap();
            (from.parse::<u64>().unwrap(), to.parse::<u64>().unwrap(), process)
        });
        let had = holds.len();
        holds.extend(mine);
        each.push(holds.len() - had);
    }
    let after = runtime.block_on(calls(server));
    workers.into_iter().for_each(|worker: Child| drop(worker.wait_with_output()));
    holds.sort_unstable();
    let gaps: Vec<_> = holds
        .windows(2)
        .filter(|two| two[0].2 != two[1].2)
        .map(|two| {
            assert!(two[1].0 >= two[0].1, "two tasks hold the lock at once");
            Duration::from_nanos(two[1].0 - two[0].1)
        })
        .collect();
    let (fewest, most) = (*each.iter().min().unwrap(), *each.iter().max().unwrap());
    Run {
        across: gaps.len() as f64 / seconds as f64,
        gaps,
        calls: (after - before) as f64 / holds.len() as f64,
        holds: holds.len() as f64 / seconds as f64,
        fair: fewest as f64 / most as f64,
    }
}

/// Returns the number of commands that clients have sent so far, without those that scripts call.
async fn calls(server: &RedisServer) -> u64 {
    let mut raw = server.raw().await;
    let info: String = raw.run(&["INFO", "commandstats"]).await;
    let count = |command: &str| -> u64 {
        let line = info.lines().find(|line| line.starts_with(&format!("cmdstat_{command}:")));
        line.and_then(|line| line.split_once("calls=")?.1.split(',').next()?.parse().ok())
            .unwrap_or(0)
    };
    // Polling contenders send SET and GET. In this crate only scripts call these two.
    let scripts = ["evalsha", "eval", "ping", "subscribe", "unsubscribe", "watch", "exec", "multi"];
    let sent: u64 = scripts.iter().map(|command| count(command)).sum();
    sent + raw.run::<Option<u64>>(&["GET", "polled"]).await.unwrap_or(0)
}

/// Runs a worker process, which takes the lock again and again and prints the times of its holds.
fn work(url: &str, (how, held): (How, Duration), tasks: usize, seconds: u64) {
    let runtime = runtime();
    let holds = runtime.block_on(async {
        let url = url.to_owned();
        tokio::spawn(async move {
            let taker = Arc::new(Taker::new(&url, how, held).await);
            taker.hold(0).await;
            println!("ready");
            std::io::stdin().read_line(&mut String::new()).unwrap();
            let end = now() + seconds * 1_000_000_000;
            let working: Vec<_> = (0..tasks)
                .map(|task| {
                    let taker = taker.clone();
                    tokio::spawn(async move {
                        let mut holds = Vec::new();
                        while now() < end {
                            holds.extend(taker.hold(task).await);
                        }
                        holds
                    })
                })
                .collect();
            let mut holds = Vec::new();
            for task in working {
                holds.extend(task.await.unwrap());
            }
            taker.told().await;
            holds
        })
        .await
        .unwrap()
    });
    let mut out = String::new();
    for (from, to) in holds {
        out.push_str(&format!("{from} {to}\n"));
    }
    std::io::stdout().write_all(out.as_bytes()).unwrap();
}

struct Taker {
    how: How,
    held: Duration,
    locks: Vec<Locks>,
    connection: MultiplexedConnection,
    client: Client,
    rslock: rslock::LockManager,
    delete: Script,
    polls: std::sync::atomic::AtomicU64,
}

impl Taker {
    async fn new(url: &str, how: How, held: Duration) -> Self {
        let client = Client::open(url).unwrap();
        let backend = RedisBackend::open(url).unwrap();
        let fronts = if how == How::Contending { 64 } else { 1 };
        let mut rslock = rslock::LockManager::from_clients(vec![client.clone()]);
        rslock.set_retry(100_000, Duration::from_millis(1));
        Self {
            how,
            held,
            locks: (0..fronts).map(|_| Locks::new(backend.clone(), "bellwether")).collect(),
            connection: client.get_multiplexed_async_connection().await.unwrap(),
            client,
            rslock,
            delete: Script::new(
                "if redis.call('GET', KEYS[1]) == ARGV[1] then \
                 return redis.call('DEL', KEYS[1]) end",
            ),
            polls: Default::default(),
        }
    }

    /// Takes the lock, holds it and releases it, and returns the beginning and the end of the hold.
    async fn hold(&self, task: usize) -> Option<(u64, u64)> {
        let locks = &self.locks[task % self.locks.len()];
        match self.how {
            How::Mutex | How::Contending | How::Fair => {
                let mutex = match self.how {
                    How::Fair => locks.mutex("hot").fair(),
                    _ => locks.mutex("hot"),
                };
                let guard = mutex.lock().await.unwrap();
                let from = now();
                self.held().await;
                let to = now();
                guard.unlock().await.unwrap();
                Some((from, to))
            }
            How::Rslock => {
                let lease = Duration::from_secs(10);
                let lock = self.rslock.acquire_no_guard(b"rslock" as &[u8], lease).await.ok()?;
                let from = now();
                self.held().await;
                let to = now();
                self.rslock.unlock(&lock).await;
                Some((from, to))
            }
            How::Polling | How::Watching | How::Rueidis => {
                let token = uuid::Uuid::new_v4().simple().to_string();
                // A transaction needs a connection of its own.
                let mut connection = match self.how {
                    How::Watching => self.client.get_multiplexed_async_connection().await.unwrap(),
                    _ => self.connection.clone(),
                };
                while !self.try_once(&mut connection, &token).await {
                    sleep(Duration::from_millis(1)).await;
                }
                let from = now();
                self.held().await;
                let to = now();
                let _: Option<u64> = self
                    .delete
                    .key("polled-lock")
                    .arg(&token)
                    .invoke_async(&mut connection)
                    .await
                    .unwrap();
                Some((from, to))
            }
        }
    }

    async fn held(&self) {
        if !self.held.is_zero() {
            sleep(self.held).await;
        }
    }

    async fn try_once(&self, connection: &mut MultiplexedConnection, token: &str) -> bool {
        let set = |command: &mut redis::Cmd| {
            command.arg("polled-lock").arg(token).arg("PX").arg(10_000).arg("NX");
        };
        let mut command = redis::cmd("SET");
        set(&mut command);
        if self.how == How::Polling {
            self.polls.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            let answer: Option<String> = command.query_async(connection).await.unwrap();
            return answer.is_some();
        }
        self.polls.fetch_add(2, std::sync::atomic::Ordering::Relaxed);
        let watch = redis::cmd("WATCH").arg("polled-lock").exec_async(connection).await;
        watch.unwrap();
        let held: Option<String> =
            redis::cmd("GET").arg("polled-lock").query_async(connection).await.unwrap();
        if held.is_some() {
            redis::cmd("UNWATCH").exec_async(connection).await.unwrap();
            return false;
        }
        let mut transaction = redis::pipe();
        transaction.atomic().add_command(command);
        let answer: Option<(Option<String>,)> = transaction.query_async(connection).await.unwrap();
        answer.is_some_and(|(answer,)| answer.is_some())
    }

    /// Adds the polls of this process to the counter at the server.
    async fn told(&self) {
        let polls = self.polls.load(std::sync::atomic::Ordering::Relaxed);
        let mut connection = self.connection.clone();
        redis::cmd("INCRBY").arg("polled").arg(polls).exec_async(&mut connection).await.unwrap();
    }
}

/// Measures a lock without contention that is released at once, in many short turns.
async fn uncontended(url: &str) {
    const TURNS: usize = 1000;
    const CYCLES: u32 = 10;
    let contenders = [How::Mutex, How::Fair, How::Rslock, How::Polling];
    let mut takers = Vec::new();
    for how in contenders {
        takers.push((Taker::new(url, how, Duration::ZERO).await, Vec::new()));
    }
    for _ in 0..turns(TURNS) {
        for (taker, times) in &mut takers {
            let from = now();
            for _ in 0..CYCLES {
                taker.hold(0).await;
            }
            times.push(Duration::from_nanos(now() - from) / CYCLES);
        }
    }
    println!("lock and unlock, uncontended");
    let [mutex, fair, rslock, plain] = takers.as_slice() else { return };
    let rows = rows(Statistic::Mean);
    let rslock = ("rslock", rslock.1.as_slice());
    rows.peer(("mutex: lock and unlock, alone", &mutex.1), rslock).unwrap();
    rows.peer(("fair mutex: lock and unlock, alone", &fair.1), rslock).unwrap();
    rows.floor(("mutex: lock and unlock, alone", &mutex.1), ("SET NX PX", &plain.1)).unwrap();
    println!();
}

/// Measures the least that a lock takes around a hold as long as those of the contenders. The hold
/// is not counted. The processor falls asleep in it, so the next command takes longer.
async fn bare_cycle(url: &str) -> Vec<Duration> {
    let taker = Taker::new(url, How::Polling, HELD).await;
    let mut times = Vec::new();
    for _ in 0..turns(1000) {
        let begun = now();
        let (from, to) = taker.hold(0).await.unwrap();
        times.push(Duration::from_nanos(from - begun + now() - to));
    }
    times
}
