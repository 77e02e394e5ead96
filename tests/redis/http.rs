//! The HTTP layer of two processes over one server.

use std::{
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use axum::body::Body;
use bellwether::{
    BellwetherLayer, ErrorKind, http_cache,
    layer::{Http, Policy, ResponseBody},
    lease::Retry,
};
use http::{Request, Response};
use http_body_util::BodyExt;
use testkit::{LIMIT, RedisServer, comes_true};
use tokio::{
    sync::{RwLock, mpsc},
    time::sleep,
};
use tower::{Layer, Service, ServiceExt, service_fn, util::BoxCloneSyncService};

const DELAY: Duration = Duration::from_millis(100);

/// The calls of an origin.
#[derive(Default)]
struct Calls {
    all: AtomicUsize,
    running: AtomicUsize,
    most_running: AtomicUsize,
    /// While it is held, no call returns.
    gate: RwLock<()>,
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
    name: &str,
    set: impl Fn(BellwetherLayer<Http>) -> BellwetherLayer<Http>,
    calls: &Arc<Calls>,
    answer: impl Fn(usize) -> Response<Body> + Clone + Send + Sync + 'static,
) -> App {
    let calls = calls.clone();
    let cache = http_cache(testkit::open(server.url()))
        .namespace(name)
        .retry(Retry::on_demand().try_limit(LIMIT))
        .build()
        .unwrap();
    let inner = service_fn(move |_: Request<Body>| {
        let answer = answer(calls.all.fetch_add(1, Ordering::SeqCst) + 1);
        let calls = calls.clone();
        async move {
            let running = calls.running.fetch_add(1, Ordering::SeqCst) + 1;
            calls.most_running.fetch_max(running, Ordering::SeqCst);
            sleep(DELAY).await;
            drop(calls.gate.read().await);
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

fn for_a_minute(layer: BellwetherLayer<Http>) -> BellwetherLayer<Http> {
    layer.default_lifetime(Duration::from_secs(60))
}

/// Returns an answer that begins with the number of the call.
fn numbered(length: usize) -> impl Fn(usize) -> Response<Body> + Clone + Send + Sync + 'static {
    move |call| Response::new(Body::from(format!("{call} {}", "x".repeat(length))))
}

/// An answer to a request with credentials sent all callers without any to the origin, each alone.
#[tokio::test]
async fn a_reserved_answer_lets_one_caller_of_the_fleet_lead() {
    let server = RedisServer::start().await;
    let calls = Arc::default();
    let apps = [(), ()].map(|()| {
        process(
            &server,
            "shop",
            |layer| layer.policy(Policy::rfc9111()),
            &calls,
            |call| {
                let answer = Response::builder().header("cache-control", "max-age=60");
                answer.body(Body::from(call.to_string())).unwrap()
            },
        )
    });
    let held = calls.gate.write().await;
    let mut request = get("/");
    request.headers_mut().insert("authorization", "ann".parse().unwrap());
    let leader = tokio::spawn({
        let app = apps[0].clone();
        async move { read(&app, request).await }
    });
    assert!(comes_true(LIMIT, async || calls.count() == 1).await);
    let all = tokio::spawn(async move { read_all(&apps, 100, "/").await });
    sleep(DELAY).await;
    drop(held);
    assert_eq!(leader.await.unwrap(), "1");
    assert!(all.await.unwrap().iter().all(|answer| answer == "2"));
    assert_eq!(calls.count(), 2);
}

/// Two services that shared a server and a host name served each other's answers.
#[tokio::test]
async fn two_services_with_one_host_name_do_not_meet() {
    let server = RedisServer::start().await;
    let nameless = http_cache(testkit::open(server.url())).build();
    assert_eq!(nameless.unwrap_err().kind(), ErrorKind::InvalidConfig);
    let calls = Arc::default();
    let apps = ["shop", "bank"].map(|name| {
        process(&server, name, for_a_minute, &calls, move |_| Response::new(Body::from(name)))
    });
    for _ in 0..2 {
        assert_eq!(read(&apps[0], get("/")).await, "shop");
        assert_eq!(read(&apps[1], get("/")).await, "bank");
    }
    for (at, answer) in read_all(&apps, 20, "/other").await.iter().enumerate() {
        assert_eq!(answer, ["shop", "bank"][at % 2]);
    }
}

#[tokio::test]
async fn an_answer_is_coalesced_over_processes_and_not_stored() {
    let server = RedisServer::start().await;
    let calls: Arc<Calls> = Arc::default();
    let coalescing = |layer: BellwetherLayer<Http>| layer.policy(Policy::careful().coalesce_only());
    let apps = [(), ()].map(|()| process(&server, "shop", coalescing, &calls, numbered(10)));
    let mut raw = server.raw().await;
    for call in 1..4 {
        let held = calls.gate.write().await;
        let theirs = apps.clone();
        let all = tokio::spawn(async move { read_all(&theirs, 20, "/").await });
        // One process loads, and the other one waits for it.
        let waits = async || raw.registered("*:l").await == 1;
        assert!(comes_true(LIMIT, waits).await, "no process waits for the other one");
        drop(held);
        let answers = all.await.unwrap();
        assert!(answers.iter().all(|answer| *answer == answers[0]), "{answers:?}");
        assert_eq!(calls.count(), call);
    }
    assert_ne!(read(&apps[0], get("/")).await, read(&apps[1], get("/")).await);
    let keys: Vec<String> = server.raw().await.run(&["KEYS", "*"]).await;
    assert!(keys.iter().all(|key| !key.ends_with(":e")), "{keys:?}");
}

/// A large answer is not pushed. Processes that wait for one load after the other would be served
/// one by one.
#[tokio::test]
async fn a_large_answer_that_is_coalesced_keeps_no_process_waiting_twice() {
    let server = RedisServer::start().await;
    let calls: Arc<Calls> = Arc::default();
    let coalescing = |layer: BellwetherLayer<Http>| layer.policy(Policy::careful().coalesce_only());
    let start = |_| process(&server, "shop", coalescing, &calls, numbered(100 << 10));
    let apps: Vec<_> = (0..6).map(start).collect();
    let answers = read_all(&apps, 12, "/").await;
    assert!(answers.iter().all(|answer| answer.len() > 100 << 10));
    assert!(calls.count() <= 6);
    assert!(calls.most_running.load(Ordering::SeqCst) > 1);
}

/// One odd answer sent all later requests of both processes to the origin.
#[tokio::test]
async fn the_mark_of_one_odd_answer_ends_in_both_processes() {
    let server = RedisServer::start().await;
    let calls: Arc<Calls> = Arc::default();
    let answer = |call: usize| {
        let mut response = Response::new(Body::from(call.to_string()));
        if call == 1 {
            response.headers_mut().insert("set-cookie", "a=b".parse().unwrap());
        }
        response
    };
    let apps = [(), ()].map(|()| process(&server, "shop", for_a_minute, &calls, answer));
    for at in 0..40 {
        read(&apps[at % 2], get("/")).await;
    }
    assert!(calls.count() <= 4, "{}", calls.count());
    let answers = read_all(&apps, 20, "/").await;
    assert!(answers.iter().all(|answer| *answer == answers[0]), "{answers:?}");
}

/// Returns an answer that is fresh for a minute, and then stale in this window.
fn stale(window: &'static str) -> impl Fn(usize) -> Response<Body> + Clone + Send + Sync + 'static {
    move |call| {
        Response::builder()
            .status(if call > 1 && window == "stale-if-error" { 503 } else { 200 })
            .header("cache-control", format!("max-age=60, {window}=600"))
            .body(Body::from(call.to_string()))
            .unwrap()
    }
}

#[tokio::test]
async fn one_process_refreshes_a_stale_answer_and_no_caller_waits() {
    let server = RedisServer::start().await;
    let calls: Arc<Calls> = Arc::default();
    let as_it_says = |layer| layer;
    let answer = stale("stale-while-revalidate");
    let apps = [(), ()].map(|()| process(&server, "shop", as_it_says, &calls, answer.clone()));
    assert_eq!(read(&apps[0], get("/")).await, "1");
    for window in 1..4 {
        server.raw().await.age(Duration::from_secs(100)).await;
        // The origin does not answer, and so no caller can have waited for it.
        let held = calls.gate.write().await;
        let answers = read_all(&apps, 20, "/").await;
        assert!(answers.iter().all(|answer| *answer == window.to_string()), "{answers:?}");
        let response = apps[1].clone().oneshot(get("/")).await.unwrap();
        let age: u64 = response.headers()["age"].to_str().unwrap().parse().unwrap();
        assert!((100..160).contains(&age), "{age}");
        drop(held);
        let refreshed = async || read(&apps[1], get("/")).await == (window + 1).to_string();
        assert!(comes_true(LIMIT, refreshed).await, "the answer is not refreshed");
        assert_eq!(calls.count(), window + 1);
    }
}

#[tokio::test]
async fn a_stale_answer_stands_in_for_a_failure_in_both_processes() {
    let server = RedisServer::start().await;
    let calls: Arc<Calls> = Arc::default();
    let as_it_says = |layer| layer;
    let answer = stale("stale-if-error");
    let apps = [(), ()].map(|()| process(&server, "shop", as_it_says, &calls, answer.clone()));
    assert_eq!(read(&apps[0], get("/")).await, "1");
    server.raw().await.age(Duration::from_secs(100)).await;
    let answers = read_all(&apps, 20, "/").await;
    assert!(answers.iter().all(|answer| answer == "1"), "{answers:?}");
    assert!(calls.count() > 1);
    server.raw().await.age(Duration::from_secs(600)).await;
    assert_ne!(read(&apps[1], get("/")).await, "1");
}

/// The other process served a page that had become private for its whole window.
#[tokio::test]
async fn an_answer_that_is_no_failure_ends_the_stale_answer_of_both_processes() {
    for window in ["stale-while-revalidate", "stale-if-error"] {
        for (status, control) in [(200, "private"), (302, ""), (401, ""), (403, ""), (451, "")] {
            let server = RedisServer::start().await;
            let calls: Arc<Calls> = Arc::default();
            let answer = move |call: usize| {
                let (status, control) = match call {
                    1 => (200, format!("max-age=60, {window}=600")),
                    2 => (status, control.to_owned()),
                    _ => (503, "no-store".to_owned()),
                };
                let answer = Response::builder().status(status).header("cache-control", control);
                answer.body(Body::from(call.to_string())).unwrap()
            };
            let as_it_says = |layer| layer;
            let apps = [(), ()].map(|()| process(&server, "shop", as_it_says, &calls, answer));
            assert_eq!(read(&apps[0], get("/")).await, "1");
            assert_eq!(read(&apps[1], get("/")).await, "1");
            server.raw().await.age(Duration::from_secs(100)).await;
            read(&apps[0], get("/")).await;
            for app in &apps {
                let ended = async || read(app, get("/")).await != "1";
                assert!(comes_true(LIMIT, ended).await, "{window} {status}");
            }
        }
    }
}

type Feed = mpsc::UnboundedSender<Result<&'static str, Infallible>>;

/// Returns answers whose bodies come out of one feed each, in the order of the calls.
fn fed()
-> (impl Fn(usize) -> Response<Body> + Clone + Send + Sync + 'static, mpsc::UnboundedReceiver<Feed>)
{
    let (feeds, fed) = mpsc::unbounded_channel();
    let answer = move |_| {
        let (feed, mut pieces) = mpsc::unbounded_channel();
        feeds.send(feed).unwrap();
        let pieces = futures_util::stream::poll_fn(move |context| pieces.poll_recv(context));
        Response::new(Body::from_stream(pieces))
    };
    (answer, fed)
}

async fn open(app: &App) -> ResponseBody<Body> {
    app.clone().oneshot(get("/")).await.unwrap().into_body()
}

async fn next(body: &mut ResponseBody<Body>) -> String {
    let data = body.frame().await.unwrap().unwrap().into_data().unwrap();
    String::from_utf8(data.to_vec()).unwrap()
}

/// Each process waited for the whole body. Now the callers of the one that loads read it while it
/// arrives, and the other one has it as soon as it is stored.
#[tokio::test]
async fn a_body_is_read_while_it_arrives_and_stored_at_its_end() {
    let server = RedisServer::start().await;
    let calls: Arc<Calls> = Arc::default();
    let (answer, mut feeds) = fed();
    let apps = [(), ()].map(|()| process(&server, "shop", for_a_minute, &calls, answer.clone()));
    let mut bodies = vec![open(&apps[0]).await];
    let feed = feeds.recv().await.unwrap();
    feed.send(Ok("one")).unwrap();
    // A late joiner is admitted, because the lease is held.
    bodies.push(open(&apps[0]).await);
    for body in &mut bodies {
        assert_eq!(next(body).await, "one");
    }
    let there = apps[1].clone();
    let waits = tokio::spawn(async move { read(&there, get("/")).await });
    feed.send(Ok("two")).unwrap();
    for body in &mut bodies {
        assert_eq!(next(body).await, "two");
    }
    assert!(!waits.is_finished());
    drop(feed);
    assert_eq!((waits.await.unwrap().as_str(), calls.count()), ("onetwo", 1));
}

/// A caller that knows of an invalidation in another process must not read a body that is older.
#[tokio::test]
async fn no_caller_joins_a_body_that_another_process_invalidated() {
    let server = RedisServer::start().await;
    let calls: Arc<Calls> = Arc::default();
    let (answer, mut feeds) = fed();
    let app = process(&server, "shop", for_a_minute, &calls, answer);
    let mut old = open(&app).await;
    let feed = feeds.recv().await.unwrap();
    feed.send(Ok("old")).unwrap();
    let other = http_cache(testkit::open(server.url())).namespace("shop");
    let other = other.build().unwrap();
    let key = BellwetherLayer::http(other.clone()).key(&get("/").into_parts().0).unwrap();
    other.invalidate(key).await.unwrap();
    let mut new = open(&app).await;
    feeds.recv().await.unwrap().send(Ok("new")).unwrap();
    assert_eq!((next(&mut new).await, next(&mut old).await), ("new".into(), "old".into()));
    assert_eq!(calls.count(), 2);
}

/// Each caller that waited sent its own request to the service that was overloaded.
#[tokio::test]
async fn an_unavailable_service_is_left_alone_by_both_processes() {
    let server = RedisServer::start().await;
    let calls: Arc<Calls> = Arc::default();
    let answer = |call: usize| {
        let answer = Response::builder();
        let answer = match call {
            1 => answer.status(503).header("retry-after", "2").header("set-cookie", "a=b"),
            _ => answer,
        };
        answer.body(Body::from(call.to_string())).unwrap()
    };
    let apps = [(), ()].map(|()| process(&server, "shop", for_a_minute, &calls, answer));
    let asked: Vec<_> =
        (0..500).map(|at| tokio::spawn(apps[at % 2].clone().oneshot(get("/")))).collect();
    let mut of_service = 0;
    for asked in asked {
        let (head, body) = asked.await.unwrap().unwrap().into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        let left: u64 = head.headers["retry-after"].to_str().unwrap().parse().unwrap();
        assert!(head.status == 503 && (1..=2).contains(&left), "{} {left}", head.status);
        of_service += usize::from(!body.is_empty());
        assert_eq!(head.headers.contains_key("set-cookie"), !body.is_empty());
    }
    assert_eq!((of_service, calls.count()), (1, 1));
    // The first load after the pause ends it for both.
    let is_well = async || read(&apps[0], get("/")).await == "2";
    assert!(comes_true(LIMIT, is_well).await, "the key backs off for too long");
    let answers = read_all(&apps, 20, "/").await;
    assert!(answers.iter().all(|answer| answer == "2"), "{answers:?}");
    assert_eq!(calls.count(), 2);
}
