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
    let (b, c) = (locked(&others, "b").await, locked(&others, "c").await);
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
        let (locks, busy) = (Locks::new(backend.clone(), "bellwether"), busy.clone());
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
