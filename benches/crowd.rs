//! The cost of a load that many processes wait for: the server's time for the commit that tells
//! them, and the time until the last of them has the value.
//!
//! `cargo bench --bench crowd` starts a Redis server of its own. All processes are backends of this
//! one process and share its cores with the server.
#![allow(missing_docs, unreachable_pub, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::time::{Duration, Instant};

use bellwether::{
    BoxError, Cache, RedisBackend,
    backend::{Claim, Claimed, Entry, Mode, Store},
    cache::{Lead, Raw as RawCodec},
    key::{Family, Key, Name, Namespace},
};
use bytes::Bytes;
use futures_util::future::join_all;
use testkit::{Raw, RedisServer};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    sync::oneshot,
    time::sleep,
};

const SIZES: [(&str, usize); 3] = [("100 B", 100), ("50 KB", 50 << 10), ("1 MB", 1 << 20)];
const LIFE: Duration = Duration::from_secs(60);
const ROUNDS: usize = 9;

fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async { tokio::spawn(all()).await.unwrap() });
}

async fn all() {
    let server = RedisServer::start().await;
    println!("the server's time for a commit, by the number of processes that wait\n");
    println!("{:8} {:>10} {:>10} {:>10} {:>10}", "", 0, 1, 100, 1000);
    for (label, size) in SIZES {
        print!("{label:8}");
        for count in [0, 1, 100, 1000] {
            print!(" {:>7.0} us", commit(&server, size, count).await.as_secs_f64() * 1e6);
        }
        println!();
    }
    println!("\nfrom the end of the load until the last process has the value\n");
    println!("{:8} {:>10} {:>10} {:>10} {:>10}", "", 1, 10, 32, 100);
    let caches: Vec<_> = (0..101).map(|_| cache(&server)).collect();
    for (label, size) in SIZES {
        print!("{label:8}");
        for count in [1, 10, 32, 100] {
            print!(" {:>7.1} ms", crowd(&server, &caches, size, count).await.as_secs_f64() * 1e3);
        }
        println!();
    }
    println!(
        "\n{} loads were degraded",
        caches.iter().map(|one| one.stats().degraded).sum::<u64>()
    );
}

/// Measures the script that commits, with this many processes that wait.
async fn commit(server: &RedisServer, size: usize, count: usize) -> Duration {
    let mut raw = server.raw().await;
    let backend = RedisBackend::open(&server.url()).unwrap();
    let ids: Vec<_> = (0..count).map(|at| format!("{at:016x}")).collect();
    let listening: Vec<_> = join_all(ids.iter().map(|id| drained(server, id))).await;
    let namespace = Namespace::new("crowd").unwrap();
    let mut times = Vec::new();
    for round in 0..ROUNDS {
        let key = Key::from(format!("{size}-{count}-{round}"));
        let name = Name::new(&namespace, Family::Cache, &key, 512).unwrap();
        let mut claim = Claim::new(name.clone(), Mode::Exclusive, LIFE, LIFE);
        claim.waits = false;
        let Ok(Claimed::Granted(grant)) = backend.claim(&claim, 0).await else { panic!() };
        let registered: String = ids.iter().map(|id| format!(",{id}")).collect();
        raw.run::<()>(&["APPEND", &name.suffixed("l"), &registered]).await;
        let entry = Entry::value(1, Duration::ZERO, Bytes::from(vec![b'v'; size]));
        let before = script_time(&mut raw).await;
        backend.commit(&claim, &grant, &entry, Some(LIFE)).await.unwrap();
        times.push(script_time(&mut raw).await - before);
    }
    listening.iter().for_each(|task| task.abort());
    median(times)
}

/// Subscribes to the channel of a process, and reads what is pushed.
async fn drained(server: &RedisServer, id: &str) -> tokio::task::JoinHandle<()> {
    let mut socket = TcpStream::connect(("127.0.0.1", server.port())).await.unwrap();
    let subscribe = format!("SUBSCRIBE crowd:c:p:{id}\r\n");
    socket.write_all(subscribe.as_bytes()).await.unwrap();
    let mut buffer = vec![0; 16 << 10];
    assert!(socket.read(&mut buffer).await.unwrap() > 0);
    tokio::spawn(async move { while socket.read(&mut buffer).await.is_ok_and(|read| read > 0) {} })
}

async fn script_time(raw: &mut Raw) -> Duration {
    let info: String = raw.run(&["INFO", "commandstats"]).await;
    let line = info.lines().find(|line| line.starts_with("cmdstat_evalsha:"));
    let micros = line.and_then(|line| line.split_once("usec=")?.1.split(',').next()?.parse().ok());
    Duration::from_micros(micros.unwrap_or(0))
}

fn cache(server: &RedisServer) -> Cache<Bytes> {
    let backend = RedisBackend::open(&server.url()).unwrap();
    Cache::builder(backend, "crowd").codec(RawCodec).lease(LIFE).build().unwrap()
}

/// Measures the time from the end of a load until the last of the waiting caches has the value.
async fn crowd(
    server: &RedisServer,
    caches: &[Cache<Bytes>],
    size: usize,
    count: usize,
) -> Duration {
    let mut raw = server.raw().await;
    let mut times = Vec::new();
    for round in 0..ROUNDS {
        let key = format!("crowd-{size}-{count}-{round}");
        let (begin, begun) = oneshot::channel();
        let (open, opened) = oneshot::channel::<()>();
        let leading = tokio::spawn(caches[0].request(&key).load(move |_: Lead<_>| async move {
            let _ = begin.send(());
            let _ = opened.await;
            Ok::<_, BoxError>(Bytes::from(vec![b'v'; size]))
        }));
        begun.await.unwrap();
        let waiting: Vec<_> = caches[1..=count]
            .iter()
            .map(|cache| {
                let request = cache.request(&key);
                tokio::spawn(request.load(|_| async { Err(BoxError::from("a second load")) }))
            })
            .collect();
        let lease = format!("crowd:c:{{{key}}}:l");
        while raw.run::<String>(&["GET", &lease]).await.matches(',').count() < count {
            sleep(Duration::from_millis(1)).await;
        }
        let begun = Instant::now();
        let _ = open.send(());
        for waited in join_all(waiting).await {
            assert_eq!(waited.unwrap().unwrap().value.len(), size);
        }
        times.push(begun.elapsed());
        leading.await.unwrap().unwrap();
    }
    median(times)
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}
