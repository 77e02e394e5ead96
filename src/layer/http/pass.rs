//! The way of a request without the cache.

use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body::Body;
use tower_service::Service;

use super::{
    Http, ResponseBody, body::watch::Watch, invalidation::Target, reason::Reason, recent::Turnout,
    responses::ResponseClass,
};
use crate::{key::Key, layer::future::oneshot};

/// The result that a caller of the layer receives.
pub(super) type CallResult<B, E> = Result<Response<ResponseBody<B>>, E>;

impl Http {
    /// Calls the inner service as if the layer were not there.
    pub(super) async fn pass<S, B, ResBody>(
        &self,
        inner: S,
        request: Request<B>,
        why: Reason,
    ) -> CallResult<ResBody, S::Error>
    where
        S: Service<Request<B>, Response = Response<ResBody>>,
        ResBody: Body,
    {
        self.count(&why);
        let target = Target::of(&request);
        let response = oneshot(inner, request).await?;
        if let Some(target) = target {
            let (status, headers) = (response.status(), response.headers());
            self.invalidate(&target, status, headers).await;
        }
        Ok(self.explained(response, &why).map(ResponseBody::untouched))
    }

    /// Calls the inner service for a request with a key, and records how its answer turns out.
    pub(super) async fn pass_watched<S, B, ResBody>(
        &self,
        key: Key,
        inner: S,
        request: Request<B>,
        why: Reason,
    ) -> CallResult<ResBody, S::Error>
    where
        S: Service<Request<B>, Response = Response<ResBody>>,
        ResBody: Body,
    {
        self.count(&why);
        let settings = &self.0;
        let rules = settings.response_rules(&request);
        let is_head = request.method() == Method::HEAD;
        let response = oneshot(inner, request).await?;
        let (parts, body) = response.into_parts();
        let record = |turnout| settings.recent.record_alone(&key, turnout, rules.sent);
        let body = match rules.classify(&parts, body.size_hint().lower()) {
            // They say nothing of the whole response, which the load of a flight asks for.
            _ if matches!(parts.status, StatusCode::NOT_MODIFIED | StatusCode::PARTIAL_CONTENT) => {
                ResponseBody::untouched(body)
            }
            ResponseClass::Shareable(_) if is_head => {
                record(Turnout::Shareable);
                ResponseBody::untouched(body)
            }
            ResponseClass::Shareable(_) => {
                let limits = settings.body_limits();
                let watch =
                    Watch::new(settings.recent.clone(), key.clone(), limits, &parts, rules.sent);
                ResponseBody::watched(body, watch)
            }
            ResponseClass::Uncacheable => {
                record(Turnout::Uncacheable);
                ResponseBody::untouched(body)
            }
            ResponseClass::Reserved => {
                record(Turnout::Reserved);
                ResponseBody::untouched(body)
            }
            ResponseClass::Failing => {
                record(Turnout::Failing);
                ResponseBody::untouched(body)
            }
        };
        Ok(self.explained(Response::from_parts(parts, body), &why))
    }

    fn count(&self, why: &Reason) {
        let counters = self.0.cache.counters();
        counters.passed.add();
        match why {
            Reason::Method => counters.passed_method.add(),
            Reason::Uncacheable => counters.passed_uncacheable.add(),
            Reason::Full => counters.passed_overloaded.add(),
            _ => {}
        }
    }

    /// Adds the header that says why, if that was asked for.
    pub(super) fn explained<B>(&self, mut response: Response<B>, why: &Reason) -> Response<B> {
        if self.0.explain
            && let Ok(value) = HeaderValue::from_str(&format!("bellwether; {why}"))
        {
            response.headers_mut().append("cache-status", value);
        }
        response
    }
}
