//! The answers to callers when a load fails.

use super::prelude::*;

/// An error type without any trait.
struct Bare(usize);

/// The others join the next flight, unless a rule of the cache says that the error is for all.
#[tokio::test(start_paused = true)]
async fn the_leader_gets_the_error_itself() {
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = calls.clone();
    let inner = service_fn(move |_: Request<Body>| {
        let call = counted.fetch_add(1, Ordering::SeqCst) + 1;
        sleep(DELAY).map(move |()| Err::<Response<Body>, _>(Bare(call)))
    });
    let service = layer().layer(inner.clone());
    let asked = all((0..10).map(|_| spawn(service.clone().oneshot(get("/"))))).await;
    let mut own: Vec<_> = asked.into_iter().map(|asked| asked.map(drop).unwrap_err().0).collect();
    own.sort_unstable();
    assert_eq!(own, (1..=10).collect::<Vec<_>>());

    calls.store(0, Ordering::SeqCst);
    let builder = builder().after_failure(|_| Some(AfterFailure::BACK_OFF));
    let service = layer_of(builder).layer(inner);
    let asked = all((0..10).map(|_| spawn(service.clone().oneshot(get("/"))))).await;
    let mut own = Vec::new();
    for asked in asked {
        match asked {
            Err(Bare(call)) => own.push(call),
            Ok(answer) => {
                assert_eq!(answer.status(), StatusCode::SERVICE_UNAVAILABLE);
                assert_eq!(answer.headers()["cache-control"], "no-store");
            }
        }
    }
    assert_eq!((own, calls.load(Ordering::SeqCst)), (vec![1], 1));
    // A request that passes through gets the error as well.
    let own = service.oneshot(get_with(&[("cookie", "a=b")])).await;
    assert!(matches!(own, Err(Bare(2))));
}

#[tokio::test(start_paused = true)]
async fn too_many_loads_are_a_service_that_is_unavailable() {
    let (inner, calls) = numbered();
    let layer = layer_of(builder().max_loads(1).wait_limit(DELAY / 2));
    let service = layer.refuse_overload().layer(inner);
    let answers = ask_all(&[service], ["/a", "/b", "/a"].map(get)).await;
    let mut statuses: Vec<_> = answers.iter().map(|answer| answer.status.as_u16()).collect();
    statuses.sort_unstable();
    assert_eq!((statuses, calls.count()), (vec![200, 200, 503], 1));
}

#[tokio::test(start_paused = true)]
async fn a_cache_that_is_shut_down_lets_each_request_through() {
    let (inner, calls) = numbered();
    let cache = cache(&MemoryBackend::new());
    let service = http_layer(cache.clone()).layer(inner);
    let cut = asking(&service, get("/"));
    sleep(DELAY / 2).await;
    cache.shutdown(Duration::ZERO).await;
    assert_eq!(cut.await.unwrap().status, StatusCode::SERVICE_UNAVAILABLE);
    for call in 2..4 {
        assert_eq!(ask(&service, get("/")).await.text(), call.to_string());
    }
    assert_eq!(calls.count(), 3);
}

#[tokio::test(start_paused = true)]
async fn the_answer_to_a_failure_can_be_replaced() {
    let layer = layer_of(builder().load_limit(DELAY / 2)).on_error(|error| {
        assert_eq!(error.kind(), ErrorKind::LoadTimeout);
        let body = Bytes::from(error.to_string());
        Response::builder().status(StatusCode::IM_A_TEAPOT).body(body).unwrap()
    });
    let service = layer.layer(numbered().0);
    for method in ["GET", "HEAD"] {
        let answer = ask(&service, request(method, "/", &[])).await;
        assert_eq!(answer.status, StatusCode::IM_A_TEAPOT);
        assert_eq!(answer.body.is_empty(), method == "HEAD");
    }
}

/// A client that goes on with a download would have joined a part of the page to it.
#[tokio::test(start_paused = true)]
async fn no_condition_and_no_range_is_of_the_answer_to_a_failure() {
    let (inner, _) = origin(|_, _| panic!("the service fails"));
    let page = |_: &Error| Response::new(Bytes::from_static(b"we are sorry"));
    let service = layer().on_error(page).layer(inner);
    for (name, value) in [("range", "bytes=3-5"), ("range", "bytes=100-"), ("if-none-match", "*")] {
        let answer = ask(&service, get_with(&[(name, value)])).await;
        assert_eq!((answer.status.as_u16(), answer.text()), (200, "we are sorry"), "{name}");
    }
}
