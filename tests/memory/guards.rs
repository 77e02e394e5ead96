//! Guards end the work of a lost lock, and `Locks` counts what becomes of leases.
//!
//! Time is paused, so every wait here is exact and takes no time.

use bellwether::Redlock;

use crate::prelude::*;

const LEASE: Duration = Duration::from_secs(10);

/// Asserts that work is ended by the loss of a guard, and not before; and that other work is done.
macro_rules! ends_with_the_lock {
    ($guard:expr, $limit:expr) => {{
        let guard = $guard;
        assert_eq!(guard.run(async { 7 }).await.unwrap(), 7);
        // Dropped before its end, it drops the work, and the lock stays held.
        let held = Arc::new(());
        let theirs = held.clone();
        let begun = Instant::now();
        let work = async move {
            pending::<()>().await;
            drop(theirs);
        };
        let mut running = Box::pin(guard.run(work));
        assert!(timeout($limit / 2, &mut running).await.is_err());
        assert_eq!(Arc::strong_count(&held), 2);
        assert_eq!(running.await.unwrap_err().kind(), ErrorKind::Lost);
        assert_eq!(Arc::strong_count(&held), 1, "the work was not dropped");
        assert!(begun.elapsed() <= $limit && begun.elapsed() > $limit * 9 / 10);
        // Nothing runs any more.
        let error = guard.run(async { panic!("this must not run") }).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Lost);
    }};
}

#[tokio::test(start_paused = true)]
async fn a_guard_runs_work_until_the_lock_is_lost() {
    let locks = Locks::new(MemoryBackend::new(), "bellwether");
    let limit = 3 * LEASE;
    let mutex = |name: &str| locks.mutex(name).lease(LEASE).max_hold(limit);
    ends_with_the_lock!(mutex("m").lock().await.unwrap(), limit);
    let rw_lock = locks.rw_lock("m").lease(LEASE).max_hold(limit);
    ends_with_the_lock!(rw_lock.read().await.unwrap(), limit);
    ends_with_the_lock!(rw_lock.write().await.unwrap(), limit);
    let reentrant = locks.reentrant_mutex("r").lease(LEASE).max_hold(limit);
    ends_with_the_lock!(reentrant.lock().await.unwrap(), limit);
    let semaphore = locks.semaphore("m", 1).lease(LEASE).max_hold(limit);
    ends_with_the_lock!(semaphore.acquire().await.unwrap(), limit);
    let several = locks.several(["a", "b"]).lease(LEASE).max_hold(limit);
    ends_with_the_lock!(several.lock().await.unwrap(), limit);
    let redlock = Redlock::over([MemoryBackend::new()], "bellwether").unwrap();
    let mutex = redlock.mutex("m").lease(LEASE).max_hold(limit);
    ends_with_the_lock!(mutex.lock().await.unwrap(), limit);
}

#[tokio::test(start_paused = true)]
async fn locks_count_what_becomes_of_their_leases() {
    let faulty = first(3, Op::Renew, Fault::Refuse);
    let locks = Locks::new(faulty.clone(), "bellwether");
    let mutex = locks.mutex("m").lease(LEASE);
    let guard = mutex.lock().await.unwrap();
    assert!(mutex.try_lock().await.unwrap().is_none());
    let late = mutex.clone().wait_limit(MS).lock().await.unwrap_err();
    assert_eq!(late.kind(), ErrorKind::NotAcquired);
    // A failed renewal is no loss, and is repeated while the lease lasts.
    sleep(5 * LEASE).await;
    let stats = locks.stats();
    assert_eq!((stats.acquired, stats.not_acquired, stats.failed), (1, 1, 0), "{stats:?}");
    // A try that finds the lock taken is no trouble.
    assert_eq!(stats.taken, 1, "{stats:?}");
    assert_eq!((stats.held, stats.lost, stats.unrenewed), (1, 0, 3), "{stats:?}");
    assert!((14..=16).contains(&stats.renewed), "{stats:?}");
    assert!(!guard.is_lost());
    guard.unlock().await.unwrap();
    let renewals = faulty.count(Op::Renew);
    sleep(5 * LEASE).await;
    assert_eq!(faulty.count(Op::Renew), renewals, "the renewals outlive the unlock");

    // A stranger ends the lock, which the next renewal finds out.
    let guard = mutex.lock().await.unwrap();
    let waiting = mutex.clone();
    let passed = spawn(async move { waiting.lock().await.unwrap() });
    sleep(MS).await;
    guard.unlock().await.unwrap();
    let guard = passed.await.unwrap();
    let stranger = Locks::new(faulty.inner.clone(), "bellwether");
    assert!(stranger.mutex("m").force_unlock().await.unwrap());
    timeout(LEASE / 2, guard.lost()).await.unwrap();
    let other = stranger.mutex("m").lock().await.unwrap();
    assert!(other.fence() > guard.fence());
    assert_eq!(guard.unlock().await.unwrap_err().kind(), ErrorKind::Lost);
    assert!(!other.is_lost());
    other.unlock().await.unwrap();
    let stats = locks.stats();
    assert_eq!((stats.acquired, stats.held, stats.lost), (3, 0, 1), "{stats:?}");

    locks.shutdown(MS).await;
    assert_eq!(mutex.lock().await.unwrap_err().kind(), ErrorKind::ShutDown);
    assert_eq!(locks.stats().failed, 1);
}

/// A label costs no request of an acquisition: it stands in the lease.
#[tokio::test(start_paused = true)]
async fn a_label_tells_which_process_holds_a_lock() {
    let backend = MemoryBackend::new();
    let plain = Locks::new(backend.clone(), "bellwether");
    let guard = plain.mutex("m").lease(LEASE).lock().await.unwrap();
    let holder = plain.mutex("m").holder().await.unwrap().unwrap();
    assert_eq!((holder.owner, holder.fence), (None, guard.fence()));
    assert_eq!(holder.expires_in, LEASE);
    guard.unlock().await.unwrap();
    assert_eq!(plain.mutex("m").holder().await.unwrap(), None);

    let locks = plain.clone().owner("pod-7");
    let guard = locks.mutex("m").fair().lock().await.unwrap();
    sleep(MS).await;
    let holder = plain.mutex("m").holder().await.unwrap().unwrap();
    assert_eq!(holder.owner.as_deref(), Some("pod-7"));
    let late = locks.mutex("m").wait_limit(MS).lock().await.unwrap_err();
    assert_eq!(late.kind(), ErrorKind::NotAcquired);
    assert!(late.to_string().ends_with("; \"pod-7\" holds it"), "{late}");
    guard.unlock().await.unwrap();

    // Another namespace is told of its own.
    let elsewhere = Locks::new(backend, "elsewhere").owner("pod-7");
    let guard = elsewhere.mutex("m").lock().await.unwrap();
    sleep(MS).await;
    let holder = elsewhere.mutex("m").holder().await.unwrap().unwrap();
    assert_eq!(holder.owner.as_deref(), Some("pod-7"));
    drop(guard);
}
