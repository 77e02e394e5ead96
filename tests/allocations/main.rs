//! How many allocations the layers add to a request that passes. A program of its own, because its
//! allocator counts those of all threads.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::{alloc::System, convert::Infallible};

use bellwether::{
    BellwetherLayer, BoxError, Cache, Key, MemoryBackend, http_cache,
    layer::{Http, Policy},
};
use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use http_body_util::{BodyExt, Full};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use tokio::task::yield_now;
use tower::{Layer, Service, ServiceExt, service_fn, util::Oneshot};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// So many allocations a pass may add that takes no part.
const MOST: usize = 2;

/// So many a pass may add whose answer means something to others: it keeps the head of its request,
/// and judges the response.
const MOST_OF_JUDGED: usize = 14;

/// Another thread, such as that of the test harness, may allocate during one round or another.
const ROUNDS: usize = 20;

/// Returns the fewest allocations of a future of several rounds.
async fn fewest<F: Future>(mut future: impl FnMut() -> F) -> usize {
    let mut fewest = usize::MAX;
    for _ in 0..ROUNDS {
        let future = future();
        let region = Region::new(ALLOCATOR);
        drop(future.await);
        let change = region.change();
        fewest = fewest.min(change.allocations + change.reallocations);
    }
    fewest
}

/// A service that allocates nothing but what its response needs.
async fn page(request: Request<Full<Bytes>>) -> Result<Response<Full<Bytes>>, Infallible> {
    yield_now().await;
    let is_private = request.uri().path() == "/private";
    let control = if is_private { "private" } else { "max-age=60" };
    let response = Response::builder().header("cache-control", control);
    Ok(response.body(Full::from("page")).unwrap())
}

/// Sends a request, and reads its response to the end.
async fn exchange<S, B>(service: S, request: Request<Full<Bytes>>)
where
    S: Service<Request<Full<Bytes>>, Response = Response<B>>,
    B: Body<Error: Into<BoxError>>,
{
    let Ok(response) = service.oneshot(request).await else { panic!("no response") };
    let mut body = std::pin::pin!(response.into_body());
    while let Some(frame) = body.frame().await {
        assert!(frame.is_ok());
    }
}

/// Returns how many allocations a layer adds to a request.
async fn added(
    layer: &BellwetherLayer<Http>,
    method: &str,
    path: &str,
    header: [&str; 2],
) -> usize {
    let request = || {
        let request = Request::builder().method(method).uri(path).header("host", "shop.test");
        request.header(header[0], header[1]).body(Full::default()).unwrap()
    };
    let service = layer.layer(service_fn(page));
    let bare = fewest(|| exchange(service_fn(page), request())).await;
    let layered = fewest(|| exchange(service.clone(), request())).await;
    layered - bare
}

fn layer() -> BellwetherLayer<Http> {
    BellwetherLayer::http(http_cache(MemoryBackend::new(), "shop").build().unwrap())
}

#[tokio::test]
async fn a_pass_adds_few_allocations() {
    let cookie = ["cookie", "session=1"];
    let careful = layer();
    let rfc9111 = layer().policy(Policy::rfc9111());
    let accept = ["accept", "*/*"];
    for (what, layer, method, path, header, most) in [
        ("a cookie", &careful, "GET", "/", cookie, MOST),
        ("a HEAD with a token", &careful, "HEAD", "/", ["authorization", "Basic YTpi"], MOST),
        ("a credential", &careful, "GET", "/", ["x-api-key", "1"], MOST),
        ("a reload", &rfc9111, "GET", "/", ["cache-control", "no-cache"], MOST),
        ("a safe method", &rfc9111, "OPTIONS", "/", accept, MOST),
        ("a key whose answers are private", &careful, "GET", "/private", accept, MOST_OF_JUDGED),
    ] {
        let added = added(layer, method, path, header).await;
        println!("{what}: {added}");
        assert!(added <= most, "{what}: {added}");
    }

    let keyless = |_: &&'static str| None::<Key>;
    let cache: Cache<&str> = Cache::in_process(1).build().unwrap();
    let service = service_fn(|request: &'static str| async move {
        yield_now().await;
        Ok::<_, Infallible>(request)
    });
    let layered = BellwetherLayer::new(cache, keyless).layer(service);
    let bare = fewest(|| Oneshot::new(service, "a")).await;
    let added = fewest(|| Oneshot::new(layered.clone(), "a")).await - bare;
    assert!(added <= MOST, "a value without a key: {added}");
}
