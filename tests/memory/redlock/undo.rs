//! A lock that is not held, or no longer, is released at each server, and so are shares that are
//! still on their way.

use std::{pin::pin, task::Poll};

use bellwether::Redlock;
use tokio::task::yield_now;

use super::{
    played::{ANSWER, LEASE, majority, occupy, seen, servers},
    shares,
    stray::stray,
};
use crate::prelude::*;

#[tokio::test(start_paused = true)]
async fn a_failed_majority_holds_and_leaves_nothing() {
    for fault in [Fault::Refuse, Fault::Hang, Fault::LoseReply] {
        let servers: [_; 3] = servers();
        let faults = [(1, Op::Acquire, fault), (2, Op::Acquire, fault)];
        let redlock = majority(&seen(&servers, &faults));
        assert_eq!(kind(redlock.mutex("m").try_lock().await), ErrorKind::Backend);
        assert_eq!(shares(&servers[..1], "m").await, 0, "{fault:?}");
        let begun = Instant::now();
        let mutex = redlock.mutex("m").lease(LEASE).wait_limit(2 * SECOND);
        assert_eq!(kind(mutex.lock().await), ErrorKind::Backend);
        assert!(begun.elapsed() <= 2 * SECOND + 2 * ANSWER);
        // The undo of unanswered tries happens at once as well.
        sleep(MS).await;
        assert_eq!(shares(&servers, "m").await, 0, "{fault:?}");
        redlock.shutdown(Duration::ZERO).await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_unlock_reports_its_outcome_and_is_repeated() {
    let servers: [_; 3] = servers();
    let seen = seen(&servers, &[]);
    let redlock = majority(&seen);
    let lock = async || redlock.mutex("m").lease(LEASE).lock().await.unwrap();
    // One server does not answer. The unlock succeeds, and the release at that server continues in
    // the background.
    let guard = lock().await;
    let mut silent = 3;
    seen[0].plan(move |op| {
        silent -= u32::from(silent > 0 && op == Op::Release);
        (silent > 0 && op == Op::Release).then_some(Fault::Hang)
    });
    guard.unlock().await.unwrap();
    assert_eq!(shares(&servers, "m").await, 1);
    sleep(1200 * MS).await;
    assert_eq!(shares(&servers, "m").await, 0);
    // Two servers do not answer.
    let guard = lock().await;
    for server in &seen[..2] {
        server.plan(|op| (op == Op::Release).then_some(Fault::Refuse));
    }
    assert_eq!(kind(guard.unlock().await), ErrorKind::Backend);
    seen.iter().for_each(|server| server.plan(|_| None));
    sleep(100 * MS).await;
    assert_eq!(shares(&servers, "m").await, 0);
    // A dropped guard releases at every server.
    drop(lock().await);
    sleep(MS).await;
    assert_eq!(shares(&servers, "m").await, 0);
}

/// Each acquisition is dropped after a number of polls.
#[tokio::test(start_paused = true)]
async fn an_acquisition_dropped_at_any_await_leaves_nothing() {
    for fault in [None, Some(Fault::LoseReply), Some(Fault::Late(5 * MS))] {
        for contended in [false, true] {
            for polls in 1..40 {
                let servers: [_; 3] = servers();
                let seen = seen(&servers, &[]);
                seen[0].plan(move |op| (op == Op::Acquire).then_some(fault?));
                seen[1].plan(|op| (op == Op::Acquire).then_some(Fault::Late(MS)));
                if contended {
                    // One server is free, one soon, and one never. The acquisition can split or be
                    // granted.
                    occupy(&servers[1], "m", 5 * MS).await;
                    occupy(&servers[2], "m", 20 * MS).await;
                }
                let redlock = majority(&seen);
                let mutex = redlock.mutex("m").lease(LEASE);
                let mut left = polls;
                let locked = {
                    let mut locking = pin!(mutex.lock());
                    std::future::poll_fn(|cx| match locking.as_mut().poll(cx) {
                        Poll::Ready(locked) => Poll::Ready(Some(locked)),
                        Poll::Pending => {
                            left -= 1;
                            if left == 0 { Poll::Ready(None) } else { Poll::Pending }
                        }
                    })
                    .await
                };
                drop(locked);
                // Late shares have arrived, and were undone.
                sleep(60 * MS).await;
                assert_eq!(shares(&servers, "m").await, 0, "{fault:?} {contended} {polls}");
            }
        }
    }
}

/// The acquisitions arrive long after their caller went away, when the first undo has found
/// nothing.
#[tokio::test(start_paused = true)]
async fn a_late_acquisition_is_undone_within_a_lease() {
    let servers: [_; 3] = servers();
    let late = |inner: &MemoryBackend| stray(inner, 300 * MS);
    let redlock = Redlock::over(servers.iter().map(late), "bellwether").unwrap();
    let lease = 2 * SECOND;
    let mutex = redlock.mutex("m").lease(lease);
    assert_eq!(kind(mutex.try_lock().await), ErrorKind::Backend);
    sleep(290 * MS).await;
    assert_eq!(shares(&servers, "m").await, 3, "the late shares did not arrive");
    let begun = Instant::now();
    let other = majority(&servers);
    let guard = other.mutex("m").lock().await.unwrap();
    assert!(begun.elapsed() <= lease, "{:?}", begun.elapsed());
    // The undo concerns that try only.
    sleep(3 * lease).await;
    assert!(!guard.is_lost());
    assert_eq!(shares(&servers, "m").await, 3);
}

/// The first try has no answer from one server. It is undone there, and again after one lease. By
/// then a later try of the same acquisition holds the lock, and must not be undone with it.
#[tokio::test(start_paused = true)]
async fn the_undo_of_a_failed_try_spares_the_next_one() {
    let servers: [_; 3] = servers();
    let other = occupy(&servers[1], "m", LEASE).await;
    let seen = seen(&servers, &[]);
    let mut first = [Some(Fault::Hang), None].into_iter();
    seen[0].plan(move |op| if op == Op::Acquire { first.next().flatten() } else { None });
    let mut refused = [Some(Fault::Refuse), None].into_iter();
    seen[2].plan(move |op| if op == Op::Acquire { refused.next().flatten() } else { None });
    let lease = SECOND;
    let guard = majority(&seen).mutex("m").lease(lease).lock().await.unwrap();
    assert_eq!(shares(&servers, "m").await, 3);
    sleep(5 * lease).await;
    assert!(!guard.is_lost());
    servers[1].release(&other).await.unwrap();
    assert_eq!(shares(&servers, "m").await, 2);
    // The share was not ended and acquired once more either.
    assert_eq!(seen[0].count(Op::Acquire), 1);
    guard.unlock().await.unwrap();
}

/// A renewal asks for a missing share, and the share is granted after the unlock.
#[tokio::test(start_paused = true)]
async fn a_share_that_arrives_after_the_unlock_is_released() {
    let servers: [_; 3] = servers();
    let late = |(at, inner): (usize, &MemoryBackend)| {
        let by = if at == 0 { 300 * MS } else { Duration::ZERO };
        stray(inner, by)
    };
    let redlock = Redlock::over(servers.iter().enumerate().map(late), "bellwether").unwrap();
    let lease = 60 * SECOND;
    let guard = redlock.mutex("m").lease(lease).lock().await.unwrap();
    // A share that came too late to count is undone.
    sleep(lease / 4).await;
    assert_eq!(shares(&servers, "m").await, 2);
    guard.renew().await.unwrap();
    // The renewal has found that the share is missing, and a task asks for it.
    yield_now().await;
    guard.unlock().await.unwrap();
    assert_eq!(shares(&servers, "m").await, 0);
    sleep(301 * MS).await;
    assert_eq!(shares(&servers, "m").await, 1, "the missing share did not arrive late");
    sleep(SECOND).await;
    assert_eq!(shares(&servers, "m").await, 0);
}

/// The same, with a share that is granted in time.
#[tokio::test(start_paused = true)]
async fn a_share_that_is_granted_after_the_unlock_is_released() {
    let servers: [_; 3] = servers();
    let seen = seen(&servers, &[]);
    let mut faults = [Fault::Refuse, Fault::Late(ANSWER / 2)].into_iter();
    seen[0].plan(move |op| if op == Op::Acquire { faults.next() } else { None });
    let redlock = majority(&seen);
    let guard = redlock.mutex("m").lease(LEASE).lock().await.unwrap();
    guard.renew().await.unwrap();
    // The renewal has found that the share is missing, and a task asks for it.
    yield_now().await;
    guard.unlock().await.unwrap();
    assert_eq!(seen[0].count(Op::Acquire), 0);
    sleep(ANSWER).await;
    assert_eq!((seen[0].count(Op::Acquire), shares(&servers, "m").await), (1, 0));
}

/// A share arrives when it is already being undone, again and again. It was once counted while it
/// was there. When it was gone, the end of one more server cost the majority.
#[tokio::test(start_paused = true)]
async fn a_share_that_is_undone_is_not_counted() {
    let servers: [_; 3] = servers();
    let seen = seen(&servers, &[]);
    let second = SECOND;
    let mut astray = Some(Fault::Astray(3 * second));
    seen[0].plan(move |op| if op == Op::Acquire { astray.take() } else { None });
    let redlock = majority(&seen);
    let guard = redlock.mutex("m").lease(10 * second).lock().await.unwrap();
    sleep(15 * second).await;
    assert_eq!(shares(&servers, "m").await, 3);
    seen[1].plan(|_| Some(Fault::Refuse));
    sleep(25 * second).await;
    assert!(!guard.is_lost());
}
