//! The layer for HTTP services.
//!
//! `service` handles one request, from its arrival to its response. It uses:
//!
//! - `rules`, the requests and responses that may be shared, with the header parsers in
//!   `directives`;
//! - `key`, the key of a request;
//! - `exchange`, the state that a caller shares with the flight that it may lead;
//! - `collect`, which reads the body of a response that may be shared.
//!
//! [`ResponseBody`] is the body that callers receive, [`CachedResponse`] the response that is
//! stored.

mod body;
mod cached;
mod collect;
mod directives;
mod exchange;
mod key;
mod rules;
mod service;

use std::{fmt, sync::Arc};

use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header::CACHE_CONTROL, request::Parts};
use tokio::time::Instant;

#[cfg(any(fuzzing, test))]
pub(crate) use self::directives::check_any_lines;
pub use self::{
    body::ResponseBody,
    cached::{CachedResponse, ResponseCodec, http_cache},
};

use super::{BellwetherLayer, KeyFor};
use crate::{
    cache::Cache,
    error::{Error, ErrorKind},
    key::Key,
    time::after,
};

/// Shares complete responses to plain `GET`s. The mode of [`BellwetherLayer::http`].
///
/// Clones share one cache and have the same settings.
#[derive(Clone)]
pub struct Http(Arc<HttpSettings>);

#[derive(Clone)]
struct HttpSettings {
    cache: Cache<CachedResponse>,
    max_body: u64,
    vary_by: Vec<VaryBy>,
    on_error: OnError,
}

impl HttpSettings {
    /// Returns the largest body that may be shared, and the deadline for a load that starts now.
    fn body_bounds(&self) -> (u64, Instant) {
        let limit = self.max_body.min(self.cache.value_limit() as u64);
        // The last eighth of the load limit is for handing over a body that is incomplete by then.
        (limit, after(Instant::now(), self.cache.load_limit() / 8 * 7))
    }
}

type VaryBy = Arc<dyn Fn(&Parts) -> String + Send + Sync>;
type OnError = Arc<dyn Fn(&Error) -> Response<Bytes> + Send + Sync>;

impl BellwetherLayer<Http> {
    /// Creates a layer for HTTP services: axum, hyper, or any service from `Request` to `Response`.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// use std::time::Duration;
    /// use axum::{Router, extract::Path, routing::get};
    /// use bellwether::{BellwetherLayer, MemoryBackend, http_cache};
    ///
    /// async fn product(Path(id): Path<u64>) -> String {
    ///     format!("product {id}")
    /// }
    ///
    /// let cache = http_cache(MemoryBackend::new()).ttl(Duration::from_secs(5)).build()?;
    /// let app: Router = Router::new()
    ///     .route("/products/{id}", get(product))
    ///     .layer(BellwetherLayer::http(cache));
    /// # Ok::<_, bellwether::Error>(()) }).unwrap();
    /// ```
    ///
    /// # What is shared
    ///
    /// Sharing follows an allow-list. Every other request passes through as if the layer were not
    /// there, and its response body streams.
    ///
    /// A request takes part if all of these hold:
    ///
    /// - It is a `GET` without a body.
    /// - It has no `Authorization`, `Proxy-Authorization`, `Cookie`, `Range`, `Upgrade`, nor any
    ///   `If-…` header.
    /// - Its `Cache-Control` has neither `no-cache` nor `no-store`, and its `Pragma` has no
    ///   `no-cache`.
    /// - Its host is clear: it has at most one `Host`, which does not contradict the URI. A host
    ///   consists of letters, digits, `-`, `.`, `_` and a port. Requests without a host share among
    ///   themselves.
    ///
    /// A response is shared if all of these hold:
    ///
    /// - It is a `200` whose body is complete and within the [limit](Self::max_body).
    /// - It has no `Set-Cookie`, no `Vary`, no `Content-Range` and no trailers.
    /// - It has no `no-store`, `no-cache`, `private`, `max-age=0` or `s-maxage=0`, and no `Pragma`
    ///   with `no-cache`.
    /// - Its `Age` is below its lifetime.
    /// - It does not have `Expires` as its only lifetime, which would need clocks that agree.
    /// - It is no `text/event-stream` and no `multipart/x-mixed-replace`.
    ///
    /// A header that cannot be parsed forbids sharing. Headers of the connection and extensions are
    /// not shared.
    ///
    /// Compression and CORS set `Vary`, and a response with `Vary` is not shared. So put them
    /// *outside* of this layer. In axum, add them after it.
    ///
    /// # Freshness
    ///
    /// A response is kept as long as the cache keeps values. If its own lifetime is shorter, that
    /// one applies: `s-maxage`, else `max-age`, less its `Age`. A stored response is served with
    /// its `Age`.
    ///
    /// # The key
    ///
    /// The key consists of scheme, host, and path with query. A key that is too long for the cache
    /// is replaced by its SHA-256. Everything else that the response depends on must be added with
    /// [`vary_by`](Self::vary_by).
    ///
    /// With the feature `axum`, the path is the one before [nesting](axum::Router::nest) removed a
    /// prefix. The feature works for routers of axum 0.8. Under nested routers of any other version
    /// or framework, add the original path with [`vary_by`](Self::vary_by). Otherwise `/a/items`
    /// and `/b/items` share one response.
    ///
    /// # Uncacheable responses
    ///
    /// The headers mostly show at once that a response is uncacheable. Its caller then receives it
    /// untouched and streaming. All waiters, in every process, send their own requests in parallel.
    /// For the [`uncacheable_ttl`](crate::cache::Builder::uncacheable_ttl) of the cache, callers of
    /// this key do not wait for each other.
    ///
    /// The same happens to a body that grows over the limit, or that is incomplete by seven eighths
    /// of the [load limit](crate::cache::Builder::load_limit). Its caller receives the part that
    /// was read, then the rest. So the first caller of an endless stream waits that long for
    /// nothing. To avoid this, mark such streams by their content type or with `no-store`.
    ///
    /// After a `5xx` or a `429` the waiters send their own requests too, but the cache does not
    /// remember it. The service will recover, and sharing helps it to recover.
    ///
    /// # Errors
    ///
    /// The service's error is that of the inner service. A leader receives that error as it is. It
    /// also receives a response whose body fails, up to the point of failure. The waiters, and a
    /// leader whose load panicked, timed out or was shut down, receive a response of this layer:
    ///
    /// - `502 Bad Gateway` if the load failed or panicked;
    /// - `504 Gateway Timeout` if it took longer than the load limit;
    /// - `503 Service Unavailable` if too many loads are running, or if the cache was shut down.
    ///
    /// [`on_error`](Self::on_error) replaces these responses.
    ///
    /// # Cancel safety
    ///
    /// A cancelled caller never affects another caller. A request that leads continues in a task of
    /// its own. A request that passes through is cancelled with its caller.
    pub fn http(cache: Cache<CachedResponse>) -> Self {
        let settings = HttpSettings {
            cache,
            max_body: 1 << 20,
            vary_by: Vec::new(),
            on_error: Arc::new(error_response),
        };
        Self { mode: Http(Arc::new(settings)) }
    }

    /// Sets the largest body that is shared, in bytes. Defaults to 1 MiB.
    ///
    /// Each running load holds at most this much memory. The
    /// [`max_value`](crate::cache::Builder::max_value) of the cache, 8 MiB by default, is a limit
    /// too.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// use bellwether::{BellwetherLayer, MemoryBackend, http_cache};
    ///
    /// let cache = http_cache(MemoryBackend::new()).build()?;
    /// let layer = BellwetherLayer::http(cache).max_body(256 << 10);
    /// # Ok::<_, bellwether::Error>(()) }).unwrap();
    /// ```
    pub fn max_body(mut self, bytes: u64) -> Self {
        self.settings().max_body = bytes;
        self
    }

    /// Adds a part to the key: anything that the response depends on beside host, path and query.
    ///
    /// The layer cannot know which parts of a request the inner service reads. Examples are a
    /// header of its own, `X-Forwarded-Host`, a client certificate, an extension that an outer
    /// layer set, and `Accept-Language` for a response without `Vary`. If the response depends on
    /// such a part and the key does not contain it, one caller receives the response of another.
    ///
    /// Each call adds one part. The parts are joined so that no two lists of parts have the same
    /// key. The backend sees the text of a part in its key names, so return a hash of a secret.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// use bellwether::{BellwetherLayer, MemoryBackend, http_cache};
    /// use http::request::Parts;
    ///
    /// let layer = BellwetherLayer::http(http_cache(MemoryBackend::new()).build()?)
    ///     // Each tenant has its own products.
    ///     .vary_by(|parts: &Parts| match parts.headers.get("x-tenant") {
    ///         Some(tenant) => String::from_utf8_lossy(tenant.as_bytes()).into_owned(),
    ///         None => String::new(),
    ///     });
    /// # Ok::<_, bellwether::Error>(()) }).unwrap();
    /// ```
    pub fn vary_by(mut self, part: impl Fn(&Parts) -> String + Send + Sync + 'static) -> Self {
        self.settings().vary_by.push(Arc::new(part));
        self
    }

    /// Sets the response to callers whose load failed. Defaults to an empty 502, 503 or 504.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// use bellwether::{BellwetherLayer, MemoryBackend, http_cache};
    /// use bytes::Bytes;
    /// use http::{Response, StatusCode};
    ///
    /// let cache = http_cache(MemoryBackend::new()).build()?;
    /// let layer = BellwetherLayer::http(cache).on_error(|_error| {
    ///     let mut response = Response::new(Bytes::from("try again later"));
    ///     *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
    ///     response
    /// });
    /// # Ok::<_, bellwether::Error>(()) }).unwrap();
    /// ```
    pub fn on_error(
        mut self,
        response: impl Fn(&Error) -> Response<Bytes> + Send + Sync + 'static,
    ) -> Self {
        self.settings().on_error = Arc::new(response);
        self
    }

    /// Returns the key under which the response to a request with these parts is shared.
    ///
    /// Use it to [invalidate](Cache::invalidate) that response. The key does not depend on the
    /// method, nor on headers other than `Host`. So a `PUT` that outdates the response to a `GET`
    /// has the same key, unless a [`vary_by`](Self::vary_by) part differs.
    ///
    /// Returns `None` if the host is not clear or the request has no path.
    ///
    /// ```
    /// # let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
    /// # runtime.unwrap().block_on(async {
    /// use bellwether::{BellwetherLayer, MemoryBackend, http_cache};
    /// use http::Request;
    ///
    /// let cache = http_cache(MemoryBackend::new()).build()?;
    /// let layer = BellwetherLayer::http(cache.clone());
    /// let put = Request::put("http://shop.example/products/42").body(()).unwrap();
    /// if let Some(key) = layer.key(&put.into_parts().0) {
    ///     cache.invalidate(key).await?;
    /// }
    /// # Ok::<_, bellwether::Error>(()) }).unwrap();
    /// ```
    pub fn key(&self, parts: &Parts) -> Option<Key> {
        self.mode.key_for(parts)
    }

    fn settings(&mut self) -> &mut HttpSettings {
        Arc::make_mut(&mut self.mode.0)
    }
}

impl KeyFor<Parts> for Http {
    fn key_for(&self, parts: &Parts) -> Option<Key> {
        key::key(parts, &self.0.vary_by, self.0.cache.key_limit())
    }
}

/// The default response to callers whose load failed.
fn error_response(error: &Error) -> Response<Bytes> {
    let status = match error.kind() {
        ErrorKind::LoadTimeout => StatusCode::GATEWAY_TIMEOUT,
        ErrorKind::Overloaded | ErrorKind::Cancelled | ErrorKind::ShutDown => {
            StatusCode::SERVICE_UNAVAILABLE
        }
        _ => StatusCode::BAD_GATEWAY,
    };
    let mut response = Response::new(Bytes::new());
    *response.status_mut() = status;
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

impl fmt::Debug for Http {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Http")
            .field("cache", &self.0.cache)
            .field("max_body", &self.0.max_body)
            .finish_non_exhaustive()
    }
}
