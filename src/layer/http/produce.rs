//! The load of a response: the call of the inner service, and what becomes of its answer.

use http::{HeaderMap, Request, Response, StatusCode, response::Parts};
use http_body::Body;
use tower_service::Service;
use tracing::debug;

use super::{
    BodyError, CachedResponse, Http, ResponseBody, asked,
    exchange::FlightExchange,
    inner_error::is_failure,
    marks::Whose,
    pass::CallResult,
    reason::Reason,
    responses::{
        Freshness, ResponseClass, ResponseRules, lacks_body,
        validation::{Validated, Validation},
    },
    status::Forward,
    streamed::{Streamed, StreamedResponse},
    variants::{Belongs, Place},
};
use crate::{
    cache::{Lead, Produced},
    error::{BoxError, Error, ErrorKind},
    key::Key,
    layer::future::oneshot,
};

/// The exchange of a flight with the caller that leads it.
pub(super) type LedExchange<B, ResBody, E> = FlightExchange<Request<B>, CallResult<ResBody, E>>;

/// Calls the inner service for the leader, and decides whether its response may be shared.
pub(super) async fn produce<S, B, ResBody>(
    http: Http,
    place: Place,
    inner: S,
    exchange: LedExchange<B, ResBody, S::Error>,
    lead: Lead<CachedResponse>,
) -> Result<Produced<CachedResponse>, Error>
where
    S: Service<Request<B>, Response = Response<ResBody>>,
    ResBody: Body + Send + 'static,
    ResBody::Error: Into<BoxError>,
{
    if let Some(marker) = http.renewed_marker(&lead) {
        return Ok(Produced::Value(marker.into()));
    }
    let Some(mut request) = exchange.request() else {
        return Err(Error::new(ErrorKind::Cancelled, "the request has run already"));
    };
    let rules = http.0.response_rules(&request);
    let origin = http.0.group_origin((request.version(), request.uri(), request.headers()));
    asked::ask_for_all(&mut request);
    let forward = Forward::of(place.is_variant(), lead.replaces());
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
    // An answer that is no failure says so of itself (RFC 9111, section 4.3.3). A `304` does so
    // with the fields that the stored response has now.
    let status = response.status();
    let is_conclusive = matches!(validated, Validated::Renewed(..))
        || !(status.is_server_error() || status == StatusCode::NOT_MODIFIED);
    let ends_stored = lead.replaces() && is_conclusive;
    let sent = Sent { headers, rules, origin, forward, ends_stored };
    let response = match validated {
        Validated::Replaced => response.map(ResponseBody::untouched),
        Validated::Renewed(parts, body) => Response::from_parts(*parts, ResponseBody::whole(body)),
        Validated::Unknown { may_stand_in } => {
            if !may_stand_in {
                http.end_stored(&place.key).await;
            }
            let words = "the inner service validated another response";
            return Err(Error::new(ErrorKind::Load, words));
        }
    };
    land(&http, &place, &sent, response, exchange, &lead).await
}

/// What the answer to a request is judged by.
struct Sent {
    headers: HeaderMap,
    rules: ResponseRules,
    /// `None` if its groups are of no use.
    origin: Option<String>,
    /// Why it was sent.
    forward: Forward,
    /// A response is stored, and the answer says that it is of no use any more.
    ends_stored: bool,
}

/// Returns what the flight of a place lands with. Its caller has the response at once.
async fn land<B, ResBody, E>(
    http: &Http,
    place: &Place,
    sent: &Sent,
    response: Response<ResponseBody<ResBody>>,
    exchange: LedExchange<B, ResBody, E>,
    lead: &Lead<CachedResponse>,
) -> Result<Produced<CachedResponse>, Error>
where
    ResBody: Body + Send + 'static,
    ResBody::Error: Into<BoxError>,
{
    let settings = &http.0;
    let Sent { headers, rules, forward, .. } = sent;
    let (parts, body) = response.into_parts();
    let class = classify(rules, &parts, &body, lead);
    let belongs = place.of(&parts.headers, &settings.variants, settings.cache.key_limit());
    let is_shared = matches!(class, ResponseClass::Shareable(_)) && belongs.is_some();
    if !is_shared && sent.ends_stored {
        http.end_stored(&place.key).await;
    }
    match (class, belongs) {
        (ResponseClass::Shareable(freshness), Some(belongs)) => {
            // The longest lifetime begins with the head, as the response's own does.
            let freshness = freshness.capped(settings.cache.ttl());
            let (limits, readers) = (settings.body_limits(), belongs.readers(place, headers));
            let streamed =
                StreamedResponse::new(&parts, body, &freshness, limits.size, readers, *forward);
            if let Ok(response) = streamed.own() {
                let is_stored = lead.fence().is_some() && !freshness.lifetime.is_zero();
                let ttl = is_stored.then_some(freshness.lifetime);
                let response = http.with_source(response, lead.source(), ttl, *forward);
                exchange.answer(Ok(response.map(ResponseBody::shared)));
            }
            let groups = settings.groups(sent.origin.as_deref(), &parts.headers);
            groups.into_iter().for_each(|group| lead.tag(group));
            lead.announce(streamed.clone());
            http.collect(place, belongs, sent, &streamed, freshness, lead).await
        }
        (ResponseClass::Failing, _) => {
            let produced = rules.failing(&parts, lead);
            exchange.answer(Ok(Response::from_parts(parts, body)));
            Ok(produced)
        }
        (class, _) => {
            let produced = http.unshared(&class, place.lasting_key());
            let response = Response::from_parts(parts, body);
            exchange.answer(Ok(http.explained(response, &Reason::Uncacheable)));
            Ok(produced)
        }
    }
}

/// Returns the class of an answer to a load.
fn classify(
    rules: &ResponseRules,
    parts: &Parts,
    body: &impl Body,
    lead: &Lead<CachedResponse>,
) -> ResponseClass {
    if lacks_body(&parts.headers, body) {
        // Its caller gets it as the service made it.
        return ResponseClass::unshared(parts.status);
    }
    // The stored response stands in for it, whatever its lifetime.
    if is_failure(parts.status) && lead.has_stand_in() {
        return ResponseClass::Failing;
    }
    rules.classify(parts, body.size_hint().lower())
}

impl Http {
    /// Collects a response that its callers read meanwhile, and keeps it. Returns what its flight
    /// lands with.
    async fn collect(
        &self,
        place: &Place,
        belongs: Belongs,
        sent: &Sent,
        streamed: &StreamedResponse,
        freshness: Freshness,
        lead: &Lead<CachedResponse>,
    ) -> Result<Produced<CachedResponse>, Error> {
        match streamed.collect(&self.0.body_limits(), freshness).await {
            Streamed::Whole(response, freshness) => {
                Ok(self.keep(place, belongs, &sent.headers, response, &freshness, lead).await)
            }
            Streamed::Unfit => {
                if sent.ends_stored {
                    self.end_stored(&place.key).await;
                }
                self.0.marks.set(place.lasting_key(), Whose::All);
                Ok(Produced::Uncacheable)
            }
            Streamed::Unread => Ok(Produced::Reserved),
            Streamed::Broken(error) => Err(broken(error)),
        }
    }

    /// Removes a stored response that is of no use. The next request has no validator, and no
    /// caller is served it as a stale one.
    async fn end_stored(&self, key: &Key) {
        if let Err(error) = self.0.cache.invalidate(key).await {
            debug!(%error, "a response that is of no use is not removed");
        }
    }

    /// Marks a key whose response is for its caller alone. Returns what its flight lands with.
    fn unshared(&self, class: &ResponseClass, key: &Key) -> Produced<CachedResponse> {
        let (whose, produced) = match class {
            ResponseClass::Reserved => (Whose::Authorized, Produced::Reserved),
            _ => (Whose::All, Produced::Uncacheable),
        };
        self.0.marks.set(key, whose);
        produced
    }
}

/// Returns the error of a load whose body broke off.
fn broken(error: BodyError) -> Error {
    Error::with_source(ErrorKind::Load, "the response body ended with an error", error)
}
