//! What each kind of lock promises alike, over a backend in memory. Time is paused, so every wait
//! here is exact and takes no time.
//!
//! A pair is a lock and a rival that cannot be held at the same time. `Locks` over one backend
//! stand for processes. `tests/redis/family` has the faults of servers.

use testkit::primitives::{Asked, Guard, PAIRS};

use crate::prelude::*;

const LEASE: Duration = Duration::from_secs(10);

fn process(backend: impl Store + Clone) -> Asked {
    let locks = Locks::new(backend, "bellwether");
    Asked { locks, name: "k".to_owned(), lease: LEASE, wait: 60 * SECOND }
}

/// Returns a process whose operations of one kind have these faults, and another one.
fn two(op: Op, mut fault: impl FnMut() -> Option<Fault> + Send + 'static) -> (Asked, Asked) {
    let backend = MemoryBackend::new();
    let plan = move |asked| if asked == op { fault() } else { None };
    (process(Faulty::over(backend.clone(), plan)), process(backend))
}

#[tokio::test(start_paused = true)]
async fn a_lease_is_renewed_while_its_guard_lives() {
    for (what, pair) in PAIRS {
        let (here, there) = two(Op::Renew, || None);
        let guard = (pair.one.take)(here).await.unwrap();
        if !guard.is_watched() {
            continue;
        }
        sleep(20 * LEASE).await;
        assert!(!guard.is_lost(), "{what}");
        let begun = Instant::now();
        assert!((pair.rival.attempt)(there.clone()).await.unwrap().is_none(), "{what}");
        assert_eq!(begun.elapsed(), Duration::ZERO, "{what}");
        drop(guard);
        // The drop releases in the background, and not at the end of the lease.
        let begun = Instant::now();
        (pair.rival.take)(there).await.unwrap().give_back().await.unwrap();
        assert!(begun.elapsed() < 10 * MS, "{what}: {:?}", begun.elapsed());
    }
}

/// The renewals of the holder do not come through. Its deadline must fire before another holder
/// gets the lock.
#[tokio::test(start_paused = true)]
async fn a_loss_is_reported_before_the_next_holder_gets_in() {
    for (what, pair) in PAIRS {
        for fault in [Fault::Refuse, Fault::Hang] {
            let (here, there) = two(Op::Renew, move || Some(fault));
            let guard = (pair.one.take)(here).await.unwrap();
            if !guard.is_watched() {
                continue;
            }
            let next = spawn(async move {
                let next = (pair.rival.take)(there).await.unwrap();
                (Instant::now(), next)
            });
            timeout(LEASE, guard.lost()).await.unwrap();
            let lost = Instant::now();
            let (acquired, other) = next.await.unwrap();
            assert!(lost < acquired, "{what}, {fault:?}");
            if let (Some(last), Some(next)) = (guard.fence(), other.fence()) {
                assert!(next > last, "{what}");
            }
            assert_eq!(kind(guard.renew().await), ErrorKind::Lost, "{what}");
            assert_eq!(kind(guard.give_back().await), ErrorKind::Lost, "{what}");
            assert!(!other.is_lost(), "{what}");
        }
    }
}

/// Gives a lock back that may have been acquired. A dropped permit with an id stays until it ends.
async fn leave(left: Option<Result<Guard, Error>>) {
    match left {
        Some(Ok(guard)) if !guard.is_watched() => drop(guard.give_back().await),
        left => drop(left),
    }
}

/// A caller leaves at any point, once while a rival holds the lock, and once while it is free. The
/// next caller gets it as soon as the outcome is known.
#[tokio::test(start_paused = true)]
async fn an_acquisition_that_is_dropped_is_undone() {
    for (what, pair) in PAIRS {
        for fault in [Fault::Late(10 * MS), Fault::LoseReply] {
            for time in 0..30 {
                let (here, there) = two(Op::Acquire, move || Some(fault));
                let held = (pair.rival.take)(there.clone()).await.unwrap();
                for held in [Some(held), None] {
                    leave(timeout(time * 10 * MS, (pair.one.take)(here.clone())).await.ok()).await;
                    leave(held.map(Ok)).await;
                    let begun = Instant::now();
                    let next = (pair.rival.take)(there.clone()).await.unwrap();
                    let took = begun.elapsed();
                    assert!(took <= 300 * MS, "{what}, {fault:?} after {time}: {took:?}");
                    next.give_back().await.unwrap();
                }
            }
        }
    }
}

/// The acquisition succeeds despite a fault in one of its tries, and nothing is left after the
/// release.
#[tokio::test(start_paused = true)]
async fn a_faulty_try_is_repaired() {
    let faults =
        [Fault::LoseReply, Fault::Double, Fault::Hang, Fault::Refuse, Fault::Late(100 * MS)];
    for (what, pair) in PAIRS {
        for fault in faults {
            for wrong in 1..=4 {
                let mut asked = 0;
                let (here, there) = two(Op::Acquire, move || {
                    asked += 1;
                    (asked == wrong).then_some(fault)
                });
                let begun = Instant::now();
                let guard = (pair.one.take)(here.clone()).await.unwrap();
                let took = begun.elapsed();
                assert!(took < LEASE / 10, "{what}, {fault:?} {wrong}: {took:?}");
                guard.renew().await.unwrap();
                guard.give_back().await.unwrap();
                for _ in 0..2 {
                    let next = (pair.rival.attempt)(there.clone()).await.unwrap();
                    next.expect("the lock is free").give_back().await.unwrap();
                    here.locks.shutdown(LEASE).await;
                }
            }
        }
    }
}

/// The first try is on its way for longer than its time-out. The second one is granted and
/// released. Then the first try arrives, and holds the lock without a caller that knows it.
#[tokio::test(start_paused = true)]
async fn a_try_that_arrives_after_the_unlock_is_undone() {
    // The first of several locks is none that the rival of `one_of_them` asks for.
    for (what, pair) in PAIRS.into_iter().filter(|(what, _)| *what != "one_of_them") {
        let mut astray = Some(Fault::Astray(400 * MS));
        let (here, there) = two(Op::Acquire, move || astray.take());
        let begun = Instant::now();
        (pair.one.take)(here).await.unwrap().give_back().await.unwrap();
        assert!(begun.elapsed() < 400 * MS, "{what}: the first try has arrived already");
        sleep((401 * MS).saturating_sub(begun.elapsed())).await;
        assert!((pair.rival.attempt)(there.clone()).await.unwrap().is_none(), "{what}");
        (pair.rival.take)(there).await.unwrap().give_back().await.unwrap();
        assert!(begun.elapsed() < LEASE / 8, "{what}: {:?}", begun.elapsed());
    }
}

/// Releases with a fault, and checks that the rival gets the lock all the same, and how soon.
async fn released_despite(
    fault: Fault,
    within: Duration,
    check: impl Fn(Option<Result<(), Error>>),
) {
    for (what, pair) in PAIRS {
        let mut failures = 2;
        let (here, there) = two(Op::Release, move || {
            (failures > 0).then(|| {
                failures -= 1;
                fault
            })
        });
        let guard = (pair.one.take)(here).await.unwrap();
        check(timeout(5 * MS, guard.give_back()).await.ok());
        let begun = Instant::now();
        drop((pair.rival.take)(there).await.unwrap());
        assert!(begun.elapsed() <= within, "{what}, {fault:?}: {:?}", begun.elapsed());
    }
}

#[tokio::test(start_paused = true)]
async fn a_failed_release_is_reported_and_repeated() {
    let is_told = |released| assert_eq!(kind(Option::unwrap(released)), ErrorKind::Backend);
    // The first pause of a release.
    released_despite(Fault::Refuse, 20 * MS, is_told).await;
}

#[tokio::test(start_paused = true)]
async fn a_release_whose_caller_leaves_still_happens() {
    // The release is sent anew, and is as late.
    let is_open = |released: Option<_>| assert!(released.is_none());
    released_despite(Fault::Late(20 * MS), 20 * MS, is_open).await;
}

#[tokio::test(start_paused = true)]
async fn a_failing_backend_is_an_error_with_its_source() {
    for (what, pair) in PAIRS {
        let asked = process(Faulty::new(|_| Some(Fault::Refuse))).within(2 * LEASE);
        let begun = Instant::now();
        assert_eq!(kind((pair.one.attempt)(asked.clone()).await), ErrorKind::Backend, "{what}");
        assert_eq!(begun.elapsed(), Duration::ZERO, "{what}");
        let error = (pair.one.take)(asked).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Backend, "{what}");
        assert!(std::error::Error::source(&error).is_some(), "{what}");
        assert!(begun.elapsed() <= 2 * LEASE + 10 * MS, "{what}: {:?}", begun.elapsed());
    }
}

#[tokio::test(start_paused = true)]
async fn a_wait_ends_at_its_limit() {
    for (what, pair) in PAIRS {
        let (here, there) = two(Op::Acquire, || None);
        let _held = (pair.rival.take)(there).await.unwrap();
        let begun = Instant::now();
        let limited = (pair.one.take)(here.within(700 * MS)).await;
        assert_eq!(kind(limited), ErrorKind::NotAcquired, "{what}");
        let took = begun.elapsed();
        assert!(took >= 700 * MS && took <= 705 * MS, "{what}: {took:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_ends_waits_and_starts_nothing() {
    for (what, pair) in PAIRS {
        let (here, there) = two(Op::Acquire, || None);
        let held = (pair.rival.take)(there).await.unwrap();
        let waiting = spawn((pair.one.take)(here.clone()));
        sleep(MS).await;
        here.locks.shutdown(SECOND).await;
        let begun = Instant::now();
        assert_eq!(kind(waiting.await.unwrap()), ErrorKind::ShutDown, "{what}");
        assert_eq!(kind((pair.one.attempt)(here).await), ErrorKind::ShutDown, "{what}");
        assert_eq!(begun.elapsed(), Duration::ZERO, "{what}");
        held.give_back().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn names_and_leases_are_checked() {
    for (what, pair) in PAIRS {
        let asked = process(MemoryBackend::new());
        let brief = Asked { lease: Duration::ZERO, ..asked.clone() };
        assert_eq!(kind((pair.one.take)(brief).await), ErrorKind::InvalidConfig, "{what}");
        for name in [String::new(), "n".repeat(513)] {
            let named = Asked { name, ..asked.clone() };
            assert_eq!(kind((pair.one.take)(named).await), ErrorKind::InvalidKey, "{what}");
        }
    }
}
