//! A caller that reads a shared body.

use std::{
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use http_body::Frame;

use super::{
    error::BodyError,
    shared_body::{ReaderStep, SharedBody},
};
use crate::sync::lock;

/// A caller that reads a shared body, from the start on. A reader that is dropped frees what was
/// kept for it.
pub(in super::super) struct Reader {
    body: Arc<SharedBody>,
    number: u64,
    /// How many bytes the reader has read.
    place: u64,
    /// Whether the reader gets the trailers, because the body is the answer to its request.
    takes_trailers: bool,
    is_done: bool,
}

/// What a caller gets that joins a body.
pub(super) enum JoinedBody {
    /// The body has ended, and is here.
    Whole(Bytes),
    Reading(Reader),
}

/// Why a caller cannot read a body.
pub(in super::super) enum NotJoined {
    /// The first bytes are gone, or the response is no longer fresh.
    TooLate,
    /// The body broke off.
    Broken,
}

impl Reader {
    /// Joins a body, for the caller whose request the body answers or for another caller.
    pub(super) fn join(body: &Arc<SharedBody>, is_own: bool) -> Result<JoinedBody, NotJoined> {
        let mut state = lock(&body.state);
        if !is_own && matches!(state.end, Some(Err(_))) {
            return Err(NotJoined::Broken);
        }
        if state.left_as.is_some() {
            return Err(NotJoined::TooLate);
        }
        if let Some(Ok(None)) = state.end {
            return Ok(JoinedBody::Whole(state.whole()));
        }
        let number = state.join();
        drop(state);
        let body = body.clone();
        let reader = Self { body, number, place: 0, takes_trailers: is_own, is_done: false };
        Ok(JoinedBody::Reading(reader))
    }

    pub(super) fn is_done(&self) -> bool {
        self.is_done
    }

    /// Returns how many bytes the reader has not read, if that is known.
    pub(super) fn length_left(&self) -> Option<u64> {
        let state = lock(&self.body.state);
        let length = match state.end {
            Some(Ok(_)) => state.received,
            _ => self.body.announced?,
        };
        Some(length.saturating_sub(self.place))
    }

    pub(super) fn poll_frame(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        if self.is_done {
            return Poll::Ready(None);
        }
        let body = &self.body;
        let step = lock(&body.state).next(self.number, cx.waker(), &body.limits.backlog);
        body.moved.notify_one();
        match step {
            ReaderStep::Waits => Poll::Pending,
            ReaderStep::Data(data) => {
                self.place += data.len() as u64;
                Poll::Ready(Some(Ok(Frame::data(data))))
            }
            ReaderStep::End(end) => {
                self.is_done = true;
                match end {
                    Ok(Some(trailers)) if self.takes_trailers => {
                        Poll::Ready(Some(Ok(Frame::trailers(trailers))))
                    }
                    Ok(_) => Poll::Ready(None),
                    Err(error) => Poll::Ready(Some(Err(error))),
                }
            }
        }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.body.leave(self.number);
    }
}
