//! A future that its caller keeps and does not poll holds other callers up for its lease at most.

use std::{any::Any, fmt::Debug, pin::Pin, task::Poll};

use bellwether::Error;
use futures_util::{FutureExt, future::BoxFuture, poll};
use testkit::comes_true;
use tokio::time::Instant;

use crate::harness::*;

/// The lease of these locks, and how long others wait for a future that is not polled.
const LEASE: Duration = Duration::from_millis(1000);
/// How long a future is polled that is polled for a while.
const SHORT: Duration = Duration::from_millis(50);
/// The processes that wait look within this time after the end of a lease.
const JITTER: Duration = Duration::from_millis(50);

/// A guard of any kind. Dropped, it releases what it holds.
type Guard = Box<dyn Any + Send>;
type Locking = BoxFuture<'static, Result<Guard, Error>>;
type Lock = fn(Locks, &'static str) -> Locking;

fn boxed<G: Any + Send>(lock: impl Future<Output = Result<G, Error>> + Send + 'static) -> Locking {
    async { lock.await.map(|guard| Box::new(guard) as Guard) }.boxed()
}

const MUTEX: Lock = |locks, k| boxed(async move { locks.mutex(k).lease(LEASE).lock().await });
const FAIR: Lock = |locks, k| boxed(async move { locks.mutex(k).fair().lease(LEASE).lock().await });
const FIXED: Lock =
    |locks, k| boxed(async move { locks.mutex(k).fixed_lease().lease(LEASE).lock().await });
const REENTRANT: Lock =
    |locks, k| boxed(async move { locks.reentrant_mutex(k).lease(LEASE).lock().await });
const SEVERAL: Lock =
    |locks, k| boxed(async move { locks.several(["j", k]).lease(LEASE).lock().await });
const READ: Lock = |locks, k| boxed(async move { locks.rw_lock(k).lease(LEASE).read().await });
const WRITE: Lock = |locks, k| boxed(async move { locks.rw_lock(k).lease(LEASE).write().await });
const ONE: Lock =
    |locks, k| boxed(async move { locks.semaphore(k, 2).lease(LEASE).acquire().await });
const BOTH: Lock =
    |locks, k| boxed(async move { locks.semaphore(k, 2).lease(LEASE).acquire_many(2).await });
const BY_ID: Lock =
    |locks, k| boxed(async move { locks.permits(k, 2).lease(LEASE).acquire().await });

/// A holder, a caller that is not polled, and one that is.
const KINDS: [(&str, [Lock; 3]); 13] = [
    ("mutex", [MUTEX; 3]),
    ("fair", [FAIR; 3]),
    ("mutex, then fair", [MUTEX, MUTEX, FAIR]),
    ("fair, then mutex", [MUTEX, FAIR, MUTEX]),
    ("fixed", [MUTEX, FIXED, MUTEX]),
    ("reentrant", [REENTRANT; 3]),
    ("several", [SEVERAL; 3]),
    ("one of several", [MUTEX, SEVERAL, MUTEX]),
    ("reader", [WRITE, READ, WRITE]),
    ("writer", [READ, WRITE, READ]),
    ("writers", [WRITE; 3]),
    ("semaphore", [BOTH, ONE, BOTH]),
    ("permits", [BOTH, BY_ID, BOTH]),
];

/// Acquires a lock that is free after the lease of a future that is not polled, at the latest.
async fn held_in_time<H: FullHarness>(locking: Locking, kind: impl Debug) -> Guard {
    let begun = Instant::now();
    let held = timeout(LIMIT, locking).await.unwrap().unwrap();
    let took = begun.elapsed();
    assert!(took <= LEASE + JITTER + H::BUSY, "{kind:?}: {took:?}");
    held
}

/// Polls a future once.
async fn touch<T>(future: Pin<&mut (impl Future<Output = T> + ?Sized)>) -> Option<T> {
    match poll!(future) {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    }
}

/// Returns the locks of two processes, and of one process twice.
fn processes<H: FullHarness>(h: &H) -> [(&'static str, [Locks; 2]); 2] {
    let [here, there] = [h.backend(), h.backend()].map(|backend| Locks::new(backend, "bellwether"));
    [("one process", [here.clone(), here.clone()]), ("two processes", [here, there])]
}

/// The lease is handed over or passed to a future that is not polled. Others have it after its end,
/// and the future itself when it is polled again.
pub async fn a_waiter_that_is_not_polled_delays_others_for_its_lease<H: FullHarness>(h: &H) {
    for (kind, [first, second, third]) in KINDS {
        for (processes, [here, there]) in processes(h) {
            for polled in [Duration::ZERO, SHORT] {
                let what = (kind, processes, polled);
                let held = first(here.clone(), "k").await.unwrap();
                let mut kept = second(there.clone(), "k");
                match polled {
                    Duration::ZERO => assert!(touch(kept.as_mut()).await.is_none()),
                    _ => assert!(timeout(polled, &mut kept).await.is_err()),
                }
                drop(held);
                drop(held_in_time::<H>(third(there.clone(), "k"), what).await);
                drop(timeout(LIMIT, kept).await.unwrap().unwrap());
                if kind == "permits" {
                    // No guard gives a permit back that has an id.
                    h.backend().clear(&name("k"), PERMIT).await.unwrap();
                }
            }
        }
    }
}

/// The claim is granted, and its caller does not read the answer.
pub async fn a_grant_that_is_not_read_delays_others_for_its_lease<H: FullHarness>(h: &H) {
    for (kind, [_, second, third]) in KINDS {
        for (processes, [here, there]) in processes(h) {
            let mut kept = second(there, "k");
            drop(touch(kept.as_mut()).await);
            drop(held_in_time::<H>(third(here, "k"), (kind, processes)).await);
            drop(kept);
        }
    }
}

/// A caller reads its grant late, and has its lock if the lease has not ended by then.
pub async fn a_grant_that_is_read_late_is_held<H: FullHarness>(h: &H) {
    for (processes, [here, there]) in processes(h) {
        let locks = here.clone();
        let mut late =
            boxed(async move { locks.mutex("k").lease(10 * LEASE).wait_limit(LIMIT).lock().await });
        let read = touch(late.as_mut()).await;
        assert!(there.mutex("k").wait_limit(SHORT).lock().await.is_err() || read.is_none());
        h.pass(LEASE).await;
        let held = match read {
            Some(read) => read,
            None => timeout(LIMIT, late).await.unwrap(),
        };
        assert!(there.mutex("k").try_lock().await.unwrap().is_none(), "{processes}");
        drop(held.unwrap());
    }
}

/// Many futures that are not polled take no permit to ask from other names.
pub async fn many_futures_that_are_not_polled_delay_no_other_name<H: FullHarness>(h: &H) {
    let locks = Locks::new(h.backend(), "bellwether");
    let mut kept: Vec<_> = (0..200)
        .map(|n| {
            let mutex = locks.mutex(format!("kept-{n}"));
            async move { mutex.lock().await }.boxed()
        })
        .collect();
    for locking in &mut kept {
        drop(touch(locking.as_mut()).await);
    }
    let begun = Instant::now();
    for n in 0..10 {
        drop(timeout(LIMIT, locks.mutex(format!("other-{n}")).lock()).await.unwrap().unwrap());
    }
    assert!(begun.elapsed() <= H::BUSY, "{:?}", begun.elapsed());
    drop(kept);
}

/// Two tasks of one holder wait. One gets the lock and unlocks it, and the other is not polled.
pub async fn a_task_of_a_reentrant_holder_that_is_not_polled_delays_others_for_its_lease<
    H: FullHarness,
>(
    h: &H,
) {
    for (processes, [here, there]) in processes(h) {
        let held = MUTEX(here.clone(), "k").await.unwrap();
        let holder = there.reentrant_mutex("k").lease(LEASE);
        let tasks = [holder.clone(), holder];
        let [mut kept, mut polled] = tasks.map(|task| async move { task.lock().await }.boxed());
        assert!(timeout(SHORT, &mut kept).await.is_err());
        assert!(timeout(SHORT, &mut polled).await.is_err());
        drop(held);
        timeout(LIMIT, polled).await.unwrap().unwrap().unlock().await.unwrap();
        drop(held_in_time::<H>(MUTEX(here, "k"), processes).await);
        drop(kept);
    }
}

/// The release is sent, and its caller does not read the answer.
pub async fn an_unlock_that_is_not_polled_delays_no_other<H: FullHarness>(h: &H) {
    let locks = Locks::new(h.backend(), "bellwether");
    let held = locks.mutex("k").lock().await.unwrap();
    let mut waiting = MUTEX(locks.clone(), "k");
    assert!(timeout(SHORT, &mut waiting).await.is_err());
    let mut unlocking = held.unlock().boxed();
    let unlocked = touch(unlocking.as_mut()).await;
    let begun = Instant::now();
    drop(timeout(LIMIT, waiting).await.unwrap().unwrap());
    assert!(begun.elapsed() <= SHORT + H::BUSY, "{:?}", begun.elapsed());
    match unlocked {
        Some(unlocked) => unlocked.unwrap(),
        None => timeout(LIMIT, unlocking).await.unwrap().unwrap(),
    }
}

/// A try does not wait, and does not take a future that is not polled for a holder.
pub async fn a_try_gets_a_lock_that_was_left_unread<H: FullHarness>(h: &H) {
    let locks = Locks::new(h.backend(), "bellwether");
    let held = MUTEX(locks.clone(), "k").await.unwrap();
    let mut kept = MUTEX(locks.clone(), "k");
    assert!(touch(kept.as_mut()).await.is_none());
    drop(held);
    let begun = Instant::now();
    let is_free = async || locks.mutex("k").try_lock().await.unwrap().is_some();
    assert!(comes_true(LIMIT, is_free).await, "the lock is taken by nobody");
    assert!(begun.elapsed() <= LEASE + JITTER + H::BUSY, "{:?}", begun.elapsed());
    drop(kept);
}
