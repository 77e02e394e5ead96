//! The end of a cache, and of the runtime of a load.

use super::{ask, fleet, loader, settle};
use crate::{origin::Origin, prelude::*};

#[tokio::test(start_paused = true)]
async fn a_shutdown_lets_running_loads_end() {
    let caches: [_; 1] = fleet();
    let origin = Origin::default();
    let running = ask(&caches[0], &origin, 300 * MS);
    settle().await;
    let begun = Instant::now();
    caches[0].shutdown(5 * SECOND).await;
    assert!(begun.elapsed() < 310 * MS);
    assert_eq!(running.await.unwrap().unwrap().source, Source::Led);
    // A later caller is served without a flight.
    assert_eq!(ask(&caches[0], &origin, MS).await.unwrap().unwrap().source, Source::Degraded);
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_cancels_longer_loads_and_the_next_process_begins_at_once() {
    let caches: [_; 2] = fleet();
    let origin = Origin::default();
    let running = ask(&caches[0], &origin, 20 * SECOND);
    settle().await;
    let waiting = ask(&caches[1], &origin, MS);
    settle().await;
    caches[0].shutdown(200 * MS).await;
    let begun = Instant::now();
    assert_eq!(running.await.unwrap().unwrap_err().kind(), ErrorKind::ShutDown);
    assert_eq!(waiting.await.unwrap().unwrap().source, Source::Led);
    assert!(begun.elapsed() < 100 * MS, "{:?}", begun.elapsed());
}

/// The task of the leader lives on a runtime that is dropped. Its followers live on another one.
#[test]
fn a_runtime_that_goes_away_hands_its_flights_over() {
    let cache: Cache<String> =
        Cache::builder(MemoryBackend::new(), "bellwether").lease(200 * MS).build().unwrap();
    let leading = tokio::runtime::Runtime::new().unwrap();
    let origin = Origin::default();
    let first = leading.spawn(cache.request("k").load(loader(&origin, 60 * SECOND)));
    // With one thread, a spawned caller has joined the flight after a yield.
    let staying = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let next = Origin::default();
    let mut second = None;
    staying.block_on(async {
        while origin.running() == 0 {
            tokio::task::yield_now().await;
        }
        second = Some(tokio::spawn(cache.request("k").load(loader(&next, MS))));
        tokio::task::yield_now().await;
    });
    leading.shutdown_background();
    let answer = staying.block_on(async { timeout(5 * SECOND, second.unwrap()).await });
    let answer = answer.expect("the follower did not take over").unwrap().unwrap();
    assert_eq!(answer.source, Source::Led);
    assert!(staying.block_on(first).is_err());
    assert_eq!(cache.stats().flights, 0);
}
