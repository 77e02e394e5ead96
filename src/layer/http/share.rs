//! The way of a request through the cache: it joins the flight of its response.

use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use tokio::sync::oneshot;
use tracing::debug;

use super::{
    CachedResponse, CallResult, Http, InnerHttp, ResponseBody,
    asked::Asked,
    body::shared::Missed,
    load::load,
    status::{Forward, Reason},
    streamed::{Apart, StreamedResponse},
    variants::{Marker, Place},
};
use crate::{
    cache::{Alone, Flown, HeadOffer, Loaded, Sharing, Source},
    error::{Error, ErrorKind},
    sync::lock,
};

/// How often a request tries again to share a response, before it goes alone.
const TRIES: u8 = 4;

/// One caller's side of an exchange with the flight that it may lead.
///
/// It holds the request until it runs, then the response if it is for this caller. The request can
/// be taken only once, so it runs at most once. A response that the flight leaves here reaches the
/// caller however the flight ends. It is dropped with the caller.
struct Exchange<Req, Res> {
    request: Arc<Mutex<Option<Req>>>,
    response: oneshot::Receiver<Res>,
}

/// The side of the flight.
pub(super) struct FlightExchange<Req, Res> {
    request: Arc<Mutex<Option<Req>>>,
    response: oneshot::Sender<Res>,
}

/// The exchange of a flight with the caller that leads it.
pub(super) type LedExchange<S, B> = FlightExchange<Request<B>, CallResult<S, B>>;

enum ExchangeState<Req, Res> {
    /// The request has not run.
    Pending(Req),
    /// The request was taken. Its response is shared, or is not there yet, or there is none.
    Taken(oneshot::Receiver<Res>),
    /// The inner service's response to this caller.
    Answered(Res),
}

impl<Req, Res> Exchange<Req, Res> {
    fn new(request: Req) -> (Self, FlightExchange<Req, Res>) {
        let request = Arc::new(Mutex::new(Some(request)));
        let (sender, receiver) = oneshot::channel();
        let of_flight = FlightExchange { request: Arc::clone(&request), response: sender };
        (Self { request, response: receiver }, of_flight)
    }

    fn take(mut self) -> ExchangeState<Req, Res> {
        if let Ok(response) = self.response.try_recv() {
            return ExchangeState::Answered(response);
        }
        let request = lock(&self.request).take();
        request.map_or(ExchangeState::Taken(self.response), ExchangeState::Pending)
    }
}

impl<Req, Res> FlightExchange<Req, Res> {
    /// Takes the request, if no side has taken it.
    pub(super) fn request(&self) -> Option<Req> {
        lock(&self.request).take()
    }

    /// Leaves the response to the caller, if it has not gone away.
    pub(super) fn answer(self, response: Res) {
        drop(self.response.send(response));
    }
}

/// How a flight ended for one caller.
enum Settled<S: InnerHttp<B>, B> {
    /// With a response.
    Done(CallResult<S, B>),
    /// The request has to go on alone, unless it is to try again to share.
    Alone { request: Request<B>, why: Reason, again: bool },
    /// The request selects a response below this marker.
    Varies(Request<B>, Marker),
    /// The flight goes on without the caller that leads it, and will answer its request.
    Led(oneshot::Receiver<CallResult<S, B>>),
    /// The body of the response broke off. The outcome of the load is on its way.
    Broken(Request<B>, Box<HeadOffer<CachedResponse>>),
}

/// Answers a request with the shared response, or with the caller's own if there is none.
pub(super) async fn share<S, B>(
    http: Http,
    mut place: Place,
    asked: Asked,
    inner: S,
    request: Request<B>,
) -> CallResult<S, B>
where
    S: InnerHttp<B>,
    B: Body + Send + 'static,
{
    // In boxes of their own, so that the future of a hit stays small.
    if place.has_parts() {
        place = Box::pin(http.in_generation(place)).await;
    }
    let mut settled = fly(&http, &place, &asked, inner.clone(), request).await;
    let mut tries = TRIES;
    loop {
        let request = match settled {
            Settled::Done(response) => return response,
            Settled::Varies(request, marker) => {
                place = place.below(&marker, request.headers());
                match http.why_alone(&marker, &place, &asked) {
                    Some(why) => {
                        return Box::pin(http.pass_marked(&place, inner, request, why)).await;
                    }
                    None => request,
                }
            }
            Settled::Broken(request, offer) => match Box::pin(offer.decline()).await {
                None => request,
                Some(flown) => {
                    settled = http.settle(&place, &asked, Exchange::new(request).0, flown);
                    continue;
                }
            },
            Settled::Led(answer) => {
                let answer = answer.await.unwrap_or_else(|_| Ok(http.lost(&asked)));
                return answer.map(|response| asked.answer(response));
            }
            Settled::Alone { request, again: true, .. } if tries > 0 => {
                tries -= 1;
                request
            }
            Settled::Alone { request, why, .. } => {
                return Box::pin(http.pass_marked(&place, inner, request, why)).await;
            }
        };
        settled = Box::pin(fly(&http, &place, &asked, inner.clone(), request)).await;
    }
}

/// Joins the flight of a place. Its leader calls the inner service.
async fn fly<S, B>(
    http: &Http,
    place: &Place,
    asked: &Asked,
    inner: S,
    request: Request<B>,
) -> Settled<S, B>
where
    S: InnerHttp<B>,
    B: Body + Send + 'static,
{
    let settings = &http.0;
    let sharing = Sharing {
        on_uncacheable: settings.marks.on_uncacheable(place.lasting_key()),
        on_full: settings.on_full(),
        waits_once: settings.policy.coalesces,
        takes_heads: true,
        is_local: place.is_local,
    };
    let cached = settings.request(&place.key).sharing(sharing).max_stale(settings.stale.limit);
    let (exchange, led) = Exchange::new(request);
    let (own, of) = (http.clone(), place.clone());
    let flown = cached.fly(move |lead| load(own, of, inner, led, lead)).await;
    http.settle(place, asked, exchange, flown)
}

/// Answers a request whose URI is not in normal form with what is stored for that form. Its own
/// response could be another one, so it is for its caller alone.
pub(super) async fn answer_respelled<S, B>(
    http: Http,
    mut place: Place,
    asked: Asked,
    inner: S,
    request: Request<B>,
) -> CallResult<S, B>
where
    S: InnerHttp<B>,
{
    if place.has_parts() {
        place = http.in_generation(place).await;
    }
    let mut stored = http.stored(&place).await;
    while let Some(marker) = stored.as_ref().and_then(|stored| Marker::of(stored.value())) {
        place = place.below(&marker, request.headers());
        stored = http.stored(&place).await;
    }
    match stored.filter(|stored| stored.source() != Source::Stale) {
        Some(stored) => Ok(http.replay(&place, &asked, stored)),
        None => http.pass(inner, request, Reason::Key).await,
    }
}

impl Http {
    /// Returns how a flight ended for a caller.
    fn settle<S: InnerHttp<B>, B>(
        &self,
        place: &Place,
        asked: &Asked,
        exchange: Exchange<Request<B>, CallResult<S, B>>,
        flown: Result<Flown<CachedResponse>, Error>,
    ) -> Settled<S, B> {
        match flown {
            // The exchange is left alone then. Its request may be that of a refresh which has
            // begun, and a stale response stands in for the answer of an origin that fails.
            Ok(Flown::Loaded(loaded))
                if !Marker::is(loaded.value())
                    && CachedResponse::is_in_time(&loaded, asked.waited()) =>
            {
                Settled::Done(Ok(self.replay(place, asked, loaded)))
            }
            flown => self.settle_unserved(asked, exchange, flown),
        }
    }

    /// Returns how a flight ended for a caller that is not served the value of the flight.
    fn settle_unserved<S: InnerHttp<B>, B>(
        &self,
        asked: &Asked,
        exchange: Exchange<Request<B>, CallResult<S, B>>,
        flown: Result<Flown<CachedResponse>, Error>,
    ) -> Settled<S, B> {
        let marker = match &flown {
            Ok(Flown::Loaded(loaded)) => Marker::of(loaded.value()),
            _ => None,
        };
        let request = match (exchange.take(), &flown) {
            (ExchangeState::Pending(request), _) => request,
            (ExchangeState::Answered(response), _) => {
                match flown {
                    Ok(Flown::Loaded(loaded)) => self.served(loaded.source()),
                    Ok(Flown::Head(offer)) => offer.take(),
                    Ok(Flown::Alone(_)) | Err(_) => {}
                }
                return Settled::Done(response.map(|response| asked.answer(response)));
            }
            (ExchangeState::Taken(answer), Ok(Flown::Loaded(loaded))) if marker.is_some() => {
                self.served(loaded.source());
                return Settled::Led(answer);
            }
            (ExchangeState::Taken(_), Ok(_)) => return Settled::Done(Ok(self.lost(asked))),
            (ExchangeState::Taken(_), Err(error)) => {
                return Settled::Done(Ok(self.failed(asked, error)));
            }
        };
        let late = Reason::Uncacheable;
        match (flown, marker) {
            (Ok(Flown::Loaded(_)), Some(marker)) => Settled::Varies(request, marker),
            // It was no longer fresh when the caller came. The next load begins after that.
            (Ok(Flown::Loaded(_)), None) => Settled::Alone { request, why: late, again: true },
            (Ok(Flown::Head(offer)), _) => self.follow(asked, offer, request),
            (Ok(Flown::Alone(why)), _) => {
                let again = why == Alone::Reserved && !asked.is_authorized;
                Settled::Alone { request, why: why.into(), again }
            }
            (Err(error), _) => Settled::Done(Ok(self.failed(asked, &error))),
        }
    }

    /// Returns why a request for a place below a marker goes alone, if it does.
    fn why_alone(&self, marker: &Marker, place: &Place, asked: &Asked) -> Option<Reason> {
        match self.0.variants.admit(marker, place) {
            false => Some(Reason::Variants),
            true if self.0.goes_alone(place.lasting_key(), asked) => Some(Reason::Uncacheable),
            true => None,
        }
    }

    /// Lets a caller read the response of another one, while it arrives.
    fn follow<S: InnerHttp<B>, B>(
        &self,
        asked: &Asked,
        offer: Box<HeadOffer<CachedResponse>>,
        request: Request<B>,
    ) -> Settled<S, B> {
        let too_late = |request| Settled::Alone { request, why: Reason::Uncacheable, again: false };
        let Some(streamed) = (**offer.head()).downcast_ref::<StreamedResponse>() else {
            return too_late(request);
        };
        match streamed.follow(request.headers()) {
            Ok(response) => {
                let answer = asked.answer(response.map(ResponseBody::shared));
                let forward = streamed.forward();
                offer.take();
                Settled::Done(Ok(self.with_source(answer, Source::Followed, None, forward)))
            }
            Err(Apart::Varies(marker)) => Settled::Varies(request, marker),
            Err(Apart::Missed(Missed::Start)) => too_late(request),
            Err(Apart::Missed(Missed::Broken)) => Settled::Broken(request, offer),
        }
    }

    /// Returns the response that is stored at a place. It may be stale.
    async fn stored(&self, place: &Place) -> Option<Loaded<CachedResponse>> {
        let stored = self.0.cache.peek(&place.key).await;
        stored.inspect_err(|error| debug!(%error, "the stored response is not known")).ok()?
    }

    /// Counts a caller that is served a response. It is not counted for a marker on the way to it.
    fn served(&self, source: Source) {
        self.0.cache.counters().served(source);
    }

    /// Returns the answer that a shared response gives.
    fn replay<B: Body>(
        &self,
        place: &Place,
        asked: &Asked,
        loaded: Loaded<CachedResponse>,
    ) -> Response<ResponseBody<B>> {
        self.served(loaded.source());
        let (source, ttl) = (loaded.source(), super::status::ttl(&loaded));
        let response = CachedResponse::replay(loaded).map(ResponseBody::whole);
        self.with_source(
            asked.answer(response),
            source,
            ttl,
            Forward::of(place.is_variant(), false),
        )
    }

    /// Returns the answer to a caller whose request was taken, and has no answer.
    fn lost<B: Body>(&self, asked: &Asked) -> Response<ResponseBody<B>> {
        let words = "the task that ran the request was cancelled";
        self.failed(asked, &Error::new(ErrorKind::Cancelled, words))
    }

    /// Returns the answer to a caller whose load failed. A `HEAD` has no body.
    fn failed<B: Body>(&self, asked: &Asked, error: &Error) -> Response<ResponseBody<B>> {
        let response = (self.0.on_error)(error).map(|body| match asked.is_head {
            true => ResponseBody::whole(Bytes::new()),
            false => ResponseBody::whole(body),
        });
        match error.retry_after() {
            Some(_) => self.explained(response, &Reason::BackingOff),
            None => response,
        }
    }
}
