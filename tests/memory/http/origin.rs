//! A service behind the layer, and functions that send requests to it.

use std::convert::Infallible;

use bellwether::layer::{Bellwether, ResponseBody};

use super::prelude::*;

/// The duration of each call of the origin.
pub(crate) const DELAY: Duration = Duration::from_millis(50);

pub(crate) type Inner = BoxCloneSyncService<Request<Body>, Response<Body>, Infallible>;
pub(crate) type Layered = Bellwether<Inner, Http>;

/// The number of calls of the origin.
#[derive(Clone, Default)]
pub(crate) struct Calls(Arc<AtomicUsize>);

impl Calls {
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
        let call = counted.0.fetch_add(1, Ordering::SeqCst) + 1;
        let answer = answer(call, &request);
        async move {
            tokio::time::sleep(DELAY).await;
            Ok(answer)
        }
    });
    (BoxCloneSyncService::new(service), calls)
}

/// Returns an origin whose answers have the given headers, and the number of the call as their
/// body.
pub(crate) fn with_headers(headers: &[(&'static str, &'static str)]) -> (Inner, Calls) {
    let headers = headers.to_vec();
    origin(move |call, _| {
        let mut response = Response::builder();
        for (name, value) in &headers {
            response = response.header(*name, *value);
        }
        response.body(Body::from(call.to_string())).unwrap()
    })
}

pub(crate) fn cache(backend: &MemoryBackend) -> Cache<CachedResponse> {
    http_cache(backend.clone(), "bellwether").build().unwrap()
}

/// Returns the layer over a cache. It shares responses that name no lifetime for as long as the
/// cache permits.
pub(crate) fn http_layer(cache: Cache<CachedResponse>) -> BellwetherLayer<Http> {
    BellwetherLayer::http(cache).default_lifetime(Duration::from_secs(3600))
}

/// Returns the layer over a cache of its own.
pub(crate) fn layered(inner: &Inner) -> Layered {
    http_layer(cache(&MemoryBackend::new())).layer(inner.clone())
}

pub(crate) fn get(path: &str) -> Request<Body> {
    Request::get(path).body(Body::empty()).unwrap()
}

pub(crate) fn get_with(headers: &[(&str, &str)]) -> Request<Body> {
    let mut request = Request::get("/");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request.body(Body::empty()).unwrap()
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

/// Sends all requests at once, in turn to each of the services.
pub(crate) async fn ask_all(
    services: &[Layered],
    requests: impl IntoIterator<Item = Request<Body>>,
) -> Vec<Answer> {
    let asked: Vec<_> = requests
        .into_iter()
        .zip(services.iter().cycle())
        .map(|(request, service)| {
            let service = service.clone();
            tokio::spawn(async move { ask(&service, request).await })
        })
        .collect();
    let mut answers = Vec::new();
    for asked in asked {
        answers.push(asked.await.unwrap());
    }
    answers
}

/// Returns the number of different bodies.
pub(crate) fn different(answers: &[Answer]) -> usize {
    answers.iter().map(|answer| &answer.body).collect::<std::collections::HashSet<_>>().len()
}
