//! The `Cache-Status` of each answer.

use super::prelude::*;

fn status(answer: &Answer) -> &str {
    answer.headers["cache-status"].to_str().unwrap().strip_prefix("bellwether; ").unwrap()
}

#[tokio::test(start_paused = true)]
async fn each_answer_says_how_the_cache_answered() {
    let (inner, _) = with_headers(&[("cache-control", "max-age=60, stale-while-revalidate=60")]);
    let service = layer().cache_status().layer(inner.clone());
    let mut cold = crowd(&service, 3).await;
    cold.sort_by_key(|answer| status(answer).to_owned());
    let cold: Vec<_> = cold.iter().map(status).collect();
    let collapsed = "fwd=uri-miss; collapsed";
    assert_eq!(cold, [collapsed, collapsed, "fwd=uri-miss; stored; ttl=60"]);
    sleep(10 * SECOND).await;
    assert_eq!(status(&ask(&service, get("/")).await), "hit; ttl=50");
    let known = ask(&service, get_with(&[("range", "bytes=0-0")])).await;
    assert_eq!(status(&known), "hit; ttl=50");
    sleep(54_500 * MS).await;
    assert_eq!(status(&ask(&service, get("/")).await), "hit; ttl=-5; detail=stale");
    sleep(2 * DELAY).await;
    assert_eq!(status(&ask(&service, get("/")).await), "hit; ttl=59");
    let own = ask(&service, get_with(&[("authorization", "a")])).await;
    assert_eq!(status(&own), "fwd=bypass; detail=\"authorization\"");
    let refusing = Faulty::new(|_| Some(Fault::Refuse));
    let layer = http_layer(http_cache(refusing, "bellwether").build().unwrap()).cache_status();
    let degraded = ask(&layer.layer(inner), get("/")).await;
    assert_eq!(status(&degraded), "fwd=uri-miss; detail=degraded");
}

#[tokio::test(start_paused = true)]
async fn a_load_says_why_the_stored_response_does_not_do() {
    let (inner, calls) = origin(|call, request| {
        let call = call.to_string();
        let headers = [("etag", "\"a\""), ("cache-control", "max-age=60"), ("x-call", &*call)];
        if request.headers().contains_key("if-none-match") {
            reply(304, &headers, "")
        } else {
            reply(200, &headers, "body")
        }
    });
    let cache = cache(&MemoryBackend::new());
    let service = http_layer(cache.clone()).cache_status().layer(inner);
    let all = async || {
        let answers = crowd(&service, 3).await;
        assert!(answers.iter().all(|answer| answer.text() == "body"));
        let mut all: Vec<_> = answers.iter().map(|answer| status(answer).to_owned()).collect();
        all.sort();
        all
    };
    let expected = |why: &str| {
        let [collapsed, stored] = ["collapsed", "stored; ttl=60"];
        [collapsed, collapsed, stored].map(|how| format!("fwd={why}; {how}"))
    };
    assert_eq!(all().await, expected("uri-miss"));
    sleep(70 * SECOND).await;
    assert_eq!(all().await, expected("stale"));
    assert_eq!(calls.count(), 2);
    ask(&service, post()).await;
    let stats = cache.stats();
    assert_eq!((stats.missed_stale, stats.missed_variant), (3, 0));
    assert_eq!((stats.passed_method, stats.passed), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_is_not_shared_says_why() {
    for (headers, why) in [
        (&[][..], "lifetime"),
        (&[("set-cookie", "a=b")], "set-cookie"),
        (&[("cache-control", "private")], "cache-control"),
        (&[("cache-control", "max-age=60"), ("age", "60")], "lifetime"),
        (&[("cache-control", "max-age=60"), ("vary", "*")], "vary"),
        (&[("cache-control", "max-age=60"), ("content-encoding", "br")], "vary-accept-encoding"),
        (&[("cache-control", "max-age=60"), ("content-type", "text/event-stream")], "content-type"),
    ] {
        let (inner, _) = with_headers(headers);
        let service = silent_layer().cache_status().layer(inner);
        let expected = format!("fwd=uri-miss; detail=\"uncacheable: {why}\"");
        assert_eq!(status(&ask(&service, get("/")).await), expected);
        // The next one does not wait for its answer.
        let next = ask(&service, get("/")).await;
        assert_eq!(status(&next), "fwd=uri-miss; detail=uncacheable");
    }
}

#[tokio::test(start_paused = true)]
async fn an_error_of_the_service_says_why_it_was_asked() {
    let (inner, _) =
        origin(|_, request| reply(request.uri().path()[1..].parse().unwrap(), &[], ""));
    let service = silent_layer().cache_status().layer(inner);
    for expected in [404, 500, 503] {
        let answer = ask(&service, get(&format!("/{expected}"))).await;
        assert_eq!((answer.status.as_u16(), status(&answer)), (expected, "fwd=uri-miss"));
    }
}
