//! The validation of a stale response by the inner service (RFC 9111, section 4.3).

use std::time::SystemTime;

use bytes::Bytes;
use http::{
    HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode,
    header::{
        CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE, DATE, ETAG, IF_MODIFIED_SINCE,
        IF_NONE_MATCH, LAST_MODIFIED,
    },
    response::Parts,
};

use super::{CachedResponse, fields::strip};
use crate::cache::Lead;

/// Returns whether the service can validate a response.
pub(super) fn has_validator(parts: &Parts) -> bool {
    parts.status == StatusCode::OK
        && [ETAG, LAST_MODIFIED].iter().any(|name| parts.headers.contains_key(name))
}

/// Fields that describe the stored bytes, or those of the `304`.
const OF_BYTES: [HeaderName; 5] = [
    CONTENT_LENGTH,
    CONTENT_ENCODING,
    CONTENT_RANGE,
    HeaderName::from_static("content-md5"),
    HeaderName::from_static("content-digest"),
];

/// The stale response whose validator a request has.
pub(super) struct Validation(CachedResponse);

/// The end of a validation.
pub(super) enum Validated {
    /// The answer takes the place of the stale response.
    Replaced,
    /// The stale response is right, and has this head now.
    Renewed(Box<Parts>, Bytes),
    /// The answer is about a response that is not known here.
    Unknown { may_stand_in: bool },
}

impl Validation {
    /// Adds the validators of the stale response to a request for the whole response, if there are
    /// any.
    pub(super) fn begin<B>(lead: &Lead<CachedResponse>, request: &mut Request<B>) -> Option<Self> {
        let stale = lead.stale()?.value;
        let mut is_conditional = false;
        for (validator, condition) in [(ETAG, IF_NONE_MATCH), (LAST_MODIFIED, IF_MODIFIED_SINCE)] {
            let value = stale.headers().get(validator).filter(|_| stale.status() == StatusCode::OK);
            if let Some(value) = value {
                request.headers_mut().insert(condition, value.clone());
                is_conditional = true;
            }
        }
        is_conditional.then_some(Self(stale))
    }

    /// Returns what an answer says about the stale response.
    pub(super) fn end<B>(&self, answer: &Response<B>) -> Validated {
        if answer.status() != StatusCode::NOT_MODIFIED {
            return Validated::Replaced;
        }
        let (new, old) = (opaque_tag(answer.headers()), opaque_tag(self.0.headers()));
        if new.is_some() && new != old {
            return Validated::Unknown { may_stand_in: !self.0.only_validates() };
        }
        let (mut parts, ()) = Response::new(()).into_parts();
        parts.headers = update(self.0.headers(), answer.headers());
        Validated::Renewed(Box::new(parts), self.0.body().clone())
    }
}

fn opaque_tag(headers: &HeaderMap) -> Option<&[u8]> {
    let tag = headers.get(ETAG)?.as_bytes();
    Some(tag.strip_prefix(b"W/").unwrap_or(tag))
}

/// Updates the headers of a stored response (RFC 9111, section 3.2). Those about its bytes stay.
fn update(stored: &HeaderMap, newer: &HeaderMap) -> HeaderMap {
    let mut newer = newer.clone();
    strip(&mut newer);
    for name in OF_BYTES {
        newer.remove(name);
    }
    let mut headers = stored.clone();
    // A `304` without a date was made now (RFC 9110, section 6.6.1).
    if let Some(date) = headers.get_mut(DATE)
        && let Ok(now) = HeaderValue::try_from(httpdate::fmt_http_date(SystemTime::now()))
    {
        *date = now;
    }
    let names: Vec<HeaderName> = newer.keys().cloned().collect();
    for name in names {
        headers.remove(&name);
        for value in newer.get_all(&name) {
            headers.append(&name, value.clone());
        }
    }
    headers
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layer::http::headers;

    #[test]
    fn new_headers_replace_all_lines_of_the_stored_ones() {
        let stored = headers(&[
            ("x", "1"),
            ("x", "2"),
            ("y", "1"),
            ("content-length", "5"),
            ("content-encoding", "br"),
            ("content-md5", "1"),
        ]);
        let newer = headers(&[
            ("x", "3"),
            ("z", "1"),
            ("z", "2"),
            ("content-length", "0"),
            ("content-encoding", "gzip"),
            ("content-md5", "0"),
            ("connection", "a"),
            ("a", "1"),
        ]);
        let expected = headers(&[
            ("x", "3"),
            ("y", "1"),
            ("z", "1"),
            ("z", "2"),
            ("content-length", "5"),
            ("content-encoding", "br"),
            ("content-md5", "1"),
        ]);
        assert_eq!(update(&stored, &newer), expected);
    }
}
