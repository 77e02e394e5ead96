//! A holder without the right to publish, and waiters in another process that may subscribe.

use std::{io, time::Duration};

use bellwether::{
    Cache, Locks, RedisBackend,
    backend::{Claim, Claimed, Mode, Store},
    cache::Source,
    key::{Family, Key, Name, Namespace},
};
use testkit::{
    LIMIT, Raw, RedisServer, comes_true,
    primitives::{Asked, PAIRS},
};
use tokio::{
    sync::oneshot,
    time::{Instant, sleep, timeout},
};

const MS: Duration = Duration::from_millis(1);
const ROUNDS: usize = 10;
/// It ends in no test.
const LEASE: Duration = Duration::from_secs(30);

/// Makes a user that may not publish, and returns the URL for it.
async fn quiet_url(server: &RedisServer) -> String {
    let mut raw = server.raw().await;
    let user = ["ACL", "SETUSER", "quiet", "on", ">secret", "~*", "&*", "+@all", "-publish"];
    raw.run::<()>(&user).await;
    server.url_of("quiet:secret", 0)
}

/// Returns a backend that may not publish, and two that may do everything.
async fn backends(server: &RedisServer) -> [RedisBackend; 3] {
    [quiet_url(server).await, server.url(), server.url()].map(testkit::open)
}

fn cache(backend: RedisBackend, lease: Duration) -> Cache<String> {
    Cache::builder(backend).lease(lease).build().unwrap()
}

/// The scripts of a waiter whose process has not waited yet: it asks, subscribes and asks again.
const FIRST: u64 = 2;
/// The scripts of a later one.
const LATER: u64 = 1;

/// Waits until this many scripts have been called.
async fn called(raw: &mut Raw, count: u64) {
    assert!(comes_true(LIMIT, async || raw.scripts_called().await >= count).await, "no waiter");
}

/// Returns how late a waiter for a load has its value. It waits once it has asked so often.
async fn load(
    raw: &mut Raw,
    [holder, waiter]: [&Cache<String>; 2],
    key: u64,
    asks: u64,
) -> Duration {
    let (end, ends) = oneshot::channel::<()>();
    let (begun, begins) = oneshot::channel::<()>();
    let load = holder.request(key).load(move |_| async move {
        begun.send(()).unwrap();
        ends.await.unwrap();
        Ok::<_, io::Error>("v".to_owned())
    });
    let loading = tokio::spawn(async move { load.await.unwrap().source() });
    begins.await.unwrap();
    let (waiter, before) = (waiter.clone(), raw.scripts_called().await);
    let waiting = tokio::spawn(async move {
        let load = waiter.request(key).load(|_| async { Err(io::Error::other("no load")) });
        timeout(LIMIT, load).await.unwrap().unwrap();
        Instant::now()
    });
    called(raw, before + asks).await;
    end.send(()).unwrap();
    assert_eq!(loading.await.unwrap(), Source::Led);
    let ended = Instant::now();
    waiting.await.unwrap().saturating_duration_since(ended)
}

/// Returns how late a waiter has the mutex `k`. It waits once it has asked so often.
async fn lock(raw: &mut Raw, [holder, waiter]: [&Locks; 2], asks: u64) -> Duration {
    let guard = holder.mutex("k").wait_limit(LIMIT).lock().await.unwrap();
    let (theirs, before) = (waiter.mutex("k").wait_limit(LIMIT), raw.scripts_called().await);
    let waiting = tokio::spawn(async move { theirs.lock().await.unwrap() });
    called(raw, before + asks).await;
    guard.unlock().await.unwrap();
    let ended = Instant::now();
    let guard = timeout(LIMIT, waiting).await.unwrap().unwrap();
    let late = ended.elapsed();
    guard.unlock().await.unwrap();
    let is_free = async || raw.keys("*{k}:[lud]").await.is_empty();
    assert!(comes_true(LIMIT, is_free).await);
    late
}

fn assert_median(what: &str, mut late: Vec<Duration>, limit: Duration) {
    late.sort_unstable();
    println!("{what}: {:?} late, at most {:?}", late[late.len() / 2], late[late.len() - 1]);
    assert!(late[late.len() / 2] < limit, "{what}: {late:?}");
}

/// A process that has not waited before took the silence for a lock that is still held. So each
/// waiter slept until its process next kept its queue entry, 0.64 s after the claim.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_first_waiter_for_a_lock_is_soon_served() {
    let server = RedisServer::start().await;
    let (mut raw, quiet) = (server.raw().await, quiet_url(&server).await);
    for (what, pair) in PAIRS {
        let mut late = Vec::new();
        for round in 0..ROUNDS {
            let name = format!("{what}-{round}");
            let holder = Asked::new(&quiet, &name, LEASE).within(LIMIT);
            let waiter = Asked::new(&server.url(), &name, LEASE).within(LIMIT);
            let held = (pair.one.take)(holder).await.unwrap();
            let before = raw.scripts_called().await;
            let waiting = tokio::spawn((pair.rival.take)(waiter));
            called(&mut raw, before + FIRST).await;
            held.give_back().await.unwrap();
            let ended = Instant::now();
            let got = timeout(LIMIT, waiting).await.unwrap().unwrap().unwrap();
            late.push(ended.elapsed());
            got.give_back().await.unwrap();
        }
        assert_median(what, late, 400 * MS);
    }
}

/// Each waiter slept for 5 s, or until the end of the lease.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_first_waiter_for_a_load_is_soon_served() {
    let server = RedisServer::start().await;
    let mut raw = server.raw().await;
    let mut late = Vec::new();
    for round in 0..ROUNDS as u64 {
        let [holder, waiter, _] = backends(&server).await.map(|backend| cache(backend, LEASE));
        late.push(load(&mut raw, [&holder, &waiter], round, FIRST).await);
    }
    assert_median("a load", late, 1000 * MS);
}

/// A push has told of a release, so the process relies on pushes. Then each waiter slept until the
/// end of the lease, up to 5 s.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_but_the_first_waiter_for_a_load_are_soon_served() {
    let server = RedisServer::start().await;
    let mut raw = server.raw().await;
    let [quiet, told, waiter] = backends(&server).await.map(|backend| cache(backend, 3000 * MS));
    load(&mut raw, [&told, &waiter], u64::MAX, FIRST).await;
    let mut late = Vec::new();
    for round in 0..ROUNDS as u64 {
        late.push(load(&mut raw, [&quiet, &waiter], round, LATER).await);
    }
    assert_median("a load", late, 1000 * MS);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_but_the_first_waiter_for_a_lock_are_soon_served() {
    let server = RedisServer::start().await;
    let mut raw = server.raw().await;
    let [quiet, told, waiter] = backends(&server).await.map(Locks::new);
    lock(&mut raw, [&told, &waiter], FIRST).await;
    let mut late = Vec::new();
    for _ in 0..ROUNDS {
        late.push(lock(&mut raw, [&quiet, &waiter], LATER).await);
    }
    assert_median("a lock", late, 400 * MS);
}

/// A claim that does not wait took the end of a marked lease for near. A process that refreshed a
/// stale entry asked up to sixty times a second while another one loaded.
#[tokio::test]
async fn only_a_claim_that_waits_is_to_look_soon() {
    let server = RedisServer::start().await;
    let [quiet, _, other] = backends(&server).await;
    let name = Name::new(&Namespace::standard(), Family::Cache, &Key::from("k"), 512).unwrap();
    let claim = |listens| {
        let mut claim = Claim::new(name.clone(), Mode::Exclusive, LEASE, LEASE);
        (claim.waits, claim.listens) = (false, listens);
        claim
    };
    let held = quiet.claim(&claim(true), 0).await.unwrap();
    assert!(matches!(held, Claimed::Granted(_)), "{held:?}");
    for (listens, left) in [(true, Duration::ZERO..=10 * MS), (false, LEASE / 2..=LEASE)] {
        let Ok(Claimed::Occupied(occupied)) = other.claim(&claim(listens), 0).await else {
            panic!("the lease is held");
        };
        assert!(left.contains(&occupied.remaining), "{:?}, listens: {listens}", occupied.remaining);
    }
}

/// A wait that is idle costs a script every 0.64 s again once a push has told of a release.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_was_told_of_a_release_looks_rarely() {
    let server = RedisServer::start().await;
    let mut raw = server.raw().await;
    let [_, holder, waiter] = backends(&server).await.map(Locks::new);
    let mut monitor = server.monitor().await;
    let mut keeps = Vec::new();
    for is_told in [false, true] {
        if is_told {
            lock(&mut raw, [&holder, &waiter], LATER).await;
        }
        let guard = holder.mutex("k").lease(LEASE).lock().await.unwrap();
        let theirs = waiter.mutex("k").wait_limit(LIMIT);
        let (before, asks) = (raw.scripts_called().await, if is_told { LATER } else { FIRST });
        let waiting = tokio::spawn(async move { theirs.lock().await });
        called(&mut raw, before + asks).await;
        monitor.calls_from_clients().await;
        sleep(2000 * MS).await;
        let calls = monitor.calls_from_clients().await;
        keeps.push(calls.iter().filter(|call| call.command.starts_with("EVALSHA")).count());
        waiting.abort();
        let _ = waiting.await;
        guard.unlock().await.unwrap();
    }
    println!("scripts in 2 s before and after a told release: {keeps:?}");
    assert!(keeps[0] <= 40 && keeps[1] <= 5, "{keeps:?}");
}
