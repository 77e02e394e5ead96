//! The promises of a reentrant mutex. Time is paused, and `Locks` over one memory backend stand for
//! processes.

use std::iter;

use bellwether::lock::{MutexGuard, ReentrantMutex};
use tokio::task::yield_now;

use crate::prelude::*;

const LEASE: Duration = Duration::from_secs(10);

fn locking(holder: &ReentrantMutex) -> JoinHandle<Result<MutexGuard, Error>> {
    let holder = holder.clone();
    spawn(async move { holder.lock().await })
}

#[tokio::test(start_paused = true)]
async fn the_last_guard_releases_the_lease() {
    let faulty = Faulty::new(|_| None);
    let locks = Locks::new(faulty.clone(), "bellwether");
    let holder = locks.reentrant_mutex("m").lease(LEASE);
    let first = holder.lock().await.unwrap();
    let again = holder.clone().lock().await.unwrap();
    let tried = holder.try_lock().await.unwrap().unwrap();
    let last = holder.lock().await.unwrap();
    assert!([&again, &tried, &last].iter().all(|guard| guard.fence() == first.fence()));
    // The lease is renewed for all guards.
    sleep(5 * LEASE).await;
    assert_eq!(faulty.count(Op::Acquire), 1);
    let renewals = faulty.count(Op::Renew);
    assert!((14..=16).contains(&renewals), "{renewals} renewals of one lease");
    first.unlock().await.unwrap();
    drop(again);
    tried.unlock().await.unwrap();
    assert!(locks.mutex("m").holder().await.unwrap().is_some() && !last.is_lost());
    assert_eq!(faulty.count(Op::Release), 0);
    last.unlock().await.unwrap();
    assert!(locks.mutex("m").holder().await.unwrap().is_none());
    assert_eq!(faulty.count(Op::Release), 1);
    // The holder can also begin anew.
    let fence = faulty.count(Op::Acquire);
    drop(holder.lock().await.unwrap());
    assert_eq!(faulty.count(Op::Acquire), fence + 1);
    let begun = Instant::now();
    drop(locks.mutex("m").lock().await.unwrap());
    assert!(begun.elapsed() < 10 * MS, "a dropped guard did not release at once");
}

/// Two tasks of a holder wait behind a stranger, and one more caller behind them. The first of the
/// two goes away. The second one keeps the slot in the local queue, and the server is not asked
/// again.
#[tokio::test(start_paused = true)]
async fn tasks_of_a_holder_share_an_acquisition_that_survives_a_leaver() {
    let faulty = Faulty::new(|_| None);
    let locks = Locks::new(faulty.clone(), "bellwether");
    for leaver in [0, 1] {
        let holder = locks.reentrant_mutex("m");
        let stranger = locks.mutex("m").lock().await.unwrap();
        let asked = faulty.count(Op::Acquire);
        let mut two = Vec::new();
        for _ in 0..2 {
            two.push(locking(&holder));
            yield_now().await;
        }
        let mutex = locks.mutex("m");
        let behind = spawn(async move { mutex.lock().await.unwrap().fence() });
        sleep(MS).await;
        // While other tasks of the holder wait, a task that does not wait is refused.
        assert!(holder.try_lock().await.unwrap().is_none());
        two.remove(leaver).abort();
        sleep(MS).await;
        let fence = stranger.fence();
        stranger.unlock().await.unwrap();
        let guard = two.remove(0).await.unwrap().unwrap();
        assert!(guard.fence() > fence);
        let fence = guard.fence();
        guard.unlock().await.unwrap();
        assert!(behind.await.unwrap() > fence, "the caller behind was served first");
        assert_eq!(faulty.count(Op::Acquire), asked, "the lease was not passed on");
        sleep(MS).await;
    }
}

#[tokio::test(start_paused = true)]
async fn tasks_of_a_holder_are_served_together() {
    let faulty = Faulty::new(|op| (op == Op::Acquire).then_some(Fault::Late(20 * MS)));
    let locks = Locks::new(faulty.clone(), "bellwether");
    let holder = locks.reentrant_mutex("m");
    let tasks: Vec<_> = (0..50).map(|_| locking(&holder)).collect();
    let tried = holder.try_lock().await;
    let guards: Vec<_> = all(tasks).await.into_iter().map(Result::unwrap).collect();
    assert!(guards.iter().all(|guard| guard.fence() == guards[0].fence()));
    assert_eq!(faulty.count(Op::Acquire), 1);
    // The try came first, and the others joined it.
    assert_eq!(tried.unwrap().unwrap().fence(), guards[0].fence());
    drop(guards);
    // All of them leave while the acquisition is on its way, and it is undone.
    let tasks: Vec<_> = (0..5).map(|_| locking(&holder)).collect();
    sleep(5 * MS).await;
    tasks.iter().for_each(JoinHandle::abort);
    let begun = Instant::now();
    drop(Locks::new(faulty.inner, "bellwether").mutex("m").lock().await.unwrap());
    assert!(begun.elapsed() < LEASE + 100 * MS);
}

/// A task joins an acquisition that ends before the wait limit of the task. It then goes on by
/// itself.
#[tokio::test(start_paused = true)]
async fn each_task_of_a_holder_keeps_its_own_wait_limit() {
    let locks = Locks::new(MemoryBackend::new(), "bellwether");
    let _other = locks.mutex("m").lock().await.unwrap();
    let holder = locks.reentrant_mutex("m").wait_limit(700 * MS);
    let begun = Instant::now();
    let first = locking(&holder);
    sleep(500 * MS).await;
    let second = locking(&holder);
    assert_eq!(kind(first.await.unwrap()), ErrorKind::NotAcquired);
    let elapsed = begun.elapsed();
    assert!(elapsed >= 700 * MS && elapsed < 710 * MS, "{elapsed:?}");
    assert_eq!(kind(second.await.unwrap()), ErrorKind::NotAcquired);
    let elapsed = begun.elapsed();
    assert!(elapsed >= 1200 * MS && elapsed < 1210 * MS, "{elapsed:?}");
    // A task that joins a try without waiting still waits.
    let faulty = Faulty::new(|op| (op == Op::Acquire).then_some(Fault::Late(20 * MS)));
    let held = Locks::new(faulty.inner.clone(), "bellwether").mutex("m").lock().await.unwrap();
    let holder = Locks::new(faulty, "bellwether").reentrant_mutex("m");
    let (tried, waited) = tokio::join!(holder.try_lock(), async {
        let waiting = locking(&holder);
        sleep(100 * MS).await;
        held.unlock().await.unwrap();
        waiting.await.unwrap()
    });
    assert!(tried.unwrap().is_none());
    assert!(waited.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_loss_is_reported_by_every_guard_and_not_joined() {
    let faulty = Faulty::new(|op| (op == Op::Renew).then_some(Fault::Refuse));
    let holder = Locks::new(faulty.clone(), "bellwether").reentrant_mutex("m").lease(LEASE);
    let old: Vec<_> = [holder.lock().await.unwrap(), holder.lock().await.unwrap()].into();
    let last = holder.lock().await.unwrap();
    for guard in old.iter().chain([&last]) {
        timeout(LEASE, guard.lost()).await.unwrap();
        assert!(guard.is_lost() && guard.remaining().is_zero());
    }
    faulty.plan(|_| None);
    let anew = holder.lock().await.unwrap();
    assert!(anew.fence() > last.fence() && !anew.is_lost());
    assert_eq!(holder.lock().await.unwrap().fence(), anew.fence());
    assert_eq!(kind(last.renew().await), ErrorKind::Lost);
    for guard in old.into_iter().chain([last]) {
        assert_eq!(kind(guard.unlock().await), ErrorKind::Lost);
    }
    sleep(3 * LEASE).await;
    assert!(!anew.is_lost(), "an old guard ended the new lease");
    anew.unlock().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_lease_ended_from_outside_is_acquired_anew() {
    let locks = Locks::new(MemoryBackend::new(), "bellwether");
    let holder = locks.reentrant_mutex("m").lease(LEASE);
    let guard = holder.lock().await.unwrap();
    assert!(locks.mutex("m").force_unlock().await.unwrap());
    assert_eq!(kind(guard.renew().await), ErrorKind::Lost);
    let anew = holder.lock().await.unwrap();
    assert!(anew.fence() > guard.fence());
    assert_eq!(kind(guard.unlock().await), ErrorKind::Lost);
    anew.unlock().await.unwrap();
}

/// A strategy is foreign code.
#[tokio::test(start_paused = true)]
async fn a_strategy_that_panics_is_an_error_for_each_caller() {
    let locks = Locks::new(MemoryBackend::new(), "bellwether");
    let other = locks.mutex("m").lock().await.unwrap();
    let broken = || iter::from_fn(|| -> Option<Duration> { panic!("the strategy panicked") });
    assert_eq!(kind(locks.mutex("m").retry(broken).lock().await), ErrorKind::Panicked);
    let holder = locks.reentrant_mutex("m").retry(broken);
    for locked in all((0..3).map(|_| locking(&holder))).await {
        assert_eq!(kind(locked), ErrorKind::Panicked);
    }
    other.unlock().await.unwrap();
    assert!(holder.try_lock().await.unwrap().is_some());
}

#[tokio::test(start_paused = true)]
async fn each_task_of_a_holder_is_told_of_a_shutdown() {
    let locks = Locks::new(MemoryBackend::new(), "bellwether");
    let _other = locks.mutex("m").lock().await.unwrap();
    let holder = locks.reentrant_mutex("m");
    let waiting: Vec<_> = (0..3).map(|_| locking(&holder)).collect();
    sleep(MS).await;
    locks.shutdown(SECOND).await;
    for waited in all(waiting).await {
        assert_eq!(kind(waited), ErrorKind::ShutDown);
    }
}

/// Tasks of one holder come and go on several threads, beside another holder. The two holders never
/// hold the mutex together.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn holders_exclude_each_other_on_many_threads() {
    let locks = Locks::new(MemoryBackend::new(), "bellwether");
    let inside = Arc::new([const { AtomicUsize::new(0) }; 2]);
    let mut tasks = Vec::new();
    for one in 0..2 {
        let holder = locks.reentrant_mutex("m");
        for _ in 0..8 {
            let holder = holder.clone();
            let inside = inside.clone();
            tasks.push(spawn(async move {
                use Ordering::SeqCst;
                for round in 0..100 {
                    if round % 7 == 3 {
                        let _ = timeout(MS / 20, holder.lock()).await;
                        continue;
                    }
                    let guard = holder.lock().await.unwrap();
                    inside[one].fetch_add(1, SeqCst);
                    assert_eq!(inside[1 - one].load(SeqCst), 0);
                    yield_now().await;
                    assert_eq!(inside[1 - one].load(SeqCst), 0);
                    inside[one].fetch_sub(1, SeqCst);
                    match round % 2 {
                        0 => guard.unlock().await.unwrap(),
                        _ => drop(guard),
                    }
                    // The other holder gets its turn.
                    sleep(MS).await;
                }
            }));
        }
    }
    for task in tasks {
        timeout(testkit::LIMIT, task).await.unwrap().unwrap();
    }
}
