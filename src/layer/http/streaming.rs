//! The settings of responses that are shared while their bodies arrive.

use std::time::Duration;

use super::{BellwetherLayer, CachedResponse, Http, body::collect::BodyLimits};
use crate::cache::{Abandoned, Cache, Request};

/// A body that is silent for longer is a stream, or its sender has gone away.
const IDLE: Duration = Duration::from_secs(10);
/// A body within the size limit that takes longer is a stream.
const TOTAL: Duration = Duration::from_secs(60);
/// Most responses are complete by then, in any process.
const WAIT: Duration = Duration::from_secs(10);

#[derive(Clone, Copy, Debug)]
pub(super) struct Streaming {
    idle: Duration,
    total: Duration,
    wait: Duration,
}

impl Default for Streaming {
    fn default() -> Self {
        Self { idle: IDLE, total: TOTAL, wait: WAIT }
    }
}

impl Streaming {
    /// Returns the request for a response, with these settings.
    pub(super) fn set(&self, request: Request<CachedResponse>) -> Request<CachedResponse> {
        request.rest_limit(self.total).wait_limit_below(self.wait)
    }

    pub(super) fn limits(&self, size: u64, cache: &Cache<CachedResponse>) -> BodyLimits {
        let finish_unread = cache.abandoned() == Abandoned::Finish;
        BodyLimits { size, idle: self.idle, total: self.total, finish_unread }
    }
}

impl BellwetherLayer<Http> {
    /// Sets how long a body that is shared may make no progress. Defaults to 10 s.
    ///
    /// After this time the response is not stored, and no more callers read it. Those that read it
    /// read on, for as long as the inner service sends. So the limit ends no response.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// use std::time::Duration;
    /// use bellwether::{BellwetherLayer, MemoryBackend, http_cache};
    ///
    /// let cache = http_cache(MemoryBackend::new()).build()?;
    /// let layer = BellwetherLayer::http(cache)
    ///     .body_idle_limit(Duration::from_secs(2))
    ///     .body_limit(Duration::from_secs(20))
    ///     .wait_limit(Duration::from_secs(5));
    /// # Ok::<_, bellwether::Error>(()) }).unwrap();
    /// ```
    pub fn body_idle_limit(mut self, limit: Duration) -> Self {
        self.settings().streaming.idle = limit;
        self
    }

    /// Sets how long a body that is shared may take in all. Defaults to 60 s.
    ///
    /// After this time the response is not stored, and no more callers read it. Those that read it
    /// read on. The lease of the load is renewed until then.
    pub fn body_limit(mut self, limit: Duration) -> Self {
        self.settings().streaming.total = limit;
        self
    }

    /// Sets how long a request waits for the response of another process. After that, its process
    /// sends it to the inner service, at most once for all its callers. Defaults to 10 s, and to
    /// the [`wait_limit`](crate::cache::Builder::wait_limit) of the cache if that is shorter.
    ///
    /// Another process has the response when its body is complete. So the limit is what a slow or
    /// endless body of another process costs at most. A limit below the time in which the service
    /// answers lets each process send a request of its own.
    pub fn wait_limit(mut self, limit: Duration) -> Self {
        self.settings().streaming.wait = limit;
        self
    }
}
