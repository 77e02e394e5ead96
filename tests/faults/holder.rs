//! A process whose clock is set in the middle of its load.

use super::worker::{FakeClock, answers, start};
use super::*;

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
        let mut worker = start(&server.url(), LEASE, &clock);
        let fence = worker.says("@begun ").await;
        worker.tell("time").await;
        let before: i64 = worker.says("@time ").await.parse().unwrap();
        clock.set(step);
        worker.tell("time").await;
        let after: i64 = worker.says("@time ").await.parse().unwrap();
        assert!((after - before - step).abs() < 60, "the clock was not set: {before} {after}");
        let waiting = tokio::spawn(cache.request("k").load(value("of the other")));
        // The lease is renewed more than once, each time after a third of it.
        let mut raw = server.raw().await;
        for _ in 0..2 {
            let mut low = false;
            let mut high = false;
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
        let answers = answers(&mut worker).await;
        assert!(answers.contains(&"old Led".to_owned()), "{fence}: {answers:?}");
        assert!(answers.iter().all(|answer| answer.starts_with("old ")), "{answers:?}");
        assert_eq!(waiting.await.unwrap().unwrap().source, Source::Received);
        let stored = || async { cache.get("k").await.unwrap().as_deref() == Some("old") };
        assert!(eventually(LIMIT, stored).await);
        cache.invalidate("k").await.unwrap();
    }
}
