//! A caller stops polling its future, or a runtime goes away, and other callers depend on it.
//!
//! A caller polls its request for a while and may stop. Examples are a stream of requests whose
//! consumer does something else, and a `select!` whose other branch has won. Work for all callers
//! in the task of one ends with the runtime of that task.

use std::{
    pin::pin,
    task::{Context, Wake, Waker},
};

use bellwether::{lease::Retry, lock::MutexGuard};
use futures_util::{StreamExt, poll, stream::FuturesUnordered};
use testkit::{LIMIT, comes_true};
use tokio::{
    runtime::{Builder, Runtime},
    task::yield_now,
};

use crate::prelude::*;

fn slow() -> (Faulty, Cache<u32>) {
    let faulty = Faulty::new(|op| (op == Op::Get).then_some(Fault::Late(10 * MS)));
    let cache = Cache::builder(faulty.clone(), "bellwether").build().unwrap();
    (faulty, cache)
}

async fn get(cache: &Cache<u32>, key: &str) -> u32 {
    cache.get_or_load(key, value(7)).await.unwrap()
}

/// Only a limited number of flights may ask the backend at a time. Futures that were no longer
/// polled kept their permits, or their places in the queue, and the whole cache stood still.
#[tokio::test(start_paused = true)]
async fn requests_that_are_not_polled_take_no_permit_from_others() {
    let (_, cache) = slow();
    let keys: Vec<_> = (0..400).map(|n| format!("k{n}")).collect();
    for key in &keys {
        cache.insert(key, &7).await.unwrap();
    }
    let mut requests: FuturesUnordered<_> = keys.iter().map(|key| get(&cache, key)).collect();
    let mut served = 0;
    while let Some(value) = timeout(LIMIT, requests.next()).await.expect("no request is served") {
        assert_eq!(value, 7);
        served += 1;
        // One caller runs in this task, which polls none of the others meanwhile, and others run
        // elsewhere.
        let name = format!("other-{served}");
        let other = timeout(LIMIT, get(&cache, &name)).await;
        assert_eq!(other.expect("the cache stands still"), 7);
    }
    assert_eq!(served, keys.len());
}

/// The work of a leader went with its runtime, and the caller went on by the rules of the cache: it
/// was served by a flight of callers that accept older values.
#[test]
fn a_leader_whose_runtime_is_gone_is_served_by_no_other_flight() {
    let builder = Cache::<u32>::builder(MemoryBackend::new(), "bellwether");
    let cache = builder.lease(200 * MS).build().unwrap();
    let [first, second] = [0, 1].map(|_| Runtime::new().unwrap());
    let request = cache.request("k").not_older_than(u64::MAX);
    let mut leading = pin!(request.load(hangs()));
    assert!(first.block_on(async { poll!(leading.as_mut()) }).is_pending());
    second.block_on(async {
        let other = spawn(cache.request("k").load(after(300 * MS, 1)));
        while cache.stats().flights < 2 {
            sleep(MS).await;
        }
        first.shutdown_background();
        assert_eq!(kind(timeout(LIMIT, leading).await.unwrap()), ErrorKind::Cancelled);
        assert_eq!(other.await.unwrap().unwrap().value, 1);
    });
}

struct Panics;

impl Wake for Panics {
    fn wake(self: Arc<Self>) {
        panic!("the executor of this caller is gone");
    }
}

/// The callers that are woken after the panic slept for ever.
#[tokio::test(start_paused = true)]
async fn a_waker_that_panics_keeps_no_other_caller_asleep() {
    let cache: Cache<u32> = Cache::new(MemoryBackend::new(), "bellwether").unwrap();
    let leading = spawn(cache.request("k").load(after(10 * MS, 7)));
    sleep(MS).await;
    let foreign = Waker::from(Arc::new(Panics));
    let mut panicking = [(); 2].map(|()| cache.get_or_load("k", value(8)).boxed());
    for caller in &mut panicking {
        assert!(caller.poll_unpin(&mut Context::from_waker(&foreign)).is_pending());
    }
    let last = spawn(cache.request("k").load(value(9)));
    assert_eq!(timeout(LIMIT, last).await.expect("it is not woken").unwrap().unwrap().value, 7);
    assert_eq!(timeout(LIMIT, leading).await.unwrap().unwrap().unwrap().value, 7);
}

/// Refreshes and begun loads asked in the task of their caller, and kept permits for work in tasks
/// of its own.
#[tokio::test(start_paused = true)]
async fn refreshes_and_begun_loads_that_are_not_polled_take_no_permit_from_others() {
    let (_, cache) = slow();
    let refresh = |n: u32| cache.request(n).refresh(value(7));
    let mut refreshes = pin!(join_all((0..400).map(refresh)));
    let mut begun = pin!(join_all((400..800_u32).map(|n| cache.request(n).begin())));
    // All of them ask for their entries now.
    assert!(poll!(refreshes.as_mut()).is_pending());
    assert!(poll!(begun.as_mut()).is_pending());
    for key in ["a", "b"] {
        let other = timeout(LIMIT, get(&cache, key)).await;
        assert_eq!(other.expect("the cache stands still"), 7);
    }
    assert!(refreshes.await.into_iter().all(|value| value.unwrap().value == 7));
    assert_eq!(begun.await.len(), 400);
}

/// A shutdown did not wait for an acquisition that was under way. Its lease stayed if the runtime
/// ended then.
#[tokio::test(start_paused = true)]
async fn a_shutdown_waits_for_the_undo_of_an_acquisition() {
    let memory = MemoryBackend::new();
    let lose = |op| (op == Op::Acquire).then_some(Fault::LoseReply);
    let locks = Locks::new(Faulty::over(memory.clone(), lose), "bellwether");
    let mutex = locks.mutex("m");
    let acquiring = spawn(async move { mutex.lock().await });
    let plain = Locks::new(memory, "bellwether");
    assert!(comes_true(LIMIT, async || plain.mutex("m").holder().await.unwrap().is_some()).await);
    locks.shutdown(1000 * MS).await;
    assert!(plain.mutex("m").holder().await.unwrap().is_none());
    assert_eq!(acquiring.await.unwrap().unwrap_err().kind(), ErrorKind::ShutDown);
}

/// A shutdown waits for the leaders, and one of them was not polled any more.
#[tokio::test(start_paused = true)]
async fn a_shutdown_does_not_wait_for_the_poll_of_a_leader() {
    for detached in [false, true] {
        let (_, cache) = slow();
        let mut request = pin!(get(&cache, "k"));
        assert!(poll!(request.as_mut()).is_pending());
        if detached {
            cache.invalidate("k").await.unwrap();
        }
        let begun = Instant::now();
        timeout(LIMIT, cache.shutdown(1000 * MS))
            .await
            .expect("the shutdown waits for a future that is not polled");
        assert!(begun.elapsed() <= 20 * MS, "{:?}", begun.elapsed());
        assert_eq!(request.await, 7);
    }
}

/// After a shutdown each caller loads for itself, with a limit on loads. A loader that asked for
/// another key waited for a permit that it held itself.
#[tokio::test(start_paused = true)]
async fn a_nested_load_after_a_shutdown_does_not_wait_for_itself() {
    let cache: Cache<u32> =
        Cache::builder(MemoryBackend::new(), "bellwether").max_loads(1).build().unwrap();
    cache.shutdown(MS).await;
    let inner = cache.clone();
    let begun = Instant::now();
    let outer =
        cache.get_or_load("a", |_| async move { Ok::<_, BoxError>(get(&inner, "b").await) });
    assert_eq!(outer.await.unwrap(), 7);
    assert!(begun.elapsed() < 1000 * MS, "{:?}", begun.elapsed());
}

/// At a full shard, a task waits for a permit to send the claim of its caller, and has the place of
/// the caller in the local queue. The runtime of the task stands still.
#[tokio::test(start_paused = true)]
async fn a_claim_that_waits_for_a_permit_in_a_stopped_runtime_blocks_no_other_caller() {
    const FULL: usize = 512;
    let faulty = Faulty::new(|op| (op == Op::Acquire).then_some(Fault::Late(900 * MS)));
    let locks = Locks::new(faulty, "bellwether");
    let lock = |name: String| locks.mutex(name).retry(Retry::on_demand().try_limit(SECOND));
    for name in 0..FULL {
        let mutex = lock(name.to_string());
        spawn(async move { mutex.lock().await });
    }
    sleep(MS).await;
    let mutex = lock("k".to_owned());
    let waits = std::thread::spawn(move || {
        let stopped = Builder::new_current_thread().enable_time().start_paused(true).build();
        let stopped = stopped.unwrap();
        let mut waiting = Box::pin(async move { mutex.lock().await });
        stopped.block_on(async {
            assert!(poll!(&mut waiting).is_pending());
            // The task begins to wait.
            yield_now().await;
        });
        (stopped, waiting)
    });
    let (stopped, never_polled) = waits.join().unwrap();
    let behind = lock("k".to_owned()).wait_limit(10 * SECOND).lock().await.unwrap();
    behind.unlock().await.unwrap();
    drop(never_polled);
    stopped.shutdown_background();
}

/// One task renewed all leases, in the runtime of the first lock. When that runtime was gone, the
/// other leases were not renewed until the next acquisition.
#[test]
fn leases_are_renewed_after_the_runtime_of_the_first_is_gone() {
    // A busy machine may stop a runtime for longer than a short lease.
    let lease = 3_000 * MS;
    let locks = Locks::new(MemoryBackend::new(), "bellwether");
    let [first, second, third] = [0, 1, 2].map(|_| Runtime::new().unwrap());
    let lock = |runtime: &Runtime, name: &str| {
        let mutex = locks.mutex(name).lease(lease);
        runtime.block_on(async move { mutex.lock().await.unwrap() })
    };
    let _gone = lock(&first, "a");
    let names = ["b", "c", "d"];
    let held = [lock(&second, names[0]), lock(&third, names[1]), lock(&third, names[2])];
    drop(first);
    drop(second);
    third.block_on(async {
        for name in names {
            let left =
                async || locks.mutex(name).holder().await.unwrap().map(|held| held.expires_in);
            let mut before = left().await;
            // The time left only grows by a renewal.
            let is_renewed = async || std::mem::replace(&mut before, left().await) < before;
            assert!(comes_true(LIMIT, is_renewed).await, "{name} is not renewed any more");
        }
        for guard in held {
            assert!(!guard.is_lost());
            guard.unlock().await.unwrap();
        }
    });
}

/// Waits until two more renewals are sent.
async fn renewals_go_on(faulty: &Faulty) {
    let before = faulty.count(Op::Renew);
    let are_sent = async || faulty.count(Op::Renew) >= before + 2;
    assert!(comes_true(LIMIT, are_sent).await, "the lease is not renewed any more");
}

/// The same happened to a lease that was passed on in the runtime that went away.
#[test]
fn a_lease_that_was_passed_on_is_renewed_in_the_runtime_of_its_owner() {
    // A busy machine may stop a runtime for longer than a short lease.
    let lease = 3_000 * MS;
    let faulty = Faulty::new(|_| None);
    let locks = Locks::new(faulty.clone(), "bellwether");
    let [first, second] = [0, 1].map(|_| Runtime::new().unwrap());
    let (held, next) = waits_behind(&locks, &first, &second, lease);
    first.block_on(held.unlock()).unwrap();
    let guard = second.block_on(next).unwrap();
    drop(first);
    second.block_on(async {
        renewals_go_on(&faulty).await;
        assert!(!guard.is_lost());
        guard.unlock().await.unwrap();
    });
}

/// A pass lost its answer. The new acquisition of the next caller then counted as an acquisition of
/// the runtime of the pass. When that runtime was gone, no task renewed the lease, and the release
/// of a dropped guard began in the dead runtime.
#[test]
fn a_lease_behind_a_pass_without_an_answer_belongs_to_the_runtime_of_its_owner() {
    let lease = 3_000 * MS;
    let faulty = once(Op::Pass, Fault::LoseReply);
    let locks = Locks::new(faulty.clone(), "bellwether");
    let [first, second] = [0, 1].map(|_| Runtime::new().unwrap());
    // The renewal task runs in the first runtime, and stays there.
    let mutex = locks.mutex("other").lease(lease);
    let _gone = first.block_on(async move { mutex.lock().await.unwrap() });
    let (held, next) = waits_behind(&locks, &first, &second, lease);
    assert_eq!(kind(first.block_on(held.unlock())), ErrorKind::Backend);
    let guard = second.block_on(next).unwrap();
    drop(first);
    second.block_on(async {
        renewals_go_on(&faulty).await;
        assert!(!guard.is_lost());
        let left = guard.remaining();
        drop(guard);
        let is_free = async || locks.mutex("k").holder().await.unwrap().is_none();
        assert!(comes_true(left / 2, is_free).await, "the dropped guard is not released");
    });
}

/// A fixed lease is renewed only to find out whether the backend has ended the lease. The task was
/// cut off in that renewal, and the next task did not repeat the renewal.
#[test]
fn a_doubt_about_a_fixed_lease_outlives_the_runtime_of_the_renewal() {
    let lease = 60_000 * MS;
    let faulty = once(Op::Renew, Fault::LoseReply);
    let here = Locks::new(faulty.clone(), "bellwether");
    let there = Locks::new(faulty.inner.clone(), "bellwether");
    let [first, second] = [0, 1].map(|_| Runtime::new().unwrap());
    let mutex = here.mutex("other").lease(lease);
    let _gone = first.block_on(async move { mutex.lock().await.unwrap() });
    second.block_on(async {
        let guard = here.mutex("k").lease(lease).fixed_lease().lock().await.unwrap();
        assert!(there.mutex("k").force_unlock().await.unwrap());
        assert!(comes_true(LIMIT, async || faulty.count(Op::Renew) == 1).await);
        first.shutdown_background();
        timeout(LIMIT, guard.lost()).await.expect("the loss is noticed at the deadline only");
    });
}

/// A lock was passed on, and the runtime of the pass went away before the answer. The next waiter
/// was told that its time was over, and the passed lease was never released.
#[test]
fn a_waiter_gets_a_lock_whose_pass_was_cut_off_by_a_dropped_runtime() {
    let faulty = once(Op::Pass, Fault::LoseReply);
    let locks = Locks::new(faulty.clone(), "bellwether");
    let [first, second] = [0, 1].map(|_| Runtime::new().unwrap());
    let (held, next) = waits_behind(&locks, &first, &second, 10_000 * MS);
    first.spawn(held.unlock());
    second.block_on(async {
        assert!(comes_true(LIMIT, async || faulty.count(Op::Pass) == 1).await);
        let begun = Instant::now();
        first.shutdown_background();
        let guard = timeout(LIMIT, next).await.expect("the waiter never gets the lock").unwrap();
        assert!(begun.elapsed() < 2000 * MS, "{:?}", begun.elapsed());
        guard.unlock().await.unwrap();
        assert!(locks.mutex("k").holder().await.unwrap().is_none());
    });
}

/// One task keeps the queue entries of all waiters, in the runtime of the first waiter. When that
/// runtime is gone, the others ask, and one of them starts another task.
#[test]
fn queue_entries_are_kept_after_the_runtime_of_the_first_waiter_is_gone() {
    let faulty = Faulty::new(|_| None);
    let locks = Locks::new(faulty.clone(), "bellwether");
    let [first, second] = [0, 1].map(|_| Runtime::new().unwrap());
    let held = second
        .block_on(async { Locks::new(faulty.inner.clone(), "bellwether").mutex("k").lock().await });
    let lock = || {
        let mutex = locks.mutex("k").fair().wait_limit(LIMIT);
        async move { mutex.lock().await.unwrap() }
    };
    let _gone = first.spawn(lock());
    second.block_on(async {
        assert!(comes_true(LIMIT, async || faulty.count(Op::Keep) > 0).await);
        let next = spawn(lock());
        assert!(comes_true(LIMIT, async || faulty.count(Op::Acquire) == 2).await);
        first.shutdown_background();
        let before = faulty.count(Op::Keep);
        let is_kept = async || faulty.count(Op::Keep) >= before + 2;
        assert!(comes_true(LIMIT, is_kept).await, "the entry is not kept any more");
        held.unwrap().unlock().await.unwrap();
        timeout(LIMIT, next).await.unwrap().unwrap().unlock().await.unwrap();
    });
}

/// Acquires a lock in one runtime, and lets another runtime wait for it in the local queue.
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
    // The first poll enters the local queue.
    assert!(second.block_on(async { poll!(waiting.as_mut()) }).is_pending());
    (held, second.spawn(waiting))
}
