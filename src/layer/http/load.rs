//! The load of a response: the call of the inner service, and what becomes of its answer.
//!
//! An answer that may be shared is announced with its head, and callers read its body while it
//! arrives.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response, StatusCode, request, response::Parts};
use http_body::Body;
use http_body_util::Full;
use tokio::{sync::oneshot, time::Instant};
use tower::{Service, util::Oneshot};
use tracing::debug;

use super::{
    BodyError, CachedResponse,
    body::{BodyLimits, Collector, LayerBody, NotCollected, ServiceBody, SharedBody},
    cached::ResponseHead,
    marks::MarkOf,
    request::Asked,
    response::{Shareable, Unshared, is_about_range},
    status::Forward,
    unavailable::{described, failing, is_failure, speaks_of_resource},
    validation::{Validated, add_validators, validated},
    variants::Variant,
};
use crate::{
    backend::Windows,
    cache::{Alone, Lead, Produced, Source},
    error::{BoxError, Error, ErrorKind},
    sync::lock,
};

/// The result that a caller receives whose request did not pass.
pub(super) type CallResult<E> = Result<Response<LayerBody>, E>;

/// A call of the inner service. It is made at most once, because a body cannot be cloned.
pub(super) trait ServiceCall: Send + 'static {
    type Error: Send + 'static;

    /// Sends the request with this head, once the service is ready.
    fn send(
        self,
        head: request::Parts,
    ) -> impl Future<Output = Result<Response<ServiceBody>, Self::Error>> + Send;
}

impl<S, B, ResBody> ServiceCall for (S, B)
where
    S: Service<Request<B>, Response = Response<ResBody>> + Send + 'static,
    S::Error: Send + 'static,
    S::Future: Send + 'static,
    B: Send + 'static,
    ResBody: Body<Error: Into<BoxError>> + Send + 'static,
{
    type Error = S::Error;

    async fn send(self, head: request::Parts) -> Result<Response<ServiceBody>, S::Error> {
        let (inner, body) = self;
        let request = Request::from_parts(head, body);
        Ok(Oneshot::new(inner, request).await?.map(ServiceBody::new))
    }
}

/// The answer to the caller whose call was made.
pub(super) struct OwnAnswer<E> {
    pub(super) result: CallResult<E>,
    /// Where it counts as coming from.
    pub(super) source: Source,
    /// Why its request was sent.
    pub(super) forward: Forward,
}

/// The call of a caller, until it is made.
pub(super) type PendingCall<C> = Arc<Mutex<Option<C>>>;

/// Calls the inner service for the leader, and decides whether its response may be shared.
///
/// An answer for the caller that leads reaches it however the flight ends. The caller may have gone
/// away.
pub(super) async fn load<C: ServiceCall>(
    asked: Asked,
    call: PendingCall<C>,
    answer: oneshot::Sender<OwnAnswer<C::Error>>,
    lead: Lead<CachedResponse>,
) -> Result<Produced<CachedResponse>, Error> {
    let stale = lead.stale();
    if let Some(marker) = stale.as_ref().and_then(|it| asked.http.renewed_marker(&lead, it)) {
        return Ok(Produced::Value(marker));
    }
    let Some(call) = lock(&call).take() else {
        // Its caller has gone on alone.
        return Ok(Produced::Alone(Alone::Reserved));
    };
    // What is stored may be validated, and the part is cut from that.
    let sends_range = !lead.replaces() && asked.question.wants_part();
    let mut head = asked.question.for_all(sends_range);
    asked.http.forward(&mut head.headers);
    let stale = stale.filter(|_| asked.http.0.marks.permits_conditions(&asked.place.lasting));
    let stale = stale.filter(|stale| add_validators(&stale.value, &mut head.headers));
    let forward = if lead.replaces() { Forward::Stale } else { asked.place.miss.clone() };
    let load = ResponseLoad { asked, begun: Instant::now(), lead, forward, sends_range };
    let mut response = match call.send(head).await {
        Ok(response) => response,
        Err(error) => {
            let words = "the inner service returned an error";
            let failure = Error::with_source(ErrorKind::Load, words, described(&error));
            load.answer(answer, Err(error));
            return Err(failure);
        }
    };
    if let Some(stale) = stale.filter(|_| response.status() == StatusCode::NOT_MODIFIED) {
        let from_bytes = |bytes| ServiceBody::new(Full::new(bytes));
        response = match validated(&stale.value, response.headers()) {
            Validated::Renewed(renewed) => renewed.map(from_bytes),
            Validated::Confirmed(confirmed) => {
                return Ok(load.land_confirmed(confirmed.map(LayerBody::Whole), answer).await);
            }
        };
    }
    load.land(response, answer).await
}

/// The load of a response, after its request was sent.
struct ResponseLoad {
    asked: Asked,
    begun: Instant,
    lead: Lead<CachedResponse>,
    /// Why its request was sent.
    forward: Forward,
    /// Its request had the range of its caller.
    sends_range: bool,
}

impl ResponseLoad {
    /// Answers the caller that leads. It may have gone away.
    fn answer<E>(&self, answer: oneshot::Sender<OwnAnswer<E>>, result: CallResult<E>) {
        let source = self.lead.source();
        let forward = self.forward.clone();
        drop(answer.send(OwnAnswer { result, source, forward }));
    }

    /// Answers the caller alone with what the service has confirmed by another tag. The service
    /// would do the same at the next load, so that sends no conditions.
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
        Produced::Alone(Alone::Reserved)
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
            self.asked.http.0.cache.core.counters.failures.add();
        }
        landed
    }

    async fn land_response<E>(
        &self,
        response: Response<ServiceBody>,
        answer: oneshot::Sender<OwnAnswer<E>>,
    ) -> Result<Produced<CachedResponse>, Error> {
        let Asked { http, place, question } = &self.asked;
        let (parts, body) = response.into_parts();
        let judged = if self.sends_range && is_about_range(&parts) {
            Err(Unshared::Part)
        } else if self.lead.has_stand_in() && is_failure(parts.status) {
            // The stored response stands in for it, whatever its lifetime.
            Err(Unshared::Failing)
        } else {
            http.judge(question, self.begun.elapsed(), &parts, &body)
        };
        let (request, limit) = (&question.head.headers, http.0.cache.core.settings.max_key);
        let shared = judged.and_then(|mut shareable| {
            // The service has not seen a header that is not sent.
            shareable.vary.retain(|name| !place.names.contains(name) && http.0.forwards(name));
            if shareable.vary.is_empty() {
                return Ok((shareable, None));
            }
            let variant = place.variant(shareable.vary.clone(), request, limit);
            Ok((shareable, Some(variant.ok_or(Unshared::Uncacheable("vary"))?)))
        });
        match shared {
            Ok((shareable, variant)) => {
                let (streamed, collector) = self.announce(parts, body, shareable, variant, answer);
                self.collect(&streamed, collector).await
            }
            Err(why) => self.land_alone(why, parts, body, answer).await,
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
        let Asked { http, place, .. } = &self.asked;
        let marks = &http.0.marks;
        let (forward, produced) = match why {
            Unshared::Failing => (self.forward.clone(), failing(&self.asked, &parts, &self.lead)),
            Unshared::Reserved => {
                marks.set(&place.lasting, MarkOf::Authorized);
                (Forward::Uncacheable(Some("authorization")), Ok(Produced::Alone(Alone::Reserved)))
            }
            Unshared::Part => {
                (Forward::Uncacheable(Some("range")), Ok(Produced::Alone(Alone::Reserved)))
            }
            Unshared::Uncacheable(why) => {
                marks.set(&place.lasting, MarkOf::All);
                (Forward::Uncacheable(Some(why)), Ok(Produced::Alone(Alone::Uncacheable)))
            }
        };
        let response = Response::from_parts(parts, LayerBody::Single(body));
        self.answer(answer, Ok(http.explained(response, &forward, None, None)));
        produced
    }

    /// Shares a response while its body arrives, with the caller that leads and with others.
    fn announce<E>(
        &self,
        parts: Parts,
        body: ServiceBody,
        shareable: Shareable,
        variant: Option<Variant>,
        answer: oneshot::Sender<OwnAnswer<E>>,
    ) -> (Arc<StreamedResponse>, Option<Collector>) {
        let (settings, lead) = (&self.asked.http.0, &self.lead);
        let Shareable { windows, joined_for, age, .. } = shareable;
        let limits = BodyLimits {
            size: shareable.body_limit,
            total: settings.body_limit,
            finish_unread: !settings.cache.core.settings.cancels_abandoned,
            backlog: settings.backlog.clone(),
        };
        for group in shareable.groups {
            lead.tag(group);
        }
        let (body, collector) = body.begin(shareable.announced, limits);
        let head = Arc::new(ResponseHead::new(parts, shareable.only_validates));
        let response = CachedResponse { head, body, age, late: 0 };
        let arriving = collector.as_ref().map(|it| it.body.clone());
        let (forward, received) = (self.forward.clone(), Instant::now());
        let streamed = Arc::new(StreamedResponse {
            response,
            arriving,
            variant,
            forward,
            received,
            windows,
            joined_for,
        });
        if let Ok(response) = streamed.response(true) {
            let source = lead.source();
            let is_stored = source == Source::Led && !windows.fresh.is_zero();
            let ttl = is_stored.then(|| windows.fresh.as_secs().try_into().ok()).flatten();
            let http = &self.asked.http;
            let response = http.explained(response, &streamed.forward, Some(source), ttl);
            self.answer(answer, Ok(response));
        }
        lead.announce(streamed.clone());
        (streamed, collector)
    }

    /// Collects a response that its callers read meanwhile, and keeps it. Returns what its flight
    /// lands with.
    async fn collect(
        &self,
        streamed: &StreamedResponse,
        collector: Option<Collector>,
    ) -> Result<Produced<CachedResponse>, Error> {
        let collected = match collector {
            None => Ok((streamed.response.clone(), streamed.windows)),
            Some(collector) => collector.collect().await.map(|bytes| streamed.complete(bytes)),
        };
        match collected {
            Ok((response, windows)) => {
                match &streamed.variant {
                    None if windows.fresh.is_zero() => self.lead.do_not_store(),
                    None => self.lead.keep(windows),
                    // In a box, which most loads do not need.
                    Some(variant) => {
                        let stored =
                            self.asked.http.store_below(variant, &response, windows, &self.lead);
                        return Ok(Box::pin(stored).await);
                    }
                }
                Ok(Produced::Value(response))
            }
            Err(NotCollected::Unfit) => {
                self.end_stored(streamed.response.status()).await;
                self.asked.http.0.marks.set(&self.asked.place.lasting, MarkOf::All);
                Ok(Produced::Alone(Alone::Uncacheable))
            }
            Err(NotCollected::Unread) => Ok(Produced::Alone(Alone::Reserved)),
            Err(NotCollected::Broken(error)) => {
                let words = "the response body ended with an error";
                Err(Error::with_source(ErrorKind::Load, words, error))
            }
        }
    }

    /// Removes the stored response, if an answer with this status says that it is of no use (RFC
    /// 9111, section 4.3.3). One that speaks of its caller or of the moment says nothing of it.
    async fn end_stored(&self, status: StatusCode) {
        let is_for_all = !self.asked.question.is_authorized && speaks_of_resource(status);
        if self.lead.replaces() && is_for_all {
            self.remove_stored().await;
        }
    }

    /// Removes the stored response. The next request has no validator, and no caller is served it
    /// as a stale one.
    async fn remove_stored(&self) {
        if let Err(error) = self.asked.http.0.cache.invalidate(&self.asked.place.key).await {
            debug!(%error, "a response that is of no use is not removed");
        }
    }
}

/// A response that callers share before it is stored, and while its body arrives.
pub(super) struct StreamedResponse {
    /// The response when it was received. Its body is here if it was there at once.
    response: CachedResponse,
    arriving: Option<Arc<SharedBody>>,
    /// Which variant it is, if its flight did not know that.
    pub(super) variant: Option<Variant>,
    /// Why the request was sent that it answers.
    pub(super) forward: Forward,
    received: Instant,
    /// They begin with the head. All are zero if it is for those only that ask meanwhile.
    windows: Windows,
    /// For how long after its head callers may join it.
    joined_for: Duration,
}

impl StreamedResponse {
    /// Returns the response for a caller. It is never too late for the caller whose request it
    /// answers, which has the trailers, too.
    ///
    /// Fails with the error by which the body broke off in time, or with none if it is too late.
    pub(super) fn response(&self, is_own: bool) -> Result<Response<LayerBody>, Option<BodyError>> {
        let elapsed = self.received.elapsed();
        if !is_own && elapsed >= self.joined_for {
            return Err(None);
        }
        let CachedResponse { head, body, age, .. } = self.response.clone();
        let age = age.saturating_add(elapsed.as_secs());
        let body = match &self.arriving {
            Some(arriving) => arriving.reader(is_own)?,
            None => LayerBody::Whole(body),
        };
        Ok(head.with_age(body, Some(age).filter(|age| *age > 0)))
    }

    /// Returns the response with its whole body, and the windows that are left of it.
    fn complete(&self, body: Bytes) -> (CachedResponse, Windows) {
        let took = self.received.elapsed();
        let mut response = CachedResponse { body, ..self.response.clone() };
        response.age = response.age.saturating_add(took.as_secs());
        let late = took.saturating_sub(self.joined_for).as_millis();
        response.late = late.try_into().unwrap_or(u32::MAX);
        (response, Windows { fresh: self.windows.fresh.saturating_sub(took), ..self.windows })
    }
}
