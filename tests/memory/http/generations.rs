//! The generation of a resource with parts of the key, where its marker is missing: on a backend
//! that refuses or is full, and beyond a limit.

use bellwether::error::{BackendError, BackendErrorKind};
use testkit::interceptor::{Answer, Hook, Interceptor, Operation};

use super::{
    parts::{as_user, by_identity, of},
    prelude::*,
};

fn write() -> Request<Body> {
    as_user(Request::post("/").body(Body::empty()).unwrap(), "bob")
}

/// A full server: it answers reads, and refuses what acquires.
#[derive(Clone)]
struct Full(BackendErrorKind);

impl Hook<MemoryBackend> for Full {
    async fn around(
        &self,
        inner: &MemoryBackend,
        operation: Operation,
    ) -> Result<Answer, BackendError> {
        match operation.op() {
            Op::Claim | Op::Acquire | Op::Edit => Err(BackendError::new(self.0, "OOM")),
            _ => operation.perform(inner).await,
        }
    }
}

/// Each read had an answer, so there was no outage, and each request made a marker of its own. Each
/// of 20 callers sent its own request.
#[tokio::test(start_paused = true)]
async fn callers_share_by_user_while_the_backend_refuses_writes() {
    let mut found = Vec::new();
    for kind in [BackendErrorKind::Refused, BackendErrorKind::Unreplicated] {
        for parts in [false, true] {
            let (inner, calls) = origin(|_, _| Response::new(Body::from("x")));
            let backend = Interceptor { inner: MemoryBackend::new(), hook: Full(kind) };
            let cache = http_cache(backend, "shop").outage_memory(1 << 20).build().unwrap();
            let layer = http_layer(cache);
            let layer = if parts { by_identity(layer) } else { layer };
            let service: Layered = layer.layer(inner);
            let mut asked = Vec::new();
            for _ in 0..20 {
                let service = service.clone();
                asked.push(tokio::spawn(async move { ask(&service, of("alice")).await }));
                sleep(DELAY / 25).await;
            }
            for it in asked {
                assert_eq!(it.await.unwrap().status, 200);
            }
            found.push((kind, parts, calls.count()));
        }
    }
    assert!(found.iter().all(|it| it.2 <= 2), "{found:?}");
}

/// There was no permit for the marker. The response was stored under a generation of the process,
/// which no write ended. The next time without a permit, it was found again.
#[tokio::test(start_paused = true)]
async fn a_write_ends_what_was_stored_while_too_many_loads_ran() {
    let mut outdated = Vec::new();
    for offset in 0..60 {
        let (inner, _) = origin(|call, _| Response::new(Body::from(call.to_string())));
        let backend = Faulty::new(|op| {
            matches!(op, Op::Get | Op::Claim | Op::Commit)
                .then_some(Fault::Late(Duration::from_millis(2)))
        });
        let cache = http_cache(backend, "bellwether").max_loads(1).build().unwrap();
        let layer = by_identity(http_layer(cache));
        let service: Layered = layer.layer(inner);
        let under_load = |url: &'static str, offset: u64| {
            let service = service.clone();
            async move {
                // Its marker is there already. Its load has the one permit.
                let busy = service.clone();
                let busy = tokio::spawn(async move {
                    ask(&busy, as_user(get(url), "other")).await;
                });
                sleep(Duration::from_millis(offset)).await;
                let answer = ask(&service, of("alice")).await;
                busy.await.unwrap();
                answer.text().parse::<u32>().unwrap()
            }
        };
        for url in ["/1", "/2"] {
            ask(&service, as_user(get(url), "warm")).await;
        }
        under_load("/1", offset).await;
        let written: u32 = ask(&service, write()).await.text().parse().unwrap();
        let found = under_load("/2", offset).await;
        if found < written {
            outdated.push((offset, found, written));
        }
    }
    assert!(outdated.is_empty(), "{outdated:?}");
}

/// The same for callers beyond the limit of those that may wait for the marker.
#[tokio::test(start_paused = true)]
async fn a_write_ends_what_was_stored_while_too_many_callers_waited() {
    let (inner, _) = origin(|call, _| Response::new(Body::from(call.to_string())));
    let cache =
        http_cache(MemoryBackend::new(), "bellwether").max_waiters_per_key(2).build().unwrap();
    let service: Layered = by_identity(http_layer(cache)).layer(inner);
    let crowd = || async {
        let users = ["alice", "bob", "carol", "dave"];
        let services = [service.clone()];
        let answers = ask_all(&services, users.map(of)).await;
        answers.iter().map(|it| it.text().parse::<u32>().unwrap()).collect::<Vec<_>>()
    };
    crowd().await;
    let written: u32 = ask(&service, write()).await.text().parse().unwrap();
    let found = crowd().await;
    assert!(found.iter().all(|it| *it > written), "{found:?} after {written}");
}

/// The process that makes the marker dies with its lease. The wait for that had the limit of the
/// cache, not that of the layer.
#[tokio::test(start_paused = true)]
async fn a_request_waits_for_another_process_no_longer_than_its_limit() {
    let mut waited = Vec::new();
    for parts in [false, true] {
        let (inner, _) = origin(|_, _| Response::new(Body::from("x")));
        let backend = MemoryBackend::new();
        // A process that dies with the first lease that it is granted.
        let dead = Faulty::over(backend.clone(), |op| {
            matches!(op, Op::Commit | Op::Release | Op::Fail | Op::Renew)
                .then_some(Fault::Astray(Duration::from_secs(600)))
        });
        let service = |cache| {
            let layer = http_layer(cache);
            let layer = if parts { by_identity(layer) } else { layer };
            layer.layer(inner.clone())
        };
        let one: Layered = service(http_cache(dead, "s").wait_limit(DELAY * 2).build().unwrap());
        let other: Layered =
            service(http_cache(backend, "s").wait_limit(DELAY * 2).build().unwrap());
        let dying = tokio::spawn(async move { ask(&one, of("alice")).await });
        sleep(Duration::from_millis(20)).await;
        dying.abort();
        let begun = Instant::now();
        ask(&other, of("alice")).await;
        waited.push((parts, begun.elapsed()));
    }
    assert!(waited.iter().all(|it| it.1 <= Duration::from_millis(200)), "{waited:?}");
}

/// The process had remembered the page by a key with the generation in it.
#[tokio::test(start_paused = true)]
async fn an_uncacheable_page_makes_no_caller_wait_after_a_write() {
    let mut waited = Vec::new();
    for parts in [false, true] {
        let (inner, _) = origin(move |call, _| {
            let response = Response::builder().header("cache-control", "private");
            response.body(Body::from(call.to_string())).unwrap()
        });
        let layer = http_layer(cache(&MemoryBackend::new()));
        let service: Layered = if parts { by_identity(layer) } else { layer }.layer(inner);
        for _ in 0..3 {
            ask(&service, of("alice")).await;
        }
        ask(&service, write()).await;
        let begun = Instant::now();
        ask_all(&[service], (0..10).map(|_| of("alice"))).await;
        waited.push((parts, begun.elapsed()));
    }
    assert!(waited.iter().all(|it| it.1 == DELAY), "{waited:?}");
}

#[tokio::test(start_paused = true)]
async fn a_response_of_a_part_is_remembered_for_an_outage() {
    let mut found = Vec::new();
    for parts in [false, true] {
        let (inner, _) = origin(move |call, _| {
            let response = Response::builder()
                .status(if call == 1 { 200 } else { 503 })
                .header("cache-control", "max-age=10, stale-if-error=600");
            response.body(Body::from("x")).unwrap()
        });
        let faulty = Faulty::new(|_| None);
        let builder = http_cache(faulty.clone(), "s").outage_memory(1 << 20);
        let layer = http_layer(builder.build().unwrap());
        let service: Layered = if parts { by_identity(layer) } else { layer }.layer(inner);
        ask(&service, of("alice")).await;
        faulty.plan(|_| Some(Fault::Refuse));
        let fresh = ask(&service, of("alice")).await.status;
        sleep(Duration::from_secs(20)).await;
        found.push((parts, fresh.as_u16(), ask(&service, of("alice")).await.status.as_u16()));
    }
    assert!(found.iter().all(|it| (it.1, it.2) == (200, 200)), "{found:?}");
}

#[tokio::test(start_paused = true)]
async fn a_write_during_the_renewal_of_the_marker_ends_all() {
    for offset in 0..40 {
        let (inner, _) = origin(|call, _| Response::new(Body::from(call.to_string())));
        let backend = MemoryBackend::new();
        let services: [Layered; 2] = [(), ()].map(|()| {
            let late =
                Faulty::over(backend.clone(), |_| Some(Fault::Late(Duration::from_millis(5))));
            let cache = http_cache(late, "s").ttl(Duration::from_secs(12_000));
            by_identity(http_layer(cache.outage_memory(1 << 20).build().unwrap()))
                .layer(inner.clone())
        });
        for service in &services {
            ask(service, of("alice")).await;
        }
        sleep(Duration::from_secs(605)).await;
        let theirs = services[0].clone();
        let hit = tokio::spawn(async move { ask(&theirs, of("alice")).await });
        sleep(Duration::from_millis(offset)).await;
        let written: u32 = ask(&services[1], write()).await.text().parse().unwrap();
        for service in &services {
            let found: u32 = ask(service, of("alice")).await.text().parse().unwrap();
            assert!(found > written, "{offset}");
        }
        hit.await.unwrap();
        for service in &services {
            let found: u32 = ask(service, of("alice")).await.text().parse().unwrap();
            assert!(found > written, "{offset}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_marker_that_is_evicted_costs_one_load_for_each_part() {
    let (inner, calls) = origin(|call, _| Response::new(Body::from(call.to_string())));
    let backend = MemoryBackend::new();
    let caches = [(), ()].map(|()| cache(&backend));
    let layers = caches.clone().map(|cache| by_identity(http_layer(cache)));
    let key = layers[0].key(&get("/").into_parts().0).unwrap();
    let services: Vec<Layered> = layers.iter().map(|layer| layer.layer(inner.clone())).collect();
    for round in 1..4 {
        let users = ["alice", "bob", "carol"];
        ask_all(&services, (0..60).map(|at| of(users[at % 3]))).await;
        assert_eq!(calls.count(), 3 * round);
        caches[0].invalidate(key.clone()).await.unwrap();
    }
}
