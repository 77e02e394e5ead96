use std::{
    future::Future,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::Poll,
    time::Duration,
};

use bellwether::{
    ErrorKind, MemoryBackend, Redlock,
    backend::Leases,
    lease::{Claim, Mode, Retry},
};
use tokio::time::{Instant, sleep, timeout};

use super::{
    MS, kind, name, shares,
    stray::Stray,
    support::faulty::{Fault, Faulty, Op},
};

const LEASE: Duration = Duration::from_secs(10);
/// How long one server may take to answer.
const ANSWER: Duration = Duration::from_millis(50);

fn servers<const N: usize>() -> [MemoryBackend; N] {
    std::array::from_fn(|_| MemoryBackend::new())
}

/// The same servers, as one client sees them: some of them with a fault.
fn seen(servers: &[MemoryBackend], faults: &[(usize, Op, Fault)]) -> Vec<Faulty> {
    let one = |(at, server): (usize, &MemoryBackend)| {
        let faults: Vec<_> = faults.iter().filter(|fault| fault.0 == at).copied().collect();
        let befall = move |op| faults.iter().find(|fault| fault.1 == op).map(|fault| fault.2);
        Faulty::over(server.clone(), befall)
    };
    servers.iter().enumerate().map(one).collect()
}

/// A server that answers nothing.
fn dead(servers: &[MemoryBackend], which: &[usize], fault: Fault) -> Vec<Faulty> {
    let one = |(at, server): (usize, &MemoryBackend)| {
        let fault = which.contains(&at).then_some(fault);
        Faulty::over(server.clone(), move |_| fault)
    };
    servers.iter().enumerate().map(one).collect()
}

/// Someone else's claim at one server.
async fn occupy(server: &MemoryBackend, key: &str, lease: Duration) -> Claim {
    let claim = Claim::new(name(key), Mode::Exclusive, lease, lease);
    server.acquire(&claim).await.unwrap();
    claim
}

#[tokio::test(start_paused = true)]
async fn one_holder_at_a_time_and_nothing_left() {
    for count in [1, 3, 5] {
        let servers: Vec<_> = (0..count).map(|_| MemoryBackend::new()).collect();
        let inside = Arc::new(AtomicUsize::new(0));
        let begun = Instant::now();
        // Some of them in one process, and some in others.
        let processes: Vec<_> = (0..6).map(|_| Redlock::new(servers.clone()).unwrap()).collect();
        let tasks = (0..60).map(|n| {
            let (redlock, inside) = (processes[n % 6].clone(), inside.clone());
            tokio::spawn(async move {
                let guard = redlock.mutex("m").lock().await.unwrap();
                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                sleep(5 * MS).await;
                inside.fetch_sub(1, Ordering::SeqCst);
                guard.unlock().await.unwrap();
            })
        });
        for task in tasks.collect::<Vec<_>>() {
            task.await.unwrap();
        }
        // By pushes: the end of no lease was waited for, nor the 5 s after which everyone looks.
        assert!(begun.elapsed() < Duration::from_secs(2), "{count}: {:?}", begun.elapsed());
        assert_eq!(shares(&servers, "m").await, 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_minority_of_dead_servers_is_passed_over() {
    for (count, away) in [(3, 1), (5, 2)] {
        for fault in [Fault::Refuse, Fault::Hang] {
            let servers: Vec<_> = (0..count).map(|_| MemoryBackend::new()).collect();
            let which: Vec<_> = (0..away).collect();
            let redlock = Redlock::new(dead(&servers, &which, fault)).unwrap();
            let other = Redlock::new(dead(&servers, &which, fault)).unwrap();
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

#[tokio::test(start_paused = true)]
async fn without_a_majority_nothing_is_held_nor_left() {
    for fault in [Fault::Refuse, Fault::Hang, Fault::LoseReply] {
        let servers: [_; 3] = servers();
        let faults = [(1, Op::Acquire, fault), (2, Op::Acquire, fault)];
        let redlock = Redlock::new(seen(&servers, &faults)).unwrap();
        assert_eq!(kind(redlock.mutex("m").try_lock().await), ErrorKind::Backend);
        assert_eq!(shares(&servers[..1], "m").await, 0, "{fault:?}");
        let begun = Instant::now();
        let mutex = redlock.mutex("m").lease(LEASE).wait(Duration::from_secs(2));
        assert_eq!(kind(mutex.lock().await), ErrorKind::Backend);
        assert!(begun.elapsed() <= Duration::from_secs(2) + 2 * ANSWER);
        // What had no answer is undone at once, too.
        sleep(MS).await;
        assert_eq!(shares(&servers, "m").await, 0, "{fault:?}");
        redlock.shutdown(Duration::ZERO).await;
    }
}

/// Two of three are held by others, one is free: it is given back, and the wait is for the next to end.
#[tokio::test(start_paused = true)]
async fn what_is_no_majority_is_given_back_and_waited_for() {
    let servers: [_; 3] = servers();
    occupy(&servers[0], "m", 7000 * MS).await;
    occupy(&servers[1], "m", 3000 * MS).await;
    let redlock = Redlock::new(servers.clone()).unwrap();
    let begun = Instant::now();
    assert!(redlock.mutex("m").try_lock().await.unwrap().is_none());
    assert_eq!(shares(&servers, "m").await, 2);
    assert_eq!(begun.elapsed(), Duration::ZERO);
    assert!(redlock.mutex("m").is_locked().await.unwrap());
    assert_eq!(redlock.mutex("m").remaining().await.unwrap(), Some(3000 * MS));
    let guard = redlock.mutex("m").lock().await.unwrap();
    let elapsed = begun.elapsed();
    assert!(elapsed >= 3000 * MS && elapsed <= 3100 * MS, "{elapsed:?}");
    assert_eq!(shares(&servers, "m").await, 3);
    guard.unlock().await.unwrap();
    assert_eq!(shares(&servers, "m").await, 1);
}

/// One server is free, and all waiters give back what they get there. That is no reason to try again at once.
#[tokio::test(start_paused = true)]
async fn those_who_wait_do_not_wake_each_other_without_end() {
    let servers: [_; 3] = servers();
    let holder = seen(&servers, &[(2, Op::Acquire, Fault::Refuse)]);
    let guard = Redlock::new(holder).unwrap().mutex("m").lease(LEASE).lock().await.unwrap();
    assert_eq!(shares(&servers, "m").await, 2);
    let waiters: Vec<_> = (0..5).map(|_| seen(&servers, &[])).collect();
    let waiting: Vec<_> = waiters
        .iter()
        .map(|servers| {
            let redlock = Redlock::new(servers.clone()).unwrap();
            tokio::spawn(async move { drop(redlock.mutex("m").lock().await.unwrap()) })
        })
        .collect();
    sleep(LEASE).await;
    for servers in &waiters {
        let tries = servers[2].count(Op::Acquire);
        assert!((5..=220).contains(&tries), "{tries} tries in ten seconds");
    }
    let begun = Instant::now();
    guard.unlock().await.unwrap();
    for waiting in waiting {
        waiting.await.unwrap();
    }
    assert!(begun.elapsed() < 500 * MS, "{:?}", begun.elapsed());
}

/// A waiter is woken by the pushes of those that push; where too few do, it looks by itself.
#[tokio::test(start_paused = true)]
async fn a_waiter_comes_soon_whoever_pushes() {
    let most = [(0, 5 * MS), (1, 5 * MS), (2, 110 * MS), (3, 110 * MS)];
    for (mute, most) in most {
        let servers: [_; 3] = servers();
        let faults: Vec<_> = (0..mute).map(|at| (at, Op::Changes, Fault::Refuse)).collect();
        let waiter = Redlock::new(seen(&servers, &faults)).unwrap();
        let guard = Redlock::new(servers.clone()).unwrap().mutex("m").lock().await.unwrap();
        let waiting = tokio::spawn(async move { waiter.mutex("m").lock().await.unwrap() });
        sleep(700 * MS).await;
        let begun = Instant::now();
        guard.unlock().await.unwrap();
        drop(waiting.await.unwrap());
        assert!(begun.elapsed() <= most, "{mute} are mute: {:?}", begun.elapsed());
    }
}

/// What is granted when the lease is as good as over is not held.
#[tokio::test(start_paused = true)]
async fn an_acquisition_that_took_as_long_as_the_lease_is_none() {
    let servers: [_; 3] = servers();
    let late = Fault::Late(99 * MS);
    let slow = seen(&servers, &[(0, Op::Acquire, late), (1, Op::Acquire, late)]);
    let redlock = Redlock::new(slow).unwrap().answer_limit(150 * MS);
    let mutex = redlock.mutex("m").retry(Retry::never());
    assert_eq!(kind(mutex.clone().lease(100 * MS).lock().await), ErrorKind::Backend);
    assert_eq!(shares(&servers, "m").await, 0);
    let guard = mutex.lease(200 * MS).fixed_lease().lock().await.unwrap();
    // What it took is spent from the lease, with the drift.
    assert!(guard.remaining() <= 97 * MS, "{:?}", guard.remaining());
    assert!(guard.remaining() >= 95 * MS, "{:?}", guard.remaining());
}

/// The holder's renewals come through to a minority only. It is told before another gets the lock.
#[tokio::test(start_paused = true)]
async fn a_loss_is_told_before_anyone_else_gets_in() {
    for fault in [Fault::Refuse, Fault::Hang] {
        let servers: [_; 3] = servers();
        let cut_off = seen(&servers, &[(0, Op::Renew, fault), (2, Op::Renew, fault)]);
        let guard = Redlock::new(cut_off).unwrap().mutex("m").lease(LEASE).lock().await.unwrap();
        let next = tokio::spawn(async move {
            let guard = Redlock::new(servers).unwrap().mutex("m").lock().await.unwrap();
            (Instant::now(), guard)
        });
        timeout(LEASE, guard.lost()).await.unwrap();
        let lost = Instant::now();
        let (acquired, other) = next.await.unwrap();
        assert!(lost < acquired, "{fault:?}");
        assert!(acquired - lost < LEASE / 50, "{:?}", acquired - lost);
        assert_eq!(kind(guard.refresh().await), ErrorKind::Lost);
        assert_eq!(kind(guard.unlock().await), ErrorKind::Lost);
        sleep(3 * LEASE).await;
        assert!(!other.is_lost());
    }
}

/// Each renewal fails somewhere, and none at a majority.
#[tokio::test(start_paused = true)]
async fn renewals_that_fail_in_turn_are_no_loss() {
    let servers: [_; 5] = servers();
    let seen: Vec<_> =
        servers.iter().map(|server| Faulty::over(server.clone(), |_| None)).collect();
    for (at, server) in seen.iter().enumerate() {
        let mut renewals = 0;
        server.plan(move |op| {
            renewals += usize::from(op == Op::Renew);
            let fails = op == Op::Renew && [at, at + 1].contains(&(renewals % 5));
            fails.then_some(if renewals % 2 == 0 { Fault::Hang } else { Fault::LoseReply })
        });
    }
    let guard = Redlock::new(seen.clone()).unwrap().mutex("m").lease(LEASE).lock().await.unwrap();
    sleep(20 * LEASE).await;
    assert!(!guard.is_lost());
    guard.unlock().await.unwrap();
    let renewals = seen[0].count(Op::Renew);
    sleep(5 * LEASE).await;
    assert_eq!(seen[0].count(Op::Renew), renewals, "the watchdog outlives the unlock");
}

/// Two of three forget the lock, as servers do that come back empty: told at the next renewal.
#[tokio::test(start_paused = true)]
async fn a_majority_that_forgot_is_told_at_the_next_renewal() {
    let servers: [_; 3] = servers();
    let redlock = Redlock::new(servers.clone()).unwrap();
    let guard = redlock.mutex("m").lease(LEASE).lock().await.unwrap();
    servers[0].clear(&name("m"), Mode::Exclusive).await.unwrap();
    sleep(5 * LEASE).await;
    assert!(!guard.is_lost(), "one that forgot is no loss");
    servers[1].clear(&name("m"), Mode::Exclusive).await.unwrap();
    timeout(LEASE / 2, guard.lost()).await.unwrap();
    assert_eq!(kind(guard.unlock().await), ErrorKind::Lost);
    assert_eq!(shares(&servers, "m").await, 0);
}

/// What is not known of one lease of a batch does not cost the others anything.
#[tokio::test(start_paused = true)]
async fn a_lease_in_doubt_does_not_take_others_with_it() {
    let servers: [_; 3] = servers();
    let seen = seen(&servers, &[]);
    let redlock = Redlock::new(seen.clone()).unwrap();
    let doubtful = redlock.mutex("doubtful").lease(LEASE).lock().await.unwrap();
    let sound = redlock.mutex("sound").lease(LEASE).lock().await.unwrap();
    servers[0].clear(&name("doubtful"), Mode::Exclusive).await.unwrap();
    seen[1].plan(|_| Some(Fault::Hang));
    let begun = Instant::now();
    doubtful.lost().await;
    // It may be held at the silent one, so it lasts as long as that would have it.
    assert!(begun.elapsed() > LEASE * 9 / 10 && begun.elapsed() < LEASE);
    sleep(5 * LEASE).await;
    assert!(!sound.is_lost());
    sound.unlock().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_unlock_says_what_it_knows_and_is_repeated() {
    let servers: [_; 3] = servers();
    let seen = seen(&servers, &[]);
    let redlock = Redlock::new(seen.clone()).unwrap();
    let lock = async || redlock.mutex("m").lease(LEASE).lock().await.unwrap();
    // One does not answer: unlocked all the same, and there in the background.
    let guard = lock().await;
    let mut silent = 3;
    seen[0].plan(move |op| {
        silent -= u32::from(silent > 0 && op == Op::Release);
        (silent > 0 && op == Op::Release).then_some(Fault::Hang)
    });
    guard.unlock().await.unwrap();
    assert_eq!(shares(&servers, "m").await, 1);
    sleep(1200 * MS).await;
    assert_eq!(shares(&servers, "m").await, 0);
    // Two do not.
    let guard = lock().await;
    for server in &seen[..2] {
        server.plan(|op| (op == Op::Release).then_some(Fault::Refuse));
    }
    assert_eq!(kind(guard.unlock().await), ErrorKind::Backend);
    seen.iter().for_each(|server| server.plan(|_| None));
    sleep(100 * MS).await;
    assert_eq!(shares(&servers, "m").await, 0);
    // And a dropped guard gives back everywhere.
    drop(lock().await);
    sleep(MS).await;
    assert_eq!(shares(&servers, "m").await, 0);
}

/// Each acquisition is dropped after so many polls, wherever it is then.
#[tokio::test(start_paused = true)]
async fn an_acquisition_dropped_at_any_await_leaves_nothing() {
    for fault in [None, Some(Fault::LoseReply), Some(Fault::Late(5 * MS))] {
        for contended in [false, true] {
            for polls in 1..40 {
                let servers: [_; 3] = servers();
                let seen: Vec<_> =
                    servers.iter().map(|server| Faulty::over(server.clone(), |_| None)).collect();
                seen[0].plan(move |op| (op == Op::Acquire).then_some(fault?));
                seen[1].plan(|op| (op == Op::Acquire).then_some(Fault::Late(MS)));
                if contended {
                    // One free, one soon, and one never: everything from a split to a grant is met.
                    occupy(&servers[1], "m", 5 * MS).await;
                    occupy(&servers[2], "m", 20 * MS).await;
                }
                let redlock = Redlock::new(seen).unwrap();
                let mutex = redlock.mutex("m").lease(LEASE);
                let mut left = polls;
                let locked = {
                    let mut locking = pin!(mutex.lock());
                    std::future::poll_fn(|cx| match locking.as_mut().poll(cx) {
                        Poll::Ready(locked) => Poll::Ready(Some(locked)),
                        Poll::Pending => {
                            left -= 1;
                            if left == 0 { Poll::Ready(None) } else { Poll::Pending }
                        }
                    })
                    .await
                };
                drop(locked);
                // What was on its way has arrived, and was undone.
                sleep(60 * MS).await;
                assert_eq!(shares(&servers, "m").await, 0, "{fault:?} {contended} {polls}");
            }
        }
    }
}

/// The acquisitions arrive long after their caller went away, when the first undo has found nothing.
#[tokio::test(start_paused = true)]
async fn what_arrives_late_is_undone_within_a_lease() {
    let servers: [_; 3] = servers();
    let stray = |inner: &MemoryBackend| Stray { inner: inner.clone(), by: 300 * MS };
    let redlock = Redlock::new(servers.iter().map(stray)).unwrap();
    let lease = Duration::from_secs(2);
    let mutex = redlock.mutex("m").lease(lease);
    assert_eq!(kind(mutex.try_lock().await), ErrorKind::Backend);
    sleep(290 * MS).await;
    assert_eq!(shares(&servers, "m").await, 3, "it arrives");
    let begun = Instant::now();
    let other = Redlock::new(servers.clone()).unwrap();
    let guard = other.mutex("m").lock().await.unwrap();
    assert!(begun.elapsed() <= lease, "{:?}", begun.elapsed());
    // The undo is of that try and of nothing else.
    sleep(3 * lease).await;
    assert!(!guard.is_lost());
    assert_eq!(shares(&servers, "m").await, 3);
}

/// The first try has no answer from one server and is undone there, again after one lease. By then a later try
/// of the same acquisition holds the lock, and must not be undone with it.
#[tokio::test(start_paused = true)]
async fn the_undo_of_a_failed_try_spares_the_next_one() {
    let servers: [_; 3] = servers();
    let other = occupy(&servers[1], "m", LEASE).await;
    let seen = seen(&servers, &[]);
    let mut first = [Some(Fault::Hang), None].into_iter();
    seen[0].plan(move |op| if op == Op::Acquire { first.next().flatten() } else { None });
    let mut refused = [Some(Fault::Refuse), None].into_iter();
    seen[2].plan(move |op| if op == Op::Acquire { refused.next().flatten() } else { None });
    let lease = Duration::from_secs(1);
    let guard = Redlock::new(seen).unwrap().mutex("m").lease(lease).lock().await.unwrap();
    assert_eq!(shares(&servers, "m").await, 3);
    servers[1].release(&other).await.unwrap();
    sleep(5 * lease).await;
    assert_eq!(shares(&servers, "m").await, 2, "its two, and no more");
    assert!(!guard.is_lost());
    guard.unlock().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_fixed_lease_ends_by_itself() {
    let servers: [_; 3] = servers();
    let redlock = Redlock::new(servers.clone()).unwrap();
    let guard = redlock.mutex("m").lease(LEASE).fixed_lease().lock().await.unwrap();
    let begun = Instant::now();
    guard.lost().await;
    // A hundredth and 2 ms are not trusted.
    assert!(begun.elapsed() < LEASE && begun.elapsed() >= LEASE * 98 / 100);
    drop(Redlock::new(servers).unwrap().mutex("m").lock().await.unwrap());
    assert_eq!(kind(guard.unlock().await), ErrorKind::Lost);
}

#[tokio::test(start_paused = true)]
async fn a_holder_takes_it_again_and_others_do_not() {
    let servers: [_; 3] = servers();
    let seen = seen(&servers, &[]);
    let redlock = Redlock::new(seen.clone()).unwrap();
    let (one, another) = {
        let mutex = redlock.reentrant_mutex("m").lease(LEASE);
        (mutex.holder(), mutex.holder())
    };
    let (first, again) = (one.lock().await.unwrap(), one.lock().await.unwrap());
    assert_eq!(seen[0].count(Op::Acquire), 1);
    assert!(another.try_lock().await.unwrap().is_none());
    assert!(redlock.mutex("m").try_lock().await.unwrap().is_none());
    first.unlock().await.unwrap();
    assert!(redlock.reentrant_mutex("m").is_locked().await.unwrap());
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
async fn settings_names_and_shutdown_are_told() {
    assert_eq!(kind(Redlock::new(Vec::<MemoryBackend>::new())), ErrorKind::InvalidConfig);
    let servers: [_; 3] = servers();
    let redlock = Redlock::new(servers.clone()).unwrap();
    assert_eq!(kind(redlock.mutex("").lock().await), ErrorKind::InvalidKey);
    assert_eq!(kind(redlock.mutex("m").lease(MS).lock().await), ErrorKind::InvalidConfig);
    let guard = redlock.mutex("m").lock().await.unwrap();
    let begun = Instant::now();
    let impatient = redlock.mutex("m").retry(Retry::fixed(10 * MS).times(3));
    assert_eq!(kind(impatient.lock().await), ErrorKind::NotAcquired);
    assert!(begun.elapsed() <= 35 * MS);
    let waiting = tokio::spawn({
        let mutex = redlock.mutex("m");
        async move { mutex.lock().await }
    });
    sleep(MS).await;
    redlock.shutdown(Duration::from_secs(1)).await;
    assert_eq!(kind(waiting.await.unwrap()), ErrorKind::ShutDown);
    assert_eq!(kind(redlock.mutex("n").try_lock().await), ErrorKind::ShutDown);
    guard.unlock().await.unwrap();
    assert_eq!(shares(&servers, "m").await, 0);
}
