//! The service: the way of each request, with the cache and without it.

use std::{
    sync::{Arc, Mutex},
    task::{Context, Poll},
};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::{
    HeaderValue, Request, Response, StatusCode,
    header::{CACHE_CONTROL, RETRY_AFTER},
};
use http_body::Body;
use tokio::{
    sync::oneshot::{self, error::TryRecvError},
    time::Instant,
};
use tower_service::Service;

use super::{
    CachedResponse, Http, InnerServiceError, ResponseBody,
    cached::was_stored,
    load::{CallResult, InnerHttp, RequestBody, StreamedResponse, load},
    request::Question,
    status::{Forward, ttl},
    variants::{MARK, Marker, Place},
};
use crate::{
    cache::{Alone, FlightResult, Head, Loaded, OnFull, Sharing, Source},
    error::{BoxError, Error, ErrorKind},
    layer::Bellwether,
    sync::lock,
};

impl<S, B, ResBody> Service<Request<B>> for Bellwether<S, Http>
where
    B: Body + Send + 'static,
    S: Service<Request<B>, Response = Response<ResBody>> + Clone + Send + 'static,
    S::Error: Send + 'static,
    S::Future: Send + 'static,
    ResBody: Body<Error: Into<BoxError>> + Send + 'static,
{
    type Response = Response<ResponseBody>;
    type Error = S::Error;
    type Future = BoxFuture<'static, CallResult<S::Error>>;

    /// Always returns ready. Each call makes its own clone of the inner service ready.
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let (http, inner) = (self.mode.clone(), self.inner.clone());
        let (head, body) = request.into_parts();
        let question = Arc::new(Question { head, since: Instant::now() });
        match http.admit(&question.head, &body) {
            Ok(place) => Box::pin(share(http, place, question, body, inner)),
            Err(why) => Box::pin(async move {
                match http.purge(&question.head).await {
                    Some(response) => Ok(response),
                    None => http.pass(None, question, body, inner, why).await,
                }
            }),
        }
    }
}

impl Http {
    /// Calls the inner service as if the layer were not there. An answer that could be shared
    /// ends the mark of its place.
    pub(super) async fn pass<B, S: InnerHttp<B>>(
        &self,
        place: Option<&Place>,
        question: Arc<Question>,
        body: B,
        inner: S,
        why: Forward,
    ) -> CallResult<S::Error> {
        let counters = self.0.cache.counters();
        counters.passed.add();
        match why {
            Forward::Method => counters.passed_method.add(),
            Forward::Uncacheable(_) => counters.passed_uncacheable.add(),
            Forward::Full => counters.passed_overloaded.add(),
            _ => {}
        }
        let is_kept = place.is_some() || !question.head.method.is_safe();
        let kept = is_kept.then(|| question.clone());
        let begun = Instant::now();
        let request = Request::from_parts(Arc::unwrap_or_clone(question).head, body);
        let (parts, body) = inner.send(request).await?.into_parts();
        if let Some(question) = kept {
            let is_shareable = || self.judge(&question, begun.elapsed(), &parts, &body).is_ok();
            match place {
                None => self.invalidate(&question.head, parts.status, &parts.headers).await,
                Some(place) if is_shareable() => self.0.marks.end(place.lasting_key()),
                Some(_) => {}
            }
        }
        Ok(self.explained(Response::from_parts(parts, body), || why))
    }
}

/// How often a request tries again to share a response, before it goes alone.
const TRIES: u8 = 4;

/// How a flight ended for one caller.
enum Settled<B, E> {
    /// With a response.
    Done(CallResult<E>),
    /// The request selects a response below this marker.
    Varies(B, Marker),
    /// It may share the response of the next flight. If it cannot, it fails with this error, or
    /// goes on alone.
    Retry(B, Option<Error>),
    /// It goes on alone.
    Alone(B, Forward),
    /// Its load has failed.
    Failed(Error),
}

/// Answers a request with the shared response, or with the caller's own if there is none.
async fn share<B: Send + 'static, S: InnerHttp<B>>(
    http: Http,
    mut place: Place,
    question: Arc<Question>,
    body: B,
    inner: S,
) -> CallResult<S::Error> {
    // Boxes hold the futures that a hit does not need, so its own future stays small.
    let mut settled = fly(&http, &place, &question, body, inner.clone()).await;
    let mut tries = TRIES;
    loop {
        let (body, alone) = match settled {
            Settled::Done(response) => return response.map(|shared| question.answer(shared)),
            Settled::Varies(body, marker) => {
                place = place.below(&marker, &question.head.headers);
                (body, None)
            }
            Settled::Retry(body, _) if tries > 0 => {
                tries -= 1;
                // A load that has failed without a lease is in the way for a moment more.
                tokio::task::yield_now().await;
                (body, None)
            }
            Settled::Retry(_, Some(error)) => {
                http.0.cache.counters().failed.add();
                return Ok(http.failed(&question, &error));
            }
            Settled::Failed(error) => return Ok(http.failed(&question, &error)),
            Settled::Retry(body, None) => (body, Some(Forward::Uncacheable(None))),
            Settled::Alone(body, why) => (body, Some(why)),
        };
        if let Some(why) = alone {
            return Box::pin(http.pass(Some(&place), question, body, inner, why)).await;
        }
        settled = Box::pin(fly(&http, &place, &question, body, inner.clone())).await;
    }
}

/// Joins the flight of a place. Its leader calls the inner service.
async fn fly<B: Send + 'static, S: InnerHttp<B>>(
    http: &Http,
    place: &Place,
    question: &Arc<Question>,
    body: B,
    inner: S,
) -> Settled<B, S::Error> {
    let settings = &http.0;
    let on_uncacheable =
        settings.marks.on_uncacheable(place.lasting_key(), question.is_authorized());
    let Some(on_uncacheable) = on_uncacheable else {
        return Settled::Alone(body, Forward::Uncacheable(None));
    };
    if place.parts.is_some() {
        return Settled::Varies(body, Box::pin(http.generation(place)).await);
    }
    let on_full = if settings.refuses_overload { OnFull::Refuse } else { OnFull::Pass };
    let sharing = Sharing {
        on_uncacheable,
        on_full,
        waits_once: settings.policy.coalesces,
        takes_heads: true,
        rest_limit: settings.body_limit,
        is_local: place.is_local,
    };
    let (request, stale) = (settings.cache.request(&place.key), settings.max_stale);
    let cached = request.sharing(sharing).stale_while_revalidate(stale).stale_if_error(stale);
    let body = Arc::new(Mutex::new(Some(body)));
    let (led, own) = oneshot::channel();
    let (request, asked) = (body.clone(), (http.clone(), place.clone(), question.clone()));
    match cached.fly(move |lead| load(asked, inner, request, led, lead)).await {
        // The body is left alone then. Its request may belong to a refresh that has begun, and a
        // stale response stands in for the answer of an origin that fails.
        Ok(FlightResult::Loaded(loaded))
            if loaded.value.head.status != MARK
                && CachedResponse::is_in_time(&loaded, question.since) =>
        {
            Settled::Done(Ok(http.replay(place, loaded)))
        }
        ended => Box::pin(http.settle(question, &body, own, ended)).await,
    }
}

impl Http {
    /// Returns how a flight ended for a caller that is not served the value of the flight.
    async fn settle<B, E>(
        &self,
        question: &Question,
        body: &RequestBody<B>,
        mut own: oneshot::Receiver<CallResult<E>>,
        ended: Result<FlightResult<CachedResponse>, Error>,
    ) -> Settled<B, E> {
        let source = match &ended {
            Ok(FlightResult::Loaded(loaded)) => Some(loaded.source()),
            Ok(FlightResult::Head(_, source)) => Some(*source),
            Ok(FlightResult::Alone(_)) | Err(_) => None,
        };
        let answer = own.try_recv();
        let body = lock(body).take();
        let (ended, body) = match (ended, body) {
            (Err(error), _) if answer.is_err() => return Settled::Failed(error),
            (Ok(ended), Some(body)) => (ended, body),
            // The caller has led. Its answer is there, or the flight goes on without the caller.
            _ => {
                source.into_iter().for_each(|source| self.0.cache.counters().served(source));
                let answer = match answer {
                    Err(TryRecvError::Empty) => own.await.ok(),
                    answer => answer.ok(),
                };
                let words = "the task that ran the request was cancelled";
                let cancelled = || Settled::Failed(Error::new(ErrorKind::Cancelled, words));
                return answer.map_or_else(cancelled, Settled::Done);
            }
        };
        match ended {
            FlightResult::Loaded(loaded) => match Marker::of(&loaded.value) {
                Some(marker) => Settled::Varies(body, marker),
                // It was no longer fresh when the caller came. The next load begins after that.
                None => Settled::Retry(body, None),
            },
            FlightResult::Head(head, source) => self.follow(question, &head, source, body),
            FlightResult::Alone(Alone::Reserved) if !question.is_authorized() => {
                Settled::Retry(body, None)
            }
            FlightResult::Alone(Alone::Full) => Settled::Alone(body, Forward::Full),
            FlightResult::Alone(_) => Settled::Alone(body, Forward::Uncacheable(None)),
        }
    }

    /// Lets a caller read the response of another one, while it arrives.
    fn follow<B, E>(
        &self,
        question: &Question,
        head: &Head,
        source: Source,
        body: B,
    ) -> Settled<B, E> {
        let Some(streamed) = (**head).downcast_ref::<StreamedResponse>() else {
            return Settled::Alone(body, Forward::Uncacheable(None));
        };
        let variant = streamed.variant.as_ref();
        if let Some(marker) = variant.and_then(|it| it.misses(&question.head.headers)) {
            return Settled::Varies(body, marker.clone());
        }
        match streamed.response(false) {
            Ok(response) => {
                self.0.cache.counters().served(source);
                let forward = &streamed.forward;
                Settled::Done(Ok(self.with_source(response, Source::Followed, None, forward)))
            }
            Err(Some(broken)) => {
                let words = "the body of the response broke off";
                Settled::Retry(body, Some(Error::with_source(ErrorKind::Load, words, broken)))
            }
            Err(None) => Settled::Alone(body, Forward::Uncacheable(None)),
        }
    }

    /// Returns the answer that a stored response gives, with its `Age`.
    fn replay(&self, place: &Place, loaded: Loaded<CachedResponse>) -> Response<ResponseBody> {
        let (source, kept) = (loaded.source(), loaded.age().unwrap_or_default());
        self.0.cache.counters().served(source);
        let ttl = if self.0.tells_status { ttl(&loaded) } else { None };
        let has_age = was_stored(&loaded) || loaded.value.head.age > 0;
        let CachedResponse { head, body } = loaded.value;
        let age = has_age.then(|| head.age.saturating_add(kept.as_secs()));
        // A hit has the only reference to what it decoded.
        let response = Arc::unwrap_or_clone(head).with_age(ResponseBody::whole(body), age);
        self.with_source(response, source, ttl, &place.forward(false))
    }

    /// Returns the answer to a caller whose load failed. A `HEAD` has no body.
    fn failed(&self, question: &Question, error: &Error) -> Response<ResponseBody> {
        let response = (self.0.on_error)(error).map(|body| match question.is_head() {
            true => ResponseBody::default(),
            false => ResponseBody::whole(body),
        });
        match error.retry_after() {
            Some(_) => self.explained(response, || Forward::BackingOff),
            None => response,
        }
    }
}

/// The default response to callers whose load failed.
pub(super) fn error_response(error: &Error) -> Response<Bytes> {
    let status = match error.kind() {
        ErrorKind::LoadTimeout => StatusCode::GATEWAY_TIMEOUT,
        ErrorKind::BackingOff
        | ErrorKind::Overloaded
        | ErrorKind::Cancelled
        | ErrorKind::ShutDown => StatusCode::SERVICE_UNAVAILABLE,
        ErrorKind::Load if error.retry_after().is_some() => StatusCode::SERVICE_UNAVAILABLE,
        _ => error
            .load_ref()
            .map_or(StatusCode::BAD_GATEWAY, |failed: &InnerServiceError| failed.status()),
    };
    let mut response = Response::new(Bytes::new());
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    if let Some(wait) = error.retry_after() {
        // No client is to come too early.
        let begun = u64::from(wait.subsec_nanos() > 0);
        headers.insert(RETRY_AFTER, wait.as_secs().saturating_add(begun).into());
    }
    response
}
