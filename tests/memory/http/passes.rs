//! Requests that go to the service without the cache are counted, and told why.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use http::request::Parts;

use super::prelude::*;

fn status(answer: &Answer) -> Vec<&str> {
    let lines = answer.headers.get_all("cache-status").iter();
    lines.map(|line| line.to_str().unwrap()).collect()
}

/// Reads of markers were hits, too, and so 9 hits of 10 requests were 18.
#[tokio::test(start_paused = true)]
async fn each_caller_is_counted_once() {
    let sets: [(&str, Set); 5] = [
        ("", |layer| layer),
        ("", |layer| layer.vary_by(|_: &Parts| Some("user".to_owned()))),
        ("", |layer| layer.vary_by_header("x-tenant")),
        ("accept-language", |layer| layer),
        ("accept-language", |layer| layer.vary_by(|_: &Parts| String::new()).vary_by_header("x-a")),
    ];
    for (at, (vary, set)) in sets.into_iter().enumerate() {
        let (inner, calls) = origin(move |call, _| {
            let headers = [("cache-control", "max-age=60"), ("vary", vary)];
            reply(200, &headers[..headers.len() - usize::from(vary.is_empty())], call.to_string())
        });
        let backend = MemoryBackend::new();
        let caches = [(), ()].map(|()| cache(&backend));
        let [one, other] = caches.clone().map(|cache| set(http_layer(cache)).layer(inner.clone()));
        for _ in 0..10 {
            ask(&one, get("/")).await;
        }
        let served = |cache: &Cache<CachedResponse>| {
            let stats = cache.stats();
            let others = stats.stale + stats.received + stats.degraded + stats.failed;
            (stats.led, stats.hits, stats.followed, others)
        };
        assert_eq!((calls.count(), served(&caches[0])), (1, (1, 9, 0, 0)), "set {at}");
        // Callers that wait for the variants that they select, and each for another one.
        let languages = ["en", "en", "en", "de"];
        ask_all(&[other], languages.map(|language| get_with(&[("accept-language", language)])))
            .await;
        let expected = if vary.is_empty() { (0, 4, 0, 0) } else { (2, 0, 2, 0) };
        assert_eq!(served(&caches[1]), expected, "set {at}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_pass_is_counted_and_says_why() {
    let (inner, _) = origin(|call, request| {
        let own = [("set-cookie", "a=b"), ("cache-status", "inner; hit")];
        reply(200, if request.uri() == "/own" { &own } else { &[] }, call.to_string())
    });
    let cache = cache(&MemoryBackend::new());
    let silent = http_layer(cache.clone());
    let explaining = silent
        .clone()
        .cache_status()
        .vary_by(|parts: &Parts| (parts.uri != "/private").then(String::new));
    let service = explaining.layer(inner.clone());
    let with_body = || Request::get("/").body(Body::from("x")).unwrap();
    for (request, expected) in [
        (post(), "fwd=method"),
        (with_body(), "fwd=bypass; detail=body"),
        (get_with(&[("X-Api-Key", "1")]), "fwd=bypass; detail=\"x-api-key\""),
        (get_with(&[("cookie", "a=b")]), "fwd=bypass; detail=\"cookie\""),
        (get_with(&[("cache-control", "no-cache")]), "fwd=bypass; detail=\"cache-control\""),
        (get_with(&[("host", "a b")]), "fwd=bypass; detail=key"),
        (get("/private"), "fwd=bypass; detail=key"),
    ] {
        assert_eq!(status(&ask(&service, request).await), [format!("bellwether; {expected}")]);
    }
    let stats = cache.stats();
    assert_eq!((stats.passed, stats.passed_uncacheable), (7, 0));
    assert_eq!((stats.passed_method, stats.passed_body), (1, 1));
    assert_eq!((stats.passed_header, stats.passed_key), (3, 2));
    // A leader whose answer is uncacheable, and a request that did not wait for one.
    for (passed, why) in ["\"uncacheable: set-cookie\"", "uncacheable"].into_iter().enumerate() {
        let answer = ask(&service, get("/own")).await;
        let expected = format!("bellwether; fwd=uri-miss; detail={why}");
        assert_eq!(status(&answer), ["inner; hit", &expected]);
        assert_eq!(cache.stats().passed_uncacheable, passed as u64);
    }
    // A shared answer has no reason.
    for expected in ["bellwether; fwd=uri-miss; stored; ttl=60", "bellwether; hit; ttl=60"] {
        assert_eq!(status(&ask(&service, get("/")).await), [expected]);
    }
    assert_eq!(cache.stats().passed, 8);
    // The header is not there unless it is asked for.
    let service = silent.layer(inner);
    assert!(status(&ask(&service, post()).await).is_empty());
    assert_eq!(cache.stats().passed, 9);
}

/// 1,100 loads of 8 s were under way, and a cold URL of 10 ms took 5.8 s.
#[tokio::test(start_paused = true)]
async fn slow_urls_do_not_delay_others() {
    const SLOW: Duration = Duration::from_secs(8);
    let (inner, calls) = numbered();
    let slow = service_fn(move |request: Request<Body>| {
        let inner = inner.clone();
        async move {
            if request.uri().path().starts_with("/slow") {
                sleep(SLOW).await;
            }
            inner.oneshot(request).await
        }
    });
    let inner = BoxCloneSyncService::new(slow);
    for refuses in [false, true] {
        let cache = cache(&MemoryBackend::new());
        let layer = http_layer(cache.clone()).cache_status();
        let layer = if refuses { layer.refuse_overload() } else { layer };
        let service = layer.layer(inner.clone());
        let requests = (0..1_100).map(|number| get(&format!("/slow/{number}")));
        let asked: Vec<_> = requests.map(|request| asking(&service, request)).collect();
        sleep(SLOW / 2).await;
        let before = calls.count();
        let begun = Instant::now();
        let cold = || ask_all(std::slice::from_ref(&service), (0..5).map(|_| get("/cold")));
        let answers = cold().await;
        if refuses {
            assert_eq!((begun.elapsed(), calls.count()), (Duration::ZERO, before));
            let refused = StatusCode::SERVICE_UNAVAILABLE;
            assert!(answers.iter().all(|answer| answer.status == refused));
        } else {
            assert_eq!((begun.elapsed(), different(&answers)), (DELAY, 5));
            let expected = "bellwether; fwd=uri-miss; detail=overloaded";
            assert!(answers.iter().all(|answer| status(answer) == [expected]));
            assert_eq!(cache.stats().passed_overloaded, 76 + 5);
        }
        let slow = all(asked).await;
        let served = slow.iter().filter(|answer| answer.status == StatusCode::OK).count();
        assert_eq!(served, if refuses { 1_024 } else { 1_100 });
        // Now there is room, and the answer is shared again.
        let before = calls.count();
        cold().await;
        assert_eq!(calls.count(), before + 1);
    }
}

/// A process that waits for another one needs no permit. When it has to load after all, there may
/// be none.
#[tokio::test(start_paused = true)]
async fn callers_that_waited_for_another_process_pass_as_well() {
    let (inner, calls) =
        origin(|call, _| reply(if call == 1 { 500 } else { 200 }, &[], call.to_string()));
    let backend = MemoryBackend::new();
    let [one, other] = [1024, 1].map(|loads| {
        let cache = http_cache(backend.clone(), "bellwether").max_loads(loads).build().unwrap();
        http_layer(cache).layer(inner.clone())
    });
    let leader = asking(&one, get("/"));
    sleep(DELAY / 4).await;
    let waiters = [(); 3].map(|()| asking(&other, get("/")));
    sleep(DELAY / 4).await;
    let busy = asking(&other, get("/busy"));
    assert_eq!(leader.await.unwrap().status, StatusCode::INTERNAL_SERVER_ERROR);
    for waiter in waiters {
        assert_eq!(waiter.await.unwrap().status, StatusCode::OK);
    }
    busy.await.unwrap();
    assert_eq!(calls.count(), 5);
}

#[tokio::test(start_paused = true)]
async fn a_switch_lets_each_request_pass_and_writes_still_end_responses() {
    let (inner, calls) =
        origin(|call, _| reply(200, &[("cache-control", "max-age=600")], call.to_string()));
    let cache = cache(&MemoryBackend::new());
    let is_off = Arc::new(AtomicBool::new(false));
    let service = http_layer(cache.clone()).cache_status().pass_if(is_off.clone()).layer(inner);
    let first = ask(&service, get("/")).await.text().to_owned();
    assert_eq!(ask(&service, get("/")).await.text(), first);
    is_off.store(true, Ordering::Relaxed);
    for _ in 0..3 {
        let answer = ask(&service, get("/")).await;
        assert_ne!(answer.text(), first);
        assert_eq!(status(&answer), ["bellwether; fwd=bypass; detail=switched-off"]);
    }
    assert_eq!((cache.stats().passed_switched, calls.count()), (3, 4));
    // What was stored before is served again, unless a write has ended it.
    is_off.store(false, Ordering::Relaxed);
    assert_eq!(ask(&service, get("/")).await.text(), first);
    is_off.store(true, Ordering::Relaxed);
    ask(&service, post()).await;
    is_off.store(false, Ordering::Relaxed);
    assert_ne!(ask(&service, get("/")).await.text(), first);
}

/// A hit ratio of zero: the log names the header that each client sends, once a minute.
#[tokio::test(start_paused = true)]
async fn the_header_by_which_most_requests_pass_is_named() {
    let (lines, _collecting) = crate::log::collect();
    let (inner, _) = origin(|call, _| reply(200, &[], call.to_string()));
    let service = http_layer(cache(&MemoryBackend::new())).layer(inner);
    let passes = async |name| ask(&service, get_with(&[(name, "1")])).await;
    passes("x-api-key").await;
    for _ in 0..3 {
        passes("x-api-key").await;
        passes("cookie").await;
        passes("cookie").await;
    }
    sleep(61 * SECOND).await;
    passes("cookie").await;
    let named = lines.with("requests pass the cache because of a header");
    assert_eq!(named.len(), 2, "{named:?}");
    for words in ["header=cookie", "count=7", "passed=10"] {
        assert!(named[1].contains(words), "{named:?}");
    }
}
