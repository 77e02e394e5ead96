//! Answers that turn out to belong to their callers. No caller waits in a queue in vain.

use super::prelude::*;

const LIMIT: usize = 10_000;

/// Returns two processes of a fleet.
fn fleet(backend: &MemoryBackend, inner: &Inner) -> [Layered; 2] {
    [(), ()].map(|()| {
        let cache = http_cache(backend.clone(), "bellwether").max_value(LIMIT).build();
        http_layer(cache.unwrap()).layer(inner.clone())
    })
}

/// Sends 200 requests at once to two processes. All are answered in parallel, each with an answer
/// of its own.
async fn each_caller_gets_its_own_answer(inner: &Inner) -> Vec<Answer> {
    let backend = MemoryBackend::new();
    let services = fleet(&backend, inner);
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
        let cookie = format!("session={call}");
        Response::builder().header("set-cookie", cookie).body(Body::from(call.to_string())).unwrap()
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
            let body = bytes::Bytes::from(large(call));
            if is_announced {
                let answer = Response::builder().header("content-length", body.len());
                return answer.body(Body::from(body)).unwrap();
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
    let (inner, _) = origin(|_, _| {
        Response::builder().header("content-length", LIMIT).body(Body::from(large(0))).unwrap()
    });
    let cache = http_cache(MemoryBackend::new(), "bellwether").max_value(LIMIT).build().unwrap();
    let service = http_layer(cache).cache_status().layer(inner);
    let answer = ask(&service, get("/")).await;
    assert!(answer.body == large(0));
    let status = answer.headers["cache-status"].to_str().unwrap();
    assert!(status.contains("uncacheable: size"), "{status}");
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_leaves_costs_the_follower_no_wait() {
    let (inner, calls) = with_headers(&[("set-cookie", "a=b")]);
    let service = layered(&inner);
    let leader = {
        let service = service.clone();
        tokio::spawn(async move { ask(&service, get("/")).await })
    };
    sleep(DELAY / 2).await;
    let follower = {
        let service = service.clone();
        tokio::spawn(async move { ask(&service, get("/")).await })
    };
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
            let answer = Response::builder().header("cache-control", "max-age=60");
            let answer = answer.header("etag", "\"v\"");
            let answer = if call == 1 { answer.header("set-cookie", "a=b") } else { answer };
            let headers = request.headers();
            let (answer, body) = if headers.contains_key("if-none-match") {
                (answer.status(304), Body::empty())
            } else if headers.contains_key("range") {
                (answer.status(206).header("content-range", "bytes 0-1/5"), Body::from("wh"))
            } else if request.method() == "HEAD" {
                (answer.header("content-length", 5), Body::empty())
            } else {
                (answer, Body::from("whole"))
            };
            answer.body(body).unwrap()
        });
        let services = [layered(&inner)];
        let request = || match name {
            "HEAD" => Request::head("/").body(Body::empty()).unwrap(),
            _ => get_with(&[(name, value)]),
        };
        ask(&services[0], get("/")).await;
        for _ in 0..60 {
            sleep(Duration::from_secs(1)).await;
            ask(&services[0], request()).await;
        }
        let before = calls.count();
        ask_all(&services, (0..50).map(|_| request())).await;
        assert!(calls.count() - before <= 1, "{name}: {}", calls.count() - before);
    }
}
