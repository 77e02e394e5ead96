//! The readiness of the inner service: each call has one of its own, and none is held for nothing.

use std::task::{Context, Poll};

use tower::{Service, ServiceBuilder};
use tower_test::mock::{self, Handle, Mock};

use super::{
    middlewares::{Stack, boxed},
    prelude::*,
};

/// What the instances of a service have done.
#[derive(Default)]
struct Record {
    /// Clones that are ready now. A `ConcurrencyLimit` would have given each of them a permit.
    ready: AtomicUsize,
    most_ready: AtomicUsize,
    called: AtomicUsize,
    /// Clones that were dropped while they were ready.
    wasted: AtomicUsize,
}

/// A service that needs two polls to become ready, and whose clones are not ready.
#[derive(Default)]
struct Strict {
    polls: usize,
    record: Arc<Record>,
}

impl Strict {
    fn is_ready(&self) -> bool {
        self.polls >= 2
    }
}

impl Clone for Strict {
    fn clone(&self) -> Self {
        Self { polls: 0, record: self.record.clone() }
    }
}

impl Drop for Strict {
    fn drop(&mut self) {
        if self.is_ready() {
            self.record.ready.fetch_sub(1, Ordering::SeqCst);
            self.record.wasted.fetch_add(1, Ordering::SeqCst);
        }
    }
}

impl Service<Request<Body>> for Strict {
    type Response = Response<Body>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Response<Body>, BoxError>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        let was_ready = self.is_ready();
        self.polls += 1;
        if !self.is_ready() {
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        if !was_ready {
            let ready = self.record.ready.fetch_add(1, Ordering::SeqCst) + 1;
            self.record.most_ready.fetch_max(ready, Ordering::SeqCst);
        }
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        assert!(self.is_ready(), "called without being ready");
        self.polls = 0;
        self.record.ready.fetch_sub(1, Ordering::SeqCst);
        let call = self.record.called.fetch_add(1, Ordering::SeqCst) + 1;
        Box::pin(async move {
            sleep(DELAY).await;
            let control = |control| [("cache-control", control)];
            let (status, headers) = match request.uri().path() {
                "/own" => (200, [("set-cookie", "a=b")]),
                "/varies" => (200, [("vary", "accept-language")]),
                "/failing" if call > 2 => (503, control("no-store")),
                "/failing" => (200, control("max-age=1, stale-if-error=60")),
                "/stale" => (200, control("max-age=1, stale-while-revalidate=60")),
                _ => (200, [("x-plain", "1")]),
            };
            Ok(reply(status, &headers, "a body"))
        })
    }
}

/// Sends a request from a task of its own. Returns the status of the answer.
fn sending(service: &Stack, request: Request<Body>) -> JoinHandle<u16> {
    let service = service.clone();
    spawn(async move {
        let response = service.oneshot(request).await.unwrap();
        let status = response.status().as_u16();
        response.into_body().collect().await.unwrap();
        status
    })
}

#[tokio::test(start_paused = true)]
async fn each_call_has_one_readiness_and_no_readiness_is_held() {
    let accept = ("accept", "*/*");
    for (path, header, seconds, calls) in [
        // A load, its followers, and hits.
        ("/", accept, 0, 1),
        ("/", ("range", "bytes=1-2"), 0, 1),
        ("/", ("if-none-match", "*"), 0, 1),
        ("/varies", ("accept-language", "en"), 0, 1),
        ("/stale", accept, 2, 2),
        // Requests that pass.
        ("/", ("cookie", "a=b"), 0, 20),
        ("/own", accept, 0, 20),
        ("/", ("upgrade", "echo"), 0, 20),
    ] {
        let strict = Strict::default();
        let record = strict.record.clone();
        let service = boxed(layer().layer(strict));
        for _ in 0..2 {
            all((0..10).map(|_| sending(&service, request("GET", path, &[header])))).await;
            sleep(seconds * SECOND).await;
        }
        sleep(2 * DELAY).await;
        let count = |counter: &AtomicUsize| counter.load(Ordering::SeqCst);
        assert_eq!(count(&record.called), calls, "{path} {header:?}");
        assert_eq!((count(&record.ready), count(&record.wasted)), (0, 0), "{path} {header:?}");
        // A clone is ready from its last poll to its call, in one step.
        assert_eq!(count(&record.most_ready), 1, "{path} {header:?}");
    }
}

/// The waiters of two processes and of one key, and a caller whose leader fails.
#[tokio::test(start_paused = true)]
async fn waiters_hold_no_readiness() {
    let strict = Strict::default();
    let record = strict.record.clone();
    let backend = MemoryBackend::new();
    let services = [(); 2].map(|()| boxed(http_layer(cache(&backend)).layer(strict.clone())));
    let asks = |path| (0..20).map(|at| sending(&services[at % 2], get(path))).collect::<Vec<_>>();
    let asked = asks("/");
    sleep(DELAY / 2).await;
    assert_eq!(record.ready.load(Ordering::SeqCst), 0);
    assert_eq!(all(asked).await, [200; 20]);
    assert_eq!(record.called.load(Ordering::SeqCst), 1);
    sending(&services[0], get("/failing")).await.unwrap();
    sleep(3 * SECOND).await;
    assert_eq!(all(asks("/failing")).await, [200; 20], "the stale response stands in");
    let wasted = record.wasted.load(Ordering::SeqCst);
    assert_eq!((record.ready.load(Ordering::SeqCst), wasted), (0, 0));
}

fn over_mock(cancels: bool) -> (Stack, Handle<Request<Body>, Response<Body>>) {
    let (inner, handle): (Mock<Request<Body>, Response<Body>>, _) = mock::pair();
    // A service that is not ready is so for all.
    let builder = builder().load_limit(SECOND).after_failure(|_| Some(AfterFailure::BACK_OFF));
    let builder = if cancels { builder.cancel_abandoned() } else { builder };
    (boxed(layer_of(builder).layer(inner)), handle)
}

async fn answer(handle: &mut Handle<Request<Body>, Response<Body>>) {
    let (_, answer) = timeout(DELAY, handle.next_request()).await.unwrap().unwrap();
    answer.send_response(Response::new(Body::from("a body")));
}

#[tokio::test(start_paused = true)]
async fn a_service_that_is_not_ready_delays_loads_and_no_hits() {
    let (service, mut handle) = over_mock(false);
    let first = sending(&service, get("/"));
    answer(&mut handle).await;
    assert_eq!(first.await.unwrap(), 200);
    handle.allow(0);
    // Loads, followers and requests that pass wait.
    let waiting = [get("/a"), get("/a"), get_with(&[("cookie", "a=b")])];
    let waiting = waiting.map(|request| sending(&service, request));
    for _ in 0..3 {
        assert_eq!(timeout(DELAY, sending(&service, get("/"))).await.unwrap().unwrap(), 200);
    }
    assert!(waiting.iter().all(|waiting| !waiting.is_finished()));
    // One permit is for one call.
    handle.allow(1);
    answer(&mut handle).await;
    assert!(timeout(DELAY, handle.next_request()).await.is_err());
    handle.allow(1);
    answer(&mut handle).await;
    assert_eq!(all(waiting).await, [200; 3]);
}

#[tokio::test(start_paused = true)]
async fn a_service_that_never_gets_ready_is_a_timeout_for_all() {
    let (service, mut handle) = over_mock(false);
    handle.allow(0);
    assert_eq!(all([(); 5].map(|()| sending(&service, get("/")))).await, [504; 5]);
    // The wait has ended, so a permit is for the next caller behind the pause.
    sleep(DELAY * 2).await;
    handle.allow(1);
    let next = sending(&service, get("/"));
    answer(&mut handle).await;
    assert_eq!(next.await.unwrap(), 200);
}

#[tokio::test(start_paused = true)]
async fn a_wait_for_readiness_ends_with_its_callers() {
    let (service, mut handle) = over_mock(true);
    handle.allow(0);
    let leaving = [get("/"), get("/"), get_with(&[("cookie", "a=b")])];
    let leaving = leaving.map(|request| sending(&service, request));
    sleep(DELAY).await;
    for leaving in leaving {
        leaving.abort();
        assert!(leaving.await.unwrap_err().is_cancelled());
    }
    sleep(DELAY).await;
    handle.allow(1);
    assert!(timeout(DELAY, handle.next_request()).await.is_err(), "a request without a caller");
    let next = sending(&service, get("/b"));
    answer(&mut handle).await;
    assert_eq!(next.await.unwrap(), 200);
}

/// A service whose readiness fails once it has been called.
#[derive(Clone, Default)]
struct Broken {
    called: Arc<AtomicUsize>,
    fails: Arc<AtomicUsize>,
}

impl Service<Request<Body>> for Broken {
    type Response = Response<Body>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Response<Body>, BoxError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        match self.fails.load(Ordering::SeqCst) {
            0 => Poll::Ready(Ok(())),
            _ => Poll::Ready(Err("not ready".into())),
        }
    }

    fn call(&mut self, _: Request<Body>) -> Self::Future {
        self.called.fetch_add(1, Ordering::SeqCst);
        let control = [("cache-control", "max-age=1, stale-if-error=9")];
        ready(Ok(reply(200, &control, "a body"))).boxed()
    }
}

#[tokio::test(start_paused = true)]
async fn an_error_of_readiness_is_one_of_the_service() {
    let inner = Broken::default();
    let service = boxed(layer().layer(inner.clone()));
    let is_served = async |path| sending(&service, get(path)).await.unwrap() == 200;
    assert!(is_served("/").await);
    inner.fails.store(1, Ordering::SeqCst);
    // A hit needs no readiness, and a stale response stands in.
    assert!(is_served("/").await);
    sleep(2 * SECOND).await;
    assert!(is_served("/").await);
    // The caller gets the error itself.
    for request in [get("/a"), get_with(&[("cookie", "a=b")])] {
        let error = service.clone().oneshot(request).await.unwrap_err();
        assert_eq!(error.to_string(), "not ready");
    }
    assert_eq!(inner.called.load(Ordering::SeqCst), 1);
    // It is not remembered.
    inner.fails.store(0, Ordering::SeqCst);
    assert!(is_served("/a").await);
    assert_eq!(inner.called.load(Ordering::SeqCst), 2);
}

/// The permit is for the call. A body that is read, collected or not read at all needs none.
#[tokio::test(start_paused = true)]
async fn a_body_holds_no_permit_of_the_service() {
    let endless = service_fn(|request: Request<Body>| async move {
        sleep(DELAY).await;
        let body = match request.uri().path() {
            "/small" => Body::from("a body"),
            _ => Body::from_stream(futures_util::stream::pending::<Result<&str, BoxError>>()),
        };
        Ok::<_, BoxError>(Response::new(body))
    });
    let limited = ServiceBuilder::new().concurrency_limit(1).service(boxed(endless));
    let service = boxed(layer().layer(limited));
    let mut open = Vec::new();
    for path in ["/shared", "/shared", "/unread"] {
        let response = timeout(2 * DELAY, service.clone().oneshot(get(path))).await.unwrap();
        open.push(response.unwrap());
    }
    drop(open.pop());
    let passed = timeout(2 * DELAY, service.clone().oneshot(get_with(&[("cookie", "a=b")]))).await;
    open.push(passed.unwrap().unwrap());
    let small = timeout(2 * DELAY, sending(&service, get("/small"))).await;
    assert_eq!(small.unwrap().unwrap(), StatusCode::OK);
}
