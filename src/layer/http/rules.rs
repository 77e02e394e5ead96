//! What may be shared: an allow-list, for requests and for answers.
//!
//! Everything is decided before anything is stored or handed to another request. What these rules do not
//! know, or cannot read, is not shared.

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

/// Whether a request may be answered with what another one was answered, if the answer may be shared.
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
        && Directives::read(headers).is_some_and(|asked| !asked.no_cache && !asked.no_store)
        && !pragma(headers)
}

/// What becomes of an answer, as its headers tell.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// It may be shared, if its body turns out to be complete and within the limit.
    Shareable(Freshness),
    /// It is its caller's own, and the next one will be too.
    Uncacheable,
    /// It is its caller's own, but the next one may well be shareable: the service is in trouble.
    Failing,
}

/// For how long an answer is good.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Freshness {
    /// From now on, if the answer says it.
    pub(super) lifetime: Option<Duration>,
    /// How old it is already, in seconds.
    pub(super) age: u64,
}

/// Whether an answer may be shared whose body is at least `least` and may be at most `limit` bytes.
pub(super) fn answer(parts: &response::Parts, least: u64, limit: u64) -> Answer {
    if parts.status.is_server_error() || parts.status == StatusCode::TOO_MANY_REQUESTS {
        return Answer::Failing;
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
            Answer::Shareable(freshness)
        }
        _ => Answer::Uncacheable,
    }
}

/// None, if it may not be stored, or if it is not fresh.
fn freshness(headers: &HeaderMap) -> Option<Freshness> {
    let said = Directives::read(headers)?;
    if said.no_store || said.no_cache || said.private {
        return None;
    }
    let mut ages = headers.get_all(AGE).iter();
    let age = match (ages.next(), ages.next()) {
        (None, _) => 0,
        (Some(age), None) => seconds(age.to_str().ok()?)?,
        _ => return None,
    };
    // Both, for a max-age of nothing is a no even where a shared cache is told otherwise.
    let lifetime = match (said.s_maxage, said.max_age) {
        (Some(0), _) | (_, Some(0)) => return None,
        (Some(seconds), _) | (None, Some(seconds)) => Some(seconds.checked_sub(age)?),
        // A date, to be compared with a clock that may be wrong.
        (None, None) if headers.contains_key(EXPIRES) => return None,
        (None, None) => None,
    };
    (lifetime != Some(0)).then(|| Freshness { lifetime: lifetime.map(Duration::from_secs), age })
}

/// The header says two things, or nothing that can be read.
pub(super) struct Contradiction;

/// How many bytes the body has, if the headers say it.
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

/// Takes away what belongs to one connection.
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

/// A kind of body that is not meant to end.
fn endless(headers: &HeaderMap) -> bool {
    let streams = |line: &HeaderValue| {
        let line = line.as_bytes().to_ascii_lowercase();
        let kind = line.trim_ascii_start();
        kind.starts_with(b"text/event-stream") || kind.starts_with(b"multipart/x-mixed-replace")
    };
    headers.get_all(CONTENT_TYPE).iter().any(streams)
}
