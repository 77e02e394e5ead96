//! Selects the part of a body that the `Range` of a request names (RFC 9110, section 14).

use std::ops::Range;

use http::{HeaderMap, header::RANGE};

/// The selection of a `Range`.
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
    use http::HeaderValue;

    use super::*;

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
