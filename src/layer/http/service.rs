//! The service, which chooses the way of each request, and the way without the cache.

use std::task::{Context, Poll};

use http::{Request, Response, StatusCode, request, response::Parts};
use http_body::Body;
use tower_service::Service;

use super::{
    Http, ResponseBody,
    asked::Asked,
    invalidation, key,
    marks::Whose,
    responses::{ResponseClass, SentRequest},
    share::share,
    status::Forward,
    variants::{KEY_LENGTH, Place},
};
use crate::{
    error::BoxError,
    key::Key,
    layer::{Bellwether, ResponseFuture, oneshot},
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
        let admitted = http.admit(&parts, &body);
        if let Err(Forward::Method) = admitted
            && let Some(purged) = http.purged(&parts)
        {
            return ResponseFuture::new(async move { Ok(http.purge(purged).await) });
        }
        let request = Request::from_parts(parts, body);
        match admitted {
            Err(why) => {
                ResponseFuture::new(async move { http.pass(None, inner, request, why).await })
            }
            Ok((place, asked)) => ResponseFuture::new(share(http, place, asked, inner, request)),
        }
    }
}

impl Http {
    /// Returns the place of a request that takes part, and what it asks for.
    fn admit(&self, parts: &request::Parts, body: &impl Body) -> Result<(Place, Asked), Forward> {
        self.0.requests.check(parts, body, &self.0.policy)?;
        let key = self.key(parts).ok_or(Forward::Key)?;
        let texts = match self.0.key_parts.is_empty() || self.0.policy.coalesces {
            true => None,
            false if self.0.cache.key_limit() < KEY_LENGTH => return Err(Forward::Key),
            false => Some(key::texts(parts, &self.0.key_parts).ok_or(Forward::Key)?),
        };
        Ok((Place::new(key, texts), Asked::of(parts, key::is_respelled(parts))))
    }

    /// Calls the inner service as if the layer were not there. The answer to a request of a place
    /// renews or ends the mark of that.
    pub(super) async fn pass<S, B>(
        &self,
        place: Option<&Place>,
        inner: S,
        request: Request<B>,
        why: Forward,
    ) -> CallResult<S, B>
    where
        S: InnerHttp<B>,
    {
        self.count(&why);
        let target = invalidation::target(&request);
        let sent = place.map(|place| (place.lasting_key(), SentRequest::new(&request)));
        let (parts, body) = oneshot(inner, request).await?.into_parts();
        if let Some(target) = target {
            self.invalidate(&target, parts.status, &parts.headers).await;
        }
        if let Some((key, sent)) = sent {
            self.learn(key, &sent, &parts, body.size_hint().lower());
        }
        let response = Response::from_parts(parts, ResponseBody::untouched(body));
        Ok(self.explained(response, || why))
    }

    /// Renews or ends the mark of a key by the answer to a request that went alone.
    fn learn(&self, key: &Key, sent: &SentRequest, answer: &Parts, least: u64) {
        // They say nothing of the whole response, which the load of a flight asks for.
        if matches!(answer.status, StatusCode::NOT_MODIFIED | StatusCode::PARTIAL_CONTENT) {
            return;
        }
        let marks = &self.0.marks;
        match self.classify(sent, answer, least) {
            ResponseClass::Shareable(_) => marks.end(key),
            ResponseClass::Uncacheable => marks.renew(key, Whose::All),
            ResponseClass::Reserved => marks.renew(key, Whose::Authorized),
            ResponseClass::Failing => {}
        }
    }

    fn count(&self, why: &Forward) {
        let counters = self.0.cache.counters();
        counters.passed.add();
        match why {
            Forward::Method => counters.passed_method.add(),
            Forward::Uncacheable => counters.passed_uncacheable.add(),
            Forward::Full => counters.passed_overloaded.add(),
            _ => {}
        }
    }
}
