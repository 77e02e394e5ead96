//! Answers that turn out to belong to their callers. No caller waits in a queue in vain.

use super::prelude::*;
use crate::log::collect;

const LIMIT: usize = 10_000;

/// Sends 200 requests at once to two processes. All are answered in parallel, each with an answer
/// of its own.
async fn each_caller_gets_its_own_answer(inner: &Inner) -> Vec<Answer> {
    let backend = MemoryBackend::new();
    let services = [(), ()].map(|()| {
        let cache = http_cache(backend.clone(), "bellwether").max_value(LIMIT).build();
        http_layer(cache.unwrap()).layer(inner.clone())
    });
    let begun = Instant::now();
    let answers = ask_all(&services, (0..200).map(|_| get("/"))).await;
    assert!(begun.elapsed() < Duration::from_millis(200), "{:?}", begun.elapsed());
    assert_eq!(different(&answers), 200);
    // Only the mark of the uncacheable key is stored, not an answer.
    assert!(backend.weight() < 1000, "{}", backend.weight());
    answers
}

#[tokio::test(start_paused = true)]
async fn each_caller_gets_its_own_cookie() {
    let (inner, calls) = origin(|call, _| {
        reply(200, &[("set-cookie", &*format!("session={call}"))], call.to_string())
    });
    for answer in each_caller_gets_its_own_answer(&inner).await {
        assert_eq!(answer.headers["set-cookie"], format!("session={}", answer.text()));
    }
    assert_eq!(calls.count(), 200);
}

/// Returns a body that is over the limit by the number of the call.
fn large(call: usize) -> Vec<u8> {
    (0..LIMIT + call).map(|byte| (byte * 31 + call) as u8).collect()
}

/// The size is announced, or turns out when the body has come.
#[tokio::test(start_paused = true)]
async fn an_answer_that_is_too_large_is_complete() {
    for is_announced in [true, false] {
        let (inner, _) = origin(move |call, _| {
            let body = Bytes::from(large(call));
            if is_announced {
                let length = body.len().to_string();
                return reply(200, &[("content-length", &length)], body);
            }
            let pieces: Vec<_> = (0..body.len())
                .step_by(700)
                .map(|at| Ok::<_, std::io::Error>(body.slice(at..body.len().min(at + 700))))
                .collect();
            Response::new(Body::from_stream(futures_util::stream::iter(pieces)))
        });
        for answer in each_caller_gets_its_own_answer(&inner).await {
            assert!(answer.body == large(answer.body.len() - LIMIT), "{is_announced}");
        }
    }
}

/// With its headers, a body that is as long as the limit does not fit. Its length says so.
#[tokio::test(start_paused = true)]
async fn a_body_that_fits_only_without_its_headers_is_too_large() {
    let (inner, _) =
        origin(|_, _| reply(200, &[("content-length", &*LIMIT.to_string())], large(0)));
    let service = layer_of(builder().max_value(LIMIT)).cache_status().layer(inner);
    let answer = ask(&service, get("/")).await;
    assert!(answer.body == large(0));
    let status = answer.headers["cache-status"].to_str().unwrap();
    assert!(status.contains("uncacheable: size"), "{status}");
}

/// An empty body passed, and the cache refused the response later, with a warning for each load.
#[tokio::test(start_paused = true)]
async fn headers_that_are_too_large_alone_are_too_large_with_an_empty_body() {
    for (body, length) in [("", "0"), ("whole", "5")] {
        let (inner, _) = origin(move |_, _| {
            let large = "a".repeat(LIMIT);
            reply(200, &[("x-large", &large), ("content-length", length)], body)
        });
        let service = layer_of(builder().max_value(LIMIT)).cache_status().layer(inner);
        let answer = ask(&service, get("/")).await;
        assert_eq!(answer.text(), body);
        let expected = "bellwether; fwd=uri-miss; detail=\"uncacheable: size\"";
        assert_eq!(answer.headers["cache-status"], expected);
    }
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_leaves_costs_the_follower_no_wait() {
    let (inner, calls) = with_headers(&[("set-cookie", "a=b")]);
    let service = layered(&inner);
    let leader = asking(&service, get("/"));
    sleep(DELAY / 2).await;
    let follower = asking(&service, get("/"));
    sleep(DELAY / 4).await;
    leader.abort();
    assert_eq!(follower.await.unwrap().text(), "2");
    assert_eq!(calls.count(), 2);
}

/// The answers to conditions, ranges and `HEAD` renewed the mark of a key for ever, although its
/// whole responses could be shared.
#[tokio::test(start_paused = true)]
async fn a_key_recovers_whatever_its_clients_ask_for() {
    for (name, value) in [("if-none-match", "\"v\""), ("range", "bytes=0-1"), ("HEAD", "")] {
        let (inner, calls) = origin(move |call, request| {
            let own = ("set-cookie", if call == 1 { "a=b" } else { "" });
            let control = ("cache-control", "max-age=60");
            let etag = ("etag", "\"v\"");
            let headers = request.headers();
            let (status, about_body, body) = if headers.contains_key("if-none-match") {
                (304, ("x-none", ""), "")
            } else if headers.contains_key("range") {
                (206, ("content-range", "bytes 0-1/5"), "wh")
            } else if request.method() == "HEAD" {
                (200, ("content-length", "5"), "")
            } else {
                (200, ("x-all", ""), "whole")
            };
            let lines = [control, etag, about_body, own];
            reply(status, if call == 1 { &lines } else { &lines[..3] }, body)
        });
        let services = [layered(&inner)];
        let asked = || match name {
            "HEAD" => request("HEAD", "/", &[]),
            _ => get_with(&[(name, value)]),
        };
        ask(&services[0], get("/")).await;
        for _ in 0..60 {
            sleep(SECOND).await;
            ask(&services[0], asked()).await;
        }
        if name == "range" {
            // A part is not stored, and is no reason for a mark.
            ask(&services[0], get("/")).await;
        }
        let before = calls.count();
        ask_all(&services, (0..50).map(|_| asked())).await;
        assert!(calls.count() - before <= 1, "{name}: {}", calls.count() - before);
    }
}

/// The mark of an uncacheable key is a commit as others are: it counts as stored, and an error of
/// the backend begins an outage.
#[tokio::test(start_paused = true)]
async fn the_commit_of_a_mark_is_counted_and_its_failure_begins_an_outage() {
    let (lines, _collecting) = collect();
    let (inner, _) = with_headers(&[("set-cookie", "a=b")]);
    let faulty = Faulty::new(|_| None);
    let cache = http_cache(faulty.clone(), "bellwether").build().unwrap();
    let service = http_layer(cache.clone()).layer(inner);
    ask(&service, get("/")).await;
    assert_eq!(cache.stats().stored, 1);
    faulty.plan(|op| (op == Op::Commit).then_some(Fault::Refuse));
    ask(&service, get("/other")).await;
    assert_eq!(cache.stats().stored, 1);
    assert_eq!(lines.with("degraded: one load for each process and key").len(), 1);
}
