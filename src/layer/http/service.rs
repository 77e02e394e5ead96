//! The service: the way of each request, with the cache and without it.

use std::{
    sync::{Arc, Mutex},
    task::{Context, Poll},
};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::{
    HeaderValue, Method, Request, Response, StatusCode,
    header::{AUTHORIZATION, CACHE_CONTROL, RETRY_AFTER},
};
use http_body::Body;
use tokio::{
    sync::oneshot::{self, error::TryRecvError},
    time::Instant,
};
use tower_service::Service;

use super::{
    CachedResponse, Http, InnerServiceError, ResponseBody,
    invalidation::is_safe,
    load::{CallResult, PendingCall, ServiceCall, StreamedResponse, load},
    request::{Asked, Question},
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
        let http = self.mode.clone();
        let (mut head, body) = request.into_parts();
        let as_sent = http.normalize(&mut head);
        let admitted = http.admit(&head, &body);
        let is_authorized = head.headers.contains_key(AUTHORIZATION);
        let question = Arc::new(Question { head, as_sent, since: Instant::now(), is_authorized });
        let call = (self.inner.clone(), body);
        match admitted {
            Ok(place) => Box::pin(share(Asked { http, place, question }, call)),
            Err(why) => Box::pin(async move {
                match http.purge(&question.head).await {
                    Some(response) => Ok(response),
                    None => http.pass(None, question, call, why).await,
                }
            }),
        }
    }
}

impl Http {
    /// Calls the inner service as if the layer were not there. An answer that could be shared
    /// ends the mark of its place.
    async fn pass<C: ServiceCall>(
        &self,
        place: Option<&Place>,
        question: Arc<Question>,
        call: C,
        why: Forward,
    ) -> CallResult<C::Error> {
        let counters = &self.0.cache.core.counters;
        counters.passed.add();
        match &why {
            Forward::Method => counters.passed_method.add(),
            Forward::Body => counters.passed_body.add(),
            Forward::Key => counters.passed_key.add(),
            Forward::Switched => counters.passed_switched.add(),
            Forward::Header(name) => {
                counters.passed_header.add();
                self.0.passed_headers.count(name);
            }
            Forward::Uncacheable(_) => counters.passed_uncacheable.add(),
            Forward::Full => counters.passed_overloaded.add(),
            _ => {}
        }
        let is_kept = place.is_some() || !is_safe(&question.head.method);
        let kept = is_kept.then(|| question.clone());
        let begun = Instant::now();
        let head = Arc::unwrap_or_clone(question).into_sent();
        let (parts, body) = call.send(head).await?.into_parts();
        if let Some(question) = kept {
            let is_shareable = || self.judge(&question, begun.elapsed(), &parts, &body).is_ok();
            match place {
                None => self.invalidate(&question.head, parts.status, &parts.headers).await,
                Some(place) if is_shareable() => self.0.marks.end(&place.lasting),
                Some(_) => {}
            }
        }
        let response = Response::from_parts(parts, ResponseBody::single(body));
        Ok(self.explained(response, &why, None, None))
    }
}

/// How often a request tries again to share a response, before it goes alone.
const TRIES: u8 = 4;

/// How a flight ended for one caller: with its answer, or with its call and what follows.
type Settled<C> = Result<CallResult<<C as ServiceCall>::Error>, (C, Next)>;

/// The next step of a caller for which a flight has no answer.
enum Next {
    /// It asks for the response below this marker.
    Below(Marker),
    /// It may share the response of the next flight. If it cannot, it fails with this error, or
    /// goes on alone.
    Retry(Option<Error>),
    /// It goes on alone.
    Alone(Forward),
}

/// Answers a request with the shared response, or with the caller's own if there is none.
async fn share<C: ServiceCall>(mut asked: Asked, mut call: C) -> CallResult<C::Error> {
    let mut tries = TRIES;
    loop {
        let (own, next) = match asked.fly(call).await {
            Ok(answer) => return answer,
            Err(unanswered) => unanswered,
        };
        call = own;
        let why = match next {
            Next::Below(marker) => {
                asked.place = asked.place.below(&marker, &asked.question.head.headers);
                continue;
            }
            Next::Retry(_) if tries > 0 => {
                tries -= 1;
                // A load that has failed without a lease is in the way for a moment more.
                tokio::task::yield_now().await;
                continue;
            }
            Next::Retry(Some(error)) => {
                asked.http.0.cache.core.counters.failed.add();
                return Ok(asked.http.failed(&asked.question, &error));
            }
            Next::Retry(None) => Forward::Uncacheable(None),
            Next::Alone(why) => why,
        };
        // In a box, so that the future of a hit stays small.
        let Asked { http, place, question } = asked;
        return Box::pin(http.pass(Some(&place), question, call, why)).await;
    }
}

impl Asked {
    /// Joins the flight of the place. Its leader calls the inner service.
    async fn fly<C: ServiceCall>(&self, call: C) -> Settled<C> {
        let Self { http, place, question } = self;
        let settings = &http.0;
        let mark = settings.marks.on_uncacheable(&place.lasting, question.is_authorized);
        let Some(on_uncacheable) = mark else {
            return Err((call, Next::Alone(Forward::Uncacheable(None))));
        };
        if place.parts.is_some() {
            return Err((call, Next::Below(Box::pin(http.generation(place)).await)));
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
        let cached = settings.cache.request(place.key.clone()).sharing(sharing, settings.max_stale);
        let call = Arc::new(Mutex::new(Some(call)));
        let (led, own) = oneshot::channel();
        let (pending, asked) = (call.clone(), self.clone());
        match cached.fly(move |lead| load(asked, pending, led, lead)).await {
            // The call is left alone then. It may belong to a refresh that has begun, and a stale
            // response stands in for the answer of an origin that fails.
            Ok(FlightResult::Loaded(loaded))
                if loaded.value.head.status != MARK
                    && (loaded.value.late == 0 || is_in_time(&loaded, question.since)) =>
            {
                Ok(Ok(question.answer(http.replay(place, loaded))))
            }
            // In a box, so that the future of a hit stays small.
            ended => Box::pin(self.settle(&call, own, ended)).await,
        }
    }

    /// Returns how a flight ended for a caller that is not served the value of the flight.
    async fn settle<C: ServiceCall>(
        &self,
        call: &PendingCall<C>,
        mut own: oneshot::Receiver<CallResult<C::Error>>,
        ended: Result<FlightResult<CachedResponse>, Error>,
    ) -> Settled<C> {
        let (http, question) = (&self.http, &self.question);
        let answer = own.try_recv();
        let call = lock(call).take();
        let (ended, call) = match (ended, call) {
            (Err(error), _) if answer.is_err() => return Ok(Ok(http.failed(question, &error))),
            (Ok(ended), Some(call)) => (ended, call),
            // The caller has led. Its answer is there, or the flight goes on without the caller.
            (ended, _) => {
                let counters = &http.0.cache.core.counters;
                match ended {
                    Ok(FlightResult::Loaded(loaded)) => counters.served(loaded.source()),
                    Ok(FlightResult::Head(_, source)) => counters.served(source),
                    Ok(FlightResult::Alone(_)) | Err(_) => {}
                }
                let answer = match answer {
                    Err(TryRecvError::Empty) => own.await.ok(),
                    answer => answer.ok(),
                };
                let words = "the task that ran the request was cancelled";
                return Ok(match answer {
                    Some(answer) => answer.map(|response| question.answer(response)),
                    None => Ok(http.failed(question, &Error::new(ErrorKind::Cancelled, words))),
                });
            }
        };
        let next = match ended {
            FlightResult::Loaded(loaded) => match Marker::of(&loaded.value) {
                Some(marker) => Next::Below(marker),
                // It was no longer fresh when the caller came. The next load begins after that.
                None => Next::Retry(None),
            },
            FlightResult::Head(head, source) => match self.follow(&head, source) {
                Ok(response) => return Ok(Ok(response)),
                Err(next) => next,
            },
            // A part that cannot be cut from what another caller has is asked for.
            FlightResult::Alone(Alone::Reserved)
                if !question.is_authorized && !question.wants_part() =>
            {
                Next::Retry(None)
            }
            FlightResult::Alone(Alone::Full) => Next::Alone(Forward::Full),
            FlightResult::Alone(_) => Next::Alone(Forward::Uncacheable(None)),
        };
        Err((call, next))
    }

    /// Lets a caller read the response of another one, while it arrives.
    fn follow(&self, head: &Head, source: Source) -> Result<Response<ResponseBody>, Next> {
        let alone = Next::Alone(Forward::Uncacheable(None));
        let Some(streamed) = (**head).downcast_ref::<StreamedResponse>() else { return Err(alone) };
        let variant = streamed.variant.as_ref();
        if let Some(marker) =
            variant.and_then(|it| it.misses(&self.place, &self.question.head.headers))
        {
            return Err(Next::Below(marker.clone()));
        }
        let response = streamed.response(false).map_err(|broken| match broken {
            Some(broken) => {
                let words = "the body of the response broke off";
                Next::Retry(Some(Error::with_source(ErrorKind::Load, words, broken)))
            }
            None => alone,
        })?;
        self.http.0.cache.core.counters.served(source);
        let source = Some(Source::Followed);
        let response = self.http.explained(response, &streamed.forward, source, None);
        Ok(self.question.answer(response))
    }
}

/// Returns whether a response is stored or remembered, or was fresh when a caller came that has
/// waited for it since then.
fn is_in_time(loaded: &Loaded<CachedResponse>, since: Instant) -> bool {
    match loaded.source() {
        Source::Hit | Source::Local | Source::Stale => true,
        Source::Degraded if loaded.age().is_some() => true,
        _ => u128::from(loaded.value.late) <= since.elapsed().as_millis(),
    }
}

impl Http {
    /// Returns the answer that a stored response gives, with its `Age`.
    fn replay(&self, place: &Place, loaded: Loaded<CachedResponse>) -> Response<ResponseBody> {
        let (source, kept) = (loaded.source(), loaded.age().unwrap_or_default());
        self.0.cache.core.counters.served(source);
        let ttl = if self.0.tells_status { ttl(&loaded) } else { None };
        let CachedResponse { head, body, age, .. } = loaded.value;
        let age = age.saturating_add(kept.as_secs());
        let response = head.with_age(ResponseBody::whole(body), Some(age));
        self.explained(response, &place.miss, Some(source), ttl)
    }

    /// Returns the answer to a caller whose load failed. A `HEAD` has no body.
    fn failed(&self, question: &Question, error: &Error) -> Response<ResponseBody> {
        let mut response = (self.0.on_error)(error).map(ResponseBody::whole);
        if question.head.method == Method::HEAD {
            *response.body_mut() = ResponseBody::default();
        }
        match error.retry_after() {
            Some(_) => self.explained(response, &Forward::BackingOff, None, None),
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
