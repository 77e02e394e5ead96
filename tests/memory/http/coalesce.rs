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
    let storing = layer.layer(inner.clone());
    let coalescing = coalescing(layer).layer(inner);
    for (service, expected) in [(&storing, "1"), (&coalescing, "2"), (&storing, "1")] {
        assert_eq!(ask(service, get("/")).await.text(), expected);
    }
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_leaves_costs_the_waiters_of_a_coalesced_answer_nothing() {
    for count in [0, 20] {
        let (inner, calls) = numbered();
        let is_answered = Arc::new(AtomicBool::new(false));
        let answered = is_answered.clone();
        let inner = inner.map_response(move |response| {
            answered.store(true, Ordering::SeqCst);
            response
        });
        let services: [_; 2] = processes(&BoxCloneSyncService::new(inner), coalescing);
        let leader = asking(&services[0], get("/"));
        sleep(DELAY / 5).await;
        let begun = Instant::now();
        let waiters = spawn(async move { ask_all(&services, (0..count).map(|_| get("/"))).await });
        sleep(DELAY / 5).await;
        leader.abort();
        assert!(waiters.await.unwrap().iter().all(|answer| answer.text() == "1"));
        assert!(begun.elapsed() <= DELAY * 4 / 5, "{:?}", begun.elapsed());
        sleep(SECOND).await;
        // The request runs on without a caller, too.
        assert!(is_answered.load(Ordering::SeqCst));
        assert_eq!(calls.count(), 1);
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

/// Returns the credential of a request, by which the origin below makes its page.
fn user_of(request: &Request<Body>) -> String {
    let named = ["authorization", "cookie", "x-api-key"].map(|name| request.headers().get(name));
    let user = named.into_iter().flatten().next();
    user.map_or("nobody", |user| user.to_str().unwrap()).to_owned()
}

/// With `rfc9111()`, the page of one user went to another one, because it named a lifetime. A
/// response may answer a second request only where it may be reused (RFC 9111, section 4).
#[tokio::test(start_paused = true)]
async fn a_response_that_is_not_fresh_on_arrival_answers_no_second_user() {
    let users: [Lines<'_>; 7] = [
        &[],
        &[("authorization", "Basic YTpi")],
        &[("authorization", "Basic Yjpi")],
        &[("cookie", "session=a")],
        &[("cookie", "session=b")],
        &[("x-api-key", "a")],
        &[("x-api-key", "b")],
    ];
    for headers in [
        &[("cache-control", "s-maxage=0, max-age=60")][..],
        &[("cache-control", "max-age=0, must-revalidate")],
        &[("cache-control", "public, max-age=0")],
        &[("cache-control", "public, s-maxage=0")],
        &[("cache-control", "public"), ("expires", "0")],
        &[("expires", "0")],
        &[("cache-control", "public, max-age=60"), ("age", "60")],
        &[("cache-control", "public, max-age=60, max-age=x")],
        &[("cdn-cache-control", "public, max-age=0"), ("cache-control", "max-age=60")],
    ] {
        let (inner, _) = origin(move |_, request| reply(200, headers, user_of(request)));
        let layer = || silent_layer().policy(Policy::rfc9111().coalesce_only());
        for one in users {
            for other in users.into_iter().filter(|other| *other != one) {
                let services = [layer().layer(inner.clone())];
                let answers = ask_all(&services, [get_with(one), get_with(other)]).await;
                assert_eq!(answers[0].text(), user_of(&get_with(one)), "{headers:?}");
                assert_eq!(answers[1].text(), user_of(&get_with(other)), "{headers:?}");
            }
        }
    }
}

/// The requests of a careful layer have nothing of their users.
#[tokio::test(start_paused = true)]
async fn a_fresh_response_is_coalesced_and_so_is_a_stale_one_by_the_careful_policy() {
    for (policy, control, expected) in [
        (Policy::rfc9111(), "max-age=60", 1),
        (Policy::rfc9111(), "max-age=0", 10),
        (Policy::default(), "max-age=0", 1),
    ] {
        let (inner, calls) = origin(move |_, _| reply(200, &[("cache-control", control)], ""));
        let service = silent_layer().policy(policy.coalesce_only()).layer(inner);
        crowd(&service, 10).await;
        assert_eq!(calls.count(), expected, "{control}");
    }
}

/// A caller that comes when the response has become stale begins a load of its own.
#[tokio::test(start_paused = true)]
async fn no_caller_joins_a_coalesced_body_that_is_no_longer_fresh() {
    let (inner, calls) = origin(|call, _| {
        let body = futures_util::stream::once(async move {
            sleep(5 * SECOND).await;
            Ok::<_, std::io::Error>(call.to_string())
        });
        reply(200, &[("cache-control", "public, max-age=2")], Body::from_stream(body))
    });
    let service = silent_layer().policy(Policy::rfc9111().coalesce_only()).layer(inner);
    let first = asking(&service, get("/"));
    sleep(SECOND).await;
    let second = asking(&service, get("/"));
    sleep(2 * SECOND).await;
    let third = asking(&service, get("/"));
    let answers = all([first, second, third]).await;
    let bodies: Vec<_> = answers.iter().map(Answer::text).collect();
    assert_eq!((bodies, calls.count()), (vec!["1", "1", "2"], 2));
}
