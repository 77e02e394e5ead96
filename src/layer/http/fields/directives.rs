//! Parses headers that hold lists: `Cache-Control`, `Surrogate-Control`, `Pragma`, `Connection`.

use std::borrow::Cow;

use http::header::{CACHE_CONTROL, HeaderMap, HeaderValue, PRAGMA};

/// The directives that decide about sharing (RFC 9111, section 5.2).
///
/// Of directives that contradict each other, the strictest holds. The parser then says that the
/// field is malformed, too.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Directives {
    pub(crate) no_store: bool,
    pub(crate) no_cache: Scope,
    pub(crate) private: Scope,
    pub(crate) public: bool,
    pub(crate) must_understand: bool,
    pub(crate) must_revalidate: bool,
    pub(crate) proxy_revalidate: bool,
    /// Seconds. An invalid one is zero: the response is stale (section 4.2.1).
    pub(crate) max_age: Option<u64>,
    /// Seconds, as `max_age`.
    pub(crate) s_maxage: Option<u64>,
    /// Seconds (RFC 5861).
    pub(crate) stale_while_revalidate: Option<u64>,
    /// Seconds (RFC 5861).
    pub(crate) stale_if_error: Option<u64>,
    /// A part could not be parsed, or contradicts another one.
    pub(crate) malformed: bool,
}

/// The scope of a `no-cache` or a `private`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Scope {
    /// The directive is not there.
    #[default]
    Nothing,
    /// These fields of the response, in lower case.
    Fields(Vec<String>),
    /// The whole response.
    All,
}

impl Scope {
    /// Returns whether a response with these headers has something that the directive applies to.
    pub(crate) fn covers(&self, headers: &HeaderMap) -> bool {
        match self {
            Self::Nothing => false,
            Self::Fields(names) => names.iter().any(|name| headers.contains_key(name.as_str())),
            Self::All => true,
        }
    }

    /// Widens the scope by a directive with this value.
    fn widen(&mut self, fields: Option<&str>) {
        let named = fields.unwrap_or_default().split(',').map(str::trim);
        let names = named.filter(|name| !name.is_empty()).map(str::to_ascii_lowercase);
        let mut names: Vec<String> = names.collect();
        if names.is_empty() || names.iter().any(|name| !name.chars().all(is_token)) {
            *self = Self::All;
            return;
        }
        match self {
            Self::All => {}
            Self::Nothing => *self = Self::Fields(names),
            Self::Fields(known) => known.append(&mut names),
        }
    }
}

impl Directives {
    /// Parses all `Cache-Control` lines as one list.
    ///
    /// Returns `None` if a line is not text, or if a quoted string does not end: it may hide
    /// anything.
    pub(crate) fn parse(headers: &HeaderMap) -> Option<Self> {
        Self::parse_lines(headers.get_all(CACHE_CONTROL), None)
    }

    /// Parses the lines of a field as one list. A `target` decides about directives by the name of
    /// their parameter (Edge Architecture Specification, section 2.1). Without it, the field has no
    /// parameters.
    ///
    /// Text that should not be there counts as a directive, too: it may be one that restricts,
    /// behind a wrong separator.
    pub(super) fn parse_lines<'a>(
        lines: impl IntoIterator<Item = &'a HeaderValue>,
        target: Option<fn(&str) -> bool>,
    ) -> Option<Self> {
        let mut directives = Self::default();
        for line in lines {
            let mut rest = trim_start(line.to_str().ok()?, ", \t");
            while !rest.is_empty() {
                let (element, after) = Element::take(rest, target.is_some())?;
                match element {
                    Some(element) if !element.is_for_me(target) => {}
                    Some(element) => directives.set(&element),
                    None => directives.suspect(rest.strip_suffix(after).unwrap_or(rest)),
                }
                rest = trim_start(after, ", \t");
            }
        }
        Some(directives)
    }

    pub(super) fn set(&mut self, element: &Element<'_>) {
        let value = element.value.as_deref();
        // Text behind the value belongs to it, and makes it invalid.
        let number = if element.is_clean { value.and_then(seconds) } else { None };
        self.malformed |= !element.is_clean;
        match element.name.to_ascii_lowercase().as_str() {
            "no-store" | "no-store-remote" => self.no_store = true,
            "no-cache" => self.no_cache.widen(value),
            "private" => self.private.widen(value),
            "public" => self.public = true,
            "must-understand" => self.must_understand = true,
            "must-revalidate" => self.must_revalidate = true,
            "proxy-revalidate" => self.proxy_revalidate = true,
            "max-age" => self.malformed |= set_lifetime(&mut self.max_age, number),
            "s-maxage" => self.malformed |= set_lifetime(&mut self.s_maxage, number),
            "stale-while-revalidate" => set_least(&mut self.stale_while_revalidate, number),
            "stale-if-error" => set_least(&mut self.stale_if_error, number),
            name if restricts(name) => self.suspect(name),
            _ => {}
        }
    }

    /// Heeds text that is no directive, but may mean one that restricts: `'private'`, `"no-store"`,
    /// `no_cache`.
    fn suspect(&mut self, text: &str) {
        self.malformed = true;
        self.no_store |= restricts(text);
    }

    /// Returns whether any directive restricts the sharing of the response.
    pub(super) fn restricts(&self) -> bool {
        self.no_store || self.no_cache != Scope::Nothing || self.private != Scope::Nothing
    }

    /// Returns whether no stale response may be served.
    pub(crate) fn revalidates(&self) -> bool {
        self.must_revalidate || self.proxy_revalidate
    }
}

/// One element of a list: a name, perhaps with a value, perhaps with a parameter.
pub(super) struct Element<'a> {
    pub(super) name: &'a str,
    pub(super) value: Option<Cow<'a, str>>,
    /// The name of the first parameter.
    pub(super) target: Option<&'a str>,
    /// Nothing else follows before the next comma.
    pub(super) is_clean: bool,
}

impl<'a> Element<'a> {
    /// Takes an element from the start of a line. Returns it with the rest of the line. Text that
    /// is no element is `None`.
    ///
    /// Returns `None` if a quoted string does not end.
    fn take(text: &'a str, has_parameters: bool) -> Option<(Option<Self>, &'a str)> {
        let Some((name, mut rest)) = token(text) else { return Some((None, skip(text)?)) };
        let mut value = None;
        if let Some(after) = rest.strip_prefix('=') {
            match quoted_or_token(after)? {
                Some((found, after)) => (value, rest) = (Some(found), after),
                None => rest = after,
            }
        }
        let mut target = None;
        if has_parameters
            && let Some((name, after)) =
                rest.strip_prefix(';').and_then(|rest| token(rest.trim_start()))
        {
            (target, rest) = (Some(name), after);
        }
        rest = trim_start(rest, " \t");
        let is_clean = rest.is_empty() || rest.starts_with(',');
        Some((Some(Self { name, value, target, is_clean }), rest))
    }

    fn is_for_me(&self, target: Option<fn(&str) -> bool>) -> bool {
        self.target.zip(target).is_none_or(|(name, is_mine)| is_mine(name))
    }
}

/// Returns whether text means a directive that restricts, whatever stands between its letters.
fn restricts(text: &str) -> bool {
    text.split([',', ';', ' ', '\t']).any(|word| {
        let letters =
            word.bytes().filter(u8::is_ascii_alphabetic).map(|it| it.to_ascii_lowercase());
        let is = |name: &[u8]| letters.clone().eq(name.iter().copied());
        is(b"private") || is(b"nostore") || is(b"nocache")
    })
}

/// Returns the text behind a quoted string, or behind one character, or `None` if a quoted string
/// does not end.
fn skip(text: &str) -> Option<&str> {
    match text.strip_prefix('"') {
        Some(inside) => Some(quoted(inside)?.1),
        None => Some(text.get(1..).unwrap_or_default()),
    }
}

/// Returns whether a `Pragma` says `no-cache`.
pub(crate) fn pragma(headers: &HeaderMap) -> bool {
    let no_cache = |line: &HeaderValue| {
        let line = line.as_bytes().to_ascii_lowercase();
        line.windows(b"no-cache".len()).any(|window| window == b"no-cache")
    };
    headers.get_all(PRAGMA).iter().any(no_cache)
}

/// Parses a number of seconds, digits only. A number beyond `u64` becomes `u64::MAX`.
pub(crate) fn seconds(text: &str) -> Option<u64> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    digits.then(|| text.parse().unwrap_or(u64::MAX))
}

/// Sets a lifetime to the least of its values. Returns whether it is invalid or contradicts the
/// other one.
fn set_lifetime(field: &mut Option<u64>, number: Option<u64>) -> bool {
    let known = *field;
    set_least(field, number);
    number.is_none() || known.is_some_and(|known| Some(known) != number)
}

/// Sets a number of seconds to the least of its values. An invalid one is zero.
fn set_least(field: &mut Option<u64>, number: Option<u64>) {
    let permitted = number.unwrap_or(0);
    *field = Some(field.map_or(permitted, |least| least.min(permitted)));
}

fn token(text: &str) -> Option<(&str, &str)> {
    let end = text.find(|character| !is_token(character)).unwrap_or(text.len());
    (end > 0).then(|| text.split_at(end))
}

/// Parses a token or a quoted string. Returns it with the rest of the line, `Some(None)` if there
/// is neither, and `None` if a quoted string does not end.
fn quoted_or_token(text: &str) -> Option<Option<(Cow<'_, str>, &str)>> {
    match text.strip_prefix('"') {
        Some(inside) => quoted(inside).map(|(value, after)| Some((value.into(), after))),
        None => Some(token(text).map(|(value, after)| (value.into(), after))),
    }
}

/// Parses the inside of a quoted string. Returns it with the text behind the closing quote.
fn quoted(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut characters = text.char_indices();
    loop {
        match characters.next()? {
            (end, '"') => return Some((value, text.get(end + 1..)?)),
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
        let found = parse(&["x, MAX-AGE=60,,", " ,\tS-MaxAge=\"5\" , x=\"a,no-store\\\"\""]);
        let both = Directives { max_age: Some(60), s_maxage: Some(5), ..Directives::default() };
        assert_eq!(found, Some(both));
        assert!(parse(&["max-age=1", "No-Store"]).unwrap().no_store);
        assert!(parse(&["Must-Understand, PUBLIC"]).unwrap().must_understand);
        assert_eq!(parse(&["max-age=99999999999999999999"]).unwrap().max_age, Some(u64::MAX));
        assert_eq!(parse(&["max-age=5, max-age=5"]).unwrap().max_age, Some(5));
        assert!(!parse(&["max-age=5, max-age=5"]).unwrap().malformed);
    }

    /// RFC 9111, sections 5.2.2.4 and 5.2.2.7.
    #[test]
    fn a_directive_with_fields_covers_a_response_that_has_one() {
        let mut headers = HeaderMap::new();
        headers.insert("x-user", HeaderValue::from_static("1"));
        for (line, covers) in [
            ("private", true),
            ("private=\"X-User, y\"", true),
            ("private=x-user", true),
            ("private=\"y\", private=\"x-user\"", true),
            ("private=\"\"", true),
            ("private=\"y, a b\"", true),
            ("private=\"y\", private", true),
            ("private=\"set-cookie, y\"", false),
            ("private=y", false),
            ("public", false),
        ] {
            assert_eq!(parse(&[line]).unwrap().private.covers(&headers), covers, "{line}");
            let line = line.replace("private", "no-cache");
            assert_eq!(parse(&[&line]).unwrap().no_cache.covers(&headers), covers, "{line}");
        }
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
            assert!(parse(&[line]).unwrap().revalidates(), "{line}");
        }
    }

    /// RFC 9111, section 4.2.1: an invalid lifetime is stale, and the strictest one holds.
    #[test]
    fn a_malformed_line_is_told_and_permits_nothing() {
        for (line, max_age) in [
            ("max-age", Some(0)),
            ("max-age=", Some(0)),
            ("max-age=-1", Some(0)),
            ("max-age=1.5", Some(0)),
            ("max-age = 1", Some(0)),
            ("max-age= 1", Some(0)),
            ("max-age='1'", Some(0)),
            ("max-age=1 no-store", Some(0)),
            ("max-age=1, max-age=2", Some(1)),
            ("max-age=2, max-age=x, max-age=1", Some(0)),
            ("=1, max-age=3", Some(3)),
            ("\"no-store\", max-age=3", Some(3)),
            ("\"a, max-age=1\" b, max-age=3", Some(3)),
            ("max-age=3; x", Some(0)),
            ("x; max-age=3", Some(3)),
        ] {
            let parsed = parse(&[line]).unwrap();
            assert_eq!((parsed.malformed, parsed.max_age), (true, max_age), "{line}");
        }
        for line in ["max-age=\"1", "x=\"a\\", "no-störe", "a b \"", "max-age=1 \"x"] {
            assert_eq!(parse(&[line]), None, "{line}");
        }
    }

    /// `max-age=60;private` was a lifetime with a parameter, and the response to one user went to
    /// another.
    #[test]
    fn a_restriction_behind_a_wrong_separator_restricts() {
        for separator in [";", "; ", " ", "\t", " ; ", "/", ";;", "\"\"", ";\"x\" ", ";x=1;"] {
            for before in ["max-age=60", "public", "x=\"1\"", "max-age=60, public"] {
                let line = format!("{before}{separator}");
                let directives = |behind| parse(&[&format!("{line}{behind}")]).unwrap();
                assert!(directives("private").malformed, "{line}");
                assert!(directives("no-store").no_store, "{line}");
                assert_eq!(directives("private").private, Scope::All, "{line}");
                assert_eq!(directives("no-cache").no_cache, Scope::All, "{line}");
                assert!(directives("must-revalidate").must_revalidate, "{line}");
            }
        }
    }

    /// `max-age=60, 'private'` was shared.
    #[test]
    fn a_restriction_in_wrong_quotes_restricts() {
        for restriction in [
            "'private'",
            "\"private\"",
            "\"Private, max-age=1\"",
            "'no-store'",
            "\"no-store\"",
            "`no-cache`",
            "no_store",
            "nostore",
            "NoCache",
            "private'",
            "*private*",
            "{private}",
            "(no-store)",
            "\\private",
            "'private'=\"x\"",
            "x=1 'private'",
        ] {
            for line in [format!("max-age=60, {restriction}"), format!("{restriction}, max-age=60")]
            {
                let directives = parse(&[&line]).unwrap();
                assert!(directives.malformed && directives.restricts(), "{line}");
            }
        }
        // `'max-age=60, private'` is a directive and its end.
        assert!(parse(&["'max-age=60, private'"]).unwrap().restricts());
        for line in [
            "max-age=60, x=\"private\"",
            "max-age=60, x=private",
            "max-age=60, x-private",
            "max-age=60, privately",
            "max-age=60, \"private-ish\"",
            "max-age=60, no-transform",
        ] {
            assert!(!parse(&[line]).unwrap().restricts(), "{line}");
        }
    }

    #[test]
    fn a_parameter_names_the_target_of_a_directive() {
        let line = HeaderValue::from_static("max-age=9;other, no-store; Me, private");
        let mine = |name: &str| name.eq_ignore_ascii_case("me");
        let parsed = Directives::parse_lines([&line], Some(mine)).unwrap();
        let expected = Directives { no_store: true, private: Scope::All, ..Directives::default() };
        assert_eq!(parsed, expected);
    }
}
