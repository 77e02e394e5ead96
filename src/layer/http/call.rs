//! The call of the inner service.

use http::{Request, Response, request};
use http_body::Body;
use tower::{Service, util::Oneshot};

use super::body::{LayerBody, ServiceBody};
use crate::error::BoxError;

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
        let response = Oneshot::new(inner, request).await?;
        Ok(response.map(ServiceBody::new))
    }
}
