//! Bodies that take longer than their response is fresh, and bodies that their readers leave.

use std::io;

use super::prelude::*;

/// Returns an origin whose bodies are of as many pieces, one each `pause`.
fn slow(control: &'static str, pieces: usize, pause: Duration) -> (Inner, Calls) {
    origin(move |call, _| {
        let body = futures_util::stream::unfold(0, move |at| async move {
            if at == pieces {
                return None;
            }
            sleep(pause).await;
            Some((Ok::<_, io::Error>(call.to_string()), at + 1))
        });
        reply(200, &[("cache-control", control)], Body::from_stream(body))
    })
}

fn cancelling_at(backend: &MemoryBackend, inner: &Inner) -> Layered {
    let builder = http_cache(backend.clone(), "bellwether").cancel_abandoned();
    BellwetherLayer::http(builder.build().unwrap()).layer(inner.clone())
}

/// The only reader was the leader. It left, or needed no body, before the callers that waited for
/// the headers had their turns. So each of them sent its own request.
#[tokio::test(start_paused = true)]
async fn callers_that_wait_for_headers_keep_a_body_that_its_leader_does_not_read() {
    for method in ["GET", "HEAD"] {
        let (inner, calls) = slow("max-age=60", 3, DELAY);
        let service = cancelling_at(&MemoryBackend::new(), &inner);
        let leader = spawn(service.clone().oneshot(request(method, "/", &[])));
        sleep(DELAY / 5).await;
        let asked = spawn(async move { crowd(&service, 50).await });
        sleep(DELAY / 5).await;
        if method == "GET" {
            leader.abort();
        }
        assert!(asked.await.unwrap().iter().all(|answer| answer.text() == "111"));
        assert_eq!(calls.count(), 1, "{method}");
    }
}

/// All callers of the body had left. The callers in another process were told that it is
/// uncacheable, so each of them sent its own request.
#[tokio::test(start_paused = true)]
async fn a_process_that_waits_for_an_unread_body_loads_itself() {
    let (inner, calls) = slow("max-age=60", 3, DELAY);
    let backend = MemoryBackend::new();
    let [here, there] = [(), ()].map(|()| cancelling_at(&backend, &inner));
    let leader = asking(&here, get("/"));
    sleep(DELAY / 5).await;
    let asked = spawn(async move { crowd(&there, 50).await });
    sleep(2 * DELAY).await;
    leader.abort();
    assert!(asked.await.unwrap().iter().all(|answer| answer.text() == "222"));
    assert_eq!(calls.count(), 2);
}

/// A process that came after the lifetime was handed the body that had taken longer than that. As
/// a variant, it was stored for a moment. Callers with credentials then sent a request each.
#[tokio::test(start_paused = true)]
async fn a_body_that_outlives_its_lifetime_is_not_for_later_callers_of_other_processes() {
    const NONE: Lines<'_> = &[];
    let authorized: Lines<'_> = &[("authorization", "Basic YTpi")];
    for (vary, headers) in [(false, NONE), (true, NONE), (false, authorized)] {
        let (inner, calls) = origin(move |call, _| {
            let body = futures_util::stream::once(async move {
                sleep(5 * SECOND).await;
                Ok::<_, io::Error>(call.to_string())
            });
            let lines = [("cache-control", "public, max-age=2"), ("vary", "accept-language")];
            reply(200, if vary { &lines } else { &lines[..1] }, Body::from_stream(body))
        });
        let [here, there] = processes(&inner, |layer| layer.policy(Policy::rfc9111()));
        let first = asking(&here, get_with(headers));
        sleep(3 * SECOND).await;
        for answer in ask_all(&[there], (0..20).map(|_| get_with(headers))).await {
            assert_eq!(answer.text(), "2", "{vary} {headers:?}: {:?}", answer.headers);
        }
        let first = first.await.unwrap();
        assert_eq!((first.text(), calls.count()), ("1", 2), "{vary} {headers:?}");
    }
}

/// Each process in turn loaded a body of its own, although all came while the first one was fresh.
#[tokio::test(start_paused = true)]
async fn the_processes_that_came_in_time_share_a_body_that_outlives_its_lifetime() {
    let (inner, calls) = slow("max-age=2", 3, SECOND);
    let services: [_; 8] = processes(&inner, |layer| layer);
    let begun = Instant::now();
    for answer in ask_all(&services, (0..80).map(|_| get("/"))).await {
        assert_eq!(answer.text(), "111");
    }
    assert_eq!((calls.count(), begun.elapsed()), (1, 3 * SECOND + DELAY));
}

#[tokio::test(start_paused = true)]
async fn no_process_waits_for_more_than_two_bodies() {
    let (inner, _) = slow("max-age=2", 3, SECOND);
    let services: [_; 6] = processes(&inner, |layer| layer);
    let mut asked = Vec::new();
    for _ in 0..60 {
        for service in services.clone() {
            asked.push(spawn(async move {
                let begun = Instant::now();
                ask(&service, get("/")).await;
                begun.elapsed()
            }));
        }
        sleep(SECOND / 2).await;
    }
    for waited in all(asked).await {
        assert!(waited <= 2 * (3 * SECOND + DELAY), "{waited:?}");
    }
}

/// The marker was not stored, so requests for different variants waited for each other.
#[tokio::test(start_paused = true)]
async fn a_body_that_outlives_its_lifetime_leaves_the_marker_of_its_variants() {
    let (inner, _) = origin(|_, _| {
        let body = futures_util::stream::once(async {
            sleep(3 * SECOND).await;
            Ok::<_, io::Error>("whole")
        });
        let headers = [("cache-control", "max-age=2"), ("vary", "accept-language")];
        reply(200, &headers, Body::from_stream(body))
    });
    let services: [_; 6] = processes(&inner, |layer| layer);
    let languages: Vec<_> = (0..6).map(|at| format!("x-{at}")).collect();
    for waited in [2 * (3 * SECOND + DELAY), 3 * SECOND + DELAY] {
        let begun = Instant::now();
        let requests = languages.iter().map(|language| get_with(&[("accept-language", language)]));
        ask_all(&services, requests).await;
        assert_eq!(begun.elapsed(), waited);
    }
}

/// The time that the body took was added to its lifetime: the part of a second, and all of it to
/// the `ttl` of the cache, which is the longest lifetime. So it is for callers that join the body.
#[tokio::test(start_paused = true)]
async fn the_lifetime_begins_with_the_head_to_the_millisecond() {
    const BRIEF: &str = "max-age=1, must-revalidate";
    for (control, pieces, pause, at, calls_then) in [
        (BRIEF, 1, 950, 990, 1),
        (BRIEF, 1, 950, 1_010, 2),
        ("max-age=5", 4, 1_000, 8_000, 2),
        ("max-age=3600", 4, 1_000, 8_000, 2),
        ("max-age=5", 20, 1_000, 15_000, 2),
        ("max-age=3600", 20, 1_000, 15_000, 2),
    ] {
        let (inner, calls) = slow(control, pieces, pause * MS);
        let service = layer_of(builder().ttl(5 * SECOND)).layer(inner);
        let first = asking(&service, get("/"));
        sleep(DELAY + at * MS).await;
        let second = asking(&service, get("/"));
        sleep(DELAY).await;
        assert_eq!(calls.count(), calls_then, "{control} {pieces} at {at} ms");
        all([first, second]).await;
    }
}

/// A refresh has no reader, and neither has a load whose caller was served the old response. Both
/// were cancelled each time, so the old response was served as long as it was kept.
#[tokio::test(start_paused = true)]
async fn a_body_that_no_caller_is_to_read_is_not_cancelled() {
    for (control, patience) in [
        ("max-age=1, stale-while-revalidate=600", Duration::MAX),
        ("max-age=1, stale-if-error=600", DELAY / 2),
    ] {
        let (inner, calls) = slow(control, 3, DELAY * 2);
        let layer = layer_of(builder().cancel_abandoned().serve_stale_after(patience));
        let service = layer.layer(inner);
        ask(&service, get("/")).await;
        for call in 1..5 {
            sleep(3 * SECOND).await;
            let expected = call.to_string().repeat(3);
            assert_eq!(ask(&service, get("/")).await.text(), expected, "{control}");
        }
        sleep(DELAY).await;
        assert_eq!(calls.count(), 5, "{control}");
    }
}

#[tokio::test(start_paused = true)]
async fn requests_without_a_body_store_one() {
    let (inner, calls) = slow("max-age=600", 3, DELAY * 2);
    let service = cancelling_at(&MemoryBackend::new(), &inner);
    for _ in 0..5 {
        ask(&service, request("HEAD", "/", &[])).await;
        sleep(SECOND).await;
    }
    assert_eq!(calls.count(), 1);
}

/// The last reader had left before the time was over that the first one had begun.
#[tokio::test(start_paused = true)]
async fn each_reader_that_leaves_gives_the_next_one_time() {
    let (inner, calls) = slow("max-age=600", 20, DELAY / 5);
    let service = cancelling_at(&MemoryBackend::new(), &inner);
    for reads in [DELAY + DELAY / 10, DELAY / 10, DELAY / 10, DELAY / 10] {
        let reader = asking(&service, get("/"));
        sleep(reads).await;
        reader.abort();
        sleep(DELAY * 7 / 10).await;
    }
    assert_eq!((ask(&service, get("/")).await.text(), calls.count()), ("1".repeat(20).as_str(), 1));
}
