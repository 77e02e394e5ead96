//! How the answer to a request is made from a shared response: whole, its headers alone, a part
//! (RFC 9110, section 14), or by a condition (section 13).
//!
//! A part is taken of a whole response only. While a body arrives, all of it is the answer.

use std::{iter, ops::Range};

use bytes::Bytes;
use http::{
    HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode,
    header::{
        CONTENT_ENCODING, CONTENT_LANGUAGE, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, DATE,
        ETAG, IF_MODIFIED_SINCE, IF_NONE_MATCH, IF_RANGE, LAST_MODIFIED, RANGE,
    },
    response,
};
use http_body::Body;

use super::{
    Question,
    body::LayerBody,
    fields::{date, sole},
};

/// The headers of a request that a shared response answers: its conditions and its range.
/// `If-Match` and `If-Unmodified-Since` are for the inner service.
pub(super) const TERMS: [HeaderName; 4] = [IF_MODIFIED_SINCE, IF_NONE_MATCH, IF_RANGE, RANGE];

/// Those that are about a range.
pub(super) const RANGE_TERMS: [HeaderName; 2] = [IF_RANGE, RANGE];

impl Question {
    /// Returns the answer that a response gives. The body is not copied.
    pub(super) fn answer(&self, response: Response<LayerBody>) -> Response<LayerBody> {
        let (asked, is_head) = (&self.head.headers, self.head.method == Method::HEAD);
        if !is_head && !asked.keys().any(|name| TERMS.contains(name)) {
            return response;
        }
        let (mut parts, body) = response.into_parts();
        let is_ok = parts.status == StatusCode::OK;
        let is_success = is_ok || parts.status == StatusCode::PARTIAL_CONTENT;
        // Conditions apply to what would be a success (RFC 9110, section 13.2.1).
        let body = if is_success && is_known(asked, &parts.headers) {
            not_modified(&mut parts);
            LayerBody::default()
        } else if is_head {
            // A `204` has no length (RFC 9110, section 8.6).
            let length = body.size_hint().exact();
            if let Some(length) = length.filter(|_| parts.status != StatusCode::NO_CONTENT) {
                parts.headers.insert(CONTENT_LENGTH, length.into());
            }
            LayerBody::default()
        } else {
            let whole = body.bytes().filter(|_| is_ok && permits_part(asked, &parts.headers));
            match whole.and_then(|bytes| Some((bytes, selected(asked, bytes.len())?))) {
                Some((bytes, range)) => partial(&mut parts, bytes, range, asked),
                None => body,
            }
        };
        Response::from_parts(parts, body)
    }
}

fn partial(
    parts: &mut response::Parts,
    bytes: &Bytes,
    range: Range<usize>,
    asked: &HeaderMap,
) -> LayerBody {
    parts.status = StatusCode::PARTIAL_CONTENT;
    // They are digests of the whole.
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
        let known = sole(stored, ETAG).map(|tag| opaque(tag.as_bytes()));
        let known = known.filter(|known| known.starts_with(b"\""));
        let lines = asked.get_all(IF_NONE_MATCH).iter().map(HeaderValue::as_bytes);
        return lines.flat_map(tags).any(|tag| tag == b"*" || Some(opaque(tag)) == known);
    }
    // RFC 9111, section 4.3.2: without `Last-Modified`, the date of the response counts.
    let modified = date(stored, LAST_MODIFIED).or_else(|| date(stored, DATE));
    let asked = date(asked, IF_MODIFIED_SINCE);
    asked.zip(modified).is_some_and(|(asked, modified)| modified <= asked)
}

/// Returns whether the `If-Range` of a request permits a part (RFC 9110, section 13.1.5). A date
/// does not: two changes within one second have the same.
fn permits_part(asked: &HeaderMap, stored: &HeaderMap) -> bool {
    let wanted = sole(asked, IF_RANGE).filter(|wanted| wanted.as_bytes().starts_with(b"\""));
    !asked.contains_key(IF_RANGE) || (wanted.is_some() && sole(stored, ETAG) == wanted)
}

/// Returns the tags of a list.
fn tags(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = line;
    iter::from_fn(move || {
        let is_separator = |byte: &u8| b", \t".contains(byte);
        let begin = rest.iter().position(|byte| !is_separator(byte))?;
        let (_, from_tag) = rest.split_at(begin);
        let (tag, behind) = from_tag.split_at(tag_length(from_tag));
        rest = behind;
        Some(tag.trim_ascii_end())
    })
}

/// Returns the length of the tag at the start of a list, up to the comma that ends it. A tag may
/// have a comma between its quotes, but no quote.
fn tag_length(list: &[u8]) -> usize {
    let quote = |text: &[u8]| text.iter().position(|byte| *byte == b'"');
    let quoted = opaque(list).strip_prefix(b"\"");
    let closing = quoted.and_then(|inside| Some(list.len() - inside.len() + quote(inside)?));
    let behind = closing.map_or(0, |closing| closing + 1);
    let comma = list.iter().skip(behind).position(|byte| *byte == b',');
    comma.map_or(list.len(), |comma| behind + comma)
}

/// Returns a tag as it is in a weak comparison.
pub(super) fn opaque(tag: &[u8]) -> &[u8] {
    tag.strip_prefix(b"W/").unwrap_or(tag)
}

/// Returns the part of a body of this length that a `Range` selects (section 14). Returns `None`
/// for the whole body: without a range, or with one that may be ignored.
///
/// Several ranges may be (section 14.2): many small ones would cost more than the body. So may a
/// range that has no byte of the body.
fn selected(asked: &HeaderMap, length: usize) -> Option<Range<usize>> {
    let (unit, set) = sole(asked, RANGE)?.to_str().ok()?.split_once('=')?;
    let (first, last) = set.trim().split_once('-')?;
    let range = match (position(first)?, position(last)?) {
        (None, None) => return None,
        (None, Some(suffix)) => length.saturating_sub(suffix)..length,
        (Some(first), None) => first..length,
        (Some(first), Some(last)) => first..last.saturating_add(1).min(length),
    };
    (unit.trim().eq_ignore_ascii_case("bytes") && !range.is_empty()).then_some(range)
}

/// Parses a position, which may be left out. One beyond `usize` becomes the greatest.
fn position(text: &str) -> Option<Option<usize>> {
    let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| (!text.is_empty()).then(|| text.parse().unwrap_or(usize::MAX)))
}
