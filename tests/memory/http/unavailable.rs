//! A service that is unavailable is left alone, where no stale answer stands in for it.

use bellwether::layer::InnerServiceError;
use http::HeaderValue;
use tokio::time::sleep_until;

use super::prelude::*;

/// Returns a process over a backend, with a rule for what follows a failure.
fn ruled(backend: &MemoryBackend, rule: Option<AfterFailure>) -> BellwetherLayer<Http> {
    let cache = http_cache(backend.clone(), "bellwether").after_failure(move |_| rule);
    http_layer(cache.build().unwrap())
}

/// The longest first pause.
const FIRST_PAUSE: Duration = Duration::from_millis(100);

/// Returns the answer of an unavailable service to one user.
fn refusal(status: u16) -> Response<Body> {
    let answer = Response::builder().status(status).header("set-cookie", "session=1");
    answer.body(Body::from("refused")).unwrap()
}

/// Returns two processes of one service.
fn processes(
    inner: &Inner,
    set: impl Fn(BellwetherLayer<Http>) -> BellwetherLayer<Http>,
) -> [Layered; 2] {
    let backend = MemoryBackend::new();
    [(), ()].map(|()| set(http_layer(cache(&backend))).layer(inner.clone()))
}

fn as_it_is(layer: BellwetherLayer<Http>) -> BellwetherLayer<Http> {
    layer
}

fn assert_of_layer(answer: &Answer, retry_after: &str) {
    assert_eq!((answer.status, answer.text()), (StatusCode::SERVICE_UNAVAILABLE, ""));
    assert_eq!(answer.headers["retry-after"], retry_after);
    assert_eq!(answer.headers["cache-control"], "no-store");
    // Nothing of the answer to another user.
    assert_eq!(answer.headers.len(), 2, "{:?}", answer.headers);
}

/// Each caller that waited sent its own request to the service that was overloaded.
#[tokio::test(start_paused = true)]
async fn five_hundred_requests_are_one_call_of_an_unavailable_service() {
    for status in [502, 503, 504] {
        let (inner, calls) = origin(move |_, _| refusal(status));
        let services = processes(&inner, as_it_is);
        for services in [&services[..1], &services] {
            let before = calls.count();
            let answers = ask_all(services, (0..500).map(|_| get("/"))).await;
            let (own, others): (Vec<_>, _) =
                answers.iter().partition(|answer| answer.text() == "refused");
            assert_eq!((calls.count() - before, own.len()), (1, 1));
            assert_eq!(own[0].status, status);
            assert_eq!(own[0].headers["set-cookie"], "session=1");
            others.into_iter().for_each(|answer| assert_of_layer(answer, "1"));
            sleep(SECOND).await;
        }
    }
}

/// One failure of many services is followed by a success.
#[tokio::test(start_paused = true)]
async fn the_first_failure_may_be_followed_by_a_call() {
    for status in [502, 503, 504] {
        let (inner, calls) = origin(move |_, _| refusal(status));
        let (first, longest) = (SECOND, 5 * SECOND);
        let rule = AfterFailure::BackOffFromSecond { first, longest };
        let backend = MemoryBackend::new();
        let services = [(), ()].map(|()| ruled(&backend, Some(rule)).layer(inner.clone()));
        for round in 1..=2 {
            let answers = ask_all(&services, (0..500).map(|_| get("/"))).await;
            assert_eq!(calls.count(), round);
            let others: Vec<_> =
                answers.iter().filter(|answer| answer.text() != "refused").collect();
            assert_eq!(others.len(), 499);
            for answer in others {
                let pauses = answer.headers.contains_key("retry-after");
                let expected = if round == 1 { (status, "", false) } else { (503, "", true) };
                assert_eq!((answer.status.as_u16(), answer.text(), pauses), expected);
            }
        }
        // The other process knows of both.
        sleep(first / 4).await;
        ask_all(&services, [get("/"), get("/")]).await;
        assert_eq!(calls.count(), 2);
        sleep(first).await;
        ask_all(&services, [get("/"), get("/")]).await;
        assert_eq!(calls.count(), 3);
    }
}

/// The policy of the cache was not asked about a `500`. It sees the status, and so does each caller
/// in both processes.
#[tokio::test(start_paused = true)]
async fn a_policy_for_failures_knows_the_status() {
    let (inner, calls) = origin(|_, _| refusal(500));
    let backend = MemoryBackend::new();
    let services = [(), ()].map(|()| {
        let cache = http_cache(backend.clone(), "bellwether").after_failure(|error| {
            match error.load_ref::<InnerServiceError>()?.status() {
                StatusCode::INTERNAL_SERVER_ERROR => Some(AfterFailure::RetryAfter(SECOND)),
                _ => None,
            }
        });
        let layer = http_layer(cache.build().unwrap()).on_error(|error| {
            let failure = error.load_ref::<InnerServiceError>();
            let mut answer = Response::new(Bytes::from_static(b"of the layer"));
            *answer.status_mut() = failure.map_or(StatusCode::IM_A_TEAPOT, |it| it.status());
            answer
        });
        layer.layer(inner.clone())
    });
    // The first answer is for its caller. The key backs off from then on, in both processes.
    let answers = ask_all(&services, (0..100).map(|_| get("/"))).await;
    let count = |text| answers.iter().filter(|answer| answer.text() == text).count();
    assert_eq!((count("refused"), count("of the layer"), calls.count()), (1, 99, 1));
    assert!(answers.iter().all(|answer| answer.status == StatusCode::INTERNAL_SERVER_ERROR));
}

/// By the rule of the cache, the next caller loads. So the callers that wait do.
#[tokio::test(start_paused = true)]
async fn a_failure_that_is_no_rule_for_others_stays_with_its_caller() {
    for status in [500, 503] {
        let (inner, calls) = origin(move |_, _| refusal(status));
        let layer = ruled(&MemoryBackend::new(), Some(AfterFailure::LoadAgain));
        let services = [layer.layer(inner)];
        for answer in ask_all(&services, (0..20).map(|_| get("/"))).await {
            assert_eq!((answer.status.as_u16(), answer.text()), (status, "refused"));
        }
        assert_eq!(calls.count(), 20);
    }
}

/// A `500` may be due to its request.
#[tokio::test(start_paused = true)]
async fn each_caller_meets_an_internal_error_itself() {
    let (inner, calls) = origin(|_, _| refusal(500));
    let services = processes(&inner, as_it_is);
    for answer in ask_all(&services, (0..20).map(|_| get("/"))).await {
        assert_eq!((answer.status.as_u16(), answer.text()), (500, "refused"));
    }
    assert_eq!(calls.count(), 20);
}

/// Returns a service that is unavailable while the flag is set.
fn switched() -> (Inner, Calls, Arc<AtomicBool>) {
    let is_down = Arc::new(AtomicBool::new(true));
    let seen = is_down.clone();
    let (inner, calls) = origin(move |_, _| match seen.load(Ordering::SeqCst) {
        true => refusal(503),
        false => {
            Response::builder().header("cache-control", "max-age=1").body("well".into()).unwrap()
        }
    });
    (inner, calls, is_down)
}

#[tokio::test(start_paused = true)]
async fn pauses_grow_with_failures_in_a_row_and_the_first_success_ends_them() {
    let (inner, calls, is_down) = switched();
    let services = processes(&inner, as_it_is);
    for _ in 0..2 {
        is_down.store(true, Ordering::SeqCst);
        let (begun, before) = (Instant::now(), calls.count());
        ask(&services[0], get("/")).await;
        sleep(FIRST_PAUSE).await;
        ask(&services[1], get("/")).await;
        assert_eq!(calls.count(), before + 2, "the first pause is short");
        while begun.elapsed() < 20 * SECOND {
            ask_all(&services, [get("/"), get("/")]).await;
            sleep(DELAY / 5).await;
        }
        let made = calls.count() - before;
        assert!((20..45).contains(&made), "{made} calls in 20 s");

        is_down.store(false, Ordering::SeqCst);
        let down = Instant::now();
        while ask(&services[0], get("/")).await.status != StatusCode::OK {
            sleep(DELAY / 5).await;
        }
        assert!(down.elapsed() <= SECOND + 2 * DELAY, "{:?}", down.elapsed());
        let answers = ask_all(&services, (0..20).map(|_| get("/"))).await;
        assert!(answers.iter().all(|answer| answer.text() == "well"));
        sleep(SECOND).await;
    }
}

#[tokio::test(start_paused = true)]
async fn the_service_is_not_called_before_its_retry_after() {
    let (inner, calls) = origin(|call, _| match call {
        1 => {
            let mut answer = refusal(503);
            answer.headers_mut().insert("retry-after", "2".parse().unwrap());
            answer
        }
        _ => Response::new(Body::from("well")),
    });
    let services = processes(&inner, as_it_is);
    let begun = Instant::now();
    let answers = ask_all(&services, (0..500).map(|_| get("/"))).await;
    assert_eq!(answers.iter().filter(|answer| answer.text() == "refused").count(), 1);
    let others = answers.iter().filter(|answer| answer.text() != "refused");
    others.for_each(|answer| assert_of_layer(answer, "2"));
    for (at, left) in [(500, "2"), (1000, "2"), (1200, "1"), (2000, "1")] {
        sleep_until(begun + Duration::from_millis(at)).await;
        for answer in ask_all(&services, (0..4).map(|_| get("/"))).await {
            assert_of_layer(&answer, left);
        }
    }
    assert_eq!(calls.count(), 1);
    sleep_until(begun + 2 * SECOND + DELAY).await;
    assert_eq!(ask(&services[1], get("/")).await.text(), "well");
    assert_eq!(ask(&services[0], get("/")).await.text(), "well");
    assert_eq!(calls.count(), 2);
}

/// Each process does without the others what all of them do together.
#[tokio::test(start_paused = true)]
async fn a_process_without_its_backend_leaves_the_service_alone() {
    let (inner, calls) = origin(|_, _| refusal(503));
    let faulty = Faulty::new(|_| Some(Fault::Refuse));
    let cache = http_cache(faulty, "shop").build().unwrap();
    let service = http_layer(cache).layer(inner);
    for round in 1..=2 {
        let answers = ask_all(std::slice::from_ref(&service), (0..500).map(|_| get("/"))).await;
        assert_eq!(answers.iter().filter(|answer| answer.text() == "refused").count(), 1);
        let others = answers.iter().filter(|answer| answer.text() != "refused");
        others.for_each(|answer| assert_of_layer(answer, "1"));
        assert_of_layer(&ask(&service, get("/")).await, "1");
        assert_eq!(calls.count(), round);
        sleep(FIRST_PAUSE).await;
    }
}

#[tokio::test(start_paused = true)]
async fn requests_that_pass_begin_and_meet_no_pause() {
    let (inner, calls) = origin(|_, _| refusal(503));
    let services = processes(&inner, as_it_is);
    let own = |at: usize| match at {
        0 => Request::post("/").body(Body::empty()).unwrap(),
        1 => get_with(&[("cookie", "session=1")]),
        2 => get_with(&[("authorization", "Basic YTpi")]),
        _ => get_with(&[("cache-control", "no-cache")]),
    };
    for round in 0..2 {
        for at in 0..4 {
            assert_eq!(ask(&services[at % 2], own(at)).await.text(), "refused");
            assert_eq!(calls.count(), 5 * round + at + 1);
        }
        assert_eq!(ask(&services[0], get("/")).await.text(), "refused");
        // The other process begins while the key backs off.
        assert_of_layer(&ask(&services[1], get("/")).await, "1");
    }
}

/// Otherwise one user could shut the others off. A rule of the cache cannot know of the user.
#[tokio::test(start_paused = true)]
async fn a_failure_for_one_user_concerns_no_other() {
    let rules = [None, Some(AfterFailure::BACK_OFF), Some(AfterFailure::LoadAgain)];
    for (rule, status) in rules.into_iter().flat_map(|rule| [(rule, 500), (rule, 503)]) {
        let (inner, calls) =
            origin(move |_, request| match request.headers().contains_key("authorization") {
                true => {
                    let mut answer = refusal(status);
                    answer.headers_mut().insert("retry-after", HeaderValue::from_static("30"));
                    answer
                }
                false => Response::new(Body::from("well")),
            });
        let backend = MemoryBackend::new();
        let services =
            [(), ()].map(|()| ruled(&backend, rule).policy(Policy::rfc9111()).layer(inner.clone()));
        let refused = ask(&services[0], get_with(&[("authorization", "Basic YTpi")])).await;
        assert_eq!(refused.text(), "refused");
        for (service, count) in services.iter().zip(2..) {
            assert_eq!(ask(service, get("/")).await.text(), "well");
            assert_eq!(calls.count(), count.min(2));
        }
    }
}

/// The failures of a user's requests counted as good answers, so the key never backed off.
#[tokio::test(start_paused = true)]
async fn a_failure_for_one_user_ends_no_row_of_failures() {
    let rule = AfterFailure::BackOffFromSecond { first: 10 * SECOND, longest: 10 * SECOND };
    let (inner, calls) = origin(|_, _| refusal(503));
    let backend = MemoryBackend::new();
    let services = [(), ()]
        .map(|()| ruled(&backend, Some(rule)).policy(Policy::rfc9111()).layer(inner.clone()));
    for at in 0..5 {
        ask(&services[at % 2], get("/")).await;
        ask(&services[at % 2], get_with(&[("authorization", "Basic YTpi")])).await;
    }
    assert_eq!(calls.count(), 3);
}

#[tokio::test(start_paused = true)]
async fn the_cache_has_the_rule_for_unavailable_services() {
    for (rule, kept) in [
        (AfterFailure::LoadAgain, Duration::ZERO),
        (AfterFailure::RetryAfter(5 * SECOND), 5 * SECOND),
    ] {
        let (inner, calls) = origin(|_, _| refusal(503));
        let service = ruled(&MemoryBackend::new(), Some(rule)).layer(inner);
        ask(&service, get("/")).await;
        let begun = Instant::now();
        ask(&service, get("/")).await;
        assert_eq!(calls.count() == 2, kept.is_zero(), "{rule:?}");
        sleep_until(begun + kept).await;
        ask(&service, get("/")).await;
        assert_eq!(calls.count(), if kept.is_zero() { 3 } else { 2 }, "{rule:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_answer_in_a_pause_says_why() {
    let (inner, _) = origin(|_, _| refusal(503));
    let services = processes(&inner, BellwetherLayer::cache_status);
    ask(&services[0], get("/")).await;
    for service in &services {
        let answer = ask(service, get("/")).await;
        assert_eq!(answer.headers["cache-status"], "bellwether; detail=backing-off");
    }
}
