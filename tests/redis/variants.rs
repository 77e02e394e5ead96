//! Variants of two processes over one server.

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
    BellwetherLayer, Cache, RedisBackend, http_cache,
    layer::{CachedResponse, Http, ResponseBody},
    lease::Retry,
};
use http::{Request, Response};
use http_body_util::BodyExt;
use testkit::{LIMIT, RedisServer};
use tokio::time::sleep;
use tower::{Layer, ServiceExt, service_fn, util::BoxCloneSyncService};

type App = BoxCloneSyncService<Request<Body>, Response<ResponseBody<Body>>, Infallible>;

/// A process of a service, which answers with what the header says.
struct Process {
    app: App,
    cache: Cache<CachedResponse>,
    layer: BellwetherLayer<Http>,
}

fn process(server: &RedisServer, name: &'static str, calls: &Arc<AtomicUsize>) -> Process {
    let backend = RedisBackend::builder().server(server.url()).command_timeout(LIMIT);
    let cache = http_cache(backend.build().unwrap())
        .namespace("shop")
        .retry(Retry::on_demand().try_limit(LIMIT))
        .build()
        .unwrap();
    let calls = Arc::clone(calls);
    let inner = service_fn(move |request: Request<Body>| {
        calls.fetch_add(1, Ordering::SeqCst);
        let said = request.headers().get(name).map_or("", |value| value.to_str().unwrap());
        let answer = Response::builder().header("vary", name).body(Body::from(said.to_owned()));
        async move {
            sleep(Duration::from_millis(50)).await;
            Ok::<_, Infallible>(answer.unwrap())
        }
    });
    let layer = BellwetherLayer::http(cache.clone()).default_lifetime(Duration::from_secs(60));
    Process { app: BoxCloneSyncService::new(layer.layer(inner)), cache, layer }
}

fn request(name: &str, value: &str) -> Request<Body> {
    Request::get("/").header("host", "shop").header(name, value).body(Body::empty()).unwrap()
}

async fn read(app: &App, request: Request<Body>) -> String {
    let response = app.clone().oneshot(request).await.unwrap();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    String::from_utf8(body.to_vec()).unwrap()
}

#[tokio::test]
async fn two_users_of_two_processes_get_their_own_variants() {
    for name in ["accept-language", "origin", "x-country", "accept-encoding"] {
        let server = RedisServer::start().await;
        let calls: Arc<AtomicUsize> = Arc::default();
        let processes = [(), ()].map(|()| process(&server, name, &calls));
        for round in 0..3 {
            let asked: Vec<_> = (0..40)
                .map(|at| {
                    let app = processes[at % 2].app.clone();
                    let user = ["alice", "bob"][at / 2 % 2];
                    tokio::spawn(async move { (read(&app, request(name, user)).await, user) })
                })
                .collect();
            for asked in asked {
                let (answer, user) = asked.await.unwrap();
                assert_eq!(answer, user, "{name}");
            }
            for at in 0..4 {
                let user = ["alice", "bob"][at / 2];
                assert_eq!(read(&processes[at % 2].app, request(name, user)).await, user);
            }
            assert_eq!(calls.load(Ordering::SeqCst), 2 * (round + 1), "{name}");
            let key = processes[0].layer.key(&request(name, "").into_parts().0).unwrap();
            processes[round % 2].cache.invalidate(key).await.unwrap();
        }
    }
}

#[tokio::test]
async fn a_hit_of_a_variant_is_two_commands() {
    let server = RedisServer::start().await;
    let calls: Arc<AtomicUsize> = Arc::default();
    let process = process(&server, "accept-language", &calls);
    for language in ["en", "de"] {
        read(&process.app, request("accept-language", language)).await;
    }
    let mut monitor = server.monitor().await;
    for language in ["en", "de"] {
        monitor.calls_from_clients().await;
        assert_eq!(read(&process.app, request("accept-language", language)).await, language);
        let commands = monitor.calls_from_clients().await;
        assert_eq!(commands.len(), 2, "{commands:?}");
    }
    assert_eq!(calls.load(Ordering::SeqCst), 2);
}
