//! The validation of a stale response by the inner service (RFC 9111, section 4.3).

use std::time::SystemTime;

use bytes::Bytes;
use http::{
    HeaderMap, HeaderName, HeaderValue, Response, StatusCode,
    header::{
        CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE, DATE, ETAG, IF_MODIFIED_SINCE,
        IF_NONE_MATCH, LAST_MODIFIED,
    },
};

use super::{CachedResponse, conditions::opaque, fields::strip};

/// Fields by which the service can validate a `200`.
pub(super) const VALIDATORS: [HeaderName; 2] = [ETAG, LAST_MODIFIED];

/// Fields that describe the stored bytes, or the `304`.
const OF_BYTES: [HeaderName; 5] = [
    CONTENT_LENGTH,
    CONTENT_ENCODING,
    CONTENT_RANGE,
    HeaderName::from_static("content-md5"),
    HeaderName::from_static("content-digest"),
];

/// Adds the validators of the stale response to a request for the whole response. Returns whether
/// it has any.
pub(super) fn add_validators(stale: &CachedResponse, request: &mut HeaderMap) -> bool {
    let mut is_conditional = false;
    for (validator, condition) in VALIDATORS.into_iter().zip([IF_NONE_MATCH, IF_MODIFIED_SINCE]) {
        let value = stale.headers().get(validator).filter(|_| stale.status() == StatusCode::OK);
        if let Some(value) = value {
            request.insert(condition, value.clone());
            is_conditional = true;
        }
    }
    is_conditional
}

/// Returns the stale response with the headers of a `304` (RFC 9111, section 3.2), unless that is
/// about another response. Those about its bytes stay.
pub(super) fn renewed(stale: &CachedResponse, newer: &HeaderMap) -> Option<Response<Bytes>> {
    let [new, old] =
        [newer, stale.headers()].map(|headers| headers.get(ETAG).map(|tag| opaque(tag.as_bytes())));
    if new.is_some() && new != old {
        return None;
    }
    let mut newer = newer.clone();
    strip(&mut newer);
    for name in OF_BYTES {
        newer.remove(name);
    }
    let mut renewed = Response::new(stale.body().clone());
    let headers = renewed.headers_mut();
    headers.clone_from(stale.headers());
    // A `304` without a date was made now (RFC 9110, section 6.6.1).
    if let Some(date) = headers.get_mut(DATE)
        && let Ok(now) = HeaderValue::try_from(httpdate::fmt_http_date(SystemTime::now()))
    {
        *date = now;
    }
    headers.extend(newer);
    Some(renewed)
}
