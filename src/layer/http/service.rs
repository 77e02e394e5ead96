//! The service: the way of each request, with the cache and without it.

use std::{
    pin::pin,
    sync::{Arc, Mutex},
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::{
    HeaderValue, Method, Request, Response, StatusCode,
    header::{AUTHORIZATION, CACHE_CONTROL, RETRY_AFTER},
};
use http_body::Body;
use tokio::{
    sync::oneshot::{self, error::TryRecvError},
    time::{Instant, sleep_until},
};
use tower::Service;

use super::{
    CachedResponse, Http, HttpPass, ResponseBody,
    body::LayerBody,
    load::{CallResult, OwnAnswer, PendingCall, ServiceCall, StreamedResponse, load},
    request::{Asked, Question},
    status::{Forward, ttl},
    unavailable::concerns_all,
    variants::{MARK, Marker, Place},
};
use crate::{
    cache::{Alone, FlightResult, Head, Loaded, OnFull, Sharing, Source},
    error::{BoxError, Error, ErrorKind},
    layer::{Bellwether, ResponseFuture, future::ShareEnd},
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
    type Response = Response<ResponseBody<ResBody>>;
    type Error = S::Error;
    type Future = ResponseFuture<HttpPass<S, B>>;

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
        let question = Question { head, as_sent, since: Instant::now(), is_authorized };
        let call = (self.inner.clone(), body);
        match admitted {
            Ok(place) => {
                let asked = Asked { http, place, question: Arc::new(question) };
                ResponseFuture::sharing(async move {
                    match share(asked, call).await {
                        ShareOutcome::Answered(answer) => ShareEnd::Answered(answer.map(of_layer)),
                        ShareOutcome::Passes { asked, call, why } => {
                            ShareEnd::Passes(HttpPass::alone(asked, call, why))
                        }
                    }
                })
            }
            Err(why) => match http.purged(&question.head) {
                Some(purged) => ResponseFuture::sharing(async move {
                    let response = http.purge(purged).await;
                    ShareEnd::Answered(Ok(of_layer(response)))
                }),
                None => ResponseFuture::passing(HttpPass::without_part(http, question, call, why)),
            },
        }
    }
}

/// Gives a response that did not pass the type of all responses.
fn of_layer<B>(response: Response<LayerBody>) -> Response<ResponseBody<B>> {
    response.map(ResponseBody::from_layer)
}

/// How many further flights a request joins, behind one that had nothing for it, before it goes
/// alone.
const MOST_FLIGHTS: u8 = 4;

/// How long a request waits for further flights, behind the first one whose answer was for another
/// caller alone. So a caller waits for one slow answer of another at most.
const PATIENCE: Duration = Duration::from_secs(1);

/// How long a request still tries to share a response.
#[derive(Default)]
struct Tries {
    /// The flights that had nothing for it.
    flights: u8,
    /// When it goes alone. Set by the first answer that was for another caller alone.
    until: Option<Instant>,
    /// A body broke off before it could read it. It waits for the end of the next load, so that a
    /// stale response may stand in.
    waits_for_end: bool,
}

/// How a flight ended for one caller: with its answer, or with its call and what follows.
type Settled<C> = Result<CallResult<<C as ServiceCall>::Error>, (C, Next)>;

/// The next step of a caller for which a flight has no answer.
enum Next {
    /// It asks for the response below this marker.
    Below(Marker),
    /// It may share the response of the next flight: this one came too late.
    Rejoin,
    /// The same: the answer of this one was for another caller.
    Foreign,
    /// The same: the body of this one broke off.
    Broken,
    /// It goes on alone.
    Alone(Forward),
}

/// What became of a request that takes part.
enum ShareOutcome<C: ServiceCall> {
    /// The request has its answer: the shared one, or the one to its own call.
    Answered(CallResult<C::Error>),
    /// There was nothing to share, so the request passes.
    Passes { asked: Asked, call: C, why: Forward },
}

/// Answers a request with the shared response, or with the caller's own if it has led.
async fn share<C: ServiceCall>(mut asked: Asked, mut call: C) -> ShareOutcome<C> {
    let mut tries = Tries::default();
    loop {
        let (own, next) = match asked.fly(call, &tries).await {
            Ok(answer) => return ShareOutcome::Answered(answer),
            Err(unanswered) => unanswered,
        };
        call = own;
        let why = match next {
            Next::Below(marker) => {
                asked.place = asked.place.below(&marker, &asked.question.head.headers);
                continue;
            }
            Next::Rejoin | Next::Foreign | Next::Broken if tries.flights < MOST_FLIGHTS => {
                tries.flights += 1;
                if let Next::Foreign | Next::Broken = next {
                    tries.until.get_or_insert_with(|| Instant::now() + PATIENCE);
                }
                tries.waits_for_end |= matches!(next, Next::Broken);
                // A load that has failed without a lease is in the way for a moment more.
                tokio::task::yield_now().await;
                continue;
            }
            Next::Rejoin | Next::Foreign | Next::Broken => Forward::Uncacheable(None),
            Next::Alone(why) => why,
        };
        return ShareOutcome::Passes { asked, call, why };
    }
}

impl Asked {
    /// Joins the flight of the place. Its leader calls the inner service. A caller whose call is
    /// not made within its patience goes alone.
    async fn fly<C: ServiceCall>(&self, call: C, tries: &Tries) -> Settled<C> {
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
            takes_heads: !tries.waits_for_end,
            rest_limit: settings.body_limit,
            is_local: place.is_local,
            fails_alone: true,
            is_uncounted: false,
        };
        let cached = settings.cache.request(place.key.clone()).sharing(sharing, settings.max_stale);
        let call = Arc::new(Mutex::new(Some(call)));
        let (led, own) = oneshot::channel();
        let (pending, asked) = (call.clone(), self.clone());
        let flight = cached.fly(move |lead| load(asked, pending, led, lead));
        let ended = match tries.until {
            None => flight.await,
            // In a box, so that the future of a hit stays small.
            Some(until) => match Box::pin(fly_until(until, &call, flight)).await {
                Flown::Ended(ended) => ended,
                Flown::TimeUp(call) => {
                    return Err((call, Next::Alone(Forward::Uncacheable(None))));
                }
            },
        };
        match ended {
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
        mut own: oneshot::Receiver<OwnAnswer<C::Error>>,
        ended: Result<FlightResult<CachedResponse>, Error>,
    ) -> Settled<C> {
        let (http, question) = (&self.http, &self.question);
        let answer = own.try_recv();
        let call = lock(call).take();
        let (ended, call) = match (ended, call) {
            (Ok(ended), Some(call)) => (ended, call),
            (Err(error), Some(call)) if !concerns_all(&error) => return Err((call, Next::Foreign)),
            (Err(error), _) if answer.is_err() => return Ok(Ok(http.failed(question, &error))),
            // The caller has led. Its answer is there, or the flight goes on without the caller.
            _ => {
                let answer = match answer {
                    Err(TryRecvError::Empty) => own.await.ok(),
                    answer => answer.ok(),
                };
                let words = "the task that ran the request was cancelled";
                return Ok(match answer {
                    Some(answer) => http.own(question, answer),
                    None => Ok(http.failed(question, &Error::new(ErrorKind::Cancelled, words))),
                });
            }
        };
        let next = match ended {
            FlightResult::Loaded(loaded) => match Marker::of(&loaded.value) {
                Some(marker) => Next::Below(marker),
                // It was no longer fresh when the caller came. The next load begins after that.
                None => Next::Rejoin,
            },
            FlightResult::Head(head, source) => match self.follow(&head, source) {
                Ok(response) => return Ok(Ok(response)),
                Err(next) => next,
            },
            // A part that cannot be cut from what another caller has is asked for.
            FlightResult::Alone(Alone::Reserved)
                if !question.is_authorized && !question.wants_part() =>
            {
                Next::Foreign
            }
            FlightResult::Alone(Alone::Full) => Next::Alone(Forward::Full),
            FlightResult::Alone(_) => Next::Alone(Forward::Uncacheable(None)),
        };
        Err((call, next))
    }

    /// Lets a caller read the response of another one, while it arrives.
    fn follow(&self, head: &Head, source: Source) -> Result<Response<LayerBody>, Next> {
        let alone = Next::Alone(Forward::Uncacheable(None));
        let Some(streamed) = (**head).downcast_ref::<StreamedResponse>() else { return Err(alone) };
        let variant = streamed.variant.as_ref();
        if let Some(marker) =
            variant.and_then(|it| it.misses(&self.place, &self.question.head.headers))
        {
            return Err(Next::Below(marker.clone()));
        }
        let response = streamed.response(false).map_err(|broken| match broken {
            Some(_) => Next::Broken,
            None => alone,
        })?;
        self.http.count_served(source, &streamed.forward);
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

/// The end of a flight for a caller with a limit.
enum Flown<C> {
    Ended(Result<FlightResult<CachedResponse>, Error>),
    /// The caller has left the flight with its call.
    TimeUp(C),
}

/// Awaits a flight. Leaves it at a time if the call of this caller is not made by then.
async fn fly_until<C: ServiceCall>(
    until: Instant,
    call: &PendingCall<C>,
    flight: impl Future<Output = Result<FlightResult<CachedResponse>, Error>>,
) -> Flown<C> {
    let mut flight = pin!(flight);
    tokio::select! {
        biased;
        ended = &mut flight => return Flown::Ended(ended),
        () = sleep_until(until) => {}
    }
    let unmade = lock(call).take();
    match unmade {
        Some(call) => Flown::TimeUp(call),
        None => Flown::Ended(flight.await),
    }
}

impl Http {
    /// Returns its own answer to a caller that has led.
    fn own<E>(&self, question: &Question, answer: OwnAnswer<E>) -> CallResult<E> {
        match answer.result {
            Ok(response) => {
                self.count_served(answer.source, &answer.forward);
                Ok(question.answer(response))
            }
            Err(error) => {
                self.0.cache.core.counters.failed.add();
                Err(error)
            }
        }
    }

    /// Returns the answer that a stored response gives, with its `Age`.
    fn replay(&self, place: &Place, loaded: Loaded<CachedResponse>) -> Response<LayerBody> {
        let (source, kept) = (loaded.source(), loaded.age().unwrap_or_default());
        self.count_served(source, &place.miss);
        let ttl = if self.0.tells_status { ttl(&loaded) } else { None };
        let CachedResponse { head, body, age, .. } = loaded.value;
        let age = age.saturating_add(kept.as_secs());
        let response = head.with_age(LayerBody::Whole(body), Some(age));
        self.explained(response, &place.miss, Some(source), ttl)
    }

    /// Returns the answer to a caller whose load failed. A `HEAD` has no body.
    fn failed(&self, question: &Question, error: &Error) -> Response<LayerBody> {
        self.0.cache.core.counters.failed.add();
        let mut response = (self.0.on_error)(error).map(LayerBody::Whole);
        if question.head.method == Method::HEAD {
            *response.body_mut() = LayerBody::default();
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
        _ => StatusCode::BAD_GATEWAY,
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
