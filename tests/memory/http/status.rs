//! The `Cache-Status` of each answer.

use std::time::Duration;

use axum::body::Body;
use bellwether::MemoryBackend;
use http::Response;
use tokio::time::sleep;
use tower::Layer;

use super::origin::{Answer, DELAY, ask, ask_all, cache, get, get_with, http_layer, origin};

fn status(answer: &Answer) -> &str {
    answer.headers["cache-status"].to_str().unwrap().strip_prefix("bellwether; ").unwrap()
}

#[tokio::test(start_paused = true)]
async fn each_answer_says_how_the_cache_answered() {
    let (inner, _) = origin(|call, _| {
        let answer = Response::builder();
        let answer = answer.header("cache-control", "max-age=60, stale-while-revalidate=60");
        answer.body(Body::from(call.to_string())).unwrap()
    });
    let layer = http_layer(cache(&MemoryBackend::new())).cache_status();
    let service = layer.layer(inner);
    let mut cold: Vec<_> = ask_all(std::slice::from_ref(&service), (0..3).map(|_| get("/"))).await;
    cold.sort_by_key(|answer| status(answer).to_owned());
    let cold: Vec<_> = cold.iter().map(status).collect();
    let collapsed = "fwd=uri-miss; collapsed";
    assert_eq!(cold, [collapsed, collapsed, "fwd=uri-miss; stored; ttl=60"]);
    sleep(Duration::from_secs(10)).await;
    assert_eq!(status(&ask(&service, get("/")).await), "hit; ttl=50");
    let known = ask(&service, get_with(&[("range", "bytes=0-0")])).await;
    assert_eq!(status(&known), "hit; ttl=50");
    sleep(Duration::from_secs(50)).await;
    assert_eq!(status(&ask(&service, get("/")).await), "hit; detail=stale");
    sleep(2 * DELAY).await;
    assert_eq!(status(&ask(&service, get("/")).await), "hit; ttl=59");
    let own = ask(&service, get_with(&[("authorization", "a")])).await;
    assert_eq!(status(&own), "fwd=bypass; detail=\"authorization\"");
}
