//! The promises of a latch. `Locks` over one memory backend stand for processes.
//!
//! Time is paused, so every wait here is exact and takes no time.

use bellwether::lock::Latch;

use crate::prelude::*;

fn two() -> (Latch, Latch) {
    let backend = MemoryBackend::new();
    (
        Locks::new(backend.clone(), "bellwether").latch("l"),
        Locks::new(backend, "bellwether").latch("l"),
    )
}

fn waiting(latch: &Latch) -> JoinHandle<(Result<(), Error>, Instant)> {
    let latch = latch.clone();
    spawn(async move { (latch.wait().await, Instant::now()) })
}

#[tokio::test(start_paused = true)]
async fn every_waiter_is_woken_at_zero() {
    let (here, there) = two();
    assert!(here.set(3).await.unwrap());
    let waiters: Vec<_> =
        [&here, &there].iter().flat_map(|latch| (0..20).map(|_| waiting(latch))).collect();
    sleep(MS).await;
    for left in [2, 1] {
        assert_eq!(there.count_down().await.unwrap(), left);
        sleep(SECOND).await;
        assert!(waiters.iter().all(|waiter| !waiter.is_finished()));
    }
    assert_eq!(here.count_down().await.unwrap(), 0);
    let done = Instant::now();
    for (waited, at) in all(waiters).await {
        waited.unwrap();
        assert_eq!(at, done, "a waiter was woken by a timer, not by a push");
    }
    // A late caller is told at once.
    there.wait().await.unwrap();
    assert_eq!((there.left().await.unwrap(), Instant::now()), (0, done));
}

#[tokio::test(start_paused = true)]
async fn a_latch_that_is_not_set_is_an_error_and_not_zero() {
    let (latch, _) = two();
    let begun = Instant::now();
    assert_eq!(latch.wait().await.unwrap_err().kind(), ErrorKind::NotSet);
    assert_eq!(latch.left().await.unwrap_err().kind(), ErrorKind::NotSet);
    assert_eq!(latch.count_down().await.unwrap_err().kind(), ErrorKind::NotSet);
    assert_eq!(begun.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn a_latch_that_ends_or_is_cleared_ends_the_waits() {
    let (here, there) = two();
    let begun = Instant::now();
    here.clone().ttl(7 * SECOND).set(2).await.unwrap();
    let (waited, at) = waiting(&there).await.unwrap();
    assert_eq!(waited.unwrap_err().kind(), ErrorKind::NotSet);
    let took = at - begun;
    assert!(took >= 7 * SECOND && took <= 7 * SECOND + 100 * MS, "{took:?}");

    here.set(2).await.unwrap();
    let waiter = waiting(&there);
    sleep(SECOND).await;
    let cleared = Instant::now();
    assert!(here.clear().await.unwrap() && !here.clear().await.unwrap());
    let (waited, at) = waiter.await.unwrap();
    assert_eq!(waited.unwrap_err().kind(), ErrorKind::NotSet);
    assert_eq!(at, cleared);
}

#[tokio::test(start_paused = true)]
async fn a_wait_ends_at_its_limit() {
    let (latch, _) = two();
    latch.set(1).await.unwrap();
    for limit in [700 * MS, 12 * SECOND, Duration::ZERO] {
        let begun = Instant::now();
        let error = latch.clone().wait_limit(limit).wait().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotDone);
        let took = begun.elapsed();
        assert!(took >= limit && took <= limit + 2 * MS, "{took:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_waiter_looks_every_0_7_seconds_and_not_more_often() {
    let faulty = Faulty::new(|_| None);
    let latch = Locks::new(faulty.clone(), "bellwether").latch("l").wait_limit(60 * SECOND);
    latch.set(1).await.unwrap();
    assert_eq!(latch.wait().await.unwrap_err().kind(), ErrorKind::NotDone);
    // One look at the beginning, then one for every 0.61 to 0.7 s.
    assert!((80..=102).contains(&faulty.count(Op::Latch)), "{}", faulty.count(Op::Latch));
    assert_eq!(faulty.count(Op::Changes), 1);
}

/// The push of zero is lost, or no push comes at all: a waiter without a subscription polls.
#[tokio::test(start_paused = true)]
async fn a_lost_push_costs_0_7_seconds_or_the_rest_of_the_wait() {
    for (fault, limit, pause, within) in [
        (Fault::LosePushes, 30 * SECOND, SECOND, 700 * MS),
        (Fault::LosePushes, 1200 * MS, SECOND, 200 * MS),
        (Fault::Refuse, 30 * SECOND, 10 * SECOND, 100 * MS),
    ] {
        let backend = MemoryBackend::new();
        let here = Locks::new(backend.clone(), "bellwether").latch("l");
        let deaf = Faulty::over(backend, move |op| (op == Op::Changes).then_some(fault));
        here.set(1).await.unwrap();
        let deaf = Locks::new(deaf, "bellwether").latch("l").wait_limit(limit);
        let waiter = waiting(&deaf);
        sleep(pause).await;
        let done = Instant::now();
        here.count_down().await.unwrap();
        let (waited, at) = waiter.await.unwrap();
        waited.unwrap();
        assert!(at >= done && at - done <= within + MS, "{fault:?}: {:?}", at - done);
    }
}

/// A step may meet any fault, and counts once.
#[tokio::test(start_paused = true)]
async fn a_step_with_any_fault_counts_once() {
    let faults =
        [Fault::LoseReply, Fault::Double, Fault::Hang, Fault::Refuse, Fault::Late(200 * MS)];
    for fault in faults {
        let mut next = 0;
        // Three tries of each step meet the fault.
        let faulty = Faulty::new(move |op| {
            next += usize::from(op == Op::CountDown);
            (op == Op::CountDown && next % 4 != 0).then_some(fault)
        });
        let latch = Locks::new(faulty.clone(), "bellwether").latch("l");
        latch.set(20).await.unwrap();
        for step in 1..=5 {
            assert_eq!(latch.count_down_by(3).await.unwrap(), 20 - 3 * step, "{fault:?}");
        }
        assert_eq!(latch.left().await.unwrap(), 5, "{fault:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_setting_whose_answer_is_lost_is_recognised() {
    for fault in [Fault::LoseReply, Fault::Double, Fault::Hang, Fault::Refuse] {
        let faulty = once(Op::SetLatch, fault);
        let latch = Locks::new(faulty.clone(), "bellwether").latch("l");
        assert!(latch.set(2).await.unwrap(), "{fault:?}");
        assert!(!latch.set(2).await.unwrap(), "{fault:?}");
        assert_eq!(latch.left().await.unwrap(), 2, "{fault:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_step_without_an_answer_is_an_error_that_states_what_is_known() {
    for (fault, known) in [
        (Fault::Refuse, "the latch \"l\" was not counted down"),
        (Fault::Hang, "the latch \"l\" may or may not have been counted down"),
        (Fault::LoseReply, "the latch \"l\" may or may not have been counted down"),
    ] {
        let faulty = Faulty::new(move |op| (op == Op::CountDown).then_some(fault));
        let latch = Locks::new(faulty.clone(), "bellwether").latch("l").wait_limit(5 * SECOND);
        latch.set(2).await.unwrap();
        let begun = Instant::now();
        let error = latch.count_down().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Backend);
        assert!(error.to_string().starts_with(known), "{error}");
        assert!(std::error::Error::source(&error).is_some());
        let took = begun.elapsed();
        assert!(took >= 5 * SECOND && took <= 5 * SECOND + 260 * MS, "{took:?}");
        faulty.plan(|_| None);
        let left = latch.left().await.unwrap();
        assert_eq!(left, if matches!(fault, Fault::LoseReply) { 1 } else { 2 }, "{fault:?}");
    }
}

/// A caller leaves at any point of a step or of a wait. The step counts or does not count, and
/// nothing else changes.
#[tokio::test(start_paused = true)]
async fn a_caller_that_leaves_changes_only_its_own_step() {
    for time in 0..40 {
        let faulty = Faulty::new(|_| Some(Fault::Late(10 * MS)));
        let latch = Locks::new(faulty.clone(), "bellwether").latch("l");
        latch.set(3).await.unwrap();
        let _ = timeout(time * MS, latch.wait()).await;
        let counted = timeout(time * MS, latch.count_down()).await.is_ok();
        faulty.plan(|_| None);
        let left = latch.left().await.unwrap();
        assert!(left == 2 || (left == 3 && !counted), "{left} after {time} ms");
        assert_eq!(latch.count_down_by(left).await.unwrap(), 0);
        latch.wait().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_ends_waits_and_lets_running_steps_count() {
    let backend = MemoryBackend::new();
    let locks = Locks::new(backend, "bellwether");
    let latch = locks.latch("l");
    latch.set(2).await.unwrap();
    let waiter = waiting(&latch);
    sleep(MS).await;
    let begun = Instant::now();
    locks.shutdown(SECOND).await;
    assert_eq!(waiter.await.unwrap().0.unwrap_err().kind(), ErrorKind::ShutDown);
    assert_eq!(latch.wait().await.unwrap_err().kind(), ErrorKind::ShutDown);
    assert_eq!(begun.elapsed(), Duration::ZERO);
    assert_eq!(latch.count_down().await.unwrap(), 1);
}

#[tokio::test(start_paused = true)]
async fn names_counts_and_times_are_checked() {
    let locks = Locks::new(MemoryBackend::new(), "bellwether");
    let latch = locks.latch("l");
    for count in [0, 10_001, u32::MAX] {
        assert_eq!(latch.set(count).await.unwrap_err().kind(), ErrorKind::InvalidConfig);
        let error = latch.count_down_by(count).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidConfig);
    }
    for ttl in [Duration::ZERO, 999 * MS, Duration::MAX] {
        let error = latch.clone().ttl(ttl).set(1).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidConfig);
    }
    for name in [String::new(), "n".repeat(513)] {
        assert_eq!(locks.latch(name).set(1).await.unwrap_err().kind(), ErrorKind::InvalidKey);
    }
    // An endless wait does not panic, and a lock of the same name is independent.
    let _guard = locks.mutex("l").lock().await.unwrap();
    assert!(latch.set(10_000).await.unwrap());
    let waiter = waiting(&latch.clone().wait_limit(Duration::MAX));
    sleep(MS).await;
    assert_eq!(latch.count_down_by(10_000).await.unwrap(), 0);
    waiter.await.unwrap().0.unwrap();
}
