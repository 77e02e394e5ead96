//! What a request asks of a shared response: its headers alone, a part of it, or a condition.

use std::{ops::Range, time::Duration};

use bytes::Bytes;
use http::{
    HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode,
    header::{
        AUTHORIZATION, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_LANGUAGE, CONTENT_LENGTH,
        CONTENT_RANGE, CONTENT_TYPE, ETAG, EXPIRES, IF_MATCH, IF_MODIFIED_SINCE, IF_NONE_MATCH,
        IF_RANGE, IF_UNMODIFIED_SINCE, LAST_MODIFIED, RANGE,
    },
    request, response,
};
use http_body::Body;
use tokio::time::Instant;

use super::{
    ResponseBody,
    conditions::{Selection, Verdict, evaluate, permits_part, select},
    requests::key,
};

const TERMS: [HeaderName; 6] =
    [IF_MATCH, IF_MODIFIED_SINCE, IF_NONE_MATCH, IF_RANGE, IF_UNMODIFIED_SINCE, RANGE];

/// What one request asks for. Most ask for the whole response, as it is stored.
#[derive(Clone, Debug)]
pub(super) struct Asked {
    pub(super) is_head: bool,
    /// The conditions and the range.
    terms: HeaderMap,
    /// Its URI is not in normal form, so its own response is for it alone.
    pub(super) is_respelled: bool,
    pub(super) is_authorized: bool,
    /// When it came.
    since: Instant,
}

/// How much of the body an answer has.
enum KeptBody {
    All,
    Part(Range<usize>),
    Nothing,
}

/// Returns whether a header is a condition or a range.
pub(super) fn is_term(name: &HeaderName) -> bool {
    matches!(
        *name,
        IF_MATCH | IF_MODIFIED_SINCE | IF_NONE_MATCH | IF_RANGE | IF_UNMODIFIED_SINCE | RANGE
    )
}

/// Turns a request into one for the whole response, which answers all of them.
pub(super) fn ask_for_all<B>(request: &mut Request<B>) {
    *request.method_mut() = Method::GET;
    for name in TERMS {
        request.headers_mut().remove(name);
    }
}

impl Asked {
    pub(super) fn of(parts: &request::Parts) -> Self {
        let mut terms = HeaderMap::new();
        for (name, value) in parts.headers.iter().filter(|(name, _)| is_term(name)) {
            terms.append(name, value.clone());
        }
        Self {
            is_head: parts.method == Method::HEAD,
            terms,
            is_respelled: key::is_respelled(parts),
            is_authorized: parts.headers.contains_key(AUTHORIZATION),
            since: Instant::now(),
        }
    }

    /// Returns how long it has waited for its answer.
    pub(super) fn waited(&self) -> Duration {
        self.since.elapsed()
    }

    /// Returns the answer that a response gives. The body is not copied. It has a part only if the
    /// length of the body is known.
    pub(super) fn answer<B: Body>(
        &self,
        response: Response<ResponseBody<B>>,
    ) -> Response<ResponseBody<B>> {
        if !self.is_head && self.terms.is_empty() {
            return response;
        }
        let (mut parts, body) = response.into_parts();
        let body = match self.apply(&mut parts, body.length()) {
            KeptBody::All => body,
            KeptBody::Part(range) => body.part(range),
            KeptBody::Nothing => ResponseBody::whole(Bytes::new()),
        };
        Response::from_parts(parts, body)
    }

    /// Changes the head of a response, and returns how much of its body is kept.
    fn apply(&self, parts: &mut response::Parts, length: Option<usize>) -> KeptBody {
        // Conditions apply to what would be a success (RFC 9110, section 13.2.1).
        if parts.status == StatusCode::OK {
            match evaluate(&self.terms, &parts.headers) {
                Verdict::Proceed => {}
                Verdict::NotModified => return not_modified(parts),
                Verdict::Failed => return without_body(parts, StatusCode::PRECONDITION_FAILED),
            }
        }
        match length {
            // A `204` has no length (RFC 9110, section 8.6).
            Some(length) if self.is_head && parts.status != StatusCode::NO_CONTENT => {
                parts.headers.insert(CONTENT_LENGTH, length.into());
            }
            Some(length) if parts.status == StatusCode::OK => return self.select(parts, length),
            _ => {}
        }
        if self.is_head { KeptBody::Nothing } else { KeptBody::All }
    }

    fn select(&self, parts: &mut response::Parts, length: usize) -> KeptBody {
        if !permits_part(&self.terms, &parts.headers) {
            return KeptBody::All;
        }
        match select(&self.terms, length) {
            Selection::Whole => KeptBody::All,
            Selection::Part(range) => {
                parts.status = StatusCode::PARTIAL_CONTENT;
                // The caller has the rest of the headers (RFC 9110, section 15.3.7).
                if self.terms.contains_key(IF_RANGE) {
                    strip_representation(&mut parts.headers);
                }
                parts.headers.insert(CONTENT_LENGTH, range.len().into());
                let text = format!("bytes {}-{}/{length}", range.start, range.end - 1);
                set(&mut parts.headers, text);
                KeptBody::Part(range)
            }
            Selection::Unsatisfiable => {
                let kept = without_body(parts, StatusCode::RANGE_NOT_SATISFIABLE);
                set(&mut parts.headers, format!("bytes */{length}"));
                kept
            }
        }
    }
}

/// Keeps the headers that a `304` has (RFC 9110, section 15.4.5).
fn not_modified(parts: &mut response::Parts) -> KeptBody {
    parts.status = StatusCode::NOT_MODIFIED;
    strip_representation(&mut parts.headers);
    if parts.headers.contains_key(ETAG) {
        parts.headers.remove(LAST_MODIFIED);
    }
    KeptBody::Nothing
}

/// Turns the response into an error without a body, which no other cache may store.
fn without_body(parts: &mut response::Parts, status: StatusCode) -> KeptBody {
    parts.status = status;
    strip_representation(&mut parts.headers);
    for name in [ETAG, LAST_MODIFIED, EXPIRES] {
        parts.headers.remove(name);
    }
    parts.headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    parts.headers.insert(CONTENT_LENGTH, 0.into());
    KeptBody::Nothing
}

/// Removes the headers about the body that the answer does not have.
fn strip_representation(headers: &mut HeaderMap) {
    for name in [CONTENT_TYPE, CONTENT_LENGTH, CONTENT_ENCODING, CONTENT_LANGUAGE, CONTENT_RANGE] {
        headers.remove(name);
    }
}

fn set(headers: &mut HeaderMap, content_range: String) {
    if let Ok(value) = HeaderValue::try_from(content_range) {
        headers.insert(CONTENT_RANGE, value);
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::Empty;

    use super::*;

    #[test]
    fn a_head_of_a_response_without_content_has_no_length() {
        let (parts, ()) = Request::head("/").body(()).unwrap().into_parts();
        let asked = Asked::of(&parts);
        for (status, length) in [(StatusCode::NO_CONTENT, None), (StatusCode::NOT_FOUND, Some("0"))]
        {
            let mut response = Response::new(Bytes::new());
            *response.status_mut() = status;
            let answer = asked.answer(response.map(ResponseBody::<Empty<Bytes>>::whole));
            let found = answer.headers().get(CONTENT_LENGTH).map(|length| length.to_str().unwrap());
            assert_eq!(found, length, "{status}");
        }
    }
}
