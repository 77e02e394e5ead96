//! Links with long round trips.

use std::{convert::Infallible, time::Duration};

use bellwether::{Cache, Locks, RedisBackend, cache::Source};
use futures_util::future::join_all;
use testkit::{LIMIT, RedisServer, proxy::Proxy};
use tokio::time::timeout;

/// The first connect takes three round trips or more, which did not fit into the command time-out.
/// At 80 ms the first request degraded, and at 220 ms the first hundred.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_first_requests_of_a_process_far_away_are_answered() {
    let server = RedisServer::start().await;
    for round_trip in [80, 150, 220, 300].map(Duration::from_millis) {
        let proxy = Proxy::start(server.port());
        proxy.lengthen_round_trip(round_trip);
        let builder = RedisBackend::builder().server(proxy.url());
        let backend = builder.connect_timeout(LIMIT).build().unwrap();
        let namespace = format!("far-{}", round_trip.as_millis());
        let cache = Cache::<String>::builder(backend.clone()).namespace(&namespace);
        let cache = cache.build().unwrap();
        let requests = (0..100).map(|at| {
            let load = cache.request(at).load(|_| async { Ok::<_, Infallible>("v".to_owned()) });
            timeout(LIMIT, load)
        });
        for loaded in join_all(requests).await {
            assert_eq!(loaded.unwrap().unwrap().source(), Source::Led, "at {round_trip:?}");
        }
        let stats = cache.stats();
        assert_eq!((stats.degraded, stats.stored), (0, 100), "at {round_trip:?}");
        let locks = Locks::new(backend).namespace(&namespace);
        let lock = locks.mutex("k");
        let guard = timeout(LIMIT, lock.lock()).await.unwrap().unwrap();
        timeout(LIMIT, guard.unlock()).await.unwrap().unwrap();
    }
}
