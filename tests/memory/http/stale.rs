//! Stale answers: while they are refreshed, and in place of a failure.

use std::{convert::Infallible, io};

use bellwether::error::BackendError;
use futures_util::FutureExt;
use testkit::interceptor::{self, Hook, Interceptor, Op, Operation};
use tokio::{sync::RwLock, time::sleep_until};
use tower_test::mock;

use super::{
    bodies::{data, fed},
    prelude::*,
};

/// Returns two processes of one service.
fn two(inner: &Inner) -> [Layered; 2] {
    processes(inner, |layer| layer)
}

/// Returns a layer whose responses are good for ten seconds, and stale for a minute.
fn stale_for_a_minute() -> BellwetherLayer<Http> {
    layer_of(builder().stale_while_revalidate(60 * SECOND)).default_lifetime(10 * SECOND)
}

fn age(answer: &Answer) -> &str {
    answer.headers["age"].to_str().unwrap()
}

/// Asks, and returns whether the answer was there at once.
async fn at_once(service: &Layered) -> bool {
    let asked = Instant::now();
    ask(service, get("/")).await;
    asked.elapsed().is_zero()
}

#[tokio::test(start_paused = true)]
async fn no_caller_waits_while_one_process_refreshes() {
    let (inner, calls) =
        with_headers(&[("cache-control", "max-age=10, stale-while-revalidate=20")]);
    let services = two(&inner);
    ask(&services[0], get("/")).await;
    for window in 1..4 {
        sleep(11 * SECOND).await;
        let asked = Instant::now();
        for answer in ask_all(&services, (0..50).map(|_| get("/"))).await {
            assert_eq!((answer.text(), age(&answer)), (&*window.to_string(), "11"));
        }
        assert!(asked.elapsed().is_zero());
        sleep(2 * DELAY).await;
        assert_eq!(calls.count(), window + 1);
        let fresh = ask(&services[1], get("/")).await;
        assert_eq!((fresh.text(), age(&fresh)), (&*(window + 1).to_string(), "0"));
    }
}

#[tokio::test(start_paused = true)]
async fn the_answer_and_the_cache_decide_how_long_an_answer_is_stale() {
    let of_cache: Set = |layer| layer;
    let capped: Set = |layer| layer.max_stale(3 * SECOND);
    let table: [(&str, Set, u32); 14] = [
        ("max-age=5", of_cache, 4),
        ("max-age=5", capped, 3),
        ("max-age=5, stale-while-revalidate=7", of_cache, 7),
        ("max-age=5, stale-while-revalidate=7", capped, 3),
        ("max-age=5, stale-while-revalidate=0", of_cache, 0),
        ("max-age=5, stale-while-revalidate", of_cache, 0),
        ("max-age=5, stale-while-revalidate=soon, stale-while-revalidate=9", of_cache, 0),
        ("max-age=5, stale-while-revalidate=7, Stale-While-Revalidate=3", of_cache, 3),
        ("max-age=5, stale-while-revalidate=\"7\"", of_cache, 7),
        ("max-age=5, stale-while-revalidate=7, must-revalidate", of_cache, 0),
        ("max-age=5, proxy-revalidate", of_cache, 0),
        ("s-maxage=5", of_cache, 0),
        ("s-maxage=5, stale-while-revalidate=7", of_cache, 7),
        ("max-age=5, stale-while-revalidate=7", |layer| layer.max_stale(Duration::ZERO), 0),
    ];
    let targeted: [(&str, Set, u32); 4] = [
        ("max-age=5", of_cache, 4),
        ("max-age=5, stale-while-revalidate=7", of_cache, 7),
        ("max-age=5, must-revalidate", of_cache, 0),
        ("s-maxage=5", of_cache, 0),
    ];
    let table = table.map(|row| ("cache-control", row)).into_iter();
    let table = table.chain(targeted.map(|row| ("cdn-cache-control", row)));
    for (field, (directives, set, stale)) in table {
        let (inner, calls) = with_headers(&[(field, directives)]);
        let cache = builder().stale_while_revalidate(4 * SECOND);
        let service = set(BellwetherLayer::http(cache.build().unwrap())).layer(inner);
        for is_at_once in [true, false] {
            ask(&service, get("/")).await;
            let before = calls.count();
            // The last moment of the window, and its end.
            let left = if is_at_once { DELAY / 5 } else { Duration::ZERO };
            sleep((5 + stale) * SECOND - left).await;
            assert_eq!(at_once(&service).await, is_at_once, "{field}: {directives}");
            sleep(2 * DELAY).await;
            let is_loaded = stale > 0 || !is_at_once;
            assert_eq!(calls.count() > before, is_loaded, "{field}: {directives}");
            sleep(100 * SECOND).await;
        }
    }
}

/// Returns an origin whose first answer is good for ten seconds, and may stand in for failures for
/// a minute more.
fn failing(answer: impl Fn() -> Response<Body> + Clone + Send + Sync + 'static) -> (Inner, Calls) {
    origin(move |call, _| match call {
        1 => reply(200, &[("cache-control", "max-age=10, stale-if-error=60")], "good"),
        _ => answer(),
    })
}

#[tokio::test(start_paused = true)]
async fn a_stale_answer_stands_in_for_a_server_that_fails() {
    for status in [500, 502, 503, 504, 501, 404] {
        let (inner, calls) = failing(move || reply(status, &[], "failed"));
        let services = two(&inner);
        ask(&services[0], get("/")).await;
        sleep(11 * SECOND).await;
        let answers = ask_all(&services, (0..20).map(|_| get("/"))).await;
        if [501, 404].contains(&status) {
            assert!(answers.iter().all(|answer| answer.status.as_u16() == status));
            continue;
        }
        for answer in &answers {
            assert_eq!((answer.status, answer.text(), age(answer)), (StatusCode::OK, "good", "11"));
        }
        assert_eq!(calls.count(), 2, "both processes hear of one failure");
        // The answer goes to its caller when the window is over.
        sleep(60 * SECOND).await;
        let answers = ask_all(&services, (0..4).map(|_| get("/"))).await;
        assert!(answers.iter().all(|answer| answer.status.as_u16() == status));
    }
}

#[tokio::test(start_paused = true)]
async fn a_stale_answer_stands_in_for_a_body_that_fails_and_for_a_panic() {
    let broken = || {
        let frames = [Ok(Bytes::from("half")), Err(io::Error::other("cut"))];
        Response::new(Body::from_stream(futures_util::stream::iter(frames)))
    };
    let cacheable = move || {
        let mut response = broken();
        response.headers_mut().insert("cache-control", "max-age=10".parse().unwrap());
        response
    };
    let panics = || panic!("a handler");
    // A panic takes no time, so the other process may ask after it. A caller that comes to a broken
    // body waits for the end of one more load.
    for ((inner, calls), most) in [(failing(cacheable), 4), (failing(panics), 3)] {
        let services = two(&inner);
        ask(&services[0], get("/")).await;
        sleep(11 * SECOND).await;
        for answer in ask_all(&services, (0..6).map(|_| get("/"))).await {
            assert_eq!((answer.status, answer.text()), (StatusCode::OK, "good"));
        }
        assert!((2..=most).contains(&calls.count()), "{} calls", calls.count());
    }
}

/// Holds the end of each failed load while it is locked.
#[derive(Clone, Default)]
struct Gate(Arc<RwLock<()>>);

impl Hook<MemoryBackend> for Gate {
    async fn around(
        &self,
        backend: &MemoryBackend,
        operation: Operation,
    ) -> Result<interceptor::Answer, BackendError> {
        if operation.op() == Op::Fail {
            drop(self.0.read().await);
        }
        operation.perform(backend).await
    }
}

/// A body broke off, and its failure had not landed. A caller that came to the body then got a
/// `502`, and those that waited for the failure got the stale answer.
#[tokio::test(start_paused = true)]
async fn a_caller_that_comes_to_a_broken_body_is_answered_as_those_that_wait() {
    const KEPT: &[(&str, &str)] = &[("cache-control", "max-age=10, stale-if-error=60")];
    const UNKEPT: &[(&str, &str)] = &[("cache-control", "max-age=10, stale-if-error=0")];
    for (headers, is_kept) in [(KEPT, true), (UNKEPT, false)] {
        let (inner, mut feeds) = fed(headers);
        let gate = Gate::default();
        let backend = Interceptor { inner: MemoryBackend::new(), hook: gate.clone() };
        let cache = http_cache(backend, "shop").build().unwrap();
        let service = BellwetherLayer::http(cache).layer(inner);
        let first = asking(&service, get("/"));
        feeds.recv().await.unwrap().send(data("good")).unwrap();
        first.await.unwrap();
        sleep(11 * SECOND).await;
        let _leader = tokio::spawn(service.clone().oneshot(get("/")));
        let feed = feeds.recv().await.unwrap();
        // It joins before the head, and looks for it when the body has broken off.
        let mut early = Box::pin(ask(&service, get("/")));
        assert!((&mut early).now_or_never().is_none());
        sleep(2 * DELAY).await;
        let held = gate.0.write().await;
        feed.send(Err(io::Error::other("cut"))).unwrap();
        sleep(DELAY).await;
        assert!((&mut early).now_or_never().is_none());
        let late = asking(&service, get("/"));
        sleep(DELAY).await;
        assert!(!late.is_finished());
        drop(held);
        // The body that broke off was for others, so they share the next one.
        let next = async {
            if !is_kept {
                feeds.recv().await.unwrap().send(data("good")).unwrap();
            }
        };
        let (early, late, ()) = tokio::join!(early, late, next);
        for answer in [early, late.unwrap()] {
            assert_eq!((answer.status.as_u16(), answer.text()), (200, "good"));
        }
        assert!(feeds.try_recv().is_err(), "a further call");
    }
}

/// Returns the answer of a service that is down for so many seconds.
fn down(seconds: &str) -> Response<Body> {
    reply(503, &[("retry-after", seconds)], "down")
}

#[tokio::test(start_paused = true)]
async fn the_service_is_left_alone_for_as_long_as_it_asks() {
    for (asked, kept) in [("20", 20), ("7200", 60)] {
        let (inner, calls) = failing(move || down(asked));
        let builder = builder().after_failure(|_| Some(AfterFailure::BACK_OFF));
        let service = layer_of(builder.stale_if_error(3600 * SECOND)).layer(inner);
        ask(&service, get("/")).await;
        sleep(11 * SECOND).await;
        assert_eq!(ask(&service, get("/")).await.text(), "good");
        let failed = Instant::now();
        while failed.elapsed() < kept * SECOND - DELAY {
            assert!(at_once(&service).await, "the key backs off");
            sleep(DELAY).await;
        }
        assert_eq!(calls.count(), 2);
        sleep_until(failed + kept * SECOND + DELAY).await;
        ask(&service, get("/")).await;
        assert_eq!(calls.count(), 3, "the pause is over");
    }
}

/// Without a setting, an answer that fails goes to its caller alone, and the next caller asks.
#[tokio::test(start_paused = true)]
async fn callers_are_told_how_long_a_key_backs_off() {
    let (inner, calls) = origin(|_, _| down("20"));
    let backend = MemoryBackend::new();
    let services = [(), ()].map(|()| {
        let cache = http_cache(backend.clone(), "bellwether")
            .after_failure(|_| Some(AfterFailure::BACK_OFF));
        BellwetherLayer::http(cache.build().unwrap()).layer(inner.clone())
    });
    let own = ask(&services[0], get("/")).await;
    assert_eq!((own.text(), &own.headers["retry-after"]), ("down", &"20".parse().unwrap()));
    sleep(5 * SECOND + DELAY).await;
    for answer in ask_all(&services, (0..6).map(|_| get("/"))).await {
        assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!((answer.text(), &answer.headers["retry-after"]), ("", &"15".parse().unwrap()));
    }
    assert_eq!(calls.count(), 1);
    sleep(15 * SECOND).await;
    assert_eq!(ask(&services[1], get("/")).await.text(), "down");
    assert_eq!(calls.count(), 2);
}

/// The leader got the error of the service itself, while its followers got the stale answer.
#[tokio::test(start_paused = true)]
async fn a_stale_answer_stands_in_for_an_error_of_the_service() {
    let (inner, mut handle) = mock::pair::<Request<Body>, Response<Body>>();
    let layer = layer_of(builder().stale_if_error(60 * SECOND));
    let service = layer.default_lifetime(10 * SECOND).layer(inner);
    let first = tokio::spawn(service.clone().oneshot(get("/")));
    handle.next_request().await.unwrap().1.send_response(Response::new(Body::from("good")));
    first.await.unwrap().unwrap();
    sleep(11 * SECOND).await;
    let asked: Vec<_> = (0..4).map(|_| tokio::spawn(service.clone().oneshot(get("/")))).collect();
    handle.next_request().await.unwrap().1.send_error("no connection");
    for asked in asked {
        let answer = Answer::of(asked.await.unwrap().unwrap()).await;
        assert_eq!((answer.text(), age(&answer)), ("good", "11"));
    }
}

/// The request of a caller went away with its caller, so each refresh ended at once.
#[tokio::test(start_paused = true)]
async fn a_refresh_makes_a_clone_of_the_service_ready() {
    let (inner, mut handle) = mock::pair::<Request<Body>, Response<Body>>();
    let service = stale_for_a_minute().layer(inner);
    let first = tokio::spawn(service.clone().oneshot(get("/")));
    handle.next_request().await.unwrap().1.send_response(Response::new(Body::from("1")));
    first.await.unwrap().unwrap();
    sleep(11 * SECOND).await;

    // The inner service is busy. The callers do not wait for it, and the refresh does.
    handle.allow(0);
    for _ in 0..3 {
        let stale = service.clone().oneshot(get("/")).await.unwrap();
        assert_eq!(Answer::of(stale).await.text(), "1");
    }
    assert!(timeout(SECOND, handle.next_request()).await.is_err());
    handle.allow(1);
    let (request, answer) = handle.next_request().await.unwrap();
    assert_eq!(request.uri(), "/");
    answer.send_response(Response::new(Body::from("2")));
    sleep(DELAY).await;
    let fresh = service.clone().oneshot(get("/")).await.unwrap();
    assert_eq!(Answer::of(fresh).await.text(), "2");
    assert!(timeout(SECOND, handle.next_request()).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn only_a_request_that_takes_part_drives_a_refresh() {
    let seen: Arc<Mutex<Vec<Request<Body>>>> = Arc::default();
    let log = seen.clone();
    let inner = service_fn(move |request: Request<Body>| {
        log.lock().unwrap().push(request);
        async { Ok::<_, Infallible>(Response::new(Body::from("answer"))) }
    });
    let layer = stale_for_a_minute().ignore_cookies(["theme"]);
    let service = layer.layer(BoxCloneSyncService::new(inner));
    ask(&service, get("/")).await;
    sleep(11 * SECOND).await;
    let own = [
        ("authorization", "Basic YTpi"),
        ("cookie", "session=1"),
        ("if-something-new", "1"),
        ("cache-control", "no-cache"),
    ];
    for header in own {
        seen.lock().unwrap().clear();
        ask(&service, get_with(&[header])).await;
        sleep(DELAY).await;
        assert_eq!(seen.lock().unwrap().len(), 1, "{header:?} passes, and refreshes nothing");
    }
    seen.lock().unwrap().clear();
    assert_eq!(age(&ask(&service, get_with(&[("cookie", "theme=dark")])).await), "11");
    sleep(DELAY).await;
    let seen = seen.lock().unwrap();
    assert_eq!((seen.len(), seen[0].method().as_str(), seen[0].uri().path()), (1, "GET", "/"));
    assert!(
        own.iter().all(|(name, _)| *name == "cookie" || !seen[0].headers().contains_key(*name))
    );
}

/// A refresh whose answer could not be shared was followed by the next one at once.
#[tokio::test(start_paused = true)]
async fn a_refresh_without_a_value_is_not_repeated_at_once() {
    for status in [503, 501] {
        let window = "max-age=10, stale-while-revalidate=60";
        let (inner, calls) = origin(move |call, _| match call {
            1 => reply(200, &[("cache-control", window)], "1"),
            _ => reply(status, &[("set-cookie", "a=b")], call.to_string()),
        });
        let rule = AfterFailure::RetryAfter(SECOND);
        let layer = layer_of(builder().after_failure(move |_| Some(rule)));
        let service = layer.layer(inner);
        ask(&service, get("/")).await;
        sleep(11 * SECOND).await;
        let begun = Instant::now();
        while begun.elapsed() < 900 * MS {
            assert_eq!(ask(&service, get("/")).await.text(), "1", "{status}");
            sleep(DELAY / 5).await;
        }
        assert_eq!(calls.count(), 2, "{status}");
        sleep_until(begun + 2 * SECOND).await;
        ask(&service, get("/")).await;
        sleep(2 * DELAY).await;
        assert_eq!(calls.count(), 3, "{status}");
    }
}

/// A login wall, or a page that became private let the old response be served for its
/// whole window. RFC 9111, section 4.3.3.
#[tokio::test(start_paused = true)]
async fn an_answer_that_is_no_failure_ends_the_stale_response() {
    type Head = (u16, Lines<'static>);
    const ENDS: &[Head] = &[
        (200, &[("cache-control", "private")]),
        (200, &[("cache-control", "no-store")]),
        (200, &[("cache-control", "no-cache")]),
        (200, &[("cache-control", "max-age=0")]),
        (200, &[("set-cookie", "session=1")]),
        (200, &[("vary", "*")]),
        (200, &[("x-large", "1"), ("cache-control", "max-age=60")]),
        (204, &[("cache-control", "no-store")]),
        (206, &[("content-range", "bytes 0-0/1")]),
        (301, &[("location", "/login"), ("cache-control", "no-store")]),
        (302, &[("location", "/login")]),
        (303, &[("location", "/login")]),
        (304, &[("cache-control", "private")]),
        (304, &[("cache-control", "no-store")]),
        (307, &[("location", "/login")]),
        (308, &[("location", "/"), ("cache-control", "max-age=60")]),
        (404, &[("cache-control", "no-store")]),
        (410, &[("cache-control", "private")]),
    ];
    // They may speak of their caller alone.
    const STAYS: &[Head] = &[
        (400, &[("cache-control", "no-store")]),
        (401, &[("www-authenticate", "Basic")]),
        (403, &[("cache-control", "no-store")]),
        (451, &[("cache-control", "no-store")]),
        (408, &[]),
        (429, &[("retry-after", "1")]),
        (500, &[]),
        (501, &[("cache-control", "no-cache")]),
        (502, &[]),
        (503, &[]),
        (504, &[]),
    ];
    for window in ["stale-while-revalidate=600", "stale-if-error=600"] {
        for policy in [Policy::default(), Policy::rfc9111()] {
            let heads = ENDS.iter().map(|head| (head, true));
            for ((status, lines), is_end) in heads.chain(STAYS.iter().map(|head| (head, false))) {
                let (inner, _) = origin(move |call, _| {
                    let is_large = call == 2 && lines.iter().any(|(name, _)| *name == "x-large");
                    let body = if is_large { "2".repeat(300) } else { call.to_string() };
                    // Its length is not told.
                    let body = futures_util::stream::iter([Ok::<_, Infallible>(body)]);
                    let body = Body::from_stream(body);
                    let control = format!("max-age=10, {window}");
                    match call {
                        1 => reply(200, &[("cache-control", &control), ("etag", "\"v\"")], body),
                        // Once the stale response has ended, it stands in for nothing.
                        2 => reply(*status, lines, body),
                        _ => reply(503, &[], body),
                    }
                });
                let backend = MemoryBackend::new();
                let services = [(), ()].map(|()| {
                    let cache = http_cache(backend.clone(), "bellwether").max_value(200);
                    let layer = BellwetherLayer::http(cache.build().unwrap());
                    layer.policy(policy.clone()).layer(inner.clone())
                });
                assert_eq!(ask(&services[0], get("/")).await.text(), "1");
                sleep(11 * SECOND).await;
                // Drives the refresh, or waits for the service.
                ask(&services[0], get("/")).await;
                sleep(2 * SECOND).await;
                for service in &services {
                    let later = ask(service, get("/")).await;
                    assert_eq!(later.text() != "1", is_end, "{window} {status} {lines:?}");
                }
            }
        }
    }
}

/// A caller with any `Authorization` ended what was to stand in for failures for all others.
#[tokio::test(start_paused = true)]
async fn an_answer_to_one_user_ends_nothing_for_the_others() {
    for status in [200, 304, 401] {
        let (inner, _) = origin(move |call, _| match call {
            1 => {
                let control = ("cache-control", "max-age=10, stale-if-error=600");
                reply(200, &[control, ("etag", "\"v\"")], "for all")
            }
            2 => reply(status, &[("cache-control", "max-age=10")], "for one"),
            _ => reply(503, &[], ""),
        });
        let service = silent_layer().policy(Policy::rfc9111()).layer(inner);
        ask(&service, get("/")).await;
        sleep(11 * SECOND).await;
        ask(&service, request("GET", "/", &[("authorization", "Basic eDp5")])).await;
        assert_eq!(ask(&service, get("/")).await.text(), "for all", "{status}");
    }
}

/// With `rfc9111()` a failure that names a lifetime took the place of the response.
#[tokio::test(start_paused = true)]
async fn a_failure_with_a_lifetime_replaces_no_stale_response() {
    let (inner, _) = origin(|call, _| match call {
        1 => reply(200, &[("cache-control", "max-age=60, stale-if-error=600")], "good"),
        _ => reply(503, &[("cache-control", "max-age=5")], "bad"),
    });
    let service = silent_layer().policy(Policy::rfc9111()).layer(inner);
    ask(&service, get("/")).await;
    for _ in 0..3 {
        sleep(61 * SECOND).await;
        assert_eq!(ask(&service, get("/")).await.text(), "good");
    }
}
