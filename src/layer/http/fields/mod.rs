//! The header fields of a message: parsers without any state.
//!
//! - `directives` parses `Cache-Control`, and finds the field that controls this cache.
//! - Here are fields with one value, with names of other fields, and about the connection.

pub(super) mod directives;

use std::time::SystemTime;

use http::{
    HeaderMap, HeaderName, HeaderValue,
    header::{
        CONNECTION, CONTENT_LENGTH, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE, TRAILER,
        TRANSFER_ENCODING, UPGRADE, VARY,
    },
};

use self::directives::seconds;

/// Returns the value of a field. One that is there twice counts as missing.
pub(super) fn sole(headers: &HeaderMap, name: HeaderName) -> Option<&HeaderValue> {
    let mut values = headers.get_all(name).iter();
    let (value, second) = (values.next()?, values.next());
    second.is_none().then_some(value)
}

/// Returns the date in a field. One that is no date, or is there twice, counts as missing.
pub(super) fn date(headers: &HeaderMap, name: HeaderName) -> Option<SystemTime> {
    httpdate::parse_http_date(sole(headers, name)?.to_str().ok()?).ok()
}

/// The most names that are told apart. A response with more is not shared.
const MOST_NAMES: usize = 16;

/// Returns the names in the `Vary` of a response, in order. Returns `None` if no request can be
/// known to select the same response.
pub(crate) fn vary(headers: &HeaderMap) -> Option<Vec<HeaderName>> {
    let mut names = listed(headers, &VARY)?;
    names.sort_unstable_by(|one, other| one.as_str().cmp(other.as_str()));
    names.dedup();
    let is_known = names.len() <= MOST_NAMES && names.iter().all(|name| name != "*");
    is_known.then_some(names)
}

/// Parses the header names in all lines of a field. Returns `None` if one is not a header name.
pub(crate) fn listed(headers: &HeaderMap, field: &HeaderName) -> Option<Vec<HeaderName>> {
    let mut names = Vec::new();
    for line in headers.get_all(field) {
        for name in line.to_str().ok()?.split(',').map(|name| name.trim_matches([' ', '\t'])) {
            if !name.is_empty() {
                names.push(HeaderName::from_bytes(name.as_bytes()).ok()?);
            }
        }
    }
    Some(names)
}

/// Parses the header names in `Connection`. Returns `None` if one is not a header name.
pub(crate) fn connection(headers: &HeaderMap) -> Option<Vec<HeaderName>> {
    listed(headers, &CONNECTION)
}

/// Returns whether `Connection` names no field that a response may depend on, nor an upgrade.
///
/// A service that is a proxy removes the fields that it names (RFC 9110, section 7.6.1). Its origin
/// then sees another request than the one whose key the response would have.
pub(crate) fn names_no_field(headers: &HeaderMap) -> bool {
    let is_option =
        |name: &HeaderName| *name == TE || ["close", "keep-alive"].contains(&name.as_str());
    connection(headers).is_some_and(|names| names.iter().all(is_option))
}

/// The header is there twice, or is not a number.
pub(crate) struct Contradiction;

/// Returns the length of the body if the headers have it.
pub(crate) fn content_length(headers: &HeaderMap) -> Result<Option<u64>, Contradiction> {
    if !headers.contains_key(CONTENT_LENGTH) {
        return Ok(None);
    }
    let length = sole(headers, CONTENT_LENGTH).and_then(|length| seconds(length.to_str().ok()?));
    length.map(Some).ok_or(Contradiction)
}

/// Removes the headers that belong to one connection.
pub(crate) fn strip(headers: &mut HeaderMap) {
    for name in connection(headers).unwrap_or_default() {
        headers.remove(name);
    }
    let hop_by_hop = [
        CONNECTION,
        PROXY_AUTHENTICATE,
        PROXY_AUTHORIZATION,
        TE,
        TRAILER,
        TRANSFER_ENCODING,
        UPGRADE,
    ];
    for name in hop_by_hop {
        headers.remove(name);
    }
    for name in ["keep-alive", "proxy-connection", "proxy-authentication-info"] {
        headers.remove(name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_lines_of_vary_name_headers() {
        let parsed = |lines: &[&str]| {
            let mut headers = HeaderMap::new();
            for line in lines {
                headers.append(VARY, HeaderValue::from_bytes(line.as_bytes()).unwrap());
            }
            let names = vary(&headers)?;
            Some(names.iter().map(HeaderName::as_str).collect::<Vec<_>>().join(" "))
        };
        let many: Vec<_> = (0..17).map(|number| format!("x-{number}")).collect();
        for (lines, expected) in [
            (&[][..], Some("")),
            (&["Origin, accept-encoding,, Origin"], Some("accept-encoding origin")),
            (&["b", " ,\ta"], Some("a b")),
            (&["accept, *"], None),
            (&["*"], None),
            (&["accept encoding"], None),
            (&["\u{e4}"], None),
            (&[&*many.join(",")], None),
        ] {
            assert_eq!(parsed(lines).as_deref(), expected, "{lines:?}");
        }
    }
}
