//! One latch, several processes.

use std::time::Duration;

use bellwether::{Locks, lock::Latch};
use testkit::{LIMIT, RedisServer, eventually};

use super::{
    fleet::Fleet,
    protocol::{Command, Event, Setup, now},
};

const CALLERS: usize = 25;

/// Returns a latch that is set, and a fleet whose processes wait for it.
async fn waiting(server: &RedisServer, processes: usize, count: u32) -> (Fleet, Latch) {
    let latch = Locks::new(testkit::open(server.url()), "bellwether").latch("l");
    assert!(latch.set(count).await.unwrap());
    let mut fleet = Fleet::start(processes, &Setup::new(server.url())).await;
    for process in 0..processes {
        let wait = Command::Await { name: "l".to_owned(), callers: CALLERS };
        fleet.tell(process, &wait).await;
    }
    // Each process has one subscription for all its waiters.
    let raw = server.raw().await;
    let channel = "bellwether:l:{l}:c";
    let subscribed = || {
        let mut raw = raw.clone();
        async move {
            let (_, processes): (String, usize) = raw.run(&["PUBSUB", "NUMSUB", channel]).await;
            processes
        }
    };
    assert!(eventually(LIMIT, || async { subscribed().await == processes }).await);
    (fleet, latch)
}

async fn count_down(fleet: &mut Fleet, process: usize, times: usize) {
    fleet.tell(process, &Command::CountDown { name: "l".to_owned(), times }).await;
}

/// Collects the number left after each step, in the order of the events.
async fn counted(fleet: &mut Fleet, steps: usize) -> Vec<u32> {
    let mut all = Vec::new();
    while all.len() < steps {
        let left = fleet.wait_for(|_, event| match event {
            Event::Counted { left, .. } => Some(left),
            Event::Awaited { .. } => panic!("a waiter did not wait for zero"),
            _ => None,
        });
        all.push(left.await);
    }
    all
}

/// Waits until every waiter was told of zero, and returns the time of the last one. No other event
/// may come.
async fn told(fleet: &mut Fleet, callers: usize) -> u64 {
    let mut last = 0;
    for _ in 0..callers {
        let told = fleet.wait_for(|_, event| match event {
            Event::Awaited { error, at } => Some((error, at)),
            _ => None,
        });
        let (error, at) = told.await;
        assert_eq!(error, None);
        last = last.max(at);
    }
    last
}

#[tokio::test]
async fn every_waiter_in_every_process_is_told_of_zero() {
    let server = RedisServer::start().await;
    let processes = 4;
    let mut delays = Vec::new();
    for _ in 0..3 {
        let (mut fleet, latch) = waiting(&server, processes, 41).await;
        for process in 0..processes {
            count_down(&mut fleet, process, 10).await;
        }
        let mut left = counted(&mut fleet, 40).await;
        left.sort();
        assert_eq!(left, (1..=40).collect::<Vec<_>>(), "a step did not count exactly once");
        let done = now();
        assert_eq!(latch.count_down().await.unwrap(), 0);
        let last = told(&mut fleet, processes * CALLERS).await;
        delays.push(Duration::from_micros(last.saturating_sub(done)));
        assert!(latch.clear().await.unwrap());
    }
    println!("all waiters told of zero after {delays:?}");
    // The pushes told the waiters, because the timer behind them takes seconds.
    assert!(delays.iter().min().unwrap() < &Duration::from_millis(200), "{delays:?}");
    assert!(delays.iter().max().unwrap() < &Duration::from_secs(2), "{delays:?}");
    let raw = server.raw().await;
    let clean = || {
        let mut raw = raw.clone();
        async move { raw.keys("*").await.is_empty() && raw.pubsub_channels().await.is_empty() }
    };
    assert!(eventually(LIMIT, clean).await, "a key or a subscription is left behind");
}

/// A latch has no holder. The steps of a process stay counted when it dies, and another process
/// must count the missing ones.
#[tokio::test]
async fn the_steps_of_a_killed_process_stay_counted() {
    let server = RedisServer::start().await;
    let (mut fleet, latch) = waiting(&server, 3, 6).await;
    count_down(&mut fleet, 0, 2).await;
    assert_eq!(counted(&mut fleet, 2).await, [5, 4]);
    fleet.kill(0).await;
    count_down(&mut fleet, 1, 3).await;
    assert_eq!(counted(&mut fleet, 3).await, [3, 2, 1]);
    assert_eq!(latch.left().await.unwrap(), 1);
    let done = now();
    count_down(&mut fleet, 2, 1).await;
    let last = told(&mut fleet, 2 * CALLERS).await;
    assert!(last - done < 2_000_000, "the waiters were told {} us later", last - done);
    latch.wait().await.unwrap();
}

/// A process that is suspended at the end of the latch learns of it when it runs again.
#[tokio::test]
async fn a_suspended_process_is_told_when_it_runs_again() {
    let server = RedisServer::start().await;
    let (mut fleet, latch) = waiting(&server, 2, 1).await;
    fleet.stop_signal(1);
    assert_eq!(latch.count_down().await.unwrap(), 0);
    told(&mut fleet, CALLERS).await;
    let resumed = now();
    fleet.resume(1);
    let last = told(&mut fleet, CALLERS).await;
    assert!(
        last > resumed && last - resumed < 2_000_000,
        "the waiters were told {} us later",
        last - resumed
    );
}
