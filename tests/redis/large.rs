//! Values of many megabytes, also over slow links.

use bellwether::{backend::Grant, cache::Raw};

use crate::prelude::*;

/// 50 Mbit/s.
const SLOW: u64 = 6_250_000;
/// A busy machine does not reach it, and a value of 8 MiB takes longer on the slow link.
const TIME_OUT: Duration = Duration::from_secs(1);
const MIB: usize = 1 << 20;

async fn never(_: bellwether::cache::Lead<Bytes>) -> Result<Bytes, Infallible> {
    Ok(Bytes::from_static(b"loaded"))
}

fn cache(backend: RedisBackend) -> Cache<Bytes> {
    Cache::builder(backend, "bellwether")
        .codec(Raw)
        .max_value(64 * MIB)
        .load_limit(LIMIT)
        .build()
        .unwrap()
}

/// Returns a cache behind a slow link.
fn far(proxy: &Proxy) -> Cache<Bytes> {
    cache(testkit::builder().server(proxy.url()).command_timeout(TIME_OUT).build().unwrap())
}

/// A value of 8 MiB takes 1.3 s at 50 Mbit/s, which is longer than the command time-out. Each
/// transfer was cut there, with all commands of its connection, and the next one began anew.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_large_value_over_a_slow_link_is_a_hit_and_delays_others_by_its_transfer() {
    let server = RedisServer::start().await;
    let proxy = Proxy::start(server.port());
    let writer = cache(open(&server));
    writer.insert("small", &Bytes::from_static(b"small")).await.unwrap();
    for mib in [3, 8] {
        writer.insert(format!("{mib} MiB"), &Bytes::from(vec![7; mib * MIB])).await.unwrap();
    }
    proxy.limit_rate(SLOW);
    let reader = far(&proxy);
    let is_over = Arc::new(AtomicBool::new(false));
    let small = {
        let reader = reader.clone();
        let is_over = is_over.clone();
        tokio::spawn(async move {
            let mut reads = 0;
            let mut longest = Duration::ZERO;
            while !is_over.load(Ordering::SeqCst) {
                let begun = Instant::now();
                let read = reader.request("small").load(never).await.unwrap();
                assert_eq!(read.source, Source::Hit);
                (reads, longest) = (reads + 1, longest.max(begun.elapsed()));
            }
            (reads, longest)
        })
    };
    for _ in 0..2 {
        for mib in [3, 8] {
            let read = reader.request(format!("{mib} MiB")).load(never);
            let read = timeout(LIMIT, read).await.unwrap().unwrap();
            assert_eq!((read.source, read.value.len()), (Source::Hit, mib * MIB));
        }
    }
    is_over.store(true, Ordering::SeqCst);
    let (reads, longest) = small.await.unwrap();
    println!("{reads} small reads beside the large ones, the longest {longest:?}");
    assert_eq!((reader.stats().degraded, reader.stats().hits), (0, reads + 4));
}

/// A load of 8 MiB is stored over the same link, and so is an insert.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_large_value_is_stored_over_a_slow_link() {
    let server = RedisServer::start().await;
    let proxy = Proxy::start(server.port());
    proxy.limit_rate(SLOW);
    let near = cache(open(&server));
    let far = far(&proxy);
    let large = Bytes::from(vec![7; 8 * MIB]);
    let loaded = large.clone();
    let load = far.request("loaded").load(|_| async { Ok::<_, Infallible>(loaded) });
    let load = timeout(LIMIT, load).await.unwrap().unwrap();
    assert_eq!((load.source, far.stats().stored), (Source::Led, 1));
    timeout(LIMIT, far.insert("inserted", &large)).await.unwrap().unwrap();
    for key in ["loaded", "inserted"] {
        let read = timeout(LIMIT, near.request(key).load(never)).await.unwrap().unwrap();
        assert_eq!((read.source, read.value.len()), (Source::Hit, 8 * MIB), "{key}");
    }
}

fn open(server: &RedisServer) -> RedisBackend {
    testkit::open(server.url())
}

fn large(byte: u8) -> Entry {
    sized(byte, MIB)
}

fn sized(byte: u8, size: usize) -> Entry {
    Entry::value(7, Duration::ZERO, Bytes::from(vec![byte; size]))
}

/// A load that is under way over a large entry.
struct Reload {
    _server: RedisServer,
    backend: RedisBackend,
    name: Name,
    raw: testkit::Raw,
    /// The fence of the entry.
    first: u64,
    claim: Claim,
    grant: Grant,
}

impl Reload {
    async fn begin(size: usize) -> Self {
        let server = RedisServer::start().await;
        let backend = open(&server);
        let name = name("k");
        let raw = server.raw().await;
        let first = backend.edit(&name, &Edit::Put(sized(1, size), LIMIT), LIMIT).await.unwrap();
        let (claim, grant) = loading(&backend, &name, first).await;
        Self { _server: server, backend, name, raw, first, claim, grant }
    }
}

async fn loading(backend: &RedisBackend, name: &Name, seen: u64) -> (Claim, Grant) {
    let claim = Claim::new(name.clone(), Mode::Exclusive, LIMIT, LIMIT);
    let grant = begun_over(backend, &claim, seen).await;
    (claim, grant)
}

/// A script would copy the entry several times, so it moves a key that a plain `SET` wrote.
#[tokio::test]
async fn a_large_write_is_a_plain_set_and_a_script_and_leaves_nothing_else() {
    let server = RedisServer::start().await;
    let backend = open(&server);
    let name = name("k");
    let mut raw = server.raw().await;
    // The connections and the scripts are in place after this.
    for _ in 0..2 {
        backend.edit(&name, &Edit::Put(sized(0, MIB), LIMIT), LIMIT).await.unwrap();
        backend.get(&name).await.unwrap();
    }
    assert!(comes_true(LIMIT, async || raw.knows_all_scripts().await).await);
    let mut monitor = server.monitor().await;
    let first = backend.edit(&name, &Edit::Put(sized(1, MIB), LIMIT), LIMIT).await.unwrap();
    backend.get(&name).await.unwrap();
    let (claim, grant) = loading(&backend, &name, first).await;
    let outcome = backend.commit(&claim, &grant, &sized(2, MIB), Some(LIMIT)).await.unwrap();
    assert_eq!(outcome, Committed::Stored);
    let calls = monitor.calls_from_clients().await;
    let words: Vec<_> = calls.iter().map(|call| call.command.as_str()).collect();
    assert_eq!(words, ["SET", "EVALSHA", "GET", "EVALSHA", "SET", "EVALSHA"]);
    let mut left = raw.keys("t:c:*").await;
    left.sort();
    assert_eq!(left, [name.suffixed("e"), name.suffixed("f")]);
    assert!(raw.run::<i64>(&["PTTL", &left[0]]).await > 10_000, "the time of the staged entry");
}

/// A push needs no memory of a full server.
///
/// The first wait of a process subscribes to its channel, and then claims again, which a full
/// server refuses. So the process has waited once before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_server_pushes_an_entry_that_it_cannot_store() {
    let server = RedisServer::start().await;
    let mut raw = server.raw().await;
    let [leader, waiter] = [(); 2].map(|()| cache(open(&server)));
    let loaded = Bytes::from(vec![7; 40_000]);
    let has_key = async |raw: &mut testkit::Raw, suffix: &str| {
        raw.keys("*").await.iter().any(|key| key.ends_with(suffix))
    };
    for (key, is_full) in [("before", false), ("k", true)] {
        let goes_on = Arc::new(Notify::new());
        let load = {
            let leader = leader.clone();
            let loaded = loaded.clone();
            let goes_on = goes_on.clone();
            tokio::spawn(async move {
                let load = |_| async move {
                    goes_on.notified().await;
                    Ok::<_, Infallible>(loaded)
                };
                leader.request(key).load(load).await.unwrap()
            })
        };
        assert!(comes_true(LIMIT, async || has_key(&mut raw, ":l").await).await, "no lease");
        let waiter = waiter.clone();
        let wait = tokio::spawn(async move { waiter.request(key).load(never).await.unwrap() });
        assert!(comes_true(LIMIT, async || raw.registered("*:l").await == 1).await, "no waiter");
        if is_full {
            raw.config_set("maxmemory", "1").await;
        }
        goes_on.notify_one();
        assert!(load.await.unwrap().value == loaded);
        let waited = timeout(LIMIT, wait).await.unwrap().unwrap();
        assert_eq!(waited.source, Source::Received, "full: {is_full}");
        // No change is told of a value that is not stored.
        assert_eq!(waited.expires_in().is_none(), is_full);
        assert!(waited.value == loaded);
    }
}

/// The staged entry is moved or removed by each way through the script.
#[tokio::test]
async fn a_large_write_that_is_refused_leaves_nothing() {
    let server = RedisServer::start().await;
    let backend = open(&server);
    let name = name("k");
    let mut raw = server.raw().await;
    for size in [50_000, MIB] {
        let (claim, grant) = loading(&backend, &name, 0).await;
        backend.edit(&name, &Edit::Invalidate, LIMIT).await.unwrap();
        let outcome = backend.commit(&claim, &grant, &sized(1, size), Some(LIMIT)).await.unwrap();
        assert_eq!(outcome, Committed::Refused);
        assert_eq!(raw.keys("t:c:*").await, [name.suffixed("f")]);
    }
}

#[tokio::test]
async fn a_full_server_refuses_large_writes_as_it_refuses_small_ones() {
    for size in [10, MIB] {
        let reload = Reload::begin(size).await;
        let Reload { _server, backend, name, mut raw, first, claim, grant } = reload;
        raw.config_set("maxmemory", "1").await;
        let put = Edit::Put(sized(2, size), LIMIT);
        let error = backend.edit(&name, &put, LIMIT).await.unwrap_err();
        assert_eq!(error.kind(), BackendErrorKind::Refused);
        assert!(format!("{error:#}").contains("OOM"), "{error:#}");
        let stands = backend.get(&name).await.unwrap();
        assert!(stands == Some(sized(1, size).with_fence(first)), "the put changed something");
        let mut changes = backend.changes(&name).await.unwrap();
        for _ in 0..2 {
            let value = sized(3, size);
            let outcome = backend.commit(&claim, &grant, &value, Some(LIMIT)).await.unwrap();
            assert_eq!(outcome, Committed::Pushed);
        }
        // The older entry and the lease are gone, and the value is handed over once.
        assert_eq!(raw.keys("t:c:*").await, [name.suffixed("f")]);
        let burnt = backend.edit(&name, &Edit::Invalidate, LIMIT).await.unwrap();
        if size == 10 {
            let pushed = sized(3, size).with_fence(grant.fence());
            assert_eq!(next(&mut changes).await, Change::Entry(pushed));
        }
        while next(&mut changes).await != Change::Invalidated(burnt) {
            assert_ne!(size, 10, "a small value is handed over twice");
        }
    }
}

#[tokio::test]
async fn a_large_write_survives_a_flush_of_the_scripts() {
    let Reload { _server, backend, name, mut raw, claim, grant, .. } = Reload::begin(MIB).await;
    raw.run::<()>(&["SCRIPT", "FLUSH"]).await;
    let outcome = backend.commit(&claim, &grant, &large(2), Some(LIMIT)).await.unwrap();
    assert_eq!(outcome, Committed::Stored);
    raw.run::<()>(&["SCRIPT", "FLUSH"]).await;
    let fence = backend.edit(&name, &Edit::Put(large(3), LIMIT), LIMIT).await.unwrap();
    assert!(backend.get(&name).await.unwrap() == Some(large(3).with_fence(fence)));
    assert!(backend.release(&claim).await.is_ok_and(|was_held| !was_held));
}

/// A process that dies between the two commands leaves a key that ends by itself.
#[tokio::test]
async fn a_staged_entry_ends_by_itself() {
    let server = RedisServer::start().await;
    let proxy = Proxy::start(server.port());
    let backend = RedisBackend::open(&proxy.url()).unwrap();
    let name = name("k");
    let mut raw = server.raw().await;
    let mut left = Vec::new();
    // The cut may reach the server before it has read the whole staged entry.
    for _ in 0..20 {
        proxy.clear();
        proxy.once(testkit::proxy::kind("put"), testkit::proxy::Fault::CutBefore);
        assert!(backend.edit(&name, &Edit::Put(large(1), LIMIT), LIMIT).await.is_err());
        let staged = async || {
            left = raw.keys("t:c:*").await;
            !left.is_empty()
        };
        if comes_true(LIMIT / 20, staged).await {
            break;
        }
    }
    assert!(!left.is_empty(), "nothing was staged");
    let ends = raw.run::<i64>(&["PTTL", &left[0]]).await;
    assert!(left[0].starts_with(&name.suffixed("t")) && (1..=10_000).contains(&ends), "{ends}");
}
