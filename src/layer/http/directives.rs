//! Headers that hold lists: `Cache-Control` and `Connection`.

use std::borrow::Cow;

use http::header::{CACHE_CONTROL, CONNECTION, HeaderMap, HeaderName};

/// What `Cache-Control` says, of what matters here.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Directives {
    pub(super) no_store: bool,
    pub(super) no_cache: bool,
    pub(super) private: bool,
    /// Seconds.
    pub(super) max_age: Option<u64>,
    /// Seconds.
    pub(super) s_maxage: Option<u64>,
}

impl Directives {
    /// Reads all `Cache-Control` lines together; none if one of them cannot be read, or if they
    /// contradict each other.
    pub(super) fn read(headers: &HeaderMap) -> Option<Self> {
        let mut directives = Self::default();
        for line in headers.get_all(CACHE_CONTROL) {
            let mut rest = skip(line.to_str().ok()?, ", \t");
            while !rest.is_empty() {
                let (name, after) = token(rest)?;
                let (value, after) = match after.strip_prefix('=') {
                    Some(after) => value(after).map(|(value, after)| (Some(value), after))?,
                    None => (None, after),
                };
                directives.take(name, value.as_deref())?;
                rest = skip(after, " \t");
                if !rest.is_empty() && !rest.starts_with(',') {
                    return None;
                }
                rest = skip(rest, ", \t");
            }
        }
        Some(directives)
    }

    fn take(&mut self, name: &str, value: Option<&str>) -> Option<()> {
        match name.to_ascii_lowercase().as_str() {
            "no-store" => self.no_store = true,
            "no-cache" => self.no_cache = true,
            "private" => self.private = true,
            "max-age" => once(&mut self.max_age, seconds(value?)?)?,
            "s-maxage" => once(&mut self.s_maxage, seconds(value?)?)?,
            _ => {}
        }
        Some(())
    }
}

/// The header names in `Connection`; none if it cannot be read.
pub(super) fn connection(headers: &HeaderMap) -> Option<Vec<HeaderName>> {
    let mut names = Vec::new();
    for line in headers.get_all(CONNECTION) {
        for option in line.to_str().ok()?.split(',').map(|option| skip_around(option, " \t")) {
            if !option.is_empty() {
                names.push(HeaderName::from_bytes(option.as_bytes()).ok()?);
            }
        }
    }
    Some(names)
}

/// A number of seconds: digits alone. One that is too large is as good as for ever.
pub(super) fn seconds(text: &str) -> Option<u64> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    digits.then(|| text.parse().unwrap_or(u64::MAX))
}

/// Sets what may be said twice, but not in two ways.
fn once(field: &mut Option<u64>, seconds: u64) -> Option<()> {
    (*field.get_or_insert(seconds) == seconds).then_some(())
}

fn token(text: &str) -> Option<(&str, &str)> {
    let end = text.find(|character| !is_token(character)).unwrap_or(text.len());
    (end > 0).then(|| text.split_at(end))
}

/// A token or a quoted string.
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

fn skip<'a>(text: &'a str, what: &str) -> &'a str {
    text.trim_start_matches(|character| what.contains(character))
}

fn skip_around<'a>(text: &'a str, what: &str) -> &'a str {
    text.trim_matches(|character| what.contains(character))
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn read(lines: &[&str]) -> Option<Directives> {
        let mut headers = HeaderMap::new();
        for line in lines {
            headers.append(CACHE_CONTROL, HeaderValue::from_bytes(line.as_bytes()).unwrap());
        }
        Directives::read(&headers)
    }

    #[test]
    fn all_lines_are_one_list() {
        let none = Directives::default();
        assert_eq!(read(&[]), Some(none));
        let found = read(&["public, MAX-AGE=60,,", " ,\tS-MaxAge=\"5\" , x=\"a,no-store\\\"\""]);
        let both = Directives { max_age: Some(60), s_maxage: Some(5), ..Directives::default() };
        assert_eq!(found, Some(both));
        assert!(read(&["max-age=1", "No-Store"]).unwrap().no_store);
        assert!(read(&["private=\"set-cookie, x\", max-age=1"]).unwrap().private);
        assert!(read(&["no-cache=\"x\""]).unwrap().no_cache);
        assert_eq!(read(&["max-age=99999999999999999999"]).unwrap().max_age, Some(u64::MAX));
        assert_eq!(read(&["max-age=5, max-age=5"]).unwrap().max_age, Some(5));
    }

    #[test]
    fn what_cannot_be_read_is_told() {
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
            assert_eq!(read(&[line]), None, "{line}");
        }
    }
}
