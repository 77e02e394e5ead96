//! The way of a request through the cache: it joins the flight of its response.

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use tokio::sync::oneshot;
use tower_service::Service;
use tracing::debug;

use super::{
    CachedResponse, Http, ResponseBody,
    asked::Asked,
    body::board::Missed,
    exchange::{Exchange, ExchangeState},
    pass::CallResult,
    produce::{LedExchange, produce},
    reason::Reason,
    status::{Forward, with_status},
    streamed::{Apart, StreamedResponse},
    variants::{Place, selector::Selector},
};
use crate::{
    cache::{Alone, Flown, HeadOffer, Loaded, Sharing, Source},
    error::{BoxError, Error, ErrorKind},
};

/// How often a request tries again to share a response, before it goes alone.
const TRIES: u8 = 4;

/// The exchange of a caller with the flight that it may lead.
type CallExchange<B, ResBody, E> = Exchange<Request<B>, CallResult<ResBody, E>>;

/// Answers a request with the shared response, or with the caller's own if there is none.
pub(super) async fn share<S, B, ResBody>(
    http: Http,
    place: Place,
    asked: Asked,
    inner: S,
    request: Request<B>,
) -> CallResult<ResBody, S::Error>
where
    B: Body + Send + 'static,
    S: Service<Request<B>, Response = Response<ResBody>> + Clone + Send + 'static,
    S::Error: Send + 'static,
    S::Future: Send + 'static,
    ResBody: Body + Send + 'static,
    ResBody::Error: Into<BoxError>,
{
    let (exchange, led) = Exchange::new(request);
    let flown = fly(&http, &place, &inner, led).await;
    match http.settle(&place, &asked, exchange, flown) {
        Settled::Done(response) => response,
        // In boxes of their own, so that the future of a hit stays small.
        Settled::Varies(request, selector) => {
            Box::pin(share_variant(http, place, *selector, asked, inner, request)).await
        }
        settled => Box::pin(go_on(http, place, asked, inner, settled)).await,
    }
}

/// Answers a request with the variant that it selects.
pub(super) async fn share_variant<S, B, ResBody>(
    http: Http,
    resource: Place,
    selector: Selector,
    asked: Asked,
    inner: S,
    request: Request<B>,
) -> CallResult<ResBody, S::Error>
where
    B: Body + Send + 'static,
    S: Service<Request<B>, Response = Response<ResBody>> + Clone + Send + 'static,
    S::Error: Send + 'static,
    S::Future: Send + 'static,
    ResBody: Body + Send + 'static,
    ResBody::Error: Into<BoxError>,
{
    let settings = &http.0;
    let place = resource.variant(selector, request.headers());
    if !place.is_admitted(&settings.variants) {
        return http.pass(inner, request, Reason::Variants).await;
    }
    if settings.goes_alone(&place.key, &asked) {
        return http.pass_marked(place.key, inner, request, Reason::Uncacheable).await;
    }
    let (exchange, led) = Exchange::new(request);
    let flown = fly(&http, &place, &inner, led).await;
    match http.settle(&place, &asked, exchange, flown) {
        Settled::Done(response) => response,
        settled => Box::pin(go_on(http, place, asked, inner, settled)).await,
    }
}

/// Answers a request whose URI is not in normal form with what is stored for that form. Its own
/// response could be another one, so it is for its caller alone.
pub(super) async fn answer_respelled<S, B, ResBody>(
    http: Http,
    mut place: Place,
    asked: Asked,
    inner: S,
    request: Request<B>,
) -> CallResult<ResBody, S::Error>
where
    S: Service<Request<B>, Response = Response<ResBody>>,
    ResBody: Body,
{
    let mut stored = http.stored(&place).await;
    if let Some(selector) = stored.as_ref().and_then(|stored| Selector::of(stored.value())) {
        place = place.variant(selector, request.headers());
        stored = http.stored(&place).await;
    }
    match stored.filter(|stored| stored.source() != Source::Stale) {
        Some(stored) => Ok(http.replay(&place, &asked, stored).map(ResponseBody::whole)),
        None => http.pass(inner, request, Reason::Key).await,
    }
}

/// Goes on with a request that the first flight has not answered: tries again to share, as long as
/// that is promising, then passes the request on.
async fn go_on<S, B, ResBody>(
    http: Http,
    place: Place,
    asked: Asked,
    inner: S,
    mut settled: Settled<B, ResBody, S::Error>,
) -> CallResult<ResBody, S::Error>
where
    B: Body + Send + 'static,
    S: Service<Request<B>, Response = Response<ResBody>> + Clone + Send + 'static,
    S::Error: Send + 'static,
    S::Future: Send + 'static,
    ResBody: Body + Send + 'static,
    ResBody::Error: Into<BoxError>,
{
    let mut tries = TRIES;
    loop {
        let request = match settled {
            Settled::Done(response) => return response,
            Settled::Varies(request, _) if place.is_variant() => {
                return http.pass(inner, request, Reason::Variants).await;
            }
            Settled::Varies(request, selector) => {
                return share_variant(http, place, *selector, asked, inner, request).await;
            }
            Settled::Broken(request, offer) => match offer.decline().await {
                None => request,
                Some(flown) => {
                    settled = http.settle(&place, &asked, Exchange::new(request).0, flown);
                    continue;
                }
            },
            Settled::Led(answer) => {
                return match answer.await {
                    Ok(response) => response.map(|response| asked.answer_streaming(response)),
                    Err(_) => Ok(http.lost(&asked).map(ResponseBody::whole)),
                };
            }
            Settled::Alone { request, why, again } => {
                if !again || tries == 0 {
                    let key = place.lasting_key().clone();
                    return http.pass_marked(key, inner, request, why).await;
                }
                tries -= 1;
                request
            }
        };
        let (exchange, led) = Exchange::new(request);
        let flown = fly(&http, &place, &inner, led).await;
        settled = http.settle(&place, &asked, exchange, flown);
    }
}

/// Joins the flight of a place. Its leader calls the inner service.
fn fly<S, B, ResBody>(
    http: &Http,
    place: &Place,
    inner: &S,
    exchange: LedExchange<B, ResBody, S::Error>,
) -> impl Future<Output = Result<Flown<CachedResponse>, Error>> + Send + use<S, B, ResBody>
where
    B: Body + Send + 'static,
    S: Service<Request<B>, Response = Response<ResBody>> + Clone + Send + 'static,
    S::Error: Send + 'static,
    S::Future: Send + 'static,
    ResBody: Body + Send + 'static,
    ResBody::Error: Into<BoxError>,
{
    let settings = &http.0;
    let sharing = Sharing {
        on_uncacheable: settings.marks.on_uncacheable(place.lasting_key()),
        on_full: settings.on_full(),
        waits_once: settings.coalesce_only,
        takes_heads: true,
        is_local: place.is_local,
    };
    let request = settings.cache.request(&place.key).sharing(sharing);
    let request = settings.streaming.set(request).max_stale(settings.stale.limit);
    let (http, inner, place) = (http.clone(), inner.clone(), place.clone());
    request.fly(move |lead| produce(http, place, inner, exchange, lead))
}

/// How a flight ended for one caller.
enum Settled<B, ResBody: Body, E> {
    /// With a response.
    Done(CallResult<ResBody, E>),
    /// The request has to go on alone, unless it is to try again to share.
    Alone { request: Request<B>, why: Reason, again: bool },
    /// The request selects a variant.
    Varies(Request<B>, Box<Selector>),
    /// The flight goes on without the caller that leads it, and will answer its request.
    Led(oneshot::Receiver<CallResult<ResBody, E>>),
    /// The body of the response broke off. The outcome of the load is on its way.
    Broken(Request<B>, Box<HeadOffer<CachedResponse>>),
}

impl Http {
    /// Returns how a flight ended for a caller.
    fn settle<B, ResBody, E>(
        &self,
        place: &Place,
        asked: &Asked,
        exchange: CallExchange<B, ResBody, E>,
        flown: Result<Flown<CachedResponse>, Error>,
    ) -> Settled<B, ResBody, E>
    where
        ResBody: Body,
    {
        let landed = match flown {
            Ok(Flown::Loaded(loaded)) => match Selector::of(loaded.value()) {
                Some(selector) => Landed::Marker(selector, loaded.source()),
                // The exchange is left alone then. Its request may be that of a refresh which has
                // begun, and a stale response stands in for the answer of an origin that fails.
                None if CachedResponse::is_in_time(&loaded, asked.waited()) => {
                    return whole(self.replay(place, asked, loaded));
                }
                None => Landed::Late(loaded.source()),
            },
            Ok(Flown::Head(offer)) => Landed::Head(offer),
            Ok(Flown::Alone(why)) => Landed::Alone(why),
            Err(error) => Landed::Failed(error),
        };
        match (exchange.take(), landed) {
            (ExchangeState::Answered(response), landed) => {
                landed.served(self);
                Settled::Done(response.map(|response| asked.answer_streaming(response)))
            }
            (ExchangeState::Pending(request), Landed::Marker(selector, _)) => {
                Settled::Varies(request, Box::new(selector))
            }
            (ExchangeState::Pending(request), Landed::Late(_)) => {
                Settled::Alone { request, why: Reason::Uncacheable, again: true }
            }
            (ExchangeState::Pending(request), Landed::Alone(why)) => {
                let again = why == Alone::Reserved && !asked.is_authorized;
                Settled::Alone { request, why: why.into(), again }
            }
            (ExchangeState::Pending(request), Landed::Head(offer)) => {
                self.follow(place, asked, offer, request)
            }
            (ExchangeState::Taken(answer), Landed::Marker(_, source)) => {
                self.served(source);
                Settled::Led(answer)
            }
            (_, Landed::Failed(error)) => whole(asked.answer_own(self.failed(&error))),
            _ => whole(self.lost(asked)),
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

    /// Returns the answer to a caller whose request was taken, and has no answer.
    fn lost(&self, asked: &Asked) -> Response<Bytes> {
        let words = "the task that ran the request was cancelled";
        asked.answer_own(self.failed(&Error::new(ErrorKind::Cancelled, words)))
    }

    /// Lets a caller read the response of another one, while it arrives.
    fn follow<B, ResBody: Body, E>(
        &self,
        place: &Place,
        asked: &Asked,
        offer: Box<HeadOffer<CachedResponse>>,
        request: Request<B>,
    ) -> Settled<B, ResBody, E> {
        let Some(streamed) = (**offer.head()).downcast_ref::<StreamedResponse>() else {
            return missed(request);
        };
        match streamed.follow(request.headers()) {
            Ok(response) => {
                let answer = asked.answer_streaming(response.map(ResponseBody::shared));
                let forward = Forward::of(place.is_variant(), streamed.replaces_stale());
                offer.take();
                Settled::Done(Ok(self.with_source(answer, Source::Followed, None, forward)))
            }
            Err(Apart::Varies(selector)) => Settled::Varies(request, Box::new(selector)),
            Err(Apart::Missed(Missed::Start)) => missed(request),
            Err(Apart::Missed(Missed::Broken)) => Settled::Broken(request, offer),
        }
    }

    /// Returns the answer to a caller whose load failed.
    fn failed(&self, error: &Error) -> Response<Bytes> {
        let response = (self.0.on_error)(error);
        match error.retry_after() {
            Some(_) => self.explained(response, &Reason::BackingOff),
            None => response,
        }
    }

    /// Returns the answer that a shared response gives.
    fn replay(
        &self,
        place: &Place,
        asked: &Asked,
        loaded: Loaded<CachedResponse>,
    ) -> Response<Bytes> {
        self.served(loaded.source());
        let status = self.status(&loaded, Forward::of(place.is_variant(), false));
        with_status(asked.answer(CachedResponse::replay(loaded)), status)
    }
}

/// Lets a request go on alone that came too late for a response under way.
fn missed<B, ResBody: Body, E>(request: Request<B>) -> Settled<B, ResBody, E> {
    Settled::Alone { request, why: Reason::Uncacheable, again: false }
}

fn whole<B, ResBody: Body, E>(response: Response<Bytes>) -> Settled<B, ResBody, E> {
    Settled::Done(Ok(response.map(ResponseBody::whole)))
}

/// How a flight landed for one caller that is not served its value.
enum Landed {
    /// With what selects a variant.
    Marker(Selector, Source),
    /// With a response that was no longer fresh when the caller came. The next load begins after
    /// that.
    Late(Source),
    Head(Box<HeadOffer<CachedResponse>>),
    Alone(Alone),
    Failed(Error),
}

impl Landed {
    /// Counts a caller that has the answer to its own request.
    fn served(self, http: &Http) {
        match self {
            Self::Head(offer) => offer.take(),
            Self::Marker(_, source) | Self::Late(source) => http.served(source),
            Self::Alone(_) | Self::Failed(_) => {}
        }
    }
}
