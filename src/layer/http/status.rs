//! The `Cache-Status` of each response (RFC 9211): how the cache answered, or why it did not.

use std::{
    fmt::{self, Display},
    time::Duration,
};

use http::{HeaderName, HeaderValue, Response};

use super::{CachedResponse, Http};
use crate::cache::{Loaded, Source};

/// Why a request is sent to the inner service, or is answered without the cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Forward {
    /// Nothing is stored under its key.
    Miss,
    /// The resource is known, and the variant that it selects is not stored.
    VaryMiss,
    /// The stored response is no longer fresh.
    Stale,
    /// The layer is switched off.
    Switched,
    /// Its method is neither `GET` nor `HEAD`.
    Method,
    /// It has a body.
    Body,
    /// It has this header.
    Header(HeaderName),
    /// It has no key: its host is not clear, or a part of the key excludes it.
    Key,
    /// The answers of its key belong to their callers. This one does so for the reason.
    Uncacheable(Option<&'static str>),
    /// Too many loads are under way.
    Full,
    /// Loads of its key have failed, so the service is left alone for now.
    BackingOff,
}

/// Writes the parameters of a `Cache-Status` header (RFC 9211).
impl Display for Forward {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Miss => "fwd=uri-miss",
            Self::VaryMiss => "fwd=vary-miss",
            Self::Stale => "fwd=stale",
            Self::Switched => "fwd=bypass; detail=switched-off",
            Self::Method => "fwd=method",
            Self::Body => "fwd=bypass; detail=body",
            Self::Header(name) => return write!(f, "fwd=bypass; detail=\"{name}\""),
            Self::Key => "fwd=bypass; detail=key",
            Self::Uncacheable(None) => "fwd=uri-miss; detail=uncacheable",
            Self::Uncacheable(Some(why)) => {
                return write!(f, "fwd=uri-miss; detail=\"uncacheable: {why}\"");
            }
            Self::Full => "fwd=uri-miss; detail=overloaded",
            Self::BackingOff => "detail=backing-off",
        })
    }
}

/// Returns the seconds for which a stored response is still fresh. They are negative if it is not.
pub(super) fn ttl(loaded: &Loaded<CachedResponse>) -> Option<i64> {
    let seconds = |time: Duration| i64::try_from(time.as_secs()).unwrap_or(i64::MAX);
    match loaded.lateness() {
        Some(late) => Some(-seconds(late.saturating_add(Duration::from_nanos(999_999_999)))),
        None => loaded.expires_in().map(seconds),
    }
}

/// Returns the parameters for a response from this source, or for one to its caller alone. It is
/// fresh for so many seconds if it is stored.
fn parameters(forward: &Forward, source: Option<Source>, ttl: Option<i64>) -> String {
    let ttl = ttl.map(|ttl| format!("; ttl={ttl}"));
    match (source, ttl.as_deref().unwrap_or_default()) {
        (Some(Source::Hit | Source::Local), ttl) => format!("hit{ttl}"),
        (Some(Source::Stale), ttl) => format!("hit{ttl}; detail=stale"),
        (None, _) | (Some(Source::Led), "") => forward.to_string(),
        (Some(Source::Led), ttl) => format!("{forward}; stored{ttl}"),
        (Some(Source::Followed | Source::Received), _) => format!("{forward}; collapsed"),
        (Some(Source::Degraded), _) => format!("{forward}; detail=degraded"),
    }
}

impl Http {
    /// Counts a caller that was served from this source, and why no stored response did for it.
    pub(super) fn count_served(&self, source: Source, forward: &Forward) {
        let counters = &self.0.cache.core.counters;
        counters.served(source);
        match (source, forward) {
            (Source::Hit | Source::Local | Source::Stale, _) => {}
            (_, Forward::VaryMiss) => counters.missed_variant.add(),
            (_, Forward::Stale) => counters.missed_stale.add(),
            _ => {}
        }
    }

    /// Adds the header, if that was asked for. A response to its caller alone has no source.
    pub(super) fn explained<B>(
        &self,
        mut response: Response<B>,
        forward: &Forward,
        source: Option<Source>,
        ttl: Option<i64>,
    ) -> Response<B> {
        if self.0.tells_status {
            let status = format!("bellwether; {}", parameters(forward, source, ttl));
            if let Ok(status) = HeaderValue::try_from(status) {
                response.headers_mut().append("cache-status", status);
            }
        }
        response
    }
}
