//! Values of many megabytes, also over slow links.

use std::{
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use bellwether::{
    Cache, RedisBackend,
    cache::{Raw, Source},
};
use bytes::Bytes;
use testkit::{LIMIT, RedisServer, proxy::Proxy};
use tokio::time::{Instant, timeout};

/// 100 Mbit/s.
const SLOW: u64 = 12_500_000;
const MIB: usize = 1 << 20;

async fn never(_: bellwether::cache::Lead) -> Result<Bytes, Infallible> {
    Ok(Bytes::from_static(b"loaded"))
}

fn cache(backend: RedisBackend) -> Cache<Bytes> {
    Cache::builder(backend).codec(Raw).max_value(64 * MIB).load_limit(LIMIT).build().unwrap()
}

/// A value of 8 MiB takes 700 ms at 100 Mbit/s, which is longer than the command time-out. Each
/// transfer was cut there, with all commands of its connection, and the next one began anew.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_large_value_over_a_slow_link_is_a_hit_and_spoils_no_other_read() {
    let server = RedisServer::start().await;
    let proxy = Proxy::start(server.port());
    let writer = cache(RedisBackend::open(&server.url()).unwrap());
    writer.insert("small", &Bytes::from_static(b"small")).await.unwrap();
    for mib in [3, 8] {
        writer.insert(format!("{mib} MiB"), &Bytes::from(vec![7; mib * MIB])).await.unwrap();
    }
    proxy.limit_rate(SLOW);
    let reader = cache(RedisBackend::open(&proxy.url()).unwrap());
    let is_over = Arc::new(AtomicBool::new(false));
    let small = {
        let (reader, is_over) = (reader.clone(), is_over.clone());
        tokio::spawn(async move {
            let (mut reads, mut longest) = (0, Duration::ZERO);
            while !is_over.load(Ordering::SeqCst) {
                let begun = Instant::now();
                let read = reader.request("small").load(never).await.unwrap();
                assert_eq!(read.source(), Source::Hit);
                (reads, longest) = (reads + 1, longest.max(begun.elapsed()));
            }
            (reads, longest)
        })
    };
    for _ in 0..2 {
        for mib in [3, 8] {
            let read = reader.request(format!("{mib} MiB")).load(never);
            let read = timeout(LIMIT, read).await.unwrap().unwrap();
            assert_eq!((read.source(), read.value().len()), (Source::Hit, mib * MIB));
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
    let cache = cache(RedisBackend::open(&proxy.url()).unwrap());
    let large = Bytes::from(vec![7; 8 * MIB]);
    let loaded = large.clone();
    let load = cache.request("loaded").load(|_| async { Ok::<_, Infallible>(loaded) });
    let load = timeout(LIMIT, load).await.unwrap().unwrap();
    assert_eq!((load.source(), cache.stats().stored), (Source::Led, 1));
    timeout(LIMIT, cache.insert("inserted", &large)).await.unwrap().unwrap();
    for key in ["loaded", "inserted"] {
        let read = timeout(LIMIT, cache.request(key).load(never)).await.unwrap().unwrap();
        assert_eq!((read.source(), read.value().len()), (Source::Hit, 8 * MIB), "{key}");
    }
}
