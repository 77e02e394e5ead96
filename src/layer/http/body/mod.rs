use std::{
    fmt,
    ops::Range,
    pin::Pin,
    task::{Context, Poll, ready},
};

pub(super) mod board;
mod buffer;
pub(super) mod collect;
pub(super) mod error;
mod seats;
pub(super) mod shared;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use pin_project::pin_project;

use self::{
    error::BodyError,
    shared::{Reader, in_bytes},
};
use crate::error::BoxError;

/// The body of a response: stored bytes, or the body of the inner service.
///
/// The callers of a process may read one body of the inner service together, each at its own pace.
/// If it breaks off, all of them get its [error](BodyError).
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
    /// The inner body, which others may read too.
    Shared { reader: Reader },
}

impl<B: Body> ResponseBody<B> {
    pub(super) fn whole(bytes: Bytes) -> Self {
        Self { source: BodySource::Whole { bytes: Some(bytes).filter(|bytes| !bytes.is_empty()) } }
    }

    pub(super) fn untouched(body: B) -> Self {
        Self { source: BodySource::Untouched { body } }
    }

    pub(super) fn shared(reader: Reader) -> Self {
        Self { source: BodySource::Shared { reader } }
    }

    /// Returns the length of a body that others may read too, if it is known.
    pub(super) fn shared_length(&self) -> Option<usize> {
        let BodySource::Shared { reader } = &self.source else { return None };
        reader.size_hint().exact()?.try_into().ok()
    }

    /// Returns a part of a body that others may read too, and any other body as it is.
    pub(super) fn part(self, range: Range<usize>) -> Self {
        match self.source {
            BodySource::Shared { reader } => Self::shared(reader.part(range)),
            source => Self { source },
        }
    }
}

/// Returns an empty body, which middlewares such as CORS answer with.
impl<B: Body> Default for ResponseBody<B> {
    fn default() -> Self {
        Self::whole(Bytes::new())
    }
}

impl<B> Body for ResponseBody<B>
where
    B: Body,
    B::Error: Into<BoxError>,
{
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        match self.project().source.project() {
            BodySourceProjection::Whole { bytes } => {
                Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes))))
            }
            BodySourceProjection::Untouched { body } => {
                let frame = ready!(body.poll_frame(context));
                Poll::Ready(frame.map(|frame| frame.map(in_bytes).map_err(BodyError::service)))
            }
            BodySourceProjection::Shared { reader } => reader.poll_frame(context),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.source {
            BodySource::Whole { bytes } => bytes.is_none(),
            BodySource::Untouched { body } => body.is_end_stream(),
            BodySource::Shared { reader } => reader.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.source {
            BodySource::Whole { bytes } => {
                SizeHint::with_exact(bytes.as_ref().map_or(0, Bytes::len) as u64)
            }
            BodySource::Untouched { body } => body.size_hint(),
            BodySource::Shared { reader } => reader.size_hint(),
        }
    }
}

impl<B: Body> fmt::Debug for ResponseBody<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let source = match &self.source {
            BodySource::Whole { .. } => "Whole",
            BodySource::Untouched { .. } => "Untouched",
            BodySource::Shared { .. } => "Shared",
        };
        f.debug_struct("ResponseBody").field("source", &source).finish_non_exhaustive()
    }
}
