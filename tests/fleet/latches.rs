//! One latch, several processes.

use std::time::Duration;

use bellwether::{Locks, RedisBackend, lock::Latch};
use testkit::{LIMIT, RedisServer, eventually};

use super::{
    fleet::Fleet,
    protocol::{Command, Event, Setup, now},
};

const CALLERS: usize = 25;

/// A latch that is set, and a fleet whose processes wait for it.
async fn waiting(server: &RedisServer, processes: usize, count: u32) -> (Fleet, Latch) {
    let latch = Locks::new(RedisBackend::open(&server.url()).unwrap()).latch("l");
    assert!(latch.set(count).await.unwrap());
    let mut fleet = Fleet::start(processes, &Setup::new(server.url())).await;
    for process in 0..processes {
        let wait = Command::Await { name: "l".to_owned(), callers: CALLERS };
        fleet.tell(process, &wait).await;
    }
    // Each process has one subscription, however many wait in it.
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

/// What is left after each step, in the order in which it is told, until all were told.
async fn counted(fleet: &mut Fleet, steps: usize) -> Vec<u32> {
    let mut all = Vec::new();
    while all.len() < steps {
        let left = fleet.wait_for(|_, event| match event {
            Event::Counted { left, .. } => Some(left),
            Event::Awaited { .. } => panic!("a caller does not wait for the end"),
            _ => None,
        });
        all.push(left.await);
    }
    all
}

/// Everyone who waits is told of zero, and nothing else. When the last one was.
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
async fn everyone_in_every_process_is_told_of_zero() {
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
        assert_eq!(left, (1..=40).collect::<Vec<_>>(), "each step counts once");
        let done = now();
        assert_eq!(latch.count_down().await.unwrap(), 0);
        let last = told(&mut fleet, processes * CALLERS).await;
        delays.push(Duration::from_micros(last.saturating_sub(done)));
        assert!(latch.clear().await.unwrap());
    }
    println!("everyone told of zero after {delays:?}");
    // By pushes: the timer behind them would take seconds.
    assert!(delays.iter().min().unwrap() < &Duration::from_millis(200), "{delays:?}");
    assert!(delays.iter().max().unwrap() < &Duration::from_secs(2), "{delays:?}");
    let raw = server.raw().await;
    let clean = || {
        let mut raw = raw.clone();
        async move { raw.keys("*").await.is_empty() && raw.pubsub_channels().await.is_empty() }
    };
    assert!(eventually(LIMIT, clean).await, "something is left behind");
}

/// Nobody holds a latch: what a process counted stays counted when it dies, and what it did not, another one
/// must count.
#[tokio::test]
async fn a_killed_process_has_counted_what_it_counted() {
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
    assert!(last - done < 2_000_000, "told {} us later", last - done);
    latch.wait().await.unwrap();
}

/// One that is suspended while the end is told learns of it when it runs again.
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
    assert!(last > resumed && last - resumed < 2_000_000, "told {} us later", last - resumed);
}
