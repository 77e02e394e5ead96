use std::task::{Context, Poll};

use http::{Request, Response};
use http_body::Body;
use tokio::time::Instant;
use tower_service::Service;

use super::{
    CachedResponse, Http, KeyFor, ResponseBody,
    collect::{Collected, collect},
    own::{Own, State},
    rules::{Answer, answer, request_is_shareable},
};
use crate::{
    cache::{Flown, Lead, OnUncacheable, Produced},
    error::{Error, ErrorKind},
    key::Key,
    layer::{Bellwether, ResponseFuture, future::oneshot},
    time::after,
};

/// What a caller of the layer gets.
type Answered<B, E> = Result<Response<ResponseBody<B>>, E>;

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

    /// Always ready: the inner service is made ready by who reaches it.
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
            None => ResponseFuture::new(pass(inner, request)),
        }
    }
}

/// Answers a request as if the layer were not there.
async fn pass<S, B, ResBody>(inner: S, request: Request<B>) -> Answered<ResBody, S::Error>
where
    S: Service<Request<B>, Response = Response<ResBody>>,
    ResBody: Body,
{
    Ok(oneshot(inner, request).await?.map(ResponseBody::untouched))
}

/// Answers a request with what is shared, if it turns out that it is.
async fn share<S, B, ResBody>(
    http: Http,
    key: Key,
    inner: S,
    request: Request<B>,
) -> Answered<ResBody, S::Error>
where
    B: Body + Send + 'static,
    S: Service<Request<B>, Response = Response<ResBody>> + Clone + Send + 'static,
    S::Error: Send + 'static,
    S::Future: Send + 'static,
    ResBody: Body + Send + 'static,
    ResBody::Error: Send,
{
    let own = Own::new(request);
    let work = {
        let (http, inner, own) = (http.clone(), inner.clone(), own.clone());
        move |lead| lead_with(http, inner, own, lead)
    };
    let flown = http.0.cache.request(key).on_uncacheable(OnUncacheable::Pass).fly(work).await;
    let whole = |response: Response<_>| Ok(response.map(ResponseBody::whole));
    match (own.take(), flown) {
        (State::Answered(answer), _) => answer,
        (_, Ok(Flown::Loaded(loaded))) => whole(loaded.value().replay(loaded.source())),
        (State::Asked(request), Ok(Flown::Uncacheable)) => pass(inner, request).await,
        (_, Err(error)) => whole((http.0.on_error)(&error)),
        (State::Taken, Ok(Flown::Uncacheable)) => whole((http.0.on_error)(&gone())),
    }
}

/// What the leader's task does: asks the service, and finds out whether the answer may be shared.
async fn lead_with<S, B, ResBody>(
    http: Http,
    inner: S,
    own: Own<Request<B>, Answered<ResBody, S::Error>>,
    lead: Lead,
) -> Result<Produced<CachedResponse>, Error>
where
    S: Service<Request<B>, Response = Response<ResBody>>,
    ResBody: Body,
{
    let cache = &http.0.cache;
    // The rest of the load limit is for handing on what was read by then.
    let until = after(Instant::now(), cache.load_limit() / 8 * 7);
    let State::Asked(request) = own.take() else { return Err(gone()) };
    let response = match oneshot(inner, request).await {
        Ok(response) => response,
        Err(error) => {
            own.answer(Err(error));
            return Err(Error::new(ErrorKind::Load, "the service failed"));
        }
    };
    let (parts, body) = response.into_parts();
    let limit = http.0.max_body.min(cache.value_limit() as u64);
    let freshness = match answer(&parts, body.size_hint().lower(), limit) {
        Answer::Shareable(freshness) => freshness,
        unshareable => {
            if unshareable == Answer::Failing {
                lead.do_not_store();
            }
            own.answer(Ok(Response::from_parts(parts, ResponseBody::untouched(body))));
            return Ok(Produced::Uncacheable);
        }
    };
    let body = match collect(body, limit, until).await {
        Collected::Whole(bytes) => {
            match CachedResponse::new(&parts, bytes.clone(), freshness.age) {
                Some(response) => {
                    if let Some(lifetime) = freshness.lifetime {
                        lead.expire_after(lifetime.min(cache.ttl()));
                    }
                    return Ok(Produced::Value(response));
                }
                None => ResponseBody::whole(bytes),
            }
        }
        Collected::Unfit(begun) => ResponseBody::begun(begun),
        Collected::Failed(begun) => {
            own.answer(Ok(Response::from_parts(parts, ResponseBody::begun(begun))));
            return Err(Error::new(ErrorKind::Load, "the body of the answer broke off"));
        }
    };
    own.answer(Ok(Response::from_parts(parts, body)));
    Ok(Produced::Uncacheable)
}

fn gone() -> Error {
    Error::new(ErrorKind::Cancelled, "the request was lost with the task that ran it")
}
