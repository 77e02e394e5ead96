//! The same faults on a cluster of three masters. The other names of a set are on any of the
//! masters.

use testkit::primitives::{Asked, PAIRS, Pair};

use super::faults::{ANSWER, LEASE, Scene, nothing_is_left, scene};
use crate::prelude::*;

/// Starts a cluster without failovers, and two processes that ask for a name.
async fn cluster(name: &str) -> (Cluster, Asked, Asked) {
    let cluster = Cluster::start_with(3, 0, &["--cluster-node-timeout", "60000"]).await;
    let [a, b] = [(); 2].map(|()| {
        let builder = RedisBackend::builder().cluster(cluster.urls());
        Asked::of(builder.command_timeout(ANSWER).build().unwrap(), name, LEASE)
    });
    (cluster, a, b)
}

async fn nothing_is_left_anywhere(cluster: &Cluster) {
    for node in &cluster.nodes {
        nothing_is_left(node).await;
    }
}

/// A part in braces decides about the slot of a key. Braces of a name must not, and an empty or
/// open pair must not separate the keys of the name.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn primitives_accept_names_with_braces() {
    let (cluster, a, b) = cluster("").await;
    for (what, pair) in PAIRS {
        for name in ["{a}b", "{}", "b{a", "}{", "{k}:l", "{{k}}"] {
            println!("{what} of {name}");
            let named = |asked: &Asked| Asked { name: name.to_owned(), ..asked.clone() };
            let scene = scene(pair, &cluster.nodes, &named(&a), &named(&b)).await;
            // The rival gets it by a push, not at the end of the lease.
            scene.handed_over(LEASE / 2).await;
        }
    }
    nothing_is_left_anywhere(&cluster).await;
}

pub async fn primitives_survive_a_node_that_hangs_beyond_the_lease(pair: Pair) {
    let (cluster, a, b) = cluster("k").await;
    let scene = scene(pair, &cluster.nodes, &a, &b).await;
    scene.outlast(&cluster.nodes[cluster.owner("{k}").await]).await;
    let Scene { held, waiting } = scene;
    // Of several locks, those on the other nodes are held until the release.
    let told = async || held.renew().await.is_err_and(|error| error.kind() == ErrorKind::Lost);
    assert!(comes_true(LIMIT, told).await, "the loss is not reported");
    assert_eq!(held.give_back().await.unwrap_err().kind(), ErrorKind::Lost);
    let got = timeout(2 * LEASE, waiting).await.expect("the rival never gets the lock").unwrap();
    got.give_back().await.unwrap();
    nothing_is_left_anywhere(&cluster).await;
}

/// The lock stays held, and the waiter gets it from the new node of the slot.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn primitives_survive_a_slot_that_moves() {
    let (cluster, a, b) = cluster("").await;
    for (what, pair) in PAIRS {
        println!("{what}");
        // Permits with an id are not renewed during the move.
        let lease = 4 * LEASE;
        let named = |asked: &Asked| Asked { name: what.to_owned(), lease, ..asked.clone() };
        let scene = scene(pair, &cluster.nodes, &named(&a), &named(&b)).await;
        let key = format!("{{{what}}}");
        let from = cluster.owner(&key).await;
        let to = (from + 1) % 3;
        let mut source = cluster.nodes[from].raw().await;
        let asks = source.errors("ASK").await;
        let moves = source.errors("MOVED").await;
        cluster.begin_to_move(&key, from, to).await;
        assert!(cluster.move_keys(&key, from, to).await >= 1);
        // The old node redirects what it has no longer, and later all.
        scene.held.renew().await.unwrap();
        assert!(source.errors("ASK").await > asks, "no renewal is redirected");
        cluster.end_move(&key, from, to).await;
        scene.held.renew().await.unwrap();
        assert!(source.errors("MOVED").await > moves, "the backend did not notice the move");
        scene.handed_over(LEASE).await;
    }
    nothing_is_left_anywhere(&cluster).await;
}
