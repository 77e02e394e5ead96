//! A master dies, and its replica takes over its slots.

use super::locks;
use crate::prelude::*;

#[tokio::test]
async fn a_replica_takes_over_held_leases_and_their_waiters() {
    let mut cluster = Cluster::start(3, 3).await;
    let here = locks(&cluster);
    let there = locks(&cluster);
    let keys = cluster.key_of_each(3, |at| format!("k{at}")).await;
    let refresh = Duration::from_millis(200);
    let mut guards = Vec::new();
    let mut waiting = Vec::new();
    for key in &keys {
        let lock = here.mutex(key.as_str()).lease(LEASE).renew_every(refresh);
        guards.push(lock.lock().await.unwrap());
        let waiter = there.mutex(key.as_str()).lease(LEASE).wait_limit(4 * LIMIT);
        waiting.push(tokio::spawn(async move { waiter.lock().await }));
    }
    for (at, key) in keys.iter().enumerate() {
        let mut raw = cluster.nodes[at].raw().await;
        let listens = async || !raw.shard_channels().await.is_empty();
        assert!(comes_true(LIMIT, listens).await, "no waiter subscribed at node {at}");
        let reached: usize = {
            raw.run::<()>(&["SET", &format!("{{{key}}}"), "", "PX", "1000"]).await;
            raw.run(&["WAIT", "1", "10000"]).await
        };
        assert_eq!(reached, 1);
    }
    cluster.nodes[0].kill();
    let lease = format!("bellwether:l:{{{}}}:l", keys[0]);
    let replaced = async || cluster.owner_seen_by(1, &lease).await == Some(3);
    assert!(comes_true(2 * LIMIT, replaced).await, "no replica took over");

    let mut raw = cluster.nodes[3].raw().await;
    let mut before = raw.pttl(&lease).await;
    let renewed = async || {
        let now = raw.pttl(&lease).await;
        now > std::mem::replace(&mut before, now)
    };
    assert!(comes_true(LIMIT, renewed).await, "the lease is not renewed at the new master");
    let mut raw = cluster.nodes[3].raw().await;
    let listens = async || !raw.shard_channels().await.is_empty();
    assert!(comes_true(LIMIT, listens).await, "the waiter does not listen at the new master");
    for (guard, waiting) in guards.into_iter().zip(waiting) {
        assert!(!guard.is_lost());
        assert!(!waiting.is_finished());
        let fence = guard.fence();
        guard.unlock().await.unwrap();
        let next = timeout(LIMIT, waiting).await.expect("the waiter got no turn").unwrap().unwrap();
        assert!(next.fence() > fence);
        next.unlock().await.unwrap();
    }

    // The dead node comes back as a replica, and no backend keeps a connection to it.
    cluster.nodes[0].start_again().await;
    let mut raw = cluster.nodes[0].raw().await;
    let replica = async || raw.run::<String>(&["INFO", "replication"]).await.contains("role:slave");
    assert!(comes_true(LIMIT, replica).await);
    // The time is longer than the pause between two attempts to connect.
    let quiet = async || {
        let before = raw.number("stats", "total_connections_received:").await;
        tokio::time::sleep(Duration::from_millis(1200)).await;
        raw.number("stats", "total_connections_received:").await == before
    };
    assert!(comes_true(LIMIT, quiet).await, "a backend still connects to a node without slots");
}
