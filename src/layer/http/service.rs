//! The service, which chooses the way of each request.

use std::task::{Context, Poll};

use http::{Request, Response};
use http_body::Body;
use tower_service::Service;

use super::{
    Http, ResponseBody,
    asked::Asked,
    join::{answer_respelled, share},
    reason::Reason,
    variants::Place,
};
use crate::{
    error::BoxError,
    layer::{Bellwether, ResponseFuture},
};

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
        let (key, mut asked) = match admitted {
            Ok(admitted) => admitted,
            Err(why) => {
                return ResponseFuture::new(async move { http.pass(inner, request, why).await });
            }
        };
        if !asked.is_respelled && http.0.goes_alone(&key, &asked) {
            return ResponseFuture::new(async move {
                http.pass_marked(key, inner, request, Reason::Uncacheable).await
            });
        }
        let answer = |http: Http, place: Place, asked: Asked| -> Self::Future {
            match asked.is_respelled {
                true => ResponseFuture::new(answer_respelled(http, place, asked, inner, request)),
                false => ResponseFuture::new(share(http, place, asked, inner, request)),
            }
        };
        match asked.resource.take() {
            None => answer(http, Place::resource(key), asked),
            Some(resource) => ResponseFuture::new(async move {
                let place = http.in_generation(&resource, key).await;
                answer(http, place, asked).await
            }),
        }
    }
}
