//! A lock that is ended by force is free for all, and its holder learns of its loss at once.

use bellwether::{Error, lock::ListedLock};
use futures_util::{FutureExt, future::BoxFuture};
use testkit::comes_true;
use tokio::time::Instant;

use crate::harness::*;

/// A guard of any kind.
enum Guard {
    Mutex(bellwether::lock::MutexGuard),
    Write(bellwether::lock::WriteGuard),
    Read(bellwether::lock::ReadGuard),
    Permit(bellwether::lock::SemaphorePermit),
}

impl Guard {
    async fn lost(&self) {
        match self {
            Self::Mutex(guard) => guard.lost().await,
            Self::Write(guard) => guard.lost().await,
            Self::Read(guard) => guard.lost().await,
            Self::Permit(guard) => guard.lost().await,
        }
    }
}

type Locking = BoxFuture<'static, Result<Guard, Error>>;

/// A way to hold a lock, and to end it by force.
struct Kind {
    name: &'static str,
    lock: fn(Locks) -> Locking,
    force: fn(Locks) -> BoxFuture<'static, Result<bool, Error>>,
}

const KINDS: [Kind; 6] = [
    Kind {
        name: "mutex",
        lock: |locks| async move { Ok(Guard::Mutex(locks.mutex("k").lock().await?)) }.boxed(),
        force: |locks| async move { locks.mutex("k").force_unlock().await }.boxed(),
    },
    Kind {
        name: "fair",
        lock: |locks| {
            async move { Ok(Guard::Mutex(locks.mutex("k").fair().lock().await?)) }.boxed()
        },
        force: |locks| async move { locks.mutex("k").force_unlock().await }.boxed(),
    },
    Kind {
        name: "fixed",
        lock: |locks| {
            let mutex = locks.mutex("k").fixed_lease();
            async move { Ok(Guard::Mutex(mutex.lock().await?)) }.boxed()
        },
        force: |locks| async move { locks.mutex("k").force_unlock().await }.boxed(),
    },
    Kind {
        name: "write",
        lock: |locks| async move { Ok(Guard::Write(locks.rw_lock("k").write().await?)) }.boxed(),
        force: |locks| async move { locks.rw_lock("k").force_unlock().await }.boxed(),
    },
    Kind {
        name: "read",
        lock: |locks| async move { Ok(Guard::Read(locks.rw_lock("k").read().await?)) }.boxed(),
        force: |locks| async move { locks.rw_lock("k").force_unlock().await }.boxed(),
    },
    Kind {
        name: "permits",
        lock: |locks| {
            let semaphore = locks.semaphore("k", 1);
            async move { Ok(Guard::Permit(semaphore.acquire().await?)) }.boxed()
        },
        force: |locks| async move { locks.semaphore("k", 1).force_unlock().await }.boxed(),
    },
];

fn locks<H: FullHarness>(h: &H) -> Locks {
    Locks::new(h.backend(), "bellwether")
}

/// The same `Locks` had to wait for the next renewal of the guard that it had ended itself.
pub async fn a_lock_that_is_ended_by_force_is_free_in_its_process<H: FullHarness>(h: &H) {
    for kind in KINDS {
        let here = locks(h);
        let held = (kind.lock)(here.clone()).await.unwrap();
        assert!((kind.force)(here.clone()).await.unwrap(), "{}", kind.name);
        let begun = Instant::now();
        let next = timeout(LIMIT, (kind.lock)(here)).await.unwrap().unwrap();
        assert!(begun.elapsed() <= H::BUSY, "{}: {:?}", kind.name, begun.elapsed());
        timeout(LIMIT, held.lost()).await.expect(kind.name);
        drop(held);
        drop(next);
    }
}

/// Returns the one lock that is held.
async fn listed(locks: &Locks) -> ListedLock {
    locks.explain("k").await.unwrap().pop().expect("no lock is held")
}

/// Another process ends the lock, by its own kind of lock or by the list of locks. A push tells the
/// holder.
pub async fn a_holder_learns_from_another_process_that_it_was_ended<H: FullHarness>(h: &H) {
    if !H::PUSHES_TO_HOLDERS {
        return;
    }
    let here = locks(h);
    let there = locks(h);
    drop((KINDS[0].lock)(here.clone()).await.unwrap());
    for server in h.servers() {
        let mut raw = server.raw().await;
        let listens = async || !raw.process_channels().await.is_empty();
        assert!(comes_true(LIMIT, listens).await, "the process of the holder does not listen");
    }
    for kind in KINDS {
        for by_list in [false, true] {
            let held = (kind.lock)(here.clone()).await.unwrap();
            let was_held = if by_list {
                there.end(&listed(&there).await).await.unwrap()
            } else {
                (kind.force)(there.clone()).await.unwrap()
            };
            assert!(was_held, "{}", kind.name);
            let begun = Instant::now();
            timeout(LIMIT, held.lost()).await.expect(kind.name);
            assert!(begun.elapsed() <= H::BUSY, "{}: {:?}", kind.name, begun.elapsed());
        }
    }
}
