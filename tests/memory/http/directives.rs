//! Requests that say how fresh a response they want.

use std::time::Duration;

use axum::body::Body;
use bellwether::{
    BellwetherLayer, MemoryBackend,
    cache::AfterFailure,
    http_cache,
    layer::{Policy, RequestDirectives},
};
use http::{Response, StatusCode};
use tokio::time::sleep;
use tower::Layer;

use super::origin::{
    Calls, DELAY, Inner, Layered, ask, ask_all, cache, different, get, get_with, origin,
    with_headers,
};

const SECOND: Duration = Duration::from_secs(1);

fn honouring(inner: &Inner, policy: Policy) -> Layered {
    let layer = BellwetherLayer::http(cache(&MemoryBackend::new())).policy(policy).cache_status();
    layer.request_directives(RequestDirectives::Honour).layer(inner.clone())
}

fn service(headers: &[(&'static str, &'static str)]) -> (Layered, Calls) {
    let (inner, calls) = with_headers(headers);
    (honouring(&inner, Policy::careful()), calls)
}

fn wants(line: &str) -> http::Request<Body> {
    get_with(&[("cache-control", line)])
}

#[tokio::test(start_paused = true)]
async fn reloads_at_once_are_one_call() {
    for policy in [Policy::careful(), Policy::rfc9111()] {
        for reload in [
            &[("cache-control", "no-cache")][..],
            &[("cache-control", "max-age=0, no-cache"), ("pragma", "no-cache")],
            &[("pragma", "no-cache")],
        ] {
            let (inner, calls) = with_headers(&[("cache-control", "max-age=60")]);
            let service = honouring(&inner, policy.clone());
            for round in 1..=3 {
                let reloads = (0..100).map(|_| get_with(reload));
                let answers = ask_all(std::slice::from_ref(&service), reloads).await;
                assert!(answers.iter().all(|answer| answer.text() == round.to_string()));
                assert_eq!(calls.count(), round, "{reload:?}");
                // The response is stored.
                assert_eq!(ask(&service, get_with(&[])).await.text(), round.to_string());
            }
        }
    }
}

/// A reload that arrives while another one is under way gets the next response, which those share
/// that arrive meanwhile. Other requests are served at once.
#[tokio::test(start_paused = true)]
async fn a_reload_gets_no_response_whose_load_began_before() {
    let (service, calls) = service(&[("cache-control", "max-age=60")]);
    ask(&service, get_with(&[])).await;
    let ask_later = |after: Duration, line: &'static str| {
        let service = service.clone();
        tokio::spawn(async move {
            sleep(after).await;
            ask(&service, wants(line)).await
        })
    };
    let first: Vec<_> = (0..10).map(|_| ask_later(Duration::ZERO, "no-cache")).collect();
    let later: Vec<_> = (1..10).map(|at| ask_later(DELAY * at / 20, "no-cache")).collect();
    let plain = ask_later(DELAY / 2, "x");
    for first in first {
        assert_eq!(first.await.unwrap().text(), "2");
    }
    assert_eq!(plain.await.unwrap().text(), "1");
    for later in later {
        assert_eq!(later.await.unwrap().text(), "3");
    }
    assert_eq!(calls.count(), 3);
    // Neither does one that arrives while a cold response is loaded.
    let (service, calls) = self::service(&[("cache-control", "max-age=60")]);
    let cold = tokio::spawn({
        let service = service.clone();
        async move { ask(&service, get_with(&[])).await }
    });
    sleep(DELAY / 2).await;
    assert_eq!(ask(&service, wants("no-cache")).await.text(), "2");
    assert_eq!((cold.await.unwrap().text(), calls.count()), ("1", 2));
}

/// RFC 9111, section 5.2.1. The response is 10 s old, and fresh for 50 s more.
#[tokio::test(start_paused = true)]
async fn a_stored_response_is_as_fresh_as_a_request_wants() {
    for (line, is_stored) in [
        ("max-age=10", true),
        ("max-age=9", false),
        ("max-age=0", false),
        ("min-fresh=50", true),
        ("min-fresh=51", false),
        ("min-fresh=x", false),
        ("max-age=20, min-fresh=20", true),
        ("max-stale", true),
        ("max-age=9, max-stale", false),
        ("only-if-cached", true),
        ("no-cache", false),
    ] {
        let (inner, calls) = with_headers(&[("cache-control", "max-age=60")]);
        let service = honouring(&inner, Policy::rfc9111());
        ask(&service, get_with(&[])).await;
        sleep(10 * SECOND).await;
        let answers = ask_all(std::slice::from_ref(&service), (0..20).map(|_| wants(line))).await;
        assert_eq!(different(&answers), 1, "{line}");
        let status = answers[0].headers["cache-status"].to_str().unwrap();
        assert_eq!(status.contains("hit"), is_stored, "{line} {status}");
        assert_eq!(calls.count(), if is_stored { 1 } else { 2 }, "{line}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_stale_response_is_for_requests_that_accept_it() {
    for (line, answer, expected) in [
        ("max-stale", "max-age=60, stale-if-error=60", "1"),
        ("max-stale=10", "max-age=60, stale-if-error=60", "1"),
        ("max-stale=9", "max-age=60, stale-if-error=60", "2"),
        ("max-stale=10, max-age=60", "max-age=60, stale-if-error=60", "2"),
        ("max-stale=10, max-age=70", "max-age=60, stale-if-error=60", "1"),
        ("max-stale=10, min-fresh=1", "max-age=60, stale-if-error=60", "2"),
        ("max-age=70", "max-age=60, stale-if-error=60", "2"),
        ("max-stale", "max-age=60, must-revalidate, stale-if-error=60", "2"),
        ("max-stale", "max-age=60", "2"),
    ] {
        let headers = [("cache-control", answer), ("etag", "\"a\"")];
        let (service, _) = service(&headers);
        ask(&service, get_with(&[])).await;
        sleep(70 * SECOND).await;
        assert_eq!(ask(&service, wants(line)).await.text(), expected, "{line} {answer}");
    }
}

/// RFC 9111, section 5.2.1.7.
#[tokio::test(start_paused = true)]
async fn a_request_for_a_stored_response_never_reaches_the_origin() {
    let (service, calls) = service(&[("cache-control", "max-age=60"), ("vary", "x")]);
    let only = |value| get_with(&[("cache-control", "only-if-cached"), ("x", value)]);
    assert_eq!(ask(&service, only("1")).await.status, StatusCode::GATEWAY_TIMEOUT);
    ask(&service, get_with(&[("x", "1")])).await;
    assert_eq!(ask(&service, only("1")).await.text(), "1");
    let missed = ask(&service, only("2")).await;
    assert_eq!(missed.status, StatusCode::GATEWAY_TIMEOUT);
    assert_eq!(missed.headers["cache-control"], "no-store");
    sleep(61 * SECOND).await;
    assert_eq!(ask(&service, only("1")).await.status, StatusCode::GATEWAY_TIMEOUT);
    assert_eq!(calls.count(), 1);
}

#[tokio::test(start_paused = true)]
async fn reloads_of_variants_share_by_variant() {
    let (service, calls) = service(&[("cache-control", "max-age=60"), ("vary", "x")]);
    let reload = |at: usize| {
        let value = ["1", "2"][at % 2];
        get_with(&[("cache-control", "no-cache"), ("x", value)])
    };
    for round in 1..=3 {
        let answers = ask_all(std::slice::from_ref(&service), (0..100).map(reload)).await;
        assert_eq!((different(&answers), calls.count()), (2, 2 * round));
    }
}

/// A reload validates what is stored, and no stale response stands in for its failure.
#[tokio::test(start_paused = true)]
async fn a_reload_is_a_validation() {
    let (inner, calls) = origin(|call, request| {
        let is_valid = request.headers().contains_key("if-none-match");
        let status = match call {
            1 | 3.. => [200, 304][usize::from(is_valid)],
            _ => 503,
        };
        let answer = Response::builder().status(status).header("etag", "\"a\"");
        let answer = answer.header("cache-control", "max-age=60, stale-if-error=600");
        answer.body(Body::from(if is_valid { String::new() } else { call.to_string() })).unwrap()
    });
    let service = honouring(&inner, Policy::careful());
    ask(&service, get_with(&[])).await;
    let failed = ask(&service, wants("no-cache")).await;
    assert_eq!(failed.status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(ask(&service, get_with(&[])).await.text(), "1");
    sleep(10 * SECOND).await;
    let renewed = ask(&service, wants("no-cache")).await;
    assert_eq!((renewed.status, renewed.text(), calls.count()), (StatusCode::OK, "1", 3));
    assert!(!renewed.headers.contains_key("age"));
}

#[tokio::test(start_paused = true)]
async fn reloads_of_an_uncacheable_response_go_alone() {
    let (service, calls) = service(&[("cache-control", "private")]);
    let answers = ask_all(std::slice::from_ref(&service), (0..10).map(|_| wants("no-cache"))).await;
    assert_eq!((different(&answers), calls.count()), (10, 10));
}

/// A caller whose patience was over took what was stored, which it had refused.
#[tokio::test(start_paused = true)]
async fn an_impatient_reload_is_not_served_what_is_stored() {
    let (inner, _) = with_headers(&[("cache-control", "max-age=60, stale-if-error=600")]);
    let cache = http_cache(MemoryBackend::new()).serve_stale_after(DELAY / 2).build().unwrap();
    let layer = BellwetherLayer::http(cache).request_directives(RequestDirectives::Honour);
    let service = layer.layer(inner);
    ask(&service, get("/")).await;
    for (age, number) in [(SECOND, "2"), (61 * SECOND, "3")] {
        sleep(age).await;
        assert_eq!(ask(&service, wants("no-cache")).await.text(), number);
    }
}

/// A reload waited for the load that was under way, and got its failure.
#[tokio::test(start_paused = true)]
async fn a_reload_does_not_fail_by_a_load_that_began_before_it() {
    for process in [0, 1] {
        let (inner, calls) = origin(|call, _| match call {
            1 => Response::builder().status(503).body(Body::from("bad")).unwrap(),
            _ => Response::builder()
                .header("cache-control", "max-age=60")
                .body("new".into())
                .unwrap(),
        });
        let backend = MemoryBackend::new();
        let rule = AfterFailure::BackOffFromSecond { first: SECOND, longest: SECOND };
        let services = [(), ()].map(|()| {
            let layer = BellwetherLayer::http(cache(&backend)).when_unavailable(rule);
            layer.request_directives(RequestDirectives::Honour).layer(inner.clone())
        });
        let leading = services[0].clone();
        let first = tokio::spawn(async move { ask(&leading, get("/")).await });
        sleep(DELAY / 2).await;
        let reload = ask(&services[process], wants("no-cache")).await;
        assert_eq!((reload.text(), calls.count()), ("new", 2), "{process}");
        assert_eq!(first.await.unwrap().text(), "bad");
    }
}

/// A failure may name a lifetime, by which it is for all reloads that wait.
#[tokio::test(start_paused = true)]
async fn reloads_share_a_failure_that_may_be_shared() {
    let (inner, calls) = origin(|call, _| {
        let answer = Response::builder().status(if call == 1 { 200 } else { 500 });
        let answer = answer.header("cache-control", "max-age=60, stale-if-error=600");
        answer.body(Body::from(call.to_string())).unwrap()
    });
    let services = [honouring(&inner, Policy::rfc9111())];
    ask(&services[0], get("/")).await;
    for answer in ask_all(&services, (0..20).map(|_| wants("no-cache"))).await {
        assert_eq!(answer.status, 500);
    }
    assert!(calls.count() <= 3, "{}", calls.count());
}

/// The fresh response counted as one that stands in, although no reload is served it.
#[tokio::test(start_paused = true)]
async fn an_internal_error_of_a_reload_stays_with_its_caller() {
    let (inner, calls) = origin(|call, _| match call {
        1 => Response::builder().header("cache-control", "max-age=60").body("1".into()).unwrap(),
        _ => Response::builder().status(500).body(Body::from("own")).unwrap(),
    });
    let services = [honouring(&inner, Policy::careful())];
    ask(&services[0], get("/")).await;
    for answer in ask_all(&services, (0..5).map(|_| wants("no-cache"))).await {
        assert_eq!((answer.status.as_u16(), answer.text()), (500, "own"));
    }
    assert_eq!(calls.count(), 6);
    assert_eq!(ask(&services[0], get("/")).await.text(), "1");
}
