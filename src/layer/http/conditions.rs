//! Evaluates the conditions of a request upon a response (RFC 9110, section 13), and its range
//! (section 14).
//!
//! A fresh stored response stands for the resource. So it answers `If-Match` and
//! `If-Unmodified-Since` too, as the inner service would.

use std::{
    ops::Range,
    time::{Duration, SystemTime},
};

use http::{
    HeaderMap, HeaderName, HeaderValue,
    header::{
        DATE, ETAG, IF_MATCH, IF_MODIFIED_SINCE, IF_NONE_MATCH, IF_RANGE, IF_UNMODIFIED_SINCE,
        LAST_MODIFIED, RANGE,
    },
};

/// The effect of a request's conditions on its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The answer is as without conditions.
    Proceed,
    /// The caller has the response already: `304 Not Modified`.
    NotModified,
    /// The response is not the one that the caller wants: `412 Precondition Failed`.
    Failed,
}

/// Evaluates the conditions in the order of RFC 9110, section 13.2.2.
pub(super) fn evaluate(asked: &HeaderMap, stored: &HeaderMap) -> Verdict {
    if asked.contains_key(IF_MATCH) {
        if !matches(asked, IF_MATCH, stored, |tag, etag| tag.is_strongly(etag)) {
            return Verdict::Failed;
        }
    } else if let (Some(asked), Some(modified)) =
        (date(asked, &IF_UNMODIFIED_SINCE), date(stored, &LAST_MODIFIED))
        && modified > asked
    {
        return Verdict::Failed;
    }
    let is_known = if asked.contains_key(IF_NONE_MATCH) {
        matches(asked, IF_NONE_MATCH, stored, |tag, etag| tag.is_weakly(etag))
    } else {
        // RFC 9111, section 4.3.2: without `Last-Modified`, the date of the response counts.
        let modified = date(stored, &LAST_MODIFIED).or_else(|| date(stored, &DATE));
        let asked = date(asked, &IF_MODIFIED_SINCE);
        asked.zip(modified).is_some_and(|(asked, modified)| modified <= asked)
    };
    if is_known { Verdict::NotModified } else { Verdict::Proceed }
}

/// Returns whether the `If-Range` of a request permits a part (RFC 9110, section 13.1.5).
pub(super) fn permits_part(asked: &HeaderMap, stored: &HeaderMap) -> bool {
    if !asked.contains_key(IF_RANGE) {
        return true;
    }
    let Some(value) = sole(asked, &IF_RANGE) else { return false };
    if let Some((tag, rest)) = Tag::parse(value.as_bytes()) {
        return rest.is_empty() && etag(stored).is_some_and(|etag| tag.is_strongly(etag));
    }
    let (wanted, modified) = (date(asked, &IF_RANGE), date(stored, &LAST_MODIFIED));
    // Section 8.8.2.2: two changes within one second have the same `Last-Modified`.
    let is_strong = modified.zip(date(stored, &DATE)).is_some_and(|(modified, answered)| {
        answered.duration_since(modified).is_ok_and(|since| since >= Duration::from_secs(1))
    });
    is_strong && wanted == modified
}

/// Returns whether `*` or a tag of the list matches the stored response.
fn matches(
    asked: &HeaderMap,
    name: HeaderName,
    stored: &HeaderMap,
    is_same: impl Fn(Tag<'_>, Tag<'_>) -> bool,
) -> bool {
    let etag = etag(stored);
    asked.get_all(name).iter().any(|line| {
        let line = line.as_bytes().trim_ascii();
        line == b"*" || etag.is_some_and(|etag| tags(line).any(|tag| is_same(tag, etag)))
    })
}

/// An entity tag (RFC 9110, section 8.8.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Tag<'a> {
    is_weak: bool,
    opaque: &'a [u8],
}

impl<'a> Tag<'a> {
    /// Parses the tag at the start of a text. Returns it with the rest of the text.
    fn parse(text: &'a [u8]) -> Option<(Self, &'a [u8])> {
        let (is_weak, text) = match text.strip_prefix(b"W/") {
            Some(text) => (true, text),
            None => (false, text),
        };
        let text = text.strip_prefix(b"\"")?;
        let end = text.iter().position(|byte| *byte == b'"')?;
        let opaque = &text[..end];
        let fits = opaque.iter().all(|byte| *byte > b' ' && *byte != 0x7f);
        fits.then_some((Self { is_weak, opaque }, &text[end + 1..]))
    }

    fn is_strongly(self, other: Tag<'_>) -> bool {
        !self.is_weak && self == other
    }

    fn is_weakly(self, other: Tag<'_>) -> bool {
        self.opaque == other.opaque
    }
}

/// Parses a list of tags, up to the first element that is none.
fn tags(line: &[u8]) -> impl Iterator<Item = Tag<'_>> {
    let mut rest = line;
    std::iter::from_fn(move || {
        while let [b',' | b' ' | b'\t', after @ ..] = rest {
            rest = after;
        }
        let (tag, after) = Tag::parse(rest)?;
        let after = after.trim_ascii_start();
        // A tag ends at a comma. Otherwise it is part of something else.
        let ends = after.is_empty() || after.starts_with(b",");
        rest = after;
        ends.then_some(tag)
    })
}

fn etag(headers: &HeaderMap) -> Option<Tag<'_>> {
    let (tag, rest) = Tag::parse(sole(headers, &ETAG)?.as_bytes())?;
    rest.is_empty().then_some(tag)
}

/// Returns the date of a header. One that is no date, or is there twice, counts as missing.
fn date(headers: &HeaderMap, name: &HeaderName) -> Option<SystemTime> {
    httpdate::parse_http_date(sole(headers, name)?.to_str().ok()?).ok()
}

fn sole<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a HeaderValue> {
    let mut values = headers.get_all(name).iter();
    let (value, second) = (values.next()?, values.next());
    second.is_none().then_some(value)
}

/// The selection of a `Range` (section 14).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Selection {
    /// All of it: there is no range, or one that may be ignored.
    Whole,
    /// These bytes.
    Part(Range<usize>),
    /// Nothing, because no byte of the range exists: `416 Range Not Satisfiable`.
    Unsatisfiable,
}

/// Selects a part of a body of this length.
///
/// Several ranges select the whole body, as section 14.2 permits. Many small ones in one request
/// would cost more than the body.
pub(super) fn select(asked: &HeaderMap, length: usize) -> Selection {
    let mut lines = asked.get_all(RANGE).iter();
    let (Some(line), None) = (lines.next(), lines.next()) else { return Selection::Whole };
    let set = line.to_str().ok().and_then(|line| {
        let (unit, set) = line.split_once('=')?;
        unit.trim().eq_ignore_ascii_case("bytes").then(|| set.trim())
    });
    set.and_then(|set| part(set, length)).unwrap_or(Selection::Whole)
}

/// Returns `None` if the text is not one range.
fn part(set: &str, length: usize) -> Option<Selection> {
    let (first, last) = set.split_once('-')?;
    let range = match (position(first)?, position(last)?) {
        (None, None) => return None,
        (None, Some(suffix)) => length.saturating_sub(suffix)..length,
        (Some(first), None) => first..length,
        (Some(first), Some(last)) if first > last => return None,
        (Some(first), Some(last)) => first..last.saturating_add(1).min(length),
    };
    // A range beyond the end has its start behind its end.
    Some(if range.start < range.end { Selection::Part(range) } else { Selection::Unsatisfiable })
}

/// Parses a position, which may be left out. One beyond `usize` becomes the greatest.
fn position(text: &str) -> Option<Option<usize>> {
    let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| (!text.is_empty()).then(|| text.parse().unwrap_or(usize::MAX)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const EARLY: &str = "Tue, 15 Nov 1994 12:45:25 GMT";
    const LATE: &str = "Tue, 15 Nov 1994 12:45:26 GMT";

    type Lines<'a> = &'a [(&'a str, &'a str)];

    fn headers(lines: Lines<'_>) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            let name = HeaderName::from_bytes(name.as_bytes()).unwrap();
            headers.append(name, HeaderValue::from_bytes(value.as_bytes()).unwrap());
        }
        headers
    }

    #[test]
    fn tags_are_compared_as_their_condition_demands() {
        use Verdict::{Failed, NotModified, Proceed};
        // Each with a strong and with a weak tag in the response.
        let table = [
            ("*", [NotModified, NotModified], [Proceed, Proceed]),
            ("\"a\"", [NotModified, NotModified], [Proceed, Failed]),
            ("W/\"a\"", [NotModified, NotModified], [Failed, Failed]),
            ("\"b\" ,\t, \"a\"", [NotModified, NotModified], [Proceed, Failed]),
            ("\"b,\", W/\"a\"", [NotModified, NotModified], [Failed, Failed]),
            ("\"b\"", [Proceed, Proceed], [Failed, Failed]),
            ("\"A\"", [Proceed, Proceed], [Failed, Failed]),
            ("a", [Proceed, Proceed], [Failed, Failed]),
            ("w/\"a\"", [Proceed, Proceed], [Failed, Failed]),
            ("\"b\"\"a\"", [Proceed, Proceed], [Failed, Failed]),
            ("", [Proceed, Proceed], [Failed, Failed]),
        ];
        for (line, none_match, match_) in table {
            for (at, etag) in ["\"a\"", "W/\"a\""].into_iter().enumerate() {
                let stored = headers(&[("etag", etag)]);
                let verdict = |name| evaluate(&headers(&[(name, line)]), &stored);
                assert_eq!(verdict("if-none-match"), none_match[at], "{line} {etag}");
                assert_eq!(verdict("if-match"), match_[at], "{line} {etag}");
            }
        }
        let two = headers(&[("if-none-match", "\"b\""), ("if-none-match", "\"a\"")]);
        assert_eq!(evaluate(&two, &headers(&[("etag", "\"a\"")])), NotModified);
        for stored in [headers(&[]), headers(&[("etag", "\"a\""), ("etag", "\"a\"")])] {
            assert_eq!(evaluate(&two, &stored), Proceed);
        }
    }

    #[test]
    fn dates_are_compared_and_tags_come_first() {
        use Verdict::{Failed, NotModified, Proceed};
        let since = "if-modified-since";
        let unmodified = "if-unmodified-since";
        let [early, late] = [EARLY, LATE].map(|date| ("last-modified", date));
        let tag = ("etag", "\"a\"");
        let table: [(Lines<'_>, Lines<'_>, Verdict); 15] = [
            (&[(since, EARLY)], &[early], NotModified),
            (&[(since, LATE)], &[early], NotModified),
            (&[(since, EARLY)], &[late], Proceed),
            (&[(since, "Tuesday, 15-Nov-94 12:45:26 GMT")], &[late], NotModified),
            (&[(since, "soon")], &[early], Proceed),
            (&[(since, LATE), (since, LATE)], &[early], Proceed),
            (&[(since, LATE)], &[("date", LATE)], NotModified),
            (&[(since, EARLY)], &[("date", LATE)], Proceed),
            (&[(since, LATE)], &[], Proceed),
            (&[(since, LATE), ("if-none-match", "\"b\"")], &[early, tag], Proceed),
            (&[(unmodified, EARLY)], &[early], Proceed),
            (&[(unmodified, EARLY)], &[late], Failed),
            (&[(unmodified, EARLY)], &[("date", LATE)], Proceed),
            (&[(unmodified, EARLY), ("if-match", "\"a\"")], &[late, tag], Proceed),
            (&[("if-match", "\"b\""), ("if-none-match", "\"a\"")], &[tag], Failed),
        ];
        for (asked, stored, verdict) in table {
            assert_eq!(evaluate(&headers(asked), &headers(stored)), verdict, "{asked:?}");
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

    fn selected(lines: &[&str], length: usize) -> Selection {
        let mut headers = HeaderMap::new();
        for line in lines {
            headers.append(RANGE, HeaderValue::from_bytes(line.as_bytes()).unwrap());
        }
        select(&headers, length)
    }

    #[test]
    fn one_range_selects_a_part() {
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
            assert_eq!(selected(&[line], length), Selection::Part(part), "{line}");
        }
    }

    #[test]
    fn a_range_without_a_byte_cannot_be_satisfied() {
        for (line, length) in [
            ("bytes=10-", 10),
            ("bytes=10-20", 10),
            ("bytes=99999999999999999999999999-", 10),
            ("bytes=-0", 10),
            ("bytes=0-", 0),
            ("bytes=-5", 0),
        ] {
            assert_eq!(selected(&[line], length), Selection::Unsatisfiable, "{line}");
        }
    }

    #[test]
    fn any_other_range_is_ignored() {
        for line in [
            "bytes=0-1,3-4",
            "bytes=0-1, 3-4",
            "lines=0-1",
            "bytes=5-3",
            "bytes=-",
            "bytes=",
            "bytes",
            "bytes=a-b",
            "bytes=+1-2",
            "bytes=1 - 2",
            "bytes=1--2",
            "\u{e4}",
        ] {
            assert_eq!(selected(&[line], 10), Selection::Whole, "{line}");
        }
        assert_eq!(selected(&[], 10), Selection::Whole);
        assert_eq!(selected(&["bytes=0-1", "bytes=0-1"], 10), Selection::Whole);
    }
}
