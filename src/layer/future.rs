//! The response future of both services.

use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll, ready},
};

use pin_project::pin_project;

/// The response future of a [`Bellwether`](super::Bellwether).
///
/// `P` is the future of a request that passes to the inner service: [`ValuesPass`] or `HttpPass`.
/// That future is polled in place. The future of a request that takes part is in a box.
///
/// [`ValuesPass`]: super::ValuesPass
#[must_use = "futures do nothing unless you `.await` or poll them"]
#[pin_project]
pub struct ResponseFuture<P: Future> {
    #[pin]
    state: State<P>,
}

#[pin_project(project = StateProjection)]
enum State<P: Future> {
    /// The request takes part, and may share a response.
    Sharing(SharingFuture<P>),
    /// The request passes. The inner service answers it.
    Passing(#[pin] P),
    /// The caller has its answer. Nothing of the call is left, such as a permit.
    Answered,
}

/// The future of a request that takes part. The box hides a type without a name.
type SharingFuture<P> = Pin<Box<dyn Future<Output = ShareEnd<P>> + Send>>;

/// What became of a request that takes part.
pub(super) enum ShareEnd<P: Future> {
    /// The request has its answer.
    Answered(P::Output),
    /// There was nothing to share, so the request passes. Values are always shared.
    #[cfg(feature = "http")]
    Passes(P),
}

impl<P: Future> ResponseFuture<P> {
    pub(super) fn sharing(future: impl Future<Output = ShareEnd<P>> + Send + 'static) -> Self {
        Self { state: State::Sharing(Box::pin(future)) }
    }

    pub(super) fn passing(pass: P) -> Self {
        Self { state: State::Passing(pass) }
    }
}

impl<P: Future> Future for ResponseFuture<P> {
    type Output = P::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<P::Output> {
        let mut state = self.project().state;
        if let StateProjection::Sharing(sharing) = state.as_mut().project() {
            match ready!(sharing.as_mut().poll(cx)) {
                ShareEnd::Answered(answer) => {
                    state.set(State::Answered);
                    return Poll::Ready(answer);
                }
                #[cfg(feature = "http")]
                ShareEnd::Passes(pass) => state.set(State::Passing(pass)),
            }
        }
        if let StateProjection::Passing(pass) = state.as_mut().project() {
            let answer = ready!(pass.poll(cx));
            state.set(State::Answered);
            return Poll::Ready(answer);
        }
        // The caller has had its answer.
        Poll::Pending
    }
}

impl<P: Future> fmt::Debug for ResponseFuture<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}
