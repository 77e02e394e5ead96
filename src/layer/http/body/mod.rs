//! The body that a caller receives, and its error.

pub(super) mod shared;

use std::{
    error::Error as StdError,
    fmt,
    ops::Range,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use pin_project::pin_project;

use self::shared::{Reader, in_bytes};
use crate::error::{BoxError, Chain};

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

    /// Returns the length of a body that is the same for all callers, if it is known.
    pub(super) fn length(&self) -> Option<usize> {
        match &self.source {
            BodySource::Whole { bytes } => Some(bytes.as_ref().map_or(0, Bytes::len)),
            BodySource::Untouched { .. } => None,
            BodySource::Shared { reader } => reader.size_hint().exact()?.try_into().ok(),
        }
    }

    pub(super) fn is_whole(&self) -> bool {
        matches!(self.source, BodySource::Whole { .. })
    }

    /// Returns a part of a whole body. Any other body is nothing or all of it.
    pub(super) fn part(self, range: Range<usize>) -> Self {
        match self.source {
            _ if range.is_empty() => Self::default(),
            BodySource::Whole { bytes } => Self::whole(bytes.unwrap_or_default().slice(range)),
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
        f.debug_struct("ResponseBody").finish_non_exhaustive()
    }
}

/// The error of a response body. All readers of a shared body get the same one.
///
/// Its source is the error of the inner service's body, if there is one.
///
/// ```
/// use bellwether::layer::{BodyError, BodyErrorKind};
///
/// fn is_of_the_service(error: &BodyError) -> bool {
///     error.kind() == BodyErrorKind::Service
/// }
/// ```
#[derive(Clone)]
pub struct BodyError {
    kind: BodyErrorKind,
    source: Option<Arc<dyn StdError + Send + Sync>>,
}

/// Why a response body broke off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum BodyErrorKind {
    /// The body of the inner service ended with an error.
    Service,
    /// The length of the body contradicts its `Content-Length`.
    Length,
    /// The body of the inner service panicked.
    Panicked,
    /// This reader of a shared body was too slow for it. The others read on.
    Slow,
}

impl BodyError {
    pub(super) fn new(kind: BodyErrorKind) -> Self {
        Self { kind, source: None }
    }

    /// The error of the inner service's body.
    pub(super) fn service(error: impl Into<BoxError>) -> Self {
        match error.into().downcast::<Self>() {
            // The body has passed through a body of this layer.
            Ok(error) => *error,
            Err(error) => Self { kind: BodyErrorKind::Service, source: Some(Arc::from(error)) },
        }
    }

    /// Returns why the body broke off.
    pub fn kind(&self) -> BodyErrorKind {
        self.kind
    }
}

impl fmt::Debug for BodyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", Chain(self))
    }
}

impl fmt::Display for BodyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.kind {
            BodyErrorKind::Service => "the response body broke off",
            BodyErrorKind::Length => {
                "the length of the response body contradicts its `Content-Length`"
            }
            BodyErrorKind::Panicked => "the response body panicked",
            BodyErrorKind::Slow => {
                "the response body was read too slowly for the buffer that it shares"
            }
        })
    }
}

impl StdError for BodyError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.source.as_deref().map(|source| source as &(dyn StdError + 'static))
    }
}
