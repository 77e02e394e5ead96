//! The order in which processes have the lock, counted in holds.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use bellwether::{
    MemoryBackend, RedisBackend, Redlock,
    backend::{Acquired, Claim, Leases, Mode},
    lock::{Majority, Mutex as Lock, Unfenced},
};
use futures_util::future::join_all;
use testkit::{RedisServer, faulty::Fault};
use tokio::{
    task::{JoinSet, yield_now},
    time::{Instant, sleep, timeout},
};

use super::{
    MS, name,
    played::{dead, servers},
    shares,
};

/// The holds that the tasks of all processes have seen.
#[derive(Default)]
struct Seen {
    holds: usize,
    of_each: Vec<usize>,
    /// The most holds of others between a task's wish for the lock and its hold.
    longest: usize,
}

impl Seen {
    /// Checks that no task has much fewer holds than another.
    fn check_counts(&self, what: &str) {
        let (fewest, most) = (self.of_each.iter().min(), self.of_each.iter().max());
        let (fewest, most) = (*fewest.unwrap(), *most.unwrap());
        println!("{what}: {fewest} to {most} holds, the longest wait is {}", self.longest);
        assert!(fewest * 10 >= most * 6, "{what}: {:?}", self.of_each);
    }

    /// Checks the counts, and the longest wait in holds.
    fn check(&self, what: &str) {
        self.check_counts(what);
        let (all, longest) = (self.of_each.len(), self.longest);
        assert!(longest <= 4 * all, "{what}: a task waited for {longest} holds of {all} tasks");
    }
}

/// Has the tasks of some processes acquire one lock again and again, until it was held `holds`
/// times, and then ends them.
async fn contend(processes: &[Redlock], tasks: usize, holds: usize, lasts: Duration) -> Seen {
    let all = processes.len() * tasks;
    let seen = Arc::new(Mutex::new(Seen { of_each: vec![0; all], ..Seen::default() }));
    let mut running = JoinSet::new();
    for at in 0..all {
        let (lock, seen) = (processes[at % processes.len()].mutex("m"), seen.clone());
        running.spawn(async move { while hold(&lock, at, &seen, lasts).await < holds {} });
    }
    timeout(Duration::from_secs(600), running.join_all()).await.unwrap();
    let mut seen = seen.lock().unwrap();
    std::mem::take(&mut seen)
}

/// Holds the lock once. Returns how often all tasks have held it.
async fn hold(lock: &Lock<Unfenced>, at: usize, seen: &Mutex<Seen>, lasts: Duration) -> usize {
    let before = seen.lock().unwrap().holds;
    let guard = lock.lock().await.unwrap();
    let now = {
        let mut seen = seen.lock().unwrap();
        seen.longest = seen.longest.max(seen.holds - before);
        seen.holds += 1;
        seen.of_each[at] += 1;
        seen.holds
    };
    match lasts.is_zero() {
        true => yield_now().await,
        false => sleep(lasts).await,
    }
    // A minority may be away.
    let _ = guard.unlock().await;
    now
}

/// Two processes of two tasks had 2 and 1,211 holds in 15 s, and the others failed: the process
/// that released the lock asked for it again before the waiters of others woke.
#[tokio::test(start_paused = true)]
async fn processes_have_the_lock_in_turn() {
    for count in [1, 3, 5] {
        for (processes, tasks) in [(2, 1), (2, 2), (4, 4), (10, 4), (3, 20)] {
            let servers: Vec<_> = (0..count).map(|_| MemoryBackend::new()).collect();
            let fronts: Vec<_> =
                (0..processes).map(|_| Redlock::new(servers.clone()).unwrap()).collect();
            for lasts in [Duration::ZERO, 20 * MS] {
                let seen = contend(&fronts, tasks, 40 * processes * tasks, lasts).await;
                seen.check(&format!("{processes} x {tasks} at {count}, {lasts:?}"));
            }
            sleep(MS).await;
            assert_eq!(shares(&servers, "m").await, 0);
        }
    }
}

/// The server that would order the waiters is down, or hangs.
///
/// Three of five servers may be free without the queue server. A process that took a server that
/// was away for the queue server then ignored the turns of others: its tasks had 401 holds, and
/// each other task had one.
#[tokio::test(start_paused = true)]
async fn processes_have_the_lock_in_turn_without_a_server() {
    for fault in [Fault::Refuse, Fault::Hang] {
        for away in 0..3 {
            let servers: [_; 3] = servers();
            check_turns_without(&servers, &[away], fault, MS).await;
        }
        for away in [&[0][..], &[0, 1]] {
            let servers: [_; 5] = servers();
            check_turns_without(&servers, away, fault, Duration::ZERO).await;
        }
    }
}

async fn check_turns_without(
    servers: &[MemoryBackend],
    away: &[usize],
    fault: Fault,
    lasts: Duration,
) {
    let fronts: Vec<_> =
        (0..4).map(|_| Redlock::new(dead(servers, away, fault)).unwrap()).collect();
    // The first holds find out which server is away.
    contend(&fronts, 4, 320, lasts).await;
    let seen = contend(&fronts, 4, 1600, lasts).await;
    seen.check(&format!("{} without {away:?}: {fault:?}", servers.len()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn processes_have_the_lock_in_turn_at_real_servers() {
    for (count, down) in [(3, 0), (5, 0), (3, 1), (5, 2)] {
        let mut servers = join_all((0..count).map(|_| RedisServer::start())).await;
        let urls: Vec<_> = servers.iter().map(RedisServer::url).collect();
        servers[..down].iter_mut().for_each(RedisServer::kill);
        let front = || {
            let backends = urls.iter().map(|url| RedisBackend::open(url).unwrap());
            Redlock::with_answer_limit(backends, Duration::from_millis(200)).unwrap()
        };
        for (processes, tasks) in [(2, 2), (4, 4)] {
            let fronts: Vec<_> = (0..processes).map(|_| front()).collect();
            // The first holds make the connections.
            contend(&fronts, tasks, 20 * processes * tasks, Duration::ZERO).await;
            let seen = contend(&fronts, tasks, 60 * processes * tasks, MS).await;
            // A busy machine makes a process miss its turn, so the longest wait is not checked.
            seen.check_counts(&format!("{processes} x {tasks} at {count} without {down}"));
        }
    }
}

/// A claim in its turn had the queue server. A process that had never waited asked all servers at
/// the same moment, and had the rest. Its next claim did the same, and so on: two tasks had 80
/// holds while those of the other process waited.
#[tokio::test(start_paused = true)]
async fn a_process_that_was_ahead_of_a_turn_waits_for_it() {
    let servers: [_; 3] = servers();
    let in_turn = Claim::new(name("m"), Mode::Exclusive, 10_000 * MS, 10_000 * MS);
    servers[0].acquire(&in_turn).await.unwrap();
    let lock = Redlock::new(servers.clone()).unwrap().mutex("m");
    lock.lock().await.unwrap().unlock().await.unwrap();
    let waiting = tokio::spawn(async move { lock.lock().await.unwrap() });
    sleep(20 * MS).await;
    for server in &servers[1..] {
        let answer = server.acquire(&in_turn).await.unwrap();
        assert!(matches!(answer, Acquired::Granted(_)), "the process is ahead again");
    }
    for server in &servers {
        server.release(&in_turn).await.unwrap();
    }
    let begun = Instant::now();
    waiting.await.unwrap().unlock().await.unwrap();
    assert!(begun.elapsed() < 20 * MS, "its turn came after {:?}", begun.elapsed());
}

/// The release of the last holder reached some servers late. The claim whose turn it was gave up,
/// left the queue, and asked again only when its process next kept the entries: up to 640 ms and
/// hundreds of holds later.
#[tokio::test(start_paused = true)]
async fn a_claim_without_a_majority_in_its_turn_soon_asks_again() {
    for late in [60, 100, 200] {
        let servers: [_; 3] = servers();
        let front = Redlock::new(servers.clone()).unwrap();
        let last = Claim::new(name("m"), Mode::Exclusive, 10_000 * MS, 10_000 * MS);
        for server in &servers[1..] {
            server.acquire(&last).await.unwrap();
        }
        let lock = front.mutex("m").wait_limit(10_000 * MS);
        let begun = Instant::now();
        let waiting = tokio::spawn(async move { lock.lock().await.unwrap().unlock().await });
        sleep(MS * late).await;
        for server in &servers[1..] {
            server.release(&last).await.unwrap();
        }
        waiting.await.unwrap().unwrap();
        let took = begun.elapsed();
        assert!(took < MS * 3 * late, "after {late} ms, it had the lock in {took:?}");
        sleep(MS).await;
        assert_eq!(shares(&servers, "m").await, 0);
    }
}

/// A waiting claim looks once a second, as its push may not come. A claim whose time had come hid
/// the time of the others. They slept until they next kept their entries, up to 0.64 s longer.
#[tokio::test(start_paused = true)]
async fn a_claim_that_is_to_look_does_not_hide_when_the_next_one_is() {
    let majority = Majority::new([(); 3].map(|()| MemoryBackend::new())).unwrap();
    let claim = || Claim::new(name("m"), Mode::Exclusive, 10_000 * MS, 10_000 * MS);
    let claims = [(); 3].map(|()| claim());
    let [holder, waiting @ ..] = &claims;
    assert!(matches!(majority.acquire(holder).await.unwrap(), Acquired::Granted(_)));
    for claim in waiting {
        assert!(matches!(majority.acquire(claim).await.unwrap(), Acquired::Occupied(_)));
        sleep(500 * MS).await;
    }
    let kept = majority.keep(waiting).await.unwrap();
    assert_eq!(kept.stands, [false, true], "the first claim is to look now");
    assert!(kept.remaining <= 500 * MS && !kept.remaining.is_zero(), "{:?}", kept.remaining);
}
