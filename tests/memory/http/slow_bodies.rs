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
        let answer = Response::builder().header("cache-control", control);
        answer.body(Body::from_stream(body)).unwrap()
    })
}

/// Returns a service whose bodies are of as many pieces, one each second, behind a cache with a
/// `ttl` of 5 s.
fn kept_for_five_seconds(control: &'static str, pieces: usize) -> (Layered, Calls) {
    let (inner, calls) = slow(control, pieces, SECOND);
    let cache = http_cache(MemoryBackend::new(), "bellwether").ttl(5 * SECOND).build().unwrap();
    (http_layer(cache).layer(inner), calls)
}

fn processes(count: usize, inner: &Inner) -> Vec<Layered> {
    let backend = MemoryBackend::new();
    let process = |_| BellwetherLayer::http(cache(&backend)).layer(inner.clone());
    (0..count).map(process).collect()
}

fn cancelling_at(backend: &MemoryBackend, inner: &Inner) -> Layered {
    let builder = http_cache(backend.clone(), "bellwether").cancel_abandoned();
    BellwetherLayer::http(builder.build().unwrap()).layer(inner.clone())
}

/// The only reader was the leader. It left, or needed no body, before the callers that waited for
/// the headers had their turns. So each of them sent its own request.
#[tokio::test(start_paused = true)]
async fn callers_that_wait_for_headers_keep_a_body_that_its_leader_does_not_read() {
    for head_leads in [false, true] {
        let (inner, calls) = slow("max-age=60", 3, DELAY);
        let service = cancelling_at(&MemoryBackend::new(), &inner);
        let request = match head_leads {
            true => Request::head("/").body(Body::empty()).unwrap(),
            false => get("/"),
        };
        let leader = tokio::spawn(service.clone().oneshot(request));
        sleep(DELAY / 5).await;
        let services = [service];
        let asked =
            tokio::spawn(async move { ask_all(&services, (0..50).map(|_| get("/"))).await });
        sleep(DELAY / 5).await;
        if !head_leads {
            leader.abort();
        }
        for answer in asked.await.unwrap() {
            assert_eq!(answer.text(), "111");
        }
        assert_eq!(calls.count(), 1, "{head_leads}");
    }
}

/// All callers of the body had left. The callers in another process were told that it is
/// uncacheable, so each of them sent its own request.
#[tokio::test(start_paused = true)]
async fn a_process_that_waits_for_an_unread_body_loads_itself() {
    let (inner, calls) = slow("max-age=60", 3, DELAY);
    let backend = MemoryBackend::new();
    let [here, there] = [(), ()].map(|()| cancelling_at(&backend, &inner));
    let leader = tokio::spawn(async move { ask(&here, get("/")).await });
    sleep(DELAY / 5).await;
    let services = [there];
    let asked = tokio::spawn(async move { ask_all(&services, (0..50).map(|_| get("/"))).await });
    sleep(2 * DELAY).await;
    leader.abort();
    for answer in asked.await.unwrap() {
        assert_eq!(answer.text(), "222");
    }
    assert_eq!(calls.count(), 2);
}

/// A process that came after the lifetime was handed the body that had taken longer than that. As
/// a variant, it was stored for a moment. Callers with credentials then sent a request each.
#[tokio::test(start_paused = true)]
async fn a_body_that_outlives_its_lifetime_is_not_for_later_callers_of_other_processes() {
    let cases = [("x", ""), ("vary", "accept-language"), ("authorization", "Basic YTpi")];
    for (name, value) in cases {
        let (inner, calls) = origin(move |call, _| {
            let body = futures_util::stream::once(async move {
                sleep(5 * SECOND).await;
                Ok::<_, io::Error>(call.to_string())
            });
            let answer = Response::builder().header("cache-control", "public, max-age=2");
            let answer = if name == "vary" { answer.header(name, value) } else { answer };
            answer.body(Body::from_stream(body)).unwrap()
        });
        let backend = MemoryBackend::new();
        let [here, there] = [(), ()].map(|()| {
            let layer = BellwetherLayer::http(cache(&backend)).policy(Policy::rfc9111());
            layer.layer(inner.clone())
        });
        let request = move || match name {
            "authorization" => get_with(&[(name, value)]),
            _ => get("/"),
        };
        let first = tokio::spawn(async move { ask(&here, request()).await });
        sleep(3 * SECOND).await;
        let services = [there];
        for answer in ask_all(&services, (0..20).map(|_| request())).await {
            assert_eq!(answer.text(), "2", "{name}: {:?}", answer.headers);
        }
        assert_eq!((first.await.unwrap().text(), calls.count()), ("1", 2), "{name}");
    }
}

/// Each process in turn loaded a body of its own, although all came while the first one was fresh.
#[tokio::test(start_paused = true)]
async fn the_processes_that_came_in_time_share_a_body_that_outlives_its_lifetime() {
    let (inner, calls) = slow("max-age=2", 3, SECOND);
    let services = processes(8, &inner);
    let begun = Instant::now();
    for answer in ask_all(&services, (0..80).map(|_| get("/"))).await {
        assert_eq!(answer.text(), "111");
    }
    assert_eq!((calls.count(), begun.elapsed()), (1, 3 * SECOND + DELAY));
}

#[tokio::test(start_paused = true)]
async fn no_process_waits_for_more_than_two_bodies() {
    let (inner, _) = slow("max-age=2", 3, SECOND);
    let services = processes(6, &inner);
    let mut asked = Vec::new();
    for _ in 0..60 {
        for service in &services {
            let service = service.clone();
            asked.push(tokio::spawn(async move {
                let begun = Instant::now();
                ask(&service, get("/")).await;
                begun.elapsed()
            }));
        }
        sleep(SECOND / 2).await;
    }
    for asked in asked {
        let waited = asked.await.unwrap();
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
        let answer = Response::builder().header("cache-control", "max-age=2");
        let answer = answer.header("vary", "accept-language");
        answer.body(Body::from_stream(body)).unwrap()
    });
    let services = processes(6, &inner);
    let languages: Vec<_> = (0..6).map(|at| format!("x-{at}")).collect();
    for waited in [2 * (3 * SECOND + DELAY), 3 * SECOND + DELAY] {
        let begun = Instant::now();
        let requests = languages.iter().map(|it| get_with(&[("accept-language", it)]));
        ask_all(&services, requests).await;
        assert_eq!(begun.elapsed(), waited);
    }
}

/// The part of a second that the body took was added to its lifetime.
#[tokio::test(start_paused = true)]
async fn the_lifetime_begins_with_the_head_to_the_millisecond() {
    let (inner, _) = slow("max-age=1, must-revalidate", 1, Duration::from_millis(950));
    let service = BellwetherLayer::http(cache(&MemoryBackend::new())).layer(inner);
    ask(&service, get("/")).await;
    sleep(Duration::from_millis(40)).await;
    assert_eq!(ask(&service, get("/")).await.text(), "1");
    sleep(Duration::from_millis(20)).await;
    assert_eq!(ask(&service, get("/")).await.text(), "2");
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
        let builder = http_cache(MemoryBackend::new(), "bellwether").cancel_abandoned();
        let cache = builder.serve_stale_after(patience).build().unwrap();
        let service = BellwetherLayer::http(cache).layer(inner);
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
        ask(&service, Request::head("/").body(Body::empty()).unwrap()).await;
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
        let reading = service.clone();
        let reader = tokio::spawn(async move { ask(&reading, get("/")).await });
        sleep(reads).await;
        reader.abort();
        sleep(DELAY * 7 / 10).await;
    }
    assert_eq!((ask(&service, get("/")).await.text(), calls.count()), ("1".repeat(20).as_str(), 1));
}

/// The `ttl` of the cache is the longest lifetime, and was counted from the end of the body.
#[tokio::test(start_paused = true)]
async fn the_longest_lifetime_begins_with_the_head() {
    let mut counts = Vec::new();
    for control in ["max-age=5", "max-age=3600"] {
        let (service, calls) = kept_for_five_seconds(control, 4);
        ask(&service, get("/")).await;
        // Eight seconds after the head.
        sleep(Duration::from_secs(4)).await;
        ask(&service, get("/")).await;
        counts.push((control, calls.count()));
    }
    assert!(counts.iter().all(|it| it.1 == 2), "{counts:?}");
}

/// The same for callers that read the body while it arrives.
#[tokio::test(start_paused = true)]
async fn a_body_is_joined_for_no_longer_than_the_longest_lifetime() {
    let mut counts = Vec::new();
    for control in ["max-age=5", "max-age=3600"] {
        let (service, calls) = kept_for_five_seconds(control, 20);
        let first = service.clone();
        let first = tokio::spawn(async move { ask(&first, get("/")).await });
        sleep(Duration::from_secs(15)).await;
        ask(&service, get("/")).await;
        first.await.unwrap();
        counts.push((control, calls.count()));
    }
    assert!(counts.iter().all(|it| it.1 == 2), "{counts:?}");
}
