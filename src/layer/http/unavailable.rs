//! The treatment of a response that says that the inner service fails.

use std::time::Duration;

use http::{
    HeaderMap, StatusCode,
    header::{DATE, RETRY_AFTER},
    response::Parts,
};
use serde::{Deserialize, Serialize};

use super::{
    CachedResponse, Question,
    fields::{date, seconds, sole},
};
use crate::{
    cache::{AfterFailure, Alone, Lead, Produced},
    error::{Error, ErrorKind},
};

/// The longest pause that a `Retry-After` may ask for. A wrong one must not block a key for long.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// Short, because the next request may find the service well, and any caller may have led.
const UNAVAILABLE: AfterFailure =
    AfterFailure::BackOff { first: Duration::from_millis(100), longest: Duration::from_secs(1) };

/// Returns what a flight lands with, whose response is a failure or another error. A stale one
/// may stand in for a failure (RFC 5861, section 4), or others are told of it. Tells the lead
/// what is to follow.
pub(super) fn failing(
    question: &Question,
    parts: &Parts,
    lead: &Lead<CachedResponse>,
) -> Produced<CachedResponse> {
    lead.do_not_store();
    let status = parts.status;
    if !is_failure(status) {
        return Produced::Alone(Alone::Uncacheable);
    }
    if !question.is_authorized {
        if let (StatusCode::SERVICE_UNAVAILABLE, Some(time)) = (status, retry_after(&parts.headers))
        {
            lead.after_failure(AfterFailure::RetryAfter(time.min(LONGEST_PAUSE)));
        }
        // A `500` may say something of the request alone.
        if status != StatusCode::INTERNAL_SERVER_ERROR {
            lead.after_common_failure(UNAVAILABLE);
        }
    } else if !lead.has_stand_in() {
        return Produced::Alone(Alone::Reserved);
    }
    let words = "the inner service failed";
    let failure = InnerServiceError { status: status.as_u16() };
    Produced::Failing(Error::with_source(ErrorKind::Load, words, failure))
}

/// Returns the time of a `Retry-After`. A date counts from the `Date` of the response, because the
/// clock of this process may be wrong.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let in_seconds = seconds(sole(headers, RETRY_AFTER)?.to_str().ok()?).map(Duration::from_secs);
    let until = || date(headers, RETRY_AFTER)?.duration_since(date(headers, DATE)?).ok();
    let time = in_seconds.or_else(until)?;
    (!time.is_zero()).then_some(time)
}

/// The error of a load to which the inner service answered with a failure.
///
/// [`load_ref`](crate::Error::load_ref) returns it in every process, because the cache of
/// [`http_cache`](crate::http_cache) has an [error codec](crate::cache::Builder::error_codec) for
/// it. It has nothing but the status, because the response may be for one user only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, thiserror::Error)]
#[error("the inner service answered {}", self.status())]
pub struct InnerServiceError {
    status: u16,
}

impl InnerServiceError {
    /// Returns the status of the response: `500`, `502`, `503` or `504`.
    pub fn status(&self) -> StatusCode {
        // Another process may have written anything.
        let status = StatusCode::from_u16(self.status).ok().filter(|status| is_failure(*status));
        status.unwrap_or(StatusCode::BAD_GATEWAY)
    }
}

/// Returns whether a status says that the inner service failed.
pub(super) fn is_failure(status: StatusCode) -> bool {
    matches!(status.as_u16(), 500 | 502 | 503 | 504)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_status_of_a_failure_is_told() {
        for (status, told) in [(500, 500), (502, 502), (503, 503), (504, 504), (200, 502), (1, 502)]
        {
            assert_eq!(InnerServiceError { status }.status().as_u16(), told);
        }
    }
}
