//! Other middlewares inside of the layer, outside of it, and both. None changes what is shared.

use futures_util::stream;
use http::{HeaderName, HeaderValue};
use tower::{
    Service, ServiceBuilder,
    limit::{ConcurrencyLimitLayer, GlobalConcurrencyLimitLayer},
};
use tower_http::{
    catch_panic::CatchPanicLayer,
    compression::CompressionLayer,
    cors::{AllowOrigin, CorsLayer},
    request_id::{MakeRequestUuid, PropagateRequestIdLayer, SetRequestIdLayer},
    set_header::SetResponseHeaderLayer,
    timeout::TimeoutLayer,
    trace::TraceLayer,
};

use super::prelude::*;

/// A service whose errors reach the caller.
pub(crate) type Stack = BoxCloneSyncService<Request<Body>, Response<Body>, BoxError>;

/// Puts a middleware around a service.
type Wrap = fn(Stack) -> Stack;

/// The longest time for anything here.
const LIMIT: Duration = Duration::from_secs(30);

pub(crate) fn boxed<S, B>(service: S) -> Stack
where
    S: Service<Request<Body>, Response = Response<B>> + Clone + Send + Sync + 'static,
    S::Future: Send,
    S::Error: Into<BoxError>,
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    let service = service.map_response(|response| response.map(Body::new)).map_err(Into::into);
    BoxCloneSyncService::new(service)
}

/// Middlewares that let each request pass which is sent here, by name.
const MIDDLEWARES: [(&str, Wrap); 15] = [
    ("no other", |inner| inner),
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
    ("a timeout that answers", |inner| {
        boxed(TimeoutLayer::with_status_code(StatusCode::GATEWAY_TIMEOUT, LIMIT / 2).layer(inner))
    }),
    ("compression", |inner| boxed(CompressionLayer::new().layer(inner))),
    ("CORS for all", |inner| boxed(CorsLayer::permissive().layer(inner))),
    ("CORS for one page", |inner| {
        let page = AllowOrigin::exact(HeaderValue::from_static("https://shop.example"));
        boxed(CorsLayer::new().allow_origin(page).allow_credentials(true).layer(inner))
    }),
    ("trace", |inner| boxed(TraceLayer::new_for_http().layer(inner))),
    ("catch panic", |inner| boxed(CatchPanicLayer::new().layer(inner))),
    ("request ids", |inner| {
        let ids = SetRequestIdLayer::x_request_id(MakeRequestUuid);
        boxed(ids.layer(PropagateRequestIdLayer::x_request_id().layer(inner)))
    }),
    ("a header for all", |inner| {
        let name = HeaderName::from_static("x-powered-by");
        let header = SetResponseHeaderLayer::overriding(name, HeaderValue::from_static("a bell"));
        boxed(header.layer(inner))
    }),
];

/// Where a middleware is.
#[derive(Clone, Copy, Debug)]
enum Place {
    Inside,
    Outside,
    Both,
}

/// Runs a case for each middleware in each place, with a stack and the number of requests that
/// reach its innermost service.
async fn each_stack(case: impl AsyncFn(&Stack, &Calls, &str)) {
    for (name, wrap) in MIDDLEWARES {
        for place in [Place::Inside, Place::Outside, Place::Both] {
            let (origin, calls) = origin();
            let inner = match place {
                Place::Inside | Place::Both => wrap(origin),
                Place::Outside => origin,
            };
            let layered = boxed(layer().layer(inner));
            let stack = match place {
                Place::Outside | Place::Both => wrap(layered),
                Place::Inside => layered,
            };
            case(&stack, &calls, &format!("{name}, {place:?}")).await;
        }
    }
}

/// Returns an origin which answers with the number of the call, or as the path says.
fn origin() -> (Stack, Calls) {
    let (numbered, calls) = super::origin::origin(|call, request| {
        let slow = |at| async move {
            if at > 0 {
                sleep(DELAY).await;
            }
            Some((Ok::<_, BoxError>("piece"), at + 1))
        };
        let etag = format!("W/\"{call}\"");
        let etag = ("etag", &*etag);
        match request.uri().path() {
            "/own" => reply(200, &[etag, ("set-cookie", "a=b")], call.to_string()),
            // It has no end.
            "/paced" => reply(200, &[etag], Body::from_stream(stream::unfold(0, slow))),
            _ => reply(200, &[etag], format!("call {call}")),
        }
    });
    (boxed(numbered), calls)
}

async fn send(stack: &Stack, request: Request<Body>) -> Response<Body> {
    timeout(LIMIT, stack.clone().oneshot(request)).await.unwrap().unwrap()
}

async fn read(response: Response<Body>) -> Bytes {
    timeout(LIMIT, response.into_body().collect()).await.unwrap().unwrap().to_bytes()
}

/// Sends requests at once, and returns their different bodies.
async fn bodies(stack: &Stack, requests: impl Iterator<Item = Request<Body>>) -> Vec<Bytes> {
    let asked = requests.map(|request| {
        let stack = stack.clone();
        spawn(async move { read(send(&stack, request).await).await })
    });
    let mut bodies = all(asked).await;
    bodies.sort();
    bodies.dedup();
    bodies
}

#[tokio::test(start_paused = true)]
async fn callers_share_beside_any_middleware() {
    each_stack(async |stack, calls, what| {
        for _ in 0..2 {
            assert_eq!(bodies(stack, (0..30).map(|_| get("/"))).await, ["call 1"], "{what}");
        }
        for (asked, status, body) in [
            (request("HEAD", "/", &[]), 200, ""),
            (get_with(&[("range", "bytes=5-")]), 206, "1"),
            (get_with(&[("if-none-match", "W/\"1\"")]), 304, ""),
        ] {
            let answer = send(stack, asked).await;
            assert_eq!(answer.status(), status, "{what}");
            assert_eq!(read(answer).await, body, "{what}");
        }
        assert_eq!(calls.count(), 1, "{what}");
    })
    .await;
}

fn own(path: &str) -> Request<Body> {
    request("GET", path, &[("cookie", "a=b")])
}

#[tokio::test(start_paused = true)]
async fn requests_pass_beside_any_middleware() {
    each_stack(async |stack, calls, what| {
        assert_eq!(bodies(stack, (0..5).map(|_| get("/own"))).await.len(), 5, "{what}");
        let different = bodies(stack, (0..5).map(|_| own("/"))).await;
        assert_eq!((different.len(), calls.count()), (5, 10), "{what}");
        assert_eq!(bodies(stack, (0..3).map(|_| get("/"))).await, ["call 11"], "{what}");
        // An unsafe request ends the stored response.
        assert_eq!(read(send(stack, post()).await).await, "call 12", "{what}");
        assert_eq!(bodies(stack, (0..3).map(|_| get("/"))).await, ["call 13"], "{what}");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn callers_leave_beside_any_middleware() {
    each_stack(async |stack, calls, what| {
        for at in 0..5 {
            for leaving in [get(&format!("/{at}")), own("/")] {
                assert!(timeout(DELAY / 2, send(stack, leaving)).await.is_err(), "{what}");
            }
        }
        // No permit, no slot and no flight is left behind.
        sleep(6 * DELAY).await;
        let before = calls.count();
        for at in 0..5 {
            let path = format!("/{at}");
            assert_eq!(bodies(stack, (0..5).map(|_| get(&path))).await.len(), 1, "{what}");
        }
        // A load goes on without its caller.
        assert!(calls.count() - before <= 5 && calls.count() <= 10, "{what}");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn bodies_stream_beside_any_middleware() {
    each_stack(async |stack, calls, what| {
        // Two read one body, and a third has one of its own.
        let mut open = Vec::new();
        for asked in [get("/paced"), get("/paced"), own("/paced")] {
            open.push(send(stack, asked).await.into_body());
        }
        for body in &mut open {
            for _ in 0..3 {
                let frame = timeout(2 * DELAY, body.frame()).await;
                let frame = frame.unwrap_or_else(|_| panic!("{what} is late")).unwrap();
                assert!(frame.unwrap().into_data().unwrap().starts_with(b"piece"), "{what}");
            }
        }
        assert_eq!(calls.count(), 2, "{what}");
        // An open body holds no other request up.
        assert_eq!(bodies(stack, (0..5).map(|_| get("/"))).await, ["call 3"], "{what}");
    })
    .await;
}
