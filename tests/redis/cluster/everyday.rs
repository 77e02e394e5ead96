//! Several healthy nodes.

use bellwether::{
    ErrorKind, Locks, RedisBackend,
    backend::{Acquired, Change, Leases, Renewal},
};
use futures_util::future::join_all;
use testkit::{Cluster, LIMIT, comes_true};
use tokio::time::timeout;

use super::{LEASE, backend, claim, locks, name, patient};

/// A script may not keep queues of several slots, so each queue has one. All scripts for a node are
/// ready together, and go to it in one write.
#[tokio::test]
async fn the_queues_of_a_node_are_kept_in_one_write() {
    const QUEUES: usize = 60;
    let cluster = Cluster::start(3, 0).await;
    let backend = patient(&cluster);
    // All at once, because an entry that is not kept ends after 2 s.
    let queued = (0..QUEUES).map(async |at| {
        let key = format!("k{at}");
        let (holder, waiting) = (claim(&key), claim(&key));
        backend.acquire(&holder).await.unwrap();
        assert!(matches!(backend.acquire(&waiting).await.unwrap(), Acquired::Occupied(_)));
        vec![waiting]
    });
    let queues = join_all(queued).await;
    let mut nodes = Vec::new();
    for node in &cluster.nodes {
        let mut raw = node.raw().await;
        raw.run::<()>(&["CONFIG", "RESETSTAT"]).await;
        nodes.push(raw);
    }
    let kept = join_all(queues.iter().map(|claims| backend.keep(claims, LIMIT))).await;
    assert!(kept.into_iter().all(|kept| kept.unwrap().stands == [true]));
    let (mut scripts, mut reads) = (0, 0);
    for raw in &mut nodes {
        let info: String = raw.run(&["INFO", "all"]).await;
        let number = |start: &str| -> usize {
            let found = info.lines().find_map(|line| line.strip_prefix(start));
            found.and_then(|rest| rest.split(',').next()?.trim().parse().ok()).unwrap_or(0)
        };
        let of_node = number("cmdstat_evalsha:calls=");
        assert!(of_node > 5, "a node has too few queues");
        scripts += of_node;
        // The reads of `CONFIG` and `INFO` count as well.
        reads += number("total_reads_processed:") - 1;
    }
    assert_eq!(scripts, QUEUES);
    println!("{QUEUES} queues: {scripts} scripts in {reads} reads of three nodes");
    assert!(reads <= 3 * 3, "{reads} reads");
}

/// Each node has about twelve names, as many in one backend as in the other, and every push
/// arrives.
#[tokio::test]
async fn pushes_go_only_through_the_node_that_serves_the_name() {
    let cluster = Cluster::start(3, 0).await;
    let (here, there) = (patient(&cluster), patient(&cluster));
    let mut listeners = Vec::new();
    for at in 0..36 {
        let name = format!("k{at}");
        let (claim, next) = (claim(&name), claim(&name));
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
        assert!(matches!(there.acquire(next).await.unwrap(), Acquired::Occupied(_)));
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
        backend.acquire(&claim(&key)).await.unwrap();
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
        let held: Vec<_> = keys.iter().map(|key| claim(key)).collect();
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
async fn urls_without_a_cluster_are_refused() {
    let none: [&str; 0] = [];
    for error in [
        RedisBackend::builder().cluster(none).build().unwrap_err(),
        RedisBackend::builder().cluster(["redis://127.0.0.1:1/3"]).build().unwrap_err(),
        RedisBackend::builder().cluster(["redis://127.0.0.1:1", "http://x"]).build().unwrap_err(),
        RedisBackend::builder()
            .cluster(["redis://127.0.0.1:1", "rediss://127.0.0.1:1"])
            .build()
            .unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
    }
    let single = testkit::RedisServer::start().await;
    let backend = testkit::builder().cluster([single.url()]).build().unwrap();
    let error = backend.ping().await.unwrap_err();
    assert!(format!("{error:#}").contains("cluster support disabled"), "{error}");
}

/// A cluster of version 6 knows neither command of sharded channels.
#[tokio::test]
async fn waiters_poll_without_sharded_channels() {
    let old = ["--rename-command", "SPUBLISH", "", "--rename-command", "SSUBSCRIBE", ""];
    let cluster = Cluster::start_with(1, 0, &old).await;
    let (here, there) = (backend(&cluster), locks(&cluster));
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
