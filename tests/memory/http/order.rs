//! The order of other middlewares and the layer: the claims of its docs.

use http::{HeaderValue, request::Parts};
use tower::ServiceBuilder;
use tower_http::{
    catch_panic::CatchPanicLayer,
    compression::CompressionLayer,
    cors::{Any, CorsLayer},
    decompression::DecompressionLayer,
    request_id::{MakeRequestUuid, PropagateRequestIdLayer, SetRequestIdLayer},
    timeout::TimeoutLayer,
    trace::TraceLayer,
};

use super::{
    middlewares::{Stack, boxed},
    parts::{as_user, of, user, user_of},
    prelude::*,
};

const TEXT: &str = "a text that is long enough for a middleware to compress it";
const PAGES: [&str; 2] = ["https://one.example", "https://two.example"];

/// Returns an origin whose answers have a text and these headers.
fn origin(headers: Lines<'static>) -> (Stack, Calls) {
    let (inner, calls) = super::origin::origin(move |_, _| reply(200, headers, TEXT));
    (boxed(inner), calls)
}

async fn send(stack: &Stack, request: Request<Body>) -> (http::response::Parts, Bytes) {
    let (parts, body) = stack.clone().oneshot(request).await.unwrap().into_parts();
    (parts, body.collect().await.unwrap().to_bytes())
}

/// Sends equal requests at once, and returns the statuses of the answers.
async fn statuses(stack: &Stack, count: usize, request: fn() -> Request<Body>) -> Vec<u16> {
    let answers = all((0..count).map(|_| spawn(stack.clone().oneshot(request())))).await;
    let mut statuses: Vec<_> =
        answers.into_iter().map(|answer| answer.unwrap().status().as_u16()).collect();
    statuses.sort_unstable();
    statuses
}

fn plain() -> Request<Body> {
    get("/")
}

/// Returns a request that is for its caller alone.
fn own() -> Request<Body> {
    get_with(&[("cookie", "a=b")])
}

/// Sends requests that accept different codings, and checks the answer of each.
async fn each_gets_its_coding(stack: &Stack) {
    for accepted in ["gzip", "", "identity", "gzip;q=0.5, br"] {
        for _ in 0..2 {
            let (parts, body) = send(stack, get_with(&[("accept-encoding", accepted)])).await;
            let is_coded = accepted.starts_with("gzip");
            assert_eq!(parts.headers.contains_key("content-encoding"), is_coded, "{accepted}");
            assert_eq!(parts.headers["vary"], "accept-encoding");
            if is_coded {
                assert!(body.starts_with(b"\x1f\x8b"), "{accepted}");
            } else {
                assert_eq!(body, TEXT, "{accepted}");
            }
        }
    }
    let decoding = boxed(DecompressionLayer::new().layer(stack.clone()));
    assert_eq!(send(&decoding, get("/")).await.1, TEXT);
}

#[tokio::test(start_paused = true)]
async fn compression_outside_codes_one_stored_body_for_each_client() {
    let (origin, calls) = origin(&[]);
    let stack = boxed(CompressionLayer::new().layer(layer().layer(origin)));
    each_gets_its_coding(&stack).await;
    assert_eq!(calls.count(), 1);
    // A part is one of the plain body.
    let request = get_with(&[("accept-encoding", "gzip"), ("range", "bytes=2-5")]);
    let (parts, body) = send(&stack, request).await;
    assert_eq!((parts.status, &*body), (StatusCode::PARTIAL_CONTENT, &b"text"[..]));
    assert_eq!(calls.count(), 1);
}

#[tokio::test(start_paused = true)]
async fn compression_inside_makes_a_variant_of_each_accept_encoding() {
    let (origin, calls) = origin(&[]);
    let stack = boxed(layer().layer(CompressionLayer::new().layer(origin)));
    each_gets_its_coding(&stack).await;
    // The middleware that decodes accepts `gzip`, too.
    assert_eq!(calls.count(), 4);
}

/// A client has the beginning of a coded body. A part of the plain one must not follow it.
#[tokio::test(start_paused = true)]
async fn a_weak_validator_joins_no_parts_of_two_codings() {
    const STRONG: Lines<'_> = &[("etag", "\"1\"")];
    const WEAK: Lines<'_> = &[("etag", "W/\"1\"")];
    for (headers, status) in [(STRONG, 206), (WEAK, 200)] {
        let stack = boxed(CompressionLayer::new().layer(layer().layer(origin(headers).0)));
        let gzip = ("accept-encoding", "gzip");
        let tag = headers[0].1;
        let (parts, _) = send(&stack, get_with(&[gzip])).await;
        assert_eq!(parts.headers["content-encoding"], "gzip");
        assert_eq!(parts.headers["etag"], tag);
        let request = get_with(&[gzip, ("range", "bytes=9-"), ("if-range", tag)]);
        assert_eq!(send(&stack, request).await.0.status, status, "{tag}");
    }
}

/// Sends the requests of two web pages, and returns whether each is permitted to read its answer.
async fn each_page_reads(stack: &Stack) -> bool {
    let mut all = true;
    for page in PAGES.into_iter().chain(PAGES) {
        let (parts, body) = send(stack, get_with(&[("origin", page)])).await;
        assert_eq!(body, TEXT);
        all &= parts.headers.get("access-control-allow-origin").is_some_and(|read| read == page);
    }
    all
}

fn cors() -> CorsLayer {
    let pages = PAGES.map(HeaderValue::from_static);
    CorsLayer::new().allow_origin(pages).allow_credentials(true)
}

#[tokio::test(start_paused = true)]
async fn cors_outside_answers_each_page_from_one_entry() {
    let (origin, calls) = origin(&[]);
    let shared = layer().layer(origin);
    let stack = boxed(cors().layer(shared.clone()));
    assert!(each_page_reads(&stack).await);
    assert_eq!(calls.count(), 1);
    // The stored response permits nothing to any page.
    let (parts, _) = send(&boxed(shared), get_with(&[("origin", PAGES[0])])).await;
    assert!(!parts.headers.contains_key("access-control-allow-origin"));
    // A preflight request does not reach the layer.
    let preflight = [("origin", PAGES[0]), ("access-control-request-method", "GET")];
    let (parts, _) = send(&stack, request("OPTIONS", "/", &preflight)).await;
    assert_eq!((parts.status, calls.count()), (StatusCode::OK, 1));
}

#[tokio::test(start_paused = true)]
async fn cors_inside_makes_a_variant_of_each_page() {
    for cors in [cors(), CorsLayer::new().allow_origin(Any)] {
        let (origin, calls) = origin(&[]);
        let for_all = cors.clone().layer(service_fn(|_: Request<Body>| async {
            Ok::<_, std::convert::Infallible>(Response::new(Body::empty()))
        }));
        let answer = for_all.oneshot(get("/")).await.unwrap();
        let is_for_all = answer.headers().get("access-control-allow-origin").is_some();
        let stack = boxed(layer().layer(cors.layer(origin)));
        assert_ne!(each_page_reads(&stack).await, is_for_all);
        assert_eq!(calls.count(), 2);
    }
}

/// Returns a middleware that turns the cookie of a session into an extension, and adds a cookie.
fn sessions(inner: Stack) -> Stack {
    boxed(service_fn(move |mut request: Request<Body>| {
        let inner = inner.clone();
        async move {
            let cookie = request.headers_mut().remove("cookie");
            let user = cookie.map_or("guest".into(), |cookie| cookie.to_str().unwrap().to_owned());
            let mut response = inner.oneshot(as_user(request, &user)).await?;
            response.headers_mut().append("set-cookie", HeaderValue::from_static("user=guest"));
            Ok::<_, BoxError>(response)
        }
    }))
}

/// Returns an origin that answers with the first letter of the user.
fn plans() -> (Stack, Calls) {
    let (inner, calls) =
        super::origin::origin(|_, request| reply(200, &[], user_of(request)[..1].to_owned()));
    (boxed(inner), calls)
}

#[tokio::test(start_paused = true)]
async fn sessions_outside_share_by_identity_and_keep_their_cookies() {
    let (origin, calls) = plans();
    let plan = |parts: &Parts| Some(user(parts)?[..1].to_owned());
    let shared = boxed(layer().vary_by(plan).layer(origin));
    let stack = sessions(shared.clone());
    for (user, expected) in [("anna", "a"), ("ben", "b"), ("alan", "a"), ("bill", "b")] {
        let (parts, body) = send(&stack, get_with(&[("cookie", user)])).await;
        assert_eq!(body, expected);
        assert_eq!(parts.headers["set-cookie"], "user=guest");
    }
    assert_eq!(calls.count(), 2);
    // The stored response has no cookie.
    let (parts, _) = send(&shared, of("anna")).await;
    assert!(!parts.headers.contains_key("set-cookie"));
    assert_eq!(calls.count(), 2);
}

#[tokio::test(start_paused = true)]
async fn sessions_inside_share_nothing() {
    let (origin, calls) = plans();
    let stack = boxed(layer().layer(sessions(origin)));
    for (call, user) in ["anna", "ben", "anna", "guest", "guest"].into_iter().enumerate() {
        let request = if user == "guest" { get("/") } else { get_with(&[("cookie", user)]) };
        let (parts, body) = send(&stack, request).await;
        assert_eq!(body, user[..1]);
        assert_eq!(parts.headers["set-cookie"], "user=guest");
        assert_eq!(calls.count(), call + 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_timeout_outside_ends_the_wait_of_a_caller_and_not_the_load() {
    let (origin, calls) = origin(&[]);
    let impatient = TimeoutLayer::with_status_code(StatusCode::GATEWAY_TIMEOUT, DELAY / 2);
    let stack = boxed(impatient.layer(layer().layer(origin)));
    assert_eq!(statuses(&stack, 20, plain).await, [504; 20]);
    sleep(DELAY).await;
    assert_eq!(statuses(&stack, 20, plain).await, [200; 20]);
    assert_eq!(calls.count(), 1);
}

#[tokio::test(start_paused = true)]
async fn the_load_limit_answers_all_callers_at_once() {
    let (inner, calls) = origin(&[]);
    // A late answer is one for all by a rule of the cache.
    let limited = || builder().load_limit(DELAY / 2);
    let ruled = limited().after_failure(|_| Some(AfterFailure::BACK_OFF));
    let stack = boxed(layer_of(ruled).layer(inner.clone()));
    let begun = Instant::now();
    assert_eq!(statuses(&stack, 20, plain).await, [504; 20]);
    assert_eq!((calls.count(), begun.elapsed()), (1, DELAY / 2));
    // Otherwise five callers lead one after the other, and the rest goes alone.
    let stack = boxed(layer_of(limited()).layer(inner));
    assert_eq!(statuses(&stack, 20, plain).await, [[200; 15].as_slice(), &[504; 5]].concat());
    assert_eq!(calls.count(), 21);
    // A timeout inside is an error of the origin.
    let timeout = TimeoutLayer::with_status_code(StatusCode::REQUEST_TIMEOUT, DELAY / 2);
    let stack = boxed(layer().layer(timeout.layer(origin(&[]).0)));
    assert_eq!(statuses(&stack, 1, plain).await, [408]);
}

#[tokio::test(start_paused = true)]
async fn the_layer_answers_for_a_load_that_panics_and_catch_panic_for_the_rest() {
    let (inner, calls) = super::origin::origin(|_, _| Response::new(Body::empty()));
    let panics = boxed(inner.map_response(|_| -> Response<Body> { panic!("a handler") }));
    let ruled = builder().after_failure(|_| Some(AfterFailure::BACK_OFF));
    let stack = boxed(CatchPanicLayer::new().layer(layer_of(ruled).layer(panics)));
    assert_eq!(statuses(&stack, 20, plain).await, [502; 20]);
    assert_eq!(calls.count(), 1);
    assert_eq!(statuses(&stack, 5, own).await, [500; 5]);
    assert_eq!(calls.count(), 6);
}

#[tokio::test(start_paused = true)]
async fn trace_outside_sees_all_requests_and_inside_those_that_are_loaded() {
    let (origin, _) = origin(&[]);
    let [outside, inside] = [(); 2].map(|()| Arc::<AtomicUsize>::default());
    let counting = |seen: &Arc<AtomicUsize>| {
        let seen = seen.clone();
        TraceLayer::new_for_http().on_request(move |_: &Request<Body>, _: &tracing::Span| {
            seen.fetch_add(1, Ordering::SeqCst);
        })
    };
    let inner = boxed(counting(&inside).layer(origin));
    let stack = boxed(counting(&outside).layer(layer().layer(inner)));
    for _ in 0..2 {
        statuses(&stack, 10, plain).await;
    }
    statuses(&stack, 3, own).await;
    let seen = [outside, inside].map(|seen| seen.load(Ordering::SeqCst));
    assert_eq!(seen, [23, 4]);
}

#[tokio::test(start_paused = true)]
async fn limits_inside_count_loads_and_refuse_no_hit() {
    let (origin, calls) = origin(&[]);
    let limited = ServiceBuilder::new().load_shed().concurrency_limit(1).service(origin);
    let stack = boxed(layer().layer(limited));
    assert_eq!(statuses(&stack, 1, plain).await, [200]);
    // The handler is busy.
    let busy = spawn(stack.clone().oneshot(own()));
    sleep(DELAY / 2).await;
    assert_eq!(statuses(&stack, 20, plain).await, [200; 20]);
    let refused = stack.clone().oneshot(own()).await;
    assert!(refused.unwrap_err().is::<tower::load_shed::error::Overloaded>());
    busy.await.unwrap().unwrap();
    assert_eq!(calls.count(), 2);
}

/// The layer is always ready, so load shed alone never refuses a request.
#[tokio::test(start_paused = true)]
async fn limits_outside_count_the_callers_that_wait() {
    let (origin, calls) = origin(&[]);
    let shared = boxed(layer().layer(origin));
    let alone = boxed(ServiceBuilder::new().load_shed().service(shared.clone()));
    assert_eq!(statuses(&alone, 20, plain).await, [200; 20]);
    let limited = ServiceBuilder::new().load_shed().concurrency_limit(2).service(shared);
    let stack = boxed(limited);
    let waiting = [(), ()].map(|()| spawn(stack.clone().oneshot(get("/slow"))));
    sleep(DELAY / 2).await;
    assert!(stack.clone().oneshot(get("/")).await.is_err(), "a hit needs a permit");
    assert!(all(waiting).await.iter().all(Result::is_ok) && calls.count() == 2);
}

#[tokio::test(start_paused = true)]
async fn headers_of_one_request_belong_outside() {
    for is_outside in [true, false] {
        let (origin, _) = origin(&[]);
        let ids = |inner| {
            let inner = PropagateRequestIdLayer::x_request_id().layer(inner);
            boxed(SetRequestIdLayer::x_request_id(MakeRequestUuid).layer(inner))
        };
        let stack = if is_outside {
            ids(boxed(layer().layer(origin)))
        } else {
            boxed(layer().layer(ids(origin)))
        };
        let first = send(&stack, get("/")).await.0;
        let second = send(&stack, get("/")).await.0;
        let are_equal = first.headers["x-request-id"] == second.headers["x-request-id"];
        assert_ne!(are_equal, is_outside);
    }
}

/// In axum, the layer that is added last is outermost.
#[tokio::test(start_paused = true)]
async fn the_last_layer_of_a_router_is_outermost() {
    let calls = Arc::<AtomicUsize>::default();
    let counted = calls.clone();
    let handler = axum::routing::get(move || {
        counted.fetch_add(1, Ordering::SeqCst);
        async { TEXT }
    });
    let app = axum::Router::new().route("/", handler).layer(layer()).layer(CompressionLayer::new());
    each_gets_its_coding(&boxed(app)).await;
    assert_eq!(calls.load(Ordering::SeqCst), 1);
}
