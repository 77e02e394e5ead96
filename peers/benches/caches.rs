//! Caches of other crates beside this one: hits, cold keys, and a load that another process waits
//! for.
//!
//! `cargo bench --manifest-path peers/Cargo.toml --bench caches [-- part...]` starts a Redis server
//! of its own. The parts are `process`, `redis`, `crowd` and `fleet`. Each cache has its usual
//! settings and its usual codec, unless the row says otherwise. The contenders of a row take turns.
//!
//! One contender of `redis` is what Redis's own guide for cache-aside with redis-rs builds: each
//! entry is a hash. The bench `expiry` has the rest of that guide.
#![allow(missing_docs, unreachable_pub, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::{
    collections::HashMap,
    convert::Infallible,
    future::Future,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use amalgam::{
    EntryOptions,
    provider::{JsonSerializer, RedisBackplane, RedisDistributedCache, RedisDistributedLocker},
};
use bellwether::{BoxError, Cache, MemoryBackend, RedisBackend, cache::LocalTier};
use bytes::Bytes;
use cached::{AsyncRedisCache, ConcurrentCachedAsync, macros::cached};
use cpu_time::ProcessTime;
use redis::AsyncCommands;
use report::figures::{Chart, Rows, Statistic, turns};
use testkit::RedisServer;
use tokio::time::sleep;

const LONG: Duration = Duration::from_secs(3_600);
const LOAD: Duration = Duration::from_millis(50);

/// Measures the mean time of a block over many runs.
macro_rules! timed {
    ($times:expr, $what:block) => {{
        let begun = Instant::now();
        for _ in 0..$times {
            $what
        }
        begun.elapsed() / $times
    }};
}

fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    // The task is spawned, so that no measured future runs in `block_on`.
    runtime.block_on(async { tokio::spawn(all()).await.unwrap() });
}

async fn all() {
    let wanted: Vec<String> =
        std::env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
    let is_wanted = |part: &str| wanted.is_empty() || wanted.iter().any(|word| word == part);
    let server = RedisServer::start().await;
    if is_wanted("process") {
        in_process().await;
    }
    if is_wanted("redis") {
        over_redis(&server.url()).await;
    }
    if is_wanted("crowd") {
        crowds().await;
    }
    if is_wanted("fleet") {
        fleet(&server.url()).await;
    }
}

fn rows(chart: Chart, statistic: Statistic) -> Rows {
    let command = "cargo bench --manifest-path peers/Cargo.toml --bench caches";
    Rows { chart, command, statistic }
}

/// A function whose values `cached` keeps in the process.
#[cached(max_size = 10_000)]
async fn memoized(_id: u64) -> Bytes {
    Bytes::from(vec![b'v'; 100])
}

/// Measures hits in the process.
async fn in_process() {
    const HITS: u32 = 2_000;
    let value = Bytes::from(vec![b'v'; 100]);
    let ours =
        Cache::<Bytes>::builder(MemoryBackend::new(), "bellwether").codec(bellwether::cache::Raw);
    let ours = ours.ttl(LONG).local(LocalTier::default().max_age(LONG)).build().unwrap();
    ours.insert("hit", &value).await.unwrap();
    assert!(ours.get("hit").await.unwrap().is_some());
    let amalgam = amalgam_in_process::<Bytes>();
    amalgam.set("hit", value).await.unwrap();
    memoized(1).await;
    let load = |_| async { Err::<Bytes, _>(BoxError::from("there is a copy")) };
    let mut times = [const { Vec::new() }; 4];
    for _ in 0..turns(600) {
        times[0].push(timed!(HITS, { assert!(ours.get_local("hit").is_some()) }));
        times[1].push(timed!(HITS, { assert!(amalgam.try_get("hit").await.unwrap().is_some()) }));
        times[2].push(timed!(HITS, { assert!(!memoized(1).await.is_empty()) }));
        times[3].push(timed!(HITS, { assert!(ours.get_or_load("hit", load).await.is_ok()) }));
    }
    let [ours, amalgam, cached, load] = &times;
    let rows = rows(Chart::Hit, Statistic::Median);
    let of_amalgam = ("amalgam-cache, in its memory", amalgam.as_slice());
    rows.peer(("get_local", ours), of_amalgam).unwrap();
    rows.peer(("get_or_load of a copy", load), of_amalgam).unwrap();
    rows.peer(("get_local", ours), ("an async function with #[cached]", cached)).unwrap();
}

fn amalgam_in_process<V: Clone + Send + Sync + 'static>() -> amalgam::Cache<V> {
    amalgam::Cache::builder().default_options(EntryOptions::new(LONG)).try_build().unwrap()
}

/// Measures hits that ask the server.
async fn over_redis(url: &str) {
    const HITS: u32 = 30;
    let value = "v".repeat(128);
    let ours: Cache<String> =
        Cache::builder(RedisBackend::open(url).unwrap(), "ours").build().unwrap();
    ours.insert("hit", &value).await.unwrap();
    let far = EntryOptions::new(LONG).with_skip_memory(true, true);
    let amalgam = amalgam_over_redis(url, "far", far).await;
    amalgam.set("hit", value.clone()).await.unwrap();
    let cached: AsyncRedisCache<String, String> =
        AsyncRedisCache::builder("cached").ttl(LONG).connection_string(url).build().await.unwrap();
    let key = "hit".to_owned();
    cached.async_cache_set(key.clone(), value.clone()).await.unwrap();
    let client = redis::Client::open(url).unwrap();
    let mut guide = client.get_connection_manager().await.unwrap();
    guide.hset::<_, _, _, ()>("cache:hit", "value", value).await.unwrap();
    guide.expire::<_, ()>("cache:hit", 3_600).await.unwrap();
    let mut times = [const { Vec::new() }; 4];
    for _ in 0..turns(1_000) {
        times[0].push(timed!(HITS, { assert!(ours.get("hit").await.unwrap().is_some()) }));
        times[1].push(timed!(HITS, { assert!(amalgam.try_get("hit").await.unwrap().is_some()) }));
        times[2].push(timed!(HITS, {
            assert!(cached.async_cache_get(&key).await.unwrap().is_some());
        }));
        times[3].push(timed!(HITS, {
            let entry: HashMap<String, String> = guide.hgetall("cache:hit").await.unwrap();
            assert!(!entry.is_empty());
        }));
    }
    let [ours, amalgam, cached, guide] = &times;
    let rows = rows(Chart::Hit, Statistic::Mean);
    let ours = ("a hit from Redis", ours.as_slice());
    rows.peer(ours, ("amalgam-cache without its memory", amalgam)).unwrap();
    rows.peer(ours, ("cached::AsyncRedisCache", cached)).unwrap();
    rows.peer(ours, ("Redis's guide for redis-rs, HGETALL", guide)).unwrap();
}

async fn amalgam_over_redis(
    url: &str,
    process: &str,
    options: EntryOptions,
) -> amalgam::Cache<String> {
    amalgam::Cache::builder()
        .distributed(Arc::new(RedisDistributedCache::connect(url).await.unwrap()))
        .serializer(Arc::new(JsonSerializer))
        .backplane(Arc::new(RedisBackplane::connect(url).await.unwrap()))
        .distributed_locker(Arc::new(RedisDistributedLocker::connect(url).await.unwrap()))
        .default_options(options)
        .instance_id(process)
        .try_build()
        .unwrap()
}

/// A function that `cached` runs once for all callers of a key.
#[cached(max_size = 10_000, sync_writes = "by_key")]
async fn loaded_once(_id: usize) -> u64 {
    sleep(LOAD).await;
    7
}

/// Measures the processor time of each caller of a cold key.
async fn crowds() {
    let ours: Cache<u64> = Cache::builder(MemoryBackend::new(), "bellwether").build().unwrap();
    let moka: moka::future::Cache<usize, u64> = moka::future::Cache::new(10_000);
    let amalgam = Arc::new(amalgam_in_process::<u64>());
    let mut times = [const { Vec::new() }; 4];
    for round in 0..turns(40) {
        times[0].push(
            crowd(|| {
                let ours = ours.clone();
                async move { ours.get_or_load(round, |_| load()).await.unwrap() }
            })
            .await,
        );
        times[1].push(
            crowd(|| {
                let moka = moka.clone();
                async move { moka.get_with(round, async { load().await.unwrap() }).await }
            })
            .await,
        );
        times[2].push(
            crowd(|| {
                let amalgam = amalgam.clone();
                async move {
                    let load = |_| async { Ok::<_, Infallible>(load().await.unwrap()) };
                    amalgam.get_or_set(round.to_string(), load).await.unwrap()
                }
            })
            .await,
        );
        times[3].push(crowd(|| loaded_once(round)).await);
    }
    let [ours, moka, amalgam, cached] = &times;
    let rows = rows(Chart::ColdKey, Statistic::Mean);
    let ours = ("a caller of a cold key, processor time", ours.as_slice());
    rows.peer(ours, ("moka::future::Cache::get_with", moka)).unwrap();
    rows.peer(ours, ("amalgam-cache, get_or_set", amalgam)).unwrap();
    rows.peer(ours, ("#[cached], sync_writes by key", cached)).unwrap();
}

async fn load() -> Result<u64, BoxError> {
    sleep(LOAD).await;
    Ok(7)
}

/// Returns the processor time of each of 5,000 callers.
async fn crowd<F>(ask: impl Fn() -> F) -> Duration
where
    F: Future<Output = u64> + Send + 'static,
{
    const CALLERS: u32 = 5_000;
    let begun = ProcessTime::now();
    let tasks: Vec<_> = (0..CALLERS).map(|_| tokio::spawn(ask())).collect();
    for task in tasks {
        assert_eq!(task.await.unwrap(), 7);
    }
    begun.elapsed() / CALLERS
}

/// Measures the time from the end of a load to the answer of a caller in another process. Both
/// "processes" are caches of this one, with connections of their own.
async fn fleet(url: &str) {
    let ours: [Cache<String>; 2] =
        [0, 1].map(|_| Cache::builder(RedisBackend::open(url).unwrap(), "fleet").build().unwrap());
    let mut theirs = Vec::new();
    for process in ["here", "there"] {
        let options = EntryOptions::new(LONG);
        theirs.push(Arc::new(amalgam_over_redis(url, process, options).await));
    }
    let mut times = [const { Vec::new() }; 2];
    for turn in 0..turns(200) {
        let ask = |process: usize, end: End| {
            let (ours, key) = (ours[process].clone(), format!("cold-{turn}"));
            async move { ours.get_or_load(key, |_| end.load()).await.unwrap() }
        };
        times[0].push(handed_over(ask).await);
        let ask = |process: usize, end: End| {
            let (theirs, key) = (theirs[process].clone(), format!("cold-{turn}"));
            async move { theirs.get_or_set(key, |_| end.load()).await.unwrap() }
        };
        times[1].push(handed_over(ask).await);
    }
    let [ours, amalgam] = &times;
    let rows = rows(Chart::ColdKey, Statistic::Median);
    let ours = ("end of a load to a waiter elsewhere", ours.as_slice());
    rows.peer(ours, ("amalgam-cache with its Redis locker", amalgam)).unwrap();
}

/// When a load has ended.
#[derive(Clone, Default)]
struct End(Arc<Mutex<Option<Instant>>>);

impl End {
    async fn load(self) -> Result<String, Infallible> {
        sleep(LOAD).await;
        *self.0.lock().unwrap() = Some(Instant::now());
        Ok("v".repeat(128))
    }
}

/// Returns the time from the end of the load in one process to the answer in another, whose caller
/// asks while the load is under way.
async fn handed_over<F>(ask: impl Fn(usize, End) -> F) -> Duration
where
    F: Future<Output = String> + Send + 'static,
{
    let end = End::default();
    let leader = tokio::spawn(ask(0, end.clone()));
    sleep(LOAD / 2).await;
    let waiter = ask(1, end.clone());
    let waiter = tokio::spawn(async move {
        waiter.await;
        Instant::now()
    });
    leader.await.unwrap();
    let answered = waiter.await.unwrap();
    let ended = end.0.lock().unwrap().take().unwrap();
    answered.saturating_duration_since(ended)
}
