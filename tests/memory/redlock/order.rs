//! The shares that processes have of the lock, counted in holds.

use bellwether::{Redlock, error::BackendError, lock::RedlockMutex as Lock};
use testkit::interceptor::{Answer, Hook, Interceptor, Operation};
use tokio::task::{JoinSet, yield_now};

use super::{played::dead, shares};
use crate::prelude::*;

/// The part of the holds of the luckiest task that each other one has.
const FAIRNESS: f64 = 0.6;

/// For how many holds of each task a task waits at most, but for one wait in a hundred.
const LONGEST_WAIT: f64 = 6.0;

/// How often the processes hold the lock in a sample, each, and the most samples that are counted.
/// The order is left to chance in part, and two processes may keep uneven turns for some hundred
/// holds. So an uneven sample goes on: chance evens out, and a process that is favoured stays so.
const HOLDS: usize = 120;
const SAMPLES: usize = 40;

/// The holds that the tasks of all processes have seen.
#[derive(Default)]
struct Seen {
    holds: usize,
    of_each: Vec<usize>,
    /// The holds of others between a task's wish for the lock and its hold.
    waits: Vec<usize>,
    is_held: bool,
}

impl Seen {
    /// Returns whether each task has this part of the holds of another at least, and few waits are
    /// long: for how many holds of each task it waits, of a hundred waits the longest but one.
    fn is_even(&mut self, what: &str, fairness: f64) -> bool {
        let fewest = self.of_each.iter().min();
        let most = self.of_each.iter().max();
        let fewest = *fewest.unwrap();
        let most = *most.unwrap();
        self.waits.sort_unstable();
        let wait = self.waits[self.waits.len() * 99 / 100] as f64 / self.of_each.len() as f64;
        println!("{what}: {fewest} to {most} holds, p99 of the waits is {wait:.1} shares");
        fewest as f64 >= most as f64 * fairness && wait <= LONGEST_WAIT
    }
}

/// Has the tasks of some processes acquire one lock again and again, for one more sample.
async fn contend(processes: &[Redlock], seen: &Arc<Mutex<Seen>>, lasts: Duration) {
    let (all, end) = {
        let seen = seen.lock().unwrap();
        (seen.of_each.len(), seen.holds + HOLDS * processes.len())
    };
    let mut running = JoinSet::new();
    for at in 0..all {
        let lock = processes[at % processes.len()].mutex("m");
        let seen = seen.clone();
        running.spawn(async move { while hold(&lock, at, &seen, lasts).await < end {} });
    }
    timeout(600 * SECOND, running.join_all()).await.unwrap();
}

/// Checks the shares of tasks that contend, and ends their processes.
async fn check_shares(
    fronts: Vec<Redlock>,
    tasks: usize,
    lasts: Duration,
    (what, fairness): (&str, f64),
) {
    let of_each = vec![0; fronts.len() * tasks];
    let seen = Arc::new(Mutex::new(Seen { of_each, ..Seen::default() }));
    let mut is_even = false;
    for _ in 0..SAMPLES {
        contend(&fronts, &seen, lasts).await;
        is_even = seen.lock().unwrap().is_even(what, fairness);
        if is_even {
            break;
        }
    }
    assert!(is_even, "{what}: {:?}", seen.lock().unwrap().of_each);
    // Otherwise they go on to ask the servers that hang.
    for front in fronts {
        front.shutdown(Duration::ZERO).await;
    }
}

/// Holds the lock once, alone. Returns how often all tasks have held it.
async fn hold(lock: &Lock, at: usize, seen: &Mutex<Seen>, lasts: Duration) -> usize {
    let before = seen.lock().unwrap().holds;
    let guard = lock.lock().await.unwrap();
    let now = {
        let mut seen = seen.lock().unwrap();
        assert!(!std::mem::replace(&mut seen.is_held, true), "two hold the lock at once");
        let waited = seen.holds - before;
        seen.waits.push(waited);
        seen.holds += 1;
        seen.of_each[at] += 1;
        seen.holds
    };
    if lasts.is_zero() {
        yield_now().await
    } else {
        sleep(lasts).await
    }
    seen.lock().unwrap().is_held = false;
    // A minority may be away.
    let _ = guard.unlock().await;
    now
}

/// The link to a server: each way takes about a millisecond.
#[derive(Clone)]
struct Link;

impl<B: Store + Clone> Hook<B> for Link {
    async fn around(&self, inner: &B, operation: Operation) -> Result<Answer, BackendError> {
        let way = || sleep(MS.mul_f64(2.0 * fastrand::f64()));
        way().await;
        let answer = operation.perform(inner).await;
        way().await;
        answer
    }
}

fn linked<B: Store + Clone>(servers: Vec<B>) -> Redlock {
    Redlock::over(servers.into_iter().map(|inner| Interceptor { inner, hook: Link }), "bellwether")
        .unwrap()
}

/// Checks the processes of fleets: how many servers, processes, and tasks of a process there are.
async fn check_fleets(fleets: &[(usize, usize, usize)], fairness: f64) {
    for (count, processes, tasks) in fleets {
        let servers: Vec<_> = (0..*count).map(|_| MemoryBackend::new()).collect();
        for lasts in [Duration::ZERO, 20 * MS] {
            let fronts = (0..*processes).map(|_| linked(servers.clone())).collect();
            let what = format!("{processes} x {tasks} at {count}, {lasts:?}");
            check_shares(fronts, *tasks, lasts, (&what, fairness)).await;
        }
        sleep(10 * MS).await;
        assert_eq!(shares(&servers, "m").await, 0);
    }
}

/// Two processes of two tasks had 2 and 1,211 holds in 15 s, and the others failed: the process
/// that released the lock asked for it again before the waiters of others woke.
#[tokio::test(start_paused = true)]
async fn processes_have_even_shares() {
    check_fleets(&[(1, 4, 4), (3, 2, 1), (3, 2, 2), (3, 3, 20), (5, 4, 4)], FAIRNESS).await;
}

/// The order of ten processes is left to chance more often, and so a sample scatters.
#[tokio::test(start_paused = true)]
async fn ten_processes_have_shares_that_chance_leaves_even() {
    check_fleets(&[(3, 10, 4)], 0.4).await;
}

/// A minority is down, or hangs. With two of five that hang, each try takes all its time, and
/// chance counts for more, so that is not tested.
#[tokio::test(start_paused = true)]
async fn processes_have_even_shares_without_a_server() {
    let refuse = [(3, &[0][..]), (3, &[1]), (3, &[2]), (5, &[0]), (5, &[0, 1])];
    check_without(&refuse, Fault::Refuse).await;
}

#[tokio::test(start_paused = true)]
async fn processes_have_even_shares_beside_a_server_that_hangs() {
    check_without(&[(3, &[0][..]), (3, &[1]), (3, &[2]), (5, &[0])], Fault::Hang).await;
}

async fn check_without(cases: &[(usize, &[usize])], fault: Fault) {
    for (count, away) in cases {
        let servers: Vec<_> = (0..*count).map(|_| MemoryBackend::new()).collect();
        let lasts = if *count == 3 { MS } else { Duration::ZERO };
        let fronts = (0..4).map(|_| linked(dead(&servers, away, fault))).collect();
        let what = format!("{count} without {away:?}: {fault:?}");
        check_shares(fronts, 4, lasts, (&what, FAIRNESS)).await;
    }
}
