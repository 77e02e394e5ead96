//! A process that is suspended in the middle of its load, and one whose clock is set.

use std::{collections::HashMap, time::Duration};

use bellwether::cache::Source;
use testkit::{LIMIT, RedisServer, eventually};
use tokio::time::Instant;

use super::{
    MS, gated, patient, turn, value,
    worker::{FakeClock, Worker},
};

const LEASE: Duration = Duration::from_millis(600);

/// A suspended process cannot be told of its loss. Awake, it learns of the loss at once. Its value
/// is neither stored nor served to its callers, because there is a newer one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_suspended_holder_learns_that_it_lost_its_lease() {
    let _turn = turn().await;
    let server = RedisServer::start().await;
    let mut delays = Vec::new();
    for _ in 0..3 {
        let cache = patient(&server.url()).await;
        let mut worker = Worker::start(&server.url(), LEASE, &HashMap::new()).await;
        let first: u64 = worker.told("begun").await.parse().unwrap();
        worker.signal("STOP");
        let (loader, gate) = gated("new");
        let leading = tokio::spawn(cache.request("k").load(loader));
        let second = gate.begun.await.unwrap().fence().unwrap();
        assert!(second > first, "the second fence is not greater");
        gate.open.send(()).unwrap();
        assert_eq!(leading.await.unwrap().unwrap().source(), Source::Led);
        worker.signal("CONT");
        let awake = Instant::now();
        worker.told("lost").await;
        delays.push(awake.elapsed());
        worker.tell("open").await;
        let answers = worker.answers().await;
        assert!(answers.contains(&"new Received".to_owned()), "{answers:?}");
        assert!(answers.iter().all(|answer| answer.starts_with("new ")), "{answers:?}");
        assert!(worker.told("stats").await.contains("refused: 1"));
        assert_eq!(cache.get("k").await.unwrap().as_deref(), Some("new"));
        cache.invalidate("k").await.unwrap();
    }
    println!("told after it was resumed: {delays:?}");
    assert!(*delays.iter().min().unwrap() < LEASE, "{delays:?}");
    assert!(*delays.iter().max().unwrap() < Duration::from_secs(2), "{delays:?}");
}

/// The other process is still loading when the first one wakes up and commits.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_suspended_holder_does_not_disturb_the_next_load() {
    let _turn = turn().await;
    let server = RedisServer::start().await;
    let cache = patient(&server.url()).await;
    let mut worker = Worker::start(&server.url(), LEASE, &HashMap::new()).await;
    worker.told("begun").await;
    worker.signal("STOP");
    let (loader, gate) = gated("new");
    let leading = tokio::spawn(cache.request("k").load(loader));
    gate.begun.await.unwrap();
    worker.tell("open").await;
    worker.signal("CONT");
    // The first served caller asked before the load began. Another caller may have joined late, and
    // waits.
    let first = worker.told("served").await;
    assert!(first.starts_with("old "), "{first}");
    let refused = worker.told("stats").await;
    assert!(refused.contains("refused: 1") && refused.contains("stored: 0"), "{refused}");
    let mut raw = server.raw().await;
    assert!(raw.pttl("t:c:{k}:l").await > 0, "the lease of the loading process is gone");
    gate.open.send(()).unwrap();
    assert_eq!(leading.await.unwrap().unwrap().source(), Source::Led);
    assert_eq!(cache.get("k").await.unwrap().as_deref(), Some("new"));
}

/// The clock of a process decides nothing, so it may be set by an hour in the middle of a load.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_whose_clock_is_set_keeps_its_lease() {
    // A busy machine may renew a short one too late.
    const LEASE: Duration = Duration::from_millis(1800);
    let _turn = turn().await;
    let server = RedisServer::start().await;
    for step in [3600, -3600] {
        let cache = patient(&server.url()).await;
        let clock = FakeClock::right();
        let mut worker = Worker::start(&server.url(), LEASE, &clock.environment()).await;
        let fence = worker.told("begun").await;
        worker.tell("time").await;
        let before: i64 = worker.told("time").await.parse().unwrap();
        clock.set(step);
        worker.tell("time").await;
        let after: i64 = worker.told("time").await.parse().unwrap();
        assert!((after - before - step).abs() < 60, "the clock was not set: {before} {after}");
        let waiting = tokio::spawn(cache.request("k").load(value("of the other")));
        // The lease is renewed more than once, each time after a third of it.
        let mut raw = server.raw().await;
        for _ in 0..2 {
            let (mut low, mut high) = (false, false);
            let end = Instant::now() + LIMIT;
            while !(low && high) {
                let left = raw.pttl("t:c:{k}:l").await;
                assert!(left > 0, "the lease was lost");
                low |= left < 1350;
                high |= low && left > 1500;
                assert!(Instant::now() < end, "the lease is not renewed");
                tokio::time::sleep(MS).await;
            }
        }
        worker.tell("open").await;
        let answers = worker.answers().await;
        assert!(answers.contains(&"old Led".to_owned()), "{fence}: {answers:?}");
        assert!(answers.iter().all(|answer| answer.starts_with("old ")), "{answers:?}");
        assert_eq!(waiting.await.unwrap().unwrap().source(), Source::Received);
        let stored = || async { cache.get("k").await.unwrap().as_deref() == Some("old") };
        assert!(eventually(LIMIT, stored).await);
        cache.invalidate("k").await.unwrap();
    }
}
