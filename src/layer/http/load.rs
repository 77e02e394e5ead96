//! The load of a response: the call of the inner service, and what becomes of its answer.
//!
//! An answer that may be shared is announced with its head, and callers read its body while it
//! arrives.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use http::{HeaderMap, Request, Response, StatusCode, response::Parts};
use http_body::Body;
use tokio::{sync::oneshot, time::Instant};
use tower_service::Service;
use tracing::debug;

use super::{
    CachedResponse, Http, ResponseBody,
    body::{BodyLimits, Collector, NotCollected, Reader, SharedBody},
    cached::{ResponseHead, encoded_head_len},
    fields::content_length,
    request::Question,
    response::{Freshness, ResponseClass, lacks_body},
    status::Forward,
    unavailable::is_failure,
    validation::{Validated, Validation},
    variants::{Marker, Place, Variant},
};
use crate::{
    cache::{Lead, Produced},
    error::{BoxError, Error, ErrorKind},
    layer,
    sync::lock,
};

/// An HTTP service that the layer can wrap.
pub(super) trait InnerHttp<B>:
    Service<
        Request<B>,
        Response = Response<<Self as InnerHttp<B>>::Body>,
        Error: Send + 'static,
        Future: Send + 'static,
    > + Clone
    + Send
    + 'static
{
    type Body: Body<Error: Into<BoxError>> + Send + 'static;
}

impl<S, B, ResBody> InnerHttp<B> for S
where
    S: Service<Request<B>, Response = Response<ResBody>> + Clone + Send + 'static,
    S::Error: Send + 'static,
    S::Future: Send + 'static,
    ResBody: Body<Error: Into<BoxError>> + Send + 'static,
{
    type Body = ResBody;
}

/// The result that a caller of the layer receives.
pub(super) type CallResult<S, B> =
    Result<Response<ResponseBody<<S as InnerHttp<B>>::Body>>, <S as Service<Request<B>>>::Error>;

/// One caller's side of an exchange with the flight that it may lead.
///
/// It holds the body of the request until that runs, then the answer if it is for this caller. The
/// body can be taken only once, so the request runs at most once. An answer that the flight leaves
/// here reaches the caller however the flight ends. It is dropped with the caller.
pub(super) struct Exchange<B, Res> {
    pub(super) body: Arc<Mutex<Option<B>>>,
    pub(super) answer: oneshot::Receiver<Res>,
}

/// The side of the flight.
pub(super) struct FlightExchange<B, Res> {
    body: Arc<Mutex<Option<B>>>,
    answer: oneshot::Sender<Res>,
}

impl<B, Res> Exchange<B, Res> {
    pub(super) fn new(body: B) -> (Self, FlightExchange<B, Res>) {
        let body = Arc::new(Mutex::new(Some(body)));
        let (sender, receiver) = oneshot::channel();
        let of_flight = FlightExchange { body: Arc::clone(&body), answer: sender };
        (Self { body, answer: receiver }, of_flight)
    }
}

impl<B, Res> FlightExchange<B, Res> {
    /// Leaves the answer to the caller, if it has not gone away.
    fn answer(self, answer: Res) {
        drop(self.answer.send(answer));
    }
}

/// The exchange of a flight with the caller that leads it.
pub(super) type LedExchange<S, B> = FlightExchange<B, CallResult<S, B>>;

/// Calls the inner service for the leader, and decides whether its response may be shared.
pub(super) async fn load<S, B>(
    http: Http,
    place: Place,
    question: Arc<Question>,
    inner: S,
    exchange: LedExchange<S, B>,
    lead: Lead<CachedResponse>,
) -> Result<Produced<CachedResponse>, Error>
where
    S: InnerHttp<B>,
{
    if let Some(marker) = http.renewed_marker(&lead) {
        return Ok(Produced::Value(marker.into()));
    }
    let Some(body) = lock(&exchange.body).take() else {
        return Err(Error::new(ErrorKind::Cancelled, "the request has run already"));
    };
    let mut request = question.for_all(body);
    let load = ResponseLoad { http, place, question, begun: Instant::now(), lead };
    let validation = Validation::begin(&load.lead, &mut request);
    let response = match layer::oneshot(inner, request).await {
        Ok(response) => response,
        Err(error) => {
            exchange.answer(Err(error));
            return Err(Error::new(ErrorKind::Load, "the inner service returned an error"));
        }
    };
    let response = load.validated(validation, response).await?;
    load.land::<S, B>(response, exchange).await
}

/// The load of a response, after its request was sent.
struct ResponseLoad {
    http: Http,
    place: Place,
    question: Arc<Question>,
    begun: Instant,
    lead: Lead<CachedResponse>,
}

impl ResponseLoad {
    /// Returns the response that an answer stands for: itself, or the stored one with a new head.
    async fn validated<B: Body>(
        &self,
        validation: Option<Validation>,
        answer: Response<B>,
    ) -> Result<Response<ResponseBody<B>>, Error> {
        match validation.map_or(Validated::Replaced, |validation| validation.end(&answer)) {
            Validated::Replaced => Ok(answer.map(ResponseBody::untouched)),
            Validated::Renewed(parts, body) => {
                Ok(Response::from_parts(*parts, ResponseBody::whole(body)))
            }
            Validated::Unknown { may_stand_in } => {
                if !may_stand_in {
                    self.remove_stored().await;
                }
                let words = "the inner service validated another response";
                Err(Error::new(ErrorKind::Load, words))
            }
        }
    }

    /// Returns what the flight lands with. Its caller has the response at once.
    async fn land<S: InnerHttp<B>, B>(
        self,
        response: Response<ResponseBody<S::Body>>,
        exchange: LedExchange<S, B>,
    ) -> Result<Produced<CachedResponse>, Error> {
        let (parts, body) = response.into_parts();
        let (request, limit) = (&self.question.head.headers, self.http.0.cache.settings().max_key);
        let variant = self.place.variant(&parts.headers, request, limit);
        match (self.classify(&parts, &body), variant) {
            (ResponseClass::Shareable(freshness), Some(variant)) => {
                let (streamed, collector) =
                    self.announce::<S, B>(parts, body, freshness, variant, exchange);
                self.collect(&streamed, collector).await
            }
            (class, _) => Ok(self.land_alone::<S, B>(class, parts, body, exchange).await),
        }
    }

    /// Returns what the flight lands with if its response is for the caller alone.
    async fn land_alone<S: InnerHttp<B>, B>(
        &self,
        class: ResponseClass,
        parts: Parts,
        body: ResponseBody<S::Body>,
        exchange: LedExchange<S, B>,
    ) -> Produced<CachedResponse> {
        self.end_stored(parts.status).await;
        let (why, produced) = match class {
            ResponseClass::Failing => {
                let produced = self.http.failing(&self.question, &parts, &self.lead);
                let why = || Forward::of(self.place.is_variant(), self.lead.replaces());
                let response = self.http.explained(Response::from_parts(parts, body), why);
                exchange.answer(Ok(response));
                return produced;
            }
            ResponseClass::Reserved => ("authorization", Produced::Reserved),
            ResponseClass::Uncacheable(why) => (why, Produced::Uncacheable),
            // Its `Vary` has no end.
            ResponseClass::Shareable(_) => ("vary", Produced::Uncacheable),
        };
        let of_authorized = matches!(produced, Produced::Reserved);
        self.http.0.marks.set(self.place.lasting_key(), of_authorized);
        let response = Response::from_parts(parts, body);
        exchange.answer(Ok(self.http.explained(response, || Forward::Uncacheable(Some(why)))));
        produced
    }

    /// Returns the class of an answer.
    fn classify(&self, parts: &Parts, body: &impl Body) -> ResponseClass {
        if lacks_body(&parts.headers, body) {
            // Its caller gets it as the service made it.
            return ResponseClass::unshared(parts.status, "body");
        }
        // The stored response stands in for it, whatever its lifetime.
        if is_failure(parts.status) && self.lead.has_stand_in() {
            return ResponseClass::Failing;
        }
        self.http.classify(&self.question, self.begun.elapsed(), parts, body)
    }

    /// Shares a response while its body arrives, with the caller that leads and with others.
    fn announce<S: InnerHttp<B>, B>(
        &self,
        parts: Parts,
        body: ResponseBody<S::Body>,
        freshness: Freshness,
        variant: Option<Variant>,
        exchange: LedExchange<S, B>,
    ) -> (Arc<StreamedResponse>, Collector) {
        let (settings, lead) = (&self.http.0, &self.lead);
        // The longest lifetime begins with the head, as the response's own does.
        let freshness = freshness.capped(settings.cache.settings().options.ttl);
        let announced = content_length(&parts.headers).unwrap_or_default();
        let forward = Forward::of(self.place.is_variant(), lead.replaces());
        let (body, collector) =
            SharedBody::new(body, announced, self.http.body_limits(&parts.headers));
        let streamed = Arc::new(StreamedResponse {
            head: ResponseHead::new(&parts, freshness.age, freshness.only_validates),
            body,
            variant,
            forward: forward.clone(),
            received: Instant::now(),
            freshness,
        });
        if let Some(response) = streamed.own() {
            let is_stored = lead.fence().is_some() && !freshness.lifetime.is_zero();
            let ttl = is_stored.then_some(freshness.lifetime.as_secs());
            let ttl = ttl.and_then(|ttl| i64::try_from(ttl).ok());
            let response = self.http.with_source(response, lead.source(), ttl, &forward);
            exchange.answer(Ok(response.map(ResponseBody::shared)));
        }
        let groups = self.http.groups(&self.question.head, &parts.headers);
        groups.into_iter().for_each(|group| lead.tag(group));
        lead.announce(streamed.clone());
        (streamed, collector)
    }

    /// Collects a response that its callers read meanwhile, and keeps it. Returns what its flight
    /// lands with.
    async fn collect(
        &self,
        streamed: &StreamedResponse,
        collector: Collector,
    ) -> Result<Produced<CachedResponse>, Error> {
        let (http, lead) = (&self.http, &self.lead);
        match (streamed.collect(collector).await, &streamed.variant) {
            (Ok((response, freshness)), None) => {
                freshness.keep(lead);
                Ok(Produced::Value(response.into()))
            }
            // In a box, which most loads do not need.
            (Ok((response, freshness)), Some(variant)) => {
                Ok(Box::pin(http.store_below(variant, &response, &freshness, lead)).await)
            }
            (Err(NotCollected::Unfit), _) => {
                self.end_stored(streamed.head.status()).await;
                http.0.marks.set(self.place.lasting_key(), false);
                Ok(Produced::Uncacheable)
            }
            (Err(NotCollected::Unread), _) => Ok(Produced::Reserved),
            (Err(NotCollected::Broken(error)), _) => {
                let words = "the response body ended with an error";
                Err(Error::with_source(ErrorKind::Load, words, error))
            }
        }
    }

    /// Removes the stored response, if an answer with this status says that it is of no use. One
    /// that is no failure does so (RFC 9111, section 4.3.3).
    async fn end_stored(&self, status: StatusCode) {
        if self.lead.replaces() && !status.is_server_error() && status != StatusCode::NOT_MODIFIED {
            self.remove_stored().await;
        }
    }

    /// Removes the stored response. The next request has no validator, and no caller is served it
    /// as a stale one.
    async fn remove_stored(&self) {
        if let Err(error) = self.http.0.cache.invalidate(&self.place.key).await {
            debug!(%error, "a response that is of no use is not removed");
        }
    }
}

impl Http {
    fn body_limits(&self, headers: &HeaderMap) -> BodyLimits {
        let finish_unread = !self.0.cache.settings().cancels_abandoned;
        let (size, total) = (self.most_of_body(headers), self.0.body_limit);
        BodyLimits { size, total, finish_unread }
    }

    /// Returns the most bytes of a body that are stored with these headers.
    pub(super) fn most_of_body(&self, headers: &HeaderMap) -> u64 {
        let most = self.0.cache.settings().max_value;
        most.saturating_sub(encoded_head_len(headers)) as u64
    }
}

/// The head of a response that is shared while its body arrives, and the body as far as it has.
pub(super) struct StreamedResponse {
    head: ResponseHead,
    body: Arc<SharedBody>,
    /// Which variant it is, if its flight did not know that.
    variant: Option<Variant>,
    /// Why the request was sent that it answers.
    pub(super) forward: Forward,
    received: Instant,
    freshness: Freshness,
}

impl StreamedResponse {
    /// Returns the response for the caller whose request it answers.
    fn own(&self) -> Option<Response<Reader>> {
        Some(self.head.response(self.body.reader(true)?, self.freshness.age))
    }

    /// Returns the marker below which a request with these headers selects another response.
    pub(super) fn misses(&self, request: &HeaderMap) -> Option<&Marker> {
        self.variant.as_ref()?.misses(request)
    }

    /// Returns the response for another caller, unless that came too late or the body broke off.
    pub(super) fn follow(&self) -> Option<Response<Reader>> {
        if self.late().is_some() {
            return None;
        }
        let age = self.freshness.age.saturating_add(self.received.elapsed().as_secs());
        Some(self.head.response(self.body.reader(false)?, age))
    }

    /// Returns whether the body broke off in time, so that its load has failed.
    pub(super) fn is_broken(&self) -> bool {
        self.late().is_none() && self.body.is_broken()
    }

    /// Returns for how long the response is no longer fresh. It always is if it is for those only
    /// that ask meanwhile.
    fn late(&self) -> Option<Duration> {
        let lifetime = Some(self.freshness.lifetime).filter(|lifetime| !lifetime.is_zero())?;
        self.received.elapsed().checked_sub(lifetime)
    }

    /// Collects the body within its limits. The lifetime of the response began with its head.
    async fn collect(
        &self,
        collector: Collector,
    ) -> Result<(CachedResponse, Freshness), NotCollected> {
        let bytes = collector.collect().await?;
        let (took, late) = (self.received.elapsed(), self.late().unwrap_or_default());
        let lifetime = self.freshness.lifetime.saturating_sub(took);
        let response = CachedResponse::new(self.head.later(took, late), bytes);
        Ok((response, self.freshness.capped(lifetime)))
    }
}
