//! A lock and its unlock, beside the same by hand: `SET NX PX` and compare-and-delete.
//!
//! One caller in a task of its own, on a runtime with two workers and on one of the current thread.
//! All contenders take short turns, in one process and at one server. A figure is the median of all
//! turns.

use std::{
    fs,
    time::{Duration, Instant},
};

use bellwether::{Locks, RedisBackend};
use cpu_time::ProcessTime;
use redis::{Script, aio::MultiplexedConnection};
use report::figures::{Chart, Rows, Statistic, turns};
use tokio::runtime::{Builder, Runtime};

use super::connection_to;

const TURNS: usize = 100;
/// The pairs of one turn.
const PAIRS: u32 = 50;

const CONTENDERS: [Contender; 6] = [
    Contender::Bare,
    Contender::Mutex,
    Contender::Fair,
    Contender::Write,
    Contender::Read,
    Contender::Semaphore,
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Contender {
    /// By the client library alone.
    Bare,
    Mutex,
    Fair,
    Write,
    Read,
    Semaphore,
}

impl Contender {
    fn name(self) -> &'static str {
        match self {
            Self::Bare => "SET NX PX and compare-and-delete",
            Self::Mutex => "mutex",
            Self::Fair => "fair mutex",
            Self::Write => "write lock",
            Self::Read => "read lock",
            Self::Semaphore => "permit",
        }
    }
}

/// What one pair took in a turn.
#[derive(Clone, Copy, Default)]
struct Sample {
    time: Duration,
    /// The processor time of this process.
    client: Duration,
    /// How often a thread of this process gave its processor up.
    switches: f64,
    /// The time of the server by its own account.
    server: Duration,
}

/// Measures all contenders on both kinds of runtimes.
pub(crate) fn measure(url: &str) {
    let workers = Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    measure_on(&workers, url, "two workers");
    let one = Builder::new_current_thread().enable_all().build().unwrap();
    measure_on(&one, url, "current thread");
}

fn measure_on(runtime: &Runtime, url: &str, kind: &str) {
    let url = url.to_owned();
    let turns = async move {
        // The task is spawned, so that no measured future runs in `block_on`.
        tokio::spawn(async move { take_turns(&url).await }).await.unwrap()
    };
    let samples = runtime.block_on(turns);
    println!(
        "lock and unlock, one caller, {kind}; medians of {} turns of {PAIRS}",
        samples[0].len()
    );
    println!(
        "{:34} {:>8} {:>6} {:>11} {:>6} {:>9} {:>10} {:>6}",
        "", "us", "ratio", "client, us", "ratio", "switches", "server, us", "ratio"
    );
    let bare = &samples[0];
    for (contender, of_contender) in CONTENDERS.iter().zip(&samples) {
        let ratio = |figure: fn(&Sample) -> f64| {
            let both = of_contender.iter().zip(bare);
            median(both.map(|(ours, theirs)| figure(ours) / figure(theirs)).collect())
        };
        let figure = |figure: fn(&Sample) -> f64| median(of_contender.iter().map(figure).collect());
        println!(
            "{:34} {:8.1} {:6.2} {:11.1} {:6.2} {:9.2} {:10.1} {:6.2}",
            contender.name(),
            figure(time),
            ratio(time),
            figure(client),
            ratio(client),
            figure(|sample| sample.switches),
            figure(server),
            ratio(server),
        );
    }
    let rows = Rows {
        chart: Chart::HotLock,
        command: "cargo bench --bench costs -- locks",
        statistic: Statistic::Median,
    };
    let times = |samples: &[Sample]| samples.iter().map(|sample| sample.time).collect::<Vec<_>>();
    let floor = times(bare);
    for (contender, of_contender) in CONTENDERS.iter().zip(&samples).skip(1) {
        let what = format!("{}: lock and unlock, alone, {kind}", contender.name());
        rows.floor((&what, &times(of_contender)), (Contender::Bare.name(), &floor)).unwrap();
    }
}

fn time(sample: &Sample) -> f64 {
    sample.time.as_secs_f64() * 1e6
}

fn client(sample: &Sample) -> f64 {
    sample.client.as_secs_f64() * 1e6
}

fn server(sample: &Sample) -> f64 {
    sample.server.as_secs_f64() * 1e6
}

fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}

/// Returns the samples of each contender.
async fn take_turns(url: &str) -> [Vec<Sample>; CONTENDERS.len()] {
    let mut pairs = Pairs::new(url).await;
    let mut operator = connection_to(url).await;
    let mut samples = [const { Vec::new() }; CONTENDERS.len()];
    // The first turn of each opens connections and fills caches.
    for turn in 0..=turns(TURNS) {
        for (contender, samples) in CONTENDERS.iter().zip(&mut samples) {
            let sample = pairs.take_turn(*contender, &mut operator).await;
            if turn > 0 {
                samples.push(sample);
            }
        }
    }
    samples
}

struct Pairs {
    locks: Locks,
    bare: MultiplexedConnection,
    delete: Script,
}

impl Pairs {
    async fn new(url: &str) -> Self {
        let delete = Script::new(
            "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end",
        );
        let locks = Locks::new(RedisBackend::open(url).unwrap(), "bellwether");
        Self { locks, bare: connection_to(url).await, delete }
    }

    async fn take_turn(
        &mut self,
        contender: Contender,
        operator: &mut MultiplexedConnection,
    ) -> Sample {
        let _: () = redis::cmd("CONFIG").arg("RESETSTAT").query_async(operator).await.unwrap();
        let switches = voluntary_switches();
        let client = ProcessTime::now();
        let begun = Instant::now();
        for _ in 0..PAIRS {
            self.pair(contender).await;
        }
        let time = begun.elapsed();
        let client = client.elapsed();
        let switches = voluntary_switches() - switches;
        Sample {
            time: time / PAIRS,
            client: client / PAIRS,
            switches: switches as f64 / f64::from(PAIRS),
            server: server_time(operator, contender).await / PAIRS,
        }
    }

    async fn pair(&mut self, contender: Contender) {
        let locks = &self.locks;
        match contender {
            Contender::Bare => self.bare_pair().await,
            Contender::Mutex => locks.mutex("m").lock().await.unwrap().unlock().await.unwrap(),
            Contender::Fair => {
                locks.mutex("f").fair().lock().await.unwrap().unlock().await.unwrap();
            }
            Contender::Write => locks.rw_lock("w").write().await.unwrap().unlock().await.unwrap(),
            Contender::Read => locks.rw_lock("r").read().await.unwrap().unlock().await.unwrap(),
            Contender::Semaphore => {
                locks.semaphore("s", 2).acquire().await.unwrap().unlock().await.unwrap();
            }
        }
    }

    async fn bare_pair(&mut self) {
        let token = uuid::Uuid::new_v4().simple().to_string();
        let _: () = redis::cmd("SET")
            .arg("bellwether:l:{bare}:l")
            .arg(&token)
            .arg("NX")
            .arg("PX")
            .arg(10_000)
            .query_async(&mut self.bare)
            .await
            .unwrap();
        let ended: i64 = self
            .delete
            .key("bellwether:l:{bare}:l")
            .arg(&token)
            .invoke_async(&mut self.bare)
            .await
            .unwrap();
        assert_eq!(ended, 1);
    }
}

/// Returns how long the server has worked for the commands of a contender since `RESETSTAT`. The
/// time of a script has that of its commands in it.
async fn server_time(operator: &mut MultiplexedConnection, contender: Contender) -> Duration {
    let stats: String = redis::cmd("INFO").arg("commandstats").query_async(operator).await.unwrap();
    let micros = |command: &str| -> u64 {
        let begin = format!("cmdstat_{command}:calls=");
        let line = stats.lines().find_map(|line| line.strip_prefix(&begin));
        let micros = line.and_then(|line| line.split("usec=").nth(1)?.split(',').next());
        micros.map_or(0, |micros| micros.parse().unwrap())
    };
    let set = if contender == Contender::Bare { micros("set") } else { 0 };
    Duration::from_micros(micros("evalsha") + set)
}

/// Returns how often the threads of this process have given their processors up.
fn voluntary_switches() -> u64 {
    let mut all = 0;
    for thread in fs::read_dir("/proc/self/task").unwrap().flatten() {
        let status = fs::read_to_string(thread.path().join("status")).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        all += line.map_or(0, |count| count.trim().parse::<u64>().unwrap());
    }
    all
}
