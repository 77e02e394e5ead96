//! The header fields of a message: parsers without any state.

use std::{borrow::Cow, time::SystemTime};

use http::{
    HeaderMap, HeaderName, HeaderValue,
    header::{CACHE_CONTROL, CONNECTION, PRAGMA, TE, VARY},
};
use sfv::{BareItem, Dictionary, ListEntry, Parser};

const CDN_CACHE_CONTROL: HeaderName = HeaderName::from_static("cdn-cache-control");
const SURROGATE_CONTROL: HeaderName = HeaderName::from_static("surrogate-control");

/// Returns the value of a field. One that is there twice counts as missing.
pub(super) fn sole(headers: &HeaderMap, name: HeaderName) -> Option<&HeaderValue> {
    let mut values = headers.get_all(name).iter();
    let value = values.next()?;
    if values.next().is_some() { None } else { Some(value) }
}

/// Returns the date in a field. One that is no date, or is there twice, counts as missing.
pub(super) fn date(headers: &HeaderMap, name: HeaderName) -> Option<SystemTime> {
    let text = sole(headers, name)?.to_str().ok()?;
    httpdate::parse_http_date(text).ok()
}

/// Returns an entity tag as it is in a weak comparison (RFC 9110, section 8.8.3.2).
pub(super) fn opaque(tag: &[u8]) -> &[u8] {
    tag.strip_prefix(b"W/").unwrap_or(tag)
}

/// The most names that are told apart. A response with more is not shared.
const MOST_NAMES: usize = 16;

/// Returns the names in the `Vary` of a response, in order. Returns `None` if no request can be
/// known to select the same response.
pub(super) fn vary(headers: &HeaderMap) -> Option<Vec<HeaderName>> {
    let mut names = listed(headers, &VARY)?;
    names.sort_unstable_by(|one, other| one.as_str().cmp(other.as_str()));
    names.dedup();
    if names.len() > MOST_NAMES || names.iter().any(|name| name == "*") {
        return None;
    }
    Some(names)
}

/// Parses the header names in all lines of a field. Returns `None` if a text between commas is no
/// header name.
pub(super) fn listed(headers: &HeaderMap, field: &HeaderName) -> Option<Vec<HeaderName>> {
    let mut names = Vec::new();
    for line in headers.get_all(field) {
        for name in line.to_str().ok()?.split(',') {
            let name = name.trim_matches([' ', '\t']);
            if !name.is_empty() {
                names.push(HeaderName::from_bytes(name.as_bytes()).ok()?);
            }
        }
    }
    Some(names)
}

/// Returns whether `Connection` names no field that a response may depend on, nor an upgrade.
///
/// A service that is a proxy removes the fields that `Connection` names (RFC 9110, section 7.6.1).
/// The origin then sees another request than the request whose key the response would have.
pub(super) fn names_no_field(headers: &HeaderMap) -> bool {
    let Some(names) = listed(headers, &CONNECTION) else { return false };
    names.iter().all(|name| *name == TE || matches!(name.as_str(), "close" | "keep-alive"))
}

/// Removes the headers that belong to one connection.
pub(super) fn strip(headers: &mut HeaderMap) {
    for name in listed(headers, &CONNECTION).unwrap_or_default() {
        headers.remove(name);
    }
    let hop_by_hop = [
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authentication-info",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    ];
    for name in hop_by_hop {
        headers.remove(name);
    }
}

/// The directives that decide about sharing (RFC 9111, section 5.2).
///
/// Of directives that contradict each other, the strictest holds. The parser then says that the
/// field is malformed, too.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Directives {
    pub(super) no_store: bool,
    pub(super) no_cache: bool,
    pub(super) private: bool,
    /// A `private` or a `no-cache` is for the whole message, or for a field of the message.
    pub(super) restricts: bool,
    pub(super) public: bool,
    pub(super) must_understand: bool,
    pub(super) must_revalidate: bool,
    pub(super) proxy_revalidate: bool,
    /// Seconds. An invalid number is zero: the response is stale (section 4.2.1).
    pub(super) max_age: Option<u64>,
    /// Seconds, as `max_age`.
    pub(super) s_maxage: Option<u64>,
    /// Seconds (RFC 5861).
    pub(super) stale_while_revalidate: Option<u64>,
    /// Seconds (RFC 5861).
    pub(super) stale_if_error: Option<u64>,
    /// A part could not be parsed, or contradicts another part.
    pub(super) malformed: bool,
    /// A part is no directive, or has text behind its value: the part may mean anything.
    pub(super) is_garbled: bool,
    /// The directives come from the targeted field, so `Cache-Control` and `Expires` do not count.
    pub(super) is_targeted: bool,
    /// The directives are of a `Surrogate-Control`, which has a syntax of its own.
    is_surrogate: bool,
}

impl Directives {
    /// Returns the directives that a response has for this cache: its `CDN-Cache-Control` if that
    /// says anything that this cache knows, else its `Cache-Control`. Without the former, a
    /// `Surrogate-Control` may restrict.
    ///
    /// Returns `None` if a field that counts is not readable.
    pub(super) fn of_response(headers: &HeaderMap) -> Option<Self> {
        if headers.contains_key(CDN_CACHE_CONTROL) {
            let targeted = Self::of_dictionary(headers)?;
            if targeted != Self::default() {
                return Some(Self { is_targeted: true, ..targeted });
            }
        }
        let mut directives = Self::parse(headers, &CACHE_CONTROL)?;
        let surrogate = Self::parse(headers, &SURROGATE_CONTROL)?;
        // Neither `must-understand` nor a policy makes this shareable.
        let is_stale = surrogate.max_age == Some(0) || surrogate.s_maxage == Some(0);
        let is_private = surrogate.no_store || surrogate.no_cache || surrogate.private;
        directives.restricts |= is_private || is_stale || surrogate.is_garbled;
        Some(directives)
    }

    /// Parses `CDN-Cache-Control` (RFC 9213). Returns `None` if the field is no dictionary. A value
    /// of another type than the directive has is invalid.
    fn of_dictionary(headers: &HeaderMap) -> Option<Self> {
        let mut lines = Vec::new();
        for line in headers.get_all(CDN_CACHE_CONTROL) {
            lines.push(line.to_str().ok()?);
        }
        let text = lines.join(",");
        let members: Dictionary = Parser::new(&text).parse().ok()?;
        let mut directives = Self::default();
        for (name, member) in &members {
            let name = name.as_str();
            let names_fields = matches!(name, "private" | "no-cache");
            let value = match member {
                ListEntry::Item(item) => match &item.bare_item {
                    BareItem::Boolean(false) => continue,
                    BareItem::Integer(number) if !names_fields => number.to_string(),
                    BareItem::String(fields) if names_fields => fields.as_str().to_owned(),
                    _ => String::new(),
                },
                ListEntry::InnerList(_) => String::new(),
            };
            directives.set(name, &value, headers);
        }
        Some(directives)
    }

    /// Parses the lines of a field as one list.
    ///
    /// Text that should not be there counts as a directive, too: the text may be a directive that
    /// restricts, behind a wrong separator.
    ///
    /// Returns `None` if a line is not text, or if a quoted string does not end: such a string may
    /// hide anything.
    pub(super) fn parse(headers: &HeaderMap, field: &HeaderName) -> Option<Self> {
        let is_surrogate = *field == SURROGATE_CONTROL;
        let mut directives = Self { is_surrogate, ..Self::default() };
        for line in headers.get_all(field) {
            let mut rest = line.to_str().ok()?.trim_start_matches(SEPARATORS);
            while !rest.is_empty() {
                rest = directives.take(rest, headers)?.trim_start_matches(SEPARATORS);
            }
        }
        Some(directives)
    }

    /// Heeds the element at the start of a text: a name, perhaps with a value. Returns the rest of
    /// the text, or `None` if a quoted string does not end.
    fn take<'a>(&mut self, text: &'a str, headers: &HeaderMap) -> Option<&'a str> {
        let (name, rest) = word(text)?;
        if name.is_empty() || text.starts_with('"') {
            self.suspect(&name);
            return if rest.len() < text.len() { Some(rest) } else { text.get(1..) };
        }
        let (value, rest) = match rest.strip_prefix('=') {
            None => (Cow::default(), rest),
            Some(value) => word(value)?,
        };
        let mut rest = rest.trim_start_matches([' ', '\t']);
        let mut value = &*value;
        if self.is_surrogate {
            rest = behind_target(rest)?;
            value = fresh_part(value);
        }
        // Text behind the value belongs to the value, and makes the value invalid.
        let is_clean = rest.is_empty() || rest.starts_with(',');
        if !is_clean {
            self.garble();
        }
        self.set(&name, if is_clean { value } else { "" }, headers);
        Some(rest)
    }

    fn garble(&mut self) {
        self.malformed = true;
        self.is_garbled = true;
    }

    /// Sets a directive with this value. The value of a directive without a value is empty.
    fn set(&mut self, name: &str, value: &str, headers: &HeaderMap) {
        match name.to_ascii_lowercase().as_str() {
            "no-store" | "no-store-remote" => self.no_store = true,
            "no-cache" => {
                self.no_cache = true;
                self.restricts |= names_any(value, headers);
            }
            "private" => {
                self.private = true;
                self.restricts |= names_any(value, headers);
            }
            "public" => self.public = true,
            "must-understand" => self.must_understand = true,
            "must-revalidate" => self.must_revalidate = true,
            "proxy-revalidate" => self.proxy_revalidate = true,
            "max-age" => self.malformed |= !set_least(&mut self.max_age, value),
            "s-maxage" => self.malformed |= !set_least(&mut self.s_maxage, value),
            // An invalid window is zero.
            "stale-while-revalidate" => _ = set_least(&mut self.stale_while_revalidate, value),
            "stale-if-error" => _ = set_least(&mut self.stale_if_error, value),
            name if means_restriction(name) => self.suspect(name),
            _ => {}
        }
    }

    /// Heeds text that is no directive, but may mean one that restricts: `'private'`, `"no-store"`,
    /// `no_cache`.
    fn suspect(&mut self, text: &str) {
        self.garble();
        self.no_store |= means_restriction(text);
    }
}

/// Returns the text behind the name of the one surrogate that a directive is for, such as
/// `no-store;cdn`. Any surrogate's restriction counts here, because this cache has no name.
fn behind_target(text: &str) -> Option<&str> {
    let Some(target) = text.strip_prefix(';') else { return Some(text) };
    let (_name, rest) = word(target.trim_start_matches([' ', '\t']))?;
    Some(rest.trim_start_matches([' ', '\t']))
}

/// Returns the seconds for which a surrogate may serve a response fresh, of `600+60`. In the
/// seconds behind the `+`, the surrogate may serve the response stale.
fn fresh_part(value: &str) -> &str {
    match value.split_once('+') {
        Some((fresh, stale)) if seconds(stale).is_some() => fresh,
        _ => value,
    }
}

/// Returns whether a message has one of these fields. No names, or a wrong one, mean all fields.
fn names_any(fields: &str, headers: &HeaderMap) -> bool {
    let mut has_names = false;
    for name in fields.split(',') {
        let name = name.trim();
        if name.is_empty() {
            continue;
        }
        has_names = true;
        // A token may have other characters, but `*` and `'x-user'` name no field of a service.
        let is_name =
            name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte));
        if !is_name || headers.contains_key(name) {
            return true;
        }
    }
    !has_names
}

/// Returns whether text means a directive that restricts, whatever stands between its letters.
fn means_restriction(text: &str) -> bool {
    text.split([',', ';', ' ', '\t']).any(|word| {
        let mut letters = word.to_ascii_lowercase();
        letters.retain(|letter| letter.is_ascii_alphabetic());
        matches!(letters.as_str(), "private" | "nostore" | "nocache")
    })
}

/// Returns whether a `Pragma` has `no-cache`, in whatever form.
pub(super) fn pragma(headers: &HeaderMap) -> bool {
    for line in headers.get_all(PRAGMA) {
        let line = line.as_bytes().to_ascii_lowercase();
        if line.windows(b"no-cache".len()).any(|window| window == b"no-cache") {
            return true;
        }
    }
    false
}

/// Parses a number of seconds, digits only. A number beyond `u64` becomes `u64::MAX`.
pub(super) fn seconds(text: &str) -> Option<u64> {
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    Some(text.parse().unwrap_or(u64::MAX))
}

/// Sets a number of seconds to the least of its values. An invalid value counts as zero. Returns
/// whether the value is valid and does not contradict another value.
fn set_least(field: &mut Option<u64>, value: &str) -> bool {
    let number = seconds(value);
    let permitted = number.unwrap_or_default();
    let known = field.unwrap_or(permitted);
    *field = Some(known.min(permitted));
    number.is_some() && known == permitted
}

const SEPARATORS: [char; 3] = [',', ' ', '\t'];

/// Takes a token or a quoted string from the start of a text, where there may be none. Returns the
/// token or the string with the rest of the text. Returns `None` if the string does not end.
fn word(text: &str) -> Option<(Cow<'_, str>, &str)> {
    let Some(inside) = text.strip_prefix('"') else {
        let end = text.find(|character| !is_token(character)).unwrap_or(text.len());
        let (token, rest) = text.split_at(end);
        return Some((token.into(), rest));
    };
    let mut value = String::new();
    let mut characters = inside.chars();
    loop {
        match characters.next()? {
            '"' => return Some((value.into(), characters.as_str())),
            '\\' => value.push(characters.next()?),
            character => value.push(character),
        }
    }
}

fn is_token(character: char) -> bool {
    character.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(character)
}

/// Checks rules that hold for all header lines. The fuzz target `directives` calls it.
#[cfg(any(fuzzing, test))]
pub(crate) fn check_any_lines(lines: &[u8]) {
    let mut valid = Vec::new();
    for line in lines.split(|byte| *byte == b'\n') {
        if HeaderValue::from_bytes(line).is_ok() {
            valid.push(line);
        }
    }
    let all = valid.join(&b'\n');
    let parsed = parse_everywhere(&all);
    assert_eq!(parse_everywhere(&all.to_ascii_uppercase()), parsed, "case matters");
    if let Some(directives) = parsed {
        let joined = parse_everywhere(&valid.join(&b", "[..]));
        assert_eq!(joined.as_ref(), Some(&directives), "several lines differ");
        let restricted = Directives { no_store: true, ..directives };
        let more = parse_everywhere(&[&all, &b"\nno-store"[..]].concat());
        assert_eq!(more, Some(restricted), "a restriction is lost");
    }
}

/// Parses lines as each field that has directives. Returns the directives of a `Cache-Control`.
#[cfg(any(fuzzing, test))]
fn parse_everywhere(lines: &[u8]) -> Option<Directives> {
    let mut headers = HeaderMap::new();
    for line in lines.split(|byte| *byte == b'\n') {
        let Ok(value) = HeaderValue::from_bytes(line) else { continue };
        for name in [CACHE_CONTROL, CONNECTION, SURROGATE_CONTROL, CDN_CACHE_CONTROL] {
            headers.append(name, value.clone());
        }
    }
    let _ = listed(&headers, &CONNECTION);
    let of_response = Directives::of_response(&headers);
    // A dictionary that restricts is never overruled by `Cache-Control`.
    if Directives::of_dictionary(&headers).is_some_and(|directives| directives.no_store) {
        assert!(of_response.is_some_and(|directives| directives.no_store));
    }
    Directives::parse(&headers, &CACHE_CONTROL)
}
