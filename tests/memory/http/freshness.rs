//! The time for which an answer is served again.

use super::prelude::*;

/// Asserts that an answer is served again for so many seconds, and no longer.
async fn assert_served_again_for(seconds: u64, service: &Layered, calls: &Calls, what: Lines<'_>) {
    ask(service, get("/")).await;
    sleep(Duration::from_millis(seconds * 1000 - 10)).await;
    ask(service, get("/")).await;
    assert_eq!(calls.count(), 1, "{what:?} before its time");
    sleep(20 * MS).await;
    ask(service, get("/")).await;
    assert_eq!(calls.count(), 2, "{what:?} after its time");
}

/// The `ttl` is 60 s, and the default lifetime longer or 5 s.
#[tokio::test(start_paused = true)]
async fn the_freshness_of_an_answer_shortens_the_ttl_and_replaces_the_default() {
    for (headers, seconds, with_short_default) in [
        (&[][..], 60, 5),
        (&[("cache-control", "max-age=8")], 8, 8),
        (&[("cache-control", "max-age=3600")], 60, 60),
        (&[("cache-control", "max-age=99999999999999999999999")], 60, 60),
        (&[("cache-control", "max-age=5, s-maxage=8")], 8, 8),
        (&[("cache-control", "max-age=20"), ("cache-control", "S-MAXAGE=\"7\"")], 7, 7),
        (&[("cache-control", "max-age=20"), ("age", "15")], 5, 5),
        (&[("age", "2")], 60, 3),
        (&[("cache-control", "public")], 60, 5),
        (&[("cache-control", "public, must-revalidate")], 60, 5),
    ] {
        for (lifetime, seconds) in [(3600, seconds), (5, with_short_default)] {
            let (inner, calls) = with_headers(headers);
            let service = silent_layer().default_lifetime(lifetime * SECOND).layer(inner);
            assert_served_again_for(seconds, &service, &calls, headers).await;
        }
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
        let silent = silent_layer().layer(inner);
        let answers = crowd(&silent, 10).await;
        assert_eq!((calls.count(), different(&answers)), (10, 10), "{headers:?}");
        assert_eq!(ask(&silent, get("/")).await.text(), "11", "{headers:?}");
    }
    let (inner, calls) = with_headers(&[("cache-control", "max-age=5")]);
    crowd(&silent_layer().layer(inner), 10).await;
    assert_eq!(calls.count(), 1);
}

/// The process remembers what the inner service answered, because nothing can be stored.
#[tokio::test(start_paused = true)]
async fn an_answer_that_is_remembered_of_an_outage_states_its_age() {
    let (inner, calls) = with_headers(&[("cache-control", "max-age=60")]);
    let away = Faulty::new(|_| Some(Fault::Refuse));
    let service = layer_of(http_cache(away, "shop").outage_memory(1 << 20)).layer(inner);
    for (pause, age, count) in [(0, None, 1), (59, Some("59"), 1), (1, None, 2)] {
        sleep(pause * SECOND).await;
        let answer = ask(&service, get("/")).await;
        let stated = answer.headers.get("age").map(|age| age.to_str().unwrap());
        assert_eq!((stated, calls.count()), (age, count));
    }
}

/// The test runs in real time, because `Age` is for clients, which know no other time.
#[tokio::test]
async fn a_stored_answer_states_its_age() {
    async fn age(service: &Layered) -> u64 {
        ask(service, get("/")).await.headers["age"].to_str().unwrap().parse().unwrap()
    }
    let service = layered(&with_headers(&[("age", "7")]).0);
    let begun = Instant::now();
    let passed = || begun.elapsed().as_secs();
    let first = age(&service).await;
    assert!((7..=7 + passed()).contains(&first), "{first}");
    sleep(1100 * MS).await;
    let second = age(&service).await;
    assert!((8..=7 + passed()).contains(&second), "{second}");

    let service = layered(&numbered().0);
    let begun = Instant::now();
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
                sleep(3 * SECOND).await;
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
    let (inner, calls) =
        origin(move |_, _| reply(200, &[("cache-control", &control), ("vary", "a")], "x"));
    let layer = layer_of(builder().ttl(Duration::MAX)).max_stale(Duration::MAX);
    let service: Layered = layer.layer(inner);
    for _ in 0..3 {
        assert_eq!(ask(&service, get("/")).await.text(), "x");
    }
    assert_eq!(calls.count(), 1);
}
