use bellwether::{Redlock, lease::Retry};

use super::{
    played::{ANSWER, LEASE, dead, locking, majority, occupy, seen, servers},
    shares,
};
use crate::prelude::*;

#[tokio::test(start_paused = true)]
async fn a_minority_of_dead_servers_is_skipped() {
    for (count, away) in [(3, 1), (5, 2)] {
        for fault in [Fault::Refuse, Fault::Hang] {
            let servers: Vec<_> = (0..count).map(|_| MemoryBackend::new()).collect();
            let which: Vec<_> = (0..away).collect();
            let redlock = majority(&dead(&servers, &which, fault));
            let other = majority(&dead(&servers, &which, fault));
            let begun = Instant::now();
            let guard = redlock.mutex("m").lease(LEASE).lock().await.unwrap();
            assert!(begun.elapsed() <= ANSWER + 2 * MS, "{:?}", begun.elapsed());
            assert!(other.mutex("m").try_lock().await.unwrap().is_none());
            sleep(10 * LEASE).await;
            assert!(!guard.is_lost() && guard.remaining() > LEASE / 2);
            guard.unlock().await.unwrap();
            assert!(other.mutex("m").try_lock().await.unwrap().is_some());
        }
    }
}

/// Other owners hold two of three servers, and one is free. The share of the free one is released,
/// and the waiter waits for the next share to end.
#[tokio::test(start_paused = true)]
async fn a_minority_of_shares_is_released_and_waited_for() {
    let servers: [_; 3] = servers();
    occupy(&servers[0], "m", 7000 * MS).await;
    occupy(&servers[1], "m", 3000 * MS).await;
    let redlock = majority(&servers);
    let begun = Instant::now();
    assert!(redlock.mutex("m").try_lock().await.unwrap().is_none());
    assert_eq!(shares(&servers, "m").await, 2);
    // Three tries, with two pauses of 8 ms at most.
    assert!(begun.elapsed() <= 18 * MS, "{:?}", begun.elapsed());
    assert!(redlock.mutex("m").holder().await.unwrap().is_some());
    let left = 3000 * MS - begun.elapsed();
    assert_eq!(redlock.mutex("m").holder().await.unwrap().map(|held| held.expires_in), Some(left));
    let guard = redlock.mutex("m").lock().await.unwrap();
    let elapsed = begun.elapsed();
    assert!(elapsed >= 3000 * MS && elapsed <= 3100 * MS, "{elapsed:?}");
    assert_eq!(shares(&servers, "m").await, 3);
    guard.unlock().await.unwrap();
    assert_eq!(shares(&servers, "m").await, 1);
}

/// One server is free, and all waiters release their shares there. Such a release is no reason to
/// try again at once.
#[tokio::test(start_paused = true)]
async fn waiters_do_not_wake_each_other_without_end() {
    let servers: [_; 3] = servers();
    let holder = majority(&seen(&servers, &[(2, Op::Acquire, Fault::Refuse)]));
    let guard = holder.mutex("m").lease(LEASE).lock().await.unwrap();
    assert_eq!(shares(&servers, "m").await, 2);
    let waiters = [(); 5].map(|()| seen(&servers, &[]));
    let waiting = waiters.each_ref().map(|servers| {
        let redlock = majority(servers);
        spawn(async move { drop(redlock.mutex("m").lock().await.unwrap()) })
    });
    sleep(LEASE).await;
    for servers in &waiters {
        let tries = servers[2].count(Op::Acquire);
        assert!((5..=220).contains(&tries), "{tries} tries in ten seconds");
    }
    let begun = Instant::now();
    guard.unlock().await.unwrap();
    all(waiting).await;
    assert!(begun.elapsed() < 500 * MS, "{:?}", begun.elapsed());
}

/// The pushes of any server wake a waiter, which asks after a random pause of 8 ms at most. If too
/// few servers push, the waiter polls.
#[tokio::test(start_paused = true)]
async fn a_waiter_is_served_soon_with_any_number_of_pushing_servers() {
    let most = [(0, 10 * MS), (1, 10 * MS), (2, 120 * MS), (3, 120 * MS)];
    for (mute, most) in most {
        let servers: [_; 3] = servers();
        let faults: Vec<_> = (0..mute).map(|at| (at, Op::Changes, Fault::Refuse)).collect();
        let waiter = majority(&seen(&servers, &faults));
        let guard = majority(&servers).mutex("m").lock().await.unwrap();
        let waiting = locking(&waiter);
        sleep(700 * MS).await;
        let begun = Instant::now();
        guard.unlock().await.unwrap();
        drop(waiting.await.unwrap());
        assert!(begun.elapsed() <= most, "{mute} servers are mute: {:?}", begun.elapsed());
    }
}

/// Strangers took and gave back the lock at one server, which the holder takes later. The waiter is
/// woken by a majority of the servers that release the lock, and not by the first of them alone.
#[tokio::test(start_paused = true)]
async fn noise_of_one_server_delays_no_waiter() {
    for _ in 0..5 {
        let servers: [_; 3] = servers();
        let late = Fault::Late(30 * MS);
        let holder = seen(&servers, &[(2, Op::Release, late)]);
        let mut away = Some(Fault::Refuse);
        holder[0].plan(move |op| match op {
            Op::Acquire => away.take(),
            Op::Release => Some(late),
            _ => None,
        });
        let guard = majority(&holder).mutex("m").lease(LEASE).lock().await.unwrap();
        let waiting = locking(&majority(&servers));
        sleep(100 * MS).await;
        for _ in 0..10 {
            let noise = occupy(&servers[0], "m", LEASE).await;
            servers[0].release(&noise).await.unwrap();
            sleep(MS).await;
        }
        sleep(LEASE / 2).await;
        assert_eq!(shares(&servers, "m").await, 3);
        let begun = Instant::now();
        guard.unlock().await.unwrap();
        waiting.await.unwrap().unlock().await.unwrap();
        assert!(begun.elapsed() <= 100 * MS, "{:?}", begun.elapsed());
    }
}

/// The task that listens for a name ends when there was no waiter for a second. A waiter that comes
/// at that moment is woken by the release all the same.
#[tokio::test(start_paused = true)]
async fn a_waiter_that_comes_when_the_listening_ends_is_woken() {
    for pause in (900..1_100).step_by(5) {
        let servers: [_; 3] = servers();
        let [here, there] = [0, 1].map(|_| majority(&servers));
        let guard = there.mutex("m").lock().await.unwrap();
        assert!(here.mutex("m").try_lock().await.unwrap().is_none());
        sleep(pause * MS).await;
        let waiting = locking(&here);
        sleep(30 * MS).await;
        let begun = Instant::now();
        guard.unlock().await.unwrap();
        drop(waiting.await.unwrap());
        assert!(begun.elapsed() <= 50 * MS, "{:?} after {pause} ms", begun.elapsed());
    }
}

/// A grant is no hold if the lease is nearly over by then.
#[tokio::test(start_paused = true)]
async fn an_acquisition_as_long_as_the_lease_fails() {
    let servers: [_; 3] = servers();
    let late = Fault::Late(99 * MS);
    let slow = seen(&servers, &[(0, Op::Acquire, late), (1, Op::Acquire, late)]);
    let redlock = Redlock::with_answer_limit(slow, "bellwether", 150 * MS).unwrap();
    let mutex = redlock.mutex("m").retry(Retry::on_demand().times(0));
    assert_eq!(kind(mutex.clone().lease(100 * MS).lock().await), ErrorKind::Backend);
    assert_eq!(shares(&servers, "m").await, 0);
    let guard = mutex.lease(200 * MS).fixed_lease().lock().await.unwrap();
    // The time of the acquisition and the drift are subtracted from the lease.
    assert!(guard.remaining() <= 97 * MS, "{:?}", guard.remaining());
    assert!(guard.remaining() >= 95 * MS, "{:?}", guard.remaining());
}

#[tokio::test(start_paused = true)]
async fn only_the_holder_can_acquire_the_lock_again() {
    let servers: [_; 3] = servers();
    let seen = seen(&servers, &[]);
    let redlock = majority(&seen);
    let [one, another] = [0, 1].map(|_| redlock.reentrant_mutex("m").lease(LEASE));
    let first = one.lock().await.unwrap();
    let again = one.lock().await.unwrap();
    assert_eq!(seen[0].count(Op::Acquire), 1);
    assert!(another.try_lock().await.unwrap().is_none());
    assert!(redlock.mutex("m").try_lock().await.unwrap().is_none());
    first.unlock().await.unwrap();
    assert!(redlock.mutex("m").holder().await.unwrap().is_some());
    again.unlock().await.unwrap();
    assert_eq!(shares(&servers, "m").await, 0);
    let guard = another.lock().await.unwrap();
    assert!(redlock.mutex("m").force_unlock().await.unwrap());
    let anew = one.lock().await.unwrap();
    timeout(LEASE / 2, guard.lost()).await.unwrap();
    assert_eq!(kind(guard.unlock().await), ErrorKind::Lost);
    anew.unlock().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn bad_settings_bad_names_and_shutdown_are_errors() {
    assert_eq!(
        kind(Redlock::over(Vec::<MemoryBackend>::new(), "bellwether")),
        ErrorKind::InvalidConfig
    );
    let none = Redlock::with_answer_limit([MemoryBackend::new()], "bellwether", Duration::ZERO);
    assert_eq!(kind(none), ErrorKind::InvalidConfig);
    let servers: [_; 3] = servers();
    let redlock = majority(&servers);
    assert_eq!(kind(redlock.mutex("").lock().await), ErrorKind::InvalidKey);
    assert_eq!(kind(redlock.mutex("m").lease(MS).lock().await), ErrorKind::InvalidConfig);
    let guard = redlock.mutex("m").lock().await.unwrap();
    let begun = Instant::now();
    let impatient = redlock.mutex("m").retry(Retry::fixed(10 * MS).times(3));
    assert_eq!(kind(impatient.lock().await), ErrorKind::NotAcquired);
    assert!(begun.elapsed() <= 35 * MS);
    let mutex = redlock.mutex("m");
    let waiting = spawn(async move { mutex.lock().await });
    sleep(MS).await;
    redlock.shutdown(SECOND).await;
    assert_eq!(kind(waiting.await.unwrap()), ErrorKind::ShutDown);
    assert_eq!(kind(redlock.mutex("n").try_lock().await), ErrorKind::ShutDown);
    guard.unlock().await.unwrap();
    assert_eq!(shares(&servers, "m").await, 0);
}
