//! The `Cache-Status` of shared responses (RFC 9211).

use std::time::Duration;

use http::{HeaderValue, Response};

use super::{BellwetherLayer, CachedResponse, Http};
use crate::cache::{Loaded, Source};

/// Why a request is sent to the inner service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Forward {
    /// Nothing is stored under its key.
    Miss,
    /// The resource is known, and the variant that it selects is not stored.
    VaryMiss,
    /// The stored response is no longer fresh.
    Stale,
}

impl Forward {
    /// Returns why a request is sent that wants a variant or the one response of a resource.
    pub(super) fn of(is_variant: bool, is_stale: bool) -> Self {
        match is_stale {
            true => Self::Stale,
            false if is_variant => Self::VaryMiss,
            false => Self::Miss,
        }
    }

    fn parameter(self) -> &'static str {
        match self {
            Self::Miss => "fwd=uri-miss",
            Self::VaryMiss => "fwd=vary-miss",
            Self::Stale => "fwd=stale",
        }
    }
}

/// Returns the seconds for which a stored response is still fresh. They are negative if it is not.
fn ttl(loaded: &Loaded<CachedResponse>) -> Option<i64> {
    let seconds = |time: Duration| i64::try_from(time.as_secs()).unwrap_or(i64::MAX);
    match loaded.lateness() {
        Some(late) => Some(-seconds(late.saturating_add(Duration::from_nanos(999_999_999)))),
        None => loaded.expires_in().map(seconds),
    }
}

/// Returns the parameters for a response from this source, which is fresh for so many seconds if it
/// is stored.
fn parameters(source: Source, ttl: Option<i64>, forward: Forward) -> String {
    let miss = forward.parameter();
    match (source, ttl) {
        (Source::Hit | Source::Local, Some(ttl)) => format!("hit; ttl={ttl}"),
        (Source::Hit | Source::Local, None) => "hit".to_owned(),
        (Source::Stale, Some(ttl)) => format!("hit; ttl={ttl}; detail=stale"),
        (Source::Stale, None) => "hit; detail=stale".to_owned(),
        (Source::Led, Some(ttl)) => format!("{miss}; stored; ttl={ttl}"),
        (Source::Followed | Source::Received, _) => format!("{miss}; collapsed"),
        (Source::Degraded, _) => format!("{miss}; detail=degraded"),
        (Source::Led, None) => miss.to_owned(),
    }
}

/// Adds the header to a response, if there is one.
pub(super) fn with_status<B>(
    mut response: Response<B>,
    status: Option<HeaderValue>,
) -> Response<B> {
    if let Some(status) = status {
        response.headers_mut().append("cache-status", status);
    }
    response
}

impl Http {
    /// Counts a shared response, and returns its header if that was asked for.
    pub(super) fn status(
        &self,
        loaded: &Loaded<CachedResponse>,
        forward: Forward,
    ) -> Option<HeaderValue> {
        self.count_miss(loaded.source(), forward);
        let tells = self.0.tells_status;
        tells.then(|| value(loaded.source(), ttl(loaded), forward)).flatten()
    }

    /// Counts why a response from this source was not a stored one.
    fn count_miss(&self, source: Source, forward: Forward) {
        let counters = self.0.cache.counters();
        match forward {
            _ if matches!(source, Source::Hit | Source::Stale) => {}
            Forward::Miss => {}
            Forward::VaryMiss => counters.missed_variant.add(),
            Forward::Stale => counters.missed_stale.add(),
        }
    }

    /// Counts a response from this source, which is to be fresh for so long, and adds the header.
    pub(super) fn with_source<B>(
        &self,
        response: Response<B>,
        source: Source,
        ttl: Option<Duration>,
        forward: Forward,
    ) -> Response<B> {
        self.count_miss(source, forward);
        let tells = self.0.tells_status;
        let ttl = ttl.and_then(|ttl| i64::try_from(ttl.as_secs()).ok());
        with_status(response, tells.then(|| value(source, ttl, forward)).flatten())
    }
}

fn value(source: Source, ttl: Option<i64>, forward: Forward) -> Option<HeaderValue> {
    let text = parameters(source, ttl, forward);
    HeaderValue::try_from(format!("bellwether; {text}")).ok()
}

impl BellwetherLayer<Http> {
    /// Adds a `Cache-Status` (RFC 9211) to all responses: how the cache answered.
    ///
    /// | parameters | meaning |
    /// |---|---|
    /// | `hit; ttl=…` | stored, and fresh for so many seconds |
    /// | `hit; ttl=-…; detail=stale` | stored, and not fresh for so many seconds |
    /// | `fwd=uri-miss; stored; ttl=…` | loaded for this request, and stored |
    /// | `fwd=uri-miss; collapsed` | loaded for another request meanwhile |
    /// | `fwd=uri-miss; detail=degraded` | loaded without a lease, and not stored |
    ///
    /// In place of `uri-miss`, it is `vary-miss` for a variant. It is `stale` if a response is
    /// stored that is no longer fresh.
    ///
    /// Other responses have what [`explain_passes`](Self::explain_passes) says. Defaults to no
    /// header, because it tells clients about the traffic of others.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// use bellwether::{BellwetherLayer, MemoryBackend, http_cache};
    ///
    /// let cache = http_cache(MemoryBackend::new()).build()?;
    /// let layer = BellwetherLayer::http(cache).cache_status();
    /// # Ok::<_, bellwether::Error>(()) }).unwrap();
    /// ```
    pub fn cache_status(mut self) -> Self {
        self.settings().tells_status = true;
        self.explain_passes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_outcome_has_its_parameters() {
        let ttl = Some(4);
        for (source, ttl, expected) in [
            (Source::Hit, ttl, "hit; ttl=4"),
            (Source::Hit, None, "hit"),
            (Source::Stale, Some(-1), "hit; ttl=-1; detail=stale"),
            (Source::Stale, None, "hit; detail=stale"),
            (Source::Led, ttl, "fwd=uri-miss; stored; ttl=4"),
            (Source::Led, None, "fwd=uri-miss"),
            (Source::Followed, ttl, "fwd=uri-miss; collapsed"),
            (Source::Received, ttl, "fwd=uri-miss; collapsed"),
            (Source::Degraded, None, "fwd=uri-miss; detail=degraded"),
        ] {
            for (forward, word) in [
                (Forward::Miss, "uri-miss"),
                (Forward::VaryMiss, "vary-miss"),
                (Forward::Stale, "stale"),
            ] {
                let expected = expected.replace("uri-miss", word);
                assert_eq!(parameters(source, ttl, forward), expected);
            }
        }
    }
}
