use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::{Buf, Bytes};
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

pin_project! {
    /// The body of an answer: one that is shared, or the inner service's own.
    ///
    /// Its errors are those of the inner body.
    pub struct ResponseBody<B: Body> {
        #[pin]
        state: State<B>,
    }
}

pin_project! {
    #[project = StateProjection]
    enum State<B: Body> {
        /// All bytes are here.
        Whole { bytes: Option<Bytes> },
        /// The inner body, untouched.
        Untouched { #[pin] body: B },
        /// The inner body, of which a part was collected already.
        Begun { begun: Begun<B> },
    }
}

/// A body of which a part was collected.
pub(super) struct Begun<B: Body> {
    /// What was collected.
    pub(super) collected: Bytes,
    /// What came after it and was not collected.
    pub(super) next: Option<Result<Frame<Bytes>, B::Error>>,
    /// The rest, unless it has ended.
    pub(super) rest: Option<Pin<Box<B>>>,
}

impl<B: Body> ResponseBody<B> {
    pub(super) fn whole(bytes: Bytes) -> Self {
        Self { state: State::Whole { bytes: Some(bytes).filter(|bytes| !bytes.is_empty()) } }
    }

    pub(super) fn untouched(body: B) -> Self {
        Self { state: State::Untouched { body } }
    }

    pub(super) fn begun(begun: Begun<B>) -> Self {
        Self { state: State::Begun { begun } }
    }
}

impl<B: Body> Body for ResponseBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        match self.project().state.project() {
            StateProjection::Whole { bytes } => {
                Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes))))
            }
            StateProjection::Untouched { body } => {
                body.poll_frame(context).map(|frame| frame.map(|frame| frame.map(in_bytes)))
            }
            StateProjection::Begun { begun } => begun.poll_frame(context),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.state {
            State::Whole { bytes } => bytes.is_none(),
            State::Untouched { body } => body.is_end_stream(),
            State::Begun { begun } => {
                begun.collected.is_empty()
                    && begun.next.is_none()
                    && begun.rest.as_ref().is_none_or(|rest| rest.is_end_stream())
            }
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.state {
            State::Whole { bytes } => {
                SizeHint::with_exact(bytes.as_ref().map_or(0, Bytes::len) as u64)
            }
            State::Untouched { body } => body.size_hint(),
            State::Begun { begun } => begun.size_hint(),
        }
    }
}

impl<B: Body> Begun<B> {
    fn poll_frame(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        if !self.collected.is_empty() {
            return Poll::Ready(Some(Ok(Frame::data(std::mem::take(&mut self.collected)))));
        }
        if let Some(next) = self.next.take() {
            return Poll::Ready(Some(next));
        }
        let Some(rest) = &mut self.rest else { return Poll::Ready(None) };
        let frame = ready!(rest.as_mut().poll_frame(context));
        if frame.is_none() {
            self.rest = None;
        }
        Poll::Ready(frame.map(|frame| frame.map(in_bytes)))
    }

    fn size_hint(&self) -> SizeHint {
        let next = match &self.next {
            Some(Ok(frame)) => frame.data_ref().map_or(0, Bytes::len),
            Some(Err(_)) | None => 0,
        };
        let here = (self.collected.len() + next) as u64;
        let rest = self.rest.as_ref().map_or(SizeHint::with_exact(0), |rest| rest.size_hint());
        let mut hint = SizeHint::new();
        hint.set_lower(here.saturating_add(rest.lower()));
        if let Some(upper) = rest.upper().and_then(|upper| upper.checked_add(here)) {
            hint.set_upper(upper);
        }
        hint
    }
}

/// The same frame, its data as one piece.
pub(super) fn in_bytes<D: Buf>(frame: Frame<D>) -> Frame<Bytes> {
    frame.map_data(|mut data| data.copy_to_bytes(data.remaining()))
}

impl<B: Body> fmt::Debug for ResponseBody<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match &self.state {
            State::Whole { .. } => "Whole",
            State::Untouched { .. } => "Untouched",
            State::Begun { .. } => "Begun",
        };
        f.debug_struct("ResponseBody").field("state", &state).finish_non_exhaustive()
    }
}
