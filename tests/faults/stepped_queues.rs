//! The clock of the server is set while processes wait for locks.
//!
//! The deadline of a process that waits is a time of that clock. A step back must not prolong the
//! life of a dead process by the step. What is held lasts until its owner ends it.

use std::time::SystemTime;

use bellwether::{
    backend::{Claim, Claimed, Leases, Mode},
    key::{Family, Key, Name, Namespace},
};
use testkit::primitives::{Asked, FAIR, Pair, READER, SEMAPHORE, WRITER};

use super::worker::FakeClock;
use super::*;

const HOUR: Duration = Duration::from_secs(3600);
const LEASE: Duration = Duration::from_secs(10);

struct Scene {
    clock: FakeClock,
    server: RedisServer,
    raw: Raw,
}

impl Scene {
    async fn start() -> Self {
        let clock = FakeClock::right();
        let environment = clock.environment();
        let environment: Vec<_> =
            environment.iter().map(|(name, value)| (*name, &**value)).collect();
        let server = RedisServer::start_in(&[], &environment).await;
        let raw = server.raw().await;
        Self { clock, server, raw }
    }

    /// Sets the clock back, and checks that the time of the server has followed.
    async fn step_back(&mut self, by: Duration) {
        self.clock.set_back(by);
        let (seconds, micros) = self.raw.run::<(u64, u64)>(&["TIME"]).await;
        let server = Duration::from_secs(seconds) + Duration::from_micros(micros);
        let here = SystemTime::UNIX_EPOCH.elapsed().unwrap();
        assert!(server + by <= here + MS, "the clock was not set: {server:?} {here:?}");
    }

    async fn until_queued(&mut self, queue: &str, count: usize) {
        let key = format!("bellwether:l:{{k}}:{queue}");
        let raw = &mut self.raw;
        let is_queued = async || raw.run::<usize>(&["ZCARD", &key]).await == count;
        assert!(comes_true(LIMIT, is_queued).await, "no queue of {count}");
    }

    /// Enters the queue as a process that dies then: nothing keeps its entry.
    async fn die_waiting(&self, mode: Mode) {
        let name = Name::new(&Namespace::standard(), Family::Lock, &Key::from("k"), 512).unwrap();
        let mut claim = Claim::new(name, mode, LEASE, LEASE);
        claim.owner = "dead0000000000000000000000000000".parse().unwrap();
        let backend = testkit::open(self.server.url());
        let answer = backend.acquire(&claim).await.unwrap();
        assert!(matches!(answer, Claimed::Occupied(_)), "{answer:?}");
    }
}

/// The deadline of the dead process was an hour away after the step. So nobody got the free lock
/// for an hour.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_waiter_holds_up_no_lock_for_longer_because_the_clock_is_set_back() {
    let _turn = turn().await;
    for (pair, mode, queue) in [
        (FAIR, Mode::Fair, "q"),
        (WRITER, Mode::Write, "rq"),
        (SEMAPHORE, Mode::Permit { limit: 1, count: 1 }, "pq"),
    ] {
        let Pair { one, .. } = pair;
        let mut scene = Scene::start().await;
        let url = scene.server.url();
        let asked = || Asked::new(&url, "k", LEASE);
        let holder = (one.take)(asked()).await.unwrap();
        scene.die_waiting(mode).await;
        scene.until_queued(queue, 1).await;
        let waiting = tokio::spawn((one.take)(asked()));
        scene.until_queued(queue, 2).await;
        scene.step_back(HOUR).await;
        let released = Instant::now();
        holder.give_back().await.unwrap();
        let next = timeout(LIMIT, waiting).await.expect("nobody gets the free lock");
        let waited = released.elapsed();
        assert!(waited < Duration::from_millis(2_700), "{mode:?}: {waited:?}");
        next.unwrap().unwrap().give_back().await.unwrap();
        // Nothing is left for an hour but the fence.
        let raw = &mut scene.raw;
        let is_gone = async || raw.keys("*").await.iter().all(|key| key.ends_with("}:f"));
        assert!(comes_true(LIMIT, is_gone).await, "{mode:?}: {:?}", scene.raw.keys("*").await);
    }
}

/// The next look of a living process gives the keys of the queue their times back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_keys_of_a_queue_last_no_longer_because_the_clock_is_set_back() {
    let _turn = turn().await;
    let mut scene = Scene::start().await;
    let url = scene.server.url();
    let asked = || Asked::new(&url, "k", LEASE);
    let holder = (FAIR.one.take)(asked()).await.unwrap();
    scene.die_waiting(Mode::Fair).await;
    let waiting = tokio::spawn((FAIR.one.take)(asked()));
    scene.until_queued("q", 2).await;
    scene.step_back(HOUR).await;
    for key in ["bellwether:l:{k}:q", "bellwether:l:{k}:d"] {
        let raw = &mut scene.raw;
        assert!(comes_true(LIMIT, async || raw.pttl(key).await <= 2_000).await, "{key}");
    }
    holder.give_back().await.unwrap();
    let next = timeout(LIMIT, waiting).await.expect("nobody gets the free lock");
    next.unwrap().unwrap().give_back().await.unwrap();
}

/// Too long a hold stays a hold until its owner ends it, and a renewal brings the right time back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_step_back_takes_no_hold_from_readers_and_permits() {
    const SHORT: Duration = Duration::from_secs(3);
    let _turn = turn().await;
    for (pair, set) in [(READER, "r"), (SEMAPHORE, "p")] {
        let mut scene = Scene::start().await;
        let url = scene.server.url();
        let asked = || Asked::new(&url, "k", SHORT);
        let holder = (pair.one.take)(asked()).await.unwrap();
        scene.step_back(HOUR).await;
        let key = format!("bellwether:l:{{k}}:{set}");
        let raw = &mut scene.raw;
        let ends = async |raw: &mut Raw| -> Option<f64> {
            let holds: Vec<(String, f64)> =
                raw.run(&["ZRANGE", &key, "0", "-1", "WITHSCORES"]).await;
            holds.first().map(|(_, ends)| *ends)
        };
        // The first renewal brings the end back by an hour. The next ones move it forward.
        let mut last = ends(raw).await.unwrap();
        for moves_forward in [false, true, true] {
            let end = Instant::now() + LIMIT;
            loop {
                assert!((pair.rival.attempt)(asked()).await.unwrap().is_none(), "two holders");
                let now = ends(raw).await.expect("the hold is gone");
                if (now > last && moves_forward) || (now < last && !moves_forward) {
                    last = now;
                    break;
                }
                assert!(Instant::now() < end, "the hold is not renewed");
            }
        }
        assert!(!holder.is_lost());
        holder.give_back().await.unwrap();
        let next = (pair.rival.attempt)(asked()).await.unwrap();
        next.expect("the lock is free").give_back().await.unwrap();
    }
}

/// A server whose clock is adjusted takes nobody for dead.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_small_step_back_throws_no_waiter_out() {
    const WAITERS: usize = 100;
    let _turn = turn().await;
    let mut scene = Scene::start().await;
    let backend = testkit::open(scene.server.url());
    let asked = || Asked::of(backend.clone(), "k", LEASE);
    let holder = (FAIR.one.take)(asked()).await.unwrap();
    let (served, mut order) = tokio::sync::mpsc::unbounded_channel();
    for waiter in 0..WAITERS {
        let waiting = (FAIR.one.take)(asked());
        let served = served.clone();
        tokio::spawn(async move {
            let guard = waiting.await.unwrap();
            served.send(waiter).unwrap();
            guard.give_back().await.unwrap();
        });
        scene.until_queued("q", waiter + 1).await;
    }
    let queue = ["ZRANGE", "bellwether:l:{k}:q", "0", "-1", "WITHSCORES"];
    let before: Vec<(String, f64)> = scene.raw.run(&queue).await;
    scene.step_back(50 * MS).await;
    // The entries are kept twice after the step.
    let calls = scene.raw.scripts_called().await;
    let raw = &mut scene.raw;
    assert!(comes_true(LIMIT, async || raw.scripts_called().await >= calls + 2).await);
    let after: Vec<(String, f64)> = scene.raw.run(&queue).await;
    assert_eq!(after, before);
    holder.give_back().await.unwrap();
    for waiter in 0..WAITERS {
        let next = timeout(LIMIT, order.recv()).await.expect("a waiter is not served");
        assert_eq!(next, Some(waiter));
    }
}
