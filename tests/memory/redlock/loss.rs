//! The cases in which a holder is told that the lock is lost.

use super::{
    name,
    played::{LEASE, locking, majority, occupy, seen, servers},
    shares,
};
use crate::prelude::*;

/// The renewals of the holder reach only a minority. The holder is told before another one gets the
/// lock.
#[tokio::test(start_paused = true)]
async fn a_loss_is_reported_before_the_next_holder_gets_in() {
    for fault in [Fault::Refuse, Fault::Hang] {
        let servers: [_; 3] = servers();
        let cut_off = majority(&seen(&servers, &[(0, Op::Renew, fault), (2, Op::Renew, fault)]));
        let guard = cut_off.mutex("m").lease(LEASE).lock().await.unwrap();
        let next = locking(&majority(&servers));
        let next = spawn(async move { (next.await.unwrap(), Instant::now()) });
        timeout(LEASE, guard.lost()).await.unwrap();
        let lost = Instant::now();
        let (other, acquired) = next.await.unwrap();
        assert!(lost < acquired, "{fault:?}");
        assert!(acquired - lost < LEASE / 50, "{:?}", acquired - lost);
        assert_eq!(kind(guard.renew().await), ErrorKind::Lost);
        assert_eq!(kind(guard.unlock().await), ErrorKind::Lost);
        sleep(3 * LEASE).await;
        assert!(!other.is_lost());
    }
}

/// Each renewal fails at some server, and none at a majority.
#[tokio::test(start_paused = true)]
async fn renewals_that_fail_in_turn_cause_no_loss() {
    let servers: [_; 5] = servers();
    let seen = seen(&servers, &[]);
    for (at, server) in seen.iter().enumerate() {
        let mut renewals = 0;
        server.plan(move |op| {
            renewals += usize::from(op == Op::Renew);
            let fails = op == Op::Renew && [at, at + 1].contains(&(renewals % 5));
            fails.then_some(if renewals % 2 == 0 { Fault::Hang } else { Fault::LoseReply })
        });
    }
    let guard = majority(&seen).mutex("m").lease(LEASE).lock().await.unwrap();
    sleep(20 * LEASE).await;
    assert!(!guard.is_lost());
    guard.unlock().await.unwrap();
    let renewals = seen[0].count(Op::Renew);
    sleep(5 * LEASE).await;
    assert_eq!(seen[0].count(Op::Renew), renewals, "the renewals outlive the unlock");
}

/// Two of three servers forget the lock, like servers that come back empty. The next renewal
/// reports the loss.
#[tokio::test(start_paused = true)]
async fn a_majority_that_forgot_the_lock_is_reported_at_the_next_renewal() {
    let servers: [_; 3] = servers();
    let redlock = majority(&servers);
    let guard = redlock.mutex("m").lease(LEASE).lock().await.unwrap();
    for server in &servers[..2] {
        server.clear(&name("m"), Mode::Exclusive).await.unwrap();
    }
    timeout(LEASE / 2, guard.lost()).await.unwrap();
    assert_eq!(kind(guard.unlock().await), ErrorKind::Lost);
    assert_eq!(shares(&servers, "m").await, 0);
}

/// Servers that are updated one after another come back empty, and one was away during the
/// acquisition. At every moment two of three have the lock.
#[tokio::test(start_paused = true)]
async fn servers_that_forget_one_after_another_cause_no_loss() {
    let servers: [_; 3] = servers();
    let seen = seen(&servers, &[]);
    let mut away = Some(Fault::Hang);
    seen[2].plan(move |op| if op == Op::Acquire { away.take() } else { None });
    let redlock = majority(&seen);
    let guard = redlock.mutex("m").lease(LEASE).lock().await.unwrap();
    assert_eq!(shares(&servers, "m").await, 2);
    for server in servers.iter().chain(&servers) {
        sleep(LEASE).await;
        assert_eq!(shares(&servers, "m").await, 3);
        server.clear(&name("m"), Mode::Exclusive).await.unwrap();
    }
    sleep(LEASE).await;
    assert!(!guard.is_lost());
    guard.unlock().await.unwrap();
    assert_eq!(shares(&servers, "m").await, 0);
}

/// A share that another owner has meanwhile is not taken from it.
#[tokio::test(start_paused = true)]
async fn a_share_of_another_owner_is_not_taken_from_it() {
    let servers: [_; 3] = servers();
    let other = occupy(&servers[0], "m", 10 * LEASE).await;
    let seen = seen(&servers, &[]);
    let redlock = majority(&seen);
    let guard = redlock.mutex("m").lease(LEASE).lock().await.unwrap();
    sleep(5 * LEASE).await;
    assert!(seen[0].count(Op::Acquire) > 3, "the missing share is not asked for");
    assert!(servers[0].release(&other).await.unwrap());
    assert_eq!(shares(&servers, "m").await, 2);
    sleep(LEASE).await;
    assert_eq!(shares(&servers, "m").await, 3);
    assert!(!guard.is_lost());
}

/// An unknown outcome for one lease of a batch costs the other leases nothing.
#[tokio::test(start_paused = true)]
async fn an_unknown_outcome_of_one_lease_does_not_end_others() {
    let servers: [_; 3] = servers();
    let seen = seen(&servers, &[]);
    let redlock = majority(&seen);
    let doubtful = redlock.mutex("doubtful").lease(LEASE).lock().await.unwrap();
    let sound = redlock.mutex("sound").lease(LEASE).lock().await.unwrap();
    servers[0].clear(&name("doubtful"), Mode::Exclusive).await.unwrap();
    seen[1].plan(|_| Some(Fault::Hang));
    let begun = Instant::now();
    doubtful.lost().await;
    // The silent server may still hold the lease, so it lasts as long as that share would.
    assert!(begun.elapsed() > LEASE * 9 / 10 && begun.elapsed() < LEASE);
    sleep(5 * LEASE).await;
    assert!(!sound.is_lost());
    sound.unlock().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_fixed_lease_ends_by_itself() {
    let servers: [_; 3] = servers();
    let redlock = majority(&servers);
    let guard = redlock.mutex("m").lease(LEASE).fixed_lease().lock().await.unwrap();
    let begun = Instant::now();
    guard.lost().await;
    // A hundredth of the lease and 2 ms are kept for the drift of clocks.
    assert!(begun.elapsed() < LEASE && begun.elapsed() >= LEASE * 98 / 100);
    drop(majority(&servers).mutex("m").lock().await.unwrap());
    assert_eq!(kind(guard.unlock().await), ErrorKind::Lost);
}
