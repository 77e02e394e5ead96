//! The treatment of a response that is an error.
//!
//! Rate limiters, firewalls and load limits answer one client with an error. Such an answer decides
//! nothing for other clients: they join the next flight. Only a `404` and a `410` speak of the
//! resource.

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

use super::{
    CachedResponse, InnerServiceError,
    fields::{date, seconds, sole},
    request::Asked,
};
use crate::{
    cache::{
        AfterFailure, Lead,
        shared_load::{Alone, Produced},
    },
    error::{BoxError, Chain, Error, ErrorKind},
};

/// The longest pause that a `Retry-After` may ask for. A wrong one must not block a key for long.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// Returns what a flight lands with, whose response is an error that is not shared.
///
/// # Errors
///
/// The failure of the service. A stale response may stand in for the failure (RFC 5861, section 4),
/// and its key backs off if a rule of the cache says so.
pub(super) fn failing(
    asked: &Asked,
    parts: &Parts,
    lead: &Lead<CachedResponse>,
) -> Result<Produced<CachedResponse>, Error> {
    let status = parts.status;
    // With an `Authorization`, a `404` may say that its caller may not see the resource.
    if speaks_of_resource(status) && !asked.question.is_authorized {
        // The next response may be one to share, so nothing is remembered.
        lead.do_not_store();
        return Ok(Produced::alone(Alone::Uncacheable));
    }
    let retry_after = retry_after(&parts.headers);
    let failure = InnerServiceError::new(status, retry_after);
    let error = Error::with_source(ErrorKind::Load, "the inner service failed", failure);
    // A rule of the cache cannot know that a failure is of one user.
    let is_for_all = status.is_server_error() && !asked.question.is_authorized;
    let rule = if is_for_all { asked.http.0.cache.backs_off_after(&error) } else { None };
    if rule.is_none() && !is_failure(status) {
        return Ok(Produced::alone(Alone::Reserved));
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

/// Returns whether a status says that the inner service failed.
pub(super) fn is_failure(status: StatusCode) -> bool {
    matches!(status.as_u16(), 500 | 502 | 503 | 504)
}

/// Returns whether a load that ended with this error decides for all of its callers. The answer to
/// one caller does so only if a rule of the cache lets the key back off.
pub(super) fn concerns_all(error: &Error) -> bool {
    let is_of_caller =
        matches!(error.kind(), ErrorKind::Load | ErrorKind::Panicked | ErrorKind::LoadTimeout);
    !is_of_caller || error.retry_after().is_some()
}

/// Returns an error of the inner service as text, for callers that did not receive the error. Only
/// the caller whose request ran has the error itself, whose type promises nothing.
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

/// Returns the time of a `Retry-After` (RFC 9110, section 10.2.3), unless it is zero.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let text = sole(headers, RETRY_AFTER)?.to_str().ok()?;
    let time = match seconds(text) {
        Some(seconds) => Duration::from_secs(seconds),
        // A date counts from the `Date` of the response: the clock of this process may be wrong.
        None => date(headers, RETRY_AFTER)?.duration_since(date(headers, DATE)?).ok()?,
    };
    if time.is_zero() { None } else { Some(time) }
}
