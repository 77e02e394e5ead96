//! Parses headers that hold lists: `Cache-Control`, `Pragma` and `Connection`.

use std::borrow::Cow;

use http::header::{CACHE_CONTROL, CONNECTION, HeaderMap, HeaderName, HeaderValue, PRAGMA};

/// The directives of `Cache-Control` that decide about sharing.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Directives {
    pub(super) no_store: bool,
    pub(super) no_cache: bool,
    pub(super) private: bool,
    /// Seconds.
    pub(super) max_age: Option<u64>,
    /// Seconds.
    pub(super) s_maxage: Option<u64>,
    /// `must-revalidate` or `proxy-revalidate`: no stale response is served.
    pub(super) revalidate: bool,
    /// Seconds (RFC 5861).
    pub(super) stale_while_revalidate: Option<u64>,
    /// Seconds (RFC 5861).
    pub(super) stale_if_error: Option<u64>,
}

impl Directives {
    /// Parses all `Cache-Control` lines as one list.
    ///
    /// Returns `None` if a line cannot be parsed, or if two directives contradict each other.
    pub(super) fn parse(headers: &HeaderMap) -> Option<Self> {
        let mut directives = Self::default();
        for line in headers.get_all(CACHE_CONTROL) {
            let mut rest = trim_start(line.to_str().ok()?, ", \t");
            while !rest.is_empty() {
                let (name, after) = token(rest)?;
                let (value, after) = match after.strip_prefix('=') {
                    Some(after) => value(after).map(|(value, after)| (Some(value), after))?,
                    None => (None, after),
                };
                directives.set(name, value.as_deref())?;
                rest = trim_start(after, " \t");
                if !rest.is_empty() && !rest.starts_with(',') {
                    return None;
                }
                rest = trim_start(rest, ", \t");
            }
        }
        Some(directives)
    }

    fn set(&mut self, name: &str, value: Option<&str>) -> Option<()> {
        match name.to_ascii_lowercase().as_str() {
            "no-store" => self.no_store = true,
            "no-cache" => self.no_cache = true,
            "private" => self.private = true,
            "max-age" => set_once(&mut self.max_age, seconds(value?)?)?,
            "s-maxage" => set_once(&mut self.s_maxage, seconds(value?)?)?,
            "must-revalidate" | "proxy-revalidate" => self.revalidate = true,
            "stale-while-revalidate" => set_least(&mut self.stale_while_revalidate, value),
            "stale-if-error" => set_least(&mut self.stale_if_error, value),
            _ => {}
        }
        Some(())
    }
}

/// Parses the header names in `Connection`. Returns `None` if one is not a header name.
pub(super) fn connection(headers: &HeaderMap) -> Option<Vec<HeaderName>> {
    let mut names = Vec::new();
    for line in headers.get_all(CONNECTION) {
        for option in line.to_str().ok()?.split(',') {
            let option = option.trim_matches([' ', '\t']);
            if !option.is_empty() {
                names.push(HeaderName::from_bytes(option.as_bytes()).ok()?);
            }
        }
    }
    Some(names)
}

/// Returns whether a `Pragma` says `no-cache`.
pub(super) fn pragma(headers: &HeaderMap) -> bool {
    let no_cache = |line: &HeaderValue| {
        let line = line.as_bytes().to_ascii_lowercase();
        line.windows(b"no-cache".len()).any(|window| window == b"no-cache")
    };
    headers.get_all(PRAGMA).iter().any(no_cache)
}

/// Parses a number of seconds, digits only. A number beyond `u64` becomes `u64::MAX`.
pub(super) fn seconds(text: &str) -> Option<u64> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    digits.then(|| text.parse().unwrap_or(u64::MAX))
}

/// Sets a directive that may be repeated, but only with the same value.
fn set_once(field: &mut Option<u64>, seconds: u64) -> Option<()> {
    (*field.get_or_insert(seconds) == seconds).then_some(())
}

/// Sets a directive that permits more than a cache does without it. A value that cannot be parsed
/// permits nothing, and the least of several values holds.
fn set_least(field: &mut Option<u64>, value: Option<&str>) {
    let permitted = value.and_then(seconds).unwrap_or(0);
    *field = Some(field.map_or(permitted, |least| least.min(permitted)));
}

fn token(text: &str) -> Option<(&str, &str)> {
    let end = text.find(|character| !is_token(character)).unwrap_or(text.len());
    (end > 0).then(|| text.split_at(end))
}

/// Parses a token or a quoted string. Returns it with the rest of the line.
fn value(text: &str) -> Option<(Cow<'_, str>, &str)> {
    let Some(quoted) = text.strip_prefix('"') else {
        let (value, after) = token(text)?;
        return Some((value.into(), after));
    };
    let mut value = String::new();
    let mut characters = quoted.char_indices();
    loop {
        match characters.next()? {
            (end, '"') => return Some((value.into(), quoted.get(end + 1..)?)),
            (_, '\\') => value.push(characters.next()?.1),
            (_, character) => value.push(character),
        }
    }
}

fn is_token(character: char) -> bool {
    character.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(character)
}

fn trim_start<'a>(text: &'a str, characters: &str) -> &'a str {
    text.trim_start_matches(|character| characters.contains(character))
}

/// Checks rules that hold for all header lines. The fuzz target `directives` calls it.
#[cfg(any(fuzzing, test))]
pub(crate) fn check_any_lines(lines: &[u8]) {
    let values = |lines: &[u8]| -> Vec<HeaderValue> {
        let lines = lines.split(|byte| *byte == b'\n');
        lines.filter_map(|line| HeaderValue::from_bytes(line).ok()).collect()
    };
    let parse = |values: &[HeaderValue]| {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(CACHE_CONTROL, value.clone());
            headers.append(CONNECTION, value.clone());
        }
        let _ = connection(&headers);
        Directives::parse(&headers)
    };

    let mut values_of_lines = values(lines);
    let parsed = parse(&values_of_lines);
    assert_eq!(parse(&values(&lines.to_ascii_uppercase())), parsed, "case matters");
    if let Some(directives) = parsed {
        let joined = values_of_lines.iter().map(HeaderValue::as_bytes).collect::<Vec<_>>();
        let joined = joined.join(&b", "[..]);
        assert_eq!(parse(&values(&joined)).as_ref(), Some(&directives), "several lines differ");
        values_of_lines.push(HeaderValue::from_static("no-store"));
        let restricted = Directives { no_store: true, ..directives };
        assert_eq!(parse(&values_of_lines), Some(restricted), "a restriction is lost");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(lines: &[&str]) -> Option<Directives> {
        let mut headers = HeaderMap::new();
        for line in lines {
            headers.append(CACHE_CONTROL, HeaderValue::from_bytes(line.as_bytes()).unwrap());
        }
        Directives::parse(&headers)
    }

    #[test]
    fn all_lines_form_one_list() {
        let none = Directives::default();
        assert_eq!(parse(&[]), Some(none));
        let found = parse(&["public, MAX-AGE=60,,", " ,\tS-MaxAge=\"5\" , x=\"a,no-store\\\"\""]);
        let both = Directives { max_age: Some(60), s_maxage: Some(5), ..Directives::default() };
        assert_eq!(found, Some(both));
        assert!(parse(&["max-age=1", "No-Store"]).unwrap().no_store);
        assert!(parse(&["private=\"set-cookie, x\", max-age=1"]).unwrap().private);
        assert!(parse(&["no-cache=\"x\""]).unwrap().no_cache);
        assert_eq!(parse(&["max-age=99999999999999999999"]).unwrap().max_age, Some(u64::MAX));
        assert_eq!(parse(&["max-age=5, max-age=5"]).unwrap().max_age, Some(5));
    }

    #[test]
    fn stale_windows_are_read_and_the_least_holds() {
        let windows = |line| {
            let directives = parse(&[line]).unwrap();
            (directives.stale_while_revalidate, directives.stale_if_error)
        };
        let table = [
            ("max-age=1", (None, None)),
            ("stale-while-revalidate=5, Stale-If-Error=\"7\"", (Some(5), Some(7))),
            ("stale-while-revalidate=5, stale-while-revalidate=3", (Some(3), None)),
            ("stale-while-revalidate", (Some(0), None)),
            ("stale-if-error=soon, stale-if-error=9", (None, Some(0))),
        ];
        for (line, expected) in table {
            assert_eq!(windows(line), expected, "{line}");
        }
        for line in ["must-revalidate", "Proxy-Revalidate, max-age=1"] {
            assert!(parse(&[line]).unwrap().revalidate, "{line}");
        }
    }

    #[test]
    fn a_malformed_line_is_refused() {
        for line in [
            "max-age",
            "max-age=",
            "max-age=-1",
            "max-age=1.5",
            "max-age=\"1",
            "max-age = 1",
            "max-age=1 no-store",
            "max-age=1; no-store",
            "max-age=1, max-age=2",
            "=1",
            "\"no-store\"",
            "x=\"a\\",
            "no-störe",
        ] {
            assert_eq!(parse(&[line]), None, "{line}");
        }
    }
}
