//! Many keys in one call, at a server and in a cluster.

use std::collections::BTreeMap;

use bellwether::cache::Batch;

use crate::prelude::*;

fn cache(backend: RedisBackend) -> Cache<u64> {
    Cache::builder(backend, "many").build().unwrap()
}

/// Loads these ids in one call. Returns the sources, and how often the loader was called.
async fn load(cache: &Cache<u64>, ids: std::ops::Range<u64>) -> (Vec<Source>, usize) {
    let calls = Arc::<AtomicUsize>::default();
    let counted = calls.clone();
    let loader = move |batch: Batch<u64, u64>| {
        counted.fetch_add(1, Ordering::SeqCst);
        let values: Vec<_> = batch.ids().iter().map(|id| (*id, 2 * id)).collect();
        async move { Ok::<_, BoxError>(values) }
    };
    let key = |id: &u64| format!("id:{id}");
    let loaded = cache.get_or_load_many(ids.clone(), key, loader).await.unwrap();
    let loaded: Vec<_> = loaded.into_iter().map(Result::unwrap).collect();
    let values: Vec<u64> = loaded.iter().map(|loaded| loaded.value).collect();
    assert_eq!(values, ids.map(|id| 2 * id).collect::<Vec<_>>());
    let calls = calls.load(Ordering::SeqCst);
    (loaded.iter().map(|loaded| loaded.source).collect(), calls)
}

#[tokio::test]
async fn cold_keys_are_two_commands_each_and_hits_are_one() {
    let server = RedisServer::start().await;
    let here = cache(testkit::open(server.url()));
    load(&here, 1000..1001).await;
    let mut monitor = server.monitor().await;
    assert_eq!(load(&here, 0..100).await, (vec![Source::Led; 100], 1));
    let mut calls = BTreeMap::<_, usize>::new();
    for call in monitor.calls_from_clients().await {
        *calls.entry(call.command).or_default() += 1;
    }
    let of = |command: &str| calls.get(command).copied().unwrap_or_default();
    // One command looks for all. Each is then claimed and committed.
    assert_eq!((of("MGET"), of("GET"), of("EVALSHA")), (1, 0, 200), "{calls:?}");
    let there = cache(testkit::open(server.url()));
    assert_eq!(load(&there, 0..100).await, (vec![Source::Hit; 100], 0));
}

/// They are read by one command, unless the server forbids it.
#[tokio::test]
async fn many_hits_are_one_command() {
    let server = RedisServer::start().await;
    let mut raw = server.raw().await;
    let cache: Cache<String> = Cache::builder(testkit::open(server.url()), "many").build().unwrap();
    let keys = || (0..128).map(|key| key.to_string());
    cache.insert_many(keys().filter(|key| key != "7").map(|key| (key.clone(), key))).await;
    let check = async || {
        let found = cache.get_many(keys()).await.into_iter().map(Result::unwrap);
        let expected = keys().map(|key| (key != "7").then_some(key));
        assert!(found.eq(expected));
    };
    check().await;
    let mut monitor = server.monitor().await;
    let mut commands = async || {
        check().await;
        let calls = monitor.calls_from_clients().await.into_iter().map(|call| call.command);
        let mut all: Vec<_> =
            calls.filter(|call| call == "MGET" || call.starts_with("GET")).collect();
        all.dedup();
        all
    };
    assert_eq!(commands().await, ["MGET"]);
    // Another kind of data in the place of an entry is missing, and no other one.
    raw.run::<()>(&["LPUSH", "many:c:{7}:e", "foreign"]).await;
    assert_eq!(commands().await, ["MGET"]);
    raw.run::<()>(&["DEL", "many:c:{7}:e"]).await;
    raw.run::<()>(&["ACL", "SETUSER", "default", "-mget"]).await;
    // A command that is forbidden is not shown.
    assert_eq!(commands().await, ["GET"]);
    let large = "x".repeat(200_000);
    cache.insert("8", &large).await.unwrap();
    let found = cache.get_many(["8", "9"]).await;
    assert_eq!(found[0].as_ref().unwrap().as_deref(), Some(&*large));
    assert_eq!(found[1].as_ref().unwrap().as_deref(), Some("9"));
}

#[tokio::test]
async fn keys_on_all_nodes_of_a_cluster_are_one_call() {
    let cluster = Cluster::start(3, 0).await;
    let backend = || testkit::builder().cluster(cluster.urls()).build().unwrap();
    let caches = [(); 2].map(|()| cache(backend()));
    assert_eq!(load(&caches[0], 0..100).await, (vec![Source::Led; 100], 1));
    assert_eq!(load(&caches[1], 0..100).await, (vec![Source::Hit; 100], 0));
    let keys: Vec<_> = (0..100).map(|id| format!("id:{id}")).collect();
    assert!(caches[1].invalidate_many(&keys).await.iter().all(Result::is_ok));
    assert!(caches[0].get_many(&keys).await.into_iter().all(|value| value.unwrap().is_none()));
}
