//! A future that its caller keeps and does not poll holds no other caller up.

use std::{any::Any, fmt::Debug, pin::Pin, task::Poll};

use bellwether::Error;
use futures_util::{FutureExt, future::BoxFuture, poll};
use tokio::time::Instant;

use crate::harness::*;

/// How long a lock stays with a future that is not polled.
const SHORT: Duration = Duration::from_millis(50);

/// A guard of any kind. Dropped, it releases what it holds.
type Guard = Box<dyn Any + Send>;
type Locking = BoxFuture<'static, Result<Guard, Error>>;
type Lock = fn(Locks) -> Locking;

fn boxed<G: Any + Send>(lock: impl Future<Output = Result<G, Error>> + Send + 'static) -> Locking {
    async { lock.await.map(|guard| Box::new(guard) as Guard) }.boxed()
}

const MUTEX: Lock = |locks| boxed(async move { locks.mutex("k").lock().await });
const FAIR: Lock = |locks| boxed(async move { locks.mutex("k").fair().lock().await });
const FIXED: Lock = |locks| boxed(async move { locks.mutex("k").fixed_lease().lock().await });
const REENTRANT: Lock = |locks| boxed(async move { locks.reentrant_mutex("k").lock().await });
const SEVERAL: Lock = |locks| boxed(async move { locks.several(["j", "k"]).lock().await });
const READ: Lock = |locks| boxed(async move { locks.rw_lock("k").read().await });
const WRITE: Lock = |locks| boxed(async move { locks.rw_lock("k").write().await });
const ONE: Lock = |locks| boxed(async move { locks.semaphore("k", 2).acquire().await });
const BOTH: Lock = |locks| boxed(async move { locks.semaphore("k", 2).acquire_many(2).await });
const BY_ID: Lock = |locks| boxed(async move { locks.permits("k", 2).acquire().await });

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

async fn held_soon<H: FullHarness>(locks: &Locks, lock: Lock, kind: impl Debug) -> Guard {
    let begun = Instant::now();
    let held = timeout(LIMIT, lock(locks.clone())).await.unwrap().unwrap();
    let took = begun.elapsed();
    assert!(took <= SHORT + H::BUSY, "{kind:?}: {took:?}");
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

pub async fn a_waiter_that_is_not_polled_delays_no_other<H: FullHarness>(h: &H) {
    for (kind, [first, second, third]) in KINDS {
        for (processes, [here, there]) in processes(h) {
            for polled in [Duration::ZERO, SHORT] {
                // A busy machine may delay one of them, and paused time delays none.
                let tries = if H::BUSY.is_zero() { 1 } else { 3 };
                let mut late = Vec::new();
                while late.len() < tries {
                    let held = first(here.clone()).await.unwrap();
                    let mut kept = second(there.clone());
                    match polled {
                        Duration::ZERO => assert!(touch(kept.as_mut()).await.is_none()),
                        _ => assert!(timeout(polled, &mut kept).await.is_err()),
                    }
                    drop(held);
                    let begun = Instant::now();
                    drop(timeout(LIMIT, third(there.clone())).await.unwrap().unwrap());
                    let took = begun.elapsed();
                    if kind != "permits" {
                        // It still waits, and gets its lock when it is polled again.
                        drop(timeout(LIMIT, kept).await.unwrap().unwrap());
                    }
                    match took <= SHORT + H::BUSY {
                        true => break,
                        false => late.push(took),
                    }
                }
                assert!(late.len() < tries, "{kind}, {processes}, polled {polled:?}: {late:?}");
            }
        }
    }
}

/// The claim is granted, and its caller does not read the answer.
pub async fn a_caller_that_does_not_read_its_grant_delays_no_other<H: FullHarness>(h: &H) {
    for (kind, [_, second, third]) in KINDS {
        for (processes, [here, there]) in processes(h) {
            let mut kept = second(there);
            if kind != "permits" {
                drop(touch(kept.as_mut()).await);
            }
            drop(held_soon::<H>(&here, third, (kind, processes)).await);
        }
    }
}

/// Two tasks of one holder wait. One gets the lock and unlocks it, and the other is not polled.
pub async fn a_task_of_a_reentrant_holder_that_is_not_polled_keeps_nothing<H: FullHarness>(h: &H) {
    for (processes, [here, there]) in processes(h) {
        let held = MUTEX(here.clone()).await.unwrap();
        let holder = there.reentrant_mutex("k");
        let tasks = [holder.clone(), holder];
        let [mut kept, mut polled] = tasks.map(|task| async move { task.lock().await }.boxed());
        assert!(timeout(SHORT, &mut kept).await.is_err());
        assert!(timeout(SHORT, &mut polled).await.is_err());
        drop(held);
        timeout(LIMIT, polled).await.unwrap().unwrap().unlock().await.unwrap();
        drop(held_soon::<H>(&here, MUTEX, processes).await);
        drop(kept);
    }
}

/// The release is sent, and its caller does not read the answer.
pub async fn an_unlock_that_is_not_polled_delays_no_other<H: FullHarness>(h: &H) {
    let locks = Locks::new(h.backend(), "bellwether");
    let held = locks.mutex("k").lock().await.unwrap();
    let mut waiting = MUTEX(locks.clone());
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
