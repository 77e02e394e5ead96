//! The load of a response: the call of the inner service, and what becomes of its answer.
//!
//! An answer that may be shared is announced with its head, and callers read its body while it
//! arrives.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response, StatusCode, response::Parts};
use http_body::Body;
use tokio::{sync::oneshot, time::Instant};
use tower_service::Service;
use tracing::debug;

use super::{
    BodyError, CachedResponse, Http, ResponseBody,
    body::{BodyLimits, Collector, NotCollected, SharedBody},
    cached::ResponseHead,
    fields::content_length,
    invalidation::GROUPS,
    request::Question,
    response::{Freshness, Unshared},
    status::Forward,
    unavailable::{failing, is_failure},
    validation::{add_validators, renewed},
    variants::{Place, Variant},
};
use crate::{
    cache::{Alone, Lead, Produced},
    error::{BoxError, Error, ErrorKind},
    layer,
    sync::lock,
};

/// An HTTP service that the layer can wrap.
pub(super) trait InnerHttp<B>: Clone + Send + 'static {
    type Error: Send + 'static;

    /// Sends a request to the service, once that is ready.
    fn send(self, request: Request<B>) -> impl Future<Output = CallResult<Self::Error>> + Send;
}

impl<S, B, ResBody> InnerHttp<B> for S
where
    S: Service<Request<B>, Response = Response<ResBody>> + Clone + Send + 'static,
    S::Error: Send + 'static,
    S::Future: Send + 'static,
    B: Send + 'static,
    ResBody: Body<Error: Into<BoxError>> + Send + 'static,
{
    type Error = S::Error;

    async fn send(self, request: Request<B>) -> CallResult<S::Error> {
        Ok(layer::oneshot(self, request).await?.map(ResponseBody::single))
    }
}

/// The result that a caller of the layer receives.
pub(super) type CallResult<E> = Result<Response<ResponseBody>, E>;

/// The request body of a caller, until the request runs. It can be taken only once, so the request
/// runs at most once.
pub(super) type RequestBody<B> = Arc<Mutex<Option<B>>>;

/// Calls the inner service for the leader, and decides whether its response may be shared.
///
/// An answer for the caller that leads reaches it however the flight ends. The caller may have gone
/// away.
pub(super) async fn load<B, S: InnerHttp<B>>(
    (http, place, question): (Http, Place, Arc<Question>),
    inner: S,
    body: RequestBody<B>,
    answer: oneshot::Sender<CallResult<S::Error>>,
    lead: Lead<CachedResponse>,
) -> Result<Produced<CachedResponse>, Error> {
    if let Some(marker) = http.renewed_marker(&lead) {
        return Ok(Produced::Value(marker));
    }
    let body = lock(&body).take();
    let body =
        body.ok_or_else(|| Error::new(ErrorKind::Cancelled, "the request has run already"))?;
    let mut request = question.for_all(body);
    let stale = add_validators(&lead, request.headers_mut());
    let load = ResponseLoad { http, place, question, begun: Instant::now(), lead };
    match inner.send(request).await {
        Ok(response) => {
            let response = load.validated(stale, response).await?;
            load.land(response, answer).await
        }
        Err(error) => {
            drop(answer.send(Err(error)));
            Err(Error::new(ErrorKind::Load, "the inner service returned an error"))
        }
    }
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
    /// Returns the response that an answer stands for: itself, or the stale one with a new head.
    async fn validated(
        &self,
        stale: Option<CachedResponse>,
        answer: Response<ResponseBody>,
    ) -> Result<Response<ResponseBody>, Error> {
        let is_validated = answer.status() == StatusCode::NOT_MODIFIED;
        let Some(stale) = stale.filter(|_| is_validated) else { return Ok(answer) };
        if let Some(renewed) = renewed(&stale, answer.headers()) {
            return Ok(renewed.map(ResponseBody::whole));
        }
        if stale.head.only_validates {
            self.remove_stored().await;
        }
        Err(Error::new(ErrorKind::Load, "the inner service validated another response"))
    }

    /// Returns what the flight lands with. Its caller has the response at once.
    async fn land<E>(
        self,
        response: Response<ResponseBody>,
        answer: oneshot::Sender<CallResult<E>>,
    ) -> Result<Produced<CachedResponse>, Error> {
        let (parts, body) = response.into_parts();
        let judged = match is_failure(parts.status) && self.lead.has_stand_in() {
            // The stored response stands in for it, whatever its lifetime.
            true => Err(Unshared::Failing),
            false => self.http.judge(&self.question, self.begun.elapsed(), &parts, &body),
        };
        let (request, limit) = (&self.question.head.headers, self.http.0.cache.settings().max_key);
        let shared = judged.and_then(|(freshness, names)| {
            let variant = self.place.variant(names, request, limit);
            Ok((freshness, variant.ok_or(Unshared::Uncacheable("vary"))?))
        });
        match shared {
            Ok((freshness, variant)) => {
                let (streamed, collector) = self.announce(parts, body, freshness, variant, answer);
                self.collect(&streamed, collector).await
            }
            Err(why) => Ok(self.land_alone(why, parts, body, answer).await),
        }
    }

    /// Returns what the flight lands with if its response is for the caller alone.
    async fn land_alone<E>(
        &self,
        why: Unshared,
        parts: Parts,
        body: ResponseBody,
        answer: oneshot::Sender<CallResult<E>>,
    ) -> Produced<CachedResponse> {
        self.end_stored(parts.status).await;
        let (place, marks) = (&self.place, &self.http.0.marks);
        let (forward, produced) = match why {
            Unshared::Failing => {
                let forward = place.forward(self.lead.replaces());
                (forward, failing(&self.question, &parts, &self.lead))
            }
            Unshared::Reserved => {
                marks.set(place.lasting_key(), true);
                (Forward::Uncacheable(Some("authorization")), Produced::Alone(Alone::Reserved))
            }
            Unshared::Uncacheable(why) => {
                marks.set(place.lasting_key(), false);
                (Forward::Uncacheable(Some(why)), Produced::Alone(Alone::Uncacheable))
            }
        };
        let response = Response::from_parts(parts, body);
        drop(answer.send(Ok(self.http.explained(response, || forward))));
        produced
    }

    /// Shares a response while its body arrives, with the caller that leads and with others.
    fn announce<E>(
        &self,
        parts: Parts,
        body: ResponseBody,
        mut freshness: Freshness,
        variant: Option<Variant>,
        answer: oneshot::Sender<CallResult<E>>,
    ) -> (Arc<StreamedResponse>, Collector) {
        let (settings, lead) = (&self.http.0, &self.lead);
        // The longest lifetime begins with the head, as the response's own does.
        let longest = settings.cache.settings().options.windows.fresh;
        freshness.lifetime = freshness.lifetime.min(longest);
        let announced = content_length(&parts.headers).unwrap_or_default();
        let limits = BodyLimits {
            size: settings.most_of_body(&parts.headers),
            total: settings.body_limit,
            finish_unread: !settings.cache.settings().cancels_abandoned,
        };
        let (body, collector) = SharedBody::new(body, announced, limits);
        let forward = self.place.forward(lead.replaces());
        let head = ResponseHead::new(&parts, freshness.age, freshness.only_validates);
        let received = Instant::now();
        let streamed =
            Arc::new(StreamedResponse { head, body, variant, forward, received, freshness });
        if let Ok(response) = streamed.response(true) {
            let is_stored = lead.fence().is_some() && !freshness.lifetime.is_zero();
            let ttl = is_stored.then(|| i64::try_from(freshness.lifetime.as_secs()).ok());
            let (source, forward) = (lead.source(), &streamed.forward);
            let response = self.http.with_source(response, source, ttl.flatten(), forward);
            drop(answer.send(Ok(response)));
        }
        let tags = self.http.tags(&self.question.head, &parts.headers, &GROUPS);
        tags.into_iter().for_each(|tag| lead.tag(tag));
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
        match collector.collect().await {
            Ok(bytes) => {
                let (response, freshness) = streamed.complete(bytes);
                match &streamed.variant {
                    None => {
                        freshness.keep(lead);
                        Ok(Produced::Value(response))
                    }
                    // In a box, which most loads do not need.
                    Some(variant) => {
                        Ok(Box::pin(http.store_below(variant, &response, &freshness, lead)).await)
                    }
                }
            }
            Err(NotCollected::Unfit) => {
                self.end_stored(streamed.head.status).await;
                self.http.0.marks.set(self.place.lasting_key(), false);
                Ok(Produced::Alone(Alone::Uncacheable))
            }
            Err(NotCollected::Unread) => Ok(Produced::Alone(Alone::Reserved)),
            Err(NotCollected::Broken(error)) => {
                let words = "the response body ended with an error";
                Err(Error::with_source(ErrorKind::Load, words, error))
            }
        }
    }

    /// Removes the stored response, if an answer with this status says that it is of no use. One
    /// that is no failure does so (RFC 9111, section 4.3.3), unless it speaks of its caller or of
    /// the moment.
    async fn end_stored(&self, status: StatusCode) {
        let says_nothing =
            status.is_server_error() || matches!(status.as_u16(), 304 | 408 | 425 | 429);
        if self.lead.replaces() && !says_nothing && !self.question.is_authorized() {
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

/// The head of a response that is shared while its body arrives, and the body as far as it has.
pub(super) struct StreamedResponse {
    head: ResponseHead,
    body: Arc<SharedBody>,
    /// Which variant it is, if its flight did not know that.
    pub(super) variant: Option<Variant>,
    /// Why the request was sent that it answers.
    pub(super) forward: Forward,
    received: Instant,
    freshness: Freshness,
}

impl StreamedResponse {
    /// Returns the response for a caller. It is never too late for the caller whose request it
    /// answers, which has the trailers, too.
    ///
    /// Fails with the error by which the body broke off in time, or with none if it is too late.
    pub(super) fn response(
        &self,
        is_own: bool,
    ) -> Result<Response<ResponseBody>, Option<BodyError>> {
        if !is_own && self.late().is_some() {
            return Err(None);
        }
        let age = self.freshness.age.saturating_add(self.received.elapsed().as_secs());
        let age = Some(age).filter(|age| *age > 0);
        Ok(self.head.clone().with_age(self.body.reader(is_own)?, age))
    }

    /// Returns for how long the response is no longer fresh. It always is if it is for those only
    /// that ask meanwhile.
    fn late(&self) -> Option<Duration> {
        let lifetime = Some(self.freshness.lifetime).filter(|lifetime| !lifetime.is_zero())?;
        self.received.elapsed().checked_sub(lifetime)
    }

    /// Returns the whole response, and its freshness. Its lifetime began with its head.
    fn complete(&self, body: Bytes) -> (CachedResponse, Freshness) {
        let (took, late) = (self.received.elapsed(), self.late().unwrap_or_default());
        let mut head = self.head.clone();
        head.age = head.age.saturating_add(took.as_secs());
        head.late = late.as_millis().try_into().unwrap_or(u32::MAX);
        let response = CachedResponse { head: Arc::new(head), body };
        let mut freshness = self.freshness;
        freshness.lifetime = freshness.lifetime.saturating_sub(took);
        (response, freshness)
    }
}
