//! The generation of a resource with parts of the key, where its marker is missing: on a backend
//! that refuses or is full, and beyond a limit.

use bellwether::error::{BackendError, BackendErrorKind};
use testkit::interceptor::{self, Hook, Interceptor, Operation};

use super::{
    parts::{as_user, by_identity, of},
    prelude::*,
};

fn write() -> Request<Body> {
    as_user(post(), "bob")
}

fn number(answer: &Answer) -> u32 {
    answer.text().parse().unwrap()
}

/// Returns the layer with a part of the key or without.
fn with_parts(layer: BellwetherLayer<Http>, parts: bool) -> BellwetherLayer<Http> {
    if parts { by_identity(layer) } else { layer }
}

/// A full server: it answers reads, and refuses what acquires.
#[derive(Clone)]
struct Full(BackendErrorKind);

impl Hook<MemoryBackend> for Full {
    async fn around(
        &self,
        inner: &MemoryBackend,
        operation: Operation,
    ) -> Result<interceptor::Answer, BackendError> {
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
    for kind in [BackendErrorKind::Refused, BackendErrorKind::Unreplicated] {
        for parts in [false, true] {
            let (inner, calls) = numbered();
            let backend = Interceptor { inner: MemoryBackend::new(), hook: Full(kind) };
            let cache = http_cache(backend, "shop").outage_memory(1 << 20).build().unwrap();
            let service: Layered = with_parts(http_layer(cache), parts).layer(inner);
            let mut asked = Vec::new();
            for _ in 0..20 {
                asked.push(asking(&service, of("alice")));
                sleep(DELAY / 25).await;
            }
            assert!(all(asked).await.iter().all(|answer| answer.status == 200));
            assert!(calls.count() <= 2, "{kind:?} {parts}: {}", calls.count());
        }
    }
}

/// There was no permit for the marker. The response was stored under a generation of the process,
/// which no write ended. The next time without a permit, it was found again.
#[tokio::test(start_paused = true)]
async fn a_write_ends_what_was_stored_while_too_many_loads_ran() {
    for offset in 0..60 {
        let backend = Faulty::new(|op| {
            matches!(op, Op::Get | Op::Claim | Op::Commit).then_some(Fault::Late(2 * MS))
        });
        let cache = http_cache(backend, "bellwether").max_loads(1).build().unwrap();
        let service: Layered = by_identity(http_layer(cache)).layer(numbered().0);
        let under_load = async |url: &'static str| {
            // Its marker is there already. Its load has the one permit.
            let busy = asking(&service, as_user(get(url), "other"));
            sleep(offset * MS).await;
            let answer = ask(&service, of("alice")).await;
            busy.await.unwrap();
            number(&answer)
        };
        for url in ["/1", "/2"] {
            ask(&service, as_user(get(url), "warm")).await;
        }
        under_load("/1").await;
        let written = number(&ask(&service, write()).await);
        let found = under_load("/2").await;
        assert!(found >= written, "{offset}: {found} after {written}");
    }
}

/// The same for callers beyond the limit of those that may wait for the marker.
#[tokio::test(start_paused = true)]
async fn a_write_ends_what_was_stored_while_too_many_callers_waited() {
    let layer = layer_of(builder().max_waiters_per_key(2));
    let service: Layered = by_identity(layer).layer(numbered().0);
    let crowd = async || {
        let users = ["alice", "bob", "carol", "dave"];
        ask_all(std::slice::from_ref(&service), users.map(of)).await
    };
    crowd().await;
    let written = number(&ask(&service, write()).await);
    for found in crowd().await {
        assert!(number(&found) > written, "{} after {written}", found.text());
    }
}

/// The process that makes the marker dies with its lease. The wait for that had the limit of the
/// cache, not that of the layer.
#[tokio::test(start_paused = true)]
async fn a_request_waits_for_another_process_no_longer_than_its_limit() {
    for parts in [false, true] {
        let backend = MemoryBackend::new();
        // A process that dies with the first lease that it is granted.
        let dead = Faulty::over(backend.clone(), |op| {
            matches!(op, Op::Commit | Op::Release | Op::Fail | Op::Renew)
                .then_some(Fault::Astray(600 * SECOND))
        });
        let service = |backend: Faulty| -> Layered {
            let cache = http_cache(backend, "s").wait_limit(DELAY * 2).build().unwrap();
            with_parts(http_layer(cache), parts).layer(numbered().0)
        };
        let one = service(dead);
        let other = service(Faulty::over(backend, |_| None));
        let dying = asking(&one, of("alice"));
        sleep(20 * MS).await;
        dying.abort();
        let begun = Instant::now();
        ask(&other, of("alice")).await;
        assert!(begun.elapsed() <= 200 * MS, "{parts}: {:?}", begun.elapsed());
    }
}

/// The process had remembered the page by a key with the generation in it.
#[tokio::test(start_paused = true)]
async fn an_uncacheable_page_makes_no_caller_wait_after_a_write() {
    for parts in [false, true] {
        let (inner, _) = with_headers(&[("cache-control", "private")]);
        let service: Layered = with_parts(layer(), parts).layer(inner);
        for _ in 0..3 {
            ask(&service, of("alice")).await;
        }
        ask(&service, write()).await;
        let begun = Instant::now();
        ask_all(&[service], (0..10).map(|_| of("alice"))).await;
        assert_eq!(begun.elapsed(), DELAY, "{parts}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_response_of_a_part_is_remembered_for_an_outage() {
    for parts in [false, true] {
        let (inner, _) = origin(move |call, _| {
            let status = if call == 1 { 200 } else { 503 };
            reply(status, &[("cache-control", "max-age=10, stale-if-error=600")], "x")
        });
        let faulty = Faulty::new(|_| None);
        let cache = http_cache(faulty.clone(), "s").outage_memory(1 << 20).build().unwrap();
        let service: Layered = with_parts(http_layer(cache), parts).layer(inner);
        ask(&service, of("alice")).await;
        faulty.plan(|_| Some(Fault::Refuse));
        for pause in [0, 20] {
            sleep(pause * SECOND).await;
            assert_eq!(ask(&service, of("alice")).await.status, 200, "{parts} after {pause} s");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_write_during_the_renewal_of_the_marker_ends_all() {
    for offset in 0..40 {
        let (inner, _) = numbered();
        let backend = MemoryBackend::new();
        let services: [Layered; 2] = [(), ()].map(|()| {
            let late = Faulty::over(backend.clone(), |_| Some(Fault::Late(5 * MS)));
            let cache = http_cache(late, "s").ttl(12_000 * SECOND).outage_memory(1 << 20);
            by_identity(http_layer(cache.build().unwrap())).layer(inner.clone())
        });
        for service in &services {
            ask(service, of("alice")).await;
        }
        sleep(605 * SECOND).await;
        let hit = asking(&services[0], of("alice"));
        sleep(offset * MS).await;
        let written = number(&ask(&services[1], write()).await);
        for service in &services {
            assert!(number(&ask(service, of("alice")).await) > written, "{offset}");
        }
        hit.await.unwrap();
        for service in &services {
            assert!(number(&ask(service, of("alice")).await) > written, "{offset}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_marker_that_is_evicted_costs_one_load_for_each_part() {
    let (inner, calls) = numbered();
    let backend = MemoryBackend::new();
    let layers = [(), ()].map(|()| by_identity(http_layer(cache(&backend))));
    let key = layers[0].key(&get("/").into_parts().0).unwrap();
    let services = layers.map(|layer| layer.layer(inner.clone()));
    for round in 1..4 {
        let users = ["alice", "bob", "carol"];
        ask_all(&services, (0..60).map(|at| of(users[at % 3]))).await;
        assert_eq!(calls.count(), 3 * round);
        cache(&backend).invalidate(key.clone()).await.unwrap();
    }
}
