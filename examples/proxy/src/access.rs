//! Logs and counts requests, and answers in place of errors.

use std::{
    convert::Infallible,
    io::{self, Write},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Instant,
};

use bellwether::BoxError;
use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{Either, Empty};
use tower::Service;

use crate::{metrics::Metrics, upstream::Unanswered};

/// Logs one line for each request, without its query, which may hold a secret.
#[derive(Clone)]
pub(crate) struct AccessLog<S> {
    inner: S,
    metrics: Arc<Metrics>,
    writes: bool,
}

impl<S> AccessLog<S> {
    pub(crate) fn new(inner: S, metrics: Arc<Metrics>, writes: bool) -> Self {
        Self { inner, metrics, writes }
    }
}

type Answer<B> = Response<Either<B, Empty<Bytes>>>;

impl<S, ReqBody, B> Service<Request<ReqBody>> for AccessLog<S>
where
    S: Service<Request<ReqBody>, Response = Response<B>, Error = BoxError>,
    S::Future: Send + 'static,
{
    type Response = Answer<B>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    /// The layer inside is always ready.
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<ReqBody>) -> Self::Future {
        let metrics = self.metrics.clone();
        let begun = Instant::now();
        let line = self.writes.then(|| Line {
            method: request.method().clone(),
            path: request.uri().path().to_owned(),
        });
        let answering = self.inner.call(request);
        Box::pin(async move {
            let response = match answering.await {
                Ok(response) => response.map(Either::Left),
                Err(error) => failed(&error),
            };
            metrics.count(response.status(), begun.elapsed());
            if let Some(line) = line {
                line.write(&response, begun);
            }
            Ok(response)
        })
    }
}

/// Answers in place of the origin.
fn failed<B>(error: &BoxError) -> Answer<B> {
    eprintln!("proxy: {error:#}");
    let mut response = Response::new(Either::Right(Empty::new()));
    let unanswered = error.downcast_ref().map(Unanswered::status);
    *response.status_mut() = unanswered.unwrap_or(StatusCode::BAD_GATEWAY);
    response
}

/// What a request says in the log.
struct Line {
    method: Method,
    path: String,
}

impl Line {
    fn write<B>(&self, response: &Response<B>, begun: Instant) {
        let method = &self.method;
        let path = &self.path;
        let status = response.status().as_u16();
        let ms = begun.elapsed().as_secs_f64() * 1e3;
        let cache = response.headers().get("cache-status");
        let cache = cache.and_then(|value| value.to_str().ok()).unwrap_or("-");
        // A log that is not read must not break a request, so no `println!`.
        let _ = writeln!(io::stdout(), "{method} {path} {status} {ms:.1}ms {cache}");
    }
}
