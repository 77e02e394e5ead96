//! The time for which an answer is served again.

use super::prelude::*;

type Headers<'a> = &'a [(&'static str, &'static str)];

/// Asserts that an answer is served again for so many seconds, and no longer.
async fn assert_served_again_for(
    seconds: u64,
    service: &Layered,
    calls: &Calls,
    what: Headers<'_>,
) {
    ask(service, get("/")).await;
    sleep(Duration::from_millis(seconds * 1000 - 10)).await;
    ask(service, get("/")).await;
    assert_eq!(calls.count(), 1, "{what:?} before its time");
    sleep(Duration::from_millis(20)).await;
    ask(service, get("/")).await;
    assert_eq!(calls.count(), 2, "{what:?} after its time");
}

#[tokio::test(start_paused = true)]
async fn the_freshness_of_an_answer_shortens_the_ttl() {
    for (headers, seconds) in [
        (&[][..], 60),
        (&[("cache-control", "max-age=5")], 5),
        (&[("cache-control", "max-age=3600")], 60),
        (&[("cache-control", "max-age=99999999999999999999999")], 60),
        (&[("cache-control", "max-age=5, s-maxage=8")], 8),
        (&[("cache-control", "max-age=20"), ("cache-control", "S-MAXAGE=\"7\"")], 7),
        (&[("cache-control", "max-age=20"), ("age", "15")], 5),
        (&[("cache-control", "public, must-revalidate")], 60),
    ] {
        let (inner, calls) = with_headers(headers);
        let service = layered(&inner);
        assert_served_again_for(seconds, &service, &calls, headers).await;
    }
}

/// Most services send no header about caching, with private answers neither.
#[tokio::test(start_paused = true)]
async fn a_silent_answer_is_shared_only_with_a_lifetime_for_it() {
    for headers in [
        &[][..],
        &[("etag", "\"1\"")],
        &[("last-modified", "Sat, 29 Oct 1994 19:43:31 GMT")],
        &[("cache-control", "public")],
        &[("cache-control", "must-revalidate")],
    ] {
        let (inner, calls) = with_headers(headers);
        let cache = cache(&MemoryBackend::new());
        let silent = BellwetherLayer::http(cache).layer(inner);
        let answers = ask_all(std::slice::from_ref(&silent), (0..10).map(|_| get("/"))).await;
        assert_eq!((calls.count(), different(&answers)), (10, 10), "{headers:?}");
        assert_eq!(ask(&silent, get("/")).await.text(), "11", "{headers:?}");
    }
    let (inner, calls) = with_headers(&[("cache-control", "max-age=5")]);
    let silent = BellwetherLayer::http(cache(&MemoryBackend::new())).layer(inner);
    ask_all(&[silent], (0..10).map(|_| get("/"))).await;
    assert_eq!(calls.count(), 1);
}

#[tokio::test(start_paused = true)]
async fn the_default_lifetime_is_for_answers_without_one() {
    for (headers, seconds) in [
        (&[][..], 5),
        (&[("age", "2")], 3),
        (&[("cache-control", "public")], 5),
        (&[("cache-control", "max-age=8")], 8),
        (&[("cache-control", "max-age=600")], 60),
    ] {
        let (inner, calls) = with_headers(headers);
        let layer = BellwetherLayer::http(cache(&MemoryBackend::new()));
        let service = layer.default_lifetime(Duration::from_secs(5)).layer(inner);
        assert_served_again_for(seconds, &service, &calls, headers).await;
    }
}

/// The process remembers what the inner service answered, because nothing can be stored.
#[tokio::test(start_paused = true)]
async fn an_answer_that_is_remembered_of_an_outage_states_its_age() {
    let (inner, calls) = with_headers(&[("cache-control", "max-age=60")]);
    let away = Faulty::new(|_| Some(Fault::Refuse));
    let cache = http_cache(away, "shop").outage_memory(1 << 20).build().unwrap();
    let service = http_layer(cache).layer(inner);
    assert!(!ask(&service, get("/")).await.headers.contains_key("age"));
    sleep(Duration::from_secs(59)).await;
    assert_eq!(ask(&service, get("/")).await.headers["age"], "59");
    assert_eq!(calls.count(), 1);
    sleep(Duration::from_secs(1)).await;
    assert!(!ask(&service, get("/")).await.headers.contains_key("age"));
    assert_eq!(calls.count(), 2);
}

/// The test runs in real time, because `Age` is for clients, which know no other time.
#[tokio::test]
async fn a_stored_answer_states_its_age() {
    async fn age(service: &Layered) -> u64 {
        ask(service, get("/")).await.headers["age"].to_str().unwrap().parse().unwrap()
    }
    let (inner, _) = with_headers(&[("age", "7")]);
    let (service, begun) = (layered(&inner), Instant::now());
    let passed = || begun.elapsed().as_secs();
    let first = age(&service).await;
    assert!((7..=7 + passed()).contains(&first), "{first}");
    sleep(Duration::from_millis(1100)).await;
    let second = age(&service).await;
    assert!((8..=7 + passed()).contains(&second), "{second}");

    let (inner, _) = with_headers(&[]);
    let (service, begun) = (layered(&inner), Instant::now());
    assert!(!ask(&service, get("/")).await.headers.contains_key("age"));
    let first = age(&service).await;
    assert!(first <= begun.elapsed().as_secs(), "{first}");
}

/// An answer of another cache grew older on its way (RFC 9111, section 4.2.3). One that the inner
/// service took long to make did not.
#[tokio::test(start_paused = true)]
async fn an_age_that_is_told_grows_while_the_answer_is_on_its_way() {
    for (headers, seconds) in [
        (&[("cache-control", "max-age=20"), ("age", "12")][..], 5),
        (&[("cache-control", "max-age=20")], 20),
    ] {
        let (inner, calls) = with_headers(headers);
        let far = service_fn(move |request| {
            let answer = inner.clone().oneshot(request);
            async move {
                sleep(Duration::from_secs(3)).await;
                answer.await
            }
        });
        let service = layered(&BoxCloneSyncService::new(far));
        assert_served_again_for(seconds, &service, &calls, headers).await;
    }
}

#[tokio::test(start_paused = true)]
async fn lifetimes_without_end_are_served() {
    let endless = "99999999999999999999";
    let control =
        format!("max-age={endless}, stale-if-error={endless}, stale-while-revalidate={endless}");
    let (inner, calls) = origin(move |_, _| {
        let response = Response::builder().header("cache-control", &control).header("vary", "a");
        response.body(Body::from("x")).unwrap()
    });
    let cache = http_cache(MemoryBackend::new(), "bellwether").ttl(Duration::MAX).build().unwrap();
    let service: Layered = http_layer(cache).max_stale(Duration::MAX).layer(inner);
    for _ in 0..3 {
        assert_eq!(ask(&service, get("/")).await.text(), "x");
    }
    assert_eq!(calls.count(), 1);
}
