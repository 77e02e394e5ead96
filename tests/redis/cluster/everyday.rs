//! Several healthy nodes.

use super::{backend, locks, name, patient};
use crate::prelude::*;

/// Each node has about twelve names, as many in one backend as in the other, and every push
/// arrives.
#[tokio::test]
async fn pushes_go_only_through_the_node_that_serves_the_name() {
    let cluster = Cluster::start(3, 0).await;
    let here = patient(&cluster);
    let there = patient(&cluster);
    let mut listeners = Vec::new();
    for at in 0..36 {
        let name = format!("k{at}");
        let claim = mutex_claim(&name);
        let next = mutex_claim(&name);
        let changes = testkit::changes_for(&there, &next).await.unwrap();
        listeners.push((claim, next, changes));
    }
    // Each name has the common channel, and the channel of this process.
    let mut all = 0;
    for (at, node) in cluster.nodes.iter().enumerate() {
        let channels = node.raw().await.shard_channels().await;
        all += channels.len();
        for channel in channels {
            assert_eq!(cluster.owner(&channel).await, at, "{channel}");
        }
    }
    assert_eq!(all, 2 * 36);
    for (claim, next, changes) in &mut listeners {
        here.acquire(claim).await.unwrap();
        held(&there, next).await;
        assert!(here.release(claim).await.unwrap());
        let change = timeout(LIMIT, changes.next()).await.unwrap();
        assert!(matches!(&change, Change::Granted(_)) && change.addressee() == Some(next.owner));
    }
}

/// The backend knows one node, by a URL with the password of all nodes.
#[tokio::test]
async fn one_node_is_enough_to_find_the_others_with_its_credentials() {
    let cluster = Cluster::start_with(2, 0, &["--requirepass", "secret"]).await;
    let url = cluster.nodes[1].url_of(":secret", 0);
    let backend = RedisBackend::builder().cluster(["redis://127.0.0.1:1", &url]).build().unwrap();
    assert_eq!(
        backend.ping().await.unwrap_err().kind(),
        ErrorKind::Backend,
        "the first node was not used"
    );
    let backend =
        testkit::builder().cluster([url.as_str(), "redis://127.0.0.1:1"]).build().unwrap();
    let found = async || backend.ping().await.is_ok();
    assert!(comes_true(LIMIT, found).await);
    for key in cluster.key_of_each(2, |at| format!("k{at}")).await {
        backend.acquire(&mutex_claim(&key)).await.unwrap();
    }
    assert!(!format!("{backend:?}").contains("secret"));
}

/// Some nodes announce themselves by name, as certificates may need. Others do not know their own
/// address, and are reached at the address that gave the answer.
#[tokio::test]
async fn nodes_are_found_at_their_announced_addresses() {
    for endpoint in ["hostname", "unknown-endpoint"] {
        let announced = ["--cluster-announce-hostname", "localhost"];
        let preferred = ["--cluster-preferred-endpoint-type", endpoint];
        let cluster = Cluster::start_with(2, 0, &[announced, preferred].concat()).await;
        let backend = testkit::builder().cluster([cluster.nodes[0].url()]).build().unwrap();
        let keys = cluster.key_of_each(2, |at| format!("k{at}")).await;
        let held: Vec<_> = keys.iter().map(|key| mutex_claim(key)).collect();
        for claim in &held {
            // A node learns late how another one announces itself.
            let found = async || backend.acquire(claim).await.is_ok();
            assert!(comes_true(LIMIT, found).await, "{endpoint}");
        }
        // An answer that redirects to another node names it in the same way.
        let slot = format!("{{{}}}", keys[0]);
        cluster.begin_to_move(&slot, 0, 1).await;
        cluster.move_keys(&slot, 0, 1).await;
        cluster.end_move(&slot, 0, 1).await;
        assert_eq!(
            backend.renew(&held).await.unwrap(),
            [Renewal::Held, Renewal::Held],
            "{endpoint}"
        );
        for claim in &held {
            assert!(backend.release(claim).await.unwrap(), "{endpoint}");
        }
    }
}

#[tokio::test]
async fn a_single_server_is_no_cluster() {
    let single = RedisServer::start().await;
    let backend = testkit::builder().cluster([single.url()]).build().unwrap();
    let error = backend.ping().await.unwrap_err();
    assert!(format!("{error:#}").contains("cluster support disabled"), "{error}");
}

/// A cluster of version 6 knows neither command of sharded channels.
#[tokio::test]
async fn waiters_poll_without_sharded_channels() {
    let old = ["--rename-command", "SPUBLISH", "", "--rename-command", "SSUBSCRIBE", ""];
    let cluster = Cluster::start_with(1, 0, &old).await;
    let here = backend(&cluster);
    let there = locks(&cluster);
    here.ping().await.unwrap();
    assert!(!here.listen(&name("k"), None).subscribe());
    let guard = Locks::new(here, "bellwether").mutex("k").lease(LEASE).lock().await.unwrap();
    let waiter = there.mutex("k").lease(LEASE).wait_limit(2 * LIMIT);
    let waiting = tokio::spawn(async move { waiter.lock().await });
    let mut raw = cluster.nodes[0].raw().await;
    let tried = async || raw.errors("ERR").await > 1;
    assert!(comes_true(LIMIT, tried).await, "no waiter subscribed");
    guard.unlock().await.unwrap();
    let next = timeout(LIMIT, waiting).await.expect("the waiter got no turn").unwrap().unwrap();
    next.unlock().await.unwrap();
}
