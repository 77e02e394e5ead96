//! `BellwetherLayer::new` with other middlewares inside of it, outside of it, and both.

use bellwether::BellwetherLayer;
use tower::{
    Layer, Service, ServiceBuilder, ServiceExt,
    limit::{ConcurrencyLimitLayer, GlobalConcurrencyLimitLayer},
    service_fn,
    util::BoxCloneSyncService,
};

use crate::prelude::*;

const DELAY: Duration = Duration::from_millis(50);

/// The longest time for anything here.
const LIMIT: Duration = Duration::from_secs(30);

type Stack = BoxCloneSyncService<&'static str, String, BoxError>;

/// Puts a middleware around a service.
type Wrap = fn(Stack) -> Stack;

fn boxed<S>(service: S) -> Stack
where
    S: Service<&'static str, Response = String> + Clone + Send + Sync + 'static,
    S::Future: Send,
    S::Error: Into<BoxError>,
{
    BoxCloneSyncService::new(service.map_err(Into::into))
}

const MIDDLEWARES: [(&str, Wrap); 7] = [
    ("a concurrency limit of one", |inner| boxed(ConcurrencyLimitLayer::new(1).layer(inner))),
    ("a global limit of one", |inner| boxed(GlobalConcurrencyLimitLayer::new(1).layer(inner))),
    ("a buffer", |inner| boxed(ServiceBuilder::new().buffer(1).service(inner))),
    ("a buffer over a limit of one", |inner| {
        boxed(ServiceBuilder::new().buffer(1).concurrency_limit(1).service(inner))
    }),
    ("load shed over a limit", |inner| {
        boxed(ServiceBuilder::new().load_shed().concurrency_limit(40).service(inner))
    }),
    ("a timeout", |inner| boxed(ServiceBuilder::new().timeout(LIMIT / 2).service(inner))),
    ("a change of the response", |inner| boxed(inner.map_response(|text: String| text))),
];

/// Returns the stacks of a middleware, each with the number of requests that reach its innermost
/// service.
fn stacks(wrap: Wrap) -> [(&'static str, Stack, Arc<AtomicUsize>); 3] {
    ["inside", "outside", "both"].map(|place| {
        let calls = Arc::<AtomicUsize>::default();
        let counted = calls.clone();
        let origin = boxed(service_fn(move |request: &'static str| {
            let call = counted.fetch_add(1, Ordering::SeqCst) + 1;
            async move {
                sleep(DELAY).await;
                match request {
                    "failing" => Err(BoxError::from(format!("failure {call}"))),
                    _ => Ok(format!("call {call}")),
                }
            }
        }));
        let cache: Cache<String> =
            Cache::builder(MemoryBackend::new(), "bellwether").build().unwrap();
        let keyed = |request: &&'static str| (*request != "own").then(|| Key::from(*request));
        let inner = if place == "outside" { origin } else { wrap(origin) };
        let layered = boxed(BellwetherLayer::new(cache, keyed).layer(inner));
        (place, if place == "inside" { layered } else { wrap(layered) }, calls)
    })
}

/// Sends equal requests at once, and returns the different answers.
async fn answers(stack: &Stack, request: &'static str, count: usize) -> Vec<String> {
    let asked = (0..count).map(|_| spawn(timeout(LIMIT, stack.clone().oneshot(request))));
    let asked = all(asked).await.into_iter();
    let mut answers: Vec<_> =
        asked.map(|it| it.unwrap().unwrap_or_else(|error| format!("{error:#}"))).collect();
    answers.sort();
    answers.dedup();
    answers
}

#[tokio::test(start_paused = true)]
async fn values_are_shared_beside_any_middleware() {
    for (name, wrap) in MIDDLEWARES {
        for (place, stack, calls) in stacks(wrap) {
            for _ in 0..2 {
                assert_eq!(answers(&stack, "a", 30).await, ["call 1"], "{name} {place}");
            }
            assert_eq!(answers(&stack, "own", 5).await.len(), 5, "{name} {place}");
            assert_eq!(calls.load(Ordering::SeqCst), 6, "{name} {place}");
            // All callers that wait for a load have its error.
            let failed = answers(&stack, "failing", 1).await;
            assert!(failed[0].ends_with("failure 7"), "{name} {place}: {failed:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn callers_of_values_leave_beside_any_middleware() {
    for (name, wrap) in MIDDLEWARES {
        for (place, stack, calls) in stacks(wrap) {
            for request in ["a", "own", "b", "own", "c"] {
                let leaving = stack.clone().oneshot(request);
                assert!(timeout(DELAY / 2, leaving).await.is_err(), "{name} {place}");
            }
            // No permit, no slot and no flight is left behind.
            sleep(6 * DELAY).await;
            for request in ["a", "b", "c"] {
                assert_eq!(answers(&stack, request, 5).await.len(), 1, "{name} {place}");
            }
            assert!(calls.load(Ordering::SeqCst) <= 8, "{name} {place}");
        }
    }
}
