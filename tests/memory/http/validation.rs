//! A stale response with a validator is validated, and not sent again. `stale` has the answers that
//! end it.

use std::time::SystemTime;

use super::prelude::*;

const LIFE: &str = "max-age=60, stale-while-revalidate=600";

/// Returns what an origin answers that knows version `v1`.
fn document(request: &Request<Body>, extra: &str, control: &str) -> Response<Body> {
    let is_known = request.headers().get("if-none-match").is_some_and(|tag| tag == "\"v1\"");
    let headers = [("etag", "\"v1\""), ("cache-control", control), ("x-extra", extra)];
    if is_known { reply(304, &headers, "") } else { reply(200, &headers, "whole") }
}

/// The new headers of a `304` are stored.
#[tokio::test(start_paused = true)]
async fn an_unchanged_response_is_renewed() {
    let (inner, calls) = origin(|call, request| document(request, &call.to_string(), LIFE));
    let service = silent_layer().layer(inner);
    for call in 1..5 {
        let answer = ask(&service, get("/")).await;
        assert_eq!((answer.status, answer.text()), (StatusCode::OK, "whole"));
        sleep(2 * DELAY).await;
        let answer = ask(&service, get("/")).await;
        let header = |name| answer.headers[name].to_str().unwrap();
        assert_eq!((header("age"), header("x-extra")), ("0", &*call.to_string()));
        assert_eq!((answer.text(), calls.count()), ("whole", call));
        sleep(61 * SECOND).await;
    }
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
        let service = silent_layer().layer(inner);
        ask(&service, get("/")).await;
        sleep(61 * SECOND).await;
        let requests = [
            get("/"),
            get_with(&[("if-none-match", "\"v1\"")]),
            get_with(&[("if-none-match", "\"v0\"")]),
        ];
        let answers = ask_all(std::slice::from_ref(&service), requests).await;
        for (answer, status) in answers.iter().zip([200, 304, 200]) {
            assert_eq!(answer.status.as_u16(), status, "{control}");
            assert_eq!(answer.text(), if status == 200 { "whole" } else { "" });
        }
        // A response that has become private is for its caller alone.
        assert_eq!(calls.count() > 2, is_private, "{control}");
    }
}

/// Apache's deflate, nginx's gzip and clusters of servers answer `304` with another tag than they
/// were asked for. Each second expiry was a `502` without a body.
#[tokio::test(start_paused = true)]
async fn a_304_about_another_response_answers_its_caller_and_is_asked_for_once_an_hour() {
    const TAGS: [[&str; 2]; 4] =
        [["\"a-gzip\"", "\"a\""], ["W/\"a\"", "\"b\""], ["", "\"a\""], ["\"a\"", "\"\""]];
    for control in [
        "max-age=60, must-revalidate",
        "max-age=60",
        "max-age=60, stale-if-error=600",
        "max-age=60, stale-while-revalidate=600",
    ] {
        for [stored, told] in TAGS {
            let conditions = Arc::<AtomicUsize>::default();
            let counted = conditions.clone();
            let (inner, calls) = origin(move |call, request| {
                let asked = ["if-none-match", "if-modified-since"];
                let is_conditional = asked.iter().any(|name| request.headers().contains_key(*name));
                counted.fetch_add(is_conditional.into(), Ordering::SeqCst);
                let call = call.to_string();
                let modified = "Tue, 15 Nov 1994 12:45:25 GMT";
                let mut headers = vec![
                    ("cache-control", control),
                    ("x-call", &call),
                    ("last-modified", modified),
                ];
                let tag = if is_conditional { told } else { stored };
                headers.extend((!tag.is_empty()).then_some(("etag", tag)));
                if is_conditional {
                    reply(304, &headers, "")
                } else {
                    reply(200, &headers, "whole")
                }
            });
            let service = silent_layer().layer(inner);
            for round in 0..60 {
                // The first one may be stale, and its refresh ends it. The others wait.
                for answer in crowd(&service, 3).await {
                    assert_eq!((answer.status.as_u16(), answer.text()), (200, "whole"));
                    let tag = answer.headers.get("etag").map_or("", |tag| tag.to_str().unwrap());
                    assert_eq!(tag, stored, "{control} {round}");
                }
                sleep(SECOND).await;
                ask(&service, get("/")).await;
                assert_eq!(conditions.load(Ordering::SeqCst), usize::from(round > 0));
                assert!(calls.count() <= round + 2, "{control} {round}: {}", calls.count());
                sleep(61 * SECOND).await;
            }
            ask(&service, get("/")).await;
            sleep(SECOND).await;
            assert_eq!(conditions.load(Ordering::SeqCst), 2, "{control}");
        }
    }
}

/// Its headers are new, because a cache in front may store it. Those about the bytes stay.
#[tokio::test(start_paused = true)]
async fn what_a_304_confirms_by_another_tag_has_the_new_headers_and_is_not_stored() {
    let (inner, calls) = origin(|call, request| {
        let is_conditional = request.headers().contains_key("if-none-match");
        let tag = if is_conditional { "\"a\"" } else { "\"a-gzip\"" };
        let control = if is_conditional { "private" } else { "max-age=60" };
        let status = if is_conditional { 304 } else { 200 };
        let call = call.to_string();
        let lines =
            [("etag", tag), ("cache-control", control), ("x-call", &call), ("set-cookie", "a=b")];
        let lines = if is_conditional { &lines[..] } else { &lines[..3] };
        reply(status, lines, if is_conditional { "" } else { "whole" })
    });
    let service = silent_layer().layer(inner);
    ask(&service, get("/")).await;
    sleep(61 * SECOND).await;
    let answers = crowd(&service, 10).await;
    let alone = |answer: &&Answer| answer.headers.contains_key("set-cookie");
    let alone: Vec<_> = answers.iter().filter(alone).collect();
    assert_eq!(alone.len(), 1);
    assert_eq!((alone[0].text(), &alone[0].headers["x-call"]), ("whole", &"2".parse().unwrap()));
    assert_eq!(alone[0].headers["cache-control"], "private");
    assert_eq!(alone[0].headers["etag"], "\"a-gzip\"");
    assert!(!alone[0].headers.contains_key("age"));
    // The waiters have shared the next load.
    assert_eq!(calls.count(), 3);
}

/// Returns the ways of a response to say that it may not be served stale, with both policies.
fn scenes() -> impl Iterator<Item = (Policy, &'static str)> {
    const NEVER_STALE: [&str; 3] = ["max-age=60, must-revalidate", "s-maxage=60", "max-age=60"];
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
        let service = silent_layer().policy(policy).layer(inner);
        for round in 1..4 {
            let asked = Instant::now();
            for answer in crowd(&service, 2).await {
                assert_eq!((answer.status, answer.text()), (StatusCode::OK, "whole"), "{control}");
            }
            // No caller was served before the origin had answered.
            assert_eq!(asked.elapsed(), DELAY);
            sleep(2 * DELAY).await;
            ask(&service, get("/")).await;
            assert_eq!(calls.count(), round);
            sleep(61 * SECOND).await;
        }
        sleep(600 * SECOND).await;
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
            reply(200, &[("cache-control", control)], Body::from_stream(broken))
        }
        _ => reply(status, &[], "failed"),
    })
}

#[tokio::test(start_paused = true)]
async fn a_response_that_is_kept_for_validation_stands_in_for_no_failure() {
    for (policy, control) in scenes() {
        // The last one breaks off.
        for status in [500, 503, 200] {
            let (inner, calls) = failing(control, status);
            let cache = builder().after_failure(|_| Some(AfterFailure::LoadAgain));
            let cache = cache.build().unwrap();
            let layer = BellwetherLayer::http(cache.clone()).policy(policy.clone());
            let key = layer.key(&get("/").into_parts().0).unwrap();
            let service = layer.layer(inner);
            ask(&service, get("/")).await;
            sleep(61 * SECOND).await;
            assert!(cache.peek(key.clone()).await.unwrap().is_none());
            assert!(cache.get(key).await.unwrap().is_none());
            for round in 2..5 {
                let answer = service.clone().oneshot(get("/")).await.unwrap();
                assert_eq!(answer.status(), status, "{control}");
                match answer.into_body().collect().await {
                    Ok(body) => {
                        assert_eq!((status >= 500, &*body.to_bytes()), (true, &b"failed"[..]))
                    }
                    Err(_) => assert_eq!(status, 200, "{control}"),
                }
                // No key backs off, because nothing stands in for the failure.
                assert_eq!(calls.count(), round, "{control}");
            }
        }
    }
}

/// The memory for an outage has no such response, and the origin is asked without a condition.
#[tokio::test(start_paused = true)]
async fn a_response_that_is_kept_for_validation_is_not_served_in_an_outage() {
    for (policy, control) in scenes() {
        for away_at in [1, 61] {
            let (inner, calls) = failing(control, 503);
            let faulty = Faulty::new(|_| None);
            let builder = http_cache(faulty.clone(), "shop").outage_memory(1 << 20);
            let layer = BellwetherLayer::http(builder.build().unwrap()).policy(policy.clone());
            let service = layer.layer(inner);
            ask(&service, get("/")).await;
            sleep(2 * DELAY).await;
            assert_eq!(ask(&service, get("/")).await.text(), "whole");
            sleep(away_at * SECOND).await;
            faulty.plan(|_| Some(Fault::Refuse));
            for _ in 0..3 {
                assert_eq!(ask(&service, get("/")).await.status, 503, "{control} at {away_at}");
            }
            assert!(calls.count() > 1);
        }
    }
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
        let service = silent_layer().keep_for_validation(kept * SECOND).layer(inner);
        for _ in 0..3 {
            assert_eq!(ask(&service, get("/")).await.text(), "whole");
            sleep(61 * SECOND).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn new_headers_replace_all_lines_of_the_stored_ones() {
    let etag = ("etag", "\"v\"");
    let vary = ("vary", "accept-encoding");
    let life = ("cache-control", "max-age=1");
    let (inner, calls) = origin(move |call, _| match call {
        1 => {
            let about_bytes = [("content-encoding", "br"), ("content-md5", "1")];
            let old = [etag, vary, life, ("x", "1"), ("x", "2"), ("y", "1")];
            reply(200, &[&old[..], &about_bytes].concat(), "whole")
        }
        _ => {
            let about_bytes = [("content-encoding", "gzip"), ("content-md5", "0")];
            let new = [etag, life, ("x", "3"), ("z", "1"), ("z", "2")];
            let of_connection = [("connection", "a"), ("a", "1")];
            reply(304, &[&new[..], &about_bytes, &of_connection].concat(), "")
        }
    });
    let service = silent_layer().layer(inner);
    ask(&service, get("/")).await;
    sleep(2 * SECOND).await;
    let answer = ask(&service, get("/")).await;
    assert_eq!((answer.status, answer.text(), calls.count()), (StatusCode::OK, "whole", 2));
    let lines = |name: &str| {
        let lines = answer.headers.get_all(name).iter();
        lines.map(|line| line.to_str().unwrap()).collect::<Vec<_>>()
    };
    assert_eq!((lines("x"), lines("y"), lines("z").len()), (vec!["3"], vec!["1"], 2));
    assert_eq!((lines("content-encoding"), lines("content-md5")), (vec!["br"], vec!["1"]));
    assert!(lines("connection").is_empty() && lines("a").is_empty());
}

/// The `Date` of the stored response stayed, so the renewed one was too old at once. Each later
/// request was passed on.
#[tokio::test(start_paused = true)]
async fn a_304_without_a_date_is_of_now() {
    let sent = httpdate::fmt_http_date(SystemTime::now() - 1100 * SECOND);
    let (inner, calls) = origin(move |call, _| {
        let etag = ("etag", "\"v\"");
        let life = ("cache-control", "max-age=1105");
        match call {
            1 => reply(200, &[etag, life, ("date", &sent)], "whole"),
            _ => reply(304, &[etag, ("cache-control", "max-age=60")], ""),
        }
    });
    let service = silent_layer().layer(inner);
    for _ in 0..4 {
        assert_eq!(ask(&service, get("/")).await.text(), "whole");
        sleep(10 * SECOND).await;
    }
    assert_eq!(calls.count(), 2);
}
