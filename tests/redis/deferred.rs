//! Writes that fail while a server is away, and reach it when it is back.

use testkit::proxy::Mode;

use crate::prelude::*;

/// A process whose server may be away, and another one beside it.
struct Scene {
    _server: RedisServer,
    proxy: Proxy,
    raw: Raw,
    backend: RedisBackend,
    cache: Cache<u64>,
    other: Cache<u64>,
}

impl Scene {
    async fn begin() -> Self {
        let server = RedisServer::start().await;
        let proxy = Proxy::start(server.port());
        let backend = testkit::builder().server(proxy.url()).build().unwrap();
        let beside = testkit::builder().server(server.url()).build().unwrap();
        let build = |backend| Cache::builder(backend, "t").ttl(TTL).tags().build().unwrap();
        let cache = build(backend.clone());
        let other = build(beside);
        let raw = server.raw().await;
        let scene = Self { _server: server, proxy, raw, backend, cache, other };
        for key in ["k", "tagged"] {
            scene.other.request(key).tag(key).insert(&1).await.unwrap();
            assert_eq!(scene.cache.get(key).await.unwrap(), Some(1));
        }
        scene
    }

    async fn leave(&self) {
        self.proxy.set_mode(Mode::Refuse);
        self.proxy.cut();
        assert!(eventually(LIMIT, || async { self.backend.ping().await.is_err() }).await);
    }

    /// Asserts that both processes find no old value, as soon as all is repeated.
    async fn is_repeated(&self) {
        let is_repeated = async || self.cache.stats().deferred_writes == 0;
        assert!(eventually(LIMIT, is_repeated).await);
    }
}

fn is_deferred<T>(written: Result<T, Error>) -> bool {
    written.is_err_and(|error| error.is_deferred())
}

#[tokio::test]
async fn what_was_written_in_an_outage_reaches_the_server() {
    let scene = Scene::begin().await;
    scene.leave().await;
    assert!(is_deferred(scene.cache.invalidate("k").await));
    assert!(is_deferred(scene.cache.invalidate_tag("tagged").await));
    // The other process does not know of it yet.
    assert_eq!(scene.other.get("k").await.unwrap(), Some(1));
    scene.proxy.clear();
    scene.is_repeated().await;
    for key in ["k", "tagged"] {
        assert_eq!(scene.other.get(key).await.unwrap(), None, "{key}");
        assert_eq!(scene.cache.get(key).await.unwrap(), None, "{key}");
    }
}

/// The connection is back before the task tries again.
#[tokio::test]
async fn a_value_that_is_inserted_when_the_server_is_back_stays() {
    let scene = Scene::begin().await;
    for number in 2..10 {
        scene.leave().await;
        assert!(is_deferred(scene.cache.invalidate("k").await));
        scene.proxy.clear();
        let inserted = async || scene.cache.insert("k", &number).await.is_ok();
        assert!(eventually(LIMIT, inserted).await);
        scene.is_repeated().await;
        assert_eq!(scene.other.get("k").await.unwrap(), Some(number));
        assert_eq!(scene.cache.get("k").await.unwrap(), Some(number));
    }
}

/// It answers reads, as a replica after a failover does, or a master without replicas.
#[tokio::test]
async fn a_server_that_refuses_writes_for_a_while_gets_them_later() {
    let refusals: [(&[&str], &[&str]); 2] = [
        (&["REPLICAOF", "127.0.0.1", "1"], &["REPLICAOF", "NO", "ONE"]),
        (
            &["CONFIG", "SET", "min-replicas-to-write", "1"],
            &["CONFIG", "SET", "min-replicas-to-write", "0"],
        ),
    ];
    for (begins, ends) in refusals {
        let mut scene = Scene::begin().await;
        scene.raw.run::<()>(begins).await;
        assert!(is_deferred(scene.cache.expire("k").await), "{begins:?}");
        assert!(is_deferred(scene.cache.expire_tag("tagged").await), "{begins:?}");
        for key in ["k", "tagged"] {
            assert_ne!(scene.cache.get(key).await.ok(), Some(Some(1)), "{begins:?}: {key}");
            let loaded = scene.cache.request(key).load(|_| async { Ok::<_, BoxError>(2) });
            assert_eq!(loaded.await.unwrap().value, 2, "{begins:?}: {key}");
            assert_eq!(scene.other.get(key).await.unwrap(), Some(1), "{begins:?}: {key}");
        }
        scene.raw.run::<()>(ends).await;
        scene.is_repeated().await;
        for key in ["k", "tagged"] {
            assert_ne!(scene.other.get(key).await.unwrap(), Some(1), "{begins:?}: {key}");
        }
    }
}

/// Otherwise the process would take the server for away for as long as it lives.
#[tokio::test]
async fn a_missing_right_drops_what_was_noted() {
    let mut scene = Scene::begin().await;
    scene.leave().await;
    assert!(is_deferred(scene.cache.invalidate("k").await));
    scene.raw.run::<()>(&["ACL", "SETUSER", "default", "-evalsha", "-eval"]).await;
    scene.proxy.clear();
    scene.is_repeated().await;
    assert_eq!(scene.cache.get("k").await.unwrap(), Some(1));
    let error = scene.cache.invalidate("k").await.unwrap_err();
    assert!(!error.is_deferred(), "{error:#}");
}
