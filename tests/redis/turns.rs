//! A Redis server hands a lock over to one waiter when several processes wait for it.

use std::time::Duration;

use bellwether::{
    Key,
    backend::{Acquired, Change, Changes, Claim, Grant, Leases, Mode, RedisBackend},
    key::{Family, Name, Namespace},
};
use testkit::{LIMIT, RedisServer, open};
use tokio::time::timeout;

const LEASE: Duration = Duration::from_secs(60);

fn name() -> Name {
    Name::new(&Namespace::new("t").unwrap(), Family::Lock, &Key::from("k"), 512).unwrap()
}

/// Returns a claim of this process.
fn claim(name: &Name) -> Claim {
    Claim::new(name.clone(), Mode::Exclusive, LEASE, 2 * LEASE)
}

/// Returns the first half of the owners of another process.
fn process(number: u8) -> String {
    format!("{number:016x}")
}

/// Returns a claim of another process.
fn claim_of(process: &str, name: &Name) -> Claim {
    let mut claim = claim(name);
    claim.owner = format!("{process}{}", &claim.owner.to_string()[16..]).parse().unwrap();
    claim
}

async fn granted(backend: &RedisBackend, claim: &Claim) -> Grant {
    match backend.acquire(claim).await {
        Ok(Acquired::Granted(grant)) => grant,
        other => panic!("{claim:?} was not granted: {other:?}"),
    }
}

async fn held(backend: &RedisBackend, claim: &Claim) {
    let answer = backend.acquire(claim).await.unwrap();
    assert!(matches!(answer, Acquired::Occupied(_)), "{answer:?}");
}

/// Waits until the lease is handed over to a claim, and returns the fence.
async fn handed_over(changes: &mut Changes, to: &Claim) -> u64 {
    match timeout(LIMIT, changes.next()).await.expect("no change was pushed in time") {
        Change::Granted(handover) if handover.owner == to.owner => handover.fence,
        other => panic!("the lease was not handed over: {other:?}"),
    }
}

/// A queue entry of a dead process costs no time, because its channel has no subscriber.
#[tokio::test]
async fn dead_waiters_are_skipped_at_once() {
    let server = RedisServer::start().await;
    let backend = open(server.url());
    let name = name();
    let (holder, alive, behind) = (claim(&name), claim(&name), claim(&name));
    let mut changes = backend.changes(&name).await.unwrap();
    granted(&backend, &holder).await;
    for number in 1..20 {
        held(&backend, &claim_of(&process(number), &name)).await;
    }
    held(&backend, &alive).await;
    held(&backend, &claim_of(&process(20), &name)).await;
    held(&backend, &behind).await;
    assert!(backend.release(&holder).await.unwrap());
    let fence = handed_over(&mut changes, &alive).await;
    assert!(backend.release(&alive).await.unwrap());
    assert!(handed_over(&mut changes, &behind).await > fence);
    // The dead waiters have lost their queue entries, and do not delay later ones.
    let entries: u32 = server.raw().await.run(&["ZCARD", &name.suffixed("q")]).await;
    assert_eq!(entries, 0);
}

/// All waiters are dead, and the lock is kept for none of them.
#[tokio::test]
async fn a_lock_with_dead_waiters_only_is_free_at_once() {
    let server = RedisServer::start().await;
    let backend = open(server.url());
    let name = name();
    let holder = claim(&name);
    granted(&backend, &holder).await;
    for number in 1..4 {
        held(&backend, &claim_of(&process(number), &name)).await;
    }
    assert!(backend.release(&holder).await.unwrap());
    let mut raw = server.raw().await;
    assert_eq!(raw.keys("*").await, [name.suffixed("f")]);
    granted(&backend, &claim(&name)).await;
}

/// The clock of the server is behind the last fence, so no script takes its fast path.
#[tokio::test]
async fn fences_grow_when_the_clock_is_behind_them() {
    let server = RedisServer::start().await;
    let backend = open(server.url());
    let name = name();
    let (holder, first) = (claim(&name), claim(&name));
    let fair = || Claim::new(name.clone(), Mode::Fair, LEASE, 2 * LEASE);
    let (second, third) = (fair(), fair());
    let mut changes = backend.changes(&name).await.unwrap();
    let mut raw = server.raw().await;
    let time: Vec<u64> = raw.run(&["TIME"]).await;
    let ahead = 1_000_000 * (time[0] + 3600);
    raw.run::<()>(&["SET", &name.suffixed("f"), &ahead.to_string(), "PX", "60000"]).await;
    assert_eq!(granted(&backend, &holder).await.fence(), ahead + 1);
    for claim in [&first, &second, &third] {
        held(&backend, claim).await;
    }
    assert!(backend.release(&holder).await.unwrap());
    assert_eq!(handed_over(&mut changes, &first).await, ahead + 2);
    assert_eq!(granted(&backend, &first).await.fence(), ahead + 2);
    assert!(backend.release(&first).await.unwrap());
    assert_eq!(handed_over(&mut changes, &second).await, ahead + 3);
    // The writer lock of that name takes its fences from the same sequence.
    let writer = Claim::new(name.clone(), Mode::Write, LEASE, 2 * LEASE);
    assert_eq!(granted(&backend, &writer).await.fence(), ahead + 4);
    assert!(backend.release(&second).await.unwrap());
    assert_eq!(handed_over(&mut changes, &third).await, ahead + 5);
    assert_eq!(raw.run::<u64>(&["GET", &name.suffixed("f")]).await, ahead + 5);
}
