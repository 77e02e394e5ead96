//! The callers of one process wait in its local queue, and the lock passes from one to the next at
//! all servers.

use bellwether::{Redlock, lock::MutexGuard};
use tokio::task::yield_now;

use super::{
    played::{LEASE, locking, majority, seen, servers},
    shares,
};
use crate::prelude::*;

/// Returns servers as one client sees them, the first holder, and the next one in the local queue.
async fn passing() -> ([MemoryBackend; 3], Vec<Faulty>, Redlock, MutexGuard, JoinHandle<MutexGuard>)
{
    let servers = servers();
    let seen = seen(&servers, &[]);
    let redlock = majority(&seen);
    let first = redlock.mutex("m").lease(LEASE).lock().await.unwrap();
    let next = locking(&redlock);
    yield_now().await;
    (servers, seen, redlock, first, next)
}

#[tokio::test(start_paused = true)]
async fn one_caller_contends_and_the_lock_passes_on() {
    let servers: [_; 3] = servers();
    let seen = seen(&servers, &[]);
    let redlock = majority(&seen);
    let order = Arc::new(Mutex::new(Vec::new()));
    let tasks = (0..10).map(|n| {
        let mutex = redlock.mutex("m");
        let order = order.clone();
        spawn(async move {
            let guard = mutex.lock().await.unwrap();
            order.lock().unwrap().push(n);
            sleep(MS).await;
            guard.unlock().await.unwrap();
        })
    });
    all(tasks).await;
    assert_eq!(*order.lock().unwrap(), (0..10).collect::<Vec<_>>());
    for server in &seen {
        let calls = [Op::Acquire, Op::SetFence, Op::Release].map(|op| server.count(op));
        // The server with the greatest fence is not told of it.
        assert!([[1, 9, 1], [1, 10, 1]].contains(&calls), "{calls:?}");
    }
    assert_eq!(shares(&servers, "m").await, 0);
}

/// Gives the next pass at a server this fault.
fn fail_pass(server: &Faulty, fault: Fault) {
    let mut fault = Some(fault);
    server.plan(move |op| if op == Op::SetFence { fault.take() } else { None });
}

/// The pass fails or stays unanswered at a minority. The next caller has the lock, takes a share
/// there again, and its unlock ends that as well.
#[tokio::test(start_paused = true)]
async fn a_minority_that_does_not_pass_goes_along() {
    for fault in [Fault::Refuse, Fault::Hang, Fault::LoseReply] {
        let (servers, seen, redlock, first, next) = passing().await;
        fail_pass(&seen[1], fault);
        first.unlock().await.unwrap();
        let guard = next.await.unwrap();
        for _ in 0..5 {
            sleep(LEASE).await;
            assert!(!guard.is_lost());
            assert_eq!(shares(&servers, "m").await, 3, "{fault:?}");
        }
        // A majority with this minority grants a greater token.
        let last = guard.fence();
        guard.unlock().await.unwrap();
        assert_eq!(shares(&servers, "m").await, 0);
        seen[0].plan(|_| Some(Fault::Refuse));
        let next = redlock.mutex("m").lock().await.unwrap();
        assert!(next.fence() > last, "{fault:?}: {} after {last}", next.fence());
    }
}

/// The pass fails at a majority. The unlocking caller is told that the outcome is unknown. The next
/// caller soon has the lock, with a majority of its own.
#[tokio::test(start_paused = true)]
async fn a_majority_that_does_not_pass_orphans_nothing() {
    for fault in [Fault::Refuse, Fault::Hang, Fault::LoseReply] {
        let (servers, seen, _, first, next) = passing().await;
        for server in &seen[..2] {
            fail_pass(server, fault);
        }
        let begun = Instant::now();
        assert_eq!(kind(first.unlock().await), ErrorKind::Backend);
        let guard = next.await.unwrap();
        assert!(begun.elapsed() < SECOND, "{fault:?}: {:?}", begun.elapsed());
        sleep(5 * LEASE).await;
        assert!(!guard.is_lost());
        assert!(shares(&servers, "m").await >= 2);
        guard.unlock().await.unwrap();
        assert_eq!(shares(&servers, "m").await, 0);
    }
}

/// The unlocking caller goes away while the lock is passed on.
#[tokio::test(start_paused = true)]
async fn a_dropped_unlock_still_passes_the_lock_on() {
    let (servers, seen, _, first, next) = passing().await;
    seen.iter().for_each(|server| server.plan(|_| Some(Fault::Late(20 * MS))));
    assert!(timeout(5 * MS, first.unlock()).await.is_err());
    let begun = Instant::now();
    let guard = next.await.unwrap();
    assert!(begun.elapsed() < 30 * MS, "{:?}", begun.elapsed());
    drop(guard);
    sleep(50 * MS).await;
    assert_eq!(shares(&servers, "m").await, 0);
}
