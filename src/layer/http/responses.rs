//! Decides which responses may be shared: an allow-list.
//!
//! The rules decide before a response is stored or handed to another request. A response is not
//! shared if it has a property that the rules do not know, or a header that they cannot parse.

use std::time::Duration;

use http::{
    HeaderMap, HeaderValue, StatusCode,
    header::{
        AGE, CONNECTION, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, EXPIRES, PROXY_AUTHENTICATE,
        PROXY_AUTHORIZATION, SET_COOKIE, TE, TRAILER, TRANSFER_ENCODING, UPGRADE,
    },
    response::Parts,
};

use super::{
    directives::{Directives, connection, pragma, seconds},
    stale::{StaleRules, StaleWindows},
    vary::names,
};

/// The rules for responses, as far as the user of the layer sets them.
#[derive(Clone, Copy, Debug)]
pub(super) struct ResponseRules {
    /// The largest body that may be shared.
    pub(super) max_body: u64,
    /// The lifetime of a response that has none of its own.
    pub(super) default_lifetime: Option<Duration>,
    /// Responses go only to the callers that wait for them.
    pub(super) coalesce_only: bool,
    /// The windows of a response that has none of its own, and their limit.
    pub(super) stale: StaleRules,
}

/// The classes of responses, judged by their status and headers.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ResponseClass {
    /// May be shared if its body is complete and within the limit.
    Shareable(Freshness),
    /// For its caller alone. The next response will probably be so too.
    Uncacheable,
    /// For its caller alone. It is an error, so the next response may be shareable.
    Failing,
}

/// How long a response may be shared.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Freshness {
    /// The remaining time. Zero if only those may have it that wait for it.
    pub(super) lifetime: Duration,
    /// For how long it may be served stale after that.
    pub(super) stale: StaleWindows,
    /// The age of the response when it arrived, in seconds.
    pub(super) age: u64,
}

impl ResponseRules {
    /// Classifies a response whose body has at least `least` bytes.
    pub(super) fn classify(&self, parts: &Parts, least: u64) -> ResponseClass {
        if parts.status.is_client_error() || parts.status.is_server_error() {
            return ResponseClass::Failing;
        }
        let headers = &parts.headers;
        let forbidden = [SET_COOKIE, CONTENT_RANGE, TRAILER];
        let plain = parts.status == StatusCode::OK
            && !forbidden.iter().any(|name| headers.contains_key(name))
            && names(headers).is_some_and(|names| names.is_empty() || !self.coalesce_only)
            && !pragma(headers)
            && !endless(headers)
            && least <= self.max_body;
        let length = || match content_length(headers) {
            Ok(length) => length.is_none_or(|length| length <= self.max_body),
            Err(Contradiction) => false,
        };
        match self.freshness(headers) {
            Some(freshness) if plain && length() && connection(headers).is_some() => {
                ResponseClass::Shareable(freshness)
            }
            _ => ResponseClass::Uncacheable,
        }
    }

    /// Returns `None` if the response must not be shared, or only while it is validated.
    fn freshness(&self, headers: &HeaderMap) -> Option<Freshness> {
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
        if self.coalesce_only {
            let stale = StaleWindows::default();
            return Some(Freshness { lifetime: Duration::ZERO, stale, age });
        }
        // `max-age=0` forbids sharing, even next to a larger `s-maxage`.
        let lifetime = match (directives.s_maxage, directives.max_age) {
            (Some(0), _) | (_, Some(0)) => return None,
            (Some(seconds), _) | (None, Some(seconds)) => Duration::from_secs(seconds),
            // A date would have to be compared with a clock that may be wrong.
            (None, None) if headers.contains_key(EXPIRES) => return None,
            (None, None) => self.default_lifetime?,
        };
        let lifetime = lifetime.checked_sub(Duration::from_secs(age))?;
        let stale = self.stale.windows(&directives);
        (!lifetime.is_zero()).then_some(Freshness { lifetime, stale, age })
    }
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

/// Returns whether the content type is one of streams without an end.
fn endless(headers: &HeaderMap) -> bool {
    let streams = |line: &HeaderValue| {
        let line = line.as_bytes().to_ascii_lowercase();
        let kind = line.trim_ascii_start();
        kind.starts_with(b"text/event-stream") || kind.starts_with(b"multipart/x-mixed-replace")
    };
    headers.get_all(CONTENT_TYPE).iter().any(streams)
}
