//! The load of a response: the call of the inner service, and what becomes of its answer.
//!
//! An answer that may be shared is announced with its head, and callers read its body while it
//! arrives.

use std::sync::{Arc, Mutex};

use http::{HeaderMap, Response, StatusCode, response::Parts};
use http_body_util::Full;
use tokio::{sync::oneshot, time::Instant};
use tracing::debug;

use super::{
    CachedResponse,
    body::{BodyLimits, Collector, LayerBody, NotCollected, ServiceBody},
    cached::ResponseHead,
    call::{CallResult, ServiceCall},
    lifetime::Freshness,
    marks::MarkOf,
    request::Asked,
    response::{Shareable, Unshared, is_about_range},
    status::Forward,
    streamed::{CompleteResponse, StreamedResponse},
    unavailable::{described, failing, is_failure, speaks_of_resource},
    validation::{Validated, add_validators, validated},
    variants::Variant,
};
use crate::{
    cache::{
        Lead, Loaded, Source,
        shared_load::{Alone, Produced},
    },
    error::{Error, ErrorKind},
    sync::lock,
};

/// The answer to the caller whose call was made.
pub(super) struct OwnAnswer<E> {
    pub(super) result: CallResult<E>,
    /// Where the answer counts as coming from.
    pub(super) source: Source,
    /// Why the request was sent.
    pub(super) forward: Forward,
}

/// The call of a caller, until it is made.
pub(super) type PendingCall<C> = Arc<Mutex<Option<C>>>;

/// Calls the inner service for the leader, and decides whether its response may be shared.
///
/// An answer for the caller that leads reaches that caller however the flight ends. The caller may
/// have gone away.
pub(super) async fn load<C: ServiceCall>(
    asked: Asked,
    call: PendingCall<C>,
    answer: oneshot::Sender<OwnAnswer<C::Error>>,
    lead: Lead<CachedResponse>,
) -> Result<Produced<CachedResponse>, Error> {
    let stale = lead.stale();
    if let Some(stale) = &stale
        && let Some(marker) = asked.http.renewed_marker(&lead, stale)
    {
        return Ok(Produced::value(marker));
    }
    let Some(call) = lock(&call).take() else {
        // The caller has gone on alone.
        return Ok(Produced::alone(Alone::Reserved));
    };
    // What is stored may be validated, and the part is cut from that.
    let sends_range = !lead.replaces() && asked.question.wants_part();
    let mut head = asked.question.for_all(sends_range);
    asked.http.forward(&mut head.headers);
    let mut validating: Option<Loaded<CachedResponse>> = None;
    if let Some(stale) = stale
        && asked.http.0.marks.permits_conditions(&asked.place.lasting)
        && add_validators(&stale.value, &mut head.headers)
    {
        validating = Some(stale);
    }
    let forward = if lead.replaces() { Forward::Stale } else { asked.place.miss.clone() };
    let load = ResponseLoad { asked, begun: Instant::now(), lead, forward, sends_range };
    let response = match call.send(head).await {
        Ok(response) => response,
        Err(error) => {
            let words = "the inner service returned an error";
            let failure = Error::with_source(ErrorKind::Load, words, described(&error));
            load.answer(answer, Err(error));
            return Err(failure);
        }
    };
    match validating {
        Some(stale) if response.status() == StatusCode::NOT_MODIFIED => {
            let (not_modified, _) = response.into_parts();
            load.land_validated(&stale.value, &not_modified.headers, answer).await
        }
        _ => load.land(response, answer).await,
    }
}

/// The load of a response, once its request is sent.
struct ResponseLoad {
    asked: Asked,
    begun: Instant,
    lead: Lead<CachedResponse>,
    /// Why the request was sent.
    forward: Forward,
    /// The request had the range of its caller.
    sends_range: bool,
}

impl ResponseLoad {
    /// Answers the caller that leads. The caller may have gone away.
    fn answer<E>(&self, answer: oneshot::Sender<OwnAnswer<E>>, result: CallResult<E>) {
        let source = self.lead.source();
        let forward = self.forward.clone();
        drop(answer.send(OwnAnswer { result, source, forward }));
    }

    /// Returns what the flight lands with, if the service has validated the stale response.
    async fn land_validated<E>(
        self,
        stale: &CachedResponse,
        not_modified: &HeaderMap,
        answer: oneshot::Sender<OwnAnswer<E>>,
    ) -> Result<Produced<CachedResponse>, Error> {
        match validated(stale, not_modified) {
            Validated::Renewed(renewed) => {
                let response = renewed.map(|bytes| ServiceBody::new(Full::new(bytes)));
                self.land(response, answer).await
            }
            Validated::Confirmed(confirmed) => {
                Ok(self.land_confirmed(confirmed.map(LayerBody::Whole), answer).await)
            }
        }
    }

    /// Answers the caller alone with what the service has confirmed by another tag. The service
    /// would do the same at the next load, so the next load sends no conditions.
    async fn land_confirmed<E>(
        &self,
        response: Response<LayerBody>,
        answer: oneshot::Sender<OwnAnswer<E>>,
    ) -> Produced<CachedResponse> {
        let Asked { http, place, .. } = &self.asked;
        http.0.marks.set(&place.lasting, MarkOf::Conditions);
        self.remove_stored().await;
        let forward = Forward::Uncacheable(Some("etag"));
        self.answer(answer, Ok(http.explained(response, &forward, None, None)));
        Produced::alone(Alone::Reserved)
    }

    /// Returns what the flight lands with. Its caller has the response at once.
    async fn land<E>(
        self,
        response: Response<ServiceBody>,
        answer: oneshot::Sender<OwnAnswer<E>>,
    ) -> Result<Produced<CachedResponse>, Error> {
        let is_failed = response.status().is_server_error();
        let landed = self.land_response(response, answer).await;
        // The cache counts an error.
        if is_failed && landed.is_ok() {
            self.asked.http.count_failed_load();
        }
        landed
    }

    async fn land_response<E>(
        &self,
        response: Response<ServiceBody>,
        answer: oneshot::Sender<OwnAnswer<E>>,
    ) -> Result<Produced<CachedResponse>, Error> {
        let (parts, body) = response.into_parts();
        let shareable = match self.judge(&parts, &body) {
            Ok(shareable) => shareable,
            Err(why) => return self.land_alone(why, parts, body, answer).await,
        };
        let Announced { streamed, collector } = self.announce(parts, body, shareable, answer);
        self.collect(&streamed, collector).await
    }

    /// Judges the response with what this load knows beside the response: its range, the stale
    /// response that stands in, and the place that the request has selected.
    fn judge(&self, parts: &Parts, body: &ServiceBody) -> Result<PlacedResponse, Unshared> {
        if self.sends_range && is_about_range(parts) {
            return Err(Unshared::Part);
        }
        if self.lead.has_stand_in() && is_failure(parts.status) {
            // The stored response stands in for this failure, whatever lifetime the failure has.
            return Err(Unshared::Failing);
        }
        let Asked { http, place, question } = &self.asked;
        let shareable = http.judge(question, self.begun.elapsed(), parts, body)?;
        let mut names = shareable.vary.clone();
        // The service has not seen a header that is not sent.
        names.retain(|name| !place.names.contains(name) && http.0.forwards(name));
        if names.is_empty() {
            return Ok(PlacedResponse { shareable, variant: None });
        }
        match place.variant(names, &question.head.headers, http.0.terms.max_key) {
            Some(variant) => Ok(PlacedResponse { shareable, variant: Some(variant) }),
            None => Err(Unshared::Uncacheable("vary")),
        }
    }

    /// Returns what the flight lands with if its response is for the caller alone.
    async fn land_alone<E>(
        &self,
        why: Unshared,
        parts: Parts,
        body: ServiceBody,
        answer: oneshot::Sender<OwnAnswer<E>>,
    ) -> Result<Produced<CachedResponse>, Error> {
        self.end_stored(parts.status).await;
        let forward;
        let produced;
        match why {
            Unshared::Failing => {
                forward = self.forward.clone();
                produced = failing(&self.asked, &parts, &self.lead);
            }
            Unshared::Part => {
                forward = Forward::Uncacheable(Some("range"));
                produced = Ok(Produced::alone(Alone::Reserved));
            }
            Unshared::Uncacheable(rule) => {
                forward = Forward::Uncacheable(Some(rule));
                produced = Ok(self.mark_uncacheable());
            }
        }
        let response = Response::from_parts(parts, LayerBody::Single(body));
        let response = self.asked.http.explained(response, &forward, None, None);
        self.answer(answer, Ok(response));
        produced
    }

    /// Marks the key as uncacheable. Returns what the flight lands with. The answer to a request
    /// with an `Authorization` decides nothing for requests without.
    fn mark_uncacheable(&self) -> Produced<CachedResponse> {
        let Asked { http, place, question } = &self.asked;
        if question.is_authorized {
            http.0.marks.set(&place.lasting, MarkOf::Authorized);
            Produced::alone(Alone::Reserved)
        } else {
            http.0.marks.set(&place.lasting, MarkOf::All);
            Produced::alone(Alone::Uncacheable)
        }
    }

    /// Shares a response while its body arrives, with the caller that leads and with other callers.
    fn announce<E>(
        &self,
        parts: Parts,
        body: ServiceBody,
        placed: PlacedResponse,
        answer: oneshot::Sender<OwnAnswer<E>>,
    ) -> Announced {
        let settings = &self.asked.http.0;
        let PlacedResponse { shareable, variant } = placed;
        let Shareable { freshness, groups, announced, body_limit, .. } = shareable;
        let Freshness { windows, joined_for, only_validates, age } = freshness;
        for group in groups {
            self.lead.tag(group);
        }
        let limits = BodyLimits {
            size: body_limit,
            total: settings.body_limit,
            finish_unread: settings.terms.finishes_abandoned,
            backlog: settings.backlog.clone(),
        };
        let begun = Collector::begin(body, announced, limits);
        let head = Arc::new(ResponseHead::new(parts, only_validates));
        let streamed = Arc::new(StreamedResponse {
            response: CachedResponse { head, body: begun.at_once, age, late: 0 },
            arriving: begun.collector.as_ref().map(|collector| collector.body.clone()),
            variant,
            forward: self.forward.clone(),
            received: Instant::now(),
            windows,
            joined_for,
        });
        if let Ok(response) = streamed.response(true) {
            let source = self.lead.source();
            let is_stored = source == Source::Led && !windows.fresh.is_zero();
            let seconds = windows.fresh.as_secs();
            let ttl = if is_stored { seconds.try_into().ok() } else { None };
            let http = &self.asked.http;
            let response = http.explained(response, &streamed.forward, Some(source), ttl);
            self.answer(answer, Ok(response));
        }
        self.lead.announce(streamed.clone());
        Announced { streamed, collector: begun.collector }
    }

    /// Collects a response that callers read meanwhile, and keeps the response. Returns what its
    /// flight lands with.
    async fn collect(
        &self,
        streamed: &StreamedResponse,
        collector: Option<Collector>,
    ) -> Result<Produced<CachedResponse>, Error> {
        let Some(collector) = collector else {
            return Ok(self.keep(streamed, streamed.complete_at_once()).await);
        };
        match collector.collect().await {
            Ok(bytes) => Ok(self.keep(streamed, streamed.complete(bytes)).await),
            Err(NotCollected::Unfit) => {
                self.end_stored(streamed.response.status()).await;
                Ok(self.mark_uncacheable())
            }
            Err(NotCollected::Unread) => Ok(Produced::alone(Alone::Reserved)),
            Err(NotCollected::Broken(error)) => {
                let words = "the response body ended with an error";
                Err(Error::with_source(ErrorKind::Load, words, error))
            }
        }
    }

    /// Says how a response is kept. Returns what its flight lands with.
    async fn keep(
        &self,
        streamed: &StreamedResponse,
        complete: CompleteResponse,
    ) -> Produced<CachedResponse> {
        let CompleteResponse { response, windows } = complete;
        if let Some(variant) = &streamed.variant {
            let stored = self.asked.http.store_below(variant, &response, windows, &self.lead);
            // In a box, which most loads do not need.
            return Box::pin(stored).await;
        }
        if windows.fresh.is_zero() {
            self.lead.do_not_store();
        } else {
            self.lead.keep(windows);
        }
        Produced::value(response)
    }

    /// Removes the stored response, if an answer with this status says that the stored response is
    /// of no use (RFC 9111, section 4.3.3). An answer about its caller or about the moment says
    /// nothing of the stored response.
    async fn end_stored(&self, status: StatusCode) {
        let is_for_all = !self.asked.question.is_authorized && speaks_of_resource(status);
        if self.lead.replaces() && is_for_all {
            self.remove_stored().await;
        }
    }

    /// Removes the stored response. The next request has no validator, and no caller is served the
    /// removed response as a stale response.
    async fn remove_stored(&self) {
        if let Err(error) = self.asked.http.0.cache.invalidate(&self.asked.place.key).await {
            debug!(%error, "a response that is of no use is not removed");
        }
    }
}

/// A response that may be shared, and where it is stored.
struct PlacedResponse {
    shareable: Shareable,
    /// Which variant the response is, if its flight did not know that.
    variant: Option<Variant>,
}

/// A response that callers have the head of.
struct Announced {
    streamed: Arc<StreamedResponse>,
    /// Collects the body, unless the body was there at once.
    collector: Option<Collector>,
}
