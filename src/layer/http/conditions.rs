//! How the answer to a request is made from a shared response: whole, its headers alone, a part
//! (RFC 9110, section 14), or by a condition (section 13).
//!
//! A part is taken of a whole response only. While a body arrives, all of it is the answer.

use std::{ops::Range, time::Duration};

use http::{
    HeaderMap, HeaderName, HeaderValue, Response, StatusCode,
    header::{
        CACHE_CONTROL, CONTENT_ENCODING, CONTENT_LANGUAGE, CONTENT_LENGTH, CONTENT_RANGE,
        CONTENT_TYPE, DATE, ETAG, EXPIRES, IF_MODIFIED_SINCE, IF_NONE_MATCH, IF_RANGE,
        LAST_MODIFIED, RANGE,
    },
    response,
};

use super::{
    Question, ResponseBody,
    fields::{date, sole},
};

/// The headers of a request that a shared response answers: its conditions and its range.
/// `If-Match` and `If-Unmodified-Since` are for the inner service.
pub(super) const TERMS: [HeaderName; 4] = [IF_MODIFIED_SINCE, IF_NONE_MATCH, IF_RANGE, RANGE];

/// The part of a body that an answer without a body has.
const NOTHING: Range<usize> = 0..0;

/// The part that an answer with the whole body has.
const ALL: Range<usize> = 0..usize::MAX;

impl Question {
    /// Returns the answer that a response gives. The body is not copied.
    pub(super) fn answer(&self, response: Response<ResponseBody>) -> Response<ResponseBody> {
        if !self.is_head() && !self.head.headers.keys().any(|name| TERMS.contains(name)) {
            return response;
        }
        let (mut parts, body) = response.into_parts();
        let range = self.apply(&mut parts, body.length(), body.is_whole());
        Response::from_parts(parts, body.part(range))
    }

    /// Changes the head of a response, and returns the part that it has of its body.
    fn apply(
        &self,
        parts: &mut response::Parts,
        length: Option<usize>,
        is_whole: bool,
    ) -> Range<usize> {
        let asked = &self.head.headers;
        // Conditions apply to what would be a success (RFC 9110, section 13.2.1).
        if parts.status == StatusCode::OK && is_known(asked, &parts.headers) {
            return not_modified(parts);
        }
        if self.is_head() {
            // A `204` has no length (RFC 9110, section 8.6).
            if let Some(length) = length.filter(|_| parts.status != StatusCode::NO_CONTENT) {
                parts.headers.insert(CONTENT_LENGTH, length.into());
            }
            return NOTHING;
        }
        let length = length.filter(|_| is_whole && parts.status == StatusCode::OK);
        let range = length.and_then(|length| selected(asked, length).zip(Some(length)));
        match range.filter(|_| permits_part(asked, &parts.headers)) {
            None => ALL,
            Some((range, length)) if range.is_empty() => not_satisfiable(parts, length),
            Some((range, length)) => partial(parts, range, length, asked.contains_key(IF_RANGE)),
        }
    }
}

fn partial(
    parts: &mut response::Parts,
    range: Range<usize>,
    length: usize,
    is_known: bool,
) -> Range<usize> {
    parts.status = StatusCode::PARTIAL_CONTENT;
    // The caller has the rest of the headers (RFC 9110, section 15.3.7).
    if is_known {
        strip_representation(&mut parts.headers);
    }
    parts.headers.insert(CONTENT_LENGTH, range.len().into());
    set(&mut parts.headers, format!("bytes {}-{}/{length}", range.start, range.end - 1));
    range
}

/// Keeps the headers that a `304` has (RFC 9110, section 15.4.5).
fn not_modified(parts: &mut response::Parts) -> Range<usize> {
    parts.status = StatusCode::NOT_MODIFIED;
    strip_representation(&mut parts.headers);
    if parts.headers.contains_key(ETAG) {
        parts.headers.remove(LAST_MODIFIED);
    }
    NOTHING
}

/// Turns the response into a `416`, which no other cache may store.
fn not_satisfiable(parts: &mut response::Parts, length: usize) -> Range<usize> {
    parts.status = StatusCode::RANGE_NOT_SATISFIABLE;
    strip_representation(&mut parts.headers);
    for name in [ETAG, LAST_MODIFIED, EXPIRES] {
        parts.headers.remove(name);
    }
    parts.headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    parts.headers.insert(CONTENT_LENGTH, 0.into());
    set(&mut parts.headers, format!("bytes */{length}"));
    NOTHING
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

/// Returns whether the caller has the stored response already (RFC 9110, section 13.2.2).
fn is_known(asked: &HeaderMap, stored: &HeaderMap) -> bool {
    if asked.contains_key(IF_NONE_MATCH) {
        let known = etag(stored).map(opaque);
        return asked.get_all(IF_NONE_MATCH).iter().any(|line| {
            let line = line.as_bytes().trim_ascii();
            line == b"*" || known.is_some_and(|known| tags(line).any(|tag| opaque(tag) == known))
        });
    }
    // RFC 9111, section 4.3.2: without `Last-Modified`, the date of the response counts.
    let modified = date(stored, LAST_MODIFIED).or_else(|| date(stored, DATE));
    let asked = date(asked, IF_MODIFIED_SINCE);
    asked.zip(modified).is_some_and(|(asked, modified)| modified <= asked)
}

/// Returns whether the `If-Range` of a request permits a part (RFC 9110, section 13.1.5).
fn permits_part(asked: &HeaderMap, stored: &HeaderMap) -> bool {
    if !asked.contains_key(IF_RANGE) {
        return true;
    }
    let Some(value) = sole(asked, IF_RANGE) else { return false };
    if let Some((tag, rest)) = tag(value.as_bytes()) {
        return rest.is_empty() && tag.starts_with(b"\"") && etag(stored) == Some(tag);
    }
    let (wanted, modified) = (date(asked, IF_RANGE), date(stored, LAST_MODIFIED));
    // Section 8.8.2.2: two changes within one second have the same `Last-Modified`.
    let is_strong = modified.zip(date(stored, DATE)).is_some_and(|(modified, answered)| {
        answered.duration_since(modified).is_ok_and(|since| since >= Duration::from_secs(1))
    });
    is_strong && wanted == modified
}

/// Takes an entity tag from the start of a text (RFC 9110, section 8.8.3). Returns it with the
/// rest.
fn tag(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let inside = opaque(text).strip_prefix(b"\"")?;
    let length = inside.iter().position(|byte| *byte == b'"')?;
    let fits = inside[..length].iter().all(|byte| *byte > b' ' && *byte != 0x7f);
    let rest = &inside[length + 1..];
    fits.then(|| text.split_at(text.len() - rest.len()))
}

/// Returns a tag as it is in a weak comparison.
pub(super) fn opaque(tag: &[u8]) -> &[u8] {
    tag.strip_prefix(b"W/").unwrap_or(tag)
}

/// Parses a list of tags, up to the first element that is none.
fn tags(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = line;
    std::iter::from_fn(move || {
        while let [b',' | b' ' | b'\t', after @ ..] = rest {
            rest = after;
        }
        let (tag, after) = tag(rest)?;
        rest = after.trim_ascii_start();
        // A tag ends at a comma. Otherwise it is part of something else.
        (rest.is_empty() || rest.starts_with(b",")).then_some(tag)
    })
}

fn etag(headers: &HeaderMap) -> Option<&[u8]> {
    let (tag, rest) = tag(sole(headers, ETAG)?.as_bytes())?;
    rest.is_empty().then_some(tag)
}

/// Returns the part of a body of this length that a `Range` selects (section 14). It is empty if no
/// byte of it exists. Returns `None` for the whole body: without a range, or with one that may be
/// ignored.
///
/// Several ranges select the whole body, as section 14.2 permits. Many small ones in one request
/// would cost more than the body.
fn selected(asked: &HeaderMap, length: usize) -> Option<Range<usize>> {
    let (unit, set) = sole(asked, RANGE)?.to_str().ok()?.split_once('=')?;
    unit.trim().eq_ignore_ascii_case("bytes").then(|| part(set.trim(), length)).flatten()
}

/// Returns `None` if the text is not one range.
fn part(set: &str, length: usize) -> Option<Range<usize>> {
    let (first, last) = set.split_once('-')?;
    match (position(first)?, position(last)?) {
        (None, None) => None,
        (None, Some(suffix)) => Some(length.saturating_sub(suffix)..length),
        (Some(first), None) => Some(first..length),
        (Some(first), Some(last)) if first > last => None,
        (Some(first), Some(last)) => Some(first..last.saturating_add(1).min(length)),
    }
}

/// Parses a position, which may be left out. One beyond `usize` becomes the greatest.
fn position(text: &str) -> Option<Option<usize>> {
    let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| (!text.is_empty()).then(|| text.parse().unwrap_or(usize::MAX)))
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use http::Request;

    use super::*;
    use crate::layer::http::headers;

    #[test]
    fn a_head_of_a_response_without_content_has_no_length() {
        let question = Question::new(Request::head("/").body(()).unwrap().into_parts().0);
        for (status, length) in [(StatusCode::NO_CONTENT, None), (StatusCode::NOT_FOUND, Some("0"))]
        {
            let mut response = Response::new(Bytes::new());
            *response.status_mut() = status;
            let answer = question.answer(response.map(ResponseBody::whole));
            let found = answer.headers().get(CONTENT_LENGTH).map(|length| length.to_str().unwrap());
            assert_eq!(found, length, "{status}");
        }
    }

    const EARLY: &str = "Tue, 15 Nov 1994 12:45:25 GMT";
    const LATE: &str = "Tue, 15 Nov 1994 12:45:26 GMT";

    type Lines<'a> = &'a [(&'a str, &'a str)];

    #[test]
    fn tags_are_compared_weakly() {
        for (line, is_same) in [
            ("*", true),
            ("\"a\"", true),
            ("W/\"a\"", true),
            ("\"b\" ,\t, \"a\"", true),
            ("\"b,\", W/\"a\"", true),
            ("\"b\"", false),
            ("\"A\"", false),
            ("a", false),
            ("w/\"a\"", false),
            ("\"b\"\"a\"", false),
            ("", false),
        ] {
            for etag in ["\"a\"", "W/\"a\""] {
                let found =
                    is_known(&headers(&[("if-none-match", line)]), &headers(&[("etag", etag)]));
                assert_eq!(found, is_same, "{line} {etag}");
            }
        }
        let two = headers(&[("if-none-match", "\"b\""), ("if-none-match", "\"a\"")]);
        assert!(is_known(&two, &headers(&[("etag", "\"a\"")])));
        for stored in [headers(&[]), headers(&[("etag", "\"a\""), ("etag", "\"a\"")])] {
            assert!(!is_known(&two, &stored));
        }
    }

    #[test]
    fn dates_are_compared_and_tags_come_first() {
        let since = "if-modified-since";
        let [early, late] = [EARLY, LATE].map(|date| ("last-modified", date));
        let tag = ("etag", "\"a\"");
        let table: [(Lines<'_>, Lines<'_>, bool); 10] = [
            (&[(since, EARLY)], &[early], true),
            (&[(since, LATE)], &[early], true),
            (&[(since, EARLY)], &[late], false),
            (&[(since, "Tuesday, 15-Nov-94 12:45:26 GMT")], &[late], true),
            (&[(since, "soon")], &[early], false),
            (&[(since, LATE), (since, LATE)], &[early], false),
            (&[(since, LATE)], &[("date", LATE)], true),
            (&[(since, EARLY)], &[("date", LATE)], false),
            (&[(since, LATE)], &[], false),
            (&[(since, LATE), ("if-none-match", "\"b\"")], &[early, tag], false),
        ];
        for (asked, stored, is_same) in table {
            assert_eq!(is_known(&headers(asked), &headers(stored)), is_same, "{asked:?}");
        }
    }

    #[test]
    fn a_part_needs_a_strong_validator() {
        let (etag, weak) = (("etag", "\"a\""), ("etag", "W/\"a\""));
        let (modified, dated) = (("last-modified", EARLY), ("date", LATE));
        let table: [(&str, Lines<'_>, bool); 8] = [
            ("\"a\"", &[etag], true),
            ("\"b\"", &[etag], false),
            ("\"a\", \"a\"", &[etag], false),
            ("W/\"a\"", &[weak], false),
            (EARLY, &[modified, dated], true),
            (LATE, &[modified, dated], false),
            (EARLY, &[modified, ("date", EARLY)], false),
            (EARLY, &[modified], false),
        ];
        for (value, stored, permitted) in table {
            let asked = headers(&[("if-range", value)]);
            assert_eq!(permits_part(&asked, &headers(stored)), permitted, "{value} {stored:?}");
        }
        assert!(permits_part(&headers(&[]), &headers(&[])));
        let twice = headers(&[("if-range", "\"a\""), ("if-range", "\"a\"")]);
        assert!(!permits_part(&twice, &headers(&[etag])));
    }

    /// An empty range has no byte of the body. Any other range than these is ignored.
    #[test]
    fn one_range_selects_a_part() {
        let ranges = |lines: &[&str], length| {
            let lines: Vec<_> = lines.iter().map(|line| ("range", *line)).collect();
            selected(&headers(&lines), length)
        };
        for (line, length, part) in [
            ("bytes=0-0", 10, 0..1),
            ("bytes=0-9", 10, 0..10),
            ("bytes=3-5", 10, 3..6),
            ("bytes=3-", 10, 3..10),
            ("bytes=9-99999999999999999999999999", 10, 9..10),
            ("bytes=-3", 10, 7..10),
            ("bytes=-30", 10, 0..10),
            ("Bytes = 2-2 ", 10, 2..3),
        ] {
            assert_eq!(ranges(&[line], length), Some(part), "{line}");
        }
        let beyond = "bytes=99999999999999999999999999-";
        for line in ["bytes=10-", "bytes=10-20", beyond, "bytes=-0"] {
            assert!(ranges(&[line], 10).unwrap().is_empty(), "{line}");
        }
        for line in ["bytes=0-", "bytes=-5"] {
            assert!(ranges(&[line], 0).unwrap().is_empty(), "{line}");
        }
        for line in "bytes=0-1,3-4|bytes=0-1, 3-4|lines=0-1|bytes=5-3|bytes=-|bytes=|bytes|\
                     bytes=a-b|bytes=+1-2|bytes=1 - 2|bytes=1--2|\u{e4}"
            .split('|')
        {
            assert_eq!(ranges(&[line], 10), None, "{line}");
        }
        assert_eq!(ranges(&[], 10), None);
        assert_eq!(ranges(&["bytes=0-1", "bytes=0-1"], 10), None);
    }
}
