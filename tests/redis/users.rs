//! The scenarios of two users, whose processes share a server.

use bellwether::layer::CachedResponse;
use futures_util::{StreamExt, stream};

use crate::prelude::*;
use crate::scenarios::{scenarios, shared_scenarios};

/// How many scenarios run at once.
const AT_ONCE: usize = 16;

fn cache(backend: &RedisBackend, scenario: usize) -> Cache<CachedResponse> {
    http_cache(backend.clone(), format!("shop-{scenario}"))
        .retry(Retry::on_demand().try_limit(LIMIT))
        .build()
        .unwrap()
}

/// Returns two processes that share a server.
fn processes(server: &RedisServer) -> [RedisBackend; 2] {
    [(), ()].map(|()| testkit::open(server.url()))
}

#[tokio::test]
async fn two_users_of_two_processes_get_what_is_theirs() {
    let server = RedisServer::start().await;
    let backends = processes(&server);
    // A part of them, in which each order, form and delivery occurs.
    let some = scenarios().into_iter().enumerate().filter(|(at, _)| at % 4 == 0);
    let count = stream::iter(some)
        .map(|(at, scenario)| {
            let caches = [0, 1].map(|process| cache(&backends[process], at));
            async move { scenario.run(caches).await }
        })
        .buffer_unordered(AT_ONCE)
        .count()
        .await;
    assert!(count >= 300, "{count} scenarios");
}

/// The scenarios would show nothing if no answer were shared.
#[tokio::test]
async fn equal_users_of_two_processes_share_in_the_same_scenarios() {
    let server = RedisServer::start().await;
    let backends = processes(&server);
    for (at, (scenario, calls)) in shared_scenarios().into_iter().enumerate() {
        let caches = [0, 1].map(|process| cache(&backends[process], at));
        assert_eq!(scenario.run(caches).await, calls, "{scenario:#?}");
    }
}
