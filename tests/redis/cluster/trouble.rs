//! A node that hangs, and a cluster that is down, and their cost for users of the other nodes.

use tokio_util::sync::CancellationToken;

use super::{TIMEOUT, backend, locks, name};
use crate::prelude::*;

/// The delay that a busy machine adds to a time-out.
const SLACK: Duration = Duration::from_secs(2);

#[tokio::test]
async fn a_node_that_hangs_does_not_affect_leases_of_other_nodes() {
    let cluster = Cluster::start_with(3, 0, &["--cluster-node-timeout", "60000"]).await;
    let locks = locks(&cluster);
    let keys = cluster.key_of_each(3, |at| format!("k{at}")).await;
    let mut guards = Vec::new();
    for key in &keys {
        // The lease is so short that a single failed renewal of all leases would lose it.
        let lock = locks.mutex(key.as_str()).lease(Duration::from_secs(3));
        guards.push(lock.renew_every(Duration::from_millis(500)).lock().await.unwrap());
    }
    cluster.nodes[1].stop_signal();
    guards[1].lost().await;
    for at in [0, 2] {
        // The leases are renewed as before.
        let renewed = async || guards[at].remaining() > Duration::from_secs(2);
        assert!(comes_true(SLACK, renewed).await);
        assert!(!guards[at].is_lost(), "{at}");
    }
    cluster.nodes[1].resume();
    let again =
        async || locks.mutex(keys[1].as_str()).try_lock().await.is_ok_and(|guard| guard.is_some());
    assert!(comes_true(LIMIT, again).await, "the node is not used again");
}

/// Each node has a breaker of its own.
#[tokio::test]
async fn a_node_that_hangs_does_not_affect_entries_of_other_nodes() {
    let cluster = Cluster::start_with(3, 0, &["--cluster-node-timeout", "60000"]).await;
    let cache = Cache::<String>::builder(backend(&cluster), "bellwether").build().unwrap();
    let of_each = cluster.key_of_each(3, |at| format!("k{at}")).await;
    for key in &of_each {
        assert_eq!(ask(&cache, key).await.0, Source::Led);
    }
    // The number of keys exceeds the limit on concurrent commands of a shard.
    let mut hanging = Vec::new();
    for at in 0.. {
        let key = format!("h{at}");
        if cluster.owner(&format!("{{{key}}}")).await == 1 {
            hanging.push(key);
        }
        if hanging.len() == 150 {
            break;
        }
    }
    cluster.nodes[1].stop_signal();
    let stop = CancellationToken::new();
    let callers: Vec<_> = hanging
        .into_iter()
        .map(|key| {
            let cache = cache.clone();
            let stop = stop.clone();
            tokio::spawn(async move {
                let mut slowest = Duration::ZERO;
                while !stop.is_cancelled() {
                    slowest = slowest.max(ask(&cache, &key).await.1);
                    sleep(Duration::from_millis(5)).await;
                }
                slowest
            })
        })
        .collect();
    // The checks run from before the first time-out until long after it.
    let begun = Instant::now();
    while begun.elapsed() < 3 * TIMEOUT {
        for at in [0, 2] {
            let (source, took) = ask(&cache, &of_each[at]).await;
            assert_eq!(source, Source::Hit, "after {:?}", begun.elapsed());
            assert!(took < TIMEOUT, "{took:?} after {:?}", begun.elapsed());
        }
        sleep(Duration::from_millis(1)).await;
    }
    // Callers of the hanging node no longer wait for it, except for the probe.
    let mut slow = 0;
    for _ in 0..100 {
        let (source, took) = ask(&cache, &of_each[1]).await;
        assert_eq!(source, Source::Degraded);
        slow += usize::from(took >= TIMEOUT / 2);
    }
    assert!(slow <= 3, "{slow} of 100");
    stop.cancel();
    for caller in callers {
        let slowest = caller.await.unwrap();
        assert!(slowest < TIMEOUT + Duration::from_millis(200) + SLACK, "{slowest:?}");
    }
    cluster.nodes[1].resume();
    let again = async || ask(&cache, &of_each[1]).await.0 == Source::Hit;
    assert!(comes_true(LIMIT, again).await, "the node is not used again");
}

/// A push connection was tested only after a second in which no channel of any node opened or
/// closed. A process with many waits never tested the connection to the node that hung.
#[tokio::test]
async fn listeners_learn_of_a_node_that_hangs_while_others_come_and_go() {
    let cluster = Cluster::start_with(2, 0, &["--cluster-node-timeout", "60000"]).await;
    let backend = backend(&cluster);
    let keys = cluster.key_of_each(2, |at| format!("k{at}")).await;
    let mut stays = backend.changes(&name(&keys[1])).await.unwrap();
    let visits = async || {
        loop {
            drop(backend.changes(&name(&keys[0])).await.unwrap());
            sleep(Duration::from_millis(100)).await;
        }
    };
    cluster.nodes[1].stop_signal();
    let told = async { timeout(LIMIT, stays.next()).await };
    let told = tokio::select! {
        told = told => told,
        () = visits() => unreachable!(),
    };
    assert_eq!(told.expect("the connection is not tested"), Change::Wake);
}

/// Returns the source of the value of a key, and the time that it took.
async fn ask(cache: &Cache<String>, key: &str) -> (Source, Duration) {
    let begun = Instant::now();
    let load = |_| async { Ok::<_, std::io::Error>("x".to_owned()) };
    let loaded = cache.request(key).load(load).await.unwrap();
    (loaded.source, begun.elapsed())
}

/// The cluster refuses every command while one slot has no node.
#[tokio::test]
async fn a_cluster_that_is_down_is_an_error_at_once_and_is_used_again() {
    let cluster = Cluster::start(2, 0).await;
    let backend = backend(&cluster);
    let held = mutex_claim("k");
    backend.acquire(&held).await.unwrap();
    for node in &cluster.nodes {
        node.raw().await.config_set("cluster-require-full-coverage", "yes").await;
    }
    for node in &cluster.nodes {
        node.raw().await.run::<()>(&["CLUSTER", "DELSLOTS", "0"]).await;
    }
    // A command is tried for the whole time-out. On a busy machine, its last try may stay
    // unanswered.
    let down = async || {
        let begun = Instant::now();
        let Err(error) = backend.acquire(&mutex_claim("k")).await else { return false };
        assert!(begun.elapsed() < TIMEOUT + SLACK, "{:?}", begun.elapsed());
        if error.kind() == BackendErrorKind::Unknown {
            return false;
        }
        assert_eq!(error.kind(), BackendErrorKind::Unavailable, "{error}");
        format!("{error:#}").contains("The cluster is down")
    };
    assert!(comes_true(LIMIT, down).await, "the cluster is not down");
    cluster.nodes[0].raw().await.run::<()>(&["CLUSTER", "ADDSLOTS", "0"]).await;
    let up = async || backend.renew(std::slice::from_ref(&held)).await.is_ok();
    assert!(comes_true(LIMIT, up).await, "the cluster is not used again");
    assert_eq!(backend.renew(&[held]).await.unwrap(), [Renewal::Held]);
}
