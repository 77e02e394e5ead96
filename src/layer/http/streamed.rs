//! A response that callers share before it is stored, and while its body arrives.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use http::Response;
use tokio::time::Instant;

use super::{
    CachedResponse,
    body::{LayerBody, NotJoined, SharedBody},
    status::Forward,
    variants::Variant,
};
use crate::cache::shared_load::Windows;

/// A response whose head has arrived.
pub(super) struct StreamedResponse {
    /// The response when it was received. Its body is here if the body was there at once.
    pub(super) response: CachedResponse,
    pub(super) arriving: Option<Arc<SharedBody>>,
    /// Which variant the response is, if its flight did not know that.
    pub(super) variant: Option<Variant>,
    /// Why the request was sent that the response answers.
    pub(super) forward: Forward,
    pub(super) received: Instant,
    /// The windows begin with the head. All are zero if the response is only for the callers that
    /// ask meanwhile.
    pub(super) windows: Windows,
    /// For how long after its head callers may join the response.
    pub(super) joined_for: Duration,
}

/// A response with its whole body, and the windows that are left of it.
pub(super) struct CompleteResponse {
    pub(super) response: CachedResponse,
    pub(super) windows: Windows,
}

impl StreamedResponse {
    /// Returns the response for a caller. The response is never too late for the caller whose
    /// request it answers. That caller has the trailers, too.
    pub(super) fn response(&self, is_own: bool) -> Result<Response<LayerBody>, NotJoined> {
        let elapsed = self.received.elapsed();
        if !is_own && elapsed >= self.joined_for {
            return Err(NotJoined::TooLate);
        }
        let CachedResponse { head, body, age, .. } = self.response.clone();
        let age = age.saturating_add(elapsed.as_secs());
        let body = match &self.arriving {
            Some(arriving) => LayerBody::join(arriving, is_own)?,
            None => LayerBody::Whole(body),
        };
        Ok(head.with_age(body, if age > 0 { Some(age) } else { None }))
    }

    /// Completes a response whose body was there at once.
    pub(super) fn complete_at_once(&self) -> CompleteResponse {
        CompleteResponse { response: self.response.clone(), windows: self.windows }
    }

    /// Completes the response with its body, which has arrived now.
    pub(super) fn complete(&self, body: Bytes) -> CompleteResponse {
        let took = self.received.elapsed();
        let late = took.saturating_sub(self.joined_for).as_millis();
        let mut response = CachedResponse { body, ..self.response.clone() };
        response.age = response.age.saturating_add(took.as_secs());
        response.late = late.try_into().unwrap_or(u32::MAX);
        let fresh = self.windows.fresh.saturating_sub(took);
        CompleteResponse { response, windows: Windows { fresh, ..self.windows } }
    }
}
