//! Releases that a master answered, and that its replica does not know of.

use testkit::{Cluster, LIMIT, comes_true};

use super::{LEASE, locks};

/// The replica took over with the leases of owners that were released at the old master. They stood
/// until their ends.
#[tokio::test]
async fn releases_are_repeated_at_the_replica_that_takes_over() {
    let cluster = Cluster::start(3, 3).await;
    let (here, there) = (locks(&cluster), locks(&cluster));
    let keys = cluster.key_of_each(3, |at| format!("k{at}")).await;
    let held = there.rw_lock(keys[0].as_str()).lease(LEASE).read().await.unwrap();
    let mut guards = Vec::new();
    for key in &keys {
        guards.push(here.mutex(key.as_str()).lease(LEASE).lock().await.unwrap());
    }
    let mut old = cluster.nodes[0].raw().await;
    old.run::<()>(&["SET", &format!("{{{}}}", keys[0]), "", "PX", "1000"]).await;
    assert_eq!(old.run::<usize>(&["WAIT", "1", "10000"]).await, 1);
    // From here on the replica gets no data: it is disconnected, and may not come back.
    old.run::<()>(&["ACL", "SETUSER", "default", "-psync", "-sync", "-replconf"]).await;
    old.run::<()>(&["CLIENT", "KILL", "TYPE", "replica"]).await;
    for guard in guards {
        guard.unlock().await.unwrap();
    }
    let mut new = cluster.nodes[3].raw().await;
    let lease = format!("bellwether:l:{{{}}}:l", keys[0]);
    let reader = format!("bellwether:l:{{{}}}:r", keys[0]);
    new.run::<()>(&["CLUSTER", "FAILOVER", "TAKEOVER"]).await;
    let replaced = async || cluster.owner_seen_by(1, &lease).await == Some(3);
    assert!(comes_true(LIMIT, replaced).await, "no replica took over");
    // A request shows the process that its slots have moved.
    let free = async || matches!(here.mutex(keys[0].as_str()).try_lock().await, Ok(Some(_)));
    assert!(comes_true(LIMIT, free).await, "the lease stands at the new master");
    assert!(new.run::<bool>(&["EXISTS", &reader]).await, "a lease that is held was released");
    held.unlock().await.unwrap();
}
