//! The shares that processes have of the lock, counted in holds.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use bellwether::{
    MemoryBackend, Redlock,
    backend::{Latches, Store},
    error::BackendError,
    lock::Mutex as Lock,
};
use testkit::{
    faulty::Fault,
    interceptor::{Answer, Hook, Interceptor, Operation},
};
use tokio::{
    task::{JoinSet, yield_now},
    time::{sleep, timeout},
};

use super::{
    MS,
    played::{dead, servers},
    shares,
};

/// The part of the holds of the luckiest task that each other one has.
const FAIRNESS: f64 = 0.6;

/// For how many holds of each task a task waits at most, but for one wait in a hundred.
const LONGEST_WAIT: f64 = 6.0;

/// The most samples that shares are counted in.
const SAMPLES: usize = 6;

/// The holds that the tasks of all processes have seen.
#[derive(Default)]
struct Seen {
    holds: usize,
    of_each: Vec<usize>,
    /// The holds of others between a task's wish for the lock and its hold.
    waits: Vec<usize>,
}

impl Seen {
    /// Returns the fewest and the most holds of a task.
    fn extremes(&self) -> (usize, usize) {
        (*self.of_each.iter().min().unwrap(), *self.of_each.iter().max().unwrap())
    }

    /// Returns for how many holds of each task a task waits, of a hundred waits the longest but
    /// one.
    fn longest_wait(&mut self) -> f64 {
        self.waits.sort_unstable();
        self.waits[self.waits.len() * 99 / 100] as f64 / self.of_each.len() as f64
    }

    /// Returns whether each task has this part of the holds of another at least, and few waits are
    /// long.
    fn is_even(&mut self, fairness: f64) -> bool {
        let (fewest, most) = self.extremes();
        fewest as f64 >= most as f64 * fairness && self.longest_wait() <= LONGEST_WAIT
    }

    fn add(&mut self, more: Self) {
        self.holds += more.holds;
        self.waits.extend(more.waits);
        for (all, more) in self.of_each.iter_mut().zip(more.of_each) {
            *all += more;
        }
    }

    /// Checks that each task has this part of the holds of another at least, and that few waits
    /// are long.
    fn check(&mut self, what: &str, fairness: f64) {
        let ((fewest, most), wait) = (self.extremes(), self.longest_wait());
        println!("{what}: {fewest} to {most} holds, p99 of the waits is {wait:.1} shares");
        assert!(self.is_even(fairness), "{what}: {:?}, and {wait} shares", self.of_each);
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

/// Checks the shares of tasks that contend. The order is left to chance in part, and on a busy
/// machine two processes may keep uneven turns for some hundred holds. So an uneven sample goes on,
/// up to [`SAMPLES`] times: chance evens out, and a process that is favoured stays so.
async fn check_shares(
    fronts: &[Redlock],
    tasks: usize,
    holds: usize,
    lasts: Duration,
    (what, fairness): (&str, f64),
) {
    let mut seen = contend(fronts, tasks, holds, lasts).await;
    for _ in 1..SAMPLES {
        if seen.is_even(fairness) {
            break;
        }
        println!("{what}: it goes on, after {:?}", seen.of_each);
        seen.add(contend(fronts, tasks, holds, lasts).await);
    }
    seen.check(what, fairness);
}

/// Holds the lock once. Returns how often all tasks have held it.
async fn hold(lock: &Lock, at: usize, seen: &Mutex<Seen>, lasts: Duration) -> usize {
    let before = seen.lock().unwrap().holds;
    let guard = lock.lock().await.unwrap();
    let now = {
        let mut seen = seen.lock().unwrap();
        let waited = seen.holds - before;
        seen.waits.push(waited);
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

/// The link to a server: each way takes about a millisecond.
#[derive(Clone)]
struct Link;

impl<B: Store + Latches + Clone> Hook<B> for Link {
    async fn around(&self, inner: &B, operation: Operation) -> Result<Answer, BackendError> {
        let way = || sleep(MS.mul_f64(2.0 * fastrand::f64()));
        way().await;
        let answer = operation.perform(inner).await;
        way().await;
        answer
    }
}

fn linked<B: Store + Latches + Clone>(servers: Vec<B>) -> Redlock {
    Redlock::over(servers.into_iter().map(|inner| Interceptor { inner, hook: Link }), "bellwether")
        .unwrap()
}

/// Two processes of two tasks had 2 and 1,211 holds in 15 s, and the others failed: the process
/// that released the lock asked for it again before the waiters of others woke.
#[tokio::test(start_paused = true)]
async fn processes_have_even_shares() {
    let fleets = [(1, 4, 4), (3, 2, 1), (3, 2, 2), (3, 10, 4), (3, 3, 20), (5, 4, 4)];
    for (count, processes, tasks) in fleets {
        let servers: Vec<_> = (0..count).map(|_| MemoryBackend::new()).collect();
        let fronts: Vec<_> = (0..processes).map(|_| linked(servers.clone())).collect();
        for lasts in [Duration::ZERO, 20 * MS] {
            let holds = 200 * processes * tasks;
            // The order of ten processes is left to chance more often, and a sample of 800 holds of
            // each scatters.
            let fairness = if processes > 4 { 0.4 } else { FAIRNESS };
            let what = format!("{processes} x {tasks} at {count}, {lasts:?}");
            check_shares(&fronts, tasks, holds, lasts, (&what, fairness)).await;
        }
        sleep(10 * MS).await;
        assert_eq!(shares(&servers, "m").await, 0);
    }
}

/// A minority is down, or hangs.
#[tokio::test(start_paused = true)]
async fn processes_have_even_shares_without_a_server() {
    for fault in [Fault::Refuse, Fault::Hang] {
        for away in 0..3 {
            let servers: [_; 3] = servers();
            check_shares_without(&servers, &[away], fault, MS).await;
        }
        // With two of five that hang, each try takes all its time, and chance counts for more.
        let away = [&[0][..], &[0, 1]];
        for away in away.into_iter().take(if matches!(fault, Fault::Hang) { 1 } else { 2 }) {
            let servers: [_; 5] = servers();
            check_shares_without(&servers, away, fault, Duration::ZERO).await;
        }
    }
}

async fn check_shares_without(
    servers: &[MemoryBackend],
    away: &[usize],
    fault: Fault,
    lasts: Duration,
) {
    let fronts: Vec<_> = (0..4).map(|_| linked(dead(servers, away, fault))).collect();
    let what = format!("{} without {away:?}: {fault:?}", servers.len());
    check_shares(&fronts, 4, 1920, lasts, (&what, FAIRNESS)).await;
}
