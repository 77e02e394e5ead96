//! `coalesce_only`: answers that are shared with the present waiters, and not stored.

use super::prelude::*;

fn coalescing(backend: &MemoryBackend, inner: &Inner) -> [Layered; 2] {
    [(), ()].map(|()| {
        BellwetherLayer::http(cache(backend))
            .policy(Policy::default().coalesce_only())
            .layer(inner.clone())
    })
}

#[tokio::test(start_paused = true)]
async fn an_answer_goes_to_those_who_wait_and_is_not_stored() {
    for headers in [
        &[][..],
        &[("cache-control", "max-age=0")],
        &[("cache-control", "public, max-age=60")],
        &[("expires", "0")],
    ] {
        let backend = MemoryBackend::new();
        let (inner, calls) = with_headers(headers);
        let services = coalescing(&backend, &inner);
        for call in 1..4 {
            let answers = ask_all(&services, (0..20).map(|_| get("/"))).await;
            assert_eq!((calls.count(), different(&answers)), (call, 1), "{headers:?}");
            assert_eq!(backend.weight(), 0);
        }
        assert_eq!(ask(&services[0], get("/")).await.text(), "4");
        assert_eq!(ask(&services[1], get("/")).await.text(), "5");
    }
}

/// A browser that reloads a page sends these.
#[tokio::test(start_paused = true)]
async fn requests_with_no_cache_are_coalesced() {
    let (inner, calls) = with_headers(&[]);
    let services = coalescing(&MemoryBackend::new(), &inner);
    let reload = || get_with(&[("cache-control", "no-cache"), ("pragma", "no-cache")]);
    for call in 1..4 {
        let answers = ask_all(&services, (0..20).map(|_| reload())).await;
        assert_eq!((calls.count(), different(&answers)), (call, 1));
    }
    // A request with `no-store` takes no part.
    let request = || get_with(&[("cache-control", "no-store")]);
    ask_all(&services, (0..2).map(|_| request())).await;
    assert_eq!(calls.count(), 5);
}

#[tokio::test(start_paused = true)]
async fn answers_that_belong_to_their_callers_still_do() {
    for headers in [
        &[("set-cookie", "a=b")][..],
        &[("vary", "accept")],
        &[("cache-control", "private")],
        &[("cache-control", "no-store")],
        &[("cache-control", "no-cache")],
    ] {
        let (inner, calls) = with_headers(headers);
        let services = coalescing(&MemoryBackend::new(), &inner);
        let answers = ask_all(&services, (0..10).map(|_| get("/"))).await;
        assert_eq!((calls.count(), different(&answers)), (10, 10), "{headers:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_another_layer_stored_is_not_served() {
    let (inner, _) = with_headers(&[]);
    let cache = cache(&MemoryBackend::new());
    let storing = http_layer(cache.clone()).layer(inner.clone());
    let coalescing =
        BellwetherLayer::http(cache).policy(Policy::default().coalesce_only()).layer(inner);
    assert_eq!(ask(&storing, get("/")).await.text(), "1");
    assert_eq!(ask(&coalescing, get("/")).await.text(), "2");
    assert_eq!(ask(&storing, get("/")).await.text(), "1");
}

/// A process that waited for one load in vain does not wait for the next one as well.
#[tokio::test(start_paused = true)]
async fn no_caller_waits_for_two_loads_of_other_processes() {
    let (inner, _) = super::origin::origin(|call, _| {
        let body = Response::builder();
        match call % 2 {
            1 => body.status(500).body(Body::from(call.to_string())).unwrap(),
            _ => body.body(Body::from(call.to_string())).unwrap(),
        }
    });
    let backend = MemoryBackend::new();
    let services: Vec<_> = (0..6).map(|_| coalescing(&backend, &inner)[0].clone()).collect();
    let begun = tokio::time::Instant::now();
    ask_all(&services, (0..6).map(|_| get("/"))).await;
    assert!(begun.elapsed() <= 3 * DELAY, "{:?}", begun.elapsed());
    sleep(Duration::from_secs(1)).await;
}

/// With `rfc9111()` a request has the cookies of its user. The answer to it went to other users. A
/// lifetime of zero shares no more than none does.
#[tokio::test(start_paused = true)]
async fn a_silent_answer_to_a_request_with_a_cookie_is_for_its_caller() {
    for status in [200, 401, 403, 404, 500, 503] {
        for credential in ["cookie", "x-api-key"] {
            let (inner, _) = origin(move |_, request| {
                let user = request.headers()[credential].to_str().unwrap().to_owned();
                Response::builder().status(status).body(Body::from(user)).unwrap()
            });
            for is_zero in [false, true] {
                let layer = BellwetherLayer::http(cache(&MemoryBackend::new()));
                let layer = layer.policy(Policy::rfc9111().coalesce_only());
                let layer = if is_zero { layer.default_lifetime(Duration::ZERO) } else { layer };
                let services = [layer.layer(inner.clone())];
                let users = ["alice", "bob"].map(|user| get_with(&[(credential, user)]));
                let answers = ask_all(&services, users).await;
                assert_eq!(answers[0].text(), "alice");
                assert_ne!(answers[1].text(), "alice", "{credential} {status} {is_zero}");
            }
        }
    }
}
