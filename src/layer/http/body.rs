use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::{Buf, Bytes};
use http_body::{Body, Frame, SizeHint};
use pin_project::pin_project;

use super::watch::Watch;

/// The body of a response: either shared bytes, or the body of the inner service.
///
/// Its errors are those of the inner body.
#[pin_project]
pub struct ResponseBody<B: Body> {
    #[pin]
    source: BodySource<B>,
}

#[pin_project(project = BodySourceProjection)]
enum BodySource<B: Body> {
    /// All bytes are here.
    Whole { bytes: Option<Bytes> },
    /// The inner body, of which nothing was read.
    Untouched {
        #[pin]
        body: B,
    },
    /// The inner body, whose frames are watched.
    Watched {
        #[pin]
        body: B,
        watch: Box<Watch>,
    },
    /// The inner body, of which a part was collected.
    Partial { body: PartialBody<B> },
}

/// A body of which a part was collected.
pub(super) struct PartialBody<B: Body> {
    /// The part that was collected.
    pub(super) collected: Bytes,
    /// The frame or error that follows it. It was read but not collected.
    pub(super) next: Option<Result<Frame<Bytes>, B::Error>>,
    /// The rest, or `None` at the end of the body.
    pub(super) rest: Option<Pin<Box<B>>>,
}

impl<B: Body> ResponseBody<B> {
    pub(super) fn whole(bytes: Bytes) -> Self {
        Self { source: BodySource::Whole { bytes: Some(bytes).filter(|bytes| !bytes.is_empty()) } }
    }

    pub(super) fn untouched(body: B) -> Self {
        Self { source: BodySource::Untouched { body } }
    }

    pub(super) fn watched(body: B, mut watch: Watch) -> Self {
        if body.is_end_stream() {
            watch.end();
        }
        Self { source: BodySource::Watched { body, watch: Box::new(watch) } }
    }

    pub(super) fn partial(body: PartialBody<B>) -> Self {
        Self { source: BodySource::Partial { body } }
    }
}

impl<B: Body> Body for ResponseBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        match self.project().source.project() {
            BodySourceProjection::Whole { bytes } => {
                Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes))))
            }
            BodySourceProjection::Untouched { body } => {
                body.poll_frame(context).map(|frame| frame.map(|frame| frame.map(in_bytes)))
            }
            BodySourceProjection::Watched { mut body, watch } => {
                let frame = ready!(body.as_mut().poll_frame(context));
                let frame = frame.map(|frame| frame.map(in_bytes));
                frame.iter().for_each(|frame| watch.frame(frame));
                // A caller need not poll again after the last frame.
                if frame.is_none() || body.is_end_stream() {
                    watch.end();
                }
                Poll::Ready(frame)
            }
            BodySourceProjection::Partial { body } => body.poll_frame(context),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.source {
            BodySource::Whole { bytes } => bytes.is_none(),
            BodySource::Untouched { body } | BodySource::Watched { body, .. } => {
                body.is_end_stream()
            }
            BodySource::Partial { body } => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.source {
            BodySource::Whole { bytes } => {
                SizeHint::with_exact(bytes.as_ref().map_or(0, Bytes::len) as u64)
            }
            BodySource::Untouched { body } | BodySource::Watched { body, .. } => body.size_hint(),
            BodySource::Partial { body } => body.size_hint(),
        }
    }
}

impl<B: Body> PartialBody<B> {
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

    fn is_end_stream(&self) -> bool {
        self.collected.is_empty()
            && self.next.is_none()
            && self.rest.as_ref().is_none_or(|rest| rest.is_end_stream())
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

/// Copies the data of a frame into one `Bytes`. `Bytes` itself is not copied.
pub(super) fn in_bytes<D: Buf>(frame: Frame<D>) -> Frame<Bytes> {
    frame.map_data(|mut data| data.copy_to_bytes(data.remaining()))
}

impl<B: Body> fmt::Debug for ResponseBody<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let source = match &self.source {
            BodySource::Whole { .. } => "Whole",
            BodySource::Untouched { .. } => "Untouched",
            BodySource::Watched { .. } => "Watched",
            BodySource::Partial { .. } => "Partial",
        };
        f.debug_struct("ResponseBody").field("source", &source).finish_non_exhaustive()
    }
}
