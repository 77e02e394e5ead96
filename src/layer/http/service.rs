use std::task::{Context, Poll};

use bytes::Bytes;
use http::{HeaderMap, Request, Response, response};
use http_body::Body;
use tokio::time::Instant;
use tower_service::Service;

use super::{
    CachedResponse, Http, ResponseBody,
    asked::{self, Asked},
    collect::{Collected, collect},
    exchange::{Exchange, ExchangeState},
    pass::CallResult,
    reason::Reason,
    recent::{RETRIES, Turnout},
    responses::{Freshness, ResponseClass, ResponseRules},
    stale,
    validation::{Validated, Validation},
    varied::Place,
    vary::Selector,
};
use crate::{
    cache::{Alone, Flown, Lead, Loaded, OnUncacheable, Produced, Sharing, Source},
    error::{Error, ErrorKind},
    key::Key,
    layer::{Bellwether, ResponseFuture, future::oneshot},
};

/// The exchange of a caller with the flight that it may lead.
type CallExchange<B, ResBody, E> = Exchange<Request<B>, CallResult<ResBody, E>>;

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
        let (http, inner) = (self.mode.clone(), self.inner.clone());
        let (parts, body) = request.into_parts();
        let admitted = http.0.admit(&parts, &body);
        if let Err(Reason::Method) = admitted
            && let Some(key) = http.0.purged(&parts)
        {
            return ResponseFuture::new(async move { http.purge(key).await });
        }
        let request = Request::from_parts(parts, body);
        match admitted {
            Ok((key, asked)) if !http.0.recent.is_uncacheable(&key) => {
                ResponseFuture::new(share(http, key, asked, inner, request))
            }
            Ok((key, _)) => ResponseFuture::new(async move {
                http.pass_watched(key, inner, request, Reason::Uncacheable).await
            }),
            Err(why) => ResponseFuture::new(async move { http.pass(inner, request, why).await }),
        }
    }
}

/// Answers a request with the shared response, or with the caller's own if there is none.
async fn share<S, B, ResBody>(
    http: Http,
    key: Key,
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
    ResBody::Error: Send,
{
    let (place, exchange) = (Place::resource(key), Exchange::new(request));
    let flown = fly(&http, &place, &inner, &exchange, OnUncacheable::Pass).await;
    match http.settle(&place, &asked, &exchange, flown) {
        Settled::Done(response) => response,
        // In boxes of their own, so that the future of a hit stays small.
        Settled::Alone(request, why) => {
            Box::pin(share_again(http, place, asked, inner, request, why)).await
        }
        Settled::Varies(request, selector) => {
            Box::pin(share_variant(http, place.key, *selector, asked, inner, request)).await
        }
    }
}

/// Answers a request with the variant that it selects.
async fn share_variant<S, B, ResBody>(
    http: Http,
    resource: Key,
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
    ResBody::Error: Send,
{
    let settings = &http.0;
    let place = Place::variant(resource, selector, request.headers());
    if !place.is_admitted(&settings.variants) {
        return http.pass(inner, request, Reason::Variants).await;
    }
    if settings.recent.is_uncacheable(&place.key) {
        return http.pass_watched(place.key, inner, request, Reason::Uncacheable).await;
    }
    let exchange = Exchange::new(request);
    let flown = fly(&http, &place, &inner, &exchange, OnUncacheable::Pass).await;
    match http.settle(&place, &asked, &exchange, flown) {
        Settled::Done(response) => response,
        Settled::Alone(request, why) => {
            Box::pin(share_again(http, place, asked, inner, request, why)).await
        }
        Settled::Varies(request, _) => http.pass(inner, request, Reason::Variants).await,
    }
}

/// Tries again to share, as long as that is promising, then passes the request on.
async fn share_again<S, B, ResBody>(
    http: Http,
    place: Place,
    asked: Asked,
    inner: S,
    mut request: Request<B>,
    mut why: Alone,
) -> CallResult<ResBody, S::Error>
where
    B: Body + Send + 'static,
    S: Service<Request<B>, Response = Response<ResBody>> + Clone + Send + 'static,
    S::Error: Send + 'static,
    S::Future: Send + 'static,
    ResBody: Body + Send + 'static,
    ResBody::Error: Send,
{
    for _ in 0..RETRIES {
        if why == Alone::Full || !http.0.recent.is_promising(&place.key) {
            break;
        }
        let exchange = Exchange::new(request);
        let flown = fly(&http, &place, &inner, &exchange, OnUncacheable::Claim).await;
        (request, why) = match http.settle(&place, &asked, &exchange, flown) {
            Settled::Done(response) => return response,
            Settled::Alone(request, why) => (request, why),
            Settled::Varies(request, selector) => {
                let resource = place.key;
                return share_variant(http, resource, *selector, asked, inner, request).await;
            }
        };
    }
    let why = match why {
        Alone::Uncacheable => Reason::Uncacheable,
        Alone::Full => Reason::Full,
    };
    http.pass_watched(place.key, inner, request, why).await
}

/// Joins the flight of a place. Its leader calls the inner service.
fn fly<S, B, ResBody>(
    http: &Http,
    place: &Place,
    inner: &S,
    exchange: &CallExchange<B, ResBody, S::Error>,
    on_uncacheable: OnUncacheable,
) -> impl Future<Output = Result<Flown<CachedResponse>, Error>> + Send + use<S, B, ResBody>
where
    B: Body + Send + 'static,
    S: Service<Request<B>, Response = Response<ResBody>> + Clone + Send + 'static,
    S::Error: Send + 'static,
    S::Future: Send + 'static,
    ResBody: Body + Send + 'static,
    ResBody::Error: Send,
{
    let settings = &http.0;
    let sharing =
        Sharing { on_uncacheable, on_full: settings.on_full(), waits_once: settings.coalesce_only };
    let request =
        settings.cache.request(&place.key).sharing(sharing).max_stale(settings.stale.limit);
    let (http, inner, exchange) = (http.clone(), inner.clone(), exchange.clone());
    let place = place.clone();
    request.fly(move |lead| produce(http, place, inner, exchange, lead))
}

/// How a flight ended for one caller.
enum Settled<B, ResBody: Body, E> {
    /// With a response.
    Done(CallResult<ResBody, E>),
    /// The request has to go on alone.
    Alone(Request<B>, Alone),
    /// The request selects a variant.
    Varies(Request<B>, Box<Selector>),
}

impl Http {
    /// Returns how a flight ended for a caller.
    fn settle<B, ResBody, E>(
        &self,
        place: &Place,
        asked: &Asked,
        exchange: &CallExchange<B, ResBody, E>,
        flown: Result<Flown<CachedResponse>, Error>,
    ) -> Settled<B, ResBody, E>
    where
        ResBody: Body,
    {
        let whole = |response: Response<_>| Settled::Done(Ok(response.map(ResponseBody::whole)));
        // The exchange is left alone then. Its request may be that of a refresh which has begun,
        // and a stale response stands in for the answer of an origin that fails.
        let selector = match &flown {
            Ok(Flown::Loaded(loaded)) => match Selector::of(loaded.value()) {
                None => {
                    let answer = asked.answer(self.replay(&place.key, loaded));
                    return whole(self.with_status(answer, loaded, place.is_variant()));
                }
                selector => selector,
            },
            _ => None,
        };
        match (exchange.take(), flown) {
            (ExchangeState::Pending(request), Ok(Flown::Loaded(_))) => match selector {
                Some(selector) => Settled::Varies(request, Box::new(selector)),
                None => whole((self.0.on_error)(&lost())),
            },
            (ExchangeState::Answered(response), _) => {
                Settled::Done(response.map(|response| asked.answer_alone(response)))
            }
            (ExchangeState::Pending(request), Ok(Flown::Alone(why))) => {
                Settled::Alone(request, why)
            }
            (_, Err(error)) => whole((self.0.on_error)(&error)),
            (_, Ok(_)) => whole((self.0.on_error)(&lost())),
        }
    }

    fn replay(&self, key: &Key, loaded: &Loaded<CachedResponse>) -> Response<Bytes> {
        let recent = &self.0.recent;
        if loaded.source() == Source::Received && !recent.is_promising(key) {
            recent.record(key, Turnout::Shareable);
        }
        CachedResponse::replay(loaded)
    }
}

/// Calls the inner service for the leader, and decides whether its response may be shared.
async fn produce<S, B, ResBody>(
    http: Http,
    place: Place,
    inner: S,
    exchange: CallExchange<B, ResBody, S::Error>,
    lead: Lead<CachedResponse>,
) -> Result<Produced<CachedResponse>, Error>
where
    S: Service<Request<B>, Response = Response<ResBody>>,
    ResBody: Body,
{
    let settings = &http.0;
    if let Some(marker) = http.renewed_marker(&lead) {
        return Ok(Produced::Value(marker));
    }
    let ExchangeState::Pending(mut request) = exchange.take() else { return Err(lost()) };
    let (rules, deadline) = (settings.response_rules(&request), settings.body_deadline());
    asked::ask_for_all(&mut request);
    let headers = request.headers().clone();
    let validation = Validation::begin(&lead, &mut request);
    let response = match oneshot(inner, request).await {
        Ok(response) => response,
        Err(error) => {
            exchange.answer(Err(error));
            return Err(Error::new(ErrorKind::Load, "the inner service returned an error"));
        }
    };
    let validated = validation.map_or(Validated::Replaced, |validation| validation.end(&response));
    let received = match validated {
        Validated::Replaced => receive(response, &rules, deadline).await,
        Validated::Renewed(parts, body) => renewed(*parts, body, &rules),
        Validated::Unknown => {
            let words = "the inner service validated another response";
            return Err(Error::new(ErrorKind::Load, words));
        }
    };
    settings.recent.record(&place.key, received.turnout());
    land(&http, &place, &headers, received, &lead, &exchange).await
}

/// Returns what the flight of a place lands with. A response for the caller alone goes to it.
async fn land<B, ResBody: Body, E>(
    http: &Http,
    place: &Place,
    headers: &HeaderMap,
    received: Received<ResBody>,
    lead: &Lead<CachedResponse>,
    exchange: &CallExchange<B, ResBody, E>,
) -> Result<Produced<CachedResponse>, Error> {
    match received {
        Received::Shareable(response, freshness) => {
            let kept = http.keep(place, headers, response, &freshness, lead).await;
            if let Some(own) = kept.own {
                exchange.answer(Ok(own.to_first_caller().map(ResponseBody::whole)));
            }
            return Ok(kept.produced);
        }
        Received::Uncacheable(response) => {
            if !http.0.recent.is_uncacheable(&place.key) {
                lead.do_not_store();
            }
            exchange.answer(Ok(http.explained(response, &Reason::Uncacheable)));
        }
        Received::Failing(response) => {
            lead.do_not_store();
            let error = stale::failure(response.status(), response.headers(), lead);
            exchange.answer(Ok(response));
            return Ok(error.map_or(Produced::Uncacheable, Produced::Failing));
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
    /// May be shared.
    Shareable(CachedResponse, Freshness),
    /// For its caller alone.
    Uncacheable(Response<ResponseBody<B>>),
    /// For its caller alone. It is an error, so the next response may be shareable.
    Failing(Response<ResponseBody<B>>),
    /// For its caller alone. Its body ends with an error.
    Broken(Response<ResponseBody<B>>),
}

impl<B: Body> Received<B> {
    fn turnout(&self) -> Turnout {
        match self {
            Self::Shareable(..) => Turnout::Shareable,
            Self::Uncacheable(_) => Turnout::Uncacheable,
            Self::Failing(_) | Self::Broken(_) => Turnout::Failing,
        }
    }
}

/// Collects the body if the headers allow sharing, otherwise leaves it untouched.
async fn receive<B: Body>(
    response: Response<B>,
    rules: &ResponseRules,
    deadline: Instant,
) -> Received<B> {
    let (parts, body) = response.into_parts();
    let untouched = |parts, body| Response::from_parts(parts, ResponseBody::untouched(body));
    let freshness = match rules.classify(&parts, body.size_hint().lower()) {
        ResponseClass::Shareable(freshness) => freshness,
        ResponseClass::Uncacheable => return Received::Uncacheable(untouched(parts, body)),
        ResponseClass::Failing => return Received::Failing(untouched(parts, body)),
    };
    let partial = |parts, body| Response::from_parts(parts, ResponseBody::partial(body));
    match collect(body, rules.max_body, deadline).await {
        Collected::Whole(bytes) => {
            match CachedResponse::new(&parts, bytes.clone(), freshness.age) {
                Some(response) => Received::Shareable(response, freshness),
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

/// Judges a stored response whose head was renewed.
fn renewed<B: Body>(parts: response::Parts, body: Bytes, rules: &ResponseRules) -> Received<B> {
    if let ResponseClass::Shareable(freshness) = rules.classify(&parts, body.len() as u64)
        && let Some(response) = CachedResponse::new(&parts, body.clone(), freshness.age)
    {
        return Received::Shareable(response, freshness);
    }
    Received::Uncacheable(Response::from_parts(parts, ResponseBody::whole(body)))
}

fn lost() -> Error {
    Error::new(ErrorKind::Cancelled, "the task that ran the request was cancelled")
}
