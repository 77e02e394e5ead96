//! Variants at a server.

use std::{
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use axum::body::Body;
use bellwether::{BellwetherLayer, http_cache, layer::ResponseBody, lease::Retry};
use http::{Request, Response};
use http_body_util::BodyExt;
use testkit::{LIMIT, RedisServer};
use tokio::time::sleep;
use tower::{Layer, ServiceExt, service_fn, util::BoxCloneSyncService};

type App = BoxCloneSyncService<Request<Body>, Response<ResponseBody<Body>>, Infallible>;

/// What selects a variant.
#[derive(Clone, Copy, Debug)]
enum By {
    /// The `Vary` of the answer.
    Vary,
    /// A part of the key.
    Part,
}

/// A process of a service, which answers with what the header says.
struct Process {
    app: App,
}

fn process(server: &RedisServer, name: &'static str, by: By, calls: &Arc<AtomicUsize>) -> Process {
    let cache = http_cache(testkit::open(server.url()), "shop")
        .retry(Retry::on_demand().try_limit(LIMIT))
        .build()
        .unwrap();
    let calls = Arc::clone(calls);
    let inner = service_fn(move |request: Request<Body>| {
        calls.fetch_add(1, Ordering::SeqCst);
        let said = request.headers().get(name).map_or("", |value| value.to_str().unwrap());
        let answer = match by {
            By::Vary => Response::builder().header("vary", name),
            By::Part => Response::builder(),
        };
        let answer = answer.body(Body::from(said.to_owned()));
        async move {
            sleep(Duration::from_millis(50)).await;
            Ok::<_, Infallible>(answer.unwrap())
        }
    });
    let layer = BellwetherLayer::http(cache).default_lifetime(Duration::from_secs(60));
    let layer = match by {
        By::Vary => layer,
        By::Part => layer.vary_by(name),
    };
    Process { app: BoxCloneSyncService::new(layer.layer(inner)) }
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
async fn a_hit_of_a_variant_is_two_commands() {
    for by in [By::Vary, By::Part] {
        let server = RedisServer::start().await;
        let calls: Arc<AtomicUsize> = Arc::default();
        let process = process(&server, "accept-language", by, &calls);
        // The process learns by its first hit that entries have windows.
        for language in ["en", "de", "en"] {
            read(&process.app, request("accept-language", language)).await;
        }
        let mut monitor = server.monitor().await;
        for language in ["en", "de"] {
            monitor.calls_from_clients().await;
            assert_eq!(read(&process.app, request("accept-language", language)).await, language);
            let mut commands = monitor.calls_from_clients().await;
            // The first is in the write of a read, because a marker has an age. The second tests
            // the connection for pushes.
            commands.retain(|call| !["TIME", "PING"].contains(&call.command.as_str()));
            assert_eq!(commands.len(), 2, "{by:?} {commands:?}");
        }
        assert_eq!(calls.load(Ordering::SeqCst), 2, "{by:?}");
    }
}
