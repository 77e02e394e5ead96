//! The service: the way of each request, with the cache and without it.

use std::{
    pin::pin,
    sync::{Arc, Mutex},
    task::{Context, Poll},
    time::Duration,
};

use http::{Method, Request, Response, header::AUTHORIZATION};
use http_body::Body;
use tokio::{
    sync::oneshot::{self, error::TryRecvError},
    time::{Instant, sleep_until},
};
use tower::Service;

use super::{
    CachedResponse, Http, HttpPass, ResponseBody,
    body::{LayerBody, NotJoined},
    call::{CallResult, ServiceCall},
    load::{OwnAnswer, PendingCall, load},
    marks::MarkedAs,
    question::Question,
    request::Asked,
    status::{Forward, ttl},
    streamed::StreamedResponse,
    unavailable::concerns_all,
    variants::{MARK, Marker, Place},
};
use crate::{
    cache::{
        Loaded, Source,
        shared_load::{Alone, FlightResult, Head, Sharing},
    },
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

/// How many further flights a request joins, behind a flight that had nothing for the request,
/// before the request goes alone.
const MOST_FLIGHTS: u8 = 4;

/// How long a request waits for further flights, behind the first flight whose answer was for
/// another caller alone. So a caller waits for at most one slow answer of another caller.
const PATIENCE: Duration = Duration::from_secs(1);

/// How long a request still tries to share a response.
#[derive(Default)]
struct Tries {
    /// The flights that had nothing for the request.
    flights: u8,
    /// When the request goes alone. Set by the first answer that was for another caller alone.
    until: Option<Instant>,
    /// A body broke off before the caller could read it. The caller waits for the end of the next
    /// load, so that a stale response may stand in.
    waits_for_end: bool,
}

impl Tries {
    /// Notes a flight that had nothing for the request. Returns whether the request joins one more.
    fn go_on_after(&mut self, missed: Missed) -> bool {
        if self.flights >= MOST_FLIGHTS {
            return false;
        }
        self.flights += 1;
        if missed != Missed::TooLate {
            self.until.get_or_insert_with(|| Instant::now() + PATIENCE);
        }
        if missed == Missed::Broken {
            self.waits_for_end = true;
        }
        true
    }
}

/// How a flight ended for one caller.
enum Settled<C: ServiceCall> {
    /// The caller has its answer.
    Answered(CallResult<C::Error>),
    /// The caller still has its call, and takes the next step.
    Unanswered(C, Next),
}

/// The next step of a caller for which a flight has no answer.
enum Next {
    /// The caller asks for the response below this marker.
    Below(Marker),
    /// The caller may share the response of the next flight.
    Rejoin(Missed),
    /// The caller goes on alone.
    Alone(Forward),
}

/// Why a flight had nothing for a caller that may share the response of the next flight.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Missed {
    /// The response came too late: the response was no longer fresh when the caller came.
    TooLate,
    /// The answer was for another caller alone.
    Foreign,
    /// The body broke off.
    Broken,
}

/// What became of a request that takes part.
enum ShareOutcome<C: ServiceCall> {
    /// The request has its answer: the shared answer, or the answer to the request's own call.
    Answered(CallResult<C::Error>),
    /// There was nothing to share, so the request passes.
    Passes { asked: Asked, call: C, why: Forward },
}

/// Answers a request with the shared response, or with the caller's own if the caller has led.
async fn share<C: ServiceCall>(mut asked: Asked, mut call: C) -> ShareOutcome<C> {
    let mut tries = Tries::default();
    loop {
        let next = match asked.fly(call, &tries).await {
            Settled::Answered(answer) => return ShareOutcome::Answered(answer),
            Settled::Unanswered(own, next) => {
                call = own;
                next
            }
        };
        match next {
            Next::Below(marker) => {
                asked.place = asked.place.below(&marker, &asked.question.head.headers);
            }
            Next::Rejoin(missed) => {
                if !tries.go_on_after(missed) {
                    let why = Forward::Uncacheable(None);
                    return ShareOutcome::Passes { asked, call, why };
                }
                // A load that has failed without a lease is in the way for a moment more.
                tokio::task::yield_now().await;
            }
            Next::Alone(why) => return ShareOutcome::Passes { asked, call, why },
        }
    }
}

impl Asked {
    /// Joins the flight of the place. Its leader calls the inner service. A caller whose call is
    /// not made within its patience goes alone.
    async fn fly<C: ServiceCall>(&self, call: C, tries: &Tries) -> Settled<C> {
        let Self { http, place, question } = self;
        let settings = &http.0;
        let marked = settings.marks.of_request(&place.lasting, question.is_authorized);
        if let MarkedAs::Alone = marked {
            return Settled::Unanswered(call, Next::Alone(Forward::Uncacheable(None)));
        }
        if place.parts.is_some() {
            let marker = Box::pin(http.generation(place)).await;
            return Settled::Unanswered(call, Next::Below(marker));
        }
        let request = settings.cache.request(place.key.clone());
        let request = request.sharing(self.sharing(&marked, tries), settings.max_stale);
        let call = Arc::new(Mutex::new(Some(call)));
        let pending = call.clone();
        let asked = self.clone();
        let (led, own) = oneshot::channel();
        let flight = request.fly(move |lead| load(asked, pending, led, lead));
        let ended = match tries.until {
            None => flight.await,
            // In a box, so that the future of a hit stays small.
            Some(until) => match Box::pin(fly_until(until, &call, flight)).await {
                Flown::Ended(ended) => ended,
                Flown::TimeUp(call) => {
                    return Settled::Unanswered(call, Next::Alone(Forward::Uncacheable(None)));
                }
            },
        };
        match ended {
            // The call is left alone then. It may belong to a refresh that has begun, and a stale
            // response stands in for the answer of an origin that fails.
            Ok(FlightResult::Loaded(loaded)) if is_response_in_time(&loaded, question.since) => {
                Settled::Answered(Ok(question.answer(http.replay(place, loaded))))
            }
            // In a box, so that the future of a hit stays small.
            ended => Box::pin(self.settle(&call, own, ended)).await,
        }
    }

    /// Returns how the callers of the place share its load.
    fn sharing(&self, marked: &MarkedAs, tries: &Tries) -> Sharing {
        let settings = &self.http.0;
        Sharing {
            passes_uncacheable: true,
            claims_uncacheable: matches!(marked, MarkedAs::WasShareable),
            never_queues: true,
            passes_full: !settings.refuses_overload,
            waits_once: settings.policy.coalesces,
            takes_heads: !tries.waits_for_end,
            rest_limit: settings.body_limit,
            is_local: self.place.is_local,
            fails_alone: true,
            is_uncounted: false,
        }
    }

    /// Returns how a flight ended for a caller that is not served the value of the flight.
    async fn settle<C: ServiceCall>(
        &self,
        call: &PendingCall<C>,
        own: oneshot::Receiver<OwnAnswer<C::Error>>,
        ended: FlightOutcome,
    ) -> Settled<C> {
        let unmade = lock(call).take();
        let Some(call) = unmade else {
            return Settled::Answered(self.answer_to_leader(own, ended).await);
        };
        let ended = match ended {
            Ok(ended) => ended,
            // The task that led has ended with its runtime. The service has not got this call.
            Err(error) if error.kind() == ErrorKind::Cancelled => {
                let next = Next::Alone(Forward::Uncacheable(None));
                return Settled::Unanswered(call, next);
            }
            Err(error) if concerns_all(&error) => {
                return Settled::Answered(Ok(self.http.failed(&self.question, &error)));
            }
            Err(_) => return Settled::Unanswered(call, Next::Rejoin(Missed::Foreign)),
        };
        let next = match ended {
            FlightResult::Loaded(loaded) => match Marker::of(&loaded.value) {
                Some(marker) => Next::Below(marker),
                // The next load begins after the caller came.
                None => Next::Rejoin(Missed::TooLate),
            },
            FlightResult::Head(head, source) => match self.follow(&head, source) {
                Followed::Response(response) => return Settled::Answered(Ok(response)),
                Followed::Nothing(next) => next,
            },
            FlightResult::Alone(Alone::Full) => Next::Alone(Forward::Full),
            FlightResult::Alone(Alone::Uncacheable) => Next::Alone(Forward::Uncacheable(None)),
            FlightResult::Alone(Alone::Reserved) => self.after_reserved(),
        };
        Settled::Unanswered(call, next)
    }

    /// Returns the answer to a caller whose call was made. The answer is there, or the flight goes
    /// on without the caller.
    async fn answer_to_leader<E>(
        &self,
        mut own: oneshot::Receiver<OwnAnswer<E>>,
        ended: FlightOutcome,
    ) -> CallResult<E> {
        let answer = match own.try_recv() {
            Ok(answer) => Some(answer),
            Err(TryRecvError::Empty) if ended.is_ok() => own.await.ok(),
            Err(_) => None,
        };
        if let Some(answer) = answer {
            return self.http.own(&self.question, answer);
        }
        let error = match ended {
            Err(error) => error,
            Ok(_) => {
                let words = "the task that ran the request was cancelled";
                Error::new(ErrorKind::Cancelled, words)
            }
        };
        Ok(self.http.failed(&self.question, &error))
    }

    /// Returns the next step after a response that depended on the request of another caller.
    fn after_reserved(&self) -> Next {
        // The response to these requests may depend on them, too.
        if self.question.is_authorized || self.question.wants_part() {
            return Next::Alone(Forward::Uncacheable(None));
        }
        Next::Rejoin(Missed::Foreign)
    }

    /// Lets a caller read the response to another caller, while the response arrives.
    fn follow(&self, head: &Head, source: Source) -> Followed {
        let alone = Next::Alone(Forward::Uncacheable(None));
        let Some(streamed) = (**head).downcast_ref::<StreamedResponse>() else {
            return Followed::Nothing(alone);
        };
        if let Some(variant) = &streamed.variant
            && let Some(marker) = variant.misses(&self.place, &self.question.head.headers)
        {
            return Followed::Nothing(Next::Below(marker.clone()));
        }
        let response = match streamed.response(false) {
            Ok(response) => response,
            Err(NotJoined::Broken) => return Followed::Nothing(Next::Rejoin(Missed::Broken)),
            Err(NotJoined::TooLate) => return Followed::Nothing(alone),
        };
        self.http.count_served(source, &streamed.forward);
        let source = Some(Source::Followed);
        let response = self.http.explained(response, &streamed.forward, source, None);
        Followed::Response(self.question.answer(response))
    }
}

/// What a caller finds at the head of the response to another caller.
enum Followed {
    Response(Response<LayerBody>),
    Nothing(Next),
}

/// The end of a flight, as each of its callers gets it.
type FlightOutcome = Result<FlightResult<CachedResponse>, Error>;

/// Returns whether a value is a response, and no marker, and in time for a caller that came then.
fn is_response_in_time(loaded: &Loaded<CachedResponse>, since: Instant) -> bool {
    let is_marker = loaded.value.head.status == MARK;
    !is_marker && (loaded.value.late == 0 || is_in_time(loaded, since))
}

/// Returns whether a response is stored or remembered, or was fresh when a caller came that has
/// waited for it since then.
fn is_in_time(loaded: &Loaded<CachedResponse>, since: Instant) -> bool {
    match loaded.source {
        Source::Hit | Source::Local | Source::Stale => true,
        Source::Degraded if loaded.age().is_some() => true,
        _ => u128::from(loaded.value.late) <= since.elapsed().as_millis(),
    }
}

/// The end of a flight for a caller with a limit.
enum Flown<C> {
    Ended(FlightOutcome),
    /// The caller has left the flight with its call.
    TimeUp(C),
}

/// Awaits a flight. Leaves the flight at a time, if the call of this caller is not made by then.
async fn fly_until<C: ServiceCall>(
    until: Instant,
    call: &PendingCall<C>,
    flight: impl Future<Output = FlightOutcome>,
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
    /// Returns the own answer of a caller that has led.
    fn own<E>(&self, question: &Question, answer: OwnAnswer<E>) -> CallResult<E> {
        match answer.result {
            Ok(response) => {
                self.count_served(answer.source, &answer.forward);
                Ok(question.answer(response))
            }
            Err(error) => {
                self.count_failed();
                Err(error)
            }
        }
    }

    /// Returns the answer that a stored response gives, with its `Age`.
    fn replay(&self, place: &Place, loaded: Loaded<CachedResponse>) -> Response<LayerBody> {
        let source = loaded.source;
        self.count_served(source, &place.miss);
        let kept = loaded.age().unwrap_or_default();
        let ttl = if self.0.tells_status { ttl(&loaded) } else { None };
        let CachedResponse { head, body, age, .. } = loaded.value;
        let age = age.saturating_add(kept.as_secs());
        let response = head.with_age(LayerBody::Whole(body), Some(age));
        self.explained(response, &place.miss, Some(source), ttl)
    }

    /// Returns the answer to a caller whose load failed. A `HEAD` has no body.
    fn failed(&self, question: &Question, error: &Error) -> Response<LayerBody> {
        self.count_failed();
        let mut response = (self.0.on_error)(error).map(LayerBody::Whole);
        if question.head.method == Method::HEAD {
            *response.body_mut() = LayerBody::default();
        }
        if error.retry_after().is_some() {
            return self.explained(response, &Forward::BackingOff, None, None);
        }
        response
    }
}
