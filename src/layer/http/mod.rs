//! The layer for HTTP services.
//!
//! `rules` say which requests and answers may be shared, `directives` read the headers that the rules
//! ask for, `key` names what a request asks for. `service` goes the way of one request; `own` is what its
//! caller and the flight that he may lead hold together. `collect` reads the body of an answer that may be
//! shared, [`ResponseBody`] is what callers get, and [`CachedResponse`] is what is stored.

mod body;
mod cached;
mod collect;
mod directives;
mod key;
mod own;
mod rules;
mod service;

use std::{fmt, sync::Arc};

use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header::CACHE_CONTROL, request::Parts};

pub use self::{
    body::ResponseBody,
    cached::{CachedResponse, ResponseCodec, http_cache},
};

use super::{BellwetherLayer, KeyFor};
use crate::{
    cache::Cache,
    error::{Error, ErrorKind},
    key::Key,
};

/// What [`BellwetherLayer::http`] shares: complete answers to plain `GET`s.
///
/// Clones are the same cache and settings.
#[derive(Clone)]
pub struct Http(Arc<Settings>);

#[derive(Clone)]
struct Settings {
    cache: Cache<CachedResponse>,
    max_body: u64,
    vary_by: Vec<VaryBy>,
    on_error: OnError,
}

type VaryBy = Arc<dyn Fn(&Parts) -> String + Send + Sync>;
type OnError = Arc<dyn Fn(&Error) -> Response<Bytes> + Send + Sync>;

impl BellwetherLayer<Http> {
    /// A layer for HTTP services: axum, hyper, or any that takes a `Request` and answers a `Response`.
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
    /// Only what the following allows. Everything else passes through as if the layer were not there, its
    /// bodies streaming.
    ///
    /// A request takes part if it is a `GET` without a body; without `Authorization`,
    /// `Proxy-Authorization`, `Cookie`, `Range`, `Upgrade`, and any `If-…`; without `no-cache` or `no-store`
    /// in its `Cache-Control` or `Pragma`; and if its host is clear: at most one `Host`, of letters, digits,
    /// `-`, `.`, `_` and a port, that does not contradict the URI. (Requests that name no host at all share
    /// among themselves, as for an empty one.)
    ///
    /// An answer is shared if it is a `200` whose body is complete and within the
    /// [limit](Self::max_body); without `Set-Cookie`, `Vary`, `Content-Range` and trailers; without
    /// `no-store`, `no-cache`, `private`, `max-age=0` and `s-maxage=0`; not out of date by its `Age`; not
    /// with `Expires` alone, which would need clocks that agree; and if it is no `text/event-stream` or
    /// `multipart/x-mixed-replace`. Headers that cannot be read count as a no. Headers of the connection
    /// are not shared, nor are extensions.
    ///
    /// So put compression and CORS *outside* of this layer (in axum, add them after it): they set `Vary`,
    /// and what has `Vary` is not shared.
    ///
    /// # For how long
    ///
    /// As long as the cache keeps values, or for the answer's own `s-maxage`, else its `max-age`, less its
    /// `Age`, if that is shorter. A stored answer is served with its `Age`.
    ///
    /// # Under which key
    ///
    /// Scheme, host, and path with query; with the feature `axum` the path before
    /// [nesting](axum::Router::nest) took its prefix off. A key that is too long for the cache is replaced
    /// by its SHA-256. Whatever else decides the answer must be said with [`vary_by`](Self::vary_by).
    ///
    /// # When an answer turns out not to be shareable
    ///
    /// Mostly its headers tell, at once: its caller gets it untouched and streaming, everyone who waited,
    /// here and in other processes, sends his own request, all in parallel; and for the cache's
    /// [`uncacheable_ttl`](crate::cache::Builder::uncacheable_ttl) it is remembered that nobody need wait for
    /// anybody. The same happens when a body grows over the limit, or is not complete by seven eighths of
    /// the cache's [load limit](crate::cache::Builder::load_limit): what was read of it goes to its caller
    /// in front of the rest. So a service that streams without end should say so, by its content type or
    /// by `no-store`, or its first caller waits that long for nothing.
    ///
    /// After a `5xx` or a `429` everyone sends his own request too, but it is not remembered: the service
    /// will recover, and sharing helps it to.
    ///
    /// # Errors
    ///
    /// The service's error is that of the inner service. Who led gets it as it is, and so he gets an answer
    /// whose body breaks off, as far as it came. Who waited for him gets an answer of this layer: `502 Bad
    /// Gateway` if the load failed or panicked, `504 Gateway Timeout` if it took longer than the load
    /// limit, `503 Service Unavailable` if too many loads are running or the cache was shut down;
    /// [`on_error`](Self::on_error) replaces them. A panic, a time-out or a shutdown gives the one who led
    /// this answer as well.
    ///
    /// # Cancel safety
    ///
    /// A caller who goes away costs no other anything: a request that leads runs on in a task of its own,
    /// one that passes through ends with its caller.
    pub fn http(cache: Cache<CachedResponse>) -> Self {
        let settings =
            Settings { cache, max_body: 1 << 20, vary_by: Vec::new(), on_error: Arc::new(refuse) };
        Self { mode: Http(Arc::new(settings)) }
    }

    /// The largest body that is shared, in bytes: 1 MiB unless set.
    ///
    /// Each load that is under way holds so much memory at most. The cache's
    /// [`max_value`](crate::cache::Builder::max_value), 8 MiB unless set, bounds it too.
    pub fn max_body(mut self, bytes: u64) -> Self {
        self.settings().max_body = bytes;
        self
    }

    /// Makes something else a part of the key: whatever decides the answer beside host, path and query.
    ///
    /// This layer cannot know what the inner service looks at. A header of its own, `X-Forwarded-Host`,
    /// `Accept-Language` if the answer has no `Vary`, a client certificate, an extension that an outer
    /// layer has set: if it changes the answer and is not said here, one caller gets what is another's.
    /// Called several times, all of it is part of the key; the parts are joined so that they cannot be
    /// taken for each other. The text stands in the names that the backend sees, so return a hash of what
    /// is secret.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// use bellwether::{BellwetherLayer, MemoryBackend, http_cache};
    /// use http::request::Parts;
    ///
    /// let layer = BellwetherLayer::http(http_cache(MemoryBackend::new()).build()?)
    ///     // Each tenant has products of his own.
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

    /// What callers are answered whose load failed: 502, 503 or 504 without a body unless set.
    pub fn on_error(
        mut self,
        answer: impl Fn(&Error) -> Response<Bytes> + Send + Sync + 'static,
    ) -> Self {
        self.settings().on_error = Arc::new(answer);
        self
    }

    /// The key under which the answer to a request with these parts is shared, to
    /// [invalidate](Cache::invalidate) it; none, if its host is not clear or it has no path.
    ///
    /// The method and the other headers are not looked at, so this is the key of a `GET` even for the
    /// `PUT` that makes its answer outdated.
    pub fn key(&self, parts: &Parts) -> Option<Key> {
        self.mode.key_for(parts)
    }

    fn settings(&mut self) -> &mut Settings {
        Arc::make_mut(&mut self.mode.0)
    }
}

impl KeyFor<Parts> for Http {
    fn key_for(&self, parts: &Parts) -> Option<Key> {
        key::key(parts, &self.0.vary_by, self.0.cache.key_limit())
    }
}

/// What callers are answered whose load failed, unless something else was set.
fn refuse(error: &Error) -> Response<Bytes> {
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
