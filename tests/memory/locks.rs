//! The promises of a lock. `Locks` over one memory backend stand for processes.
//!
//! Time is paused, so every wait here is exact and takes no time.

use bellwether::{
    Redlock,
    backend::Renewal,
    error::BackendError,
    lease::Retry,
    lock::{MutexGuard, PermitId, Upgrade},
    testing::{Answer, Hook, Interceptor, Operation},
};
use futures_util::poll;
use testkit::handover_life;
use tokio::task::JoinSet;

use crate::prelude::*;

const LEASE: Duration = Duration::from_secs(10);

fn two() -> (Locks, Locks) {
    let backend = MemoryBackend::new();
    (Locks::new(backend.clone(), "bellwether"), Locks::new(backend, "bellwether"))
}

#[tokio::test(start_paused = true)]
async fn a_lock_has_one_holder_at_a_time_and_growing_fences() {
    let backend = MemoryBackend::new();
    let inside = Arc::new(AtomicUsize::new(0));
    let last = Arc::new(Mutex::new(0));
    let tasks = (0..40).map(|_| {
        let locks = Locks::new(backend.clone(), "bellwether");
        let inside = inside.clone();
        let last = last.clone();
        spawn(async move {
            let guard = locks.mutex("m").lock().await.unwrap();
            assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
            let before = std::mem::replace(&mut *last.lock().unwrap(), guard.fence());
            assert!(guard.fence() > before);
            sleep(10 * MS).await;
            inside.fetch_sub(1, Ordering::SeqCst);
            guard.unlock().await.unwrap();
        })
    });
    let begun = Instant::now();
    all(tasks).await;
    // Pushes alone wake the waiters: no timer adds to the time of the holds.
    assert!(begun.elapsed() < 450 * MS, "{:?}", begun.elapsed());
}

/// A process keeps the queue entries of each name by one request, and those of thousands of names
/// by 2,000 requests a second. No waiter loses its entry and has to ask again.
#[tokio::test(start_paused = true)]
async fn queues_are_kept_in_time_whatever_their_number() {
    for count in [1, 100, 2_000] {
        let faulty = Faulty::new(|_| None);
        let here = Locks::new(faulty.clone(), "bellwether");
        let there = Locks::new(faulty.inner.clone(), "bellwether");
        let mut held = Vec::new();
        let mut waiting = JoinSet::new();
        for name in 0..count {
            held.push(there.mutex(name.to_string()).lock().await.unwrap());
            let mutex = here.mutex(name.to_string()).fair();
            waiting.spawn(async move { drop(mutex.lock().await.unwrap()) });
        }
        sleep(LEASE).await;
        let kept = faulty.count(Op::Keep);
        assert!(kept <= (18 * count).min(count + 23_000), "{kept} requests for {count} names");
        drop(held);
        waiting.join_all().await;
        assert_eq!(faulty.count(Op::Acquire), count);
    }
}

/// A claim sets the deadline of its process for all of its entries in a queue. With so many names
/// they are kept less often than such a deadline lasts.
#[tokio::test(start_paused = true)]
async fn a_second_claim_costs_the_first_no_place() {
    const NAMES: usize = 6_000;
    let faulty = Faulty::new(|_| None);
    let here = Locks::new(faulty.clone(), "bellwether");
    let there = Locks::new(faulty.inner.clone(), "bellwether");
    let mut held = Vec::new();
    let mut waiting = JoinSet::new();
    for name in 0..NAMES {
        held.push(there.mutex(name.to_string()).lock().await.unwrap());
    }
    for _ in 0..2 {
        for name in 0..NAMES {
            let mutex = here.mutex(name.to_string()).fair();
            waiting.spawn(async move { drop(mutex.lock().await.unwrap()) });
        }
        sleep(LEASE).await;
    }
    drop(held);
    waiting.join_all().await;
    assert_eq!(faulty.count(Op::Acquire), 2 * NAMES);
}

#[tokio::test(start_paused = true)]
async fn a_wait_ends_with_its_strategy() {
    let (here, there) = two();
    let _guard = here.mutex("m").lock().await.unwrap();
    let waits: [(_, Duration); 2] = [
        (there.mutex("m").retry(Retry::fixed(100 * MS).times(3)), 300 * MS),
        (there.mutex("m").retry(|| [40 * MS, 20 * MS].into_iter()), 60 * MS),
    ];
    for (mutex, expected) in waits {
        let begun = Instant::now();
        assert_eq!(mutex.lock().await.unwrap_err().kind(), ErrorKind::NotAcquired);
        // The timer of a paused clock rounds each wait up to a millisecond.
        let elapsed = begun.elapsed();
        assert!(elapsed >= expected && elapsed <= expected + 5 * MS, "{elapsed:?}");
    }
}

/// A lease that is handed over lasts for a short time, whatever its full time. A failed renewal is
/// therefore tried again within that short time.
#[tokio::test(start_paused = true)]
async fn a_handover_outlives_failed_renewals() {
    let faulty = first(3, Op::Renew, Fault::Refuse);
    let lease = 60 * SECOND;
    let mutex = |backend: Faulty| Locks::new(backend, "bellwether").mutex("m").fair();
    let held = mutex(Faulty::over(faulty.inner.clone(), |_| None)).lock().await.unwrap();
    let next = mutex(faulty.clone()).lease(lease);
    let waiting = spawn(async move { next.lock().await.unwrap() });
    // The waiter has registered before it asks.
    while faulty.count(Op::Acquire) < 1 {
        sleep(MS).await;
    }
    held.unlock().await.unwrap();
    let guard = waiting.await.unwrap();
    assert_eq!(faulty.count(Op::Acquire), 1, "the waiter asked for what was handed over to it");
    assert!(guard.remaining() < handover_life(), "{:?}", guard.remaining());
    while faulty.count(Op::Renew) < 4 && !guard.is_lost() {
        sleep(MS).await;
    }
    sleep(MS).await;
    assert!(!guard.is_lost());
    assert!(guard.remaining() > lease / 2, "{:?}", guard.remaining());
    guard.unlock().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_thousand_locks_are_renewed_together() {
    let faulty = Faulty::new(|_| None);
    let locks = Locks::new(faulty.clone(), "bellwether");
    let mut guards = Vec::new();
    for n in 0..1000 {
        guards.push(locks.mutex(n).lease(LEASE).lock().await.unwrap());
    }
    sleep(3 * LEASE + LEASE / 6).await;
    assert!(guards.iter().all(|guard| !guard.is_lost()));
    // Nine renewals, a third of the lease apart or somewhat less, of ten hundreds each.
    assert!((80..=120).contains(&faulty.count(Op::Renew)), "{}", faulty.count(Op::Renew));
}

#[tokio::test(start_paused = true)]
async fn namespaces_and_settings_are_checked() {
    let backend = MemoryBackend::new();
    let locks = Locks::new(backend.clone(), "bellwether");
    let other = Locks::new(backend, "other");
    let _guard = locks.mutex("{m}").lock().await.unwrap();
    assert!(other.mutex("{m}").try_lock().await.unwrap().is_some());
    let elsewhere = Locks::new(MemoryBackend::new(), "a b");
    for outcome in [
        elsewhere.mutex("m").holder().await.map(drop),
        elsewhere.several(["m"]).try_lock().await.map(drop),
        elsewhere.latch("m").left().await.map(drop),
    ] {
        let error = outcome.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidConfig);
        assert!(error.to_string().contains("\"a b\""), "it does not state the namespace: {error}");
    }
    for mutex in [locks.mutex("m").renew_every(LEASE), locks.mutex("m").max_hold(MS)] {
        assert_eq!(mutex.lock().await.unwrap_err().kind(), ErrorKind::InvalidConfig);
    }
}

#[tokio::test(start_paused = true)]
async fn a_fixed_lease_ends_by_itself_and_its_unlock_reports_that() {
    let (here, there) = two();
    // The holder is stuck, and does not block its own process either.
    for next in [here.mutex("m"), there.mutex("m")] {
        let guard = here.mutex("m").lease(LEASE).fixed_lease().lock().await.unwrap();
        let begun = Instant::now();
        let next = next.lock().await.unwrap();
        assert!(begun.elapsed() <= LEASE + 100 * MS, "{:?}", begun.elapsed());
        assert!(guard.is_lost() && !next.is_lost());
        assert_eq!(guard.unlock().await.unwrap_err().kind(), ErrorKind::Lost);
        next.unlock().await.unwrap();
    }
}

/// The lock was reported as lost, and may still be held at the server. An unlock that reports
/// success would contradict that.
#[tokio::test(start_paused = true)]
async fn a_stuck_holder_loses_the_lock_at_its_hold_limit() {
    for unlocks in [true, false] {
        let (here, there) = two();
        let guard = here.mutex("m").lease(LEASE).max_hold(3 * LEASE).lock().await.unwrap();
        let begun = Instant::now();
        guard.lost().await;
        assert_eq!(begun.elapsed().as_secs(), 30);
        assert!(there.mutex("m").holder().await.unwrap().is_some());
        if unlocks {
            assert_eq!(kind(guard.unlock().await), ErrorKind::Lost);
            assert!(there.mutex("m").try_lock().await.unwrap().is_some());
        } else {
            drop(there.mutex("m").lock().await.unwrap());
            assert!(begun.elapsed() <= 4 * LEASE + 100 * MS);
        }
    }
}

/// A holder is stuck with a lease that is not renewed, so it does not learn that the lease was
/// ended. The waiters of its process waited behind it for the end of the lease.
#[tokio::test(start_paused = true)]
async fn a_fixed_lease_ended_from_outside_does_not_block_its_process() {
    let (here, there) = two();
    let _stuck = here.mutex("m").lease(360 * LEASE).fixed_lease().lock().await.unwrap();
    let waiting = locking(&here);
    sleep(MS).await;
    assert!(there.mutex("m").force_unlock().await.unwrap());
    let guard = timeout(MS, waiting).await.expect("it waits for a holder without a lease");
    guard.unwrap().unwrap().unlock().await.unwrap();
    here.mutex("m").try_lock().await.unwrap().unwrap().unlock().await.unwrap();
}

/// No permit can be acquired, but the permits in use can be counted and released.
#[tokio::test(start_paused = true)]
async fn a_limit_of_zero_closes_a_semaphore_for_new_permits() {
    let (here, there) = two();
    let id = here.permits("s", 1).acquire().await.unwrap();
    let closed = there.semaphore("s", 0);
    assert_eq!(closed.available().await.unwrap(), 0);
    assert_eq!(closed.try_acquire().await.unwrap_err().kind(), ErrorKind::InvalidConfig);
    there.permits("s", 0).renew(id).await.unwrap();
    assert!(there.permits("s", 0).release(id).await.unwrap());
    assert!(!closed.force_unlock().await.unwrap());
}

/// Acquires the lock in a task.
fn locking(locks: &Locks) -> JoinHandle<Result<MutexGuard, Error>> {
    let mutex = locks.mutex("m");
    spawn(async move { mutex.lock().await })
}

fn waiting(locks: &Locks, order: &Arc<Mutex<Vec<usize>>>, n: usize) -> JoinHandle<()> {
    let locking = locking(locks);
    let order = order.clone();
    spawn(async move {
        let guard = locking.await.unwrap().unwrap();
        order.lock().unwrap().push(n);
        sleep(MS).await;
        guard.unlock().await.unwrap();
    })
}

#[tokio::test(start_paused = true)]
async fn the_callers_of_one_process_are_served_in_order_and_one_contends() {
    let faulty = Faulty::new(|_| None);
    let locks = Locks::new(faulty.clone(), "bellwether");
    let order = Arc::default();
    let mut tasks = Vec::new();
    for n in 0..10 {
        tasks.push(waiting(&locks, &order, n));
        tokio::task::yield_now().await;
    }
    all(tasks).await;
    assert_eq!(*order.lock().unwrap(), (0..10).collect::<Vec<_>>());
    let calls = [Op::Acquire, Op::Pass, Op::Release].map(|op| faulty.count(op));
    assert_eq!(calls, [1, 9, 1]);
}

/// A process with a long local queue would keep the lock for itself until the queue is empty.
#[tokio::test(start_paused = true)]
async fn a_local_queue_gives_other_processes_their_turn() {
    let (here, there) = two();
    let order = Arc::default();
    let mut tasks: Vec<_> = (0..100).map(|n| waiting(&here, &order, n)).collect();
    sleep(5 * MS).await;
    tasks.push(waiting(&there, &order, 1000));
    all(tasks).await;
    let at = order.lock().unwrap().iter().position(|n| *n == 1000).unwrap();
    assert!((5..=40).contains(&at), "the other process was served after {at} callers");
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_leaves_the_local_queue_delays_no_other() {
    let (here, _) = two();
    let order: Arc<Mutex<Vec<usize>>> = Arc::default();
    let first = here.mutex("m").lock().await.unwrap();
    let leaving = locking(&here);
    tokio::task::yield_now().await;
    let staying = waiting(&here, &order, 2);
    sleep(MS).await;
    leaving.abort();
    let begun = Instant::now();
    first.unlock().await.unwrap();
    staying.await.unwrap();
    assert!(begun.elapsed() < 5 * MS);
    assert_eq!(*order.lock().unwrap(), [2]);
}

/// A `select!` arm is often kept and not polled. The locks over one backend are in
/// `tests/conformance`.
#[tokio::test(start_paused = true)]
async fn a_waiter_of_a_redlock_that_is_not_polled_delays_others_for_its_lease() {
    let lease = 1000 * MS;
    let servers = [(); 3].map(|()| MemoryBackend::new());
    let [here, there] = [(); 2].map(|()| Redlock::over(servers.clone(), "bellwether").unwrap());
    for locks in [&here, &there] {
        let held = here.mutex("m").lock().await.unwrap();
        let mutex = locks.mutex("m").lease(lease);
        let mut kept = Box::pin(mutex.lock());
        assert!(timeout(50 * MS, &mut kept).await.is_err());
        held.unlock().await.unwrap();
        let begun = Instant::now();
        locks.mutex("m").lock().await.unwrap().unlock().await.unwrap();
        assert!(begun.elapsed() <= lease + 100 * MS, "{:?}", begun.elapsed());
        kept.await.unwrap().unlock().await.unwrap();
    }
}

/// The answer to the pass is lost. The next slot of the local queue gets the lease at once,
/// whichever of the two owners has it.
#[tokio::test(start_paused = true)]
async fn a_pass_whose_answer_is_lost_orphans_nothing() {
    for fault in [Fault::LoseReply, Fault::Hang, Fault::Refuse] {
        let locks = Locks::new(once(Op::Pass, fault), "bellwether");
        let first = locks.mutex("m").lock().await.unwrap();
        let second = locking(&locks);
        sleep(MS).await;
        let begun = Instant::now();
        assert_eq!(first.unlock().await.unwrap_err().kind(), ErrorKind::Backend);
        let second = second.await.unwrap().unwrap();
        assert!(begun.elapsed() < 2 * SECOND, "{fault:?}: {:?}", begun.elapsed());
        second.unlock().await.unwrap();
    }
}

/// The answer to the pass is lost, and the caller that it was for leaves before that is known. The
/// lock was then held by nothing, until the end of the lease.
#[tokio::test(start_paused = true)]
async fn a_pass_to_a_caller_that_leaves_meanwhile_orphans_nothing() {
    for fault in [Fault::LoseReply, Fault::Hang, Fault::Late(50 * MS)] {
        for by_its_limit in [false, true] {
            let locks = Locks::new(once(Op::Pass, fault), "bellwether");
            let first = locks.mutex("m").lock().await.unwrap();
            let mutex = locks.mutex("m").wait_limit(if by_its_limit { 20 } else { 10_000 } * MS);
            let second = spawn(async move { mutex.lock().await.map(drop) });
            sleep(MS).await;
            let third = locking(&locks);
            sleep(MS).await;
            let begun = Instant::now();
            let first = spawn(first.unlock());
            sleep(10 * MS).await;
            if !by_its_limit {
                second.abort();
            }
            let third = third.await.unwrap().unwrap();
            assert!(begun.elapsed() < 2 * SECOND, "{fault:?}: {:?}", begun.elapsed());
            let _ = first.await.unwrap();
            third.unlock().await.unwrap();
            assert!(locks.mutex("m").holder().await.unwrap().is_none());
        }
    }
}

/// A reader with a lost lease asks for an upgrade beside another reader. A plain refusal says too
/// little: the reader would go on reading during the writes of another.
#[tokio::test(start_paused = true)]
async fn a_refused_upgrade_reports_a_lost_lease() {
    let (here, there) = two();
    let reader = here.rw_lock("m").read().await.unwrap();
    let other = there.rw_lock("m").read().await.unwrap();
    let Upgrade::Busy(reader) = reader.try_upgrade().await.unwrap() else {
        panic!("the upgrade succeeded beside another reader");
    };
    assert!(there.rw_lock("m").force_unlock().await.unwrap());
    drop(there.rw_lock("m").read().await.unwrap());
    assert_eq!(reader.try_upgrade().await.unwrap_err().kind(), ErrorKind::Lost);
    assert_eq!(other.unlock().await.unwrap_err().kind(), ErrorKind::Lost);
    there.rw_lock("m").write().await.unwrap().unlock().await.unwrap();
}

/// A reader asks for an upgrade beside another reader, and then whether it is still a reader. The
/// second question gets no answer. After `Refused`, the caller would go on as a reader of a lock
/// that it may have lost.
#[tokio::test(start_paused = true)]
async fn a_refused_upgrade_reports_an_unanswered_renewal() {
    let unanswered = |op| (op == Op::Renew).then_some(Fault::LoseReply);
    let memory = MemoryBackend::new();
    let there = Locks::new(memory.clone(), "bellwether");
    let here = Locks::new(Faulty::over(memory, unanswered), "bellwether");
    let other = there.rw_lock("m").read().await.unwrap();
    let reader = here.rw_lock("m").read().await.unwrap();
    assert_eq!(reader.try_upgrade().await.unwrap_err().kind(), ErrorKind::Backend);
    other.unlock().await.unwrap();
    there.rw_lock("m").write().await.unwrap().unlock().await.unwrap();
}

/// The first try begins the lease, and its reply is lost. The second one only tells of it.
#[tokio::test(start_paused = true)]
async fn a_downgrade_counts_its_lease_from_its_first_try() {
    let locks = Locks::new(once(Op::Pass, Fault::LoseReply), "bellwether");
    let lock = locks.rw_lock("m").lease(LEASE).fixed_lease();
    let writer = lock.write().await.unwrap();
    let begun = Instant::now();
    let reader = writer.downgrade().await.unwrap();
    let late = begun.elapsed();
    assert!(late >= 250 * MS && reader.remaining() <= LEASE - late, "{:?}", reader.remaining());
    reader.unlock().await.unwrap();
}

/// The lease has passed, its reply is lost, and its renewal under the old owner is due meanwhile.
#[tokio::test(start_paused = true)]
async fn a_downgrade_is_no_loss() {
    let locks = Locks::new(once(Op::Pass, Fault::LoseReply), "bellwether");
    let writer = locks.rw_lock("m").lease(600 * MS).write().await.unwrap();
    sleep(100 * MS).await;
    writer.downgrade().await.unwrap().unlock().await.unwrap();
    assert_eq!(locks.stats().lost, 0);
}

/// Thousands of leases were released at once, and the last release had its turn seconds later. A
/// short lease ended meanwhile, and its release reported a loss.
#[tokio::test(start_paused = true)]
async fn releases_wait_for_no_turn() {
    const SHORT: Duration = Duration::from_millis(500);
    let slow = Faulty::new(|op| (op == Op::Release).then_some(Fault::Late(50 * MS)));
    let locks = Locks::new(slow, "bellwether");
    let mut guards = Vec::new();
    for at in 0..5000 {
        guards.push(locks.mutex(format!("m{at}")).lease(SHORT).lock().await.unwrap());
    }
    let begun = Instant::now();
    let mut releases: Vec<_> = guards.into_iter().map(|guard| spawn(guard.unlock())).collect();
    // The runtime of a caller that leaves goes on with the release.
    releases[4999].abort();
    let last = releases.pop().unwrap();
    assert!(all(releases).await.iter().all(Result::is_ok));
    assert!(last.await.unwrap_err().is_cancelled());
    assert!(begun.elapsed() < SHORT / 2, "{:?}", begun.elapsed());
    assert_eq!(locks.stats().held, 0);
}

#[tokio::test(start_paused = true)]
async fn an_error_names_the_lock_and_what_ended_the_wait() {
    let limit = 200 * MS;
    let once = Retry::on_demand().times(0);
    let locks = Locks::new(MemoryBackend::new(), "shop");
    let mutex = locks.mutex("{held}").wait_limit(limit);
    let held = mutex.lock().await.unwrap();
    let waited = mutex.lock().await;
    let tried = mutex.clone().retry(once).lock().await;
    assert!(mutex.force_unlock().await.unwrap());
    let sem = locks.semaphore("sem", 1).wait_limit(limit);
    let _permit = sem.acquire().await.unwrap();
    let rw = locks.rw_lock("rw").wait_limit(limit);
    let _write = rw.write().await.unwrap();
    for (error, said) in [
        (waited.err(), "\"{held}\" (mutex) was not acquired within its wait limit of 200ms"),
        (tried.err(), "\"{held}\" (mutex) was not acquired before its retry strategy ended"),
        (
            held.unlock().await.err(),
            "the lease of \"{held}\" was lost; another holder may have it by now",
        ),
        (
            sem.acquire().await.err(),
            "\"sem\" (permits) was not acquired within its wait limit of 200ms",
        ),
        (sem.acquire_many(2).await.err(), "2 permits of \"sem\" are requested, but it has only 1"),
        (
            locks.semaphore("s", 0).acquire().await.err(),
            "the semaphore \"s\" has 0 permits; give at least 1",
        ),
        (locks.mutex("").lock().await.err(), "the name is empty; give at least 1 byte"),
        (
            rw.read().await.err(),
            "\"rw\" (read-write) was not acquired within its wait limit of 200ms",
        ),
    ] {
        assert_eq!(error.unwrap().to_string(), said);
    }
    let _b = locks.mutex("b").lock().await.unwrap();
    let error = locks.several(["a", "b", "c"]).wait_limit(limit).lock().await.unwrap_err();
    let said = "\"b\" (mutex) was not acquired within its wait limit of 200ms";
    assert!(error.to_string().contains(said), "{error}");
}

/// Three tasks of the holder's own process were listed as "0 waiting", as if nobody waited.
#[tokio::test(start_paused = true)]
async fn a_list_says_which_waiters_it_does_not_know() {
    let backend = MemoryBackend::new();
    let here = Locks::new(backend.clone(), "bellwether");
    let there = Locks::new(backend, "bellwether");
    let _held = here.mutex("m").lock().await.unwrap();
    let _permit = here.semaphore("s", 1).acquire().await.unwrap();
    let waits = |locks: &Locks| {
        let mutex = locks.mutex("m");
        let semaphore = locks.semaphore("s", 1);
        [
            spawn(async move { mutex.lock().await.map(drop) }),
            spawn(async move { semaphore.acquire().await.map(drop) }),
        ]
    };
    let _waiters: Vec<_> = [&here, &here, &here, &there].into_iter().map(waits).collect();
    sleep(SECOND).await;
    let listed: Vec<_> = there.list().await.unwrap().iter().map(ToString::to_string).collect();
    let of = |name: &str| listed.iter().find(|line| line.starts_with(name)).unwrap();
    // Each process has one place in the queue of a mutex, and each caller one for permits.
    let unknown = "callers in the holder's process: not known";
    assert!(of("s (").ends_with(", 4 waiting at the server"), "{listed:#?}");
    assert!(of("m (").contains(" waiting at the server; "), "{listed:#?}");
    assert!(of("m (").ends_with(unknown), "{listed:#?}");
}

/// Permits with an id are seen and ended as those of a semaphore, whose name they share.
#[tokio::test(start_paused = true)]
async fn permits_with_an_id_are_taken_together_seen_and_ended() {
    let locks = Locks::new(MemoryBackend::new(), "bellwether");
    let permits = locks.permits("m", 5).lease(60 * SECOND).wait_limit(Duration::ZERO);
    let three = permits.acquire_many(3).await.unwrap();
    assert_eq!(three.count(), 3);
    assert!(permits.try_acquire_many(3).await.unwrap().is_none());
    let one = permits.acquire().await.unwrap();
    assert_eq!((permits.available().await.unwrap(), one.count()), (1, 1));
    assert_eq!(locks.semaphore("m", 5).available().await.unwrap(), 1);
    let text = three.to_string();
    assert!(text.len() == 34 && text.ends_with(":3") && one.to_string().len() == 32, "{text}");
    let read: PermitId = text.parse().unwrap();
    assert_eq!((read, one.to_string().parse().unwrap()), (three, one));
    for wrong in ["", ":1", ":0", ":1001", ":x", ":3:3", ":+3x"] {
        let wrong = format!("{one}{wrong}");
        let parsed: Result<PermitId, Error> = wrong.parse();
        let is_right = wrong.len() == 32;
        assert_eq!(parsed.is_ok(), is_right, "{wrong}");
    }
    sleep(30 * SECOND).await;
    permits.renew(read).await.unwrap();
    let held = permits.holder().await.unwrap().unwrap();
    assert_eq!((held.holders, held.expires_in), (4, 60 * SECOND));
    sleep(31 * SECOND).await;
    // The permit that was not renewed has ended.
    assert_eq!(permits.available().await.unwrap(), 2);
    assert!(permits.release(read).await.unwrap() && !permits.release(read).await.unwrap());
    let two = permits.acquire_many(2).await.unwrap();
    assert!(permits.force_unlock().await.unwrap() && !permits.force_unlock().await.unwrap());
    assert_eq!(permits.holder().await.unwrap(), None);
    assert_eq!(kind(permits.renew(two).await), ErrorKind::Lost);
    for count in [0, 6] {
        assert_eq!(kind(permits.acquire_many(count).await), ErrorKind::InvalidConfig);
    }
}

/// The renewal that is under way came before the end, and its answer is lost.
#[tokio::test(start_paused = true)]
async fn a_holder_that_is_ended_during_a_renewal_learns_of_it_at_once() {
    let faulty = once(Op::Renew, Fault::LoseReply);
    let here = Locks::new(faulty.clone(), "bellwether");
    let there = Locks::new(faulty.inner.clone(), "bellwether");
    let guard = here.mutex("k").lease(LEASE).lock().await.unwrap();
    let renewed = async || faulty.count(Op::Renew) > 0;
    assert!(testkit::comes_true(LEASE, renewed).await);
    assert!(there.mutex("k").force_unlock().await.unwrap());
    timeout(400 * MS, guard.lost()).await.expect("the loss is told late");
}

/// A fixed lease is checked once after an end by force. The check failed, and no check followed.
#[tokio::test(start_paused = true)]
async fn a_fixed_lease_is_checked_until_there_is_an_answer() {
    let faulty = first(2, Op::Renew, Fault::Refuse);
    let here = Locks::new(faulty.clone(), "bellwether");
    let there = Locks::new(faulty.inner.clone(), "bellwether");
    let guard = here.mutex("k").lease(LEASE).fixed_lease().lock().await.unwrap();
    assert!(there.mutex("k").force_unlock().await.unwrap());
    timeout(LEASE / 5, guard.lost()).await.expect("the loss is noticed at the deadline only");
    // A lease that was not ended is checked no more.
    let kept = here.mutex("l").lease(LEASE).fixed_lease().lock().await.unwrap();
    let before = faulty.count(Op::Renew);
    sleep(LEASE / 2).await;
    assert_eq!(faulty.count(Op::Renew), before);
    kept.unlock().await.unwrap();
}

/// The answer to an explicit renewal came after the deadline of that moment. The task had renewed
/// the lease meanwhile, and the caller was told that the lease was lost.
#[tokio::test(start_paused = true)]
async fn a_renewal_that_is_slow_is_no_loss_while_the_lease_is_held() {
    let faulty = once(Op::Renew, Fault::Late(900 * MS));
    let locks = Locks::new(faulty, "bellwether");
    let guard = locks.mutex("k").lease(SECOND).renew_every(400 * MS).lock().await.unwrap();
    sleep(390 * MS).await;
    guard.renew().await.unwrap();
    assert!(!guard.is_lost());
    guard.unlock().await.unwrap();
}

/// The renewal was due during a conversion, and was put off until the deadline of that moment.
#[tokio::test(start_paused = true)]
async fn a_renewal_that_is_due_in_a_conversion_follows_soon() {
    let faulty = once(Op::Pass, Fault::Late(800 * MS));
    let locks = Locks::new(faulty.clone(), "bellwether");
    let others = Locks::new(faulty.inner.clone(), "bellwether");
    let lease = 9 * SECOND;
    let reader = locks.rw_lock("k").lease(lease).read().await.unwrap();
    let _other = others.rw_lock("k").lease(lease).read().await.unwrap();
    sleep(2900 * MS).await;
    let Upgrade::Busy(reader) = reader.try_upgrade().await.unwrap() else {
        panic!("there is another reader");
    };
    for _ in 0..100 {
        sleep(100 * MS).await;
        assert!(reader.remaining() > lease / 2, "{:?}", reader.remaining());
    }
}

/// A backend that hangs in the look-up of the holder kept its caller far beyond the wait limit.
#[tokio::test(start_paused = true)]
async fn the_label_of_the_holder_is_not_waited_for_for_long() {
    let faulty = Faulty::new(|op| (op == Op::Inspect).then_some(Fault::Late(900 * MS)));
    let locks = Locks::new(faulty.clone(), "bellwether").owner("here");
    let _held = Locks::new(faulty.inner.clone(), "bellwether").mutex("k").lock().await.unwrap();
    let begun = Instant::now();
    let error = locks.mutex("k").wait_limit(200 * MS).lock().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotAcquired);
    assert!(begun.elapsed() <= 500 * MS, "{:?}", begun.elapsed());
}

/// The backend does not know one of the leases for a while. The renewals of the others, which come
/// in the same request, are not put off.
#[tokio::test(start_paused = true)]
async fn a_renewal_that_fails_delays_no_other_lease() {
    let renews = OneUnknown::default();
    let backend = Interceptor { inner: MemoryBackend::new(), hook: renews.clone() };
    let locks = Locks::new(backend, "bellwether");
    let [unknown, known] = [UNKNOWN, "b"].map(|name| locks.mutex(name).lease(LEASE));
    let unknown = unknown.lock().await.unwrap();
    let known = known.lock().await.unwrap();
    for _ in 0..90 {
        sleep(100 * MS).await;
        assert!(known.remaining() > LEASE / 2, "{:?}", known.remaining());
    }
    assert!(renews.asked.load(Ordering::Relaxed) > 10, "a failed renewal is not repeated soon");
    timeout(SECOND, unknown.lost()).await.unwrap();
    assert!(!known.is_lost());
}

/// At a full shard, a claim waited for a permit for longer than an answer may stay unread. Then
/// each caller behind it in its process sent a claim of its own.
#[tokio::test(start_paused = true)]
async fn callers_behind_a_claim_that_waits_for_a_permit_do_not_contend() {
    const FULL: usize = 512;
    let faulty = Faulty::new(|op| (op == Op::Acquire).then_some(Fault::Late(900 * MS)));
    let locks = Locks::new(faulty.clone(), "bellwether");
    let lock = |name: String| {
        let retry = Retry::on_demand().try_limit(SECOND);
        let mutex = locks.mutex(name).lease(LEASE).retry(retry);
        spawn(async move { mutex.lock().await.unwrap() })
    };
    let fill: Vec<_> = (0..FULL).map(|name| lock(name.to_string())).collect();
    sleep(MS).await;
    let first = lock("k".to_owned());
    sleep(MS).await;
    let behind: Vec<_> = (0..20).map(|_| lock("k".to_owned())).collect();
    let held = first.await.unwrap();
    sleep(3 * SECOND).await;
    assert_eq!(faulty.count(Op::Acquire), FULL + 1);
    held.unlock().await.unwrap();
    for next in behind {
        next.await.unwrap().unlock().await.unwrap();
    }
    drop(all(fill).await);
}

/// A caller was given the slot of its process, and its future was polled late. The caller behind it
/// must not contend while the request of the first may still be answered.
#[tokio::test(start_paused = true)]
async fn the_time_for_an_answer_counts_from_the_request() {
    let faulty = Faulty::new(|_| None);
    let locks = Locks::new(faulty.clone(), "bellwether");
    let held = locks.mutex("k").lock().await.unwrap();
    let mutex = locks.mutex("k").retry(Retry::on_demand().try_limit(SECOND));
    let mut first = Box::pin(mutex.lock());
    assert!(poll!(&mut first).is_pending());
    let next = mutex.clone();
    let behind = spawn(async move { next.lock().await });
    sleep(MS).await;
    // After the time in which a process passes a lock on to its own callers.
    sleep(60 * MS).await;
    held.unlock().await.unwrap();
    sleep(600 * MS).await;
    let before = faulty.count(Op::Acquire);
    faulty.plan(|op| (op == Op::Acquire).then_some(Fault::Late(500 * MS)));
    let guard = first.await.unwrap();
    sleep(1_000 * MS).await;
    assert_eq!(faulty.count(Op::Acquire) - before, 1, "two callers of one process contend");
    guard.unlock().await.unwrap();
    drop(behind.await.unwrap().unwrap());
}

/// The acquisition was answered, so no grant can come after the release. A release without an
/// answer was repeated for another lease all the same.
#[tokio::test(start_paused = true)]
async fn a_release_after_a_known_acquisition_is_repeated_until_its_answer() {
    let faulty = once(Op::Release, Fault::LoseReply);
    let guard = Locks::new(faulty.clone(), "bellwether").mutex("k").lease(LEASE).lock().await;
    assert_eq!(kind(guard.unwrap().unlock().await), ErrorKind::Backend);
    sleep(3 * LEASE).await;
    assert_eq!(faulty.count(Op::Release), 2);
}

/// The name of the lease about which [`OneUnknown`] says nothing.
const UNKNOWN: &str = "unknown";

/// Leaves the renewals of one lease without an answer, and counts them.
#[derive(Clone, Default)]
struct OneUnknown {
    asked: Arc<AtomicUsize>,
}

impl Hook<MemoryBackend> for OneUnknown {
    async fn around(
        &self,
        inner: &MemoryBackend,
        operation: Operation,
    ) -> Result<Answer, BackendError> {
        let Operation::Renew { claims } = &operation else { return operation.perform(inner).await };
        let is_unknown = |claim: &Claim| format!("{:?}", claim.name).contains(UNKNOWN);
        let known: Vec<_> = claims.iter().filter(|claim| !is_unknown(claim)).cloned().collect();
        let mut answers = inner.renew(&known).await?.into_iter();
        let mut renewals = Vec::new();
        for claim in claims {
            if is_unknown(claim) {
                self.asked.fetch_add(1, Ordering::Relaxed);
                renewals.push(Renewal::Unknown);
            } else {
                renewals.extend(answers.next());
            }
        }
        Ok(Answer::Renew(renewals))
    }
}

/// The request that keeps the queue entries did its work, and its answer was lost. The next answer
/// did not say that the entries had lapsed, and only the waiters that it named asked at once.
#[tokio::test(start_paused = true)]
async fn all_waiters_ask_at_once_after_their_entries_have_lapsed() {
    const WAITERS: usize = 80;
    let faulty = Faulty::new(|op| (op == Op::Keep).then_some(Fault::Refuse));
    let here = Locks::new(faulty.clone(), "bellwether");
    let there = Locks::new(faulty.inner.clone(), "bellwether");
    let held = there.mutex("k").lock().await.unwrap();
    let waiters = (0..WAITERS).map(|_| {
        let mutex = here.mutex("k").fair();
        spawn(async move { mutex.lock().await.unwrap().unlock().await.unwrap() })
    });
    let waiters = waiters.collect::<Vec<_>>();
    sleep(3 * SECOND).await;
    assert_eq!(faulty.count(Op::Acquire), WAITERS);
    let mut is_first = true;
    faulty.plan(move |op| {
        let is_lost = op == Op::Keep && std::mem::take(&mut is_first);
        is_lost.then_some(Fault::LoseReply)
    });
    sleep(SECOND).await;
    assert_eq!(faulty.count(Op::Acquire), 2 * WAITERS);
    held.unlock().await.unwrap();
    all(waiters).await;
}
