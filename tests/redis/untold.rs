//! A holder without the right to publish, and waiters in another process that may subscribe.

use std::{io, time::Duration};

use bellwether::{
    Cache, Locks, RedisBackend, Redlock,
    backend::{Acquired, AcquiredAll, Claim, Claimed, Leases, Mode, Store},
    cache::Source,
    key::{Family, Key, Name, Namespace},
};
use futures_util::future::join_all;
use testkit::{
    Cluster, LIMIT, Raw, RedisServer, comes_true,
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

fn claim(key: &str, mode: Mode) -> Claim {
    let name = Name::new(&Namespace::new("t").unwrap(), Family::Lock, &Key::from(key), 512);
    Claim::new(name.unwrap(), mode, LEASE, LEASE)
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

/// A process that waits long gave up its looks at short intervals after seven seconds, a hundred
/// looks.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_long_wait_for_a_lock_is_soon_served() {
    let server = RedisServer::start().await;
    let mut raw = server.raw().await;
    let [quiet, _, waiter] = backends(&server).await.map(Locks::new);
    for round in 0..3 {
        let late = lock(&mut raw, [&quiet, &waiter], 130).await;
        println!("round {round}: {late:?} late");
        assert!(late < 400 * MS, "{late:?}");
    }
}

/// The key of a lock that says it is in the slot of the lock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_in_a_cluster_is_soon_served() {
    let cluster = Cluster::start(2, 0).await;
    let mut nodes = Vec::new();
    for node in &cluster.nodes {
        let mut raw = node.raw().await;
        let user = ["ACL", "SETUSER", "quiet", "on", ">secret", "~*", "&*", "+@all", "-spublish"];
        raw.run::<()>(&user).await;
        nodes.push(raw);
    }
    let quiet: Vec<_> = cluster.nodes.iter().map(|node| node.url_of("quiet:secret", 0)).collect();
    let [quiet, waiter] = [quiet, cluster.urls()]
        .map(|urls| Locks::new(testkit::builder().cluster(urls).build().unwrap()));
    let mut late = Vec::new();
    for round in 0..ROUNDS {
        let key = format!("k{round}");
        let guard = quiet.mutex(key.clone()).lease(LEASE).lock().await.unwrap();
        let theirs = waiter.mutex(key).wait_limit(LIMIT);
        let waiting = tokio::spawn(async move { theirs.lock().await.unwrap() });
        let waits = async || {
            let mut queues = 0;
            for node in &mut nodes {
                queues += node.keys("*:u").await.len();
            }
            queues == 1
        };
        assert!(comes_true(LIMIT, waits).await, "no waiter");
        guard.unlock().await.unwrap();
        let ended = Instant::now();
        let guard = timeout(LIMIT, waiting).await.unwrap().unwrap();
        late.push(ended.elapsed());
        guard.unlock().await.unwrap();
    }
    assert_median("a lock in a cluster", late, 400 * MS);
}

/// Each server is told of its share.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_for_a_majority_is_soon_served() {
    let servers = join_all((0..3).map(|_| RedisServer::start())).await;
    let mut raw = servers[0].raw().await;
    let quiet = join_all(servers.iter().map(quiet_url)).await;
    let quiet = Redlock::new(quiet.into_iter().map(testkit::open)).unwrap();
    let mut late = Vec::new();
    for _ in 0..ROUNDS {
        // A process that has waited for the name asks often.
        let loud = servers.iter().map(|server| testkit::open(server.url()));
        let waiter = Redlock::new(loud).unwrap();
        let guard = quiet.mutex("k").lease(LEASE).lock().await.unwrap();
        let (theirs, before) = (waiter.mutex("k").wait_limit(LIMIT), raw.scripts_called().await);
        let waiting = tokio::spawn(async move { theirs.lock().await.unwrap() });
        called(&mut raw, before + FIRST).await;
        guard.unlock().await.unwrap();
        let ended = Instant::now();
        let guard = timeout(LIMIT, waiting).await.unwrap().unwrap();
        late.push(ended.elapsed());
        guard.unlock().await.unwrap();
    }
    assert_median("a lock at a majority", late, 400 * MS);
}

/// Many processes wait. Each of them looks less often, so that they cost the server no more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_processes_look_at_a_lock_as_often_as_few() {
    const PROCESSES: usize = 40;
    let server = RedisServer::start().await;
    let mut raw = server.raw().await;
    let [quiet, other, _] = backends(&server).await;
    let [held, ours] = [(); 2].map(|()| claim("k", Mode::Fair));
    assert!(matches!(quiet.acquire(&held).await.unwrap(), Acquired::Granted(_)));
    for (processes, looks) in [(1, 30 * MS), (3, 30 * MS), (PROCESSES, 400 * MS)] {
        for number in 1..processes {
            let ends = server_ms(&mut raw).await + 60_000;
            let process = format!("{number:016x}");
            raw.run::<()>(&["ZADD", "t:l:{k}:d", &ends.to_string(), &process]).await;
        }
        let Ok(Acquired::Occupied(held)) = other.acquire(&ours).await else {
            panic!("the lock is held");
        };
        let kept = other.keep(std::slice::from_ref(&ours)).await.unwrap();
        for left in [held.remaining, kept.remaining] {
            assert!(left == looks, "{left:?} with {processes}");
        }
    }
}

async fn server_ms(raw: &mut Raw) -> u64 {
    let [seconds, micros]: [u64; 2] = raw.run::<Vec<u64>>(&["TIME"]).await.try_into().unwrap();
    seconds * 1000 + micros / 1000
}

/// The first wait of a process cost 17 scripts a second until a push had told it of a release.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_looks_rarely_if_all_may_publish() {
    let server = RedisServer::start().await;
    let mut raw = server.raw().await;
    let [_, holder, waiter] = backends(&server).await.map(Locks::new);
    let guard = holder.mutex("k").lease(LEASE).lock().await.unwrap();
    assert!(raw.keys("*:m").await.is_empty());
    let theirs = waiter.mutex("k").wait_limit(LIMIT);
    let before = raw.scripts_called().await;
    let waiting = tokio::spawn(async move { theirs.lock().await });
    called(&mut raw, before + FIRST).await;
    let before = raw.scripts_called().await;
    sleep(2000 * MS).await;
    let scripts = raw.scripts_called().await - before;
    assert!(scripts <= 5, "{scripts}");
    waiting.abort();
    let _ = waiting.await;
    guard.unlock().await.unwrap();
}

/// A backend finds out once whether it may publish. One that may not says so beside each lock.
#[tokio::test]
async fn a_backend_says_beside_its_locks_that_it_may_not_publish() {
    let server = RedisServer::start().await;
    let mut raw = server.raw().await;
    let [quiet, loud, _] = backends(&server).await;
    let claim = |number: usize| claim(&number.to_string(), Mode::Exclusive);
    // One that may not tells it before a claim that waits, and behind its grant.
    for (backend, scripts, told) in [(&loud, 8 + 1, 0), (&quiet, 8 * 3, 9)] {
        let before = raw.scripts_called().await;
        let first = claim(0);
        assert!(matches!(backend.acquire(&first).await.unwrap(), Acquired::Granted(_)));
        let claims: Vec<_> = (1..7).map(claim).collect();
        join_all(claims.iter().map(async |claim| backend.acquire(claim).await.unwrap())).await;
        let both = [claim(7), claim(8)];
        assert!(matches!(backend.acquire_all(&both).await.unwrap(), AcquiredAll::Granted(_)));
        let called = raw.scripts_called().await - before;
        assert_eq!((called, raw.keys("*:m").await.len()), (scripts, told));
        for claim in claims.iter().chain(&both).chain([&first]) {
            backend.release(claim).await.unwrap();
        }
    }
    raw.run::<()>(&["DEL", "t:l:{0}:m"]).await;
    let held = claim(0);
    assert!(matches!(quiet.acquire(&held).await.unwrap(), Acquired::Granted(_)));
    raw.run::<()>(&["PEXPIRE", "t:l:{0}:m", "1000"]).await;
    quiet.renew(&[held]).await.unwrap();
    assert!(raw.pttl("t:l:{0}:m").await > 1000, "a renewal does not tell it");
    // A shorter lease beside it.
    let mut shorter = claim(0);
    shorter.lease = 300 * MS;
    assert!(matches!(quiet.acquire(&shorter).await.unwrap(), Acquired::Occupied(_)));
    assert!(raw.pttl("t:l:{0}:m").await > 20_000, "it is forgotten before the lease ends");
    assert!(quiet.clear(&shorter.name, Mode::Exclusive).await.unwrap());
    assert!(!raw.keys("*:m").await.contains(&"t:l:{0}:m".to_owned()));
    assert!(!quiet.clear(&shorter.name, Mode::Exclusive).await.unwrap());
}

/// A claim that neither waits nor was granted has nothing to tell of.
#[tokio::test]
async fn a_claim_in_vain_that_does_not_wait_tells_nothing() {
    let server = RedisServer::start().await;
    let mut raw = server.raw().await;
    let [quiet, loud, _] = backends(&server).await;
    let claim = |waits| {
        let mut claim = claim("k", Mode::Fair);
        claim.waits = waits;
        claim
    };
    assert!(matches!(loud.acquire(&claim(false)).await.unwrap(), Acquired::Granted(_)));
    assert!(matches!(quiet.acquire(&claim(false)).await.unwrap(), Acquired::Occupied(_)));
    assert!(raw.keys("*:m").await.is_empty());
    // One that waits may be handed the lock. It tells that while it asks again and again.
    assert!(matches!(quiet.acquire(&claim(true)).await.unwrap(), Acquired::Occupied(_)));
    assert!((1..=2000).contains(&raw.pttl("t:l:{k}:m").await));
}

/// The waiters sleep when the process comes that may not publish.
#[tokio::test]
async fn a_waiter_is_told_of_a_holder_that_comes_later() {
    let server = RedisServer::start().await;
    let [quiet, loud, waiter] = backends(&server).await;
    let [held, waiting, quietly] =
        [(); 3].map(|()| claim("k", Mode::Permit { limit: 2, count: 2 }));
    assert!(matches!(loud.acquire(&held).await.unwrap(), Acquired::Granted(_)));
    assert!(matches!(waiter.acquire(&waiting).await.unwrap(), Acquired::Occupied(_)));
    let waiting = std::slice::from_ref(&waiting);
    assert!(waiter.keep(waiting).await.unwrap().remaining > LEASE / 2);
    assert!(matches!(quiet.acquire(&quietly).await.unwrap(), Acquired::Occupied(_)));
    for _ in 0..3 {
        let remaining = waiter.keep(waiting).await.unwrap().remaining;
        assert!(remaining <= 30 * MS && !remaining.is_zero(), "{remaining:?}");
    }
}

/// The caller leaves while the backend tells the waiters, before its grant and behind it. The next
/// caller does not wait for the end of the lease.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_caller_that_leaves_while_the_waiters_are_told_leaves_no_lock() {
    let server = RedisServer::start().await;
    let mut raw = server.raw().await;
    let next = Locks::new(testkit::open(server.url()));
    let url = quiet_url(&server).await;
    for is_known in [false, true] {
        for scripts in 0..=3 {
            let quiet = Locks::new(testkit::open(url.clone()));
            if is_known {
                quiet.mutex("known").lock().await.unwrap().unlock().await.unwrap();
            }
            let (leaves, before) = (quiet.mutex("k").lease(LEASE), raw.scripts_called().await);
            let leaving = tokio::spawn(async move { leaves.lock().await.map(drop) });
            called(&mut raw, before + scripts).await;
            leaving.abort();
            let _ = leaving.await;
            let lock = next.mutex("k").wait_limit(LIMIT);
            let guard = timeout(LIMIT, lock.lock()).await.unwrap().unwrap();
            guard.unlock().await.unwrap();
        }
    }
}
