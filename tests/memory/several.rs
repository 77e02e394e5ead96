//! The promises of several locks at once. `Locks` over one memory backend stand for processes.
//!
//! Time is paused, so every wait here is exact and takes no time.

use bellwether::lock::MutexGuard;
use tokio::task::JoinSet;

use crate::prelude::*;

const LEASE: Duration = Duration::from_secs(10);
const NAMES: [&str; 3] = ["a", "b", "c"];

async fn locked(locks: &Locks, name: &str) -> MutexGuard {
    locks.mutex(name).lease(LEASE).lock().await.unwrap()
}

async fn are_free(locks: &Locks, names: &[&str]) -> bool {
    for name in names {
        if locks.mutex(*name).holder().await.unwrap().is_some() {
            return false;
        }
    }
    true
}

#[tokio::test(start_paused = true)]
async fn several_locks_are_acquired_all_or_none_each_with_its_fence() {
    let backend = MemoryBackend::new();
    let [locks, others] = [(); 2].map(|()| Locks::new(backend.clone(), "bellwether"));
    let before = locked(&others, "b").await;
    let begun = Instant::now();
    assert!(locks.several(NAMES).try_lock().await.unwrap().is_none());
    assert!(are_free(&others, &["a", "c"]).await);
    let last = before.fence();
    before.unlock().await.unwrap();

    let guard = locks.several(["c", "a", "b"]).lease(LEASE).try_lock().await.unwrap().unwrap();
    assert_eq!(begun.elapsed(), Duration::ZERO);
    for name in NAMES {
        assert!(others.mutex(name).try_lock().await.unwrap().is_none());
    }
    assert_eq!(guard.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), NAMES);
    assert!(guard[1].1.fence() > last);
    guard.unlock().await.unwrap();
    assert!(are_free(&others, &NAMES).await);
    // A dropped guard releases them as well.
    drop(locks.several(NAMES).lock().await.unwrap());
    drop(others.several(NAMES).lock().await.unwrap());
    assert!(begun.elapsed() < MS);
}

/// The caller holds the names before the one that it waits for, and none behind it.
#[tokio::test(start_paused = true)]
async fn a_waiter_for_several_holds_the_names_before_and_is_woken_by_pushes() {
    let backend = MemoryBackend::new();
    let [locks, others] = [(); 2].map(|()| Locks::new(backend.clone(), "bellwether"));
    let b = locked(&others, "b").await;
    let c = locked(&others, "c").await;
    let several = locks.several(["c", "b", "a"]).lease(LEASE).wait_limit(Duration::MAX);
    let waiting = spawn(async move { (several.lock().await, Instant::now()) });
    sleep(30 * LEASE).await;
    assert!(others.mutex("a").holder().await.unwrap().is_some());
    b.unlock().await.unwrap();
    sleep(30 * LEASE).await;
    assert!(!waiting.is_finished() && others.mutex("b").holder().await.unwrap().is_some());
    let freed = Instant::now();
    c.unlock().await.unwrap();
    let (guard, at) = waiting.await.unwrap();
    assert!(at - freed <= MS, "{:?}", at - freed);
    guard.unwrap().unlock().await.unwrap();
}

/// The sets are named in any order. No waiter needs a timer, so no two contenders wait for each
/// other.
#[tokio::test(start_paused = true)]
async fn claims_of_overlapping_sets_never_block_each_other() {
    let backend = MemoryBackend::new();
    let sets: [&[&str]; 6] =
        [&["a", "b"], &["b", "a"], &["b", "c"], &["c", "a"], &["c", "b", "a"], &["b"]];
    let busy: Arc<[AtomicBool; 3]> = Arc::default();
    let mut tasks = JoinSet::new();
    for (at, set) in sets.into_iter().cycle().take(24).enumerate() {
        let locks = Locks::new(backend.clone(), "bellwether");
        let busy = busy.clone();
        tasks.spawn(async move {
            for _ in 0..10 {
                let several = locks.several(set.iter().copied()).lease(LEASE);
                let guard = several.lock().await.unwrap();
                let mine = || set.iter().map(|name| &busy[usize::from(name.as_bytes()[0] - b'a')]);
                let is_alone = mine().all(|name| !name.swap(true, Ordering::SeqCst));
                assert!(is_alone, "two contenders hold a lock at once");
                sleep(MS).await;
                mine().for_each(|name| name.store(false, Ordering::SeqCst));
                match at % 2 {
                    0 => guard.unlock().await.unwrap(),
                    _ => drop(guard),
                }
            }
        });
    }
    let begun = Instant::now();
    tasks.join_all().await;
    // 240 holds of one to two milliseconds each, by pushes alone.
    assert!(begun.elapsed() < 600 * MS, "{:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn the_loss_of_one_lock_is_reported_and_the_others_are_released() {
    let backend = MemoryBackend::new();
    let others = Locks::new(backend.clone(), "bellwether");
    let guard = Locks::new(backend, "bellwether").several(NAMES).lease(LEASE).lock().await.unwrap();
    assert!(others.mutex("b").force_unlock().await.unwrap());
    let next = locked(&others, "b").await;
    timeout(LEASE / 2, guard.lost()).await.unwrap();
    assert!(guard[1].1.is_lost() && !guard[0].1.is_lost());
    assert!(next.fence() > guard[1].1.fence());
    // The other leases are held until the guard is released.
    assert!(others.mutex("a").try_lock().await.unwrap().is_none());
    assert_eq!(guard.run(pending::<()>()).await.unwrap_err().kind(), ErrorKind::Lost);
    assert_eq!(guard.unlock().await.unwrap_err().kind(), ErrorKind::Lost);
    assert!(are_free(&others, &["a", "c"]).await && !next.is_lost());
}

#[tokio::test(start_paused = true)]
async fn names_and_settings_are_checked() {
    let locks = Locks::new(MemoryBackend::new(), "bellwether");
    let many: Vec<_> = (0..65).map(Key::from).collect();
    for names in [Vec::new(), ["a", "b", "a"].map(Key::from).to_vec(), many] {
        let error = locks.several(names).lock().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidConfig);
    }
    // None of the refused calls acquired anything.
    assert!(are_free(&locks, &["a", "b", "0"]).await);
    locks.several(0..64).lock().await.unwrap().unlock().await.unwrap();
    // A raw name and the escaped text of another are two names.
    locks.several(["{a}", "%7Ba%7D"]).lock().await.unwrap().unlock().await.unwrap();
}

/// A lease that is handed over is short. Its caller waits for the next name for longer than that.
#[tokio::test(start_paused = true)]
async fn a_name_that_was_handed_over_is_held_while_another_is_waited_for() {
    let backend = MemoryBackend::new();
    let [locks, others] = [(); 2].map(|()| Locks::new(backend.clone(), "bellwether"));
    let a = locked(&others, "a").await;
    let b = locked(&others, "b").await;
    let several = locks.several(["a", "b"]).lease(3 * LEASE);
    let waiting = spawn(async move { several.lock().await });
    sleep(MS).await;
    a.unlock().await.unwrap();
    sleep(MS).await;
    let handed_over = others.mutex("a").holder().await.unwrap().unwrap().fence;
    sleep(LEASE).await;
    b.unlock().await.unwrap();
    let guard = waiting.await.unwrap().unwrap();
    assert_eq!(guard[0].1.fence(), handed_over, "it was lost meanwhile");
}

/// Each name comes before the renewals of the first one are due, counted from the name before.
#[tokio::test(start_paused = true)]
async fn the_first_of_many_names_is_held_until_the_last_is_acquired() {
    let backend = MemoryBackend::new();
    let [locks, others] = [(); 2].map(|()| Locks::new(backend.clone(), "bellwether"));
    let names = (10..40).map(|name| name.to_string());
    let mut held = Vec::new();
    for name in names.clone().skip(1) {
        held.push(locked(&others, &name).await);
    }
    let several = locks.several(names).lease(LEASE).wait_limit(10 * LEASE);
    let waiting = spawn(async move { several.lock().await });
    sleep(MS).await;
    let first = others.mutex("10").holder().await.unwrap().unwrap().fence;
    for guard in held {
        sleep(LEASE / 10).await;
        guard.unlock().await.unwrap();
    }
    let guard = waiting.await.unwrap().unwrap();
    assert_eq!(guard[0].1.fence(), first, "it was lost meanwhile");
}

/// The leases are shorter than it takes to acquire all of them, so that no round can succeed.
#[tokio::test(start_paused = true)]
async fn leases_that_are_too_short_for_all_names_end_with_the_wait_limit() {
    let faulty = Faulty::new(|op| (op == Op::Acquire).then_some(Fault::Late(20 * MS)));
    let locks = Locks::new(faulty, "bellwether");
    let several = locks.several(0..10).lease(100 * MS).fixed_lease().wait_limit(LEASE);
    let ended = timeout(2 * LEASE, several.lock()).await.expect("it tries for ever");
    assert_eq!(ended.unwrap_err().kind(), ErrorKind::NotAcquired);
}

/// The caller learns of the loss from a renewal, and not at the end of its wait for the next name.
/// Otherwise the other callers of its process would wait for a name that is free.
#[tokio::test(start_paused = true)]
async fn a_name_that_is_lost_while_another_is_waited_for_is_acquired_anew() {
    let backend = MemoryBackend::new();
    let [locks, others] = [(); 2].map(|()| Locks::new(backend.clone(), "bellwether"));
    let b = locked(&others, "b").await;
    let several = locks.several(["a", "b"]).lease(LEASE).wait_limit(Duration::MAX);
    let waiting = spawn(async move { several.lock().await });
    sleep(MS).await;
    let first = others.mutex("a").holder().await.unwrap().unwrap().fence;
    assert!(others.mutex("a").force_unlock().await.unwrap());
    sleep(LEASE).await;
    let holder = others.mutex("a").holder().await.unwrap();
    let again = holder.expect("the name is free, and its slot is not").fence;
    assert!(again > first);
    b.unlock().await.unwrap();
    let guard = waiting.await.unwrap().unwrap();
    assert_eq!(guard[0].1.fence(), again);
}

/// The caller that waits for several names polls, so the next caller of its process waits for it.
#[tokio::test(start_paused = true)]
async fn callers_behind_one_that_waits_for_several_do_not_contend() {
    let faulty = Faulty::new(|_| None);
    let locks = Locks::new(faulty.clone(), "bellwether");
    let others = Locks::new(faulty.inner.clone(), "bellwether");
    let b = locked(&others, "b").await;
    let several = locks.several(["a", "b"]).lease(LEASE);
    let waiting = spawn(async move { several.lock().await });
    sleep(MS).await;
    let next = spawn({
        let locks = locks.clone();
        async move { locked(&locks, "a").await }
    });
    sleep(2 * LEASE).await;
    assert_eq!(faulty.count(Op::Acquire), 2);
    b.unlock().await.unwrap();
    let guard = waiting.await.unwrap().unwrap();
    guard.unlock().await.unwrap();
    next.await.unwrap().unlock().await.unwrap();
}

/// After some failed renewals, the pause before the next renewal was longer than the rest of the
/// lease. The caller then lost the first name, although the backend answered in time.
#[tokio::test(start_paused = true)]
async fn a_pause_after_failed_renewals_leaves_time_for_another() {
    const SHORT: Duration = Duration::from_secs(1);
    for round in 0..20 {
        let faulty = Faulty::new(|op| (op == Op::Renew).then_some(Fault::Refuse));
        let locks = Locks::new(faulty.clone(), "bellwether");
        let others = Locks::new(faulty.inner.clone(), "bellwether");
        let b = locked(&others, "b").await;
        let several = locks.several(["a", "b"]).lease(SHORT);
        let waiting = spawn(async move { several.lock().await });
        sleep(SHORT - 150 * MS).await;
        faulty.plan(|_| None);
        let first = others.mutex("a").holder().await.unwrap().unwrap().fence;
        sleep(2 * SHORT).await;
        b.unlock().await.unwrap();
        let guard = waiting.await.unwrap().unwrap();
        assert_eq!(guard[0].1.fence(), first, "it was lost in round {round}");
    }
}
