//! A slot moves from one node to another while its names are in use.

use super::{backend, name, patient};
use crate::prelude::*;

/// Returns `true` if an operation is refused. The operation is tried for the whole command
/// time-out, so on a busy machine the last try may stay unanswered.
async fn refused(error: impl AsyncFn() -> BackendError) -> bool {
    comes_true(LIMIT, async || match error().await.kind() {
        BackendErrorKind::Refused => true,
        BackendErrorKind::Unknown => false,
        other => panic!("{other:?}"),
    })
    .await
}

/// Some keys of a name are at one node, others at the other one. No script can run, and no script
/// runs in part.
#[tokio::test]
async fn a_command_that_a_moving_slot_cannot_run_is_refused_and_works_afterwards() {
    let cluster = Cluster::start(2, 0).await;
    let backend = backend(&cluster);
    let held = mutex_claim("k");
    let entry = name("k");
    let value = Entry::value(7, Duration::ZERO, Bytes::from_static(b"v"));
    backend.edit(&entry, &Edit::Put(value.clone(), LEASE), LEASE).await.unwrap();
    granted(&backend, &held).await;
    let from = cluster.owner("{k}").await;
    let to = 1 - from;
    cluster.begin_to_move("{k}", from, to).await;
    let before = cluster.nodes[from].raw().await.keys("*").await;
    let mut nodes = join_all(cluster.nodes.iter().map(RedisServer::raw)).await;
    for raw in &mut nodes {
        raw.reset_stats().await;
    }
    assert!(refused(async || backend.release(&held).await.unwrap_err()).await);
    assert_eq!(nodes[from].keys("*").await, before);
    // It is asked again for some time, and asks no node for the map.
    assert!(nodes[from].errors("TRYAGAIN").await > 10);
    for raw in &mut nodes {
        assert_eq!(raw.calls("cluster|slots").await, 0);
    }
    // Commands whose keys are all at one node go on, first at the old node, then at the new one.
    assert_eq!(backend.renew(std::slice::from_ref(&held)).await.unwrap(), [Renewal::Held]);
    assert!(backend.get(&entry).await.unwrap().is_some());
    cluster.move_keys("{k}", from, to).await;
    assert_eq!(backend.renew(std::slice::from_ref(&held)).await.unwrap(), [Renewal::Held]);
    assert!(backend.get(&entry).await.unwrap().is_some());
    assert!(refused(async || backend.acquire(&mutex_claim("k")).await.unwrap_err()).await);

    cluster.end_move("{k}", from, to).await;
    assert!(backend.release(&held).await.unwrap());
    granted(&backend, &mutex_claim("k")).await;
}

/// A push that was lost during the move must not be waited for.
#[tokio::test]
async fn a_listener_is_woken_when_its_slot_has_moved() {
    let cluster = Cluster::start(2, 0).await;
    let here = patient(&cluster);
    let there = patient(&cluster);
    let mut changes = there.changes(&name("k")).await.unwrap();
    let mut other = there.changes(&name("other")).await.unwrap();
    for _ in 0..4 {
        let from = cluster.owner("{k}").await;
        let to = 1 - from;
        cluster.begin_to_move("{k}", from, to).await;
        cluster.move_keys("{k}", from, to).await;
        cluster.end_move("{k}", from, to).await;
        assert_eq!(timeout(LIMIT, changes.next()).await.unwrap(), Change::Wake);
        let mut raw = cluster.nodes[to].raw().await;
        let listens = async || raw.shard_channels().await.contains(&name("k").suffixed("s"));
        assert!(comes_true(LIMIT, listens).await, "the backend does not listen at the new node");
        let burnt = here.edit(&name("k"), &Edit::Invalidate, LEASE).await.unwrap();
        loop {
            match timeout(LIMIT, changes.next()).await.unwrap() {
                Change::Wake => {}
                change => break assert_eq!(change, Change::Invalidated(burnt)),
            }
        }
    }
    // This slot stayed in place, but the push connection of its node was made anew.
    let owner = cluster.owner("{other}").await;
    let mut raw = cluster.nodes[owner].raw().await;
    let listens = async || raw.shard_channels().await.contains(&name("other").suffixed("s"));
    assert!(comes_true(LIMIT, listens).await, "the backend does not listen at the new node");
    let burnt = here.edit(&name("other"), &Edit::Invalidate, LEASE).await.unwrap();
    loop {
        match timeout(LIMIT, other.next()).await.unwrap() {
            Change::Wake => {}
            change => break assert_eq!(change, Change::Invalidated(burnt)),
        }
    }
}

/// Slots move to and fro while locks are acquired and released. No two contenders hold the lock
/// together, and none waits for ever.
#[tokio::test]
async fn contenders_never_hold_together_while_their_slot_moves() {
    let cluster = Cluster::start(2, 0).await;
    let inside = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let contenders: Vec<_> = (0..4)
        .map(|_| {
            let locks = Locks::new(backend(&cluster), "bellwether");
            let inside = inside.clone();
            tokio::spawn(async move {
                let mut last = 0;
                for _ in 0..40 {
                    let guard = locks.mutex("k").wait_limit(3 * LIMIT).lock().await.unwrap();
                    assert!(!inside.swap(true, std::sync::atomic::Ordering::SeqCst));
                    assert!(guard.fence() > last);
                    last = guard.fence();
                    tokio::task::yield_now().await;
                    inside.store(false, std::sync::atomic::Ordering::SeqCst);
                    // The release is refused while the slot moves, and is repeated in the
                    // background.
                    let _ = guard.unlock().await;
                }
            })
        })
        .collect();
    while !contenders.iter().all(tokio::task::JoinHandle::is_finished) {
        let from = cluster.owner("{k}").await;
        cluster.begin_to_move("{k}", from, 1 - from).await;
        cluster.move_keys("{k}", from, 1 - from).await;
        cluster.end_move("{k}", from, 1 - from).await;
        tokio::time::sleep(Duration::from_millis(30)).await;
    }
    for contender in contenders {
        contender.await.unwrap();
    }
}
