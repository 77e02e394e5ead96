//! Watches a body that goes to its caller alone: whether it could have been shared.

use std::sync::Arc;

use bytes::Bytes;
use http::response::Parts;
use http_body::Frame;
use tokio::time::Instant;

use super::collect::BodyLimits;
use crate::{
    key::Key,
    layer::http::{
        fields::framing::content_length,
        recent::{RecentAnswers, Turnout},
    },
};

/// The watch over one body, whose headers permit to share it.
pub(in super::super) struct Watch {
    recent: Arc<RecentAnswers>,
    key: Key,
    received: u64,
    limits: BodyLimits,
    /// The length that the headers announce.
    announced: Option<u64>,
    /// When the request was sent.
    sent: Instant,
    /// When the headers arrived.
    begun: Instant,
    /// When the last frame arrived.
    last: Instant,
    is_settled: bool,
}

impl Watch {
    pub(in super::super) fn new(
        recent: Arc<RecentAnswers>,
        key: Key,
        limits: BodyLimits,
        parts: &Parts,
        sent: Instant,
    ) -> Self {
        // The mark stands until this body has shown what it is.
        recent.record_alone(&key, Turnout::Open, sent);
        let announced = content_length(&parts.headers).unwrap_or_default();
        let begun = Instant::now();
        let last = begun;
        Self { recent, key, received: 0, limits, announced, sent, begun, last, is_settled: false }
    }

    /// Notes a frame.
    pub(in super::super) fn frame<E>(&mut self, frame: &Result<Frame<Bytes>, E>) {
        if self.is_slow() {
            self.settle(Turnout::Uncacheable);
        }
        self.last = Instant::now();
        match frame.as_ref().map(Frame::data_ref) {
            Ok(Some(data)) => {
                self.received = self.received.saturating_add(data.len() as u64);
                if self.received > self.limits.size {
                    self.settle(Turnout::Uncacheable);
                }
            }
            // Trailers.
            Ok(None) => self.settle(Turnout::Uncacheable),
            Err(_) => self.settle(Turnout::Failing),
        }
    }

    /// Notes the end of the body.
    pub(in super::super) fn end(&mut self) {
        let is_whole = self.announced.is_none_or(|length| length == self.received);
        match is_whole && !self.is_slow() {
            true => self.settle(Turnout::Shareable),
            false => self.settle(Turnout::Uncacheable),
        }
    }

    /// Returns whether the body takes longer than one may that is shared.
    fn is_slow(&self) -> bool {
        self.begun.elapsed() > self.limits.total || self.last.elapsed() > self.limits.idle
    }

    fn settle(&mut self, turnout: Turnout) {
        if !std::mem::replace(&mut self.is_settled, true) {
            self.recent.record_alone(&self.key, turnout, self.sent);
        }
    }
}

impl Drop for Watch {
    /// A caller that leaves early says nothing about the body, unless the body is a long stream.
    fn drop(&mut self) {
        if self.is_slow() {
            self.settle(Turnout::Uncacheable);
        }
    }
}
