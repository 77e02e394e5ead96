//! The windows of entries: fresh, stale while it is refreshed, and kept for failures.
//!
//! Caches over one memory backend stand for processes. Time is paused, so each edge is exact.

use futures_util::join;

use crate::{origin::*, prelude::*};

const STALE: Duration = Duration::from_secs(2);
const ERROR: Duration = Duration::from_secs(5);
const LOAD: Duration = Duration::from_millis(100);

/// Returns two caches, the first of which has just loaded a value.
async fn loaded() -> ([Cache<u64>; 2], Origin) {
    let caches = fleet(with_windows);
    let origin = Origin::new(LOAD);
    assert_eq!(origin.ask(&caches[0]).await, (1, Source::Led));
    (caches, origin)
}

fn with_windows(builder: Builder<u64>) -> Builder<u64> {
    builder.stale_while_revalidate(STALE).stale_if_error(ERROR)
}

fn early(builder: Builder<u64>) -> Builder<u64> {
    builder.early_refresh(EarlyRefresh::LastPart(0.5))
}

#[tokio::test(start_paused = true)]
async fn a_stale_value_is_served_at_once_and_refreshed_behind() {
    let ([cache, _], origin) = loaded().await;
    for (pause, expected) in [
        (TTL - MS, (1, Source::Hit)),
        (MS, (1, Source::Stale)),
        (LOAD - MS, (1, Source::Stale)),
        (2 * MS, (2, Source::Hit)),
    ] {
        sleep(pause).await;
        assert_eq!(origin.ask_at_once(&cache).await, expected);
    }
    let stats = cache.stats();
    assert_eq!((origin.asked(), stats.refreshes, stats.stale, stats.hits), (2, 1, 2, 2));
}

#[tokio::test(start_paused = true)]
async fn the_stale_window_ends_at_its_edge() {
    for (age, expected) in [(TTL + STALE - MS, (1, Source::Stale)), (TTL + STALE, (2, Source::Led))]
    {
        let ([cache, _], origin) = loaded().await;
        sleep(age).await;
        assert_eq!(origin.ask(&cache).await, expected, "{age:?}");
    }
}

/// Hundreds of instances each refresh, where each counts for itself.
#[tokio::test(start_paused = true)]
async fn a_window_has_one_refresh_in_the_whole_fleet_and_no_caller_waits() {
    let caches: [_; 8] = fleet(with_windows);
    let origin = Origin::new(LOAD);
    origin.ask(&caches[0]).await;
    for window in 1..=5 {
        sleep(TTL).await;
        for _ in 0..20 {
            for cache in &caches {
                assert_eq!(origin.ask_at_once(cache).await, (window, Source::Stale));
            }
            sleep(LOAD / 20).await;
        }
        sleep(MS).await;
        assert_eq!(origin.asked(), window + 1);
    }
    assert_eq!(caches.iter().map(|cache| cache.stats().refreshes).sum::<u64>(), 5);
}

/// A process that was refused the lease would claim with each caller, until the refresh ends.
#[tokio::test(start_paused = true)]
async fn a_process_claims_once_for_each_refresh() {
    let backend = MemoryBackend::new();
    let faulty = Faulty::over(backend.clone(), |_| None);
    let observed: Cache<u64> = with_windows(builder(faulty.clone())).build().unwrap();
    let other = with_windows(builder(backend.clone())).build().unwrap();
    let origin = Origin::new(LOAD);
    origin.ask(&other).await;
    // The turn of a process that has not stored the value comes later.
    sleep(TTL + STALE / 2).await;
    origin.ask_at_once(&other).await;
    for _ in 0..50 {
        assert_eq!(origin.ask_at_once(&observed).await, (1, Source::Stale));
        sleep(MS).await;
    }
    assert_eq!((faulty.count(Op::Claim), origin.asked()), (1, 2));
}

#[tokio::test(start_paused = true)]
async fn a_value_is_kept_for_failures_to_the_end_of_its_window() {
    for (age, is_served) in [(TTL + ERROR - LOAD - MS, true), (TTL + ERROR - LOAD, false)] {
        let ([cache, _], origin) = loaded().await;
        sleep(age).await;
        origin.fails(true);
        match origin.load(&cache).await {
            Ok(loaded) => assert!(is_served && loaded.value == 1, "{age:?}"),
            Err(error) => assert!(!is_served && error.kind() == ErrorKind::Load, "{error}"),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_panic_and_a_time_limit_are_failures_too() {
    let with = |builder| with_windows(builder).after_failure(|_| Some(AfterFailure::LoadAgain));
    let [cache] = fleet(|builder| with(builder).load_limit(10 * LOAD));
    let origin = Origin::new(LOAD);
    origin.ask(&cache).await;
    sleep(TTL + STALE).await;
    origin.panics(true);
    assert_eq!(origin.ask(&cache).await, (1, Source::Stale));
    let loaded = cache.request("k").load(hangs()).await.unwrap();
    assert_eq!((loaded.value, loaded.source), (1, Source::Stale));
    assert_eq!(cache.stats().failures, 2);
}

/// The waiters of another process learn of the failure by its push.
#[tokio::test(start_paused = true)]
async fn every_process_serves_the_value_that_is_kept_for_failures() {
    let caches: [_; 3] = fleet(with_windows);
    let origin = Origin::new(LOAD);
    origin.ask(&caches[0]).await;
    sleep(TTL + STALE).await;
    origin.fails(true);
    let asked = caches.map(|cache| spawn(cache.request("k").load(origin.loader())));
    for loaded in all(asked).await {
        let loaded = loaded.unwrap();
        assert_eq!((loaded.value, loaded.source), (1, Source::Stale));
    }
    assert_eq!(origin.asked(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_refresh_that_fails_or_panics_disturbs_no_caller() {
    for panics in [false, true] {
        let (caches, origin) = loaded().await;
        origin.fails(!panics);
        origin.panics(panics);
        sleep(TTL).await;
        for _ in 0..10 {
            for cache in &caches {
                assert_eq!(origin.ask_at_once(cache).await, (1, Source::Stale));
            }
            sleep(LOAD / 5).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_waits_for_no_refresh_and_frees_its_lease() {
    let backend = MemoryBackend::new();
    let cache = with_windows(builder(backend.clone())).build().unwrap();
    let origin = Origin::new(LOAD);
    origin.ask(&cache).await;
    sleep(TTL).await;
    origin.ask_at_once(&cache).await;
    sleep(LOAD / 2).await;
    let begun = Instant::now();
    cache.shutdown(60 * SECOND).await;
    assert_eq!(begun.elapsed(), Duration::ZERO);
    let name = entry_name("bellwether", "k");
    assert_eq!(testkit::holder(&backend, &name, Mode::Exclusive).await.unwrap(), None);
    // A caller of a cache that is shut down loads for itself.
    assert_eq!(origin.ask(&cache).await.1, Source::Degraded);
}

/// The process that refreshes dies. Its lease ends, and the next one refreshes.
#[tokio::test(start_paused = true)]
async fn a_refresh_whose_process_died_is_begun_again_within_its_lease() {
    let lease = SECOND;
    let backend = MemoryBackend::new();
    let caches =
        [(); 2].map(|()| with_windows(builder(backend.clone())).lease(lease).build().unwrap());
    let origin = Origin::new(LOAD);
    origin.ask(&caches[0]).await;
    sleep(TTL).await;
    let name = entry_name("bellwether", "k");
    // The dead process held the lease, and renews it no more.
    backend.acquire(&Claim::new(name, Mode::Exclusive, lease, lease * 10)).await.unwrap();
    let begun = Instant::now();
    while origin.asked() == 1 {
        for cache in &caches {
            assert_eq!(origin.ask_at_once(cache).await, (1, Source::Stale));
        }
        sleep(10 * MS).await;
    }
    assert!(begun.elapsed() <= lease + 50 * MS, "{:?}", begun.elapsed());
    sleep(LOAD).await;
    assert_eq!(origin.ask_at_once(&caches[1]).await, (2, Source::Hit));
}

#[tokio::test(start_paused = true)]
async fn no_refresh_begins_beyond_the_cap_on_loads() {
    let [cache] = fleet(|builder| with_windows(builder).max_loads(1));
    let origin = Origin::new(LOAD);
    origin.ask(&cache).await;
    sleep(TTL).await;
    let other = spawn(cache.request("other").load(origin.loader()));
    sleep(LOAD / 2).await;
    assert_eq!(origin.ask_at_once(&cache).await, (1, Source::Stale));
    other.await.unwrap().unwrap();
    assert_eq!((origin.asked(), cache.stats().refreshes), (2, 0));
    assert_eq!(origin.ask_at_once(&cache).await, (1, Source::Stale));
    sleep(LOAD).await;
    assert_eq!(cache.stats().refreshes, 1);
}

#[tokio::test(start_paused = true)]
async fn a_hot_entry_that_is_refreshed_early_never_becomes_stale() {
    for early in [EarlyRefresh::Within(TTL / 4), EarlyRefresh::LastPart(0.3)] {
        let caches: [_; 4] = fleet(|builder| builder.early_refresh(early));
        let origin = Origin::new(LOAD);
        origin.ask(&caches[0]).await;
        for _ in 0..1000 {
            for cache in &caches {
                assert_eq!(origin.ask_at_once(cache).await.1, Source::Hit, "{early:?}");
            }
            sleep(10 * MS).await;
        }
        // Each refresh begins at half of the time to live at the earliest.
        let refreshes: u64 = caches.iter().map(|cache| cache.stats().refreshes).sum();
        assert_eq!(origin.asked(), 1 + refreshes);
        assert!((10..=20).contains(&refreshes), "{early:?}: {refreshes}");
    }
}

/// An early refresh begins with a read. One is enough, in any process, if it leaves the load its
/// time. After a later one, callers wait for the rest of the load.
#[tokio::test(start_paused = true)]
async fn one_read_in_time_keeps_all_callers_from_waiting() {
    for (before, reader) in
        [(2 * LOAD, 0), (2 * LOAD, 3), (LOAD + 2 * MS, 0), (LOAD + 2 * MS, 3), (LOAD / 2, 3)]
    {
        let caches: [_; 4] = fleet(early);
        let origin = Origin::new(LOAD);
        origin.ask(&caches[0]).await;
        sleep(TTL - before).await;
        assert_eq!(origin.ask_at_once(&caches[reader]).await, (1, Source::Hit));
        sleep(before).await;
        if before < LOAD {
            let begun = Instant::now();
            assert_eq!(origin.ask(&caches[1]).await, (2, Source::Received));
            assert!(begun.elapsed() <= LOAD / 2 + 2 * MS, "{:?}", begun.elapsed());
        }
        for cache in &caches {
            assert_eq!(origin.ask_at_once(cache).await, (2, Source::Hit), "{before:?}");
        }
        assert_eq!(origin.asked(), 2);
    }
}

#[tokio::test(start_paused = true)]
async fn an_early_refresh_begins_at_its_edge() {
    let [cache] = fleet(|builder| builder.early_refresh(EarlyRefresh::Within(TTL / 4)));
    let origin = Origin::new(LOAD);
    origin.ask(&cache).await;
    sleep(TTL * 3 / 4 - MS).await;
    origin.ask_at_once(&cache).await;
    sleep(MS / 2).await;
    assert_eq!(origin.asked(), 1);
    for (pause, expected) in [(MS / 2, 1), (LOAD + MS, 2)] {
        sleep(pause).await;
        assert_eq!(origin.ask_at_once(&cache).await, (expected, Source::Hit));
    }
}

/// An early refresh that was longer than the life of an entry loaded at each read: 130 times a
/// second. A negative value, a request, a loader or the jitter sets the life.
#[tokio::test(start_paused = true)]
async fn an_early_refresh_begins_in_the_second_half_of_each_life() {
    let builder = || {
        let builder =
            Cache::<Option<u64>>::builder(MemoryBackend::new(), "bellwether").ttl(600 * TTL);
        builder.negative_ttl(5 * TTL, Option::is_none).early_refresh(EarlyRefresh::Within(60 * TTL))
    };
    let jittered = builder().ttl(10 * TTL).ttl_jitter(0.5).build().unwrap();
    let cache = builder().build().unwrap();
    for (life, cache, value) in [
        ("negative_ttl", &cache, None),
        ("request", &cache, Some(1)),
        ("loader", &cache, Some(2)),
        ("jitter", &jittered, Some(3)),
    ] {
        let before = cache.stats().loads;
        let begun = Instant::now();
        while begun.elapsed() < 5 * TTL / 2 {
            let request = cache.request(life);
            let request = if life == "request" { request.ttl(5 * TTL) } else { request };
            let load = request.load(move |lead: Lead<_>| async move {
                if life == "loader" {
                    lead.expire_after(5 * TTL);
                }
                sleep(5 * MS).await;
                Ok::<_, BoxError>(value)
            });
            assert_eq!(load.await.unwrap().value, value);
            sleep(MS).await;
        }
        assert_eq!(cache.stats().loads - before, 1, "{life}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_has_windows_of_its_own() {
    let [cache] = fleet(|builder| builder);
    let origin = Origin::new(LOAD);
    for (pause, stale, expected) in [
        (Duration::ZERO, STALE, Source::Led),
        // This caller wants nothing stale.
        (TTL, Duration::ZERO, Source::Led),
        (Duration::ZERO, STALE, Source::Hit),
        // The value was loaded without a stale window.
        (TTL, STALE, Source::Led),
        (TTL, STALE, Source::Stale),
    ] {
        sleep(pause).await;
        let request = cache.request("k").stale_while_revalidate(stale);
        assert_eq!(request.load(origin.loader()).await.unwrap().source, expected);
    }
}

#[tokio::test(start_paused = true)]
async fn callers_with_windows_of_their_own_change_nothing_for_others() {
    for strict_leads in [false, true] {
        let [cache] = fleet(|builder| builder.stale_while_revalidate(STALE));
        let origin = Origin::new(LOAD);
        origin.ask(&cache).await;
        sleep(TTL).await;
        let plain = async {
            let begun = Instant::now();
            let loaded = cache.request("k").load(origin.loader()).await.unwrap();
            assert_eq!(begun.elapsed(), Duration::ZERO);
            loaded.source
        };
        let strict = async {
            let request = cache.request("k").stale_while_revalidate(Duration::ZERO);
            request.load(origin.loader()).await.unwrap().value
        };
        let (source, value) = if strict_leads {
            let (value, source) = join!(strict, plain);
            (source, value)
        } else {
            join!(plain, strict)
        };
        assert_eq!((source, value, origin.asked()), (Source::Stale, 2, 2));
    }
}

#[tokio::test(start_paused = true)]
async fn a_loader_sets_the_windows_of_its_value() {
    let [cache] = fleet(|builder| builder);
    let load = |lead: Lead<_>| async move {
        lead.expire_after(TTL / 2);
        lead.stale_while_revalidate(STALE);
        lead.stale_if_error(ERROR);
        Ok::<_, BoxError>(7)
    };
    cache.request("k").load(load).await.unwrap();
    let origin = Origin::new(LOAD);
    origin.fails(true);
    for (pause, source) in [(TTL / 2 - MS, Source::Hit), (MS, Source::Stale)] {
        sleep(pause).await;
        assert_eq!(origin.ask_at_once(&cache).await, (7, source));
    }
    sleep(STALE).await;
    assert_eq!(origin.ask(&cache).await, (7, Source::Stale));
    sleep(ERROR).await;
    assert_eq!(origin.load(&cache).await.unwrap_err().kind(), ErrorKind::Load);
}

#[tokio::test(start_paused = true)]
async fn a_get_returns_what_may_be_served_and_refreshes_nothing() {
    let ([cache, _], origin) = loaded().await;
    for (pause, expected) in [(TTL - MS, Some(1)), (MS, Some(1)), (STALE - MS, Some(1)), (MS, None)]
    {
        sleep(pause).await;
        assert_eq!(cache.get("k").await.unwrap(), expected);
    }
    assert_eq!(origin.asked(), 1);
}

/// A loader that asks for its own key would wait for itself.
#[tokio::test(start_paused = true)]
async fn a_refresh_that_asks_for_its_own_key_is_served_the_stale_value() {
    let ([cache, _], origin) = loaded().await;
    sleep(TTL).await;
    let inner = cache.clone();
    let nested = origin.clone();
    let load = |_| async move {
        let (known, source) = nested.ask(&inner).await;
        assert_eq!(source, Source::Stale);
        Ok::<_, BoxError>(known + 100)
    };
    cache.request("k").load(load).await.unwrap();
    let refreshed = timeout(LOAD, async {
        while cache.get("k").await.unwrap() != Some(101) {
            sleep(MS).await;
        }
    });
    refreshed.await.unwrap();
    assert_eq!(origin.asked(), 1);
}

#[tokio::test(start_paused = true)]
async fn an_expired_value_is_served_only_if_the_load_fails() {
    let (caches, origin) = loaded().await;
    caches[1].expire("k").await.unwrap();
    assert_eq!(caches[0].get("k").await.unwrap(), None);
    let peeked = caches[0].peek("k").await.unwrap();
    assert_eq!(peeked.and_then(|loaded| loaded.expires_in()), Some(Duration::ZERO));
    origin.fails(true);
    assert_eq!(origin.ask(&caches[0]).await, (1, Source::Stale));
    origin.fails(false);
    // The key backs off for a moment after the failure.
    sleep(TTL).await;
    assert_eq!(origin.ask(&caches[1]).await, (3, Source::Led));
}

/// A refresh that began before an act on the entry does not undo it.
#[tokio::test(start_paused = true)]
async fn each_act_beats_the_refresh_that_began_before_it() {
    for act in 0..4 {
        let (caches, origin) = loaded().await;
        sleep(TTL).await;
        origin.ask_at_once(&caches[0]).await;
        sleep(LOAD / 2).await;
        match act {
            0 => drop(caches[1].expire("k").await.unwrap()),
            1 => assert!(caches[1].request("k").touch().await.unwrap()),
            2 => drop(caches[1].insert("k", &100).await.unwrap()),
            _ => drop(caches[1].invalidate("k").await.unwrap()),
        }
        sleep(LOAD).await;
        let expected = [None, Some(1), Some(100), None][act];
        assert_eq!((caches[0].get("k").await.unwrap(), origin.asked()), (expected, 2));
    }
}

#[tokio::test(start_paused = true)]
async fn a_peek_sees_each_window_and_counts_nothing() {
    let ([cache, _], origin) = loaded().await;
    assert!(cache.peek("other").await.unwrap().is_none());
    let before = cache.stats();
    for (pause, source, left) in [
        (TTL / 2, Source::Hit, TTL / 2),
        (TTL / 2, Source::Stale, Duration::ZERO),
        (STALE, Source::Stale, Duration::ZERO),
    ] {
        sleep(pause).await;
        let peeked = cache.peek("k").await.unwrap().unwrap();
        assert_eq!((peeked.value, peeked.source), (1, source));
        assert_eq!(
            cache.peek("k").await.unwrap().and_then(|loaded| loaded.expires_in()),
            Some(left)
        );
    }
    sleep(ERROR).await;
    assert_eq!(cache.peek("k").await.unwrap().and_then(|loaded| loaded.expires_in()), None);
    assert_eq!((cache.stats(), origin.asked()), (before, 1));
}

#[tokio::test(start_paused = true)]
async fn a_touched_value_is_fresh_for_another_time() {
    let ([cache, _], origin) = loaded().await;
    assert!(!cache.request("other").touch().await.unwrap());
    sleep(TTL + MS).await;
    assert!(cache.request("k").touch().await.unwrap());
    sleep(TTL - MS).await;
    assert_eq!(origin.ask_at_once(&cache).await, (1, Source::Hit));
    assert!(cache.request("k").ttl(3 * TTL).touch().await.unwrap());
    sleep(3 * TTL - MS).await;
    assert_eq!(origin.ask_at_once(&cache).await, (1, Source::Hit));
}

#[tokio::test(start_paused = true)]
async fn an_inserted_value_has_the_windows_of_its_request() {
    let [cache] = fleet(|builder| builder);
    let request = cache.request("k").ttl(TTL / 2).stale_while_revalidate(STALE);
    request.insert(&7).await.unwrap();
    for (pause, source) in [(TTL / 2 - MS, Source::Hit), (MS, Source::Stale)] {
        sleep(pause).await;
        assert_eq!(Origin::new(LOAD).ask_at_once(&cache).await, (7, source));
    }
}

/// The touch made the key uncacheable for an hour, and returned true. Each load in each process
/// then went on without a lease.
#[tokio::test(start_paused = true)]
async fn a_touch_does_not_prolong_the_mark_of_an_uncacheable_key() {
    let hour = Duration::from_secs(3600);
    for has_tags in [false, true] {
        let builder = Cache::<String>::builder(MemoryBackend::new(), "bellwether").max_value(4);
        let builder = if has_tags { builder.tags() } else { builder };
        let cache = builder.build().unwrap();
        let load = |value: &str| cache.request("k").load(self::value(value.to_owned()));
        load("too long").await.unwrap();
        assert!(!cache.request("k").ttl(hour).touch().await.unwrap(), "tags: {has_tags}");
        sleep(Duration::from_secs(11)).await;
        assert_eq!(load("v").await.unwrap().source, Source::Led, "tags: {has_tags}");
    }
}
