//! What entries of different sizes cost the server, beside a bare `SET` and `GET` of the same size.
//!
//! `cargo bench --bench large` starts a Redis server of its own. A figure is the time of the
//! server's main thread for one operation, from `INFO cpu`, and the time until the answer.
#![allow(missing_docs, unreachable_pub, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::time::{Duration, Instant};

use bellwether::{
    RedisBackend,
    backend::{Claim, Claimed, Edit, Entry, Mode, Store},
    key::{Family, Name, Namespace},
};
use bytes::Bytes;
use redis::aio::MultiplexedConnection;
use testkit::RedisServer;

const LIFE: Duration = Duration::from_secs(600);

#[tokio::main(flavor = "current_thread")]
async fn main() {
    all().await;
}

struct Bench {
    connection: MultiplexedConnection,
    backend: RedisBackend,
    name: Name,
    entry: Entry,
    runs: u32,
}

/// The time of the server, and the time until the answer.
type Cost = (Duration, Duration);

async fn all() {
    let server = RedisServer::start().await;
    let client = redis::Client::open(server.url()).unwrap();
    let mut connection = client.get_multiplexed_async_connection().await.unwrap();
    connection.set_response_timeout(Duration::from_secs(20));
    let backend =
        RedisBackend::builder().server(server.url()).command_timeout(LIFE).build().unwrap();
    let name = name("large");
    println!("server time and time to the answer, as ratios to a bare command of the same size");
    for (size, runs) in [(100, 4000), (50_000, 2000), (400_000, 400), (1 << 20, 200), (8 << 20, 40)]
    {
        let entry = Entry::value(0, Duration::ZERO, Bytes::from(vec![7; size]));
        let backend = backend.clone();
        let name = name.clone();
        let mut bench = Bench { connection: connection.clone(), backend, name, entry, runs };
        bench.size(size).await;
    }
}

fn name(key: &str) -> Name {
    Name::new(&Namespace::standard(), Family::Cache, &key.into(), 512).unwrap()
}

impl Bench {
    async fn size(&mut self, size: usize) {
        let bytes = self.entry.encode();
        let raw = self.connection.clone();
        let set = async |_: &Self| {
            let mut set = redis::cmd("SET");
            set.arg("bare").arg(&bytes[..]).arg("PX").arg(600_000);
            set.exec_async(&mut raw.clone()).await.unwrap();
        };
        let put = async |bench: &Self| {
            bench
                .backend
                .edit(&bench.name, &Edit::Put(bench.entry.clone(), LIFE), LIFE)
                .await
                .unwrap();
        };
        let mut costs = Vec::new();
        let mut scripts = Vec::new();
        // In turns, since the machine is not quiet.
        for _ in 0..3 {
            let script = async |_: &Self| {
                let mut eval = redis::cmd("EVAL");
                eval.arg("return 1").arg(0).exec_async(&mut raw.clone()).await.unwrap();
            };
            scripts.push(self.cost(script).await);
            let set = self.cost(set).await;
            let put = self.cost(put).await;
            let get = self.cost(async |_: &Self| {
                let bytes: Bytes =
                    redis::cmd("GET").arg("bare").query_async(&mut raw.clone()).await.unwrap();
                assert!(bytes.len() > 36);
            });
            let get = get.await;
            let hit = async |bench: &Self| {
                bench.backend.get(&bench.name).await.unwrap().unwrap();
            };
            let hit = self.cost(hit).await;
            let newer = self.newer().await;
            let invalidate = self.invalidate().await;
            let set_new = self.set_new().await;
            let commit = self.commit().await;
            costs.push([set, put, commit, get, hit, newer, invalidate, set_new]);
        }
        let mean = |at: usize| {
            let sum =
                |of: fn(&Cost) -> Duration| costs.iter().map(|row| of(&row[at])).sum::<Duration>();
            (sum(|cost| cost.0) / 3, sum(|cost| cost.1) / 3)
        };
        let script = scripts.iter().map(|cost| cost.0).sum::<Duration>() / 3;
        println!(
            "\n{size} B: bare SET {:?}, of a new key {:?}, bare GET {:?}, an empty script \
             {script:?} of the server",
            mean(0),
            mean(7),
            mean(3)
        );
        for (at, base, what) in [
            (1, 0, "put"),
            (2, 7, "commit"),
            (4, 3, "hit"),
            (5, 3, "claim that finds it"),
            (6, 0, "invalidate"),
        ] {
            let ours = mean(at);
            let base = mean(base);
            let ratio = |ours: Duration, base: Duration| ours.as_secs_f64() / base.as_secs_f64();
            println!(
                "{what:>20}: {:>9.1?} of the server ({:.2}), {:>9.1?} to the answer ({:.2})",
                ours.0,
                ratio(ours.0, base.0),
                ours.1,
                ratio(ours.1, base.1)
            );
        }
    }

    async fn cost(&self, run: impl AsyncFn(&Self)) -> Cost {
        run(self).await;
        let before = self.server_time().await;
        let begun = Instant::now();
        for _ in 0..self.runs {
            run(self).await;
        }
        let took = begun.elapsed();
        ((self.server_time().await - before) / self.runs, took / self.runs)
    }

    /// The cost of a bare `SET` of a new key, alone as a commit is.
    async fn set_new(&self) -> Cost {
        let bytes = self.entry.encode();
        let mut raw = self.connection.clone();
        let mut sum = (Duration::ZERO, Duration::ZERO);
        let asking = self.asking().await;
        for run in 0..self.runs.min(200) {
            let mut set = redis::cmd("SET");
            set.arg(format!("new-{run}")).arg(&bytes[..]).arg("PX").arg(600_000);
            let before = self.server_time().await;
            let begun = Instant::now();
            set.exec_async(&mut raw).await.unwrap();
            sum.1 += begun.elapsed();
            sum.0 += (self.server_time().await - before).saturating_sub(asking);
        }
        self.flush().await;
        (sum.0 / self.runs.min(200), sum.1 / self.runs.min(200))
    }

    /// The cost of a commit of a new key, without the claim before it.
    async fn commit(&self) -> Cost {
        let mut sum = (Duration::ZERO, Duration::ZERO);
        let asking = self.asking().await;
        for run in 0..self.runs.min(200) {
            let name = name(&format!("new-{run}"));
            let claim = Claim::new(name, Mode::Exclusive, LIFE, LIFE);
            let Claimed::Granted(grant) = self.backend.claim(&claim, 0).await.unwrap() else {
                panic!("the name is free");
            };
            let before = self.server_time().await;
            let begun = Instant::now();
            self.backend.commit(&claim, &grant, &self.entry, Some(LIFE)).await.unwrap();
            sum.1 += begun.elapsed();
            sum.0 += (self.server_time().await - before).saturating_sub(asking);
        }
        self.flush().await;
        (sum.0 / self.runs.min(200), sum.1 / self.runs.min(200))
    }

    async fn flush(&self) {
        redis::cmd("FLUSHALL").exec_async(&mut self.connection.clone()).await.unwrap();
    }

    async fn newer(&self) -> Cost {
        self.cost(async |bench: &Self| {
            let claim = Claim::new(bench.name.clone(), Mode::Exclusive, LIFE, LIFE);
            let claimed = bench.backend.claim(&claim, 0).await.unwrap();
            assert!(matches!(claimed, Claimed::Newer(_)));
        })
        .await
    }

    /// The cost of an invalidation, without the put before it.
    async fn invalidate(&self) -> Cost {
        let mut sum = (Duration::ZERO, Duration::ZERO);
        let asking = self.asking().await;
        for _ in 0..self.runs.min(200) {
            self.backend
                .edit(&self.name, &Edit::Put(self.entry.clone(), LIFE), LIFE)
                .await
                .unwrap();
            let before = self.server_time().await;
            let begun = Instant::now();
            self.backend.edit(&self.name, &Edit::Invalidate, LIFE).await.unwrap();
            sum.1 += begun.elapsed();
            sum.0 += (self.server_time().await - before).saturating_sub(asking);
        }
        (sum.0 / self.runs.min(200), sum.1 / self.runs.min(200))
    }

    /// Returns what the question for the server's time costs the server.
    async fn asking(&self) -> Duration {
        let begun = self.server_time().await;
        for _ in 0..100 {
            self.server_time().await;
        }
        (self.server_time().await - begun) / 101
    }

    /// Returns the time that the server's main thread has taken so far.
    async fn server_time(&self) -> Duration {
        let mut connection = self.connection.clone();
        let info: String =
            redis::cmd("INFO").arg("cpu").query_async(&mut connection).await.unwrap();
        let field = |name: &str| {
            let line = info.lines().find_map(|line| line.strip_prefix(name)).unwrap();
            line.trim_start_matches(':').parse::<f64>().unwrap()
        };
        let seconds = field("used_cpu_user_main_thread") + field("used_cpu_sys_main_thread");
        Duration::from_secs_f64(seconds)
    }
}
