//! The same on a cluster of three masters. (The names before and behind the one in question are on any of them.)

use bellwether::{ErrorKind, RedisBackend};
use testkit::primitives::{Asked, Pair};
use testkit::{Cluster, LIMIT, comes_true};
use tokio::time::timeout;

use super::faults::{LEASE, Scene, nothing_is_left, scene};

/// A cluster in which nobody is replaced, and two who ask for a name.
async fn cluster(name: &str) -> (Cluster, Asked, Asked) {
    let cluster = Cluster::start_with(3, 0, &["--cluster-node-timeout", "60000"]).await;
    let [a, b] = [(); 2].map(|()| {
        let backend = RedisBackend::builder().cluster(cluster.urls()).build().unwrap();
        Asked::of(backend, name, LEASE)
    });
    (cluster, a, b)
}

async fn nothing_is_left_anywhere(cluster: &Cluster) {
    for node in &cluster.nodes {
        nothing_is_left(node).await;
    }
}

/// A part in braces decides where a key lies; of a name it must not, and an empty or open one must not take its keys
/// apart.
pub async fn names_with_braces(pair: Pair) {
    let (cluster, a, b) = cluster("").await;
    for name in ["{a}b", "{}", "b{a", "}{", "{k}:l", "{{k}}"] {
        let named = |asked: &Asked| Asked { name: name.to_owned(), ..asked.clone() };
        let scene = scene(pair, &cluster.nodes, &named(&a), &named(&b)).await;
        // By a push, and not when the lease would have ended.
        scene.handed_over(LEASE / 2).await;
    }
    nothing_is_left_anywhere(&cluster).await;
}

pub async fn a_node_that_hangs_beyond_the_lease(pair: Pair) {
    let (cluster, a, b) = cluster("k").await;
    let scene = scene(pair, &cluster.nodes, &a, &b).await;
    scene.outlast(&cluster.nodes[cluster.owner("{k}").await]).await;
    let Scene { held, waiting } = scene;
    // Of several, those on other nodes are held until they are given back.
    let told = async || held.renew().await.is_err_and(|error| error.kind() == ErrorKind::Lost);
    assert!(comes_true(LIMIT, told).await, "the loss is not told");
    assert_eq!(held.give_back().await.unwrap_err().kind(), ErrorKind::Lost);
    let got = timeout(2 * LEASE, waiting).await.expect("the rival never gets it").unwrap();
    got.give_back().await.unwrap();
    nothing_is_left_anywhere(&cluster).await;
}

/// It is held on, and who waits has it from the node that has the slot then.
pub async fn a_slot_that_moves(pair: Pair) {
    let (cluster, a, b) = cluster("k").await;
    let scene = scene(pair, &cluster.nodes, &a, &b).await;
    let from = cluster.owner("{k}").await;
    let to = (from + 1) % 3;
    cluster.begin_to_move("{k}", from, to).await;
    assert!(cluster.move_keys("{k}", from, to).await >= 1);
    cluster.end_move("{k}", from, to).await;
    scene.held.renew().await.unwrap();
    scene.handed_over(LEASE).await;
    nothing_is_left_anywhere(&cluster).await;
}
