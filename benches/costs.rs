//! The cost of each step, compared with a minimum and with peers, as ratios in one run.
//!
//! `cargo bench --bench costs [-- part...]` starts a Redis server of its own. The parts are
//! `followers`, `hits`, `many`, `rebuild`, `locks` and `wake`. Everything is measured from
//! spawned tasks. In `block_on` on a multi-threaded runtime, each round trip costs about three
//! times as much.
//!
//! The contenders of a row take many short turns, and each figure is the mean of all. On two cores
//! a round trip takes about 30 us if client and server share a core, and about 130 us if they do
//! not. The scheduler stays with its choice for a while. A median of a few long turns could be
//! either figure, or any in between.
#![allow(missing_docs, unreachable_pub, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::{
    future::Future,
    sync::Arc,
    time::{Duration, Instant},
};

use bellwether::{
    BoxError, Cache, Locks, MemoryBackend, RedisBackend,
    backend::{Change, Claim, Claimed, Entry, Leases, Mode, Store},
    cache::Raw,
    key::{Family, Key, Name, Namespace},
};
use bytes::Bytes;
use cpu_time::ProcessTime;
use redis::{Script, aio::MultiplexedConnection};
use testkit::RedisServer;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::sleep,
};

const ROUNDS: usize = 61;

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
    let server = RedisServer::start().await;
    if is_wanted("hits") {
        hits(&server).await;
    }
    if is_wanted("many") {
        many_hits(&server).await;
    }
    if is_wanted("rebuild") {
        rebuild(&server).await;
    }
    if is_wanted("locks") {
        locks(&server).await;
    }
    if is_wanted("wake") {
        wake(&server).await;
    }
}

/// Measures the processor time of each of 5,000 callers on one cold key.
async fn followers() {
    const CALLERS: usize = 5_000;
    let ours: Cache<u64> = Cache::builder(MemoryBackend::new()).build().unwrap();
    let theirs: Arc<quick_cache::sync::Cache<usize, u64>> =
        Arc::new(quick_cache::sync::Cache::new(10_000));
    let mut figures = [const { Vec::new() }; 2];
    for round in 0..ROUNDS {
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
    let [ours, theirs] = figures.map(mean);
    row("a follower (CPU)", ours, "quick_cache::get_or_insert_async", theirs);
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
    for turn in 0..TURNS {
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
    let [ours, bare, redis, store, windowed, forgetful] = figures.map(mean);
    row("a hit, one by one", ours, "a bare tokio socket", bare);
    row("  of that, Store::get", store, "a bare tokio socket", bare);
    row("  the redis crate", redis, "a bare tokio socket", bare);
    row("  with windows", windowed, "without an outage memory", forgetful);
}

/// Measures hits of 64 tasks, each with a key of its own.
async fn many_hits(server: &RedisServer) {
    const TASKS: usize = 64;
    const HITS: usize = 50;
    let keys: Vec<_> = (0..TASKS).map(|n| format!("many-{n}")).collect();
    let (_, cache) = stored(server, &keys).await;
    let connection = connection(server).await;
    let mut figures = [const { Vec::new() }; 2];
    for _ in 0..ROUNDS {
        let begun = Instant::now();
        together(keys.iter().map(|key| {
            let (cache, key) = (cache.clone(), Key::from(key));
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
            let (mut connection, entry) = (connection.clone(), name(key, Family::Cache).entry());
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
    let [ours, bare] = figures.map(mean);
    row("a hit, 64 tasks", ours, "bare GETs on one connection", bare);
}

/// Prints the commands of a rebuild.
async fn rebuild(server: &RedisServer) {
    let (_, cache) = stored(server, &["warm".to_owned()]).await;
    cache.request("warm-load").load(one).await.unwrap();
    let locks = Locks::new(RedisBackend::open(&server.url()).unwrap());
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

/// Measures `lock` and `unlock`, compared with the two bare scripts and with simpler locks.
async fn locks(server: &RedisServer) {
    const TURNS: usize = 1_000;
    const CYCLES: u32 = 10;
    let locks = Locks::new(RedisBackend::open(&server.url()).unwrap());
    let mutex = locks.mutex("cycle");
    let [acquire, release] =
        ["acquire_queued", "release_queued"].map(|name| Script::new(&testkit::script(name)));
    let delete = Script::new(
        "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end",
    );
    let name = name("bare", Family::Lock);
    let [lease, fence, channel, queue, unordered, deadlines] =
        ["l", "f", "c", "q", "u", "d"].map(|suffix| name.suffixed(suffix));
    let mut connection = connection(server).await;
    let mut figures = [const { Vec::new() }; 3];
    for _ in 0..TURNS {
        figures[0].push(timed!(CYCLES, {
            mutex.lock().await.unwrap().unlock().await.unwrap();
        }));
        figures[1].push(timed!(CYCLES, {
            let token = uuid::Uuid::new_v4().simple().to_string();
            let _: redis::Value = acquire
                .key(&lease)
                .key(&fence)
                .key(&unordered)
                .key(&deadlines)
                .arg(&token)
                .arg(10_000)
                .arg(86_400_000)
                .arg(0)
                .arg(2_000)
                .arg(0)
                .invoke_async(&mut connection)
                .await
                .unwrap();
            let ended: i64 = release
                .key(&lease)
                .key(&channel)
                .key(&fence)
                .key(&queue)
                .key(&unordered)
                .key(&deadlines)
                .arg(&token)
                .arg(1)
                .arg(2_000)
                .arg(86_400_000)
                .arg(50)
                .arg(0)
                .invoke_async(&mut connection)
                .await
                .unwrap();
            assert_eq!(ended, 1);
        }));
        figures[2].push(timed!(CYCLES, {
            let token = uuid::Uuid::new_v4().simple().to_string();
            let _: () = redis::cmd("SET")
                .arg(&lease)
                .arg(&token)
                .arg("NX")
                .arg("PX")
                .arg(10_000)
                .query_async(&mut connection)
                .await
                .unwrap();
            let ended: i64 =
                delete.key(&lease).arg(&token).invoke_async(&mut connection).await.unwrap();
            assert_eq!(ended, 1);
        }));
    }
    let [ours, scripts, plain] = figures.map(mean);
    row("lock + unlock", ours, "the same two scripts, bare", scripts);
    row("lock + unlock", ours, "SET NX PX + compare-and-delete", plain);
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
    for turn in 0..TURNS {
        let name = name(&format!("wake-{turn}"), Family::Cache);
        let life = Duration::from_secs(5);
        let claim = || Claim::new(name.clone(), Mode::Exclusive, life, life);
        let (claim, mut waiter) = (claim(), claim());
        let Claimed::Granted(grant) = here.claim(&claim, 0).await.unwrap() else {
            panic!("the lease is free");
        };
        // As a leader waits that finds the lease held.
        waiter.waits = false;
        let mut changes = there.changes_for(&waiter).await.unwrap();
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
    let [woken, trip] = figures.map(median);
    row("commit to wake-up elsewhere", woken, "one round trip (PING)", trip);
}

async fn stored(server: &RedisServer, keys: &[String]) -> (RedisBackend, Cache<Bytes>) {
    let backend = RedisBackend::open(&server.url()).unwrap();
    let cache = Cache::builder(backend.clone()).codec(Raw).build().unwrap();
    for key in keys {
        cache.insert(key, &Bytes::from(vec![b'v'; 128])).await.unwrap();
    }
    (backend, cache)
}

/// Stores a value with a stale window. The first cache remembers it for an outage.
async fn windowed(backend: &RedisBackend) -> [Cache<Bytes>; 2] {
    let builder = || {
        let builder = Cache::builder(backend.clone()).codec(Raw).ttl(Duration::from_secs(3600));
        builder.stale_while_revalidate(Duration::from_secs(3600))
    };
    let caches = [builder(), builder().outage_memory(0)].map(|builder| builder.build().unwrap());
    caches[0].insert("windowed", &Bytes::from(vec![b'v'; 128])).await.unwrap();
    caches
}

async fn connection(server: &RedisServer) -> MultiplexedConnection {
    use redis::IntoConnectionInfo;
    let info = server.url().into_connection_info().unwrap();
    let tcp = redis::io::tcp::TcpSettings::default().set_nodelay(true);
    let client = redis::Client::open(info.set_tcp_settings(tcp)).unwrap();
    client.get_multiplexed_async_connection().await.unwrap()
}

fn name(key: &str, family: Family) -> Name {
    Name::new(&Namespace::standard(), family, &Key::from(key), 512).unwrap()
}

async fn never(_: bellwether::cache::Lead<Bytes>) -> Result<Bytes, BoxError> {
    panic!("the value is stored")
}

async fn one(_: bellwether::cache::Lead<Bytes>) -> Result<Bytes, BoxError> {
    Ok(Bytes::from_static(b"value"))
}

async fn together<F: Future<Output = ()> + Send + 'static>(tasks: impl Iterator<Item = F>) {
    for task in tasks.map(tokio::spawn).collect::<Vec<_>>() {
        task.await.unwrap();
    }
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
