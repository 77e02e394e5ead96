//! What several locks at once promise, in one process: `Locks` over one memory backend stand for the processes.
//!
//! Time is paused, so every wait here is exact and takes no time.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use bellwether::{
    Error, ErrorKind, Key, Locks, MemoryBackend,
    lock::{MutexGuard, SeveralGuard},
};
use testkit::faulty::{Fault, Faulty, Op};
use tokio::{
    task::{JoinHandle, JoinSet},
    time::{Instant, sleep, timeout},
};

const MS: Duration = Duration::from_millis(1);
const LEASE: Duration = Duration::from_secs(10);
const NAMES: [&str; 3] = ["a", "b", "c"];

/// Backends that take several at once, and one after another, both over the same data.
fn ways(backend: &MemoryBackend) -> [Faulty; 2] {
    [false, true].map(|in_order| {
        let mut faulty = Faulty::over(backend.clone(), |_| None);
        faulty.hook.in_order = in_order;
        faulty
    })
}

fn taking<const N: usize>(
    locks: &Locks,
    names: [&str; N],
) -> JoinHandle<(Result<SeveralGuard, Error>, Instant)> {
    let several = locks.several(names).lease(LEASE).wait_limit(Duration::MAX);
    tokio::spawn(async move { (several.lock().await, Instant::now()) })
}

async fn locked(locks: &Locks, name: &str) -> MutexGuard {
    locks.mutex(name).lease(LEASE).lock().await.unwrap()
}

async fn are_free(locks: &Locks, names: &[&str]) -> bool {
    for name in names {
        if locks.mutex(*name).is_locked().await.unwrap() {
            return false;
        }
    }
    true
}

#[tokio::test(start_paused = true)]
async fn all_or_none_and_each_with_its_fence() {
    let backend = MemoryBackend::new();
    let others = Locks::new(backend.clone());
    for way in ways(&backend) {
        let locks = Locks::new(way);
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
        let fences: Vec<_> = guard.fences().collect();
        assert_eq!(fences.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), NAMES);
        assert_eq!(guard.fence("b"), Some(fences[1].1));
        assert!(guard.fence("b").unwrap() > last && guard.fence(Key::from("d")).is_none());
        assert!(guard.remaining() > LEASE * 9 / 10 && !guard.is_lost());
        guard.unlock().await.unwrap();
        assert!(are_free(&others, &NAMES).await);
        // Dropped, they are given back, too.
        drop(locks.several(NAMES).lock().await.unwrap());
        drop(others.several(NAMES).lock().await.unwrap());
        assert!(begun.elapsed() < MS);
    }
}

/// First one stands in the way, then another one. Meanwhile the rest is free for all.
#[tokio::test(start_paused = true)]
async fn nothing_is_held_while_waiting_and_pushes_wake() {
    let backend = MemoryBackend::new();
    let others = Locks::new(backend.clone());
    for way in ways(&backend) {
        let locks = Locks::new(way);
        let (a, c) = (locked(&others, "a").await, locked(&others, "c").await);
        let waiting = taking(&locks, NAMES);
        sleep(30 * LEASE).await;
        locked(&others, "b").await.unlock().await.unwrap();
        a.unlock().await.unwrap();
        sleep(30 * LEASE).await;
        assert!(!waiting.is_finished() && are_free(&others, &["a", "b"]).await);
        locked(&others, "a").await.unlock().await.unwrap();
        let freed = Instant::now();
        c.unlock().await.unwrap();
        let (guard, at) = waiting.await.unwrap();
        assert!(at - freed <= MS, "{:?}", at - freed);
        guard.unwrap().unlock().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_wait_ends_at_its_limit_and_says_what_stood_in_the_way() {
    let backend = MemoryBackend::new();
    let others = Locks::new(backend.clone());
    let _held = locked(&others, "b").await;
    for way in ways(&backend) {
        let several = Locks::new(way).several(NAMES).wait_limit(700 * MS);
        let begun = Instant::now();
        let error = several.lock().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotAcquired);
        assert!(error.to_string().contains("{b}"), "{error}");
        assert!(begun.elapsed() >= 700 * MS && begun.elapsed() <= 705 * MS);
        assert!(are_free(&others, &["a", "c"]).await);
    }
}

#[tokio::test(start_paused = true)]
async fn a_dead_holders_lease_is_waited_out() {
    let backend = MemoryBackend::new();
    for way in ways(&backend) {
        let dead = Locks::new(backend.clone()).mutex("b").lease(LEASE).fixed_lease();
        let dead = dead.lock().await.unwrap();
        let begun = Instant::now();
        let (guard, at) = taking(&Locks::new(way), NAMES).await.unwrap();
        assert!(dead.is_lost() && at - begun <= LEASE + 100 * MS, "{:?}", at - begun);
        guard.unwrap().unlock().await.unwrap();
    }
}

/// In whatever order they name them: nobody waits for a timer, so nobody waited for who waited for him.
#[tokio::test(start_paused = true)]
async fn claims_of_overlapping_sets_never_block_each_other() {
    let backend = MemoryBackend::new();
    let sets: [&[&str]; 6] =
        [&["a", "b"], &["b", "a"], &["b", "c"], &["c", "a"], &["c", "b", "a"], &["b"]];
    for way in ways(&backend) {
        let busy: Arc<[AtomicBool; 3]> = Arc::default();
        let mut tasks = JoinSet::new();
        for (at, set) in sets.into_iter().cycle().take(24).enumerate() {
            // Some in one process, some in others.
            let locks = Locks::new(way.clone());
            let busy = busy.clone();
            tasks.spawn(async move {
                for _ in 0..10 {
                    let guard =
                        locks.several(set.iter().copied()).lease(LEASE).lock().await.unwrap();
                    let mine =
                        || set.iter().map(|name| &busy[usize::from(name.as_bytes()[0] - b'a')]);
                    assert!(mine().all(|name| !name.swap(true, Ordering::SeqCst)), "two hold");
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
}

/// Now one is held, now the other, and never both free. Who waits tries when a push says so, and not at each
/// turn of theirs that it learns of late.
#[tokio::test(start_paused = true)]
async fn it_tries_no_more_often_than_it_is_pushed() {
    let backend = MemoryBackend::new();
    let others = Locks::new(backend.clone());
    let [way, _] = ways(&backend);
    let mut held = locked(&others, "a").await;
    let waiting = taking(&Locks::new(way.clone()), ["a", "b"]);
    sleep(MS).await;
    let turns = 200;
    for turn in 0..turns {
        let next = locked(&others, ["b", "a"][turn % 2]).await;
        held.unlock().await.unwrap();
        held = next;
        sleep(MS).await;
    }
    assert!(!waiting.is_finished());
    held.unlock().await.unwrap();
    let (guard, _) = waiting.await.unwrap();
    guard.unwrap().unlock().await.unwrap();
    let tries = way.count(Op::AcquireAll);
    assert!(tries <= turns + 5, "{tries}");
    assert_eq!(way.count(Op::Changes), 2, "each name is subscribed to once");
}

#[tokio::test(start_paused = true)]
async fn while_nothing_changes_it_looks_every_five_seconds() {
    let backend = MemoryBackend::new();
    let _held = locked(&Locks::new(backend.clone()), "a").await;
    for way in ways(&backend) {
        let several = Locks::new(way.clone()).several(NAMES).wait_limit(Duration::from_secs(60));
        assert_eq!(several.lock().await.unwrap_err().kind(), ErrorKind::NotAcquired);
        let tries = way.count(Op::AcquireAll) + way.count(Op::Acquire);
        assert!(tries <= 15, "{tries}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_loss_of_one_is_told_and_the_others_are_given_back() {
    let backend = MemoryBackend::new();
    let others = Locks::new(backend.clone());
    let guard = Locks::new(backend).several(NAMES).lease(LEASE).lock().await.unwrap();
    assert!(others.mutex("b").force_unlock().await.unwrap());
    let next = locked(&others, "b").await;
    timeout(LEASE / 2, guard.lost()).await.unwrap();
    assert!(guard.is_lost() && guard.remaining().is_zero());
    assert!(next.fence() > guard.fence("b").unwrap());
    // The others are still held until it lets go.
    assert!(others.mutex("a").try_lock().await.unwrap().is_none());
    assert_eq!(guard.renew().await.unwrap_err().kind(), ErrorKind::Lost);
    assert_eq!(guard.unlock().await.unwrap_err().kind(), ErrorKind::Lost);
    assert!(are_free(&others, &["a", "c"]).await && !next.is_lost());
}

#[tokio::test(start_paused = true)]
async fn a_loss_is_told_before_anyone_else_gets_in() {
    for fault in [Fault::Refuse, Fault::Hang] {
        let backend = MemoryBackend::new();
        let cut_off = Faulty::over(backend.clone(), move |op| (op == Op::Renew).then_some(fault));
        let guard = Locks::new(cut_off).several(NAMES).lease(LEASE).lock().await.unwrap();
        let next = taking(&Locks::new(backend), ["c", "b"]);
        timeout(LEASE, guard.lost()).await.unwrap();
        let lost = Instant::now();
        let (other, at) = next.await.unwrap();
        assert!(lost < at, "{fault:?}");
        assert_eq!(guard.unlock().await.unwrap_err().kind(), ErrorKind::Lost);
        assert!(!other.unwrap().is_lost());
    }
}

#[tokio::test(start_paused = true)]
async fn they_are_renewed_together() {
    let faulty = Faulty::new(|_| None);
    let guard = Locks::new(faulty.clone()).several(0..50).lease(LEASE).lock().await.unwrap();
    sleep(3 * LEASE + LEASE / 6).await;
    assert!(!guard.is_lost());
    assert!((8..=10).contains(&faulty.count(Op::Renew)), "{}", faulty.count(Op::Renew));
    assert_eq!(faulty.count(Op::AcquireAll), 1);
    guard.unlock().await.unwrap();
    let renewals = faulty.count(Op::Renew);
    sleep(3 * LEASE).await;
    assert_eq!(faulty.count(Op::Renew), renewals, "the watchdog outlives the unlock");
}

/// Whatever befalls one of the tries, they are had, and nothing is left when they are given back.
#[tokio::test(start_paused = true)]
async fn a_try_that_goes_wrong_is_made_good() {
    let faults =
        [Fault::LoseReply, Fault::Double, Fault::Hang, Fault::Refuse, Fault::Late(100 * MS)];
    for fault in faults {
        for wrong in 1..=4 {
            let backend = MemoryBackend::new();
            let others = Locks::new(backend.clone());
            for way in ways(&backend) {
                let mut asked = 0;
                way.plan(move |op| {
                    asked += usize::from(matches!(op, Op::Acquire | Op::AcquireAll));
                    (matches!(op, Op::Acquire | Op::AcquireAll) && asked == wrong).then_some(fault)
                });
                let locks = Locks::new(way.clone());
                let begun = Instant::now();
                let guard = locks.several(NAMES).lease(LEASE).lock().await.unwrap();
                assert!(begun.elapsed() < LEASE / 10, "{fault:?} {wrong}: {:?}", begun.elapsed());
                guard.renew().await.unwrap();
                guard.unlock().await.unwrap();
                assert!(are_free(&others, &NAMES).await, "{fault:?} {wrong}");
                locks.shutdown(LEASE).await;
                assert!(are_free(&others, &NAMES).await, "{fault:?} {wrong}");
            }
        }
    }
}

/// An answer is lost, and someone else stands in the way: what may have been taken does not stay while it
/// waits, whether or not the first release of it works.
#[tokio::test(start_paused = true)]
async fn what_a_lost_answer_took_is_given_back_before_the_wait() {
    for fault in [Fault::LoseReply, Fault::Hang, Fault::Refuse] {
        let backend = MemoryBackend::new();
        let others = Locks::new(backend.clone());
        for way in ways(&backend) {
            let in_the_way = locked(&others, "b").await;
            let (mut acquires, mut releases) = (1, 1);
            way.plan(move |op| match op {
                Op::Acquire | Op::AcquireAll if acquires > 0 => {
                    acquires -= 1;
                    Some(Fault::LoseReply)
                }
                Op::Release if releases > 0 => {
                    releases -= 1;
                    Some(fault)
                }
                _ => None,
            });
            let waiting = taking(&Locks::new(way.clone()), NAMES);
            sleep(Duration::from_secs(1)).await;
            // Not only at this moment.
            for _ in 0..50 {
                assert!(are_free(&others, &["a", "c"]).await, "{fault:?}");
                sleep(10 * MS).await;
            }
            let freed = Instant::now();
            in_the_way.unlock().await.unwrap();
            let (guard, at) = waiting.await.unwrap();
            assert!(at - freed <= MS, "{fault:?}: {:?}", at - freed);
            guard.unwrap().unlock().await.unwrap();
            // What is undone later finds nothing of anyone's.
            let guard = others.several(NAMES).lease(LEASE).lock().await.unwrap();
            sleep(3 * LEASE).await;
            assert!(!guard.is_lost(), "{fault:?}");
            guard.unlock().await.unwrap();
        }
    }
}

/// Of two, one was granted and the other was held; the release of the first was not answered, and came late, over a
/// connection that had broken. Meanwhile the next try was granted both, with the same tokens: the late release ended
/// what that one held, and somebody else got in. (Found by reading.)
#[tokio::test(start_paused = true)]
async fn a_release_that_comes_late_ends_nothing_of_the_next_try() {
    let backend = MemoryBackend::new();
    let others = Locks::new(backend.clone());
    let [_, way] = ways(&backend);
    let in_the_way = locked(&others, "b").await;
    let mut astray = Some(Fault::Astray(400 * MS));
    way.plan(move |op| if op == Op::Release { astray.take() } else { None });
    let waiting = taking(&Locks::new(way), ["a", "b"]);
    sleep(10 * MS).await;
    in_the_way.unlock().await.unwrap();
    let (guard, _) = waiting.await.unwrap();
    let guard = guard.unwrap();
    for _ in 0..100 {
        assert!(others.mutex("a").try_lock().await.unwrap().is_none(), "two have it");
        sleep(10 * MS).await;
    }
    guard.unlock().await.unwrap();
}

/// One waited for several, first for b, whose holder called it when it gave b back; so b was kept for it for a moment.
/// But meanwhile a was in its way, and it waited for that. Nobody called the next who wanted b, who slept on for
/// seconds beside a free lock. (Found by reading.)
#[tokio::test(start_paused = true)]
async fn who_was_called_and_waits_for_another_has_the_next_called() {
    let backend = MemoryBackend::new();
    let others: Vec<_> = (0..3).map(|_| Locks::new(backend.clone())).collect();
    for way in ways(&backend) {
        let b = locked(&others[0], "b").await;
        let several = taking(&Locks::new(way), ["a", "b"]);
        sleep(MS).await;
        let mutex = others[1].mutex("b").lease(LEASE);
        let next = tokio::spawn(async move { (mutex.lock().await.unwrap(), Instant::now()) });
        sleep(MS).await;
        let a = locked(&others[2], "a").await;
        let freed = Instant::now();
        b.unlock().await.unwrap();
        let (b, at) = next.await.unwrap();
        // For so long a lease is kept for who was called.
        assert!(at - freed <= 55 * MS, "{:?}", at - freed);
        b.unlock().await.unwrap();
        a.unlock().await.unwrap();
        several.await.unwrap().0.unwrap().unlock().await.unwrap();
    }
}

/// A caller leaves at any point: whoever comes next has them as soon as it is known what was taken.
#[tokio::test(start_paused = true)]
async fn who_leaves_gives_all_back() {
    for fault in [Fault::Late(10 * MS), Fault::LoseReply] {
        for time in 0..60 {
            let backend = MemoryBackend::new();
            let others = Locks::new(backend.clone());
            for way in ways(&backend) {
                let held = locked(&others, "c").await;
                way.plan(move |_| Some(fault));
                let locks = Locks::new(way.clone());
                // While someone is in the way, and while nobody is.
                for held in [Some(held), None] {
                    let several = locks.several(NAMES).lease(LEASE);
                    let left = timeout(time * 5 * MS, several.lock()).await;
                    drop((left, held));
                    let begun = Instant::now();
                    let next = others.several(NAMES).lease(LEASE).lock().await.unwrap();
                    let took = begun.elapsed();
                    assert!(took <= 300 * MS, "{fault:?} after {time}: {took:?}");
                    next.unlock().await.unwrap();
                }
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_unlock_that_is_dropped_or_fails_is_done_all_the_same() {
    for fault in [Fault::Late(20 * MS), Fault::Refuse] {
        let mut failures = 2;
        let faulty = Faulty::new(move |op| {
            (op == Op::Release && failures > 0).then(|| {
                failures -= 1;
                fault
            })
        });
        let locks = Locks::new(faulty);
        let guard = locks.several(NAMES).lease(LEASE).lock().await.unwrap();
        match timeout(5 * MS, guard.unlock()).await {
            Err(_) => assert!(matches!(fault, Fault::Late(_))),
            Ok(outcome) => assert_eq!(outcome.unwrap_err().kind(), ErrorKind::Backend),
        }
        let begun = Instant::now();
        drop(locks.several(NAMES).lock().await.unwrap());
        assert!(begun.elapsed() <= 100 * MS, "{:?}", begun.elapsed());
    }
}

#[tokio::test(start_paused = true)]
async fn a_backend_out_of_order_is_told_and_shutdown_ends_waits() {
    let locks = Locks::new(Faulty::new(|_| Some(Fault::Refuse)));
    let error = locks.several(NAMES).wait_limit(2 * LEASE).lock().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Backend);
    assert!(std::error::Error::source(&error).is_some());

    let backend = MemoryBackend::new();
    let _held = locked(&Locks::new(backend.clone()), "b").await;
    let locks = Locks::new(backend);
    let waiting = taking(&locks, NAMES);
    sleep(MS).await;
    let begun = Instant::now();
    locks.shutdown(LEASE).await;
    assert_eq!(waiting.await.unwrap().0.unwrap_err().kind(), ErrorKind::ShutDown);
    assert_eq!(locks.several(["x"]).try_lock().await.unwrap_err().kind(), ErrorKind::ShutDown);
    assert_eq!(begun.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn names_and_settings_are_checked() {
    let locks = Locks::new(MemoryBackend::new());
    let kind = async |several: bellwether::lock::Several| several.lock().await.unwrap_err().kind();
    assert_eq!(kind(locks.several::<Key>([])).await, ErrorKind::InvalidConfig);
    assert_eq!(kind(locks.several(["a", "b", "a"])).await, ErrorKind::InvalidConfig);
    assert_eq!(kind(locks.several(0..65)).await, ErrorKind::InvalidConfig);
    assert_eq!(kind(locks.several(["a", ""])).await, ErrorKind::InvalidKey);
    assert_eq!(kind(locks.several(["a".repeat(513)])).await, ErrorKind::InvalidKey);
    assert_eq!(kind(locks.several(["a"]).lease(MS)).await, ErrorKind::InvalidConfig);
    // None of them took anything.
    assert!(are_free(&locks, &["a", "b", "0"]).await);
    locks.several(0..64).lock().await.unwrap().unlock().await.unwrap();
    // What is one text for a name and another in Redis is two names.
    locks.several(["{a}", "%7Ba%7D"]).lock().await.unwrap().unlock().await.unwrap();
}
