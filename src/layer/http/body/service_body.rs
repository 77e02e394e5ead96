//! The body of the inner service, in a box. Its code is of a user, and may panic.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    task::{Context, Poll},
};

use bytes::{Buf, Bytes};
use futures_util::FutureExt;
use http::HeaderMap;
use http_body::{Body, Frame, SizeHint};
use http_body_util::{BodyExt, combinators::UnsyncBoxBody};

use super::error::BodyError;
use crate::error::BoxError;

/// The body of the inner service.
pub(in super::super) struct ServiceBody {
    frames: UnsyncBoxBody<Bytes, BodyError>,
    /// The length that the body announces, until the body is read.
    hint: SizeHint,
}

/// Returns the bytes of a piece of a body. `Bytes` itself is not copied.
pub(super) fn into_bytes(mut data: impl Buf) -> Bytes {
    data.copy_to_bytes(data.remaining())
}

impl ServiceBody {
    pub(in super::super) fn new<B>(body: B) -> Self
    where
        B: Body<Error: Into<BoxError>> + Send + 'static,
    {
        let hint = body.size_hint();
        let body = body.map_err(BodyError::service);
        let body = body.map_frame(|frame| frame.map_data(into_bytes));
        Self { frames: body.boxed_unsync(), hint }
    }
}

impl Body for ServiceBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        self.hint = SizeHint::default();
        Pin::new(&mut self.frames).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.frames.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.hint
    }
}

/// The trailers of a body that is whole, or why the body broke off.
pub(super) type BodyEnd = Result<Option<HeaderMap>, BodyError>;

/// What a poll of a body has brought.
#[derive(Clone)]
pub(super) struct Arrival {
    pub(super) data: Bytes,
    /// The end of the body, if that is known with the data.
    pub(super) end: Option<BodyEnd>,
}

impl Arrival {
    const NOTHING: Self = Self { data: Bytes::new(), end: None };

    pub(super) fn end(end: BodyEnd) -> Self {
        Self { data: Bytes::new(), end: Some(end) }
    }
}

/// The rest of a body of the inner service.
#[derive(Default)]
pub(super) struct BodyRest {
    body: Option<ServiceBody>,
    /// The length of the rest, if that is known.
    length: Option<u64>,
}

impl BodyRest {
    /// Returns the whole body as a rest. Its headers may announce a length.
    pub(super) fn whole(body: ServiceBody, announced: Option<u64>) -> Self {
        let length = announced.or_else(|| body.hint.exact());
        Self { body: Some(body), length }
    }

    /// The length of the rest, if that is known.
    pub(super) fn length(&self) -> Option<u64> {
        self.length
    }

    /// Takes the next data, and the end of the body if that is known with the data.
    pub(super) async fn next(&mut self) -> Arrival {
        let Some(body) = &mut self.body else { return Arrival::NOTHING };
        let arrival = body.next().await;
        let arrival = self.checked(arrival);
        if arrival.end.is_some() {
            let body = self.body.take();
            let _ = catch_unwind(AssertUnwindSafe(|| drop(body)));
        }
        arrival
    }

    /// Returns an arrival, or an error in its place if it contradicts the length of the rest.
    fn checked(&mut self, mut arrival: Arrival) -> Arrival {
        let Some(expected) = self.length else { return arrival };
        let size = arrival.data.len() as u64;
        if size > expected {
            return Arrival::end(Err(BodyError::Length));
        }
        let left = expected - size;
        self.length = Some(left);
        if left > 0
            && let Some(Ok(_)) = arrival.end
        {
            arrival.end = Some(Err(BodyError::Length));
        }
        arrival
    }
}

impl ServiceBody {
    /// Takes the next frame. A panic of the body is its end.
    async fn next(&mut self) -> Arrival {
        let frames = &mut self.frames;
        let next = async {
            let frame = frames.frame().await;
            let is_end = frames.is_end_stream();
            (frame, is_end)
        };
        let Ok((frame, is_end)) = AssertUnwindSafe(next).catch_unwind().await else {
            return Arrival::end(Err(BodyError::Panicked));
        };
        let frame = match frame {
            Some(Ok(frame)) => frame,
            Some(Err(error)) => return Arrival::end(Err(error)),
            None => return Arrival::end(Ok(None)),
        };
        match frame.into_data() {
            Ok(data) => Arrival { data, end: if is_end { Some(Ok(None)) } else { None } },
            Err(frame) => Arrival::end(Ok(frame.into_trailers().ok())),
        }
    }
}
