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
    /// Nothing is stored under the key of the request.
    Miss,
    /// The resource is known, and the variant that it selects is not stored.
    VaryMiss,
    /// The stored response is no longer fresh.
    Stale,
    /// The layer is switched off.
    Switched,
    /// The method is neither `GET` nor `HEAD`.
    Method,
    /// The request has a body.
    Body,
    /// The request has this header.
    Header(HeaderName),
    /// There is no key: the host is not clear, or a part of the key excludes the request.
    Key,
    /// The answers of the key belong to their callers. This answer does so for the reason.
    Uncacheable(Option<&'static str>),
    /// Too many loads are under way.
    Full,
    /// Loads of the key have failed, so the service is left alone for now.
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

/// Returns the seconds for which a stored response is still fresh. The number is negative if the
/// response is not fresh.
pub(super) fn ttl(loaded: &Loaded<CachedResponse>) -> Option<i64> {
    if let Some(late) = loaded.lateness() {
        let begun_second = late.saturating_add(Duration::from_nanos(999_999_999));
        return Some(-whole_seconds(begun_second));
    }
    Some(whole_seconds(loaded.expires_in()?))
}

fn whole_seconds(time: Duration) -> i64 {
    i64::try_from(time.as_secs()).unwrap_or(i64::MAX)
}

/// Returns the parameters for a response from this source. A response for its caller alone has no
/// source. A stored response is fresh for so many seconds.
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
    /// Adds the header, if a user has set that. A response to its caller alone has no source.
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
