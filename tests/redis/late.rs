//! Callers that are polled late, or whose runtime is gone.

use std::{pin::pin, thread};

use bellwether::lock::{ReadGuard, SemaphorePermit, WriteGuard};
use futures_util::poll;
use tokio::{runtime::Runtime, task::yield_now};

use crate::prelude::*;

/// Blocks the thread of a test again and again, as work between two awaits does.
async fn blocks_its_thread(times: usize) {
    for _ in 0..times {
        thread::sleep(100 * MS);
        yield_now().await;
    }
}

async fn locked<G>(what: &str, lock: impl Future<Output = Result<G, Error>>) -> G {
    let begun = Instant::now();
    let (held, ()) = tokio::join!(lock, blocks_its_thread(20));
    held.unwrap_or_else(|error| panic!("{what} after {:?}: {error}", begun.elapsed()))
}

/// A grant was undone if its caller did not read it within 30 ms, so such a caller never got a lock
/// that nobody else wanted.
#[tokio::test]
async fn a_caller_that_is_polled_late_gets_a_free_lock() {
    let server = RedisServer::start().await;
    let locks = Locks::new(RedisBackend::open(&server.url()).unwrap(), "bellwether");
    let limit = 6_000 * MS;
    let mutex = locks.mutex("mutex").wait_limit(limit);
    let _held: MutexGuard = locked("mutex", mutex.lock()).await;
    let fair = locks.mutex("fair").fair().wait_limit(limit);
    let _held: MutexGuard = locked("fair", fair.lock()).await;
    let rw_lock = locks.rw_lock("rw").wait_limit(limit);
    let held: WriteGuard = locked("write", rw_lock.write()).await;
    held.unlock().await.unwrap();
    let _held: ReadGuard = locked("read", rw_lock.read()).await;
    let semaphore = locks.semaphore("semaphore", 2).wait_limit(limit);
    let _held: SemaphorePermit = locked("semaphore", semaphore.acquire()).await;
    let reentrant = locks.reentrant_mutex("reentrant").wait_limit(limit);
    let _held: MutexGuard = locked("reentrant", reentrant.lock()).await;
    let several = locks.several(["a", "b", "c"]).wait_limit(limit);
    let _held = locked("several", several.lock()).await;
    let permits = locks.permits("permits", 1).wait_limit(limit);
    let _id = locked("permits", permits.acquire()).await;
}

/// The server lost the lease before the caller read the grant, as in a failover. The holder learned
/// of it with the first renewal, a third of the lease later.
#[tokio::test]
async fn a_lease_that_was_lost_before_its_grant_is_read_is_reported_soon() {
    let server = RedisServer::start().await;
    let locks = Locks::new(RedisBackend::open(&server.url()).unwrap(), "bellwether");
    let mut raw = server.raw().await;
    let other = locks.mutex("other");
    other.lock().await.unwrap().unlock().await.unwrap();
    let mutex = locks.mutex("k").lease(30_000 * MS);
    let mut locking = pin!(mutex.lock());
    assert!(poll!(&mut locking).is_pending());
    // The answers come in order, so the grant has come by now.
    other.lock().await.unwrap().unlock().await.unwrap();
    let keys: Vec<String> = raw.keys("*{k}:l").await;
    assert_eq!(keys.len(), 1, "the lock is not granted");
    raw.run::<()>(&["FLUSHALL"]).await;
    raw.kill_clients("normal").await;
    // A grant is read late after 20 ms.
    sleep(30 * MS).await;
    other.lock().await.unwrap().unlock().await.unwrap();
    let guard = locking.await.unwrap();
    timeout(3_000 * MS, guard.lost()).await.expect("the loss is not reported soon");
}

/// The loop of tries did not look at the limit while the caller was polled late.
#[tokio::test]
async fn a_caller_that_is_polled_late_fails_soon_after_its_limit() {
    let server = RedisServer::start().await;
    let [here, there] =
        [(); 2].map(|()| Locks::new(RedisBackend::open(&server.url()).unwrap(), "bellwether"));
    let _held = here.mutex("k").lock().await.unwrap();
    for locks in [&here, &there] {
        for mutex in [locks.mutex("k"), locks.mutex("k").fair()] {
            let mutex = mutex.wait_limit(500 * MS);
            let begun = Instant::now();
            let failed = async {
                assert_eq!(mutex.lock().await.unwrap_err().kind(), ErrorKind::NotAcquired);
                begun.elapsed()
            };
            let (took, ()) = tokio::join!(failed, blocks_its_thread(20));
            assert!(took < 1_500 * MS, "{took:?}");
        }
    }
}

/// One task polls all of them, and so each of them late.
#[tokio::test]
async fn many_free_locks_are_taken_in_one_task() {
    let server = RedisServer::start().await;
    let locks = Locks::new(testkit::open(server.url()), "bellwether");
    let locking = (0..15_000).map(|number| {
        let mutex = locks.mutex(format!("free-{number}")).lease(LEASE);
        async move { mutex.lock().await }
    });
    let held = join_all(locking).await;
    let failed: Vec<_> = held.iter().filter_map(|held| held.as_ref().err()).collect();
    assert!(failed.is_empty(), "{} fail, the first with: {}", failed.len(), failed[0]);
}

/// The entries of a runtime that is gone were kept by the others of its operating system process:
/// all had one id.
#[test]
fn waiters_of_a_dropped_runtime_delay_a_fair_mutex_once() {
    let runtime = Runtime::new().unwrap();
    let server = runtime.block_on(RedisServer::start());
    let open = || Locks::new(RedisBackend::open(&server.url()).unwrap(), "bellwether");
    let fair = |locks: &Locks| locks.mutex("k").fair().wait_limit(LIMIT);
    for _ in 0..3 {
        let here = open();
        let there = open();
        let held = runtime.block_on(async { fair(&here).lock().await.unwrap() });
        let gone = Runtime::new().unwrap();
        for _ in 0..3 {
            let mutex = fair(&open());
            gone.spawn(async move { drop(mutex.lock().await) });
        }
        let waiting = |waiters| {
            let server = &server;
            runtime.block_on(async move {
                let mut raw = server.raw().await;
                let queue = ["ZCARD", "bellwether:l:{k}:q"];
                let waits = async || raw.run::<u32>(&queue).await == waiters;
                assert!(comes_true(LIMIT, waits).await, "not so many waiters: {waiters}");
            });
        };
        waiting(3);
        let mutex = fair(&there);
        let last = runtime.spawn(async move { mutex.lock().await.unwrap() });
        waiting(4);
        gone.shutdown_background();
        runtime.block_on(async {
            let begun = Instant::now();
            held.unlock().await.unwrap();
            let held = last.await.unwrap();
            let took = begun.elapsed();
            assert!(took < 3_200 * MS, "{took:?}");
            held.unlock().await.unwrap();
        });
    }
}

/// The lease key and the process of a lock.
struct Pushed {
    raw: Raw,
    channel: String,
}

impl Pushed {
    /// Pushes to a process that this owner has the lease of `k` now.
    async fn hand_over(&mut self, owner: &str) -> usize {
        let message = format!("bellwether:l:{{k}}:g9999999999999999{owner}100000,l");
        self.raw.run(&["PUBLISH", &self.channel, &message]).await
    }
}

/// Holds the mutex `k`, and returns how to push to its process, with the owner of the lease.
async fn pushed_to(server: &RedisServer, locks: &Locks) -> (Pushed, MutexGuard, String) {
    let held = locks.mutex("k").lock().await.unwrap();
    let mut raw = server.raw().await;
    let lease: String = raw.run(&["GET", "bellwether:l:{k}:l"]).await;
    let owner = lease.split(':').next().unwrap().to_owned();
    let channel = format!("bellwether:l:p:{}", &owner[..16]);
    let mut listening = raw.clone();
    let listens = async || listening.process_channels().await.contains(&channel);
    assert!(comes_true(LIMIT, listens).await, "the process does not listen");
    (Pushed { raw, channel }, held, owner)
}

/// Callers left in a failover, and their undos were lost with it. Each handover to one of them was
/// a standstill of 2 s.
#[tokio::test]
async fn a_handover_to_a_caller_that_has_left_is_released_at_once() {
    let server = RedisServer::start().await;
    let [here, there] =
        [(); 2].map(|()| Locks::new(RedisBackend::open(&server.url()).unwrap(), "bellwether"));
    let (mut pushed, held, owner) = pushed_to(&server, &here).await;
    let left = format!("{}0000000000000000", &owner[..16]);
    // The server has handed the lease over to an owner that is not here.
    let lease = format!("{left}:0000000000000007");
    pushed.raw.run::<()>(&["SET", "bellwether:l:{k}:l", &lease, "PX", "60000"]).await;
    assert_eq!(pushed.hand_over(&left).await, 1);
    // Without the release, the lease would last for longer than the limit.
    let next = there.mutex("k").wait_limit(LIMIT).lock().await.unwrap();
    drop(next);
    assert_eq!(held.unlock().await.unwrap_err().kind(), ErrorKind::Lost);
}

/// The release grants the lock to the next waiter. The fences grow for a day all the same, also if
/// the clock is set back after that.
#[tokio::test]
async fn a_release_for_a_caller_that_has_left_keeps_the_fence_for_a_day() {
    let server = RedisServer::start().await;
    let [here, there] =
        [(); 2].map(|()| Locks::new(RedisBackend::open(&server.url()).unwrap(), "bellwether"));
    let (mut pushed, held, owner) = pushed_to(&server, &here).await;
    let left = format!("{}0000000000000000", &owner[..16]);
    let waiting = tokio::spawn(async move {
        let next = there.mutex("k").wait_limit(LIMIT).lock().await.unwrap();
        // Before the first renewal.
        next.unlock().await.unwrap();
    });
    let queued = comes_true(LIMIT, async || {
        pushed.raw.run::<u32>(&["ZCARD", "bellwether:l:{k}:q"]).await == 1
    });
    assert!(queued.await);
    let lease = format!("{left}:0000000000000007");
    pushed.raw.run::<()>(&["SET", "bellwether:l:{k}:l", &lease, "PX", "60000"]).await;
    assert_eq!(pushed.hand_over(&left).await, 1);
    waiting.await.unwrap();
    let life: u64 = pushed.raw.run(&["PTTL", "bellwether:l:{k}:f"]).await;
    assert!(life > 3_600_000, "{life} ms");
    assert_eq!(held.unlock().await.unwrap_err().kind(), ErrorKind::Lost);
}

/// A push that comes behind the answer that granted finds its owner known, while its guard lives.
#[tokio::test]
async fn a_late_push_of_a_grant_releases_nothing() {
    let server = RedisServer::start().await;
    let locks = Locks::new(RedisBackend::open(&server.url()).unwrap(), "bellwether");
    let (mut pushed, held, owner) = pushed_to(&server, &locks).await;
    for _ in 0..20 {
        assert_eq!(pushed.hand_over(&owner).await, 1);
    }
    // The pushes were handled when another push has come.
    let waiting = locks.mutex("other").lock().await.unwrap();
    sleep(50 * MS).await;
    held.renew().await.unwrap();
    waiting.unlock().await.unwrap();
    held.unlock().await.unwrap();
}
