//! The bodies that callers receive.

use std::{
    fmt, mem,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use pin_project::pin_project;

use super::{
    error::BodyError,
    reader::{JoinedBody, NotJoined, Reader},
    service_body::{ServiceBody, into_bytes},
    shared_body::SharedBody,
};
use crate::error::BoxError;

/// The body of a response. `B` is the body of the inner service.
///
/// The body of a response to a request that passed is a `B`, in its place. Any other body is stored
/// bytes, or the body of the inner service in a box. The callers of a process may read such a body
/// together, each at its own pace. If the body breaks off, all of them get its [error](BodyError).
///
/// The body is `Send` if `B` is, and `Unpin` if `B` is.
#[pin_project]
pub struct ResponseBody<B> {
    #[pin]
    source: BodySource<B>,
}

#[pin_project(project = SourceProjection)]
enum BodySource<B> {
    /// The body of the inner service, for the caller whose request passed.
    Passed(#[pin] B),
    /// A body that does not depend on `B`, because services of different bodies share one cache.
    Layer(LayerBody),
}

impl<B> ResponseBody<B> {
    pub(in super::super) fn from_passed(body: B) -> Self {
        Self { source: BodySource::Passed(body) }
    }

    pub(in super::super) fn from_layer(body: LayerBody) -> Self {
        Self { source: BodySource::Layer(body) }
    }
}

/// Returns an empty body, which middlewares such as CORS answer with.
impl<B> Default for ResponseBody<B> {
    fn default() -> Self {
        Self::from_layer(LayerBody::default())
    }
}

impl<B> Body for ResponseBody<B>
where
    B: Body<Error: Into<BoxError>>,
{
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        match self.project().source.project() {
            SourceProjection::Passed(body) => body.poll_frame(cx).map(|frame| match frame? {
                Ok(frame) => Some(Ok(frame.map_data(into_bytes))),
                Err(error) => Some(Err(BodyError::service(error))),
            }),
            SourceProjection::Layer(body) => Pin::new(body).poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.source {
            BodySource::Passed(body) => body.is_end_stream(),
            BodySource::Layer(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.source {
            BodySource::Passed(body) => body.size_hint(),
            BodySource::Layer(body) => body.size_hint(),
        }
    }
}

impl<B> fmt::Debug for ResponseBody<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseBody").finish_non_exhaustive()
    }
}

/// The body of a response that the layer has made, has stored, or has called the service for.
pub(in super::super) enum LayerBody {
    /// All bytes are here.
    Whole(Bytes),
    /// The body of the inner service, for one caller.
    Single(ServiceBody),
    /// The body of the inner service, which other callers may read too.
    Shared(Reader),
}

impl LayerBody {
    /// Returns a body from its start on, for the caller whose request the body answers or for
    /// another caller.
    pub(in super::super) fn join(body: &Arc<SharedBody>, is_own: bool) -> Result<Self, NotJoined> {
        match Reader::join(body, is_own)? {
            JoinedBody::Whole(bytes) => Ok(Self::Whole(bytes)),
            JoinedBody::Reading(reader) => Ok(Self::Shared(reader)),
        }
    }

    /// Returns the bytes of a whole body.
    pub(in super::super) fn bytes(&self) -> Option<&Bytes> {
        match self {
            Self::Whole(bytes) => Some(bytes),
            Self::Single(_) | Self::Shared(_) => None,
        }
    }
}

impl Default for LayerBody {
    fn default() -> Self {
        Self::Whole(Bytes::new())
    }
}

impl Body for LayerBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        match &mut *self {
            Self::Whole(bytes) => {
                let bytes = mem::take(bytes);
                let frame = if bytes.is_empty() { None } else { Some(Ok(Frame::data(bytes))) };
                Poll::Ready(frame)
            }
            Self::Single(body) => Pin::new(body).poll_frame(cx),
            Self::Shared(reader) => reader.poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Whole(bytes) => bytes.is_empty(),
            Self::Single(body) => body.is_end_stream(),
            Self::Shared(reader) => reader.is_done(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Self::Single(body) => body.size_hint(),
            Self::Shared(reader) => match reader.length_left() {
                Some(left) => SizeHint::with_exact(left),
                None => SizeHint::default(),
            },
        }
    }
}
