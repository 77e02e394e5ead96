//! The service, which chooses the way of each request, and the way without the cache.

use std::task::{Context, Poll};

use http::{HeaderValue, Request, Response, StatusCode};
use http_body::Body;
use tower_service::Service;

use super::{
    Http, ResponseBody, invalidation,
    marks::Whose,
    responses::ResponseClass,
    share::{answer_respelled, share},
    status::Reason,
    variants::Place,
};
use crate::{
    error::BoxError,
    layer::{Bellwether, ResponseFuture, future::oneshot},
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

impl<S, B, ResBody> Service<Request<B>> for Bellwether<S, Http>
where
    B: Body + Send + 'static,
    S: Service<Request<B>, Response = Response<ResBody>> + Clone + Send + 'static,
    S::Error: Send + 'static,
    S::Future: Send + 'static,
    ResBody: Body + Send + 'static,
    ResBody::Error: Into<BoxError>,
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
            && let Some(purged) = http.0.purged(&parts)
        {
            return ResponseFuture::new(async move { Ok(http.purge(purged).await) });
        }
        let request = Request::from_parts(parts, body);
        let (place, asked) = match admitted {
            Ok(admitted) => admitted,
            Err(why) => {
                return ResponseFuture::new(async move { http.pass(inner, request, why).await });
            }
        };
        if asked.is_respelled {
            return ResponseFuture::new(answer_respelled(http, place, asked, inner, request));
        }
        if http.0.goes_alone(place.lasting_key(), &asked) {
            return ResponseFuture::new(async move {
                http.pass_marked(&place, inner, request, Reason::Uncacheable).await
            });
        }
        ResponseFuture::new(share(http, place, asked, inner, request))
    }
}

impl Http {
    /// Calls the inner service as if the layer were not there.
    pub(super) async fn pass<S, B>(
        &self,
        inner: S,
        request: Request<B>,
        why: Reason,
    ) -> CallResult<S, B>
    where
        S: InnerHttp<B>,
    {
        self.count(&why);
        let target = invalidation::target(&request);
        let response = oneshot(inner, request).await?;
        if let Some(target) = target {
            let (status, headers) = (response.status(), response.headers());
            self.invalidate(&target, status, headers).await;
        }
        Ok(self.explained(response, &why).map(ResponseBody::untouched))
    }

    /// Calls the inner service for a request of a place. Its answer renews or ends the mark of the
    /// place.
    pub(super) async fn pass_marked<S, B>(
        &self,
        place: &Place,
        inner: S,
        request: Request<B>,
        why: Reason,
    ) -> CallResult<S, B>
    where
        S: InnerHttp<B>,
    {
        self.count(&why);
        let (rules, marks, key) =
            (self.0.response_rules(&request), &self.0.marks, place.lasting_key());
        let (parts, body) = oneshot(inner, request).await?.into_parts();
        match rules.classify(&parts, body.size_hint().lower()) {
            // They say nothing of the whole response, which the load of a flight asks for.
            _ if matches!(parts.status, StatusCode::NOT_MODIFIED | StatusCode::PARTIAL_CONTENT) => {
            }
            ResponseClass::Shareable(_) => marks.end(key),
            ResponseClass::Uncacheable => marks.renew(key, Whose::All),
            ResponseClass::Reserved => marks.renew(key, Whose::Authorized),
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
        if self.0.tells_status
            && let Ok(value) = HeaderValue::from_str(&format!("bellwether; {why}"))
        {
            response.headers_mut().append("cache-status", value);
        }
        response
    }
}
