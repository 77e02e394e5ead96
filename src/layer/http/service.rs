//! The service, which chooses the way of each request, and the way without the cache.

use std::{
    sync::Arc,
    task::{Context, Poll},
};

use http::{Request, Response, StatusCode};
use http_body::Body;
use tokio::time::Instant;
use tower_service::Service;

use super::{
    Http, ResponseBody, key,
    marks::Whose,
    question::Question,
    responses::ResponseClass,
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
        let (head, body) = request.into_parts();
        let question = Arc::new(Question::new(head));
        match http.admit(&question, &body) {
            Ok(place) => ResponseFuture::new(share(http, place, question, body, inner)),
            Err(why) => {
                let purged = matches!(why, Forward::Method).then(|| http.purged(&question.head));
                ResponseFuture::new(async move {
                    match purged.flatten() {
                        Some(purged) => Ok(http.purge(purged).await),
                        None => http.pass(None, question, body, inner, why).await,
                    }
                })
            }
        }
    }
}

impl Http {
    /// Returns the place of a request that takes part.
    fn admit(&self, question: &Question, body: &impl Body) -> Result<Place, Forward> {
        let parts = &question.head;
        self.0.requests.check(parts, body, &self.0.policy)?;
        let key = self.key(parts).ok_or(Forward::Key)?;
        let texts = match self.0.key_parts.is_empty() || self.0.policy.coalesces {
            true => None,
            false if self.0.cache.key_limit() < KEY_LENGTH => return Err(Forward::Key),
            false => Some(key::texts(parts, &self.0.key_parts).ok_or(Forward::Key)?),
        };
        Ok(Place::new(key, texts))
    }

    /// Calls the inner service as if the layer were not there. The answer to a request of a place
    /// renews or ends the mark of that.
    pub(super) async fn pass<S, B>(
        &self,
        place: Option<&Place>,
        question: Arc<Question>,
        body: B,
        inner: S,
        why: Forward,
    ) -> CallResult<S, B>
    where
        S: InnerHttp<B>,
    {
        self.count(&why);
        let is_safe = question.head.method.is_safe();
        let kept = (place.is_some() || !is_safe).then(|| question.clone());
        let begun = Instant::now();
        let request = Request::from_parts(Arc::unwrap_or_clone(question).head, body);
        let (parts, body) = oneshot(inner, request).await?.into_parts();
        if let Some(question) = kept {
            if !is_safe {
                self.invalidate(&question.head, parts.status, &parts.headers).await;
            }
            if let Some(place) = place {
                let class = self.classify(&question, begun.elapsed(), &parts, &body);
                self.learn(place.lasting_key(), class, parts.status);
            }
        }
        let response = Response::from_parts(parts, ResponseBody::untouched(body));
        Ok(self.explained(response, || why))
    }

    /// Renews or ends the mark of a key by the answer to a request that went alone.
    fn learn(&self, key: &Key, class: ResponseClass, status: StatusCode) {
        // They say nothing of the whole response, which the load of a flight asks for.
        if matches!(status, StatusCode::NOT_MODIFIED | StatusCode::PARTIAL_CONTENT) {
            return;
        }
        match class {
            ResponseClass::Shareable(_) => self.0.marks.end(key),
            ResponseClass::Uncacheable => self.0.marks.renew(key, Whose::All),
            ResponseClass::Reserved => self.0.marks.renew(key, Whose::Authorized),
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
