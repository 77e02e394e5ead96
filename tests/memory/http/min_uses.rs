//! Responses that are stored only once their key is used often enough.

use std::time::Duration;

use axum::body::Body;
use bellwether::{BellwetherLayer, MemoryBackend, layer::RequestDirectives};
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, StreamBody};
use tokio::{sync::mpsc, time::sleep};
use tower::{Layer, ServiceExt};

use super::origin::{
    Answer, Calls, DELAY, Inner, Layered, ask, ask_all, cache, different, get, get_with, origin,
    with_headers,
};

const WINDOW: Duration = Duration::from_secs(600);

fn layer(backend: &MemoryBackend, uses: u32) -> BellwetherLayer<bellwether::layer::Http> {
    BellwetherLayer::http(cache(backend)).min_uses(uses, WINDOW).cache_status()
}

fn service(inner: &Inner, uses: u32) -> Layered {
    layer(&MemoryBackend::new(), uses).layer(inner.clone())
}

fn cacheable() -> (Inner, Calls) {
    with_headers(&[("cache-control", "max-age=60")])
}

fn status(answer: &Answer) -> &str {
    answer.headers["cache-status"].to_str().unwrap().strip_prefix("bellwether; ").unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_response_is_stored_once_its_key_is_used_often_enough() {
    for uses in [0, 1, 2, 5] {
        let (inner, calls) = cacheable();
        let service = service(&inner, uses);
        for _ in 1..uses {
            assert_eq!(status(&ask(&service, get("/a")).await), "fwd=uri-miss");
        }
        let stored = ask(&service, get("/a")).await;
        assert_eq!(status(&stored), "fwd=uri-miss; stored; ttl=60");
        assert_eq!(status(&ask(&service, get("/a")).await), "hit; ttl=60");
        assert_eq!(calls.count(), uses.max(1) as usize);
        // Another key has its own uses.
        let other = ask(&service, get("/b")).await;
        assert_eq!(status(&other).contains("stored"), uses < 2);
    }
}

#[tokio::test(start_paused = true)]
async fn the_uses_of_another_window_do_not_count() {
    let (inner, calls) = cacheable();
    let service = service(&inner, 2);
    for call in 1..=3 {
        assert_eq!(status(&ask(&service, get("/")).await), "fwd=uri-miss");
        assert_eq!(calls.count(), call);
        sleep(WINDOW).await;
    }
}

#[tokio::test(start_paused = true)]
async fn rare_requests_at_once_share_one_call() {
    let (inner, calls) = cacheable();
    let cache = cache(&MemoryBackend::new());
    let layer = BellwetherLayer::http(cache.clone()).min_uses(101, WINDOW).cache_status();
    let services = [layer.layer(inner)];
    let answers = ask_all(&services, (0..100).map(|_| get("/"))).await;
    assert_eq!((calls.count(), different(&answers)), (1, 1));
    let collapsed = answers.iter().filter(|it| status(it) == "fwd=uri-miss; collapsed").count();
    let stats = cache.stats();
    assert_eq!((collapsed, stats.rare, stats.stored, stats.degraded), (99, 1, 0, 0));
    // Each of them was a use.
    assert!(status(&ask(&services[0], get("/")).await).contains("stored"));
}

#[tokio::test(start_paused = true)]
async fn a_rare_request_finds_what_another_process_has_stored() {
    let (inner, calls) = cacheable();
    let backend = MemoryBackend::new();
    let [one, other] = [1, 100].map(|uses| layer(&backend, uses).layer(inner.clone()));
    ask(&one, get("/")).await;
    assert_eq!(status(&ask(&other, get("/")).await), "hit; ttl=60");
    assert_eq!(calls.count(), 1);
}

/// A request that comes while the body of a rare response is on its way does not wait for its end.
/// It is one more use.
#[tokio::test(start_paused = true)]
async fn a_late_request_waits_for_no_rare_body() {
    let (inner, calls) = origin(|call, _| {
        let (sender, receiver) = mpsc::channel::<Result<_, std::io::Error>>(1);
        tokio::spawn(async move {
            for _ in 0..if call == 1 { 5 } else { 1 } {
                sleep(Duration::from_secs(1)).await;
                let _ = sender.send(Ok(http_body::Frame::data(Bytes::from("part ")))).await;
            }
        });
        let body = StreamBody::new(tokio_stream::wrappers::ReceiverStream::new(receiver));
        let response = Response::builder().header("cache-control", "max-age=60");
        response.body(Body::new(body)).unwrap()
    });
    let service = service(&inner, 2);
    let first = service.clone().oneshot(get("/")).await.unwrap();
    sleep(DELAY).await;
    assert_eq!(ask(&service, get("/")).await.text(), "part ");
    let hit = ask(&service, get("/")).await;
    assert_eq!((status(&hit), hit.text(), calls.count()), ("hit; ttl=59", "part ", 2));
    let first = first.into_body().collect().await.unwrap().to_bytes();
    assert_eq!(first, "part part part part part ");
}

#[tokio::test(start_paused = true)]
async fn each_variant_has_its_own_uses() {
    let (inner, calls) = with_headers(&[("cache-control", "max-age=60"), ("vary", "a")]);
    let cache = cache(&MemoryBackend::new());
    let service = BellwetherLayer::http(cache.clone()).min_uses(2, WINDOW).layer(inner);
    let asked = |variant: &'static str| get_with(&[("a", variant)]);
    // The marker is stored with the second use of the resource.
    for (variant, loads, stored) in
        [("1", 1, 0), ("1", 2, 1), ("1", 2, 1), ("2", 3, 1), ("2", 4, 2), ("2", 4, 2)]
    {
        ask(&service, asked(variant)).await;
        assert_eq!((calls.count(), cache.stats().stored), (loads, stored), "{variant}");
    }
}

#[tokio::test(start_paused = true)]
async fn reloads_conditions_and_heads_are_uses() {
    let (inner, calls) = cacheable();
    let layer = layer(&MemoryBackend::new(), 4);
    let service = layer.request_directives(RequestDirectives::Honour).layer(inner);
    let mut head = get("/");
    *head.method_mut() = http::Method::HEAD;
    let requests: [Request<Body>; 4] = [
        get_with(&[("cache-control", "no-cache")]),
        get_with(&[("range", "bytes=0-0")]),
        head,
        get_with(&[("if-none-match", "\"a\"")]),
    ];
    for request in requests {
        ask(&service, request).await;
    }
    assert_eq!(status(&ask(&service, get("/")).await), "hit; ttl=60");
    assert_eq!(calls.count(), 4);
}
