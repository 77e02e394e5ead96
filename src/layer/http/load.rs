//! The load of a response: the call of the inner service, and what becomes of its answer.

use http::{HeaderMap, Response, StatusCode, response::Parts};
use http_body::Body;
use tracing::debug;

use super::{
    CachedResponse, Http, InnerHttp, ResponseBody, asked,
    body::shared::NotCollected,
    marks::Whose,
    responses::{
        Freshness, ResponseClass, ResponseRules, lacks_body,
        unavailable::is_failure,
        validation::{Validated, Validation},
    },
    share::LedExchange,
    status::{Forward, Reason},
    streamed::StreamedResponse,
    variants::{Belongs, Place},
};
use crate::{
    cache::{Lead, Produced},
    error::{BoxError, Error, ErrorKind},
    layer::future::oneshot,
};

/// Calls the inner service for the leader, and decides whether its response may be shared.
pub(super) async fn load<S, B>(
    http: Http,
    place: Place,
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
    let Some(mut request) = exchange.request() else {
        return Err(Error::new(ErrorKind::Cancelled, "the request has run already"));
    };
    let mut sent = SentRequest {
        rules: http.0.response_rules(&request),
        origin: http.0.group_origin((request.version(), request.uri(), request.headers())),
        forward: Forward::of(place.is_variant(), lead.replaces()),
        request: HeaderMap::new(),
        ends_stored: false,
        http,
        place,
        lead,
    };
    asked::ask_for_all(&mut request);
    sent.request = request.headers().clone();
    let validation = Validation::begin(&sent.lead, &mut request);
    let response = match oneshot(inner, request).await {
        Ok(response) => response,
        Err(error) => {
            exchange.answer(Err(error));
            return Err(Error::new(ErrorKind::Load, "the inner service returned an error"));
        }
    };
    let response = sent.validated(validation, response).await?;
    sent.land::<S, B>(response, exchange).await
}

/// A request that was sent, and what its answer is judged by.
struct SentRequest {
    http: Http,
    place: Place,
    lead: Lead<CachedResponse>,
    rules: ResponseRules,
    /// `None` if its groups are of no use.
    origin: Option<String>,
    /// The headers of the request.
    request: HeaderMap,
    /// Why it was sent.
    forward: Forward,
    /// A response is stored, and the answer says that it is of no use any more.
    ends_stored: bool,
}

impl SentRequest {
    /// Returns the response that an answer stands for: itself, or the stored one with a new head.
    async fn validated<B: Body>(
        &mut self,
        validation: Option<Validation>,
        answer: Response<B>,
    ) -> Result<Response<ResponseBody<B>>, Error> {
        let status = answer.status();
        // An answer that is no failure says so of itself (RFC 9111, section 4.3.3). A `304` does so
        // with the fields that the stored response has now.
        let is_conclusive = !status.is_server_error() && status != StatusCode::NOT_MODIFIED;
        self.ends_stored = self.lead.replaces() && is_conclusive;
        match validation.map_or(Validated::Replaced, |validation| validation.end(&answer)) {
            Validated::Replaced => Ok(answer.map(ResponseBody::untouched)),
            Validated::Renewed(parts, body) => {
                self.ends_stored = self.lead.replaces();
                Ok(Response::from_parts(*parts, ResponseBody::whole(body)))
            }
            Validated::Unknown { may_stand_in } => {
                if !may_stand_in {
                    self.end_stored().await;
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
        let settings = &self.http.0;
        let (parts, body) = response.into_parts();
        let belongs = self.place.of(&parts.headers, &self.request, settings.cache.key_limit());
        let (class, belongs) = match (self.classify(&parts, &body), belongs) {
            (ResponseClass::Shareable(_), None) => (ResponseClass::Uncacheable, Belongs::Here),
            (class, belongs) => (class, belongs.unwrap_or(Belongs::Here)),
        };
        if self.ends_stored && !matches!(class, ResponseClass::Shareable(_)) {
            self.end_stored().await;
        }
        let (whose, produced) = match class {
            ResponseClass::Shareable(freshness) => {
                // The longest lifetime begins with the head, as the response's own does.
                let freshness = freshness.capped(settings.cache.ttl());
                let streamed = self.announce::<S, B>(&parts, body, &freshness, &belongs, exchange);
                return self.collect(&belongs, &streamed, freshness).await;
            }
            ResponseClass::Failing => {
                let produced = self.rules.failing(&parts, &self.lead);
                exchange.answer(Ok(Response::from_parts(parts, body)));
                return Ok(produced);
            }
            ResponseClass::Reserved => (Whose::Authorized, Produced::Reserved),
            ResponseClass::Uncacheable => (Whose::All, Produced::Uncacheable),
        };
        settings.marks.set(self.place.lasting_key(), whose);
        let response = Response::from_parts(parts, body);
        exchange.answer(Ok(self.http.explained(response, &Reason::Uncacheable)));
        Ok(produced)
    }

    /// Returns the class of an answer.
    fn classify(&self, parts: &Parts, body: &impl Body) -> ResponseClass {
        if lacks_body(&parts.headers, body) {
            // Its caller gets it as the service made it.
            return ResponseClass::unshared(parts.status);
        }
        // The stored response stands in for it, whatever its lifetime.
        if is_failure(parts.status) && self.lead.has_stand_in() {
            return ResponseClass::Failing;
        }
        self.rules.classify(parts, body.size_hint().lower())
    }

    /// Shares a response while its body arrives, with the caller that leads and with others.
    fn announce<S: InnerHttp<B>, B>(
        &self,
        parts: &Parts,
        body: ResponseBody<S::Body>,
        freshness: &Freshness,
        belongs: &Belongs,
        exchange: LedExchange<S, B>,
    ) -> std::sync::Arc<StreamedResponse>
    where
        <S::Body as Body>::Error: Into<BoxError>,
    {
        let (settings, lead, forward) = (&self.http.0, &self.lead, self.forward);
        let most = settings.body_limits().size;
        let streamed =
            StreamedResponse::new(parts, body, freshness, most, belongs.clone(), forward);
        if let Ok(response) = streamed.own() {
            let is_stored = lead.fence().is_some() && !freshness.lifetime.is_zero();
            let ttl = is_stored.then_some(freshness.lifetime.as_secs());
            let ttl = ttl.and_then(|ttl| i64::try_from(ttl).ok());
            let response = self.http.with_source(response, lead.source(), ttl, forward);
            exchange.answer(Ok(response.map(ResponseBody::shared)));
        }
        let groups = settings.groups(self.origin.as_deref(), &parts.headers);
        groups.into_iter().for_each(|group| lead.tag(group));
        lead.announce(streamed.clone());
        streamed
    }

    /// Collects a response that its callers read meanwhile, and keeps it. Returns what its flight
    /// lands with.
    async fn collect(
        &self,
        belongs: &Belongs,
        streamed: &StreamedResponse,
        freshness: Freshness,
    ) -> Result<Produced<CachedResponse>, Error> {
        let (http, lead) = (&self.http, &self.lead);
        match (streamed.collect(&http.0.body_limits(), freshness).await, belongs) {
            (Ok((response, freshness)), Belongs::Here) => {
                freshness.keep(lead);
                Ok(Produced::Value(response.into()))
            }
            // In a box, which most loads do not need.
            (Ok((response, freshness)), Belongs::Below(selected)) => {
                Ok(Box::pin(http.store_below(selected, &response, &freshness, lead)).await)
            }
            (Err(NotCollected::Unfit), _) => {
                if self.ends_stored {
                    self.end_stored().await;
                }
                http.0.marks.set(self.place.lasting_key(), Whose::All);
                Ok(Produced::Uncacheable)
            }
            (Err(NotCollected::Unread), _) => Ok(Produced::Reserved),
            (Err(NotCollected::Broken(error)), _) => {
                let words = "the response body ended with an error";
                Err(Error::with_source(ErrorKind::Load, words, error))
            }
        }
    }

    /// Removes a stored response that is of no use. The next request has no validator, and no
    /// caller is served it as a stale one.
    async fn end_stored(&self) {
        if let Err(error) = self.http.0.cache.invalidate(&self.place.key).await {
            debug!(%error, "a response that is of no use is not removed");
        }
    }
}
