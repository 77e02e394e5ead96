//! Uncacheable is hit-for-miss: odd answers among those that can be shared.

use super::prelude::*;

/// Answers of so many seconds, or odd ones of a kind to requests that ask for them.
fn answer(call: usize, seconds: u64, odd: Option<&str>) -> Response<Body> {
    let control = format!("max-age={seconds}");
    let control = ("cache-control", &*control);
    let call = call.to_string();
    match odd {
        Some("404") => reply(404, &[], call),
        Some("503") => reply(503, &[], call),
        Some("vary") => reply(200, &[control, ("vary", "x-odd")], call),
        Some(_) => reply(200, &[control, ("set-cookie", "a=b")], call),
        None => reply(200, &[control], call),
    }
}

/// One odd answer sent 740 of 740 later requests to the origin. An error marks nothing, and the
/// next answer is shared.
#[tokio::test(start_paused = true)]
async fn one_odd_answer_costs_no_more_than_one_call() {
    for odd in ["404", "503", "vary", "set-cookie"] {
        let (inner, calls) = origin(move |call, _| answer(call, 60, (call == 1).then_some(odd)));
        let services: [_; 2] = processes(&inner, shared);
        ask(&services[0], get("/")).await;
        if ["404", "503"].contains(&odd) {
            // The key backs off.
            sleep(2 * DELAY).await;
            ask_all(&services, (0..20).map(|_| get("/"))).await;
            assert_eq!(calls.count(), 2, "{odd}");
        }
        for at in 0..740 {
            ask(&services[at % 2], get("/")).await;
            sleep(10 * MS).await;
        }
        assert!(calls.count() <= 4, "{odd}: {} calls", calls.count());
    }
}

/// A mark lasts 10 s. Then one request finds out whether the answers can be shared by now.
#[tokio::test(start_paused = true)]
async fn an_uncacheable_key_makes_its_callers_wait_once_in_ten_seconds() {
    let (inner, calls) = origin(|call, _| answer(call, 1, Some("set-cookie")));
    let services: [_; 2] = processes(&inner, shared);
    ask_all(&services, [get("/"), get("/")]).await;
    let mut waits = 0;
    for round in 0..20 {
        let begun = Instant::now();
        let answers = ask_all(&services, (0..10).map(|_| get("/"))).await;
        assert_eq!(different(&answers), 10, "{round}");
        assert!([DELAY, 2 * DELAY].contains(&begun.elapsed()), "{:?}", begun.elapsed());
        waits += usize::from(begun.elapsed() > DELAY);
        sleep(2 * SECOND).await;
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
        origin(move |call, _| answer(call, 1, odd.load(Ordering::SeqCst).then_some("set-cookie")));
    let services: [_; 2] = processes(&inner, shared);
    ask_all(&services, (0..10).map(|_| get("/"))).await;
    is_odd.store(false, Ordering::SeqCst);
    ask(&services[0], get("/")).await;
    crowd(&services[0], 20).await;
    assert_eq!(calls.count(), 12);
    // The other process finds it stored.
    ask_all(&services, (0..20).map(|_| get("/"))).await;
    assert_eq!(calls.count(), 12);
}

#[tokio::test(start_paused = true)]
async fn a_shared_key_that_becomes_uncacheable_delays_its_waiters_once() {
    let (inner, calls) = origin(|call, _| answer(call, 1, (call > 1).then_some("set-cookie")));
    let service = layered(&inner);
    ask(&service, get("/")).await;
    sleep(2 * SECOND).await;
    for limit in [2, 1] {
        let begun = Instant::now();
        let answers = crowd(&service, 50).await;
        assert!(begun.elapsed() <= limit * DELAY, "{:?}", begun.elapsed());
        assert_eq!(different(&answers), 50);
    }
    assert_eq!(calls.count(), 101);
}

/// The headers of an endless body do not show that it cannot be shared. Its callers read it
/// together, until it is known to be endless. No caller ever waits for its end.
#[tokio::test(start_paused = true)]
async fn a_body_without_an_end_stays_uncacheable() {
    let (inner, _) = origin(|_, _| {
        let piece = |()| async {
            sleep(SECOND).await;
            Some((Ok::<_, BoxError>("x".repeat(10)), ()))
        };
        Response::new(Body::from_stream(futures_util::stream::unfold((), piece)))
    });
    let service = layered(&inner);
    let mut open = vec![service.clone().oneshot(get("/")).await.unwrap()];
    for _ in 0..20 {
        let begun = Instant::now();
        open.push(service.clone().oneshot(get("/")).await.unwrap());
        assert!(begun.elapsed() <= DELAY);
        sleep(5 * SECOND).await;
        // A client that leaves early says nothing about the body.
        open.swap_remove(0).into_body().frame().await.unwrap().unwrap();
    }
}
