//! The `Cache-Status` of shared responses (RFC 9211).

use std::time::Duration;

use http::{HeaderValue, Response};

use super::{BellwetherLayer, CachedResponse, Http};
use crate::cache::{Loaded, Source};

/// Returns the parameters for a response from this source, which is fresh for so long if it is
/// stored. A variant was found by a marker, and any other response by its key.
fn parameters(source: Source, ttl: Option<Duration>, is_variant: bool) -> String {
    let ttl = ttl.map(|ttl| ttl.as_secs());
    let miss = if is_variant { "fwd=vary-miss" } else { "fwd=uri-miss" };
    match (source, ttl) {
        (Source::Hit, Some(ttl)) => format!("hit; ttl={ttl}"),
        (Source::Hit, None) => "hit".to_owned(),
        (Source::Stale, _) => "hit; detail=stale".to_owned(),
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
    /// Returns the header of a shared response, if that was asked for.
    pub(super) fn status(
        &self,
        loaded: &Loaded<CachedResponse>,
        is_variant: bool,
    ) -> Option<HeaderValue> {
        let tells = self.0.tells_status;
        tells.then(|| value(loaded.source(), loaded.expires_in(), is_variant)).flatten()
    }

    /// Adds the header to a response from this source, which is to be fresh for so long.
    pub(super) fn with_source<B>(
        &self,
        response: Response<B>,
        source: Source,
        ttl: Option<Duration>,
        is_variant: bool,
    ) -> Response<B> {
        let tells = self.0.tells_status;
        with_status(response, tells.then(|| value(source, ttl, is_variant)).flatten())
    }
}

fn value(source: Source, ttl: Option<Duration>, is_variant: bool) -> Option<HeaderValue> {
    let text = parameters(source, ttl, is_variant);
    HeaderValue::try_from(format!("bellwether; {text}")).ok()
}

impl BellwetherLayer<Http> {
    /// Adds a `Cache-Status` (RFC 9211) to all responses: how the cache answered.
    ///
    /// | parameters | meaning |
    /// |---|---|
    /// | `hit; ttl=…` | stored, and fresh for so many seconds |
    /// | `hit; detail=stale` | stored, and no longer fresh |
    /// | `fwd=uri-miss; stored; ttl=…` | loaded for this request, and stored |
    /// | `fwd=uri-miss; collapsed` | loaded for another request meanwhile |
    /// | `fwd=uri-miss; detail=degraded` | loaded without a lease, and not stored |
    ///
    /// A variant has `vary-miss` in place of `uri-miss`. Other responses have what
    /// [`explain_passes`](Self::explain_passes) says. Defaults to no header, because it tells
    /// clients about the traffic of others.
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
        let ttl = Some(Duration::from_millis(4_900));
        for (source, ttl, expected) in [
            (Source::Hit, ttl, "hit; ttl=4"),
            (Source::Hit, None, "hit"),
            (Source::Stale, None, "hit; detail=stale"),
            (Source::Led, ttl, "fwd=uri-miss; stored; ttl=4"),
            (Source::Led, None, "fwd=uri-miss"),
            (Source::Followed, ttl, "fwd=uri-miss; collapsed"),
            (Source::Received, ttl, "fwd=uri-miss; collapsed"),
            (Source::Degraded, None, "fwd=uri-miss; detail=degraded"),
        ] {
            assert_eq!(parameters(source, ttl, false), expected);
            let of_variant = expected.replace("uri-miss", "vary-miss");
            assert_eq!(parameters(source, ttl, true), of_variant);
        }
    }
}
