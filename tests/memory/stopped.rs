//! Who depended on someone that stopped: a caller who polls his future no more, a runtime that went away.
//!
//! A request is polled by its caller for a while, and he may stop: a stream of requests whose consumer does something
//! else, a `select!` whose other branch has won. What is done for all in the task of one ends with his runtime.

use std::{pin::pin, time::Duration};

use bellwether::{BoxError, Cache, Locks, MemoryBackend, lock::MutexGuard};
use futures_util::{StreamExt, future::select_all, poll, stream::FuturesUnordered};
use testkit::{
    LIMIT, comes_true,
    faulty::{Fault, Faulty, Op},
};
use tokio::{
    runtime::Runtime,
    task::JoinHandle,
    time::{Instant, timeout},
};

const MS: Duration = Duration::from_millis(1);

fn slow() -> (Faulty, Cache<u32>) {
    let faulty = Faulty::new(|op| (op == Op::Get).then_some(Fault::Late(10 * MS)));
    let cache = Cache::builder(faulty.clone()).build().unwrap();
    (faulty, cache)
}

async fn get(cache: &Cache<u32>, key: &str) -> u32 {
    cache.get_or_load(key, |_| async { Ok::<_, BoxError>(7) }).await.unwrap()
}

/// There are only so many turns to ask the backend. Those of futures that nobody polled stayed with them, and the next
/// ones in the queue for them were not polled either: the whole cache stood still. (Found by reading.)
#[tokio::test(start_paused = true)]
async fn many_requests_that_nobody_polls_take_no_turn_from_others() {
    let (_, cache) = slow();
    let keys: Vec<_> = (0..400).map(|n| format!("k{n}")).collect();
    for key in &keys {
        cache.insert(key, &7).await.unwrap();
    }
    let mut requests: FuturesUnordered<_> = keys.iter().map(|key| get(&cache, key)).collect();
    let mut served = 0;
    while let Some(value) = timeout(LIMIT, requests.next()).await.expect("nobody is served") {
        assert_eq!(value, 7);
        served += 1;
        // In this task, which polls none of the others meanwhile, and in others.
        let name = format!("other-{served}");
        let other = timeout(LIMIT, get(&cache, &name)).await;
        assert_eq!(other.expect("it stands still"), 7);
    }
    assert_eq!(served, keys.len());
}

/// A shutdown waits for those who lead; one of them was not polled any more. (Found by reading.)
#[tokio::test(start_paused = true)]
async fn a_shutdown_does_not_wait_for_who_polls() {
    for detached in [false, true] {
        let (_, cache) = slow();
        let mut request = pin!(get(&cache, "k"));
        assert!(poll!(request.as_mut()).is_pending());
        if detached {
            cache.invalidate("k").await.unwrap();
        }
        let begun = Instant::now();
        timeout(LIMIT, cache.shutdown(1000 * MS)).await.expect("it waits for who does not poll");
        assert!(begun.elapsed() <= 20 * MS, "{:?}", begun.elapsed());
        assert_eq!(request.await, 7);
    }
}

/// After a shutdown everyone loads for himself, with a cap; whoever asked for another key in his loader waited for a
/// place that he himself held. (Found by reading.)
#[tokio::test(start_paused = true)]
async fn after_a_shutdown_a_loader_that_asks_does_not_wait_for_itself() {
    let cache: Cache<u32> = Cache::builder(MemoryBackend::new()).max_loads(1).build().unwrap();
    cache.shutdown(MS).await;
    let inner = cache.clone();
    let begun = Instant::now();
    let outer =
        cache.get_or_load("a", |_| async move { Ok::<_, BoxError>(get(&inner, "b").await) });
    assert_eq!(outer.await.unwrap(), 7);
    assert!(begun.elapsed() < 1000 * MS, "{:?}", begun.elapsed());
}

/// One task renews all leases, in the runtime of the first. When that was gone, nobody renewed those of the others until
/// the next was acquired. (Found by reading.)
#[test]
fn leases_are_renewed_though_the_runtime_of_the_first_is_gone() {
    let lease = 400 * MS;
    let locks = Locks::new(MemoryBackend::new());
    let [first, second, third] = [0, 1, 2].map(|_| Runtime::new().unwrap());
    let lock = |runtime: &Runtime, name: &str| {
        let mutex = locks.mutex(name).lease(lease);
        runtime.block_on(async move { mutex.lock().await.unwrap() })
    };
    let _gone = lock(&first, "a");
    let held = [lock(&second, "b"), lock(&third, "c"), lock(&third, "d")];
    drop(first);
    drop(second);
    third.block_on(async {
        let lost = select_all(held.iter().map(|guard| Box::pin(guard.lost())));
        assert!(timeout(3 * lease, lost).await.is_err(), "one is not renewed any more");
        for guard in held {
            guard.unlock().await.unwrap();
        }
    });
}

/// As above, of a lease that was passed on in the runtime that went away. (Found by reading.)
#[test]
fn a_lease_that_was_passed_on_is_renewed_where_it_was_passed_to() {
    let lease = 400 * MS;
    let locks = Locks::new(MemoryBackend::new());
    let [first, second] = [0, 1].map(|_| Runtime::new().unwrap());
    let (held, next) = waits_behind(&locks, &first, &second, lease);
    first.block_on(held.unlock()).unwrap();
    let guard = second.block_on(next).unwrap();
    drop(first);
    second.block_on(async {
        assert!(timeout(3 * lease, guard.lost()).await.is_err(), "it is not renewed any more");
        guard.unlock().await.unwrap();
    });
}

/// A lock was passed on, and before that was answered the runtime was gone in which it was done. The next in line was
/// told that his time was over, and nobody gave back what he had been passed. (Found by reading.)
#[test]
fn who_was_being_passed_a_lock_by_a_runtime_that_went_away_has_it_soon() {
    let faulty = Faulty::once(Op::Pass, Fault::LoseReply);
    let locks = Locks::new(faulty.clone());
    let [first, second] = [0, 1].map(|_| Runtime::new().unwrap());
    let (held, next) = waits_behind(&locks, &first, &second, 10_000 * MS);
    first.spawn(held.unlock());
    second.block_on(async {
        assert!(comes_true(LIMIT, async || faulty.count(Op::Pass) == 1).await);
        let begun = Instant::now();
        first.shutdown_background();
        let guard = timeout(LIMIT, next).await.expect("he never has it").unwrap();
        assert!(begun.elapsed() < 2000 * MS, "{:?}", begun.elapsed());
        guard.unlock().await.unwrap();
        assert!(!locks.mutex("k").is_locked().await.unwrap());
    });
}

/// One has a lock in one runtime, and another stands in line for it in another.
fn waits_behind(
    locks: &Locks,
    first: &Runtime,
    second: &Runtime,
    lease: Duration,
) -> (MutexGuard, JoinHandle<MutexGuard>) {
    let mutex = || locks.mutex("k").lease(lease).wait_limit(LIMIT);
    let held = first.block_on(async { mutex().lock().await.unwrap() });
    let mutex = mutex();
    let mut waiting = Box::pin(async move { mutex.lock().await.unwrap() });
    // Polled once, it stands in line.
    assert!(second.block_on(async { poll!(waiting.as_mut()) }).is_pending());
    (held, second.spawn(waiting))
}
