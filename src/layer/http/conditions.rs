//! How the answer to a request is made from a shared response: whole, its headers alone, a part
//! (RFC 9110, section 14), or by a condition (section 13).
//!
//! A part is taken of a whole response only. While a body arrives, the whole body is the answer.

use std::{iter, ops::Range};

use bytes::Bytes;
use http::{
    HeaderMap, HeaderValue, Method, Response, StatusCode,
    header::{
        CONTENT_ENCODING, CONTENT_LANGUAGE, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, DATE,
        ETAG, IF_MODIFIED_SINCE, IF_NONE_MATCH, IF_RANGE, LAST_MODIFIED, RANGE,
    },
    response,
};
use http_body::Body;

use super::{
    body::LayerBody,
    fields::{date, opaque, sole},
    question::{Question, TERMS},
};

impl Question {
    /// Returns the answer that a response gives. The body is not copied.
    pub(super) fn answer(&self, response: Response<LayerBody>) -> Response<LayerBody> {
        let asked = &self.head.headers;
        let is_head = self.head.method == Method::HEAD;
        if !is_head && !asked.keys().any(|name| TERMS.contains(name)) {
            return response;
        }
        let (mut parts, body) = response.into_parts();
        let is_success = matches!(parts.status, StatusCode::OK | StatusCode::PARTIAL_CONTENT);
        // Conditions apply to what would be a success (RFC 9110, section 13.2.1).
        if is_success && is_known(asked, &parts.headers) {
            not_modified(&mut parts);
            return Response::from_parts(parts, LayerBody::default());
        }
        if is_head {
            announce_length(&mut parts, &body);
            return Response::from_parts(parts, LayerBody::default());
        }
        if parts.status == StatusCode::OK
            && permits_part(asked, &parts.headers)
            && let Some(bytes) = body.bytes()
            && let Some(range) = selected(asked, bytes.len())
        {
            let part = partial(&mut parts, bytes, range, asked);
            return Response::from_parts(parts, part);
        }
        Response::from_parts(parts, body)
    }
}

/// Gives the answer to a `HEAD` the length of the body. A `204` has no length (RFC 9110, section
/// 8.6).
fn announce_length(parts: &mut response::Parts, body: &LayerBody) {
    let length = body.size_hint().exact();
    if let Some(length) = length
        && parts.status != StatusCode::NO_CONTENT
    {
        parts.headers.insert(CONTENT_LENGTH, length.into());
    }
}

/// Makes the head of a `206`, and returns its part of the body (RFC 9110, section 15.3.7).
fn partial(
    parts: &mut response::Parts,
    bytes: &Bytes,
    range: Range<usize>,
    asked: &HeaderMap,
) -> LayerBody {
    parts.status = StatusCode::PARTIAL_CONTENT;
    // These fields are digests of the whole body.
    for digest in ["content-md5", "content-digest"] {
        parts.headers.remove(digest);
    }
    // The caller has the rest of the headers (RFC 9110, section 15.3.7).
    if asked.contains_key(IF_RANGE) {
        strip_representation(&mut parts.headers);
    }
    parts.headers.insert(CONTENT_LENGTH, range.len().into());
    let place = format!("bytes {}-{}/{}", range.start, range.end - 1, bytes.len());
    if let Ok(place) = HeaderValue::try_from(place) {
        parts.headers.insert(CONTENT_RANGE, place);
    }
    LayerBody::Whole(bytes.slice(range))
}

/// Keeps the headers that a `304` has (RFC 9110, section 15.4.5).
fn not_modified(parts: &mut response::Parts) {
    parts.status = StatusCode::NOT_MODIFIED;
    strip_representation(&mut parts.headers);
    if parts.headers.contains_key(ETAG) {
        parts.headers.remove(LAST_MODIFIED);
    }
}

/// Removes the headers about the body that the answer does not have.
fn strip_representation(headers: &mut HeaderMap) {
    for name in [CONTENT_TYPE, CONTENT_LENGTH, CONTENT_ENCODING, CONTENT_LANGUAGE, CONTENT_RANGE] {
        headers.remove(name);
    }
}

/// Returns whether the caller has the stored response already (RFC 9110, section 13.2.2).
fn is_known(asked: &HeaderMap, stored: &HeaderMap) -> bool {
    if asked.contains_key(IF_NONE_MATCH) {
        return has_known_tag(asked, stored);
    }
    // RFC 9111, section 4.3.2: without `Last-Modified`, the date of the response counts.
    let modified = date(stored, LAST_MODIFIED).or_else(|| date(stored, DATE));
    match (date(asked, IF_MODIFIED_SINCE), modified) {
        (Some(known), Some(modified)) => modified <= known,
        _ => false,
    }
}

/// Returns whether the `If-None-Match` of a request has the tag of the stored response (RFC 9110,
/// section 13.1.2).
fn has_known_tag(asked: &HeaderMap, stored: &HeaderMap) -> bool {
    let mut known = None;
    if let Some(tag) = sole(stored, ETAG) {
        let tag = opaque(tag.as_bytes());
        if tag.starts_with(b"\"") {
            known = Some(tag);
        }
    }
    for line in asked.get_all(IF_NONE_MATCH) {
        for tag in tags(line.as_bytes()) {
            if tag == b"*" || Some(opaque(tag)) == known {
                return true;
            }
        }
    }
    false
}

/// Returns whether the `If-Range` of a request permits a part (RFC 9110, section 13.1.5). A date
/// does not: two changes within one second have the same.
fn permits_part(asked: &HeaderMap, stored: &HeaderMap) -> bool {
    if !asked.contains_key(IF_RANGE) {
        return true;
    }
    let Some(wanted) = sole(asked, IF_RANGE) else { return false };
    wanted.as_bytes().starts_with(b"\"") && sole(stored, ETAG) == Some(wanted)
}

/// Returns the tags of a list.
fn tags(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = line;
    iter::from_fn(move || {
        let begin = rest.iter().position(|byte| !b", \t".contains(byte))?;
        let (_, from_tag) = rest.split_at(begin);
        let (tag, behind) = from_tag.split_at(tag_length(from_tag));
        rest = behind;
        Some(tag.trim_ascii_end())
    })
}

/// Returns the length of the tag at the start of a list, up to the comma that ends it. A tag may
/// have a comma between its quotes, but no quote.
fn tag_length(list: &[u8]) -> usize {
    let mut behind_quotes = list;
    if let Some(inside) = opaque(list).strip_prefix(b"\"")
        && let Some(closing) = inside.iter().position(|byte| *byte == b'"')
    {
        behind_quotes = inside.get(closing + 1..).unwrap_or_default();
    }
    let comma = behind_quotes.iter().position(|byte| *byte == b',');
    let rest = comma.unwrap_or(behind_quotes.len());
    list.len() - behind_quotes.len() + rest
}

/// Returns the part of a body of this length that a `Range` selects (section 14). Returns `None`
/// for the whole body: without a range, or with a range that may be ignored.
///
/// Several ranges may be ignored (section 14.2): many small ranges would cost more than the body.
/// So may a range that has no byte of the body.
fn selected(asked: &HeaderMap, length: usize) -> Option<Range<usize>> {
    let (unit, set) = sole(asked, RANGE)?.to_str().ok()?.split_once('=')?;
    let (first, last) = set.trim().split_once('-')?;
    let range = match (Position::read(first)?, Position::read(last)?) {
        (Position::LeftOut, Position::LeftOut) => return None,
        (Position::LeftOut, Position::At(suffix)) => length.saturating_sub(suffix)..length,
        (Position::At(first), Position::LeftOut) => first..length,
        (Position::At(first), Position::At(last)) => first..last.saturating_add(1).min(length),
    };
    let is_bytes = unit.trim().eq_ignore_ascii_case("bytes");
    if is_bytes && !range.is_empty() { Some(range) } else { None }
}

/// A position in a range.
enum Position {
    LeftOut,
    At(usize),
}

impl Position {
    /// Reads a position. One beyond `usize` becomes the greatest.
    fn read(text: &str) -> Option<Self> {
        if text.is_empty() {
            return Some(Self::LeftOut);
        }
        if !text.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        Some(Self::At(text.parse().unwrap_or(usize::MAX)))
    }
}
