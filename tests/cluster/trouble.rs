//! A node that hangs, and a cluster that is down: what that costs whoever does not need it.

use std::time::Duration;

use bellwether::{backend::Leases, error::BackendErrorKind};
use tokio::time::Instant;

use crate::{
    backend, claim, locks,
    support::{Cluster, LIMIT, comes_true},
};

/// What a busy machine adds to a time-out.
const SLACK: Duration = Duration::from_secs(2);

#[tokio::test]
async fn a_node_that_hangs_costs_the_leases_of_the_others_nothing() {
    let cluster = Cluster::start_with(3, 0, &["--cluster-node-timeout", "60000"]).await;
    let locks = locks(&cluster);
    let keys = cluster.key_of_each(3, |at| format!("k{at}")).await;
    let mut guards = Vec::new();
    for key in &keys {
        // So short that the first renewal that fails for all would lose them.
        let lock = locks.mutex(key.as_str()).lease(Duration::from_secs(3));
        guards.push(lock.refresh_every(Duration::from_millis(500)).lock().await.unwrap());
    }
    cluster.nodes[1].stop_signal();
    guards[1].lost().await;
    for at in [0, 2] {
        // They are renewed as before.
        let renewed = async || guards[at].remaining() > Duration::from_secs(2);
        assert!(comes_true(SLACK, renewed).await);
        assert!(!guards[at].is_lost(), "{at}");
    }
    cluster.nodes[1].resume();
    let again =
        async || locks.mutex(keys[1].as_str()).try_lock().await.is_ok_and(|it| it.is_some());
    assert!(comes_true(LIMIT, again).await, "the node is not used again");
}

/// The cluster refuses everything as long as one slot is nobody's.
#[tokio::test]
async fn a_cluster_that_is_down_is_an_error_at_once_and_used_again() {
    let cluster = Cluster::start(2, 0).await;
    let backend = backend(&cluster);
    let held = claim("k");
    backend.acquire(&held).await.unwrap();
    for node in &cluster.nodes {
        node.raw().await.config_set("cluster-require-full-coverage", "yes").await;
    }
    for node in &cluster.nodes {
        node.raw().await.run::<()>(&["CLUSTER", "DELSLOTS", "0"]).await;
    }
    let down = async || backend.renew(std::slice::from_ref(&held)).await.is_err();
    assert!(comes_true(LIMIT, down).await, "the cluster is not down");
    let begun = Instant::now();
    let error = backend.acquire(&claim("k")).await.unwrap_err();
    assert_eq!(error.kind(), BackendErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("The cluster is down"), "{error}");
    assert!(begun.elapsed() < Duration::from_millis(250) + SLACK);
    cluster.nodes[0].raw().await.run::<()>(&["CLUSTER", "ADDSLOTS", "0"]).await;
    let up = async || backend.renew(std::slice::from_ref(&held)).await.is_ok();
    assert!(comes_true(LIMIT, up).await, "it is not used again");
    assert_eq!(backend.renew(&[held]).await.unwrap(), [true]);
}
