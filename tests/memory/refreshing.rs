//! Refreshes that a caller asks for, callers that wait for a load no longer, and the jitter of the
//! time to live.
//!
//! Caches over one memory backend stand for processes, and time is paused.

use bellwether::{
    backend::Edit,
    error::BackendError,
    testing::{Answer, Hook, Interceptor, Operation},
};

use crate::{origin::*, prelude::*};

const WINDOW: Duration = Duration::from_secs(5);
const LOAD: Duration = Duration::from_millis(100);
const LIMIT: Duration = Duration::from_millis(30);

fn kept(builder: Builder<u64>) -> Builder<u64> {
    builder.stale_if_error(WINDOW)
}

// Refreshes

#[tokio::test(start_paused = true)]
async fn all_others_are_served_the_old_value_during_a_refresh() {
    let [cache, other] = fleet(kept);
    let origin = Origin::new(LOAD);
    cache.insert("k", &100).await.unwrap();
    let refresh = spawn(cache.request("k").refresh(origin.loader()));
    for _ in 0..9 {
        sleep(LOAD / 10).await;
        for cache in [&cache, &other] {
            let hit = cache.request("k").load(origin.loader()).await.unwrap();
            assert_eq!(served(&hit), (100, Source::Hit));
        }
    }
    assert_eq!(served(&refresh.await.unwrap().unwrap()), (1, Source::Led));
    assert_eq!((other.get("k").await.unwrap(), origin.asked()), (Some(1), 1));
}

/// The load may have read what the caller of the refresh knows to have changed.
#[tokio::test(start_paused = true)]
async fn a_refresh_beats_each_load_that_began_before_it() {
    let [early, waiting, late] = fleet(kept);
    let origin = Origin::new(LOAD);
    let loading = spawn(early.request("k").load(origin.loader()));
    sleep(LOAD / 4).await;
    let waiter = spawn(waiting.request("k").load(origin.loader()));
    sleep(LOAD / 4).await;
    let refreshed = late.request("k").refresh(origin.loader()).await.unwrap();
    assert_eq!(refreshed.value, 2);
    assert_eq!(loading.await.unwrap().unwrap().value, 1);
    // It asked before the refresh, and its load was beaten, too.
    assert_eq!(waiter.await.unwrap().unwrap().value, 2);
    assert_eq!((early.get("k").await.unwrap(), origin.asked()), (Some(2), 2));
    assert_eq!(early.stats().refused, 1);
}

/// Answers a refresh with a fence and loses that fence, as a failover may.
#[derive(Clone)]
struct LosesFences;

impl Hook<MemoryBackend> for LosesFences {
    async fn around(
        &self,
        inner: &MemoryBackend,
        operation: Operation,
    ) -> Result<Answer, BackendError> {
        match operation {
            Operation::Edit { edit: Edit::Supersede, .. } => Ok(Answer::Edit(u64::MAX / 2)),
            operation => operation.perform(inner).await,
        }
    }
}

/// Returns a cache, and two whose refreshes lose their fences, over one backend.
fn with_lost_fences() -> [Cache<u64>; 3] {
    let inner = MemoryBackend::new();
    let loses = Interceptor { inner: inner.clone(), hook: LosesFences };
    let builders = [builder(inner), builder(loses.clone()), builder(loses)];
    builders.map(|builder| kept(builder).build().unwrap())
}

/// The fence of the refresh is lost, so the load from before the refresh stores its value, and
/// pushes the value to the refresh.
#[tokio::test(start_paused = true)]
async fn a_refresh_whose_fence_is_lost_takes_no_value_from_before_it() {
    let [early, late, _] = with_lost_fences();
    let origin = Origin::new(LOAD);
    let loading = spawn(early.request("k").load(origin.loader()));
    sleep(LOAD / 2).await;
    let refreshed = late.request("k").refresh(origin.loader()).await.unwrap();
    assert_eq!(served(&refreshed), (2, Source::Led));
    assert_eq!(served(&loading.await.unwrap().unwrap()), (1, Source::Led));
    assert_eq!(early.get("k").await.unwrap(), Some(2));
}

#[tokio::test(start_paused = true)]
async fn a_refresh_whose_fence_is_lost_gets_no_failure_from_before_it() {
    let [early, late, _] = with_lost_fences();
    let broken = Origin::new(LOAD);
    broken.fails(true);
    let loading = spawn(early.request("k").load(broken.loader()));
    sleep(LOAD / 2).await;
    let origin = Origin::new(LOAD);
    let refreshed = late.request("k").refresh(origin.loader()).await.unwrap();
    assert_eq!(served(&refreshed), (1, Source::Led));
    assert_eq!(loading.await.unwrap().unwrap_err().kind(), ErrorKind::Load);
}

#[tokio::test(start_paused = true)]
async fn refreshes_at_once_whose_fences_are_lost_all_end() {
    let [early, one, other] = with_lost_fences();
    let origin = Origin::new(LOAD);
    let loading = spawn(early.request("k").load(origin.loader()));
    sleep(LOAD / 2).await;
    let refreshes = [one, other].map(|cache| spawn(cache.request("k").refresh(origin.loader())));
    for refreshed in all(refreshes).await {
        assert!(refreshed.unwrap().value > 1);
    }
    assert_eq!(loading.await.unwrap().unwrap().value, 1);
}

/// Also a refresh in the background, and one that another caller has asked for.
#[tokio::test(start_paused = true)]
async fn a_refresh_beats_refreshes_that_began_before_it() {
    let [cache] = fleet(|builder| kept(builder).stale_while_revalidate(WINDOW));
    let origin = Origin::new(LOAD);
    cache.insert("k", &100).await.unwrap();
    sleep(TTL).await;
    let stale = cache.request("k").load(origin.loader()).await.unwrap();
    assert_eq!(served(&stale), (100, Source::Stale));
    sleep(LOAD / 4).await;
    let first = spawn(cache.request("k").refresh(origin.loader()));
    sleep(LOAD / 4).await;
    assert_eq!(cache.request("k").refresh(origin.loader()).await.unwrap().value, 3);
    assert_eq!(first.await.unwrap().unwrap().value, 2);
    sleep(LOAD).await;
    assert_eq!((cache.get("k").await.unwrap(), origin.asked()), (Some(3), 3));
}

#[tokio::test(start_paused = true)]
async fn many_refreshes_at_once_are_one_load() {
    let caches: [_; 4] = fleet(kept);
    let origin = Origin::new(LOAD);
    let refreshes = (0..20).map(|at| spawn(caches[at % 4].request("k").refresh(origin.loader())));
    for refreshed in all(refreshes).await {
        assert_eq!(refreshed.unwrap().value, 1);
    }
    assert_eq!(origin.asked(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_refresh_that_fails_leaves_the_old_value() {
    let [cache] = fleet(kept);
    let origin = Origin::new(LOAD);
    cache.insert("k", &100).await.unwrap();
    origin.fails(true);
    let error = cache.request("k").refresh(origin.loader()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Load);
    assert_eq!(cache.get("k").await.unwrap(), Some(100));
}

/// A caller that has left is told of no failure.
#[tokio::test(start_paused = true)]
async fn a_refresh_goes_on_without_its_caller() {
    for fails in [false, true] {
        let [cache] = fleet(|builder| kept(builder).cancel_abandoned());
        let origin = Origin::new(LOAD);
        origin.fails(fails);
        cache.insert("k", &100).await.unwrap();
        let refresh = spawn(cache.request("k").refresh(origin.loader()));
        sleep(LOAD / 2).await;
        refresh.abort();
        sleep(LOAD).await;
        assert_eq!(cache.get("k").await.unwrap(), Some(if fails { 100 } else { 1 }));
        let stats = cache.stats();
        assert_eq!((stats.failures, stats.failed), (u64::from(fails), 0), "{stats:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_refresh_has_until_the_deadline_of_a_shutdown() {
    for (deadline, expected) in [(LOAD, Ok(1)), (LOAD / 4, Err(ErrorKind::ShutDown))] {
        let [cache] = fleet(kept);
        let origin = Origin::new(LOAD);
        let refresh = spawn(cache.request("k").refresh(origin.loader()));
        sleep(LOAD / 2).await;
        cache.shutdown(deadline).await;
        let refreshed = refresh.await.unwrap();
        assert_eq!(refreshed.map(|loaded| loaded.value).map_err(|error| error.kind()), expected);
        let error = cache.request("k").refresh(origin.loader()).await.unwrap_err();
        assert_eq!((error.kind(), origin.asked()), (ErrorKind::ShutDown, 1));
    }
}

#[tokio::test(start_paused = true)]
async fn a_refresh_needs_a_backend_that_answers() {
    let faulty = Faulty::new(|op| (op == Op::Edit).then_some(Fault::Refuse));
    let cache: Cache<u64> = Cache::builder(faulty, "bellwether").build().unwrap();
    let origin = Origin::new(LOAD);
    let error = cache.request("k").refresh(origin.loader()).await.unwrap_err();
    assert_eq!((error.kind(), origin.asked()), (ErrorKind::Backend, 0));
}

#[tokio::test(start_paused = true)]
async fn a_loader_that_refreshes_its_own_key_does_not_wait_for_itself() {
    let [cache] = fleet(kept);
    let origin = Origin::new(LOAD);
    let inner = cache.clone();
    let nested = origin.loader();
    let load =
        |_| async move { inner.request("k").refresh(nested).await.map(|loaded| loaded.value + 10) };
    // The inner refresh began later, so its value is the newer one.
    assert_eq!(cache.request("k").refresh(load).await.unwrap().value, 1);
    assert_eq!(cache.get("k").await.unwrap(), Some(1));
}

// Callers that wait for a load no longer

#[tokio::test(start_paused = true)]
async fn a_caller_takes_the_stale_value_after_its_limit_and_the_load_goes_on() {
    for cancels in [false, true] {
        let [cache, other] = fleet(|builder| {
            let builder = kept(builder).serve_stale_after(LIMIT);
            if cancels { builder.cancel_abandoned() } else { builder }
        });
        let origin = Origin::new(LOAD);
        cache.insert("k", &100).await.unwrap();
        sleep(TTL).await;
        for cache in [&cache, &other] {
            let begun = Instant::now();
            let stale = cache.request("k").load(origin.loader()).await.unwrap();
            assert_eq!((served(&stale), begun.elapsed()), ((100, Source::Stale), LIMIT));
            assert_eq!((cache.stats().stale, cache.stats().slow), (1, 1));
        }
        sleep(LOAD).await;
        let hit = other.request("k").load(origin.loader()).await.unwrap();
        assert_eq!((served(&hit), origin.asked()), ((1, Source::Hit), 1));
    }
}

#[tokio::test(start_paused = true)]
async fn a_load_within_the_limit_serves_its_value() {
    let [cache] = fleet(|builder| kept(builder).serve_stale_after(LOAD + MS));
    let origin = Origin::new(LOAD);
    cache.insert("k", &100).await.unwrap();
    sleep(TTL).await;
    let led = cache.request("k").load(origin.loader()).await.unwrap();
    assert_eq!(served(&led), (1, Source::Led));
    assert_eq!(cache.stats().slow, 0);
}

#[tokio::test(start_paused = true)]
async fn each_caller_has_a_limit_of_its_own() {
    let [cache] = fleet(kept);
    let origin = Origin::new(LOAD);
    cache.insert("k", &100).await.unwrap();
    sleep(TTL).await;
    let leading = spawn(cache.request("k").load(origin.loader()));
    sleep(MS).await;
    let begun = Instant::now();
    let request = cache.request("k").serve_stale_after(LIMIT);
    let stale = request.load(origin.loader()).await.unwrap();
    assert_eq!((served(&stale), begun.elapsed()), ((100, Source::Stale), LIMIT));
    assert_eq!(served(&leading.await.unwrap().unwrap()), (1, Source::Led));
}

/// The value is read when the limit is over, so an act since is respected.
#[tokio::test(start_paused = true)]
async fn a_value_that_may_not_be_served_is_not_served_after_the_limit() {
    for act in 0..3 {
        let [cache, other] = fleet(|builder| kept(builder).serve_stale_after(LIMIT));
        let origin = Origin::new(LOAD);
        cache.insert("k", &100).await.unwrap();
        sleep(TTL).await;
        if act == 0 {
            // It is over before the limit is.
            sleep(WINDOW - LIMIT).await;
        }
        let asked = spawn(cache.request("k").load(origin.loader()));
        sleep(LIMIT / 2).await;
        match act {
            0 => {}
            1 => drop(other.invalidate("k").await.unwrap()),
            _ => drop(other.insert("k", &200).await.unwrap()),
        }
        let loaded = asked.await.unwrap().unwrap();
        let expected = [(1, Source::Led), (1, Source::Led), (200, Source::Hit)][act];
        assert_eq!(served(&loaded), expected, "{act}");
    }
}

/// Returns an impatient cache with a value that may stand in, and whose reads take a while.
async fn with_an_old_value() -> (Cache<u64>, Origin) {
    let faulty = Faulty::new(|_| None);
    let cache = kept(builder(faulty.clone())).serve_stale_after(LIMIT).build().unwrap();
    let origin = Origin::new(LOAD);
    cache.insert("k", &100).await.unwrap();
    sleep(TTL).await;
    faulty.plan(|op| (op == Op::Get).then_some(Fault::Late(MS)));
    (cache, origin)
}

/// A caller got a stale value that it did not accept, because another one had begun the read.
#[tokio::test(start_paused = true)]
async fn an_impatient_caller_is_served_only_what_it_accepts() {
    let (cache, origin) = with_an_old_value().await;
    let asked = [WINDOW, Duration::ZERO, WINDOW]
        .map(|window| spawn(cache.request("k").stale_if_error(window).load(origin.loader())));
    let got: Vec<_> = all(asked).await.into_iter().map(|loaded| loaded.unwrap().value).collect();
    assert_eq!((got, origin.asked()), (vec![100, 1, 100], 1));
}

// The jitter of the time to live

#[tokio::test(start_paused = true)]
async fn the_time_to_live_is_shortened_by_a_part_of_it() {
    let [cache] = fleet(|builder| kept(builder).ttl_jitter(0.2));
    let mut all = Vec::new();
    for key in 0..200_u64 {
        match key % 3 {
            0 => drop(cache.insert(key, &key).await.unwrap()),
            1 => drop(cache.get_or_load(key, value(1)).await.unwrap()),
            _ => {
                cache.request(key).ttl(WINDOW).insert(&key).await.unwrap();
                assert!(cache.request(key).touch().await.unwrap());
            }
        }
        all.push(cache.peek(key).await.unwrap().unwrap().expires_in().unwrap());
    }
    all.sort();
    assert!(all[0] >= TTL * 4 / 5 && all[0] < TTL * 17 / 20, "{:?}", all[0]);
    assert!(all[199] <= TTL && all[199] > TTL * 19 / 20, "{:?}", all[199]);
    assert!(all.windows(2).filter(|pair| pair[0] == pair[1]).count() < 100);
}

#[tokio::test(start_paused = true)]
async fn the_jitter_is_a_part_of_any_time_to_live() {
    let [cache] = fleet(|builder| kept(builder).ttl_jitter(0.5));
    let load = |lead: Lead<u64>| async move {
        lead.expire_after(4 * TTL);
        Ok::<_, BoxError>(1)
    };
    cache.request("k").load(load).await.unwrap();
    let kept = cache.peek("k").await.unwrap().unwrap().expires_in().unwrap();
    assert!(kept >= 2 * TTL && kept <= 4 * TTL, "{kept:?}");
    for part in [-0.1, 1.1, f64::NAN, f64::INFINITY] {
        let built =
            Cache::<u64>::builder(MemoryBackend::new(), "bellwether").ttl_jitter(part).build();
        assert_eq!(built.unwrap_err().kind(), ErrorKind::InvalidConfig);
    }
}
