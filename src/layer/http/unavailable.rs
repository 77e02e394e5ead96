//! The treatment of a response that is an error.
//!
//! Rate limiters, firewalls and load limits answer one client with an error, so it decides nothing
//! for others: their callers join the next flight. Only a `404` and a `410` speak of the resource.

use std::{
    any::{Any, type_name},
    io,
    time::Duration,
};

use http::{
    HeaderMap, StatusCode,
    header::{DATE, RETRY_AFTER},
    response::Parts,
};
use serde::{Deserialize, Serialize};

use super::{
    CachedResponse,
    fields::{date, seconds, sole},
    request::Asked,
};
use crate::{
    cache::{AfterFailure, Alone, Lead, Produced},
    error::{BoxError, Chain, Error, ErrorKind},
};

/// The longest pause that a `Retry-After` may ask for. A wrong one must not block a key for long.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// Returns what a flight lands with, whose response is an error that is not shared.
///
/// # Errors
///
/// The failure of the service. A stale response may stand in for it (RFC 5861, section 4), and its
/// key backs off if a rule of the cache says so.
pub(super) fn failing(
    asked: &Asked,
    parts: &Parts,
    lead: &Lead<CachedResponse>,
) -> Result<Produced<CachedResponse>, Error> {
    let status = parts.status;
    if speaks_of_resource(status) {
        // The next response may be one to share, so nothing is remembered.
        lead.do_not_store();
        return Ok(Produced::Alone(Alone::Uncacheable));
    }
    let retry_after = retry_after(&parts.headers);
    let failure = InnerServiceError { status: status.as_u16(), retry_after };
    let error = Error::with_source(ErrorKind::Load, "the inner service failed", failure);
    // A rule of the cache cannot know that a failure is of one user.
    let is_for_all = status.is_server_error() && !asked.question.is_authorized;
    let rule = if is_for_all { asked.http.0.cache.core.backs_off_after(&error) } else { None };
    if rule.is_none() && !is_failure(status) {
        return Ok(Produced::Alone(Alone::Reserved));
    }
    lead.after_failure(match (rule, retry_after) {
        (None, _) => AfterFailure::LoadAgain,
        (Some(AfterFailure::BackOff { .. }), Some(time))
            if status == StatusCode::SERVICE_UNAVAILABLE =>
        {
            AfterFailure::RetryAfter(time.min(LONGEST_PAUSE))
        }
        (Some(rule), _) => rule,
    });
    Err(error)
}

/// Returns whether a response with this status speaks of its resource, and not only of its caller
/// or of the moment.
pub(super) fn speaks_of_resource(status: StatusCode) -> bool {
    let is_about_resource = matches!(status, StatusCode::NOT_FOUND | StatusCode::GONE);
    // An unexpected `304` says nothing of the response that is stored.
    let is_not_modified = status == StatusCode::NOT_MODIFIED;
    is_about_resource || status.is_success() || (status.is_redirection() && !is_not_modified)
}

/// Returns whether a load that ended with this error decides for all of its callers. The answer to
/// one caller does so only if a rule of the cache lets the key back off after it.
pub(super) fn concerns_all(error: &Error) -> bool {
    let is_of_caller =
        matches!(error.kind(), ErrorKind::Load | ErrorKind::Panicked | ErrorKind::LoadTimeout);
    !is_of_caller || error.retry_after().is_some()
}

/// Returns an error of the inner service as text, for callers that it was not returned to. Only its
/// caller has the error itself, whose type promises nothing.
pub(super) fn described<E: 'static>(error: &E) -> BoxError {
    let error: &dyn Any = error;
    if let Some(error) = error.downcast_ref::<BoxError>() {
        return Chain(&**error).to_string().into();
    }
    if let Some(error) = error.downcast_ref::<io::Error>() {
        return Chain(error).to_string().into();
    }
    format!("an error of the type {}", type_name::<E>()).into()
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
/// it. It has nothing but the status and the `Retry-After`, because the response may be for one
/// user only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, thiserror::Error)]
#[error("the inner service answered {}", self.status())]
pub struct InnerServiceError {
    status: u16,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    retry_after: Option<Duration>,
}

impl InnerServiceError {
    /// Returns the status of the response, which is a `5xx`.
    pub fn status(&self) -> StatusCode {
        // Another process may have written anything.
        let status = StatusCode::from_u16(self.status).ok().filter(StatusCode::is_server_error);
        status.unwrap_or(StatusCode::BAD_GATEWAY)
    }

    /// Returns the time in the `Retry-After` of the response, if it has a valid one. A date counts
    /// from the `Date` of the response.
    ///
    /// Nothing follows from it unless [`after_failure`](crate::cache::Builder::after_failure) of
    /// the cache returns an [`AfterFailure::RetryAfter`] of it. Bound the time there: it is what
    /// one response says. With [`AfterFailure::BackOff`], the `Retry-After` of a `503` sets the
    /// time, up to a minute.
    pub fn retry_after(&self) -> Option<Duration> {
        self.retry_after
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
            let error = InnerServiceError { status, retry_after: None };
            assert_eq!(error.status().as_u16(), told);
        }
    }
}
