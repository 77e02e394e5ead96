//! Grants that count only when replicas have confirmed them.

use std::error::Error as _;

use bellwether::backend::Handover;

use crate::prelude::*;

/// The delay that a busy machine adds to a time-out.
const SLACK: Duration = Duration::from_secs(2);

/// Builds a backend that waits until a busy machine has confirmed a grant.
fn builder() -> RedisBackendBuilder {
    testkit::builder().replicas(1, LIMIT / 2)
}

/// Builds a backend that soon gives up what is not confirmed.
fn hasty(replicas: u32) -> RedisBackendBuilder {
    testkit::builder().replicas(replicas, Duration::from_millis(100))
}

/// Starts a master and a replica that follows it.
async fn pair() -> (RedisServer, RedisServer) {
    let master = RedisServer::start_with(&["--repl-diskless-sync-delay", "0"]).await;
    let port = master.port().to_string();
    let replica = RedisServer::start_with(&["--replicaof", "127.0.0.1", &port]).await;
    master.raw().await.followed_by(1).await;
    (master, replica)
}

fn unreplicated<T: std::fmt::Debug>(answer: Result<T, BackendError>) {
    let error = answer.expect_err("the grant counts without a confirmation");
    assert_eq!(error.kind(), BackendErrorKind::Unreplicated, "{error}");
}

#[tokio::test]
async fn a_granted_lease_is_on_the_replica() {
    let (master, replica) = pair().await;
    let backend = builder().server(master.url()).build().unwrap();
    let mut raw = replica.raw().await;
    for at in 0..50 {
        let claim = mutex_claim(&format!("k{at}"));
        granted(&backend, &claim).await;
        let there: bool = raw.run(&["EXISTS", &claim.name.suffixed("l")]).await;
        assert!(there, "lease {at} is not on the replica");
    }
    held(&backend, &mutex_claim("k7")).await;
}

#[tokio::test]
async fn an_unconfirmed_grant_is_released_and_reported() {
    let (master, replica) = pair().await;
    let patient = builder().server(master.url()).build().unwrap();
    let backend = hasty(1).server(master.url()).build().unwrap();
    let holder = mutex_claim("held");
    let next = mutex_claim("held");
    patient.acquire(&holder).await.unwrap();
    backend.ping().await.unwrap();
    replica.stop_signal();
    let begun = Instant::now();
    unreplicated(backend.acquire(&mutex_claim("k")).await);
    // A clock, because the limit of the wait for replicas is the promise.
    assert!(begun.elapsed() < Duration::from_millis(100) + SLACK);
    unreplicated(backend.claim(&mutex_claim("c"), 0).await);
    unreplicated(backend.renew(std::slice::from_ref(&holder)).await);
    unreplicated(backend.pass(&holder, &next).await);
    let mut raw = master.raw().await;
    assert_eq!(raw.keys("*:l").await, [""; 0], "the lease is still held");
    // Without a grant, no confirmation is needed.
    let stranger = mutex_claim("s");
    assert!(!backend.release(&stranger).await.unwrap());
    raw.run::<()>(&["SET", "t:l:{s}:l", &format!("{}:7", mutex_claim("x").owner), "PX", "60000"])
        .await;
    held(&backend, &stranger).await;

    replica.resume();
    let again = async || backend.acquire(&mutex_claim("again")).await.is_ok();
    assert!(comes_true(LIMIT, again).await, "the lease is not granted again");
    // One of two required replicas is not enough.
    let backend = hasty(2).server(master.url()).build().unwrap();
    unreplicated(backend.acquire(&mutex_claim("k")).await);
    assert!(!raw.keys("*:l").await.contains(&mutex_claim("k").name.suffixed("l")));
}

/// The wait for a replica uses a connection of its own.
#[tokio::test]
async fn nothing_else_waits_for_a_replica() {
    let (master, replica) = pair().await;
    let backend = builder().server(master.url()).build().unwrap();
    backend.acquire(&mutex_claim("warm")).await.unwrap();
    backend.ping().await.unwrap();
    replica.stop_signal();
    let theirs = backend.clone();
    let waited_for = mutex_claim("k");
    let acquiring = tokio::spawn(async move { theirs.acquire(&waited_for).await });
    let mut raw = master.raw().await;
    let granted = async || raw.keys("t:l:{k}:l").await.len() == 1;
    assert!(comes_true(LIMIT, granted).await);
    backend.ping().await.unwrap();
    assert!(backend.get(&mutex_claim("k").name).await.unwrap().is_none());
    assert!(!acquiring.is_finished(), "the acquisition did not wait for the replica");
    replica.resume();
    assert!(matches!(acquiring.await.unwrap().unwrap(), Claimed::Granted(_)));
}

/// A release grants a fair lock to the next waiter in its queue. Where replicas must confirm a
/// grant, the waiter asks for it once more, and holds it then.
#[tokio::test]
async fn a_waiter_does_not_trust_a_grant_that_replicas_must_confirm() {
    let (master, _replica) = pair().await;
    let backend = builder().server(master.url()).build().unwrap();
    let fair = || {
        let mut fair = mutex_claim("k");
        fair.mode = Mode::Fair;
        fair
    };
    let first = fair();
    let second = fair();
    granted(&backend, &first).await;
    held(&backend, &second).await;
    let mut changes = backend.changes(&first.name).await.unwrap();
    assert!(backend.release(&first).await.unwrap());
    let change = tokio::time::timeout(LIMIT, changes.next()).await.unwrap();
    let is_untrusted = |handover: &Handover| handover.ends.is_zero();
    assert!(matches!(&change, Change::Granted(handover) if is_untrusted(handover)), "{change:?}");
    assert_eq!(change.addressee(), Some(second.owner));
    granted(&backend, &second).await;
}

#[tokio::test]
async fn a_missing_confirmation_is_the_kind_of_the_source() {
    let (master, replica) = pair().await;
    let backend = hasty(1).server(master.url()).build().unwrap();
    let locks = Locks::new(backend.clone(), "bellwether");
    let short = Duration::from_secs(2);
    let guard = locks.mutex("held").lease(short).lock().await.unwrap();
    replica.stop_signal();
    let error = locks.mutex("k").try_lock().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Backend);
    let source = error.source().unwrap().downcast_ref::<BackendError>().unwrap();
    assert_eq!(source.kind(), BackendErrorKind::Unreplicated);
    // No renewal counts, so the holder is told in time.
    guard.lost().await;
    // A cache loads without a lease.
    let cache: Cache<String> = Cache::builder(backend, "bellwether").build().unwrap();
    let load = |_| async { Ok::<_, std::io::Error>("v".to_owned()) };
    let loaded = cache.request("c").load(load).await.unwrap();
    assert_eq!(loaded.source, Source::Degraded);
}

/// The refusal of a `WAIT` counted as no confirmation in time. The check at the start passed, and
/// each lock was told that its replicas were late.
#[tokio::test]
async fn a_user_that_may_not_wait_is_told() {
    let (master, _replica) = pair().await;
    let mut raw = master.raw().await;
    raw.set_user("app", &["+@all", "-wait", "~*", "&*"]).await;
    let url = master.url_of("app:secret", 0);
    let backend = builder().server(&url).build().unwrap();
    let error = backend.ready().await.unwrap_err();
    let told = format!("{error:#}");
    assert!(told.contains("`+wait`") && told.contains("no permissions"), "{told}");
    let source = error.source().unwrap().downcast_ref::<BackendError>().unwrap();
    assert_eq!(source.kind(), BackendErrorKind::Refused);
    // The check waits for no replica.
    testkit::open(&url).ready().await.unwrap();
    hasty(9).server(master.url()).build().unwrap().ready().await.unwrap();

    // The grant happened, so it is undone.
    let told = |error: &BackendError| {
        let told = format!("{error:#}");
        assert!(told.contains("refused `WAIT`") && told.contains("no permissions"), "{told}");
        assert!(!told.contains("nothing changed") && !told.contains("in time"), "{told}");
    };
    let answer = backend.acquire(&mutex_claim("k")).await;
    told(answer.as_ref().unwrap_err());
    unreplicated(answer);
    assert_eq!(raw.keys("t:l:*:l").await, [""; 0]);
    let held = mutex_claim("held");
    testkit::open(&url).acquire(&held).await.unwrap();
    let answer = backend.renew(&[held]).await;
    told(answer.as_ref().unwrap_err());
    unreplicated(answer);

    // A cache loads without leases, and with them as soon as the right is given.
    let cache: Cache<String> = Cache::builder(backend.clone(), "bellwether").build().unwrap();
    let source = async |at: usize| {
        let load = |_| async { Ok::<_, std::io::Error>("v".to_owned()) };
        cache.request(at).load(load).await.unwrap().source
    };
    assert_eq!(source(0).await, Source::Degraded);
    raw.run::<()>(&["ACL", "SETUSER", "app", "+wait"]).await;
    backend.ready().await.unwrap();
    let mut at = 0;
    let led = async || {
        at += 1;
        source(at).await == Source::Led
    };
    assert!(comes_true(LIMIT, led).await, "the cache stays degraded");
}

#[tokio::test]
async fn the_replicas_of_a_cluster_node_confirm() {
    let cluster = Cluster::start(1, 1).await;
    let backend = builder().cluster(cluster.urls()).build().unwrap();
    let held: Vec<_> = (0..20).map(|at| mutex_claim(&format!("k{at}"))).collect();
    let mut raw = cluster.nodes[1].raw().await;
    for claim in &held {
        backend.acquire(claim).await.unwrap();
    }
    assert_eq!(raw.keys("*:l").await.len(), 20);
    assert_eq!(backend.renew(&held).await.unwrap(), [Renewal::Held; 20]);
    let backend = hasty(1).cluster(cluster.urls()).build().unwrap();
    backend.ping().await.unwrap();
    cluster.nodes[1].stop_signal();
    unreplicated(backend.renew(&held).await);
    unreplicated(backend.acquire(&mutex_claim("k")).await);
}

/// A renewal that replicas confirm followed no `ASK`, so a slot that moved slowly lost its leases.
#[tokio::test]
async fn confirmed_renewals_follow_a_slot_that_moves() {
    let cluster = Cluster::start(2, 2).await;
    let backend = builder().cluster(cluster.urls()).build().unwrap();
    let held = mutex_claim("k");
    backend.acquire(&held).await.unwrap();
    let from = cluster.owner("{k}").await;
    cluster.begin_to_move("{k}", from, 1 - from).await;
    cluster.move_keys("{k}", from, 1 - from).await;
    assert_eq!(backend.renew(&[held]).await.unwrap(), [Renewal::Held]);
    let mut source = cluster.nodes[from].raw().await;
    assert!(source.errors("ASK").await >= 1, "the renewal was not redirected");
}

/// Each grant had a `WAIT` of its own, and they waited for each other.
#[tokio::test]
async fn grants_that_are_ready_share_a_wait() {
    const GRANTS: usize = 100;
    let (master, _replica) = pair().await;
    let backend = builder().server(master.url()).build().unwrap();
    backend.acquire(&mutex_claim("warm")).await.unwrap();
    let mut monitor = master.monitor().await;
    let claims: Vec<_> = (0..GRANTS).map(|at| mutex_claim(&format!("k{at}"))).collect();
    let granted = join_all(claims.iter().map(|claim| backend.acquire(claim))).await;
    assert!(granted.iter().all(|answer| matches!(answer, Ok(Claimed::Granted(_)))));
    assert_eq!(backend.renew(&claims).await.unwrap(), [Renewal::Held; GRANTS]);
    let calls = monitor.calls_from_clients().await;
    let waits = calls.iter().filter(|call| call.command == "WAIT").count();
    println!("{waits} waits for {GRANTS} grants");
    assert!((1..=10).contains(&waits), "{waits} waits");
}

/// Three grants waited for a replica one after another, which took longer than the command
/// time-out. They were reported as unanswered, and the connection was replaced.
#[tokio::test]
async fn concurrent_grants_without_a_replica_are_unconfirmed_and_not_silent() {
    let (master, replica) = pair().await;
    let limit = Duration::from_secs(1);
    let backend = RedisBackend::builder()
        .server(master.url())
        .command_timeout(2 * limit)
        .connect_timeout(LIMIT)
        .replicas(1, limit)
        .build()
        .unwrap();
    backend.acquire(&mutex_claim("warm")).await.unwrap();
    backend.ping().await.unwrap();
    let mut raw = master.raw().await;
    replica.stop_signal();
    let connected =
        async |raw: &mut testkit::Raw| raw.number("stats", "total_connections_received:").await;
    let before = connected(&mut raw).await;
    let claims: Vec<_> = (0..20).map(|at| mutex_claim(&format!("k{at}"))).collect();
    let begun = Instant::now();
    for answer in join_all(claims.iter().map(|claim| backend.acquire(claim))).await {
        let error = answer.as_ref().unwrap_err().to_string();
        assert!(error.contains("too few replicas"), "{error}");
        unreplicated(answer);
    }
    // A clock, because 20 waits after each other would take 20 limits.
    assert!(begun.elapsed() < 2 * limit + SLACK, "{:?}", begun.elapsed());
    assert_eq!(connected(&mut raw).await, before, "a connection was replaced");
    assert_eq!(raw.keys("t:l:{k*}:l").await, [""; 0]);
}

/// Each miss of a cache waited for the replica and for the release, up to 400 ms, for as long as
/// the replica was away. The breaker counted silence only.
#[tokio::test]
async fn after_an_unconfirmed_grant_few_misses_wait_for_replicas() {
    const MISSES: usize = 100;
    let server = RedisServer::start().await;
    let backend = hasty(1).server(server.url()).build().unwrap();
    let cache = bellwether::Cache::<String>::new(backend, "bellwether").unwrap();
    // Entries are written without a confirmation, and read all the same.
    cache.insert("stored", &"v".to_owned()).await.unwrap();
    let mut monitor = server.monitor().await;
    for at in 0..MISSES {
        let load = cache.request(at).load(|_| async { Ok::<_, std::io::Error>("v".to_owned()) });
        assert_eq!(load.await.unwrap().source, bellwether::cache::Source::Degraded);
        let hit =
            cache.request("stored").load(|_| async { Ok::<_, std::io::Error>(String::new()) });
        assert_eq!(hit.await.unwrap().source, bellwether::cache::Source::Hit);
    }
    let calls = monitor.calls_from_clients().await;
    let waits = calls.iter().filter(|call| call.command == "WAIT").count();
    assert!((1..MISSES / 5).contains(&waits), "{waits} waits for {MISSES} misses");
}

/// A waiter holds what a release frees only when replicas have confirmed it: a reader behind a
/// writer, and a waiter for the only permit.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiting_reader_and_a_waiting_permit_are_confirmed() {
    let (master, replica) = pair().await;
    let [here, there] =
        [0, 1].map(|_| Locks::new(hasty(1).server(master.url()).build().unwrap(), "bellwether"));
    let writer = here.rw_lock("k").write().await.unwrap();
    let permit = here.semaphore("k", 1).acquire().await.unwrap();
    let reader = there.rw_lock("k").wait_limit(LIMIT);
    let reader = tokio::spawn(async move { reader.read().await });
    let second = there.semaphore("k", 1).wait_limit(LIMIT);
    let second = tokio::spawn(async move { second.acquire().await });
    for queue in ["*{k}:rq", "*{k}:pq"] {
        let queued = async || !master.raw().await.keys(queue).await.is_empty();
        assert!(comes_true(LIMIT, queued).await, "no waiter in {queue}");
    }
    replica.stop_signal();
    writer.unlock().await.unwrap();
    permit.unlock().await.unwrap();
    let mut raw = master.raw().await;
    let before = raw.calls("wait").await;
    assert!(comes_true(LIMIT, async || raw.calls("wait").await >= before + 4).await);
    assert!(!reader.is_finished() && !second.is_finished(), "granted without a replica");
    replica.resume();
    let reader = reader.await.unwrap().unwrap();
    let second = second.await.unwrap().unwrap();
    for key in ["*{k}:r", "*{k}:p"] {
        assert_eq!(replica.raw().await.keys(key).await.len(), 1, "{key} is not on the replica");
    }
    reader.unlock().await.unwrap();
    second.unlock().await.unwrap();
}
