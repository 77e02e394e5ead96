//! The cost of each step, compared with a minimum and with peers, as ratios in one run.
//!
//! `cargo bench --bench costs [-- part...]` starts a Redis server of its own. The parts are
//! `followers`, `local`, `names`, `tier`, `hits`, `tags`, `many`, `batches`, `rebuild`, `locks` and
//! `wake`.
//! Everything is measured from spawned tasks. In `block_on` on a multi-threaded runtime, each round
//! trip costs about three times as much.
//!
//! The contenders of a row take many short turns, and each figure is the mean of all. On two cores
//! a round trip takes about 30 us if client and server share a core, and about 130 us if they do
//! not. The scheduler stays with its choice for a while. A median of a few long turns could be
//! either figure, or any in between.
#![allow(missing_docs, unreachable_pub, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "costs/locks.rs"]
mod locks;

use std::{
    future::Future,
    sync::{
        Arc, OnceLock, Weak,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use bellwether::{
    BoxError, Cache, Locks, MemoryBackend, RedisBackend,
    backend::{Change, Claim, Claimed, Entry, Mode, Store, Tap},
    cache::{Batch, LocalTier, Raw},
    error::BackendError,
    key::{Family, Key, Name, Namespace},
};
use bytes::Bytes;
use cpu_time::ProcessTime;
use futures_util::{StreamExt, future::join_all};
use redis::aio::MultiplexedConnection;
use report::figures::{Chart, Rows, Statistic, turns};
use testkit::{
    RedisServer,
    interceptor::{Answer, Hook, Interceptor, Operation},
    proxy::Proxy,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::sleep,
};

const ROUNDS: usize = 61;
const LONG: Duration = Duration::from_secs(3600);

/// Measures the mean time of a block over many runs. It is a macro, because the future of a closure
/// could not be spawned.
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
    println!("All processes share the cores of this machine, with the server.\n");
    let wanted: Vec<String> =
        std::env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
    let is_wanted = |part: &str| wanted.is_empty() || wanted.iter().any(|word| word == part);
    if is_wanted("followers") {
        followers().await;
    }
    if is_wanted("local") {
        local_hits().await;
    }
    if is_wanted("names") {
        names().await;
    }
    let server = RedisServer::start().await;
    if is_wanted("tier") {
        tier(&server).await;
    }
    if is_wanted("hits") {
        hits(&server).await;
    }
    if is_wanted("tags") {
        tags(&server).await;
    }
    if is_wanted("many") {
        many_hits(&server).await;
    }
    if is_wanted("batches") {
        batches(&server).await;
    }
    if is_wanted("rebuild") {
        rebuild(&server).await;
    }
    if is_wanted("locks") {
        let url = server.url();
        // It has runtimes of its own.
        std::thread::spawn(move || locks::measure(&url)).join().unwrap();
    }
    if is_wanted("wake") {
        wake(&server).await;
    }
}

/// Measures hits of the local tier, beside caches of one process with the same keys and values.
async fn local_hits() {
    const TIMES: u32 = 2_000;
    const TURNS: usize = 600;
    let builder = Cache::<Bytes>::builder(MemoryBackend::new(), "bellwether").codec(Raw).ttl(LONG);
    let tier = LocalTier::default().max_age(LONG);
    let ours = builder.local(tier).build().unwrap();
    let in_process = Cache::<Bytes>::in_process(10_000).ttl(LONG).build().unwrap();
    let encoded = Cache::<String>::builder(MemoryBackend::new(), "encoded").ttl(LONG);
    let encoded = encoded.build().unwrap();
    let moka = moka::future::Cache::new(10_000);
    let quick = Arc::new(quick_cache::sync::Cache::<String, Bytes>::new(10_000));
    let keys: Vec<_> = (0..2).map(|at| format!("product:{at:08}")).collect();
    for key in &keys {
        let value = Bytes::from(vec![b'v'; 100]);
        ours.insert(key, &value).await.unwrap();
        assert!(ours.get(key).await.unwrap().is_some());
        in_process.insert(key, &value).await.unwrap();
        encoded.insert(key, &"v".repeat(1 << 10)).await.unwrap();
        moka.insert(key.clone(), value.clone()).await;
        quick.insert(key.clone(), value);
    }
    let key = keys[0].as_str();
    let mut figures = [const { Vec::new() }; 7];
    for _ in 0..turns(TURNS) {
        figures[0].push(timed!(TIMES, { assert!(ours.get_local(key).is_some()) }));
        figures[1].push(timed!(TIMES, { assert!(ours.get_or_load(key, never).await.is_ok()) }));
        figures[2].push(timed!(TIMES, {
            std::hint::black_box(Instant::now());
            assert!(quick.get(key).is_some());
        }));
        figures[3].push(timed!(TIMES, { assert!(moka.get(key).await.is_some()) }));
        figures[4].push(timed!(TIMES, { assert!(in_process.get(key).await.unwrap().is_some()) }));
        figures[5].push(timed!(TIMES, {
            assert!(in_process.get_or_load(key, never).await.is_ok());
        }));
        figures[6].push(timed!(TIMES, {
            assert!(encoded.get_or_load(key, never).await.is_ok());
        }));
    }
    let [local, load, quick_times, moka_times, get, load_in_process, decoded] = &figures;
    let rows = rows(Chart::Hit, "cargo bench --bench costs -- local", Statistic::Median);
    let of_moka = ("moka::future::Cache::get", moka_times.as_slice());
    rows.peer(("get_local", local), ("quick_cache::get and a clock", quick_times)).unwrap();
    rows.peer(("get_local", local), of_moka).unwrap();
    rows.peer(("get_or_load of a copy", load), of_moka).unwrap();
    rows.peer(("get of Cache::in_process", get), of_moka).unwrap();
    rows.peer(("get_or_load of Cache::in_process", load_in_process), of_moka).unwrap();
    rows.peer(("get_or_load over MemoryBackend, 1 KiB of JSON", decoded), of_moka).unwrap();
    for (what, other) in [("one key", &keys[0]), ("two keys", &keys[1])] {
        let both = [&keys[0], other].map(Clone::clone);
        let mut figures = [const { Vec::new() }; 4];
        for _ in 0..turns(TURNS) {
            for threads in 1..3 {
                let cache = ours.clone();
                let quick = quick.clone();
                let each =
                    move |key: &str| timed!(TIMES, { assert!(cache.get_local(key).is_some()) });
                figures[threads - 1].push(beside(&both[..threads], each));
                let each = move |key: &str| timed!(TIMES, { assert!(quick.get(key).is_some()) });
                figures[threads + 1].push(beside(&both[..threads], each));
            }
        }
        let [one, two, quick_one, quick_two] = figures.map(median);
        let scaling = |one: Duration, two: Duration| 2.0 * one.div_duration_f64(two);
        println!(
            "two threads on {what}: {:.2} times the reads of one; quick_cache {:.2}",
            scaling(one, two),
            scaling(quick_one, quick_two)
        );
    }
}

/// Answers for each name with the entry of one. Tells the tier of a change of every fourth name.
#[derive(Clone)]
struct Endless {
    stored: Name,
    asked: Arc<AtomicUsize>,
    tier: Arc<OnceLock<Weak<dyn Tap>>>,
}

impl<B: Store + Clone> Hook<B> for Endless {
    async fn around(&self, backend: &B, operation: Operation) -> Result<Answer, BackendError> {
        let Operation::Get { name, aged: true } = operation else {
            return operation.perform(backend).await;
        };
        if self.asked.fetch_add(1, Ordering::Relaxed).is_multiple_of(4) {
            let tier = self.tier.get().and_then(Weak::upgrade);
            tier.unwrap().changed(name.prefix(), u64::MAX);
        }
        Operation::Get { name: self.stored.clone(), aged: true }.perform(backend).await
    }

    fn tap(&self, _backend: &B, tier: Weak<dyn Tap>, _every: Duration) -> bool {
        self.tier.set(tier).is_ok()
    }
}

/// Measures the memory of the process while ten million names pass through a local tier.
async fn names() {
    const NAMES: usize = 10_000_000;
    let hook = Endless {
        stored: name("stored", Family::Cache),
        asked: Arc::default(),
        tier: Arc::default(),
    };
    let backend = Interceptor { inner: MemoryBackend::new(), hook };
    let tier = LocalTier::default().max_age(LONG);
    let cache =
        Cache::<String>::builder(backend, "bellwether").ttl(LONG).local(tier).build().unwrap();
    cache.insert("stored", &"v".repeat(128)).await.unwrap();
    let resident = || {
        let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
        pages.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
    };
    let before = resident();
    let mut most = 0;
    let begun = Instant::now();
    for number in 0..NAMES {
        assert!(cache.get(format!("product:{number:08}")).await.unwrap().is_some());
        if number % 100_000 == 0 {
            most = most.max(resident() - before);
        }
    }
    let last = NAMES - 100_000..NAMES;
    let is_kept = |number: &usize| cache.get_local(&format!("product:{number:08}")).is_some();
    println!(
        "{NAMES} names pass through a tier of 64 MiB in {:.0?}: at most {:.1} MiB more of \
         resident memory; copies of {} of the last 100,000 names",
        begun.elapsed(),
        most as f64 / f64::from(1 << 20),
        last.filter(is_kept).count()
    );
}

/// Opens a cache of a process with a local tier, and waits until it has a copy.
async fn with_copy(server: &RedisServer, key: &str) -> Cache<Bytes> {
    let builder = Cache::<Bytes>::builder(RedisBackend::open(&server.url()).unwrap(), "tier");
    let builder = builder.codec(Raw).ttl(LONG);
    let cache = builder.local(LocalTier::default()).build().unwrap();
    cache.insert(key, &Bytes::from_static(b"value")).await.unwrap();
    while cache.get_local(key).is_none() {
        cache.get(key).await.unwrap();
        tokio::task::yield_now().await;
    }
    cache
}

/// Measures what a local tier costs and saves over Redis.
async fn tier(server: &RedisServer) {
    let key = "hot";
    let here = with_copy(server, key).await;
    let there = with_copy(server, key).await;
    let mut connection = connection(server).await;
    let mut figures = [const { Vec::new() }; 3];
    for _ in 0..1_000 {
        while here.get_local(key).is_none() {
            here.get(key).await.unwrap();
        }
        figures[2].push(timed!(1, {
            redis::cmd("PING").exec_async(&mut connection).await.unwrap();
        }));
        let watched = here.clone();
        let dropped = tokio::spawn(async move {
            while watched.get_local(key).is_some() {
                tokio::task::yield_now().await;
            }
            Instant::now()
        });
        let begun = Instant::now();
        there.insert(key, &Bytes::from_static(b"value")).await.unwrap();
        figures[1].push(begun.elapsed());
        figures[0].push(dropped.await.unwrap() - begun);
    }
    let [dropped, insert, trip] = figures.map(median);
    row("an insert, to the drop elsewhere", dropped, "one round trip (PING)", trip);
    row("an insert", insert, "one round trip (PING)", trip);

    // Four processes read a hot key, and another one writes it each second.
    let mut readers = Vec::new();
    for _ in 0..4 {
        readers.push(with_copy(server, key).await);
    }
    let commands = commands(&mut connection).await;
    let before: u64 = readers.iter().map(|cache| cache.stats().local).sum();
    let end = Instant::now() + Duration::from_secs(5);
    let reads = readers.iter().cloned().map(|cache| async move {
        let mut reads = 0_u64;
        while Instant::now() < end {
            cache.get_or_load(key, never).await.unwrap();
            reads += 1;
            sleep(Duration::from_millis(1)).await;
        }
        reads
    });
    let writes = async {
        while Instant::now() < end {
            there.insert(key, &Bytes::from_static(b"value")).await.unwrap();
            sleep(Duration::from_secs(1)).await;
        }
    };
    let (reads, ()) = tokio::join!(join_all(reads), writes);
    let (all, local) =
        (reads.iter().sum::<u64>(), readers.iter().map(|it| it.stats().local).sum::<u64>());
    let commands = self::commands(&mut connection).await - commands;
    println!(
        "a hot key in 4 processes, with a write a second: {:.3} of {all} reads are local, and \
         {:.1} commands are sent for 1,000 of them",
        (local - before) as f64 / all as f64,
        commands as f64 * 1e3 / all as f64
    );
    drop((here, readers));
    fan_out(server, &there, &mut connection).await;
}

/// Measures the time of the server for an insert that a number of processes hear of.
async fn fan_out(
    server: &RedisServer,
    writer: &Cache<Bytes>,
    connection: &mut MultiplexedConnection,
) {
    const INSERTS: u32 = 200;
    let client = redis::Client::open(server.url()).unwrap();
    let heard = Arc::<AtomicUsize>::default();
    let mut hearers = Vec::new();
    for processes in [0, 10, 100, 1_000] {
        while hearers.len() < processes {
            let mut connection = client.get_async_pubsub().await.unwrap();
            connection.psubscribe("*").await.unwrap();
            let heard = heard.clone();
            hearers.push(tokio::spawn(async move {
                let mut messages = connection.into_on_message();
                while messages.next().await.is_some() {
                    heard.fetch_add(1, Ordering::Relaxed);
                }
            }));
        }
        heard.store(0, Ordering::Relaxed);
        let before = cpu_time_of(connection).await;
        for _ in 0..INSERTS {
            writer.insert("heard", &Bytes::from_static(b"value")).await.unwrap();
        }
        let used = (cpu_time_of(connection).await - before) / INSERTS;
        while heard.load(Ordering::Relaxed) < processes * INSERTS as usize {
            sleep(Duration::from_millis(1)).await;
        }
        println!("an insert that {processes} processes hear of takes {used:.1?} of the server");
    }
    hearers.iter().for_each(tokio::task::JoinHandle::abort);
}

/// Returns the time that the server has used its core.
async fn cpu_time_of(connection: &mut MultiplexedConnection) -> Duration {
    let stats: String = redis::cmd("INFO").arg("cpu").query_async(connection).await.unwrap();
    let seconds = |name| {
        let value = stats.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        value.parse::<f64>().unwrap()
    };
    Duration::from_secs_f64(
        seconds("used_cpu_user_main_thread:") + seconds("used_cpu_sys_main_thread:"),
    )
}

/// Returns how many commands the server has run.
async fn commands(connection: &mut MultiplexedConnection) -> u64 {
    let stats: String = redis::cmd("INFO").arg("stats").query_async(connection).await.unwrap();
    let count = stats.lines().find_map(|line| line.strip_prefix("total_commands_processed:"));
    count.unwrap().parse().unwrap()
}

/// Returns the mean time of what each thread does with its key.
fn beside(keys: &[String], each: impl Fn(&str) -> Duration + Clone + Send + 'static) -> Duration {
    let start = Arc::new(std::sync::Barrier::new(keys.len()));
    let threads: Vec<_> = keys
        .iter()
        .map(|key| {
            let key = key.clone();
            let each = each.clone();
            let start = start.clone();
            std::thread::spawn(move || {
                start.wait();
                each(&key)
            })
        })
        .collect();
    mean(threads.into_iter().map(|thread| thread.join().unwrap()).collect())
}

/// Measures the processor time of each of 5,000 callers on one cold key.
async fn followers() {
    const CALLERS: usize = 5_000;
    let ours: Cache<u64> = Cache::builder(MemoryBackend::new(), "bellwether").build().unwrap();
    let theirs: Arc<quick_cache::sync::Cache<usize, u64>> =
        Arc::new(quick_cache::sync::Cache::new(10_000));
    let mut figures = [const { Vec::new() }; 2];
    for round in 0..turns(ROUNDS) {
        let key = Key::from(round);
        let begun = ProcessTime::now();
        let tasks: Vec<_> = (0..CALLERS)
            .map(|_| {
                let request = ours.request(&key);
                tokio::spawn(request.load(|_| async {
                    sleep(Duration::from_millis(50)).await;
                    Ok::<_, BoxError>(7)
                }))
            })
            .collect();
        for task in tasks {
            task.await.unwrap().unwrap();
        }
        figures[0].push(begun.elapsed() / CALLERS as u32);
        let begun = ProcessTime::now();
        let tasks: Vec<_> = (0..CALLERS)
            .map(|_| {
                let theirs = theirs.clone();
                tokio::spawn(async move {
                    let load = async {
                        sleep(Duration::from_millis(50)).await;
                        Ok::<_, ()>(7)
                    };
                    theirs.get_or_insert_async(&round, load).await
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap().unwrap();
        }
        figures[1].push(begun.elapsed() / CALLERS as u32);
    }
    let [ours, theirs] = &figures;
    let rows = rows(Chart::ColdKey, "cargo bench --bench costs -- followers", Statistic::Mean);
    let peer = ("quick_cache::get_or_insert_async", theirs.as_slice());
    rows.peer(("a follower, processor time", ours), peer).unwrap();
}

/// Measures one hit after the other.
async fn hits(server: &RedisServer) {
    const TURNS: usize = 2_000;
    const HITS: u32 = 30;
    let (backend, cache) = stored(server, &["hit".to_owned()]).await;
    let [windowed, forgetful] = windowed(&backend).await;
    let name = name("hit", Family::Cache);
    let entry = name.entry();
    let mut socket = TcpStream::connect(("127.0.0.1", server.port())).await.unwrap();
    socket.set_nodelay(true).unwrap();
    let get = format!("*2\r\n$3\r\nGET\r\n${}\r\n{entry}\r\n", entry.len());
    let mut connection = connection(server).await;
    let mut figures = [const { Vec::new() }; 6];
    for turn in 0..turns(TURNS) {
        // Each is first in half of the turns.
        let mut caches = [(4, &windowed), (5, &forgetful)];
        caches.rotate_left(turn % 2);
        for (at, cache) in caches {
            figures[at].push(timed!(HITS, {
                cache.request("windowed").load(never).await.unwrap();
            }));
        }
        figures[0].push(timed!(HITS, {
            cache.request("hit").load(never).await.unwrap();
        }));
        figures[1].push(timed!(HITS, {
            socket.write_all(get.as_bytes()).await.unwrap();
            let mut answer = [0; 1024];
            assert!(socket.read(&mut answer).await.unwrap() > 100);
        }));
        figures[2].push(timed!(HITS, {
            let value: Vec<u8> =
                redis::cmd("GET").arg(&entry).query_async(&mut connection).await.unwrap();
            assert!(!value.is_empty());
        }));
        figures[3].push(timed!(HITS, {
            backend.get(&name).await.unwrap().unwrap();
        }));
    }
    let [ours, bare, redis, store, windowed, forgetful] = &figures;
    let rows = rows(Chart::Hit, "cargo bench --bench costs -- hits", Statistic::Mean);
    let socket = ("a bare socket", bare.as_slice());
    rows.floor(("a hit, one by one", ours), socket).unwrap();
    rows.floor(("Store::get, which is a part of it", store), socket).unwrap();
    rows.floor(("GET by the redis crate", redis), socket).unwrap();
    rows.floor(("a hit with stale windows", windowed), ("without", forgetful)).unwrap();
}

/// Returns a cache with tags, and a key whose value has so many of them.
async fn tagged(server: &RedisServer, count: usize, tier: bool) -> (Cache<Bytes>, String) {
    let builder = Cache::<Bytes>::builder(RedisBackend::open(&server.url()).unwrap(), "tagged");
    let builder = builder.codec(Raw).ttl(LONG).tags();
    let builder = if tier { builder.local(LocalTier::default().max_age(LONG)) } else { builder };
    let cache = builder.build().unwrap();
    let key = format!("of {count}");
    let request = (0..count).fold(cache.request(&key), |it, tag| it.tag(format!("tag:{tag}")));
    request.insert(&Bytes::from_static(b"value")).await.unwrap();
    (cache, key)
}

/// Measures what tags cost a hit, with and without a local tier, and the end of one tag of many
/// values.
async fn tags(server: &RedisServer) {
    const TURNS: usize = 500;
    const HITS: u32 = 30;
    const VALUES: usize = 1_000_000;
    const COUNTS: [usize; 4] = [0, 1, 5, 20];
    let (_, plain) = stored(server, &["plain".to_owned()]).await;
    let mut caches = Vec::new();
    let mut copies = Vec::new();
    for count in COUNTS {
        caches.push(tagged(server, count, false).await);
        let (cache, key) = tagged(server, count, true).await;
        while cache.get_local(&key).is_none() {
            cache.get(&key).await.unwrap();
        }
        copies.push((cache, key));
    }
    let mut hits = [const { Vec::new() }; COUNTS.len() + 1];
    let mut local = [const { Vec::new() }; COUNTS.len()];
    for _ in 0..TURNS {
        hits[COUNTS.len()].push(timed!(HITS, {
            plain.request("plain").load(never).await.unwrap();
        }));
        for (at, (cache, key)) in caches.iter().enumerate() {
            hits[at].push(timed!(HITS, {
                cache.request(key).load(never).await.unwrap();
            }));
        }
        for (at, (cache, key)) in copies.iter().enumerate() {
            local[at].push(timed!(1_000, { assert!(cache.get_local(key).is_some()) }));
        }
    }
    let ([none, one, five, twenty, untagged], local) = (hits.map(mean), local.map(median));
    for (hit, what) in [(none, "no"), (one, "1"), (five, "5"), (twenty, "20")] {
        row(&format!("a hit with {what} tags"), hit, "a hit of a cache without tags", untagged);
    }
    for (at, count) in COUNTS.into_iter().enumerate().skip(1) {
        row(&format!("get_local with {count} tags"), local[at], "get_local with none", local[0]);
    }

    let (cache, _) = tagged(server, 0, false).await;
    let value = Bytes::from_static(b"value");
    for from in (0..VALUES).step_by(256) {
        let insert = |key: usize| cache.request(key as u64).tag("of all").insert(&value);
        join_all((from..(from + 256).min(VALUES)).map(insert)).await;
    }
    let mut connection = connection(server).await;
    let mut figures = [const { Vec::new() }; 2];
    for _ in 0..1_000 {
        figures[0].push(timed!(1, { cache.invalidate_tag("of all").await.unwrap() }));
        figures[1].push(timed!(1, {
            redis::cmd("PING").exec_async(&mut connection).await.unwrap();
        }));
    }
    let [ended, trip] = figures.map(mean);
    row("invalidate_tag of 1,000,000 values", ended, "one round trip (PING)", trip);
    redis::cmd("FLUSHALL").arg("ASYNC").exec_async(&mut connection).await.unwrap();
}

/// Measures hits of 64 tasks, each with a key of its own.
async fn many_hits(server: &RedisServer) {
    const TASKS: usize = 64;
    const HITS: usize = 50;
    let keys: Vec<_> = (0..TASKS).map(|n| format!("many-{n}")).collect();
    let (_, cache) = stored(server, &keys).await;
    let connection = connection(server).await;
    let mut figures = [const { Vec::new() }; 2];
    for _ in 0..turns(ROUNDS) {
        let begun = Instant::now();
        together(keys.iter().map(|key| {
            let cache = cache.clone();
            let key = Key::from(key);
            async move {
                for _ in 0..HITS {
                    cache.request(key.clone()).load(never).await.unwrap();
                }
            }
        }))
        .await;
        figures[0].push(begun.elapsed() / (TASKS * HITS) as u32);
        let begun = Instant::now();
        together(keys.iter().map(|key| {
            let mut connection = connection.clone();
            let entry = name(key, Family::Cache).entry();
            async move {
                for _ in 0..HITS {
                    let value: Vec<u8> =
                        redis::cmd("GET").arg(&entry).query_async(&mut connection).await.unwrap();
                    assert!(!value.is_empty());
                }
            }
        }))
        .await;
        figures[1].push(begun.elapsed() / (TASKS * HITS) as u32);
    }
    let [ours, bare] = &figures;
    let rows = rows(Chart::Hit, "cargo bench --bench costs -- many", Statistic::Mean);
    let floor = ("bare GETs on one connection", bare.as_slice());
    rows.floor(("a hit, 64 tasks at once", ours), floor).unwrap();
}

/// Measures calls for 100 keys, hits and cold ones.
async fn batches(server: &RedisServer) {
    const KEYS: usize = 100;
    let keys: Vec<_> = (0..KEYS).map(|n| format!("batch-{n}")).collect();
    let (_, cache) = stored(server, &keys).await;
    let mut connection = connection(server).await;
    let mut reads = redis::pipe();
    for key in &keys {
        reads.get(name(key, Family::Cache).entry());
    }
    let local = moka::future::Cache::new(10_000);
    for key in &keys {
        local.insert(key.clone(), Bytes::from(vec![b'v'; 128])).await;
    }
    let copies = Cache::<Bytes>::builder(RedisBackend::open(&server.url()).unwrap(), "bellwether");
    let copies = copies.codec(Raw).local(LocalTier::default().max_age(LONG)).build().unwrap();
    while keys.iter().any(|key| copies.get_local(key).is_none()) {
        assert!(copies.get_many(&keys).await.iter().all(Result::is_ok));
    }
    let served = server_time(&mut connection).await;
    for _ in 0..ROUNDS * 20 {
        let hits = cache.get_or_load_many(keys.clone(), |key| Key::from(key), no_batch);
        assert!(hits.await.unwrap().iter().all(Result::is_ok));
    }
    let served = (server_time(&mut connection).await - served) / ROUNDS as u32 / 20;
    let mut figures = [const { Vec::new() }; 6];
    for _ in 0..ROUNDS {
        for _ in 0..20 {
            figures[5].push(timed!(1, {
                let hits = copies.get_or_load_many(keys.clone(), |key| Key::from(key), no_batch);
                assert!(hits.await.unwrap().iter().all(Result::is_ok));
            }));
            figures[0].push(timed!(1, {
                let hits = cache.get_or_load_many(keys.clone(), |key| Key::from(key), no_batch);
                assert!(hits.await.unwrap().iter().all(Result::is_ok));
            }));
            figures[1].push(timed!(1, {
                let loads = keys.iter().map(|key| cache.get_or_load(key, never));
                assert!(join_all(loads).await.iter().all(Result::is_ok));
            }));
            figures[2].push(timed!(1, {
                let values: Vec<Vec<u8>> = reads.query_async(&mut connection).await.unwrap();
                assert!(values.iter().all(|value| !value.is_empty()));
            }));
            figures[3].push(timed!(1, {
                redis::cmd("PING").exec_async(&mut connection).await.unwrap();
            }));
            figures[4].push(timed!(1, {
                for key in &keys {
                    assert!(local.get(key).await.is_some());
                }
            }));
        }
    }
    let [many, joined, bare, ping, local, copies] = figures.map(mean);
    row("100 hits in one call", many, "1.5 round trips and the server", ping * 3 / 2 + served);
    row("100 copies in one call", copies, "100 hits of moka in the process", local);
    row("100 hits in one call", many, "a bare pipeline of 100 GETs", bare);
    row("100 hits, joined single calls", joined, "a bare pipeline of 100 GETs", bare);
    row("100 hits in one call", many, "100 hits of moka in the process", local);

    let mut cold = Vec::new();
    let served = server_time(&mut connection).await;
    for round in 0..ROUNDS {
        let ids: Vec<_> = (0..KEYS).map(|n| format!("cold-{round}-{n}")).collect();
        cold.push(timed!(1, {
            let loaded =
                cache.get_or_load_many(ids.clone(), |key| Key::from(key), ones).await.unwrap();
            assert!(loaded.iter().all(Result::is_ok));
        }));
    }
    let served = (server_time(&mut connection).await - served) / ROUNDS as u32;
    let cold = mean(cold);
    row("100 cold keys in one call", cold, "4 round trips and the server", ping * 4 + served);
    println!("a round trip of the same connection takes {:.1} us", ping.as_secs_f64() * 1e6);

    // Over a slow link, only round trips count.
    let proxy = Proxy::start(server.port());
    let backend = RedisBackend::builder().server(proxy.url()).command_timeout(TIME_OUT);
    let cache = Cache::builder(backend.build().unwrap(), "slow").codec(Raw);
    let cache = cache.build().unwrap();
    let link = Duration::from_millis(100);
    proxy.lengthen_round_trip(link);
    cache.get_or_load("connects", one).await.unwrap();
    let mut bare = connection_to(&proxy.url()).await;
    let begun = Instant::now();
    redis::cmd("PING").exec_async(&mut bare).await.unwrap();
    let link = begun.elapsed();
    for what in ["cold keys", "hits"] {
        let calls = Arc::<AtomicUsize>::default();
        let counted = calls.clone();
        let load = move |batch| {
            counted.fetch_add(1, Ordering::Relaxed);
            ones(batch)
        };
        let begun = Instant::now();
        let loaded =
            cache.get_or_load_many(keys.clone(), |key| Key::from(key), load).await.unwrap();
        assert!(loaded.iter().all(Result::is_ok));
        let trips = begun.elapsed().as_secs_f64() / link.as_secs_f64();
        let calls = calls.load(Ordering::Relaxed);
        let what = format!("100 {what} over a link of 100 ms");
        println!("{what}: {trips:.2} round trips of a `PING` there, {calls} loader calls");
    }
}

const TIME_OUT: Duration = Duration::from_secs(2);

/// Returns the time that the main thread of the server has taken.
async fn server_time(connection: &mut MultiplexedConnection) -> Duration {
    let info: String = redis::cmd("INFO").arg("cpu").query_async(connection).await.unwrap();
    let of_main_thread = ["used_cpu_user_main_thread:", "used_cpu_sys_main_thread:"];
    let seconds = of_main_thread.map(|field| {
        info.lines().find_map(|line| line.strip_prefix(field)).unwrap().parse::<f64>().unwrap()
    });
    Duration::from_secs_f64(seconds.iter().sum())
}

/// Prints the commands of a rebuild.
async fn rebuild(server: &RedisServer) {
    let (_, cache) = stored(server, &["warm".to_owned()]).await;
    cache.request("warm-load").load(one).await.unwrap();
    let locks = Locks::new(RedisBackend::open(&server.url()).unwrap(), "bellwether");
    locks.mutex("warm").lock().await.unwrap().unlock().await.unwrap();
    let mut monitor = server.monitor().await;
    cache.request("rebuild").load(one).await.unwrap();
    let calls: Vec<_> =
        monitor.calls_from_clients().await.into_iter().map(|call| call.command).collect();
    println!("a rebuild: {} commands ({})", calls.len(), calls.join(", "));
    locks.mutex("m").lock().await.unwrap().unlock().await.unwrap();
    let calls: Vec<_> =
        monitor.calls_from_clients().await.into_iter().map(|call| call.command).collect();
    println!("lock + unlock: {} commands ({})", calls.len(), calls.join(", "));
}

/// Measures the time from a commit to the wake-up of a waiter on another connection. A commit
/// follows a load. It is therefore measured after a pause, in which the processor cools its caches
/// and falls asleep. The same holds for the round trip beside it.
async fn wake(server: &RedisServer) {
    const TURNS: usize = 300;
    const LOAD: Duration = Duration::from_millis(20);
    let [here, there] = [0, 1].map(|_| RedisBackend::open(&server.url()).unwrap());
    let mut connection = connection(server).await;
    let mut figures = [const { Vec::new() }; 2];
    for turn in 0..turns(TURNS) {
        let name = name(&format!("wake-{turn}"), Family::Cache);
        let life = Duration::from_secs(5);
        let claim = || Claim::new(name.clone(), Mode::Exclusive, life, life);
        let (claim, mut waiter) = (claim(), claim());
        let Claimed::Granted(grant) = here.claim(&claim, 0).await.unwrap() else {
            panic!("the lease is free");
        };
        // As a leader waits that finds the lease held.
        waiter.waits = false;
        let mut changes = testkit::changes_for(&there, &waiter).await.unwrap();
        assert!(matches!(there.claim(&waiter, 0).await, Ok(Claimed::Occupied(_))));
        let waiting = tokio::spawn(async move {
            let change = changes.next().await;
            (change, Instant::now())
        });
        let entry = Entry::value(1, Duration::ZERO, Bytes::from_static(b"value"));
        sleep(LOAD).await;
        let begun = Instant::now();
        let _: () = redis::cmd("PING").query_async(&mut connection).await.unwrap();
        figures[1].push(begun.elapsed());
        sleep(LOAD).await;
        let begun = Instant::now();
        here.commit(&claim, &grant, &entry, Some(life)).await.unwrap();
        let (change, woken) = waiting.await.unwrap();
        assert!(matches!(change, Change::Entry(_)));
        figures[0].push(woken - begun);
    }
    let [woken, trip] = &figures;
    let rows = rows(Chart::ColdKey, "cargo bench --bench costs -- wake", Statistic::Median);
    let floor = ("one round trip (PING)", trip.as_slice());
    rows.floor(("commit to wake-up elsewhere", woken), floor).unwrap();
}

async fn stored(server: &RedisServer, keys: &[String]) -> (RedisBackend, Cache<Bytes>) {
    let backend = RedisBackend::open(&server.url()).unwrap();
    let cache = Cache::builder(backend.clone(), "bellwether").codec(Raw).build().unwrap();
    for key in keys {
        cache.insert(key, &Bytes::from(vec![b'v'; 128])).await.unwrap();
    }
    (backend, cache)
}

/// Stores a value with a stale window. The first cache remembers it for an outage.
async fn windowed(backend: &RedisBackend) -> [Cache<Bytes>; 2] {
    let builder = || {
        let builder =
            Cache::builder(backend.clone(), "bellwether").codec(Raw).ttl(Duration::from_secs(3600));
        builder.stale_while_revalidate(Duration::from_secs(3600))
    };
    let caches = [builder(), builder().outage_memory(0)].map(|builder| builder.build().unwrap());
    caches[0].insert("windowed", &Bytes::from(vec![b'v'; 128])).await.unwrap();
    caches
}

async fn connection(server: &RedisServer) -> MultiplexedConnection {
    connection_to(&server.url()).await
}

async fn connection_to(url: &str) -> MultiplexedConnection {
    use redis::IntoConnectionInfo;
    let info = url.into_connection_info().unwrap();
    let tcp = redis::io::tcp::TcpSettings::default().set_nodelay(true);
    let client = redis::Client::open(info.set_tcp_settings(tcp)).unwrap();
    client.get_multiplexed_async_connection().await.unwrap()
}

fn name(key: &str, family: Family) -> Name {
    Name::new(&Namespace::standard(), family, &Key::from(key), 512).unwrap()
}

async fn never<V>(_: bellwether::cache::Lead<V>) -> Result<V, BoxError> {
    panic!("the value is stored")
}

async fn no_batch(_: Batch<String, Bytes>) -> Result<Vec<(String, Bytes)>, BoxError> {
    panic!("the values are stored")
}

async fn ones(batch: Batch<String, Bytes>) -> Result<Vec<(String, Bytes)>, BoxError> {
    let value = Bytes::from_static(b"value");
    Ok(batch.ids().iter().map(|id| (id.clone(), value.clone())).collect())
}

async fn one(_: bellwether::cache::Lead<Bytes>) -> Result<Bytes, BoxError> {
    Ok(Bytes::from_static(b"value"))
}

async fn together<F: Future<Output = ()> + Send + 'static>(tasks: impl Iterator<Item = F>) {
    for task in tasks.map(tokio::spawn).collect::<Vec<_>>() {
        task.await.unwrap();
    }
}

fn rows(chart: Chart, command: &'static str, statistic: Statistic) -> Rows {
    Rows { chart, command, statistic }
}

fn mean(times: Vec<Duration>) -> Duration {
    times.iter().sum::<Duration>() / times.len() as u32
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}

fn row(what: &str, ours: Duration, beside: &str, theirs: Duration) {
    let ratio = ours.as_secs_f64() / theirs.as_secs_f64();
    let micros = |time: Duration| time.as_secs_f64() * 1e6;
    println!(
        "{what:28} {:8.2} us   {beside:34} {:8.2} us   ratio {ratio:.2}",
        micros(ours),
        micros(theirs)
    );
}
