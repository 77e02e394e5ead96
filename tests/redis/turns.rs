//! A Redis server notifies one waiter when a lock that several processes wait for is free.

use std::time::Duration;

use bellwether::{
    Key,
    backend::{Acquired, Change, Changes, Claim, Grant, Leases, Mode, RedisBackend},
    key::{Family, Name, Namespace},
};
use futures_util::StreamExt;
use redis::aio::PubSub;
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

async fn next(changes: &mut Changes) -> Change {
    timeout(LIMIT, changes.next()).await.expect("no change was pushed in time")
}

/// Subscribes to the channels of another process: the common one, and its own.
async fn listening(server: &RedisServer, process: &str, name: &Name) -> PubSub {
    let client = redis::Client::open(server.url()).unwrap();
    let mut pushes = client.get_async_pubsub().await.unwrap();
    pushes.subscribe(&[name.suffixed("c"), format!("t:l:p:{process}")]).await.unwrap();
    pushes
}

/// Returns the messages that were pushed to each of the other processes so far.
async fn pushed(server: &RedisServer, processes: &mut [PubSub], name: &Name) -> Vec<Vec<String>> {
    // The mark follows everything that was pushed before.
    let mut raw = server.raw().await;
    raw.run::<()>(&["PUBLISH", &name.suffixed("c"), "mark"]).await;
    let mut all = Vec::new();
    for pushes in processes {
        let mut messages = pushes.on_message();
        let mut own = Vec::new();
        loop {
            let message =
                timeout(LIMIT, messages.next()).await.expect("the mark did not arrive").unwrap();
            match message.get_payload::<String>().unwrap().as_str() {
                "mark" => break,
                message => own.push(message.trim_start_matches(&**name.prefix()).to_owned()),
            }
        }
        all.push(own);
    }
    all
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
    assert_eq!(next(&mut changes).await, Change::Turn(alive.owner));
    let fence = granted(&backend, &alive).await.fence();
    assert!(backend.release(&alive).await.unwrap());
    assert_eq!(next(&mut changes).await, Change::Turn(behind.owner));
    assert!(granted(&backend, &behind).await.fence() > fence);
    // The dead waiters have lost their queue entries, and do not delay later ones.
    let entries: u32 = server.raw().await.run(&["ZCARD", &name.suffixed("q")]).await;
    assert_eq!(entries, 0);
}

/// All waiters are dead. Other listeners are told that the lock is free, and it is kept for none of
/// the waiters.
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

/// The clock of the server is behind the last fence, so no script takes its fast path. The notified
/// waiter has lost its queue entry, and a fair waiter comes before it then. The notified waiter is
/// granted the lease all the same.
#[tokio::test]
async fn fences_grow_when_the_clock_is_behind_them() {
    let server = RedisServer::start().await;
    let backend = open(server.url());
    let name = name();
    let (holder, notified) = (claim(&name), claim(&name));
    let fair = || Claim::new(name.clone(), Mode::Fair, LEASE, 2 * LEASE);
    let (second, third) = (fair(), fair());
    let mut changes = backend.changes(&name).await.unwrap();
    let mut raw = server.raw().await;
    let time: Vec<u64> = raw.run(&["TIME"]).await;
    let ahead = 1_000_000 * (time[0] + 3600);
    raw.run::<()>(&["SET", &name.suffixed("f"), &ahead.to_string(), "PX", "60000"]).await;
    assert_eq!(granted(&backend, &holder).await.fence(), ahead + 1);
    for claim in [&notified, &second, &third] {
        held(&backend, claim).await;
    }
    assert!(backend.release(&holder).await.unwrap());
    assert_eq!(next(&mut changes).await, Change::Turn(notified.owner));
    assert_eq!(granted(&backend, &notified).await.fence(), ahead + 2);
    assert!(backend.release(&notified).await.unwrap());
    let mut handed_over = async |to: &Claim| match next(&mut changes).await {
        Change::Granted(handover) if handover.owner == to.owner => handover.fence,
        other => panic!("the lease was not handed over: {other:?}"),
    };
    assert_eq!(handed_over(&second).await, ahead + 3);
    // The writer lock of that name takes its fences from the same sequence.
    let writer = Claim::new(name.clone(), Mode::Write, LEASE, 2 * LEASE);
    assert_eq!(granted(&backend, &writer).await.fence(), ahead + 4);
    assert!(backend.release(&second).await.unwrap());
    assert_eq!(handed_over(&third).await, ahead + 5);
    assert_eq!(raw.run::<u64>(&["GET", &name.suffixed("f")]).await, ahead + 5);
}

/// The other processes do not wake for a notification of one process.
#[tokio::test]
async fn only_the_process_of_the_notified_waiter_is_told() {
    let server = RedisServer::start().await;
    let backend = open(server.url());
    let name = name();
    let holder = claim(&name);
    let claims = [1, 2, 3].map(|number| claim_of(&process(number), &name));
    let mut processes = Vec::new();
    for number in 1..=3 {
        processes.push(listening(&server, &process(number), &name).await);
    }
    granted(&backend, &holder).await;
    for claim in &claims {
        held(&backend, claim).await;
    }
    let mut last = holder;
    for (turn, claim) in claims.iter().enumerate() {
        assert!(backend.release(&last).await.unwrap());
        let mut expected = vec![Vec::new(); 3];
        expected[turn] = vec![format!("t{}", claim.owner)];
        assert_eq!(pushed(&server, &mut processes, &name).await, expected);
        granted(&backend, claim).await;
        last = claim.clone();
    }
    // When no waiter is left, no listener is told.
    assert!(backend.release(&last).await.unwrap());
    assert_eq!(pushed(&server, &mut processes, &name).await, vec![Vec::<String>::new(); 3]);
}
