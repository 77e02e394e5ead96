//! Uncacheable is hit-for-miss: odd answers among those that can be shared.

use super::prelude::*;

/// Returns two processes of a fleet.
fn fleet(inner: &Inner) -> [Layered; 2] {
    let backend = MemoryBackend::new();
    [(), ()].map(|()| http_layer(cache(&backend)).layer(inner.clone()))
}

/// Answers of a second, or odd ones of a kind to requests that ask for them.
fn answer(call: usize, odd: Option<&str>) -> Response<Body> {
    let answer = match odd {
        Some("404") => Response::builder().status(404),
        Some("503") => Response::builder().status(503),
        Some("vary") => Response::builder().header("vary", "x-odd"),
        Some(_) => Response::builder().header("set-cookie", "a=b"),
        None => Response::builder().header("cache-control", "max-age=1"),
    };
    answer.body(Body::from(call.to_string())).unwrap()
}

/// One odd answer sent 740 of 740 later requests to the origin.
#[tokio::test(start_paused = true)]
async fn one_odd_answer_costs_no_more_than_one_call() {
    for odd in ["404", "503", "vary", "set-cookie"] {
        let (inner, calls) = origin(move |call, _| {
            let mut response = answer(call, (call == 1).then_some(odd));
            response.headers_mut().entry("cache-control").or_insert("max-age=60".parse().unwrap());
            if call > 1 {
                response.headers_mut().insert("cache-control", "max-age=60".parse().unwrap());
            }
            response
        });
        let services = fleet(&inner);
        for at in 0..740 {
            ask(&services[at % 2], get("/")).await;
            sleep(Duration::from_millis(10)).await;
        }
        assert!(calls.count() <= 4, "{odd}: {} calls", calls.count());
    }
}

/// A mark lasts 10 s. Then one request finds out whether the answers can be shared by now.
#[tokio::test(start_paused = true)]
async fn an_uncacheable_key_makes_its_callers_wait_once_in_ten_seconds() {
    let (inner, calls) = origin(|call, _| answer(call, Some("set-cookie")));
    let services = fleet(&inner);
    ask_all(&services, [get("/"), get("/")]).await;
    let mut waits = 0;
    for round in 0..20 {
        let begun = Instant::now();
        let answers = ask_all(&services, (0..10).map(|_| get("/"))).await;
        assert_eq!(different(&answers), 10, "{round}");
        assert!([DELAY, 2 * DELAY].contains(&begun.elapsed()), "{:?}", begun.elapsed());
        waits += usize::from(begun.elapsed() > DELAY);
        sleep(Duration::from_secs(2)).await;
    }
    assert_eq!(calls.count(), 202);
    // Over 42 s.
    assert!((3..=4).contains(&waits), "{waits}");
}

#[tokio::test(start_paused = true)]
async fn the_first_answer_that_can_be_shared_ends_it() {
    let is_odd = Arc::new(AtomicBool::new(true));
    let odd = is_odd.clone();
    let (inner, calls) =
        origin(move |call, _| answer(call, odd.load(Ordering::SeqCst).then_some("set-cookie")));
    let [here, there] = fleet(&inner);
    ask_all(&[here.clone(), there.clone()], (0..10).map(|_| get("/"))).await;
    is_odd.store(false, Ordering::SeqCst);
    ask(&here, get("/")).await;
    ask_all(std::slice::from_ref(&here), (0..20).map(|_| get("/"))).await;
    assert_eq!(calls.count(), 12);
    // The other process finds it stored.
    ask_all(&[here, there], (0..20).map(|_| get("/"))).await;
    assert_eq!(calls.count(), 12);
}

#[tokio::test(start_paused = true)]
async fn an_error_marks_nothing() {
    for odd in ["404", "503"] {
        let (inner, calls) = origin(move |call, _| answer(call, (call == 1).then_some(odd)));
        let services = fleet(&inner);
        ask(&services[0], get("/")).await;
        if odd == "503" {
            // The key backs off.
            sleep(2 * DELAY).await;
        }
        ask_all(&services, (0..20).map(|_| get("/"))).await;
        assert_eq!(calls.count(), 2, "{odd}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_shared_key_that_becomes_uncacheable_delays_its_waiters_once() {
    let (inner, calls) = origin(|call, _| answer(call, (call > 1).then_some("set-cookie")));
    let service = http_layer(cache(&MemoryBackend::new())).layer(inner);
    ask(&service, get("/")).await;
    sleep(Duration::from_secs(2)).await;
    for limit in [2, 1] {
        let begun = Instant::now();
        let answers = ask_all(std::slice::from_ref(&service), (0..50).map(|_| get("/"))).await;
        assert!(begun.elapsed() <= limit * DELAY, "{:?}", begun.elapsed());
        assert_eq!(different(&answers), 50);
    }
    assert_eq!(calls.count(), 101);
}

/// The headers of an endless body do not show that it cannot be shared. Its callers read it
/// together, until it is known to be endless. No caller ever waits for its end.
#[tokio::test(start_paused = true)]
async fn a_body_without_an_end_stays_uncacheable() {
    let endless = |_: usize, _: &http::Request<Body>| {
        let piece = |()| async {
            sleep(Duration::from_secs(1)).await;
            Some((Ok::<_, std::convert::Infallible>("x".repeat(10)), ()))
        };
        Response::new(Body::from_stream(futures_util::stream::unfold((), piece)))
    };
    let (inner, _) = origin(endless);
    let service = http_layer(cache(&MemoryBackend::new())).layer(inner);
    let mut open = vec![service.clone().oneshot(get("/")).await.unwrap()];
    for _ in 0..20 {
        let begun = Instant::now();
        open.push(service.clone().oneshot(get("/")).await.unwrap());
        assert!(begun.elapsed() <= DELAY);
        sleep(Duration::from_secs(5)).await;
        // A client that leaves early says nothing about the body.
        open.swap_remove(0).into_body().frame().await.unwrap().unwrap();
    }
}
