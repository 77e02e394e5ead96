//! A stale response with a validator is validated, and not sent again.

use std::time::SystemTime;

use super::prelude::*;

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
async fn an_unchanged_response_is_renewed() {
    let (inner, calls) = origin(|_, request| document(request, "same", LIFE));
    let service = BellwetherLayer::http(cache(&MemoryBackend::new())).layer(inner);
    for round in 0..4 {
        let answer = ask(&service, get("/")).await;
        assert_eq!((answer.status, answer.text()), (StatusCode::OK, "whole"));
        sleep(2 * DELAY).await;
        let answer = ask(&service, get("/")).await;
        assert_eq!((answer.headers["age"].to_str().unwrap(), answer.text()), ("0", "whole"));
        assert_eq!(calls.count(), round + 1);
        sleep(Duration::from_secs(61)).await;
    }
}

/// The answer to a refresh said that the response is private now, or gone. The old one was served
/// to all callers until the end of its window.
#[tokio::test(start_paused = true)]
async fn an_answer_that_ends_the_stored_response_is_heeded() {
    for (policy, status, control, ends) in [
        (Policy::default(), 304, "private", true),
        (Policy::default(), 304, "no-store", true),
        (Policy::default(), 404, "no-cache", true),
        (Policy::default(), 410, "no-cache", true),
        (Policy::rfc9111(), 304, "no-store", true),
        (Policy::rfc9111(), 404, "private", true),
        (Policy::default(), 200, "private", true),
        (Policy::default(), 400, "no-cache", true),
        (Policy::default(), 403, "no-cache", true),
        (Policy::default(), 501, "no-cache", false),
    ] {
        let (inner, _) = origin(move |call, request| match call {
            1 => document(request, "", LIFE),
            _ => {
                let answer = Response::builder().status(status).header("cache-control", control);
                answer.body(Body::from(call.to_string())).unwrap()
            }
        });
        let layer = BellwetherLayer::http(cache(&MemoryBackend::new()));
        let service = layer.policy(policy).layer(inner);
        ask(&service, get("/")).await;
        sleep(Duration::from_secs(61)).await;
        // This request drives the refresh, and is served the stale response at once.
        assert_eq!(ask(&service, get("/")).await.text(), "whole");
        sleep(2 * DELAY).await;
        let later = ask(&service, get("/")).await;
        assert_eq!(later.text() != "whole", ends, "{status} {control}");
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
        BellwetherLayer::http(http_cache(MemoryBackend::new(), "bellwether").build().unwrap())
            .layer(inner);
    ask(&service, get("/")).await;
    sleep(Duration::from_secs(61)).await;
    let answer = ask(&service, get("/")).await;
    assert_eq!((answer.status, answer.text(), calls.count()), (StatusCode::OK, "whole", 2));
}

/// The ways of a response to say that it may not be served stale.
const NEVER_STALE: [&str; 3] = ["max-age=60, must-revalidate", "s-maxage=60", "max-age=60"];

fn scenes() -> impl Iterator<Item = (Policy, &'static str)> {
    let policies = [Policy::default(), Policy::rfc9111()];
    policies.into_iter().flat_map(|policy| NEVER_STALE.map(|control| (policy.clone(), control)))
}

#[tokio::test(start_paused = true)]
async fn a_response_that_is_never_stale_is_validated() {
    for (policy, control) in scenes() {
        let known = Arc::<AtomicUsize>::default();
        let counted = known.clone();
        let (inner, calls) = origin(move |_, request| {
            let is_known = request.headers().contains_key("if-none-match");
            counted.fetch_add(is_known.into(), Ordering::SeqCst);
            document(request, "same", control)
        });
        let cache = cache(&MemoryBackend::new());
        let service = BellwetherLayer::http(cache).policy(policy).layer(inner);
        for round in 1..4 {
            let asked = Instant::now();
            let services = std::slice::from_ref(&service);
            for answer in ask_all(services, [get("/"), get("/")]).await {
                assert_eq!((answer.status, answer.text()), (StatusCode::OK, "whole"), "{control}");
            }
            // No caller was served before the origin had answered.
            assert_eq!(asked.elapsed(), DELAY);
            sleep(2 * DELAY).await;
            ask(&service, get("/")).await;
            assert_eq!(calls.count(), round);
            sleep(Duration::from_secs(61)).await;
        }
        sleep(Duration::from_secs(600)).await;
        ask(&service, get("/")).await;
        assert_eq!(known.load(Ordering::SeqCst), 2, "it was kept for longer");
    }
}

/// Returns an origin that fails after its first answer, with a status or an error in the body.
fn failing(control: &'static str, status: u16) -> (Inner, Calls) {
    origin(move |call, request| match (call, status) {
        (1, _) => document(request, "same", control),
        (_, 200) => {
            let broken = futures_util::stream::once(async { Err::<Bytes, _>("broken") });
            let answer = Response::builder().header("cache-control", control);
            answer.body(Body::from_stream(broken)).unwrap()
        }
        _ => Response::builder().status(status).body(Body::from("failed")).unwrap(),
    })
}

#[tokio::test(start_paused = true)]
async fn a_response_that_is_kept_for_validation_stands_in_for_no_failure() {
    for (policy, control) in scenes() {
        for status in [500, 503] {
            let (inner, calls) = failing(control, status);
            let cache = http_cache(MemoryBackend::new(), "bellwether")
                .after_failure(|_| Some(AfterFailure::LoadAgain))
                .build()
                .unwrap();
            let layer = BellwetherLayer::http(cache.clone()).policy(policy.clone());
            let key = layer.key(&get("/").into_parts().0).unwrap();
            let service = layer.layer(inner);
            ask(&service, get("/")).await;
            sleep(Duration::from_secs(61)).await;
            assert!(cache.peek(key.clone()).await.unwrap().is_none());
            assert!(cache.get(key).await.unwrap().is_none());
            for round in 2..5 {
                let answer = ask(&service, get("/")).await;
                assert_eq!((answer.status.as_u16(), answer.text()), (status, "failed"));
                // No key backs off, because nothing stands in for the failure.
                assert_eq!(calls.count(), round, "{control}");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_broken_body_is_not_hidden_by_what_is_kept_for_validation() {
    for (policy, control) in scenes() {
        let (inner, _) = failing(control, 200);
        let service =
            BellwetherLayer::http(cache(&MemoryBackend::new())).policy(policy).layer(inner);
        ask(&service, get("/")).await;
        sleep(Duration::from_secs(61)).await;
        let response = service.clone().oneshot(get("/")).await.unwrap();
        assert!(response.into_body().collect().await.is_err(), "{control}");
    }
}

/// The memory for an outage has no such response, and the origin is asked without a condition.
#[tokio::test(start_paused = true)]
async fn a_response_that_is_kept_for_validation_is_not_served_in_an_outage() {
    for (policy, control) in scenes() {
        for away_at in [1, 61] {
            let (inner, calls) = failing(control, 503);
            let faulty = Faulty::over(MemoryBackend::new(), |_| None);
            let builder = http_cache(faulty.clone(), "shop").outage_memory(1 << 20);
            let layer = BellwetherLayer::http(builder.build().unwrap()).policy(policy.clone());
            let service = layer.layer(inner);
            ask(&service, get("/")).await;
            sleep(2 * DELAY).await;
            assert_eq!(ask(&service, get("/")).await.text(), "whole");
            sleep(Duration::from_secs(away_at)).await;
            faulty.plan(|_| Some(Fault::Refuse));
            for _ in 0..3 {
                assert_eq!(ask(&service, get("/")).await.status, 503, "{control} at {away_at}");
            }
            assert!(calls.count() > 1);
        }
    }
}

/// An origin that never answers but `304` with another tag must not block the resource.
#[tokio::test(start_paused = true)]
async fn a_304_about_another_response_ends_what_is_kept_for_validation() {
    let (inner, calls) = origin(|call, request| {
        let is_conditional = request.headers().contains_key("if-none-match");
        let answer = Response::builder()
            .status(if is_conditional { 304 } else { 200 })
            .header("cache-control", "max-age=60")
            .header("etag", format!("\"v{call}\""));
        answer.body(if is_conditional { Body::empty() } else { Body::from("whole") }).unwrap()
    });
    let service = BellwetherLayer::http(cache(&MemoryBackend::new())).layer(inner);
    ask(&service, get("/")).await;
    sleep(Duration::from_secs(61)).await;
    assert_eq!(ask(&service, get("/")).await.status, StatusCode::BAD_GATEWAY);
    assert_eq!((ask(&service, get("/")).await.text(), calls.count()), ("whole", 3));
}

#[tokio::test(start_paused = true)]
async fn a_response_is_kept_for_validation_by_option_and_with_a_validator() {
    for (has_tag, kept) in [(true, 0), (false, 600)] {
        let (inner, _) = origin(move |_, request| {
            assert!(!request.headers().contains_key("if-none-match"));
            let mut answer = document(request, "same", "max-age=60");
            if !has_tag {
                answer.headers_mut().remove("etag");
            }
            answer
        });
        let layer = BellwetherLayer::http(cache(&MemoryBackend::new()));
        let service = layer.keep_for_validation(Duration::from_secs(kept)).layer(inner);
        for _ in 0..3 {
            assert_eq!(ask(&service, get("/")).await.text(), "whole");
            sleep(Duration::from_secs(61)).await;
        }
    }
}

/// The `Date` of the stored response stayed, so the renewed one was too old at once. Each later
/// request was passed on.
#[tokio::test(start_paused = true)]
async fn a_304_without_a_date_is_of_now() {
    let sent = httpdate::fmt_http_date(SystemTime::now() - Duration::from_secs(1100));
    let (inner, calls) = origin(move |call, _| {
        let answer = Response::builder().header("etag", "\"v\"");
        let answer = match call {
            1 => answer.header("cache-control", "max-age=1105").header("date", &sent),
            _ => answer.status(304).header("cache-control", "max-age=60"),
        };
        answer.body(if call == 1 { Body::from("whole") } else { Body::empty() }).unwrap()
    });
    let service = BellwetherLayer::http(cache(&MemoryBackend::new())).layer(inner);
    for _ in 0..4 {
        assert_eq!(ask(&service, get("/")).await.text(), "whole");
        sleep(Duration::from_secs(10)).await;
    }
    assert_eq!(calls.count(), 2);
}
