//! The error that a failed answer of the inner service is, and the default answer to an error.

use std::time::Duration;

use bytes::Bytes;
use http::{
    HeaderValue, Response, StatusCode,
    header::{CACHE_CONTROL, RETRY_AFTER},
};
use serde::{Deserialize, Serialize};

use crate::error::{Error, ErrorKind};

/// The error of a load to which the inner service answered with a failure.
///
/// [`load_ref`](crate::Error::load_ref) returns this error in every process, because the cache of
/// [`http_cache`](crate::http_cache) has an [error codec](crate::cache::Builder::error_codec) for
/// such errors. The error has nothing but the status and the `Retry-After`, because the response
/// may be for one user only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, thiserror::Error)]
#[error("the inner service answered {}", self.status())]
pub struct InnerServiceError {
    status: u16,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    retry_after: Option<Duration>,
}

impl InnerServiceError {
    pub(super) fn new(status: StatusCode, retry_after: Option<Duration>) -> Self {
        Self { status: status.as_u16(), retry_after }
    }

    /// Returns the status of the response, which is a `5xx`.
    pub fn status(&self) -> StatusCode {
        // Another process may have written anything.
        match StatusCode::from_u16(self.status) {
            Ok(status) if status.is_server_error() => status,
            _ => StatusCode::BAD_GATEWAY,
        }
    }

    /// Returns the time in the `Retry-After` of the response, if it has a valid one. A date counts
    /// from the `Date` of the response.
    ///
    /// Nothing follows from it unless [`after_failure`](crate::cache::Builder::after_failure) of
    /// the cache returns an [`AfterFailure::RetryAfter`] of it. Bound the time there: it is what
    /// one response says. With [`AfterFailure::BackOff`], the `Retry-After` of a `503` sets the
    /// time, up to a minute.
    ///
    /// [`AfterFailure::RetryAfter`]: crate::cache::AfterFailure::RetryAfter
    /// [`AfterFailure::BackOff`]: crate::cache::AfterFailure::BackOff
    pub fn retry_after(&self) -> Option<Duration> {
        self.retry_after
    }
}

/// The default response to callers whose load failed.
pub(super) fn error_response(error: &Error) -> Response<Bytes> {
    let mut response = Response::new(Bytes::new());
    *response.status_mut() = status_of(error);
    let headers = response.headers_mut();
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    if let Some(wait) = error.retry_after() {
        let mut seconds = wait.as_secs();
        if wait.subsec_nanos() > 0 {
            // No client is to come too early.
            seconds = seconds.saturating_add(1);
        }
        headers.insert(RETRY_AFTER, seconds.into());
    }
    response
}

fn status_of(error: &Error) -> StatusCode {
    match error.kind() {
        ErrorKind::LoadTimeout => StatusCode::GATEWAY_TIMEOUT,
        ErrorKind::BackingOff
        | ErrorKind::Overloaded
        | ErrorKind::Cancelled
        | ErrorKind::ShutDown => StatusCode::SERVICE_UNAVAILABLE,
        ErrorKind::Load if error.retry_after().is_some() => StatusCode::SERVICE_UNAVAILABLE,
        _ => StatusCode::BAD_GATEWAY,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_status_of_a_failure_is_told() {
        for (status, told) in [(500, 500), (502, 502), (503, 503), (504, 504), (200, 502), (1, 502)]
        {
            let error = InnerServiceError { status, retry_after: None };
            assert_eq!(error.status().as_u16(), told);
        }
    }
}
