//! `coalesce_only`: answers that are shared with the present waiters, and not stored.

use super::prelude::*;

fn coalescing(layer: BellwetherLayer<Http>) -> BellwetherLayer<Http> {
    layer.policy(Policy::default().coalesce_only())
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
        let services = [(), ()]
            .map(|()| coalescing(BellwetherLayer::http(cache(&backend))).layer(inner.clone()));
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
    let (inner, calls) = numbered();
    let services: [_; 2] = processes(&inner, coalescing);
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
        let services: [_; 2] = processes(&inner, coalescing);
        let answers = ask_all(&services, (0..10).map(|_| get("/"))).await;
        assert_eq!((calls.count(), different(&answers)), (10, 10), "{headers:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_another_layer_stored_is_not_served() {
    let (inner, _) = numbered();
    let layer = http_layer(cache(&MemoryBackend::new()));
    let (storing, coalescing) = (layer.layer(inner.clone()), coalescing(layer).layer(inner));
    for (service, expected) in [(&storing, "1"), (&coalescing, "2"), (&storing, "1")] {
        assert_eq!(ask(service, get("/")).await.text(), expected);
    }
}

/// A process that waited for one load in vain does not wait for the next one as well.
#[tokio::test(start_paused = true)]
async fn no_caller_waits_for_two_loads_of_other_processes() {
    let (inner, _) =
        origin(|call, _| reply(if call % 2 == 1 { 500 } else { 200 }, &[], call.to_string()));
    let services: [_; 6] = processes(&inner, coalescing);
    let begun = Instant::now();
    ask_all(&services, (0..6).map(|_| get("/"))).await;
    assert!(begun.elapsed() <= 3 * DELAY, "{:?}", begun.elapsed());
    sleep(SECOND).await;
}

/// With `rfc9111()` a request has the cookies of its user. The answer to it went to other users. A
/// lifetime of zero shares no more than none does.
#[tokio::test(start_paused = true)]
async fn a_silent_answer_to_a_request_with_a_cookie_is_for_its_caller() {
    for status in [200, 401, 403, 404, 500, 503] {
        for credential in ["cookie", "x-api-key"] {
            let (inner, _) = origin(move |_, request| {
                reply(status, &[], request.headers()[credential].to_str().unwrap().to_owned())
            });
            for is_zero in [false, true] {
                let layer = silent_layer().policy(Policy::rfc9111().coalesce_only());
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
