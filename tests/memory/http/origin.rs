//! A service behind the layer, and functions that send requests to it.

use std::convert::Infallible;

use axum::body::Body;
use bellwether::{
    BellwetherLayer,
    cache::Codec,
    http_cache,
    layer::{Bellwether, CachedResponse, Http, ResponseBody},
};
use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::BodyExt;
use tower::{Layer, ServiceExt, service_fn, util::BoxCloneSyncService};

use crate::prelude::*;

/// The duration of each call of the origin.
pub(crate) const DELAY: Duration = Duration::from_millis(50);

pub(crate) type Inner = BoxCloneSyncService<Request<Body>, Response<Body>, Infallible>;
pub(crate) type Layered = Bellwether<Inner, Http>;

/// The number of calls of the origin.
#[derive(Clone, Default)]
pub(crate) struct Calls(Arc<AtomicUsize>);

impl Calls {
    pub(crate) fn add(&self) -> usize {
        self.0.fetch_add(1, Ordering::SeqCst) + 1
    }

    pub(crate) fn count(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

/// Returns a service that takes its time. `answer` gets the number of the call, from 1 on.
pub(crate) fn origin(
    answer: impl Fn(usize, &Request<Body>) -> Response<Body> + Clone + Send + Sync + 'static,
) -> (Inner, Calls) {
    let calls = Calls::default();
    let counted = calls.clone();
    let service = service_fn(move |request: Request<Body>| {
        let call = counted.add();
        let answer = answer(call, &request);
        async move {
            tokio::time::sleep(DELAY).await;
            Ok(answer)
        }
    });
    (BoxCloneSyncService::new(service), calls)
}

/// Headers of a request or of an answer.
pub(crate) type Lines<'a> = &'a [(&'a str, &'a str)];

/// Returns an answer.
pub(crate) fn reply(status: u16, headers: Lines<'_>, body: impl Into<Body>) -> Response<Body> {
    let answer = Response::builder().status(status);
    let answer = headers.iter().fold(answer, |answer, (name, value)| answer.header(*name, *value));
    answer.body(body.into()).unwrap()
}

/// Returns an origin whose answers have the given headers, and the number of the call as their
/// body.
pub(crate) fn with_headers(headers: &[(&'static str, &'static str)]) -> (Inner, Calls) {
    let headers = headers.to_vec();
    origin(move |call, _| reply(200, &headers, call.to_string()))
}

/// Returns an origin whose answers have the number of the call as their body.
pub(crate) fn numbered() -> (Inner, Calls) {
    with_headers(&[])
}

pub(crate) fn cache(backend: &MemoryBackend) -> Cache<CachedResponse> {
    http_cache(backend.clone(), "bellwether").build().unwrap()
}

/// Returns the layer over a cache. It shares responses that name no lifetime for as long as the
/// cache permits.
pub(crate) fn http_layer(cache: Cache<CachedResponse>) -> BellwetherLayer<Http> {
    shared(BellwetherLayer::http(cache))
}

/// Begins a cache of its own.
pub(crate) fn builder() -> Builder<CachedResponse, impl Codec<CachedResponse>> {
    http_cache(MemoryBackend::new(), "bellwether")
}

/// Returns the layer over a cache with these settings.
pub(crate) fn layer_of(
    builder: Builder<CachedResponse, impl Codec<CachedResponse>>,
) -> BellwetherLayer<Http> {
    http_layer(builder.build().unwrap())
}

/// Returns the layer over a cache of its own.
pub(crate) fn layer() -> BellwetherLayer<Http> {
    layer_of(builder())
}

/// Returns the layer over a cache of its own. It shares no response that names no lifetime.
pub(crate) fn silent_layer() -> BellwetherLayer<Http> {
    BellwetherLayer::http(cache(&MemoryBackend::new()))
}

/// Returns the service behind the layer, over a cache of its own.
pub(crate) fn layered(inner: &Inner) -> Layered {
    layer().layer(inner.clone())
}

pub(crate) type Set = fn(BellwetherLayer<Http>) -> BellwetherLayer<Http>;

/// Returns processes of a service over one backend. They share no response that names no lifetime,
/// but for what is set.
pub(crate) fn processes<const N: usize>(
    inner: &Inner,
    set: impl Fn(BellwetherLayer<Http>) -> BellwetherLayer<Http>,
) -> [Layered; N] {
    let backend = MemoryBackend::new();
    [(); N].map(|()| set(BellwetherLayer::http(cache(&backend))).layer(inner.clone()))
}

/// Has responses shared that name no lifetime.
pub(crate) fn shared(layer: BellwetherLayer<Http>) -> BellwetherLayer<Http> {
    layer.default_lifetime(3600 * SECOND)
}

pub(crate) fn request(method: &str, path: &str, headers: Lines<'_>) -> Request<Body> {
    let request = Request::builder().method(method).uri(path);
    let request =
        headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
    request.body(Body::empty()).unwrap()
}

pub(crate) fn get(path: &str) -> Request<Body> {
    request("GET", path, &[])
}

pub(crate) fn get_with(headers: Lines<'_>) -> Request<Body> {
    request("GET", "/", headers)
}

pub(crate) fn post() -> Request<Body> {
    request("POST", "/", &[])
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Answer {
    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    pub(crate) async fn of(response: Response<ResponseBody<Body>>) -> Self {
        let (parts, body) = response.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        Self { status: parts.status, headers: parts.headers, body }
    }
}

pub(crate) async fn ask(service: &Layered, request: Request<Body>) -> Answer {
    Answer::of(service.clone().oneshot(request).await.unwrap()).await
}

/// Sends a request from a task of its own.
pub(crate) fn asking(service: &Layered, request: Request<Body>) -> JoinHandle<Answer> {
    let service = service.clone();
    spawn(async move { ask(&service, request).await })
}

/// Sends all requests at once, in turn to each of the services.
pub(crate) async fn ask_all(
    services: &[Layered],
    requests: impl IntoIterator<Item = Request<Body>>,
) -> Vec<Answer> {
    let asked = requests.into_iter().zip(services.iter().cycle());
    all(asked.map(|(request, service)| asking(service, request))).await
}

/// Sends as many plain requests at once to one service.
pub(crate) async fn crowd(service: &Layered, count: usize) -> Vec<Answer> {
    ask_all(std::slice::from_ref(service), (0..count).map(|_| get("/"))).await
}

/// Returns the number of different bodies.
pub(crate) fn different(answers: &[Answer]) -> usize {
    answers.iter().map(|answer| &answer.body).collect::<std::collections::HashSet<_>>().len()
}
