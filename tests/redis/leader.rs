//! One leader over a real server: no two at a time, and no gap between two.
//!
//! `cargo test --test redis leader:: -- --nocapture` prints how long the handovers took.

use std::future::pending;

use bellwether::lock::Term;
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::mpsc::unbounded_channel,
};

use crate::prelude::*;

/// Each round trip takes 300 ms. From the end of the work to the next leader's first act, there are
/// two at most: the release, whose script grants the lease, and the push that tells the next one.
#[tokio::test]
async fn the_next_leader_acts_within_two_round_trips() {
    const WAY: Duration = Duration::from_millis(300);
    const CANDIDATES: usize = 3;
    let server = RedisServer::start().await;
    let proxy = Proxy::start(server.port());
    proxy.lengthen_round_trip(WAY);
    let mut raw = server.raw().await;
    let (acts, ends) = (unbounded_channel(), unbounded_channel());
    let (mut acted, mut ended) = (acts.1, ends.1);
    let end = Arc::new(Notify::new());
    let candidates = (0..CANDIDATES).map(|_| {
        let locks = Locks::new(testkit::open(proxy.url()), "bellwether");
        let (acts, ends, end) = (acts.0.clone(), ends.0.clone(), end.clone());
        tokio::spawn(async move {
            let candidate = locks.leader("work").lease(Duration::from_secs(60));
            loop {
                let work = async |_term: Term| {
                    acts.send(Instant::now()).unwrap();
                    end.notified().await;
                    ends.send(Instant::now()).unwrap();
                };
                candidate.run(work).await.unwrap();
            }
        })
    });
    let candidates: Vec<_> = candidates.collect();
    let mut gaps = Vec::new();
    timeout(LIMIT, acted.recv()).await.expect("there is no leader").unwrap();
    // All of them have the channel of this process. One that came a moment ago does not listen yet.
    let hear = comes_true(LIMIT, async || listeners(&mut raw).await == CANDIDATES);
    assert!(hear.await, "a candidate does not subscribe");
    for _ in 0..CANDIDATES + 6 {
        others_queue(&mut raw, CANDIDATES - 1).await;
        end.notify_one();
        let end = timeout(LIMIT, ended.recv()).await.unwrap().unwrap();
        let act = timeout(LIMIT, acted.recv()).await.expect("there is no leader").unwrap();
        gaps.push(act - end);
    }
    println!("round trips of {WAY:?}; from the end of a term to the next act: {gaps:.0?}");
    candidates.iter().for_each(JoinHandle::abort);
    // A first request that waits for its connection makes the waiter ask once more.
    let later = all_but_the_longest(gaps.split_off(CANDIDATES));
    // A busy machine may be late once. The half of a round trip tells two of them from three.
    assert!(later.iter().all(|gap| *gap < 5 * WAY / 2), "{later:?}");
}

fn all_but_the_longest(mut gaps: Vec<Duration>) -> Vec<Duration> {
    gaps.sort();
    gaps.pop();
    gaps
}

async fn listeners(raw: &mut Raw) -> usize {
    let Some(channel) = raw.process_channels().await.pop() else { return 0 };
    raw.run::<(String, usize)>(&["PUBSUB", "NUMSUB", &channel]).await.1
}

/// Waits until so many candidates are in the queue of the server.
async fn others_queue(raw: &mut Raw, count: usize) {
    let queue = "bellwether:l:{work}:q";
    let queued = comes_true(LIMIT, async || raw.run::<usize>(&["ZCARD", queue]).await == count);
    assert!(queued.await, "the candidates do not queue");
}

// Processes

/// The environment variable that makes this process a candidate: the URL of the server.
const VARIABLE: &str = "BELLWETHER_LEADER";
/// The lease of a candidate that is a process.
const LEASE: Duration = Duration::from_secs(1);

/// Returns the time of the clock that all processes share.
fn now() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    Duration::try_from(time).unwrap()
}

#[test]
fn worker() {
    let Ok(url) = std::env::var(VARIABLE) else { return };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut told = signal(SignalKind::terminate()).unwrap();
        let locks = Locks::new(testkit::open(&url), "bellwether");
        let candidate = locks.leader("work").lease(LEASE);
        let work = async |_term: Term| {
            let _act = Act::begin();
            pending::<()>().await
        };
        tokio::select! {
            led = candidate.run(work) => led.unwrap(),
            _ = told.recv() => {}
        }
        locks.shutdown(LIMIT).await;
    });
}

/// What a leader does: it says when it begins, and when its work ends or is dropped.
struct Act;

impl Act {
    fn begin() -> Self {
        println!("\nleads {}", now().as_micros());
        Self
    }
}

impl Drop for Act {
    fn drop(&mut self) {
        println!("\nends {}", now().as_micros());
    }
}

fn candidate(server: &RedisServer) -> Process {
    Process::start("leader::worker", [(VARIABLE, server.url())])
}

/// Waits until a process says that it leads or ends. Returns when.
async fn says(process: &mut Process, what: &str) -> Duration {
    Duration::from_micros(process.says(&format!("{what} ")).await.parse().unwrap())
}

/// Leaders are told to end, and killed, in turns. The queue has the order of their starts.
#[tokio::test]
async fn a_process_that_ends_hands_over_and_one_that_is_killed_is_followed_in_its_lease() {
    let server = RedisServer::start().await;
    let mut raw = server.raw().await;
    let mut leader = candidate(&server);
    says(&mut leader, "leads").await;
    let (mut handed, mut followed) = (Vec::new(), Vec::new());
    for round in 0..10 {
        let mut next = candidate(&server);
        others_queue(&mut raw, 1).await;
        let killed = now();
        match round % 2 {
            0 => leader.signal("TERM"),
            _ => leader.kill().await,
        }
        let begun = says(&mut next, "leads").await;
        if round % 2 == 0 {
            let end = says(&mut leader, "ends").await;
            assert!(begun >= end, "{begun:?} before {end:?}: two lead at a time");
            handed.push(begun - end);
        } else {
            followed.push(begun - killed);
        }
        leader = next;
    }
    println!("after the end of a term: {handed:.1?}; after a kill: {followed:.1?}");
    // A busy machine may be late once. The time of a timer and of a task is on top.
    let [handed, followed] = [handed, followed].map(all_but_the_longest);
    assert!(handed.iter().all(|gap| *gap < LEASE / 3), "{handed:?}");
    assert!(followed.iter().all(|gap| *gap < LEASE + 100 * MS), "{followed:?}");
}
