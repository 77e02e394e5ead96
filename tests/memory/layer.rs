//! `BellwetherLayer::new` over services that are strict about their contract.

use std::convert::Infallible;

use bellwether::BellwetherLayer;
use tower::{Layer, Service, ServiceBuilder, ServiceExt, service_fn};
use tower_test::mock::{self, Handle, Mock};

use crate::prelude::*;

type Request = &'static str;

fn cache(backend: &MemoryBackend) -> Cache<String> {
    Cache::builder(backend.clone(), "bellwether").build().unwrap()
}

fn keyed(request: &Request) -> Option<Key> {
    (!request.starts_with("own")).then(|| Key::from(*request))
}

/// A layer over a cache of its own, and a service that is played.
fn over_mock(
    set: impl Fn(Builder<String>) -> Builder<String>,
) -> (
    impl Service<Request, Response = String, Error = bellwether::Error, Future: Send> + Clone,
    Handle<Request, String>,
) {
    let (inner, handle): (Mock<Request, String>, _) = mock::pair();
    let cache = set(Cache::builder(MemoryBackend::new(), "bellwether")).build().unwrap();
    (BellwetherLayer::new(cache, keyed).layer(inner), handle)
}

#[tokio::test(start_paused = true)]
async fn the_layer_is_ready_though_the_service_is_not() {
    let (mut service, mut handle) = over_mock(|builder| builder);
    handle.allow(0);
    let waiting = spawn(service.ready().await.unwrap().call("a"));
    sleep(SECOND).await;
    assert!(!waiting.is_finished());
    handle.allow(1);
    handle.next_request().await.unwrap().1.send_response("A".to_owned());
    assert_eq!(waiting.await.unwrap().unwrap(), "A");
    // No readiness is left, and a hit needs none.
    assert_eq!(service.ready().await.unwrap().call("a").await.unwrap(), "A");
    // Without a key it is called as well when it is ready. The mock panics otherwise.
    for round in 0..2 {
        let own = spawn(service.ready().await.unwrap().call("own"));
        sleep(SECOND).await;
        assert!(!own.is_finished(), "{round}");
        handle.allow(1);
        handle.next_request().await.unwrap().1.send_response("O".to_owned());
        assert_eq!(own.await.unwrap().unwrap(), "O");
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_without_callers_is_cancelled_if_configured() {
    let running = Arc::new(tokio::sync::watch::Sender::new(()));
    let counted = running.clone();
    let inner = service_fn(move |_: Request| {
        let call = counted.subscribe();
        async move {
            pending::<()>().await;
            drop(call);
            Ok::<_, Infallible>(String::new())
        }
    });
    let builder = Cache::builder(MemoryBackend::new(), "bellwether").cancel_abandoned();
    let service = BellwetherLayer::new(builder.build().unwrap(), keyed).layer(inner);
    let caller = spawn(service.oneshot("a"));
    sleep(SECOND).await;
    assert_eq!(running.receiver_count(), 1);
    caller.abort();
    sleep(10 * MS).await;
    assert_eq!(running.receiver_count(), 0);
}

#[tokio::test(start_paused = true)]
async fn an_error_of_the_service_reaches_every_waiter() {
    #[derive(Debug, thiserror::Error)]
    #[error("no product {0}")]
    struct NoProduct(u32);

    let calls = Arc::new(AtomicUsize::new(0));
    let counted = calls.clone();
    let inner = service_fn(move |_: Request| {
        counted.fetch_add(1, Ordering::SeqCst);
        sleep(50 * MS).map(|()| Err::<String, _>(NoProduct(42)))
    });
    let service = BellwetherLayer::new(cache(&MemoryBackend::new()), keyed).layer(inner);
    for answer in all((0..10).map(|_| spawn(service.clone().oneshot("a")))).await {
        let error = answer.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Load);
        assert_eq!(error.load_ref::<NoProduct>().unwrap().0, 42);
    }
    assert_eq!(calls.load(Ordering::SeqCst), 1);
    // The failure is not remembered.
    assert!(service.oneshot("a").await.is_err());
    assert_eq!(calls.load(Ordering::SeqCst), 2);
}

#[tokio::test(start_paused = true)]
async fn a_boxed_error_keeps_its_type() {
    let (service, mut handle) = over_mock(|builder| builder);
    let caller = spawn(service.oneshot("a"));
    handle.next_request().await.unwrap().1.send_error(std::io::Error::other("disk"));
    let error = caller.await.unwrap().unwrap_err();
    assert_eq!(error.load_ref::<std::io::Error>().unwrap().to_string(), "disk");
}

#[tokio::test(start_paused = true)]
async fn a_service_that_never_gets_ready_fails_at_the_load_limit() {
    let (service, mut handle) = over_mock(|builder| builder.load_limit(SECOND));
    handle.allow(0);
    let error = service.oneshot("a").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LoadTimeout);
}

#[tokio::test(start_paused = true)]
async fn layers_over_one_cache_share_and_two_caches_are_a_fleet() {
    let backend = MemoryBackend::new();
    let layer = BellwetherLayer::new(cache(&backend), keyed);
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = calls.clone();
    let inner = service_fn(move |request: Request| {
        counted.fetch_add(1, Ordering::SeqCst);
        sleep(50 * MS).map(move |()| Ok::<_, BoxError>(request.to_uppercase()))
    });
    let services = [
        layer.layer(inner.clone()),
        layer.clone().layer(inner.clone()),
        BellwetherLayer::new(cache(&backend), keyed).layer(inner.clone()),
    ];
    let begun = Instant::now();
    let callers = (0..30).map(|at| spawn(services[at % services.len()].clone().oneshot("a")));
    assert!(all(callers).await.into_iter().all(|answer| answer.unwrap() == "A"));
    assert_eq!(calls.load(Ordering::SeqCst), 1);
    assert!(begun.elapsed() < 200 * MS, "{:?}", begun.elapsed());
}

/// A layer is applied twice over one cache. The flight of the inner layer would wait for that of
/// the outer one, which waits for it.
#[tokio::test(start_paused = true)]
async fn a_layer_within_itself_does_not_wait_for_itself() {
    let layer = BellwetherLayer::new(cache(&MemoryBackend::new()), keyed);
    let service = ServiceBuilder::new().layer(layer.clone()).layer(layer).service(service_fn(
        |request: Request| async move { Ok::<_, BoxError>(request.to_uppercase()) },
    ));
    assert_eq!(timeout(5 * SECOND, service.oneshot("a")).await.unwrap().unwrap(), "A");
}

/// The future of a join keeps those that are complete until all are.
#[tokio::test(start_paused = true)]
async fn a_future_that_has_answered_holds_nothing_of_the_call() {
    let permits = Arc::new(tokio::sync::Semaphore::new(1));
    let limited = permits.clone();
    let inner = service_fn(move |_: Request| {
        // Not an async block, which drops what it holds when it ends.
        let mut held = Vec::new();
        let limited = limited.clone();
        std::future::poll_fn(move |_| {
            held.push(limited.clone().try_acquire_owned());
            std::task::Poll::Ready(Err::<String, _>("refused"))
        })
    });
    let mut service = BellwetherLayer::new(cache(&MemoryBackend::new()), keyed).layer(inner);
    for request in ["own", "a"] {
        let mut future = std::pin::pin!(service.call(request));
        assert!(future.as_mut().await.is_err());
        assert_eq!(permits.available_permits(), 1, "{request}");
    }
}
