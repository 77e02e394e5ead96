//! A stale response with a validator is validated, and not sent again.

use std::time::Duration;

use axum::body::Body;
use bellwether::{BellwetherLayer, MemoryBackend, http_cache};
use http::{Request, Response, StatusCode};
use tokio::time::sleep;
use tower::Layer;

use super::origin::{DELAY, ask, ask_all, cache, get, get_with, origin};

const LIFE: &str = "max-age=60, stale-while-revalidate=600";

/// Returns what an origin answers that knows version `v1`.
fn document(request: &Request<Body>, extra: &str, control: &'static str) -> Response<Body> {
    let is_known = request.headers().get("if-none-match").is_some_and(|tag| tag == "\"v1\"");
    let answer = Response::builder()
        .status(if is_known { 304 } else { 200 })
        .header("etag", "\"v1\"")
        .header("cache-control", control)
        .header("x-extra", extra);
    answer.body(if is_known { Body::empty() } else { Body::from("whole") }).unwrap()
}

#[tokio::test(start_paused = true)]
async fn an_unchanged_response_is_renewed_without_its_body() {
    let (inner, calls) = origin(|_, request| document(request, "same", LIFE));
    let cache = cache(&MemoryBackend::new());
    let service = BellwetherLayer::http(cache.clone()).layer(inner);
    for round in 0..4 {
        let answer = ask(&service, get("/")).await;
        assert_eq!((answer.status, answer.text()), (StatusCode::OK, "whole"));
        sleep(2 * DELAY).await;
        let answer = ask(&service, get("/")).await;
        assert_eq!((answer.headers["age"].to_str().unwrap(), answer.text()), ("0", "whole"));
        assert_eq!((calls.count(), cache.stats().unchanged), (round + 1, round as u64));
        sleep(Duration::from_secs(61)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn new_headers_of_a_304_are_stored() {
    let (inner, calls) = origin(|call, request| document(request, &call.to_string(), LIFE));
    let service = BellwetherLayer::http(cache(&MemoryBackend::new())).layer(inner);
    for call in ["1", "2", "3"] {
        ask(&service, get("/")).await;
        sleep(2 * DELAY).await;
        let answer = ask(&service, get("/")).await;
        assert_eq!((answer.headers["x-extra"].to_str().unwrap(), answer.text()), (call, "whole"));
        sleep(Duration::from_secs(61)).await;
    }
    assert_eq!(calls.count(), 3);
}

/// The caller waits for the validation, because nothing may be served stale.
#[tokio::test(start_paused = true)]
async fn callers_wait_for_a_validation_and_meet_their_own_conditions() {
    for control in ["max-age=60, stale-if-error=600", "max-age=60, stale-if-error=600, private"] {
        let is_private = control.ends_with("private");
        let (inner, calls) = origin(move |call, request| {
            let first = "max-age=60, stale-if-error=600";
            document(request, "same", if call == 1 { first } else { control })
        });
        let service = BellwetherLayer::http(cache(&MemoryBackend::new())).layer(inner);
        ask(&service, get("/")).await;
        sleep(Duration::from_secs(61)).await;
        let requests = [
            get("/"),
            get_with(&[("if-none-match", "\"v1\"")]),
            get_with(&[("if-none-match", "\"v0\"")]),
        ];
        let answers = ask_all(std::slice::from_ref(&service), requests).await;
        let statuses = [200, 304, 200];
        for (answer, status) in answers.iter().zip(statuses) {
            assert_eq!(answer.status.as_u16(), status, "{control}");
            assert_eq!(answer.text(), if status == 200 { "whole" } else { "" });
        }
        // A response that has become private is for its caller alone.
        assert_eq!(calls.count() > 2, is_private, "{control}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_304_about_another_response_is_an_error_that_stale_hides() {
    let (inner, calls) = origin(|call, _| {
        let answer = Response::builder().header("cache-control", "max-age=60, stale-if-error=600");
        match call {
            1 => answer.header("etag", "\"v1\"").body(Body::from("whole")).unwrap(),
            _ => answer.status(304).header("etag", "\"v2\"").body(Body::empty()).unwrap(),
        }
    });
    let service =
        BellwetherLayer::http(http_cache(MemoryBackend::new()).build().unwrap()).layer(inner);
    ask(&service, get("/")).await;
    sleep(Duration::from_secs(61)).await;
    let answer = ask(&service, get("/")).await;
    assert_eq!((answer.status, answer.text(), calls.count()), (StatusCode::OK, "whole", 2));
}
