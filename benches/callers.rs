//! Many callers of one process: the time from the landing of a flight until the last of them is
//! served, and the bytes of the heap that a flight and a waiter take.
//!
//! `cargo bench --bench callers [-- part...]` starts a Redis server of its own. The parts are
//! `copies`, `crowd`, `memory`, `redis` and `waits`. The bytes are allocated while all callers
//! wait. They include the task and the future of each caller, which has a task of its own.
#![allow(missing_docs, unreachable_pub, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::{
    alloc::System,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use bellwether::{BoxError, Cache, MemoryBackend, RedisBackend, backend::Store, cache::LocalTier};
use futures_util::poll;
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use testkit::RedisServer;
use tokio::{sync::Notify, task::JoinSet, time::sleep};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const LIFE: Duration = Duration::from_secs(120);
const ROUNDS: usize = 3;

fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async { tokio::spawn(all()).await.unwrap() });
}

async fn all() {
    let wanted: Vec<String> =
        std::env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
    let is_wanted = |part: &str| wanted.is_empty() || wanted.iter().any(|word| word == part);
    if is_wanted("copies") {
        copies().await;
    }
    if is_wanted("crowd") {
        println!("callers of one key: from its landing to the last, and bytes for each\n");
        for callers in [1_000, 10_000, 100_000] {
            let (took, bytes) = crowd(callers).await;
            println!("{callers:8} {:10.1} ms {bytes:8} B", took.as_secs_f64() * 1e3);
        }
    }
    println!("\nbytes for each of {KEYS} callers with a key of its own\n");
    let server = RedisServer::start().await;
    if is_wanted("memory") {
        row("a load of its own, in memory", loads(MemoryBackend::new()).await);
    }
    if is_wanted("redis") {
        row("a load of its own, over Redis", loads(redis(&server)).await);
    }
    if is_wanted("waits") {
        row("a load of another process", waits(&server).await);
    }
}

fn row(what: &str, bytes: usize) {
    println!("{what:40} {bytes:6} B");
}

fn redis(server: &RedisServer) -> RedisBackend {
    // A busy machine must not cause a time-out.
    let builder = RedisBackend::builder().server(server.url()).command_timeout(LIFE);
    builder.build().unwrap()
}

fn cache(backend: impl Store) -> Cache<u64> {
    let builder =
        Cache::builder(backend, "bellwether").max_loads(1 << 20).load_limit(LIFE).wait_limit(LIFE);
    let builder = builder.max_waiters(1 << 20).max_waiters_per_key(1 << 20).lease(LIFE);
    builder.build().unwrap()
}

/// The bytes that are allocated since a region began.
fn allocated(region: &Region<'_, System>) -> usize {
    let change = region.change();
    change.bytes_allocated.saturating_sub(change.bytes_deallocated)
}

/// Asserts that a caller that is served a copy of the local tier allocates nothing.
async fn copies() {
    let builder = Cache::<u64>::builder(MemoryBackend::new(), "bellwether").ttl(LIFE);
    let cache = builder.local(LocalTier::default().max_age(LIFE)).build().unwrap();
    cache.insert("k", &7).await.unwrap();
    assert_eq!(cache.get("k").await.unwrap(), Some(7));
    let load = |_| async { Err::<u64, _>(BoxError::from("there is a copy")) };
    let region = Region::new(ALLOCATOR);
    for _ in 0..1_000 {
        assert_eq!(cache.get_or_load("k", load).await.unwrap(), 7);
        assert_eq!(cache.get_local("k"), Some(7));
    }
    let allocations = region.change().allocations;
    println!("{allocations} allocations for 2,000 copies of the local tier\n");
    assert_eq!((allocations, cache.stats().local), (0, 2_000));
}

/// Starts callers of one key. Returns the time from the landing to the last, and the bytes of each.
async fn crowd(callers: usize) -> (Duration, usize) {
    let cache = cache(MemoryBackend::new());
    let mut times = Vec::new();
    let mut bytes = 0;
    for round in 0..ROUNDS {
        let begin = Arc::new(Notify::new());
        let joined = Arc::new(AtomicUsize::new(0));
        let region = Region::new(ALLOCATOR);
        let mut tasks = JoinSet::new();
        for _ in 0..callers {
            let request = cache.request(round);
            let begin = begin.clone();
            let joined = joined.clone();
            tasks.spawn(async move {
                let load = move |_| async move {
                    begin.notified().await;
                    Ok::<_, BoxError>(7)
                };
                let mut served = pin!(request.load(load));
                assert!(poll!(served.as_mut()).is_pending());
                joined.fetch_add(1, Ordering::SeqCst);
                assert_eq!(served.await.unwrap().value, 7);
            });
        }
        while joined.load(Ordering::SeqCst) < callers {
            sleep(Duration::from_millis(10)).await;
        }
        bytes = allocated(&region) / callers;
        let landed = Instant::now();
        begin.notify_one();
        while let Some(served) = tasks.join_next().await {
            served.unwrap();
        }
        times.push(landed.elapsed());
    }
    times.sort();
    (times[times.len() / 2], bytes)
}

const KEYS: usize = 10_000;

fn key(what: &str, at: usize) -> String {
    format!("{what}-{at}")
}

/// Starts a load of each key. Returns its tasks when all loads run.
async fn started(cache: &Cache<u64>, what: &str, done: &Arc<Notify>) -> JoinSet<()> {
    let running = Arc::new(AtomicUsize::new(0));
    let mut tasks = JoinSet::new();
    for at in 0..KEYS {
        let request = cache.request(key(what, at));
        let running = running.clone();
        let done = done.clone();
        tasks.spawn(async move {
            let load = move |_| async move {
                running.fetch_add(1, Ordering::SeqCst);
                done.notified().await;
                Ok::<_, BoxError>(7)
            };
            request.load(load).await.unwrap();
        });
    }
    while running.load(Ordering::SeqCst) < KEYS {
        sleep(Duration::from_millis(10)).await;
    }
    tasks
}

/// Returns the bytes of a caller that loads.
async fn loads(backend: impl Store) -> usize {
    let cache = cache(backend);
    let done = Arc::default();
    cache.request("warm").load(|_| async { Ok::<_, BoxError>(7) }).await.unwrap();
    let region = Region::new(ALLOCATOR);
    let tasks = started(&cache, "own", &done).await;
    let bytes = allocated(&region) / KEYS;
    done.notify_waiters();
    tasks.join_all().await;
    bytes
}

/// Returns the bytes of a caller that waits for a load of another process.
async fn waits(server: &RedisServer) -> usize {
    let [here, there] = [(); 2].map(|()| cache(redis(server)));
    let done = Arc::default();
    let loads = started(&here, "other", &done).await;
    there.request("warm").load(|_| async { Ok::<_, BoxError>(7) }).await.unwrap();
    let region = Region::new(ALLOCATOR);
    let mut waits = JoinSet::new();
    for at in 0..KEYS {
        let request = there.request(key("other", at));
        waits.spawn(async move {
            let load = |_| async { Err::<u64, _>(BoxError::from("another process loads")) };
            request.load(load).await.unwrap();
        });
    }
    let mut raw = server.raw().await;
    let last = format!("bellwether:c:{{{}}}:l", key("other", KEYS - 1));
    while !raw.run::<String>(&["GET", &last]).await.contains(',') {
        sleep(Duration::from_millis(10)).await;
    }
    // The answers are read by then.
    sleep(Duration::from_millis(500)).await;
    let bytes = allocated(&region) / KEYS;
    done.notify_waiters();
    loads.join_all().await;
    waits.join_all().await;
    bytes
}
