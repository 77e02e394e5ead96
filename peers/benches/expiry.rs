//! What an expiry costs in six processes: how many of them load, and how long the slowest caller
//! waits.
//!
//! `cargo bench --manifest-path peers/Cargo.toml --bench expiry` starts a Redis server of its own,
//! and six processes for each contender. In each round, 20 callers of each process ask for a key
//! that no cache has, at once. A load takes 50 ms. The contenders take turns, each with its usual
//! settings.
//!
//! One contender is what Redis's own guide for cache-aside with redis-rs builds
//! (<https://redis.io/docs/latest/develop/use-cases/cache-aside/rust/>, read in November 2026): a
//! hash, a lock by `SET NX PX` for 2 s, and waiters that look each 25 ms.
#![allow(missing_docs, unreachable_pub, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::{
    collections::HashMap,
    convert::Infallible,
    env,
    future::Future,
    pin::Pin,
    process::Stdio,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use amalgam::{
    EntryOptions,
    provider::{JsonSerializer, RedisBackplane, RedisDistributedCache, RedisDistributedLocker},
};
use axum::http::{Request, Response, header};
use bellwether::{BoxError, Cache, RedisBackend};
use bytes::Bytes;
use futures_util::future::join_all;
use http_body_util::{BodyExt, Full};
use multi_tier_cache::{CacheStrategy, CacheSystem};
use redis::{AsyncCommands, Script, aio::ConnectionManager};
use report::figures::{Chart, Rows, Statistic, turns};
use serde::{Deserialize, Serialize};
use testkit::RedisServer;
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines},
    process::{Child, ChildStdin, ChildStdout, Command},
    time::sleep,
};
use tower::{Layer, ServiceExt, service_fn};
use tower_http_cache::{backend, layer::CacheLayer};

const PROCESSES: usize = 6;
const CALLERS: usize = 20;
const LOAD: Duration = Duration::from_millis(50);
const LIFE: Duration = Duration::from_secs(60);
const VALUE: &str = "a product with a name, a price and a stock";

const NAMES: [(&str, &str); 5] = [
    ("bellwether", "the last caller in six processes"),
    ("guide", "Redis's guide for redis-rs"),
    ("multi-tier-cache", "multi-tier-cache"),
    ("tower-http-cache", "tower-http-cache, Redis"),
    ("amalgam", "amalgam-cache with its Redis locker"),
];

/// Asks for a key, and loads the value if it is missing.
type Ask = Arc<dyn Fn(String) -> Pin<Box<dyn Future<Output = ()> + Send>> + Send + Sync>;

/// What one process saw in one round.
#[derive(Serialize, Deserialize)]
struct Seen {
    loads: u32,
    slowest: Duration,
}

fn main() {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    // The task is spawned, so that no measured future runs in `block_on`.
    runtime.block_on(async {
        match arguments.as_slice() {
            [role, name, url] if role == "worker" => {
                let worker = work(name.clone(), url.clone());
                tokio::spawn(worker).await.unwrap();
            }
            _ => tokio::spawn(all()).await.unwrap(),
        }
    });
}

async fn all() {
    let server = RedisServer::start().await;
    let mut fleets = Vec::new();
    for (name, words) in NAMES {
        let fleet: Vec<_> = (0..PROCESSES).map(|_| Worker::start(name, &server.url())).collect();
        fleets.push((name, words, fleet, Vec::new(), Vec::new()));
    }
    // The first round opens connections, and is not measured.
    for round in 0..=turns(100) {
        for (name, _, fleet, loads, times) in &mut fleets {
            let seen = one_round(fleet, &format!("{name}-{round}")).await;
            if round > 0 {
                loads.push(seen.loads);
                times.push(seen.slowest.saturating_sub(LOAD));
            }
        }
    }
    let rows = Rows {
        chart: Chart::ColdKey,
        command: "cargo bench --manifest-path peers/Cargo.toml --bench expiry",
        statistic: Statistic::Median,
    };
    let mut figures = Vec::new();
    for (_, words, _, loads, times) in fleets {
        figures.push((format!("{words} ({})", shown(loads)), times));
    }
    let (what, ours) = &figures[0];
    for (words, theirs) in &figures[1..] {
        rows.peer((what, ours), (words, theirs)).unwrap();
    }
}

/// Shows how many of the processes loaded: in the middle of all rounds, and at most.
fn shown(mut loads: Vec<u32>) -> String {
    loads.sort_unstable();
    let middle = loads[loads.len() / 2];
    let most = loads[loads.len() - 1];
    match (middle, most) {
        (1, 1) => "1 load".to_owned(),
        _ if middle == most => format!("{middle} loads"),
        _ => format!("{middle} loads, at most {most}"),
    }
}

async fn one_round(fleet: &mut [Worker], key: &str) -> Seen {
    for worker in fleet.iter_mut() {
        worker.input.write_all(format!("{key}\n").as_bytes()).await.unwrap();
        worker.input.flush().await.unwrap();
    }
    let mut all = Seen { loads: 0, slowest: Duration::ZERO };
    for worker in fleet {
        let line = worker.lines.next_line().await.unwrap().expect("the worker goes on");
        let seen: Seen = serde_json::from_str(&line).unwrap();
        all.loads += seen.loads;
        all.slowest = all.slowest.max(seen.slowest);
    }
    all
}

/// A process of a contender. It ends with its standard input.
struct Worker {
    _child: Child,
    input: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Worker {
    fn start(name: &str, url: &str) -> Self {
        let mut child = Command::new(env::current_exe().unwrap())
            .args(["worker", name, url])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let input = child.stdin.take().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { _child: child, input, lines }
    }
}

/// Runs the rounds of one process.
async fn work(name: String, url: String) {
    let loads = Arc::new(AtomicU32::new(0));
    let ask = contender(&name, &url, loads.clone()).await;
    let mut keys = BufReader::new(tokio::io::stdin()).lines();
    while let Ok(Some(key)) = keys.next_line().await {
        let callers = (0..CALLERS).map(|_| {
            let asked = ask(key.clone());
            tokio::spawn(async move {
                let begun = Instant::now();
                asked.await;
                begun.elapsed()
            })
        });
        let times = join_all(callers).await.into_iter().map(Result::unwrap);
        let seen = Seen { loads: loads.swap(0, Ordering::Relaxed), slowest: times.max().unwrap() };
        println!("{}", serde_json::to_string(&seen).unwrap());
    }
}

async fn load(loads: Arc<AtomicU32>) -> String {
    loads.fetch_add(1, Ordering::Relaxed);
    sleep(LOAD).await;
    VALUE.to_owned()
}

async fn contender(name: &str, url: &str, loads: Arc<AtomicU32>) -> Ask {
    match name {
        "bellwether" => bellwether(url, loads),
        "guide" => guide(url, loads).await,
        "multi-tier-cache" => multi_tier(url, loads).await,
        "tower-http-cache" => tower_http(url, loads).await,
        "amalgam" => amalgam(url, loads).await,
        other => panic!("there is no contender {other}"),
    }
}

fn bellwether(url: &str, loads: Arc<AtomicU32>) -> Ask {
    let backend = RedisBackend::open(url).unwrap();
    let cache: Cache<String> = Cache::builder(backend, "expiry").ttl(LIFE).build().unwrap();
    Arc::new(move |key| {
        let cache = cache.clone();
        let loads = loads.clone();
        Box::pin(async move {
            let load = |_| async { Ok::<_, BoxError>(load(loads).await) };
            assert_eq!(cache.get_or_load(key, load).await.unwrap(), VALUE);
        })
    })
}

async fn guide(url: &str, loads: Arc<AtomicU32>) -> Ask {
    let client = redis::Client::open(url).unwrap();
    let aside = Arc::new(Aside {
        connection: client.get_connection_manager().await.unwrap(),
        acquire: Script::new(
            "if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then return 1 end \
             return 0",
        ),
        release: Script::new(
            "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end \
             return 0",
        ),
        loads,
    });
    Arc::new(move |key| {
        let aside = aside.clone();
        Box::pin(async move {
            assert_eq!(aside.get(&key).await["value"], VALUE);
        })
    })
}

/// Cache-aside with a lock, as the guide has it.
struct Aside {
    connection: ConnectionManager,
    acquire: Script,
    release: Script,
    loads: Arc<AtomicU32>,
}

impl Aside {
    async fn get(&self, key: &str) -> HashMap<String, String> {
        let entry = format!("cache:{key}");
        let mut connection = self.connection.clone();
        let cached: HashMap<String, String> = connection.hgetall(&entry).await.unwrap();
        if cached.is_empty() { self.load_once(key, &entry).await } else { cached }
    }

    async fn load_once(&self, key: &str, entry: &str) -> HashMap<String, String> {
        const LOCK: Duration = Duration::from_secs(2);
        const POLL: Duration = Duration::from_millis(25);
        let lock = format!("lock:{key}");
        let token = format!("{:016x}", fastrand::u64(..));
        let mut connection = self.connection.clone();
        let mut acquire = self.acquire.key(&lock);
        acquire.arg(&token).arg(u64::try_from(LOCK.as_millis()).unwrap());
        let acquired: u8 = acquire.invoke_async(&mut connection).await.unwrap();
        if acquired == 1 {
            let value = self.row().await;
            let mut store = redis::pipe();
            store.atomic().del(entry).ignore().hset(entry, "value", &value["value"]).ignore();
            store.expire(entry, 60).ignore();
            store.query_async::<()>(&mut connection).await.unwrap();
            let mut release = self.release.key(&lock);
            release.arg(&token).invoke_async::<u8>(&mut connection).await.unwrap();
            return value;
        }
        let end = Instant::now() + LOCK;
        while Instant::now() < end {
            sleep(POLL).await;
            let cached: HashMap<String, String> = connection.hgetall(entry).await.unwrap();
            if !cached.is_empty() {
                return cached;
            }
        }
        self.row().await
    }

    async fn row(&self) -> HashMap<String, String> {
        HashMap::from([("value".to_owned(), load(self.loads.clone()).await)])
    }
}

async fn multi_tier(url: &str, loads: Arc<AtomicU32>) -> Ask {
    let system = CacheSystem::with_redis_url(url).await.unwrap();
    let cache = system.cache_manager().clone();
    Arc::new(move |key| {
        let cache = cache.clone();
        let loads = loads.clone();
        Box::pin(async move {
            let load = || async { Ok(Bytes::from(load(loads).await)) };
            let life = CacheStrategy::Custom(LIFE);
            let value = cache.get_or_compute_with(&key, life, load).await.unwrap();
            assert_eq!(value, VALUE);
        })
    })
}

async fn tower_http(url: &str, loads: Arc<AtomicU32>) -> Ask {
    let client = redis::Client::open(url).unwrap().get_connection_manager().await.unwrap();
    let page = service_fn(move |_: Request<Full<Bytes>>| {
        let loads = loads.clone();
        async move {
            let body = Full::new(Bytes::from(load(loads).await));
            let response = Response::builder().header(header::CACHE_CONTROL, "max-age=60");
            Ok::<_, Infallible>(response.body(body).unwrap())
        }
    });
    let redis = backend::redis::RedisBackend::new(client);
    let service = CacheLayer::builder(redis).ttl(LIFE).build().layer(page);
    Arc::new(move |key| {
        let service = service.clone();
        Box::pin(async move {
            let request = Request::get(format!("/{key}")).body(Full::new(Bytes::new())).unwrap();
            let response = service.oneshot(request).await.unwrap();
            let body = response.into_body().collect().await.unwrap().to_bytes();
            assert_eq!(body, VALUE);
        })
    })
}

async fn amalgam(url: &str, loads: Arc<AtomicU32>) -> Ask {
    let cache: amalgam::Cache<String> = amalgam::Cache::builder()
        .distributed(Arc::new(RedisDistributedCache::connect(url).await.unwrap()))
        .serializer(Arc::new(JsonSerializer))
        .backplane(Arc::new(RedisBackplane::connect(url).await.unwrap()))
        .distributed_locker(Arc::new(RedisDistributedLocker::connect(url).await.unwrap()))
        .default_options(EntryOptions::new(LIFE))
        .instance_id(std::process::id().to_string())
        .try_build()
        .unwrap();
    let cache = Arc::new(cache);
    Arc::new(move |key| {
        let cache = cache.clone();
        let loads = loads.clone();
        Box::pin(async move {
            let load = |_| async { Ok::<_, Infallible>(load(loads).await) };
            assert_eq!(cache.get_or_set(key, load).await.unwrap(), VALUE);
        })
    })
}
