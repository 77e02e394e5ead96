//! Decides what may be shared: an allow-list for requests and one for responses.
//!
//! The rules decide before a response is stored or handed to another request. A response is not
//! shared if it has a property that the rules do not know, or a header that they cannot parse.

use std::time::Duration;

use http::{
    HeaderMap, HeaderName, HeaderValue, Method, StatusCode,
    header::{
        AGE, AUTHORIZATION, CONNECTION, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, COOKIE,
        EXPIRES, PRAGMA, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, RANGE, SET_COOKIE, TE, TRAILER,
        TRANSFER_ENCODING, UPGRADE, VARY,
    },
    request, response,
};
use http_body::Body;

use super::directives::{Directives, connection, seconds};

/// Returns whether a request may receive the response to another request, if that may be shared.
pub(super) fn request_is_shareable<B: Body>(parts: &request::Parts, body: &B) -> bool {
    let headers = &parts.headers;
    let forbidden = |name: &HeaderName| {
        [AUTHORIZATION, PROXY_AUTHORIZATION, COOKIE, RANGE, UPGRADE].contains(name)
            || name.as_str().starts_with("if-")
    };
    let upgrade = |names: Vec<HeaderName>| names.contains(&UPGRADE);
    parts.method == Method::GET
        && (body.is_end_stream() || body.size_hint().exact() == Some(0))
        && !headers.keys().any(forbidden)
        && connection(headers).is_some_and(|names| !upgrade(names))
        && Directives::parse(headers).is_some_and(|wanted| !wanted.no_cache && !wanted.no_store)
        && !pragma(headers)
}

/// The classes of responses, judged by their status and headers.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ResponseClass {
    /// May be shared if its body is complete and within the limit.
    Shareable(Freshness),
    /// For its caller alone. The next response will probably be so too.
    Uncacheable,
    /// For its caller alone. The service has a problem, and the next response may be shareable.
    Failing,
}

/// How long a response may be shared.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Freshness {
    /// The remaining time, or `None` if the response does not limit it.
    pub(super) lifetime: Option<Duration>,
    /// The age of the response when it arrived, in seconds.
    pub(super) age: u64,
}

/// Classifies a response whose body has at least `least` bytes. `limit` is the largest shared body.
pub(super) fn classify(parts: &response::Parts, least: u64, limit: u64) -> ResponseClass {
    if parts.status.is_server_error() || parts.status == StatusCode::TOO_MANY_REQUESTS {
        return ResponseClass::Failing;
    }
    let headers = &parts.headers;
    let forbidden = [SET_COOKIE, VARY, CONTENT_RANGE, TRAILER];
    let plain = parts.status == StatusCode::OK
        && !forbidden.iter().any(|name| headers.contains_key(name))
        && !pragma(headers)
        && !endless(headers)
        && least <= limit;
    let length = || match content_length(headers) {
        Ok(length) => length.is_none_or(|length| length <= limit),
        Err(Contradiction) => false,
    };
    match freshness(headers) {
        Some(freshness) if plain && length() && connection(headers).is_some() => {
            ResponseClass::Shareable(freshness)
        }
        _ => ResponseClass::Uncacheable,
    }
}

/// Returns `None` if the response must not be stored or is not fresh.
fn freshness(headers: &HeaderMap) -> Option<Freshness> {
    let directives = Directives::parse(headers)?;
    if directives.no_store || directives.no_cache || directives.private {
        return None;
    }
    let mut ages = headers.get_all(AGE).iter();
    let age = match (ages.next(), ages.next()) {
        (None, _) => 0,
        (Some(age), None) => seconds(age.to_str().ok()?)?,
        _ => return None,
    };
    // `max-age=0` forbids sharing, even next to a larger `s-maxage`.
    let lifetime = match (directives.s_maxage, directives.max_age) {
        (Some(0), _) | (_, Some(0)) => return None,
        (Some(seconds), _) | (None, Some(seconds)) => Some(seconds.checked_sub(age)?),
        // A date would have to be compared with a clock that may be wrong.
        (None, None) if headers.contains_key(EXPIRES) => return None,
        (None, None) => None,
    };
    (lifetime != Some(0)).then(|| Freshness { lifetime: lifetime.map(Duration::from_secs), age })
}

/// The header is there twice, or is not a number.
pub(super) struct Contradiction;

/// Returns the length of the body if the headers have it.
pub(super) fn content_length(headers: &HeaderMap) -> Result<Option<u64>, Contradiction> {
    let mut lengths = headers.get_all(CONTENT_LENGTH).iter();
    match (lengths.next(), lengths.next()) {
        (None, _) => Ok(None),
        (Some(length), None) => {
            length.to_str().ok().and_then(seconds).map(Some).ok_or(Contradiction)
        }
        _ => Err(Contradiction),
    }
}

/// Removes the headers that belong to one connection.
pub(super) fn strip(headers: &mut HeaderMap) {
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

fn pragma(headers: &HeaderMap) -> bool {
    let no_cache = |line: &HeaderValue| {
        let line = line.as_bytes().to_ascii_lowercase();
        line.windows(b"no-cache".len()).any(|window| window == b"no-cache")
    };
    headers.get_all(PRAGMA).iter().any(no_cache)
}

/// Returns whether the content type is one of streams without an end.
fn endless(headers: &HeaderMap) -> bool {
    let streams = |line: &HeaderValue| {
        let line = line.as_bytes().to_ascii_lowercase();
        let kind = line.trim_ascii_start();
        kind.starts_with(b"text/event-stream") || kind.starts_with(b"multipart/x-mixed-replace")
    };
    headers.get_all(CONTENT_TYPE).iter().any(streams)
}
