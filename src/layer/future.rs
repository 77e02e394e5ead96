use std::{
    fmt,
    future::poll_fn,
    pin::Pin,
    task::{Context, Poll},
};

use tower_service::Service;

/// The answer to a request of a [`Bellwether`](super::Bellwether) service.
///
/// Dropping it costs no other caller anything.
#[must_use = "futures do nothing unless they are polled"]
pub struct ResponseFuture<Res, E>(Pin<Box<dyn Future<Output = Result<Res, E>> + Send>>);

impl<Res, E> ResponseFuture<Res, E> {
    pub(super) fn new(answer: impl Future<Output = Result<Res, E>> + Send + 'static) -> Self {
        Self(Box::pin(answer))
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

/// Calls a clone of a service, once it is ready.
pub(super) async fn oneshot<S, Req>(mut clone: S, request: Req) -> Result<S::Response, S::Error>
where
    S: Service<Req>,
{
    poll_fn(|context| clone.poll_ready(context)).await?;
    let answer = clone.call(request);
    // A clone that lived on could keep what it holds from others.
    drop(clone);
    answer.await
}
