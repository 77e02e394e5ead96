//! Requests that say how fresh a response they want, and those for a stored response alone.

use bytes::Bytes;
use http::{HeaderValue, Request, Response, StatusCode, header::CACHE_CONTROL};
use http_body::Body;
use tower_service::Service;
use tracing::debug;

use super::{
    CachedResponse, Http, ResponseBody,
    asked::Asked,
    join::{share, share_variant},
    pass::CallResult,
    reason::Reason,
    status::Forward,
    variants::{Place, selector::Selector},
};
use crate::{cache::Loaded, error::BoxError};

/// Answers a request with the stored response, or with a newer one if the request wants that.
pub(super) async fn honour<S, B, ResBody>(
    http: Http,
    resource: Place,
    mut asked: Asked,
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
    let Some(wanted) = asked.wanted.take() else {
        return share(http, resource, asked, inner, request).await;
    };
    let loads = !wanted.only_if_cached && !asked.is_respelled;
    if loads && http.0.goes_alone(resource.lasting_key(), &asked) {
        let key = resource.lasting_key().clone();
        return http.pass_watched(key, inner, request, Reason::Uncacheable).await;
    }
    let mut place = resource.clone();
    let mut stored = http.stored(&place).await;
    let selector = stored.as_ref().and_then(|stored| Selector::of(stored.value()));
    if let Some(selector) = &selector {
        place = place.variant(selector.clone(), request.headers());
        stored = http.stored(&place).await;
    }
    let is_stored = stored.is_some();
    asked.forward = stored.as_ref().map(Forward::past);
    if let Some(stored) = stored.filter(|stored| wanted.accepts(stored)) {
        return Ok(http.replay(&place, &asked, stored).map(ResponseBody::whole));
    }
    if wanted.only_if_cached {
        return Ok(not_stored().map(ResponseBody::whole));
    }
    if asked.is_respelled {
        return http.pass(inner, request, Reason::Key).await;
    }
    asked.is_anew = wanted.needs_load(is_stored);
    match selector {
        Some(selector) => share_variant(http, resource, selector, asked, inner, request).await,
        None => share(http, resource, asked, inner, request).await,
    }
}

impl Http {
    /// Returns the response that is stored at a place. It may be stale.
    async fn stored(&self, place: &Place) -> Option<Loaded<CachedResponse>> {
        let stored = self.0.cache.peek(&place.key).await;
        stored.inspect_err(|error| debug!(%error, "the stored response is not known")).ok()?
    }
}

/// Returns the answer to a request for a stored response, if there is none (RFC 9111, section
/// 5.2.1.7).
fn not_stored() -> Response<Bytes> {
    let mut response = Response::new(Bytes::new());
    *response.status_mut() = StatusCode::GATEWAY_TIMEOUT;
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}
