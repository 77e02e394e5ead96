//! The windows of entries by the clock of a server. A test makes entries older, and waits for none.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bellwether::{
    BoxError, Cache,
    cache::{Builder, EarlyRefresh, Lead, Source},
};
use testkit::{LIMIT, RedisServer, comes_true};

const TTL: Duration = Duration::from_secs(600);

struct Scene {
    server: RedisServer,
    loads: Arc<AtomicUsize>,
}

impl Scene {
    async fn start() -> Self {
        Self { server: RedisServer::start().await, loads: Arc::default() }
    }

    fn cache(&self, with: impl Fn(Builder<usize>) -> Builder<usize>) -> Cache<usize> {
        with(Cache::builder(testkit::open(self.server.url()), "bellwether").ttl(TTL))
            .build()
            .unwrap()
    }

    async fn ask(&self, cache: &Cache<usize>) -> (usize, Source) {
        let loads = self.loads.clone();
        let load = |_| async move { Ok::<_, BoxError>(loads.fetch_add(1, Ordering::SeqCst) + 1) };
        let loaded = cache.request("k").load(load).await.unwrap();
        (*loaded.value(), loaded.source())
    }
}

#[tokio::test]
async fn a_stale_value_is_refreshed_once_by_the_clock_of_the_server() {
    let scene = Scene::start().await;
    let caches = [(); 3].map(|()| scene.cache(|builder| builder.stale_while_revalidate(TTL)));
    assert_eq!(scene.ask(&caches[0]).await, (1, Source::Led));
    for window in 1..4 {
        assert_eq!(scene.ask(&caches[1]).await, (window, Source::Hit));
        scene.server.raw().await.age(TTL).await;
        assert_eq!(scene.ask(&caches[window % 3]).await, (window, Source::Stale));
        let refreshed = async || scene.ask(&caches[0]).await == (window + 1, Source::Hit);
        assert!(comes_true(LIMIT, refreshed).await, "the value is not refreshed");
        assert_eq!(scene.loads.load(Ordering::SeqCst), window + 1);
    }
}

/// An entry without a stale window has no age of itself.
#[tokio::test]
async fn a_value_is_refreshed_early_by_the_clock_of_the_server() {
    let scene = Scene::start().await;
    let cache = scene.cache(|builder| builder.early_refresh(EarlyRefresh::Within(TTL / 4)));
    assert_eq!(scene.ask(&cache).await, (1, Source::Led));
    scene.server.raw().await.age(TTL / 2).await;
    assert_eq!(scene.ask(&cache).await, (1, Source::Hit));
    scene.server.raw().await.age(TTL / 3).await;
    assert_eq!(scene.ask(&cache).await, (1, Source::Hit));
    let refreshed = async || scene.ask(&cache).await == (2, Source::Hit);
    assert!(comes_true(LIMIT, refreshed).await, "the value is not refreshed");
    assert_eq!(scene.loads.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn an_expired_value_is_not_served_though_it_is_kept() {
    let scene = Scene::start().await;
    let caches = [(); 2].map(|()| scene.cache(|builder| builder.stale_if_error(TTL)));
    for value in (1..20).step_by(2) {
        assert_eq!(scene.ask(&caches[0]).await, (value, Source::Led));
        assert_eq!(scene.ask(&caches[1]).await, (value, Source::Hit));
        caches[1].expire("k").await.unwrap();
        assert!(caches[0].peek("k").await.unwrap().is_some());
        assert_eq!(scene.ask(&caches[0]).await, (value + 1, Source::Led));
        caches[0].expire("k").await.unwrap();
    }
}

#[tokio::test]
async fn an_unchanged_value_is_renewed_by_the_clock_of_the_server() {
    let scene = Scene::start().await;
    let caches = [(); 2].map(|()| scene.cache(|builder| builder.stale_if_error(TTL)));
    caches[0].insert("k", &7).await.unwrap();
    for round in 1..4 {
        scene.server.raw().await.age(TTL).await;
        assert_eq!(
            caches[1].peek("k").await.unwrap().and_then(|it| it.expires_in()),
            Some(Duration::ZERO)
        );
        let load = |lead: Lead<_>| async move {
            let stale = lead.stale().ok_or("there is no stale value")?;
            Ok::<_, BoxError>(stale.unchanged())
        };
        let led = caches[0].request("k").load(load).await.unwrap();
        assert_eq!((*led.value(), led.source()), (7, Source::Led));
        assert_eq!(caches[0].stats().unchanged, round);
        assert_eq!(scene.ask(&caches[1]).await, (7, Source::Hit));
    }
}
