//! The low-level call: a load that is no closure. Caches over one memory backend stand for
//! processes, and time is paused.

use bellwether::cache::{Begun, Load};

use crate::{origin::*, prelude::*};

const WINDOW: Duration = Duration::from_secs(5);
const LEASE: Duration = Duration::from_secs(1);

fn brief(builder: Builder<u64>) -> Builder<u64> {
    builder.lease(LEASE)
}

async fn load(cache: &Cache<u64>) -> Load<u64> {
    match cache.request("k").begin().await.unwrap() {
        Begun::Load(load) => load,
        other => panic!("{other:?}"),
    }
}

async fn at_once(cache: &Cache<u64>) -> (u64, Source) {
    match cache.request("k").begin().await.unwrap() {
        Begun::Ready(loaded) => served(&loaded),
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn a_committed_value_is_ready_in_each_process() {
    let [cache, other] = fleet(brief);
    let load = load(&cache).await;
    let fence = load.fence();
    let loaded = load.commit(7).await;
    assert_eq!((served(&loaded), loaded.fence()), ((7, Source::Led), fence));
    assert_eq!(loaded.expires_in(), Some(TTL));
    for cache in [&cache, &other] {
        assert_eq!(at_once(cache).await, (7, Source::Hit));
    }
    let stats = cache.stats();
    assert_eq!((stats.loads, stats.led, stats.stored, stats.hits), (1, 1, 1, 1));
}

/// The second call waits for the first one, in the same process and in another one, and so does
/// a caller with a closure.
#[tokio::test(start_paused = true)]
async fn calls_at_once_wait_for_one_load() {
    let [cache, other] = fleet(brief);
    let load = load(&cache).await;
    let waiting = [&cache, &other, &other].map(|cache| {
        let cache = cache.clone();
        spawn(async move { at_once(&cache).await })
    });
    let closure = spawn(cache.request("k").load(value(8)));
    sleep(10 * MS).await;
    load.commit(7).await;
    assert_eq!(all(waiting).await, [(7, Source::Received); 3]);
    assert_eq!(served(&closure.await.unwrap().unwrap()), (7, Source::Received));
}

#[tokio::test(start_paused = true)]
async fn a_load_that_ends_without_a_value_lets_the_next_process_load() {
    let [cache, other] = fleet(brief);
    let load = load(&cache).await;
    let waiting = spawn(async move { other.request("k").begin().await });
    sleep(10 * MS).await;
    let begun = Instant::now();
    drop(load);
    let Ok(Begun::Load(next)) = waiting.await.unwrap() else { panic!("no load") };
    assert!(begun.elapsed() < LEASE / 2, "{:?}", begun.elapsed());
    next.commit(7).await;
    assert_eq!(at_once(&cache).await, (7, Source::Hit));
}

/// A caller that gives up releases what it may have been granted.
#[tokio::test(start_paused = true)]
async fn a_call_that_is_dropped_holds_nothing() {
    let faulty = Faulty::new(|op| (op == Op::Claim).then_some(Fault::Late(10 * MS)));
    let cache: Cache<u64> =
        Cache::builder(faulty.clone(), "bellwether").lease(LEASE).build().unwrap();
    assert!(timeout(5 * MS, cache.request("k").begin()).await.is_err());
    faulty.plan(|_| None);
    let begun = Instant::now();
    load(&cache).await.commit(7).await;
    assert!(begun.elapsed() < LEASE / 2, "{:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_failure_is_told_to_those_that_wait_and_the_key_backs_off() {
    let rule = AfterFailure::RetryAfter(TTL);
    let [cache, other] = fleet(|builder| brief(builder).after_failure(move |_| Some(rule)));
    let load = load(&cache).await;
    let theirs = other.clone();
    let waiting = spawn(async move { theirs.request("k").begin().await });
    sleep(10 * MS).await;
    let error = load.fail("the origin is down").await;
    assert_eq!((error.kind(), error.retry_after()), (ErrorKind::Load, Some(TTL)));
    let error = waiting.await.unwrap().unwrap_err();
    assert_eq!((error.kind(), error.retry_after()), (ErrorKind::Load, Some(TTL)));
    let error = other.request("k").begin().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BackingOff);
    assert_eq!((cache.stats().failures, cache.stats().failed), (1, 1));
}

/// One process refreshes, and the others are served the old value without a load.
#[tokio::test(start_paused = true)]
async fn a_stale_value_comes_with_one_load_in_the_fleet() {
    let [cache, other] = fleet(|builder| brief(builder).stale_while_revalidate(WINDOW));
    load(&cache).await.commit(7).await;
    sleep(TTL).await;
    let Ok(Begun::Stale(old, Some(load))) = cache.request("k").begin().await else {
        panic!("no refresh")
    };
    assert_eq!((served(&old), load.stale().unwrap().value), ((7, Source::Stale), 7));
    sleep(TTL).await;
    for cache in [&cache, &other] {
        let Ok(Begun::Stale(old, None)) = cache.request("k").begin().await else {
            panic!("two refreshes")
        };
        assert_eq!(served(&old), (7, Source::Stale));
    }
    load.commit(8).await;
    assert_eq!(at_once(&other).await, (8, Source::Hit));
    assert_eq!((cache.stats().refreshes, cache.stats().loads), (1, 2));
}

/// The value of a load that began before an act is not stored.
#[tokio::test(start_paused = true)]
async fn a_load_learns_of_an_act_when_it_asks() {
    let [cache, other] = fleet(brief);
    let load = load(&cache).await;
    load.confirm().await.unwrap();
    other.insert("k", &9).await.unwrap();
    assert_eq!(load.confirm().await.unwrap_err().kind(), ErrorKind::Lost);
    load.lost().await;
    let loaded = load.commit(7).await;
    assert_eq!(served(&loaded), (9, Source::Received));
    assert_eq!(at_once(&cache).await, (9, Source::Hit));
}

#[tokio::test(start_paused = true)]
async fn a_load_is_lost_at_its_limit_and_at_a_shutdown() {
    let [cache, other] = fleet(|builder| brief(builder).load_limit(3 * TTL));
    let load = load(&cache).await;
    let begun = Instant::now();
    load.lost().await;
    assert!(begun.elapsed() <= 3 * TTL + LEASE + MS, "{:?}", begun.elapsed());
    drop(load);
    let load = self::load(&other).await;
    let theirs = other.clone();
    let shutdown = spawn(async move { theirs.shutdown(Duration::ZERO).await });
    timeout(TTL, load.lost()).await.unwrap();
    // A caller that does not look whether its load is lost holds no shutdown up.
    timeout(2 * SECOND, shutdown).await.unwrap().unwrap();
    drop(load);
    let begun = other.request("k").begin().await.unwrap();
    assert!(matches!(begun, Begun::Alone), "{begun:?}");
}

#[tokio::test(start_paused = true)]
async fn a_caller_without_a_backend_or_at_its_limit_is_alone() {
    let faulty = Faulty::new(|_| Some(Fault::Refuse));
    let cache: Cache<u64> = Cache::builder(faulty, "bellwether").build().unwrap();
    let begun = cache.request("k").begin().await.unwrap();
    assert!(matches!(begun, Begun::Alone), "{begun:?}");
    let [cache, other] = fleet(brief);
    let _load = load(&cache).await;
    let begun = other.request("k").wait_limit(100 * MS).begin().await.unwrap();
    assert!(matches!(begun, Begun::Alone), "{begun:?}");
}

/// A part of a load may ask for other loads, though all permits are taken.
#[tokio::test(start_paused = true)]
async fn a_load_holds_its_permit_and_its_parts_need_none() {
    let [cache, _] = fleet(|builder| brief(builder).max_loads(1));
    let load = load(&cache).await;
    let request = cache.request("other").wait_limit(100 * MS);
    assert_eq!(request.begin().await.unwrap_err().kind(), ErrorKind::Overloaded);
    let part = cache.request("other").wait_limit(100 * MS);
    let Begun::Load(other) = load.scope(part.begin()).await.unwrap() else { panic!("no load") };
    other.commit(8).await;
    load.commit(7).await;
    assert_eq!(at_once(&cache).await, (7, Source::Hit));
}

/// A claim is under way when the shutdown begins. Its caller may not be polled, so nothing waits
/// for it, and it begins no load any more.
#[tokio::test(start_paused = true)]
async fn a_shutdown_waits_for_no_call_that_is_about_to_begin_a_load() {
    let faulty = Faulty::new(|op| (op == Op::Claim).then_some(Fault::Late(100 * MS)));
    let build = || Cache::<u64>::builder(faulty.clone(), "bellwether").build().unwrap();
    let cache = build();
    let other = build();
    let mut beginning = std::pin::pin!(cache.request("k").begin());
    let mut refreshing = std::pin::pin!(cache.request("r").refresh(value(7)));
    for _ in 0..5 {
        assert!(beginning.as_mut().now_or_never().is_none());
        assert!(refreshing.as_mut().now_or_never().is_none());
        tokio::task::yield_now().await;
    }
    let begun = Instant::now();
    cache.shutdown(SECOND).await;
    assert!(begun.elapsed() < SECOND, "{:?}", begun.elapsed());
    let alone = beginning.await.unwrap();
    assert!(matches!(alone, Begun::Alone), "{alone:?}");
    // Its lease is released.
    assert!(matches!(other.request("k").begin().await.unwrap(), Begun::Load(_)));
}

/// The same for the refresh of a stale value. The value is served.
#[tokio::test(start_paused = true)]
async fn a_refresh_that_is_about_to_begin_at_a_shutdown_does_not_begin() {
    let faulty = Faulty::new(|_| None);
    let builder = Cache::<u64>::builder(faulty.clone(), "bellwether").ttl(TTL);
    let cache = builder.stale_while_revalidate(WINDOW).build().unwrap();
    load(&cache).await.commit(7).await;
    sleep(TTL).await;
    faulty.plan(|op| (op == Op::Claim).then_some(Fault::Late(100 * MS)));
    let mut beginning = std::pin::pin!(cache.request("k").begin());
    for _ in 0..5 {
        assert!(beginning.as_mut().now_or_never().is_none());
        tokio::task::yield_now().await;
    }
    cache.shutdown(SECOND).await;
    let begun = beginning.await.unwrap();
    assert!(matches!(&begun, Begun::Stale(old, None) if old.value == 7), "{begun:?}");
    assert_eq!(cache.stats().refreshes, 0);
}

/// The lease is granted, and the question for the tags is under way, when the shutdown begins. The
/// shutdown waits for the end of that load, so that its lease is released before the process ends.
#[tokio::test(start_paused = true)]
async fn a_shutdown_waits_for_a_load_that_asks_for_its_tags() {
    let faulty = Faulty::new(|op| (op == Op::TagNumber).then_some(Fault::Late(100 * MS)));
    let cache: Cache<u64> = Cache::builder(faulty, "bellwether").tags().build().unwrap();
    let beginner = cache.clone();
    let beginning = spawn(async move { beginner.request("k").begin().await });
    sleep(50 * MS).await;
    let begun = Instant::now();
    cache.shutdown(SECOND).await;
    assert!((50 * MS..SECOND).contains(&begun.elapsed()), "{:?}", begun.elapsed());
    assert!(beginning.is_finished());
    let alone = beginning.await.unwrap().unwrap();
    assert!(matches!(alone, Begun::Alone), "{alone:?}");
}

/// The first of the calls that find a stale value claims its lease. It is refused.
#[tokio::test(start_paused = true)]
async fn stale_calls_claim_once() {
    let faulty = Faulty::new(|_| None);
    let claims = Arc::new(AtomicUsize::new(0));
    let builder = Cache::<u64>::builder(faulty.clone(), "bellwether").ttl(TTL);
    let cache = builder.stale_while_revalidate(WINDOW).build().unwrap();
    load(&cache).await.commit(7).await;
    let counted = claims.clone();
    faulty.plan(move |op| {
        (op == Op::Claim).then(|| {
            counted.fetch_add(1, Ordering::SeqCst);
            Fault::Refuse
        })
    });
    sleep(TTL).await;
    for _ in 0..10 {
        let begun = cache.request("k").begin().await.unwrap();
        assert!(matches!(begun, Begun::Stale(_, None)), "{begun:?}");
    }
    assert_eq!(claims.load(Ordering::SeqCst), 1);
}

/// It asks for the key of the loader that began it, which waits for it.
#[tokio::test(start_paused = true)]
async fn a_refresh_that_a_loader_begins_belongs_to_its_flight() {
    let builder = Cache::<u64>::builder(MemoryBackend::new(), "bellwether").ttl(TTL);
    let cache = builder.stale_while_revalidate(WINDOW).build().unwrap();
    cache.insert("k", &1).await.unwrap();
    sleep(TTL).await;
    let begun = Instant::now();
    let inner = cache.clone();
    let loader = move |_| async move {
        let Begun::Stale(_, Some(load)) = inner.request("k").begin().await? else {
            panic!("there is no load")
        };
        let made = load.scope(inner.get_or_load("outer", value(5))).await?;
        load.commit(made).await;
        Ok::<_, BoxError>(made)
    };
    assert_eq!(cache.get_or_load("outer", loader).await.unwrap(), 5);
    assert!(begun.elapsed() < MS, "{:?}", begun.elapsed());
}
