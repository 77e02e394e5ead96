//! The limits of loads, waiters and values.

use std::collections::HashMap;

use super::{ask, build, fleet, loader, settle, sources, timed};
use crate::{origin::Origin, prelude::*};

/// A value that cannot be stored is not pushed either. The waiters in other processes must not
/// load one after the other in that case.
#[tokio::test(start_paused = true)]
async fn a_value_over_the_limit_is_returned_without_a_queue() {
    let backend = MemoryBackend::new();
    let caches: Vec<Cache<String>> = (0..5)
        .map(|_| Cache::builder(backend.clone(), "bellwether").max_value(4).build().unwrap())
        .collect();
    let origin = Origin::default();
    let begun = Instant::now();
    sources(caches.iter().map(|cache| ask(cache, &origin, 100 * MS))).await;
    assert!(begun.elapsed() < 250 * MS, "{:?}", begun.elapsed());
    assert_eq!(origin.asked(), 5);
    assert_eq!(caches[0].get("k").await.unwrap(), None);
    assert_eq!(caches.iter().map(|cache| cache.stats().unstorable).sum::<u64>(), 1);
    let error = caches[0].insert("k", &"too long".to_owned()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Codec);
}

#[tokio::test(start_paused = true)]
async fn a_waiter_at_its_limit_loads_for_itself_and_stores_nothing() {
    let caches: [_; 2] = fleet();
    let slow = Origin::default();
    let leading = ask(&caches[0], &slow, 20 * SECOND);
    settle().await;
    let begun = Instant::now();
    let request = caches[1].request("k").wait_limit(7 * SECOND);
    let answer = request.load(value("own".to_owned())).await.unwrap();
    assert_eq!(answer.source, Source::Degraded);
    assert!((7000..7200).contains(&begun.elapsed().as_millis()), "{:?}", begun.elapsed());
    assert_eq!(caches[1].get("k").await.unwrap(), None);
    assert_eq!(leading.await.unwrap().unwrap().source, Source::Led);
}

#[tokio::test(start_paused = true)]
async fn the_limit_on_loads_holds_and_refuses_with_a_kind() {
    let [cache, _] = build(|builder| builder.max_loads(3).wait_limit(SECOND));
    let origin = Origin::default();
    let asked = (0..12).map(|n| spawn(cache.request(n).load(loader(&origin, 400 * MS))));
    let refused: Vec<_> = all(asked).await.into_iter().filter_map(Result::err).collect();
    assert!(refused.iter().all(|error| error.kind() == ErrorKind::Overloaded));
    assert_eq!((origin.most(), refused.len()), (3, 3));
}

/// All permits are taken when the process is to ask again whether the other one still loads.
#[tokio::test(start_paused = true)]
async fn a_process_without_a_permit_gets_the_value_of_another_one_at_once() {
    let backend = MemoryBackend::new();
    let build = |loads| {
        let builder = Cache::<String>::builder(backend.clone(), "bellwether");
        builder.max_loads(loads).build().unwrap()
    };
    let there = build(10);
    let here = build(1);
    let origin = Origin::default();
    let theirs = ask(&there, &origin, 8 * SECOND);
    settle().await;
    let waiting = timed(ask(&here, &origin, 8 * SECOND));
    settle().await;
    let other = spawn(here.request("other").load(loader(&origin, 20 * SECOND)));
    let (source, took) = waiting.await;
    assert_eq!(source, Source::Received);
    assert!(took < 9 * SECOND, "{took:?}");
    assert!(all([theirs, other]).await.iter().all(Result::is_ok));
}

/// All permits to load were taken, and a caller was refused at the end of its wait, though another
/// process had loaded meanwhile. A reading of the code found this.
#[tokio::test(start_paused = true)]
async fn a_caller_without_a_permit_is_served_by_another_process() {
    let backend = MemoryBackend::new();
    let narrow = Cache::<String>::builder(backend.clone(), "bellwether").max_loads(1);
    let narrow = narrow.wait_limit(200 * MS).build().unwrap();
    let other: Cache<String> = Cache::new(backend, "bellwether").unwrap();
    let origin = Origin::default();
    let slow = spawn(narrow.request("slow").load(loader(&origin, SECOND)));
    settle().await;
    let asked = ask(&narrow, &origin, MS);
    let refused = spawn(narrow.request("unknown key").load(loader(&origin, MS)));
    settle().await;
    assert_eq!(ask(&other, &origin, MS).await.unwrap().unwrap().source, Source::Led);
    assert_eq!(asked.await.unwrap().unwrap().source, Source::Received);
    assert_eq!(refused.await.unwrap().unwrap_err().kind(), ErrorKind::Overloaded);
    slow.await.unwrap().unwrap();
}

/// A load that hangs would gather callers without end. Each of them keeps a request and a
/// connection.
#[tokio::test(start_paused = true)]
async fn callers_beyond_the_limits_are_refused_at_once() {
    let build = || Cache::<String>::builder(MemoryBackend::new(), "bellwether");
    let per_key = build().max_waiters_per_key(10).build().unwrap();
    let in_all = build().max_waiters(10).build().unwrap();
    for (cache, other_key_too) in [(&per_key, false), (&in_all, true)] {
        let origin = Origin::default();
        let waiting: Vec<_> = (0..10).map(|_| ask(cache, &origin, 200 * MS)).collect();
        settle().await;
        let begun = Instant::now();
        for _ in 0..3 {
            let error = ask(cache, &origin, MS).await.unwrap().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Overloaded);
            assert!(error.to_string().contains("10 callers"), "{error}");
        }
        let other = cache.request("other").load(loader(&origin, Duration::ZERO)).await;
        assert_eq!(other.is_err(), other_key_too);
        assert!(begun.elapsed() <= 2 * MS, "{:?}", begun.elapsed());
        // A caller that leaves makes room for another one.
        waiting[9].abort();
        settle().await;
        let late = ask(cache, &origin, MS);
        settle().await;
        assert!(ask(cache, &origin, MS).await.unwrap().is_err());
        for answer in waiting.into_iter().take(9).chain([late]) {
            assert_eq!(answer.await.unwrap().unwrap().value, "value 1");
        }
        // No trace of the refused callers is left.
        for _ in 0..3 {
            assert!(ask(cache, &origin, MS).await.unwrap().is_ok());
        }
        assert_eq!(cache.stats().flights, 0);
    }
    for builder in [build().max_waiters(0), build().max_waiters_per_key(0)] {
        assert_eq!(builder.build().unwrap_err().kind(), ErrorKind::InvalidConfig);
    }
}

/// Each caller of a cache that is shut down loads for itself. All of them together could be a
/// stampede.
#[tokio::test(start_paused = true)]
async fn loads_after_a_shutdown_are_limited() {
    let cache: Cache<String> =
        Cache::builder(MemoryBackend::new(), "bellwether").max_loads(4).build().unwrap();
    let under_way = Origin::default();
    let origin = Origin::default();
    let cut_off = ask(&cache, &under_way, 10 * SECOND);
    settle().await;
    // Its deadline is for loads that began before.
    cache.shutdown(SECOND).await;
    assert_eq!(cut_off.await.unwrap().unwrap_err().kind(), ErrorKind::ShutDown);
    let asked = (0..20).map(|_| ask(&cache, &origin, 100 * MS));
    assert_eq!(sources(asked).await, HashMap::from([(Source::Degraded, 20)]));
    assert_eq!((origin.asked(), origin.most()), (20, 4));
}
