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

use super::{
    CachedResponse,
    fields::{opaque, strip},
};

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
/// the stale response has validators.
pub(super) fn add_validators(stale: &CachedResponse, request: &mut HeaderMap) -> bool {
    if stale.status() != StatusCode::OK {
        return false;
    }
    let mut is_conditional = false;
    for (validator, condition) in [(ETAG, IF_NONE_MATCH), (LAST_MODIFIED, IF_MODIFIED_SINCE)] {
        if let Some(value) = stale.headers().get(validator) {
            request.insert(condition, value.clone());
            is_conditional = true;
        }
    }
    is_conditional
}

/// What a `304` makes of the stale response: its bytes, with the headers of the `304`.
pub(super) enum Validated {
    /// The stale response is renewed.
    Renewed(Response<Bytes>),
    /// The `304` is about a response with another tag, so the stored response may not be renewed
    /// (RFC 9111, section 4.3.4). But the condition of the request held (RFC 9110, section 13.1.2),
    /// so the stored bytes are the right answer to the request.
    Confirmed(Response<Bytes>),
}

/// Returns what the headers of a `304` make of the stale response.
pub(super) fn validated(stale: &CachedResponse, newer: &HeaderMap) -> Validated {
    let new = tag_of(newer);
    if new.is_none() || new == tag_of(stale.headers()) {
        return Validated::Renewed(updated(stale, newer.clone()));
    }
    let mut newer = newer.clone();
    for name in VALIDATORS {
        newer.remove(name);
    }
    Validated::Confirmed(updated(stale, newer))
}

fn tag_of(headers: &HeaderMap) -> Option<&[u8]> {
    Some(opaque(headers.get(ETAG)?.as_bytes()))
}

/// Returns the stale response with newer headers (RFC 9111, section 3.2). The headers
/// about its bytes stay.
fn updated(stale: &CachedResponse, mut newer: HeaderMap) -> Response<Bytes> {
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
    renewed
}
