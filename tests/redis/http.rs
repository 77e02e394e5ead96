//! The HTTP layer of two processes over one server.

use axum::body::Body;
use bellwether::{
    BellwetherLayer,
    layer::{Http, Policy, ResponseBody},
};
use http::{Request, Response};
use http_body_util::BodyExt;
use tower::{Layer, Service, ServiceExt, service_fn, util::BoxCloneSyncService};

use crate::prelude::*;

const DELAY: Duration = Duration::from_millis(100);

/// The calls of an origin.
#[derive(Default)]
struct Calls {
    all: AtomicUsize,
    running: AtomicUsize,
    most_running: AtomicUsize,
}

impl Calls {
    fn count(&self) -> usize {
        self.all.load(Ordering::SeqCst)
    }
}

type Answer = Response<ResponseBody<Body>>;
type App = BoxCloneSyncService<Request<Body>, Answer, Infallible>;

/// Returns a process of a service: a layer over a backend of its own.
fn process(
    server: &RedisServer,
    set: impl Fn(BellwetherLayer<Http>) -> BellwetherLayer<Http>,
    calls: &Arc<Calls>,
    answer: impl Fn(usize, Request<Body>) -> Response<Body> + Clone + Send + Sync + 'static,
) -> App {
    let calls = calls.clone();
    let cache = http_cache(testkit::open(server.url()), "shop")
        .retry(Retry::on_demand().try_limit(LIMIT))
        .build()
        .unwrap();
    let inner = service_fn(move |request: Request<Body>| {
        let answer = answer(calls.all.fetch_add(1, Ordering::SeqCst) + 1, request);
        let calls = calls.clone();
        async move {
            let running = calls.running.fetch_add(1, Ordering::SeqCst) + 1;
            calls.most_running.fetch_max(running, Ordering::SeqCst);
            sleep(DELAY).await;
            calls.running.fetch_sub(1, Ordering::SeqCst);
            Ok::<_, Infallible>(answer)
        }
    });
    BoxCloneSyncService::new(set(BellwetherLayer::http(cache)).layer(inner))
}

fn get(path: &str) -> Request<Body> {
    Request::get(path).header("host", "internal").body(Body::empty()).unwrap()
}

async fn read(app: &App, request: Request<Body>) -> String {
    let mut app = app.clone();
    let response = app.ready().await.unwrap().call(request).await.unwrap();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    String::from_utf8(body.to_vec()).unwrap()
}

/// Sends as many requests at once, in turn to each of the processes.
async fn read_all(apps: &[App], count: usize, path: &'static str) -> Vec<String> {
    let asked: Vec<_> = (0..count)
        .map(|at| {
            let app = apps[at % apps.len()].clone();
            tokio::spawn(async move { read(&app, get(path)).await })
        })
        .collect();
    let mut answers = Vec::new();
    for asked in asked {
        answers.push(asked.await.unwrap());
    }
    answers
}

/// Returns an answer that begins with the number of the call.
fn numbered(
    length: usize,
) -> impl Fn(usize, Request<Body>) -> Response<Body> + Clone + Send + Sync + 'static {
    move |call, _| Response::new(Body::from(format!("{call} {}", "x".repeat(length))))
}

/// A large answer is not pushed. Processes that wait for one load after the other would be served
/// one by one.
#[tokio::test]
async fn a_large_answer_that_is_coalesced_keeps_no_process_waiting_twice() {
    let server = RedisServer::start().await;
    let calls: Arc<Calls> = Arc::default();
    let coalescing = |layer: BellwetherLayer<Http>| layer.policy(Policy::default().coalesce_only());
    let start = |_| process(&server, coalescing, &calls, numbered(100 << 10));
    let apps: Vec<_> = (0..6).map(start).collect();
    let answers = read_all(&apps, 12, "/").await;
    assert!(answers.iter().all(|answer| answer.len() > 100 << 10));
    assert!(calls.count() <= 6);
    assert!(calls.most_running.load(Ordering::SeqCst) > 1);
}

/// What selects a variant: the `Vary` of the answer, or a part of the key.
#[tokio::test]
async fn a_hit_of_a_variant_is_two_commands() {
    const NAME: &str = "accept-language";
    for is_part in [false, true] {
        let server = RedisServer::start().await;
        let calls: Arc<Calls> = Arc::default();
        let select = |layer: BellwetherLayer<Http>| {
            let layer = layer.default_lifetime(Duration::from_secs(60));
            if is_part { layer.vary_by_header(NAME) } else { layer }
        };
        let app = process(&server, select, &calls, move |_, request| {
            let answer = Response::builder();
            let answer = if is_part { answer } else { answer.header("vary", NAME) };
            answer.body(Body::from(request.headers()[NAME].as_bytes().to_vec())).unwrap()
        });
        let ask = async |language: &str| {
            let mut request = get("/");
            request.headers_mut().insert(NAME, language.parse().unwrap());
            assert_eq!(read(&app, request).await, language);
        };
        // The process learns by its first hit that entries have windows.
        for language in ["en", "de", "en"] {
            ask(language).await;
        }
        let mut monitor = server.monitor().await;
        for language in ["en", "de"] {
            monitor.calls_from_clients().await;
            ask(language).await;
            // `TIME` is in the write of a read, because a marker has an age.
            let commands = commands(monitor.calls_from_clients().await);
            assert_eq!(commands.len(), 2, "{is_part} {commands:?}");
        }
        assert_eq!(calls.count(), 2, "{is_part}");
    }
}
