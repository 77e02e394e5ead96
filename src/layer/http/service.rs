use std::{
    task::{Context, Poll},
    time::Duration,
};

use http::{Request, Response};
use http_body::Body;
use tokio::time::Instant;
use tower_service::Service;

use super::{
    CachedResponse, Http, KeyFor, ResponseBody,
    collect::{Collected, collect},
    exchange::{Exchange, ExchangeState},
    rules::{ResponseClass, classify, request_is_shareable},
};
use crate::{
    cache::{Flown, Lead, OnUncacheable, Produced},
    error::{Error, ErrorKind},
    key::Key,
    layer::{Bellwether, ResponseFuture, future::oneshot},
};

/// The result that a caller of the layer receives.
type CallResult<B, E> = Result<Response<ResponseBody<B>>, E>;

impl<S, B, ResBody> Service<Request<B>> for Bellwether<S, Http>
where
    B: Body + Send + 'static,
    S: Service<Request<B>, Response = Response<ResBody>> + Clone + Send + 'static,
    S::Error: Send + 'static,
    S::Future: Send + 'static,
    ResBody: Body + Send + 'static,
    ResBody::Error: Send,
{
    type Response = Response<ResponseBody<ResBody>>;
    type Error = S::Error;
    type Future = ResponseFuture<Self::Response, S::Error>;

    /// Always returns ready. Each call makes its own clone of the inner service ready.
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let inner = self.inner.clone();
        let (parts, body) = request.into_parts();
        let key = match request_is_shareable(&parts, &body) {
            true => self.mode.key_for(&parts),
            false => None,
        };
        let request = Request::from_parts(parts, body);
        match key {
            Some(key) => ResponseFuture::new(share(self.mode.clone(), key, inner, request)),
            None => ResponseFuture::new(pass_through(inner, request)),
        }
    }
}

/// Calls the inner service as if the layer were not there.
async fn pass_through<S, B, ResBody>(inner: S, request: Request<B>) -> CallResult<ResBody, S::Error>
where
    S: Service<Request<B>, Response = Response<ResBody>>,
    ResBody: Body,
{
    Ok(oneshot(inner, request).await?.map(ResponseBody::untouched))
}

/// Answers a request with the shared response, or with the caller's own if it is uncacheable.
async fn share<S, B, ResBody>(
    http: Http,
    key: Key,
    inner: S,
    request: Request<B>,
) -> CallResult<ResBody, S::Error>
where
    B: Body + Send + 'static,
    S: Service<Request<B>, Response = Response<ResBody>> + Clone + Send + 'static,
    S::Error: Send + 'static,
    S::Future: Send + 'static,
    ResBody: Body + Send + 'static,
    ResBody::Error: Send,
{
    let exchange = Exchange::new(request);
    let load = {
        let (http, inner, exchange) = (http.clone(), inner.clone(), exchange.clone());
        move |lead| produce(http, inner, exchange, lead)
    };
    let flown = http.0.cache.request(key).on_uncacheable(OnUncacheable::Pass).fly(load).await;
    let whole = |response: Response<_>| Ok(response.map(ResponseBody::whole));
    match (exchange.take(), flown) {
        (ExchangeState::Answered(response), _) => response,
        (_, Ok(Flown::Loaded(loaded))) => whole(loaded.value().replay(loaded.source())),
        (ExchangeState::Pending(request), Ok(Flown::Uncacheable)) => {
            pass_through(inner, request).await
        }
        (_, Err(error)) => whole((http.0.on_error)(&error)),
        (ExchangeState::Taken, Ok(Flown::Uncacheable)) => whole((http.0.on_error)(&lost())),
    }
}

/// Calls the inner service for the leader, and decides whether its response may be shared.
async fn produce<S, B, ResBody>(
    http: Http,
    inner: S,
    exchange: Exchange<Request<B>, CallResult<ResBody, S::Error>>,
    lead: Lead,
) -> Result<Produced<CachedResponse>, Error>
where
    S: Service<Request<B>, Response = Response<ResBody>>,
    ResBody: Body,
{
    let (limit, deadline) = http.0.body_bounds();
    let ExchangeState::Pending(request) = exchange.take() else { return Err(lost()) };
    let response = match oneshot(inner, request).await {
        Ok(response) => response,
        Err(error) => {
            exchange.answer(Err(error));
            return Err(Error::new(ErrorKind::Load, "the inner service returned an error"));
        }
    };
    match receive(response, limit, deadline).await {
        Received::Shareable(response, lifetime) => {
            if let Some(lifetime) = lifetime {
                lead.expire_after(lifetime.min(http.0.cache.ttl()));
            }
            return Ok(Produced::Value(response));
        }
        Received::Uncacheable(response) => exchange.answer(Ok(response)),
        Received::Failing(response) => {
            lead.do_not_store();
            exchange.answer(Ok(response));
        }
        Received::Broken(response) => {
            exchange.answer(Ok(response));
            return Err(Error::new(ErrorKind::Load, "the response body ended with an error"));
        }
    }
    Ok(Produced::Uncacheable)
}

/// A response of the inner service, read as far as its use demands.
enum Received<B: Body> {
    /// May be shared, for the given time if its headers limit it.
    Shareable(CachedResponse, Option<Duration>),
    /// For its caller alone.
    Uncacheable(Response<ResponseBody<B>>),
    /// For its caller alone. The next response may be shareable.
    Failing(Response<ResponseBody<B>>),
    /// For its caller alone. Its body ends with an error.
    Broken(Response<ResponseBody<B>>),
}

/// Collects the body if the headers allow sharing, otherwise leaves it untouched.
async fn receive<B: Body>(response: Response<B>, limit: u64, deadline: Instant) -> Received<B> {
    let (parts, body) = response.into_parts();
    let untouched = |parts, body| Response::from_parts(parts, ResponseBody::untouched(body));
    let freshness = match classify(&parts, body.size_hint().lower(), limit) {
        ResponseClass::Shareable(freshness) => freshness,
        ResponseClass::Uncacheable => return Received::Uncacheable(untouched(parts, body)),
        ResponseClass::Failing => return Received::Failing(untouched(parts, body)),
    };
    let partial = |parts, body| Response::from_parts(parts, ResponseBody::partial(body));
    match collect(body, limit, deadline).await {
        Collected::Whole(bytes) => {
            match CachedResponse::new(&parts, bytes.clone(), freshness.age) {
                Some(response) => Received::Shareable(response, freshness.lifetime),
                None => {
                    let body = ResponseBody::whole(bytes);
                    Received::Uncacheable(Response::from_parts(parts, body))
                }
            }
        }
        Collected::Unfit(body) => Received::Uncacheable(partial(parts, body)),
        Collected::Failed(body) => Received::Broken(partial(parts, body)),
    }
}

fn lost() -> Error {
    Error::new(ErrorKind::Cancelled, "the task that ran the request was cancelled")
}
