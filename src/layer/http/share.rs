//! The way of a request through the cache: it joins the flight of its response.

use bytes::Bytes;
use http::{
    HeaderValue, Request, Response, StatusCode,
    header::{CACHE_CONTROL, RETRY_AFTER},
};
use http_body::Body;
use tokio::sync::oneshot;
use tracing::debug;

use super::{
    CachedResponse, CallResult, Http, InnerHttp, InnerServiceError, Overload, ResponseBody,
    asked::Asked,
    body::shared::Missed,
    load::{Apart, Exchange, StreamedResponse, load},
    status::Forward,
    variants::{Marker, Place},
};
use crate::{
    cache::{self, Alone, Flown, HeadOffer, Loaded, OnFull, OnUncacheable, Sharing, Source},
    error::{Error, ErrorKind},
    key::Key,
    sync::lock,
};

/// How often a request tries again to share a response, before it goes alone.
const TRIES: u8 = 4;

/// How a flight ended for one caller.
enum Settled<S: InnerHttp<B>, B> {
    /// With a response.
    Done(CallResult<S, B>),
    /// The request has to go on alone, unless it is to try again to share.
    Alone { request: Request<B>, why: Forward, again: bool },
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
    // What a hit does not need is in boxes of its own, so that its future stays small.
    let mut settled = fly(&http, &place, &asked, inner.clone(), request).await;
    let mut tries = TRIES;
    loop {
        let (request, alone) = match settled {
            Settled::Done(response) => return response,
            Settled::Led(answer) => {
                let answer = answer.await.unwrap_or_else(|_| Ok(http.lost(&asked)));
                return answer.map(|response| asked.answer(response));
            }
            Settled::Varies(request, marker) => {
                place = place.below(&marker, request.headers());
                let is_one_of_few = http.0.variants.admit(&marker, &place);
                (request, (!is_one_of_few).then_some(Forward::Variants))
            }
            Settled::Broken(request, offer) => match Box::pin(offer.decline()).await {
                None => (request, None),
                Some(flown) => {
                    settled = http.settle(&place, &asked, Exchange::new(request).0, flown);
                    continue;
                }
            },
            Settled::Alone { request, again: true, .. } if tries > 0 => {
                tries -= 1;
                (request, None)
            }
            Settled::Alone { request, why, .. } => (request, Some(why)),
        };
        if let Some(why) = alone {
            let place = Some(&place).filter(|_| !asked.is_respelled);
            return Box::pin(http.pass(place, inner, request, why)).await;
        }
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
    let on_uncacheable = match asked.is_respelled {
        true => Some(OnUncacheable::Pass),
        false => http.0.marks.on_uncacheable(place.lasting_key(), asked.is_authorized),
    };
    let Some(on_uncacheable) = on_uncacheable else {
        return Settled::Alone { request, why: Forward::Uncacheable, again: false };
    };
    if place.has_parts() {
        return Settled::Varies(request, Box::pin(http.generation(place)).await);
    }
    if asked.is_respelled {
        return Box::pin(http.look_up(place, asked, request)).await;
    }
    let settings = &http.0;
    let sharing = Sharing {
        on_uncacheable,
        on_full: match settings.overload {
            Overload::Pass => OnFull::Pass,
            Overload::Refuse => OnFull::Refuse,
        },
        waits_once: settings.policy.coalesces,
        takes_heads: true,
        is_local: place.is_local,
    };
    let cached = http.request(&place.key).sharing(sharing).max_stale(settings.stale.limit);
    let (exchange, led) = Exchange::new(request);
    let (own, of) = (http.clone(), place.clone());
    let flown = cached.fly(move |lead| load(own, of, inner, led, lead)).await;
    http.settle(place, asked, exchange, flown)
}

impl Http {
    /// Answers a request whose URI is not in normal form with what is stored for that form. Its own
    /// response could be another one, so it is for its caller alone.
    async fn look_up<S: InnerHttp<B>, B>(
        &self,
        place: &Place,
        asked: &Asked,
        request: Request<B>,
    ) -> Settled<S, B> {
        let stored = self.0.cache.peek(&place.key).await;
        let stored = stored.inspect_err(|error| debug!(%error, "the stored response is not known"));
        match stored {
            Ok(Some(stored)) if Marker::is(stored.value()) => match Marker::of(stored.value()) {
                Some(marker) => Settled::Varies(request, marker),
                None => Settled::Alone { request, why: Forward::Key, again: false },
            },
            Ok(Some(stored)) if stored.source() != Source::Stale => {
                Settled::Done(Ok(self.replay(place, asked, stored)))
            }
            _ => Settled::Alone { request, why: Forward::Key, again: false },
        }
    }

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
        mut exchange: Exchange<Request<B>, CallResult<S, B>>,
        flown: Result<Flown<CachedResponse>, Error>,
    ) -> Settled<S, B> {
        // The caller has led, and its answer is there, or is still to come, or it has not run.
        if let Ok(answer) = exchange.response.try_recv() {
            match flown {
                Ok(Flown::Loaded(loaded)) => self.served(loaded.source()),
                Ok(Flown::Head(offer)) => offer.take(),
                Ok(Flown::Alone(_)) | Err(_) => {}
            }
            return Settled::Done(answer.map(|response| asked.answer(response)));
        }
        let request = lock(&exchange.request).take();
        match (flown, request) {
            (Err(error), _) => Settled::Done(Ok(self.failed(asked, &error))),
            (Ok(Flown::Loaded(loaded)), None) if Marker::is(loaded.value()) => {
                self.served(loaded.source());
                Settled::Led(exchange.response)
            }
            (Ok(_), None) => Settled::Done(Ok(self.lost(asked))),
            (Ok(Flown::Loaded(loaded)), Some(request)) => match Marker::of(loaded.value()) {
                Some(marker) => Settled::Varies(request, marker),
                // It was no longer fresh when the caller came. The next load begins after that.
                None => Settled::Alone { request, why: Forward::Uncacheable, again: true },
            },
            (Ok(Flown::Head(offer)), Some(request)) => self.follow(asked, offer, request),
            (Ok(Flown::Alone(why)), Some(request)) => {
                let again = why == Alone::Reserved && !asked.is_authorized;
                Settled::Alone { request, why: why.into(), again }
            }
        }
    }

    /// Lets a caller read the response of another one, while it arrives.
    fn follow<S: InnerHttp<B>, B>(
        &self,
        asked: &Asked,
        offer: Box<HeadOffer<CachedResponse>>,
        request: Request<B>,
    ) -> Settled<S, B> {
        let too_late =
            |request| Settled::Alone { request, why: Forward::Uncacheable, again: false };
        let Some(streamed) = (**offer.head()).downcast_ref::<StreamedResponse>() else {
            return too_late(request);
        };
        match streamed.follow(request.headers()) {
            Ok(response) => {
                let answer = asked.answer(response.map(ResponseBody::shared));
                let answer = self.with_source(answer, Source::Followed, None, &streamed.forward);
                offer.take();
                Settled::Done(Ok(answer))
            }
            Err(Apart::Varies(marker)) => Settled::Varies(request, marker),
            Err(Apart::Missed(Missed::Start)) => too_late(request),
            Err(Apart::Missed(Missed::Broken)) => Settled::Broken(request, offer),
        }
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
        let forward = Forward::of(place.is_variant(), false);
        self.with_source(asked.answer(response), source, ttl, &forward)
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
            Some(_) => self.explained(response, || Forward::BackingOff),
            None => response,
        }
    }

    /// Returns a request to the cache, with the limits of the layer.
    pub(super) fn request(&self, key: &Key) -> cache::Request<CachedResponse> {
        self.0.cache.request(key).rest_limit(self.0.body_total).wait_limit_below(self.0.wait)
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
