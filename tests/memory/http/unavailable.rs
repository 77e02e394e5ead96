//! A service that is unavailable is left alone, where a rule of the cache says so, and no stale
//! answer stands in for it.

use bellwether::layer::InnerServiceError;
use tokio::time::sleep_until;

use super::prelude::*;

/// Returns two processes of one service, with a rule for what follows a failure.
fn ruled(
    inner: &Inner,
    rule: Option<AfterFailure>,
    set: impl Fn(BellwetherLayer<Http>) -> BellwetherLayer<Http>,
) -> [Layered; 2] {
    let backend = MemoryBackend::new();
    [(), ()].map(|()| {
        let cache = http_cache(backend.clone(), "bellwether").after_failure(move |_| rule);
        set(http_layer(cache.build().unwrap())).layer(inner.clone())
    })
}

/// The longest first pause.
const FIRST_PAUSE: Duration = Duration::from_millis(100);

/// The rule for a service whose failures are for all callers.
const LEFT_ALONE: AfterFailure = AfterFailure::BackOff { first: FIRST_PAUSE, longest: SECOND };

/// Returns two processes of one service that is left alone.
fn left_alone(inner: &Inner) -> [Layered; 2] {
    ruled(inner, Some(LEFT_ALONE), |layer| layer)
}

/// Returns the answer of an unavailable service to one user.
fn refusal(status: u16) -> Response<Body> {
    reply(status, &[("set-cookie", "session=1")], "refused")
}

/// Splits answers by whether the service or the layer has made them.
fn by_origin(answers: Vec<Answer>) -> (Vec<Answer>, Vec<Answer>) {
    answers.into_iter().partition(|answer| answer.text() == "refused")
}

fn assert_of_layer(answer: &Answer, retry_after: &str) {
    assert_eq!((answer.status, answer.text()), (StatusCode::SERVICE_UNAVAILABLE, ""));
    assert_eq!(answer.headers["retry-after"], retry_after);
    assert_eq!(answer.headers["cache-control"], "no-store");
    // Nothing of the answer to another user.
    assert_eq!(answer.headers.len(), 2, "{:?}", answer.headers);
}

async fn ask_500(services: &[Layered]) -> (Vec<Answer>, Vec<Answer>) {
    by_origin(ask_all(services, (0..500).map(|_| get("/"))).await)
}

/// Each caller that waited sent its own request to the service that was overloaded.
#[tokio::test(start_paused = true)]
async fn five_hundred_requests_are_one_call_of_an_unavailable_service() {
    for status in [502, 503, 504] {
        let (inner, calls) = origin(move |_, _| refusal(status));
        let services = left_alone(&inner);
        for services in [&services[..1], &services] {
            let before = calls.count();
            let (own, others) = ask_500(services).await;
            assert_eq!((calls.count() - before, own.len()), (1, 1));
            assert_eq!(own[0].status, status);
            assert_eq!(own[0].headers["set-cookie"], "session=1");
            others.iter().for_each(|answer| assert_of_layer(answer, "1"));
            sleep(SECOND).await;
        }
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
            *answer.status_mut() =
                failure.map_or(StatusCode::IM_A_TEAPOT, |failure| failure.status());
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

/// A `500` may be due to its request. By a rule of the cache, the next caller loads, and so do the
/// callers that wait.
#[tokio::test(start_paused = true)]
async fn a_failure_that_is_no_rule_for_others_stays_with_its_caller() {
    let again = Some(AfterFailure::LoadAgain);
    for (status, rule) in [(500, None), (500, again), (503, again)] {
        let (inner, calls) = origin(move |_, _| refusal(status));
        let services = ruled(&inner, rule, |layer| layer);
        for answer in ask_all(&services, (0..20).map(|_| get("/"))).await {
            assert_eq!((answer.status.as_u16(), answer.text()), (status, "refused"));
        }
        assert_eq!(calls.count(), 20);
    }
}

#[tokio::test(start_paused = true)]
async fn pauses_grow_with_failures_in_a_row_and_the_first_success_ends_them() {
    let is_down = Arc::new(AtomicBool::new(true));
    let seen = is_down.clone();
    let (inner, calls) = origin(move |_, _| {
        if seen.load(Ordering::SeqCst) {
            refusal(503)
        } else {
            reply(200, &[("cache-control", "max-age=1")], "well")
        }
    });
    let services = left_alone(&inner);
    for _ in 0..2 {
        is_down.store(true, Ordering::SeqCst);
        let begun = Instant::now();
        let before = calls.count();
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
        1 => reply(503, &[("set-cookie", "session=1"), ("retry-after", "2")], "refused"),
        _ => reply(200, &[], "well"),
    });
    let services = left_alone(&inner);
    let begun = Instant::now();
    let (own, others) = ask_500(&services).await;
    assert_eq!(own.len(), 1);
    others.iter().for_each(|answer| assert_of_layer(answer, "2"));
    for (at, left) in [(500, "2"), (1000, "2"), (1200, "1"), (2000, "1")] {
        sleep_until(begun + at * MS).await;
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
async fn a_retry_after_is_in_seconds_or_a_date_by_the_clock_of_the_service() {
    let sent = "Tue, 14 Nov 2023 22:13:20 GMT";
    let later = "Tue, 14 Nov 2023 22:13:29 GMT";
    let of_the_layer = "1";
    for (fields, expected) in [
        (&[][..], of_the_layer),
        (&[("retry-after", "7")], "7"),
        (&[("retry-after", "0")], of_the_layer),
        (&[("retry-after", "-7")], of_the_layer),
        (&[("retry-after", "soon")], of_the_layer),
        (&[("retry-after", "7"), ("retry-after", "7")], of_the_layer),
        (&[("retry-after", later), ("date", sent)], "9"),
        (&[("retry-after", sent), ("date", later)], of_the_layer),
        (&[("retry-after", later)], of_the_layer),
    ] {
        let headers = fields.to_vec();
        let [service, _] = left_alone(&origin(move |_, _| reply(503, &headers, "refused")).0);
        ask(&service, get("/")).await;
        let refused = ask(&service, get("/")).await;
        assert_eq!(refused.headers["retry-after"], expected, "{fields:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_process_without_its_backend_leaves_the_service_alone() {
    let (inner, calls) = origin(|_, _| refusal(503));
    let faulty = Faulty::new(|_| Some(Fault::Refuse));
    let cache = http_cache(faulty, "shop").after_failure(|_| Some(LEFT_ALONE)).build();
    let service = http_layer(cache.unwrap()).layer(inner);
    for round in 1..=2 {
        let (own, others) = ask_500(std::slice::from_ref(&service)).await;
        assert_eq!(own.len(), 1);
        others.iter().for_each(|answer| assert_of_layer(answer, "1"));
        assert_of_layer(&ask(&service, get("/")).await, "1");
        assert_eq!(calls.count(), round);
        sleep(FIRST_PAUSE).await;
    }
}

#[tokio::test(start_paused = true)]
async fn requests_that_pass_begin_and_meet_no_pause() {
    let (inner, calls) = origin(|_, _| refusal(503));
    let services = ruled(&inner, Some(LEFT_ALONE), |layer| layer.cache_status());
    let own = |at: usize| match at {
        0 => post(),
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
        // Both processes begin while the key backs off, and say why.
        for service in &services {
            let mut answer = ask(service, get("/")).await;
            let status = answer.headers.remove("cache-status").unwrap();
            assert_eq!(status, "bellwether; detail=backing-off");
            assert_of_layer(&answer, "1");
        }
    }
}

/// Otherwise one user could shut the others off. A rule of the cache cannot know of the user.
#[tokio::test(start_paused = true)]
async fn a_failure_for_one_user_concerns_no_other() {
    let rules = [None, Some(AfterFailure::BACK_OFF), Some(AfterFailure::LoadAgain)];
    for (rule, status) in rules.into_iter().flat_map(|rule| [(rule, 500), (rule, 503)]) {
        let (inner, calls) = origin(move |_, request| {
            if request.headers().contains_key("authorization") {
                reply(status, &[("retry-after", "30")], "refused")
            } else {
                reply(200, &[], "well")
            }
        });
        let services = ruled(&inner, rule, |layer| layer.policy(Policy::rfc9111()));
        let refused = ask(&services[0], get_with(&[("authorization", "Basic YTpi")])).await;
        assert_eq!(refused.text(), "refused");
        for service in &services {
            assert_eq!(ask(service, get("/")).await.text(), "well");
            assert_eq!(calls.count(), 2);
        }
    }
}

/// The failures of a user's requests counted as good answers, so the pauses never grew.
#[tokio::test(start_paused = true)]
async fn a_failure_for_one_user_ends_no_row_of_failures() {
    let rule = AfterFailure::BackOff { first: SECOND, longest: 60 * SECOND };
    let (inner, calls) = origin(|_, _| refusal(503));
    let services = ruled(&inner, Some(rule), |layer| layer.policy(Policy::rfc9111()));
    for at in 0..4 {
        ask(&services[at % 2], get("/")).await;
        assert_eq!(calls.count(), 2 * at + 1);
        // The first one behind the pause is of a user.
        while calls.count() == 2 * at + 1 {
            sleep(DELAY).await;
            ask(&services[at % 2], get_with(&[("authorization", "Basic YTpi")])).await;
        }
    }
    ask(&services[0], get("/")).await;
    sleep(7 * SECOND).await;
    ask(&services[0], get("/")).await;
    assert_eq!(calls.count(), 9, "the fifth pause is 8 s at least");
}

#[tokio::test(start_paused = true)]
async fn the_cache_has_the_rule_for_unavailable_services() {
    let (inner, calls) = origin(|_, _| refusal(503));
    let [service, _] = ruled(&inner, Some(AfterFailure::RetryAfter(5 * SECOND)), |layer| layer);
    for (pause, count) in [(Duration::ZERO, 1), (Duration::ZERO, 1), (5 * SECOND, 2)] {
        sleep(pause).await;
        ask(&service, get("/")).await;
        assert_eq!(calls.count(), count);
    }
}
