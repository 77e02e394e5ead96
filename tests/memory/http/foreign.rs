//! An answer to one caller decides nothing for another: rate limiters, firewalls and load limits
//! answer one client with an error, or late.

use bellwether::layer::{InnerServiceError, ResponseBody};
use tokio::{task::JoinSet, time::sleep_until};

use super::prelude::*;

/// A service that may return an error.
type Failing = BoxCloneSyncService<Request<Body>, Response<Body>, BoxError>;
/// In a box, whose type is short enough for the compiler to know that its futures may be sent.
type Service = BoxCloneSyncService<Request<Body>, Response<ResponseBody<Body>>, BoxError>;

/// How the service answers one client. All others get the page after 50 ms.
#[derive(Clone, Copy, Debug)]
enum Refusal {
    Status(u16),
    RetryAfter,
    Error,
    /// A 503 after this time.
    Late(Duration),
    /// Beyond the load limit.
    Never,
}

const REFUSALS: [Refusal; 9] = [
    Refusal::Status(503),
    Refusal::RetryAfter,
    Refusal::Status(502),
    Refusal::Status(504),
    Refusal::Status(429),
    Refusal::Status(403),
    Refusal::Error,
    Refusal::Late(Duration::from_secs(3)),
    Refusal::Never,
];

const LOAD_LIMIT: Duration = Duration::from_secs(4);

impl Refusal {
    fn takes(self) -> Duration {
        match self {
            Self::Late(time) => time,
            Self::Never => 3600 * SECOND,
            _ => DELAY,
        }
    }

    /// Returns for how long a load with this answer lasts.
    fn holds(self) -> Duration {
        self.takes().min(LOAD_LIMIT)
    }

    fn answer(self) -> Result<Response<Body>, BoxError> {
        match self {
            Self::Status(status) => Ok(reply(status, &[], "refused")),
            Self::RetryAfter => Ok(reply(503, &[("retry-after", "60")], "refused")),
            Self::Error => Err("no connection".into()),
            Self::Late(_) | Self::Never => Ok(reply(503, &[], "refused")),
        }
    }
}

/// Returns a service that answers requests with `x-limited` in this way, and the number of its
/// calls. A page has its time as the body, in milliseconds.
fn limiting(refusal: Refusal, control: &'static str) -> (Failing, Calls) {
    let calls = Calls::default();
    let counted = calls.clone();
    let begun = Instant::now();
    let service = service_fn(move |request: Request<Body>| {
        counted.add();
        let is_limited = request.headers().contains_key("x-limited");
        async move {
            if is_limited {
                sleep(refusal.takes()).await;
                return refusal.answer();
            }
            sleep(DELAY).await;
            let made = begun.elapsed().as_millis().to_string();
            Ok(reply(200, &[("cache-control", control)], made))
        }
    });
    (BoxCloneSyncService::new(service), calls)
}

fn layered_over(inner: &Failing) -> Service {
    let cache = builder().load_limit(LOAD_LIMIT).build().unwrap();
    BoxCloneSyncService::new(BellwetherLayer::http(cache).layer(inner.clone()))
}

fn limited() -> Request<Body> {
    get_with(&[("x-limited", "1")])
}

/// Asks, whatever the answer is.
async fn ask_for_refusal(service: &Service) {
    if let Ok(response) = service.clone().oneshot(limited()).await {
        Answer::of(response).await;
    }
}

/// What a client received, and when.
struct Received {
    asked: Instant,
    waited: Duration,
    answer: Answer,
}

/// Sends a plain request.
async fn receive(service: Service) -> Received {
    let asked = Instant::now();
    let response = service.oneshot(get("/")).await.expect("an error of another client");
    let answer = Answer::of(response).await;
    Received { asked, waited: asked.elapsed(), answer }
}

/// Lets one client ask 100 times a second, and others 33 times, for some seconds. Returns what the
/// others received.
async fn besieged(service: &Service, seconds: u32) -> Vec<Received> {
    let begun = Instant::now();
    let mut of_limited = JoinSet::new();
    let attacker = service.clone();
    let attack = spawn(async move {
        loop {
            let service = attacker.clone();
            of_limited.spawn(async move { ask_for_refusal(&service).await });
            sleep(10 * MS).await;
        }
    });
    let mut asked = Vec::new();
    let mut at = begun;
    while begun.elapsed() < seconds * SECOND {
        at += 31 * MS;
        sleep_until(at).await;
        asked.push(spawn(receive(service.clone())));
    }
    let received = all(asked).await;
    attack.abort();
    received
}

/// One such client blocked the page for the others, for up to a minute in the whole fleet.
#[tokio::test(start_paused = true)]
async fn no_refusal_of_one_client_reaches_another() {
    for refusal in REFUSALS {
        let (inner, _) = limiting(refusal, "max-age=1");
        let service = layered_over(&inner);
        for received in besieged(&service, 5).await {
            assert_eq!(received.answer.status, StatusCode::OK, "{refusal:?}");
            let longest = 2 * refusal.holds() + SECOND;
            assert!(received.waited <= longest, "{refusal:?}: {:?}", received.waited);
        }
    }
}

/// A page that may be served stale is renewed although most refreshes are refused.
#[tokio::test(start_paused = true)]
async fn no_refusal_of_one_client_keeps_a_page_stale_for_the_others() {
    for control in ["max-age=1, stale-while-revalidate=600", "max-age=1, stale-if-error=600"] {
        for refusal in REFUSALS {
            let (inner, _) = limiting(refusal, control);
            let service = layered_over(&inner);
            let begun = Instant::now();
            receive(service.clone()).await;
            for received in besieged(&service, 5).await {
                assert_eq!(received.answer.status, StatusCode::OK, "{control} {refusal:?}");
                let longest = 2 * refusal.holds() + SECOND;
                assert!(received.waited <= longest, "{control} {refusal:?}");
                let made = Duration::from_millis(received.answer.text().parse().unwrap());
                let old = (received.asked - begun).saturating_sub(made);
                // A late refusal delays the next refresh for its time, and there are several.
                let is_late = refusal.holds() > SECOND;
                assert!(is_late || old <= 3 * SECOND, "{control} {refusal:?}: {old:?}");
            }
        }
    }
}

/// A late refusal of a refresh delays the next refresh for the time of that answer, and no longer.
#[tokio::test(start_paused = true)]
async fn a_late_refusal_keeps_a_page_stale_for_its_own_time() {
    for control in ["max-age=1, stale-while-revalidate=600", "max-age=1, stale-if-error=600"] {
        for refusal in [Refusal::Late(3 * SECOND), Refusal::Never] {
            let (inner, calls) = limiting(refusal, control);
            let service = layered_over(&inner);
            receive(service.clone()).await;
            sleep(1100 * MS).await;
            // It leads the first refresh.
            let attacker = service.clone();
            let attack = spawn(async move { ask_for_refusal(&attacker).await });
            let refused = Instant::now();
            sleep(MS).await;
            while calls.count() < 3 {
                let received = spawn(receive(service.clone()));
                sleep(31 * MS).await;
                if received.is_finished() {
                    assert_eq!(received.await.unwrap().answer.status, StatusCode::OK);
                }
                let since = refused.elapsed();
                assert!(since <= refusal.holds() + 2 * SECOND, "{control} {refusal:?}: {since:?}");
            }
            let renewed = receive(service.clone()).await;
            assert!(renewed.waited <= DELAY, "{control} {refusal:?}: {:?}", renewed.waited);
            attack.await.unwrap();
        }
    }
}

/// Each of 500 waiters sent its own request once the one of such a client had led.
#[tokio::test(start_paused = true)]
async fn a_refusal_of_one_client_costs_the_service_few_calls() {
    let mut many = 0;
    for (refusal, expiries) in
        [(Refusal::Status(503), 90), (Refusal::Status(429), 5), (Refusal::Error, 5)]
    {
        let (inner, calls) = limiting(refusal, "max-age=1");
        let service = layered_over(&inner);
        let attacker = service.clone();
        // One request of this client is under way at a time.
        let attack = spawn(async move {
            loop {
                ask_for_refusal(&attacker).await;
                sleep(MS).await;
            }
        });
        for _ in 0..expiries {
            // It is the first one behind each expiry.
            sleep(1100 * MS).await;
            let before = calls.count();
            let waiters = (0..500).map(|_| spawn(receive(service.clone())));
            for received in all(waiters).await {
                assert_eq!(received.answer.status, StatusCode::OK);
            }
            // With the call that was under way.
            many += usize::from(calls.count() - before + 1 > 5);
        }
        attack.abort();
    }
    assert!(many <= 1, "{many} of 100 expiries");
}

/// The requests of a client come one after another, ahead of all others or behind them. If they
/// lead one flight after the other, they use up the tries of the others.
#[tokio::test(start_paused = true)]
async fn a_burst_of_one_refused_client_costs_the_service_few_calls() {
    for refusal in [Refusal::Status(503), Refusal::Status(429), Refusal::Error] {
        for ahead in [0, 3, 6] {
            let (inner, calls) = limiting(refusal, "max-age=1");
            let service = layered_over(&inner);
            receive(service.clone()).await;
            sleep(1100 * MS).await;
            let burst = |count| -> Vec<_> {
                let attackers = (0..count).map(|_| service.clone());
                let ask = |attacker| spawn(async move { ask_for_refusal(&attacker).await });
                attackers.map(ask).collect()
            };
            // The first one leads.
            let mut attack = burst(1 + ahead);
            sleep(MS).await;
            let before = calls.count();
            let waiters: Vec<_> = (0..500).map(|_| spawn(receive(service.clone()))).collect();
            sleep(MS).await;
            attack.extend(burst(6 - ahead));
            for received in all(waiters).await {
                assert_eq!(received.answer.status, StatusCode::OK);
            }
            all(attack).await;
            let more = calls.count() - before;
            assert!(more <= 5, "{refusal:?}, {ahead} ahead: {more} calls");
        }
    }
}

/// A client with many requests under way leads flight after flight, and its answers may be slow.
#[tokio::test(start_paused = true)]
async fn a_large_burst_of_one_refused_client_delays_the_others_by_two_answers_and_a_second() {
    for refusal in [Refusal::Status(503), Refusal::Error, Refusal::Late(3 * SECOND)] {
        for (count, ahead) in [(100, 100), (100, 1), (500, 500)] {
            let (inner, calls) = limiting(refusal, "max-age=1");
            let service = layered_over(&inner);
            receive(service.clone()).await;
            sleep(1100 * MS).await;
            let before = calls.count();
            let mut attack = Vec::new();
            let mut waiters = Vec::new();
            for at in 1..=count {
                let attacker = service.clone();
                attack.push(spawn(async move { ask_for_refusal(&attacker).await }));
                if at == ahead {
                    sleep(MS).await;
                    waiters.extend((0..500).map(|_| spawn(receive(service.clone()))));
                    sleep(MS).await;
                }
            }
            let longest = 2 * refusal.holds() + SECOND;
            for received in all(waiters).await {
                assert_eq!(received.answer.status, StatusCode::OK);
                let waited = received.waited;
                assert!(waited <= longest, "{refusal:?}, {ahead} of {count}: {waited:?}");
            }
            all(attack).await;
            let more = calls.count() - before;
            // Without the layer, each request is a call.
            let most = if refusal.holds() <= DELAY && count == 100 { 5 } else { count + 500 };
            assert!(more <= most, "{refusal:?}, {ahead} of {count}: {more} calls");
        }
    }
}

/// Without a rule of the cache, a service that fails gets no more requests than without the layer,
/// and no caller waits for more than two of its answers and a second.
#[tokio::test(start_paused = true)]
async fn a_service_that_fails_costs_its_callers_two_answers_and_a_second_at_most() {
    for takes in [DELAY, 400 * MS, 3 * SECOND] {
        for status in [503, 429] {
            let calls = Calls::default();
            let counted = calls.clone();
            let inner = service_fn(move |_: Request<Body>| {
                counted.add();
                sleep(takes).map(move |()| Ok(reply(status, &[("retry-after", "60")], "refused")))
            });
            let inner = BoxCloneSyncService::new(inner);
            for processes in [processes::<2>(&inner, shared).to_vec(), vec![layered(&inner)]] {
                let before = calls.count();
                let begun = Instant::now();
                let mut asked = Vec::new();
                for at in 0..500 {
                    asked.push(asking(&processes[at % processes.len()], get("/")));
                    sleep(MS).await;
                }
                let asked = asked.into_iter().zip(0..);
                for (answer, at) in asked {
                    let answer = answer.await.unwrap();
                    assert_eq!((answer.status.as_u16(), answer.text()), (status, "refused"));
                    let waited = begun.elapsed().saturating_sub(at * MS);
                    let longest = 2 * takes + SECOND + 500 * MS;
                    assert!(waited <= longest, "{takes:?} {status}: {waited:?}");
                }
                assert!(calls.count() - before <= 500, "{} calls", calls.count() - before);
            }
        }
    }
}

/// The first caller behind a refusal leads, and serves the others.
#[tokio::test(start_paused = true)]
async fn the_first_good_answer_serves_all_waiters() {
    for refusal in REFUSALS {
        let (inner, calls) = limiting(refusal, "max-age=60");
        let service = layered_over(&inner);
        let attacker = service.clone();
        let attack = spawn(async move { ask_for_refusal(&attacker).await });
        sleep(MS).await;
        let waiters = (0..50).map(|_| spawn(receive(service.clone())));
        let received = all(waiters).await;
        let first = &received[0].answer;
        assert!(received.iter().all(|received| received.answer.text() == first.text()));
        assert_eq!(calls.count(), 2, "{refusal:?}");
        attack.await.unwrap();
    }
}

/// An error of the service, a load limit and a panic of a service are answers to one caller, too.
/// By a rule of the cache they are for all, and `on_error` knows the error of the service.
#[tokio::test(start_paused = true)]
async fn an_error_of_the_service_is_the_source_of_the_error_of_its_waiters() {
    let (inner, _) = limiting(Refusal::Error, "max-age=1");
    let cache = builder().after_failure(|_| Some(AfterFailure::BACK_OFF)).build().unwrap();
    let layer = BellwetherLayer::http(cache).on_error(|error| {
        let source = std::error::Error::source(error).unwrap().to_string();
        Response::new(Bytes::from(source))
    });
    let service = BoxCloneSyncService::new(layer.layer(inner));
    let leader = spawn(service.clone().oneshot(limited()));
    sleep(MS).await;
    let waiter = spawn(receive(service.clone()));
    assert_eq!(leader.await.unwrap().unwrap_err().to_string(), "no connection");
    let text = waiter.await.unwrap().answer.text().to_owned();
    assert!(text.contains("no connection"), "{text}");
}

/// A service whose 503 means all callers says so by a rule of its cache.
#[tokio::test(start_paused = true)]
async fn a_rule_of_the_cache_knows_the_retry_after() {
    let (inner, calls) = origin(|_, _| reply(503, &[("retry-after", "7")], "refused"));
    let backend = MemoryBackend::new();
    let services = [(), ()].map(|()| {
        let cache = http_cache(backend.clone(), "bellwether").after_failure(|error| {
            let time = error.load_ref::<InnerServiceError>()?.retry_after()?;
            Some(AfterFailure::RetryAfter(time))
        });
        http_layer(cache.build().unwrap()).layer(inner.clone())
    });
    let answers = ask_all(&services, (0..20).map(|_| get("/"))).await;
    let of_layer = |answer: &&Answer| answer.text().is_empty();
    assert_eq!((calls.count(), answers.iter().filter(of_layer).count()), (1, 19));
    assert!(answers.iter().all(|answer| answer.headers["retry-after"] == "7"));
    sleep(6 * SECOND).await;
    ask_all(&services, [get("/"), get("/")]).await;
    assert_eq!(calls.count(), 1);
}
