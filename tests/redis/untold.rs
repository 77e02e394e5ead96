//! A holder without the right to publish, and waiters in another process that may subscribe.

use std::{io, time::Duration};

use bellwether::{Cache, Locks, RedisBackend, cache::Source};
use testkit::{LIMIT, Raw, RedisServer, comes_true};
use tokio::{
    sync::oneshot,
    time::{Instant, timeout},
};

const MS: Duration = Duration::from_millis(1);
const ROUNDS: usize = 10;

/// Returns a backend that may not publish, and one that may do everything.
async fn backends(server: &RedisServer) -> [RedisBackend; 2] {
    let mut raw = server.raw().await;
    let user = ["ACL", "SETUSER", "quiet", "on", ">secret", "~*", "&*", "+@all", "-publish"];
    raw.run::<()>(&user).await;
    [server.url_of("quiet:secret", 0), server.url()].map(testkit::open)
}

/// Waits until the server knows of a waiter, which has a key with this pattern.
async fn waits(raw: &mut Raw, pattern: &str) {
    let is_known = comes_true(LIMIT, async || !raw.keys(pattern).await.is_empty());
    assert!(is_known.await, "no waiter has a key like {pattern}");
}

/// Each waiter slept until the end of the lease, up to 5 s.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_but_the_first_waiter_for_a_load_are_soon_served() {
    let server = RedisServer::start().await;
    let mut raw = server.raw().await;
    let [quiet, other] = backends(&server)
        .await
        .map(|backend| Cache::<String>::builder(backend).lease(3000 * MS).build().unwrap());
    let mut took = Vec::new();
    for round in 0..ROUNDS {
        let (end, ends) = oneshot::channel::<()>();
        let (begun, begins) = oneshot::channel::<()>();
        let load = quiet.request(round).load(move |_| async move {
            begun.send(()).unwrap();
            ends.await.unwrap();
            Ok::<_, io::Error>("v".to_owned())
        });
        let loading = tokio::spawn(async move { load.await.unwrap().source() });
        begins.await.unwrap();
        let (theirs, key) = (other.clone(), round);
        let waiting = tokio::spawn(async move {
            let load = theirs.request(key).load(|_| async { Err(io::Error::other("no load")) });
            timeout(LIMIT, load).await.unwrap().unwrap();
            Instant::now()
        });
        let lease = format!("*{{{round}}}:l");
        assert!(comes_true(LIMIT, async || raw.registered(&lease).await == 1).await, "no waiter");
        end.send(()).unwrap();
        assert_eq!(loading.await.unwrap(), Source::Led);
        let ended = Instant::now();
        took.push(waiting.await.unwrap().saturating_duration_since(ended));
    }
    println!("the waiters for a load came after {took:?}");
    took.sort_unstable();
    assert!(took[ROUNDS / 2] < 1000 * MS, "{took:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_but_the_first_waiter_for_a_lock_are_soon_served() {
    let server = RedisServer::start().await;
    let mut raw = server.raw().await;
    let [quiet, other] = backends(&server).await.map(Locks::new);
    let mut took = Vec::new();
    for _ in 0..ROUNDS {
        let guard = quiet.mutex("k").wait_limit(LIMIT).lock().await.unwrap();
        let theirs = other.mutex("k").wait_limit(LIMIT);
        let waiting = tokio::spawn(async move { theirs.lock().await.unwrap() });
        waits(&mut raw, "*{k}:u").await;
        guard.unlock().await.unwrap();
        let ended = Instant::now();
        let guard = timeout(LIMIT, waiting).await.unwrap().unwrap();
        took.push(ended.elapsed());
        guard.unlock().await.unwrap();
        let is_free = async || raw.keys("*{k}:[lud]").await.is_empty();
        assert!(comes_true(LIMIT, is_free).await);
    }
    println!("the waiters for a lock came after {took:?}");
    took.sort_unstable();
    assert!(took[ROUNDS / 2] < 400 * MS, "{took:?}");
}
