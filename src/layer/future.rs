use std::{
    fmt,
    future::poll_fn,
    pin::Pin,
    task::{Context, Poll},
};

use tower_service::Service;

/// Resolves to the response of a [`Bellwether`](super::Bellwether) service.
///
/// Dropping it never affects another caller.
#[must_use = "futures do nothing unless they are polled"]
pub struct ResponseFuture<Res, E>(Pin<Box<dyn Future<Output = Result<Res, E>> + Send>>);

impl<Res, E> ResponseFuture<Res, E> {
    pub(super) fn new(response: impl Future<Output = Result<Res, E>> + Send + 'static) -> Self {
        Self(Box::pin(response))
    }
}

impl<Res, E> Future for ResponseFuture<Res, E> {
    type Output = Result<Res, E>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.as_mut().poll(context)
    }
}

impl<Res, E> fmt::Debug for ResponseFuture<Res, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}

/// Makes a clone of a service ready, then calls it.
pub(super) async fn oneshot<S, Req>(mut clone: S, request: Req) -> Result<S::Response, S::Error>
where
    S: Service<Req>,
{
    poll_fn(|context| clone.poll_ready(context)).await?;
    let response = clone.call(request);
    // The clone may hold a permit or a slot of the inner service. It must not outlive the call.
    drop(clone);
    response.await
}
