//! The way of a request without the cache.

use http::{HeaderValue, Request, Response, StatusCode};
use http_body::Body;
use tower_service::Service;

use super::{
    Http, ResponseBody, invalidation::Target, marks::Whose, reason::Reason,
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

    /// Calls the inner service for a request with a key. Its answer renews or ends the mark of the
    /// key.
    pub(super) async fn pass_marked<S, B, ResBody>(
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
        let (rules, marks) = (self.0.response_rules(&request), &self.0.marks);
        let (parts, body) = oneshot(inner, request).await?.into_parts();
        match rules.classify(&parts, body.size_hint().lower()) {
            // They say nothing of the whole response, which the load of a flight asks for.
            _ if matches!(parts.status, StatusCode::NOT_MODIFIED | StatusCode::PARTIAL_CONTENT) => {
            }
            ResponseClass::Shareable(_) => marks.end(&key),
            ResponseClass::Uncacheable => marks.renew(&key, Whose::All),
            ResponseClass::Reserved => marks.renew(&key, Whose::Authorized),
            ResponseClass::Failing => {}
        }
        let response = Response::from_parts(parts, ResponseBody::untouched(body));
        Ok(self.explained(response, &why))
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
