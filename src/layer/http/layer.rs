//! How a layer for HTTP services is made, and all its settings.

use std::{fmt, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{Response, request::Parts};

use super::{
    BellwetherLayer, CachedResponse, Http, Policy, Query, VaryBy, key::KeyPart, marks::Marks,
    service::error_response,
};
use crate::{cache::Cache, error::Error, key::Key};

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
    /// let cache = http_cache(MemoryBackend::new(), "shop").build()?;
    /// let app: Router = Router::new().route("/products/{id}", get(product)).layer(
    ///     BellwetherLayer::http(cache).default_lifetime(Duration::from_secs(5)),
    /// );
    /// # Ok::<_, bellwether::Error>(()) }).unwrap();
    /// ```
    ///
    /// Build the cache by [`http_cache`](crate::http_cache), whose defaults are for responses.
    ///
    /// # What the layer cannot see
    ///
    /// The layer sees the method, the URI and the headers of a request. A response that depends on
    /// anything else needs [`vary_by`](Self::vary_by):
    ///
    /// - an extension that an outer layer sets, such as the user or the session;
    /// - the address of the client (`ConnectInfo`), or its certificate;
    /// - a header that the response does not name in its `Vary`, such as `X-Forwarded-Host`;
    /// - authentication *inside* of this layer. A stored response is served before the service
    ///   could refuse the request. Move it outside, or answer with `private`.
    ///
    /// # What is shared
    ///
    /// The default [`Policy`] is an allow-list. Every other request passes through as if the layer
    /// were not there. [`Policy::rfc9111`] shares more. A request takes part if all of these hold:
    ///
    /// - It is a `GET` or a `HEAD` without a body.
    /// - It has no `Authorization`, `Proxy-Authorization` nor `Upgrade`, and no `If-…` header but
    ///   the [conditions](#conditions-and-ranges) of HTTP.
    /// - Its `Connection` names nothing but `close`, `keep-alive` and `TE`.
    /// - It has no header that [changes its method or its path](#headers-that-forbid-sharing), or
    ///   that looks like a credential. The latter may be [in the key](Self::vary_by) or
    ///   [ignored](Self::ignore_headers).
    /// - It has no cookie, unless that is [ignored](Self::ignore_cookies).
    /// - It has no `no-store`, and no `no-cache` unless [reloads are
    ///   ignored](Self::ignore_reloads).
    /// - It has at most one `Host`, which does not contradict the URI. A host consists of letters,
    ///   digits, `-`, `.`, `_` and a port. Requests without a host share among themselves.
    ///
    /// A response is shared if all of these hold:
    ///
    /// - It is a `200` whose body is within the [limit](crate::cache::Builder::max_value). Other
    ///   statuses need a [lifetime](super::Policy::status_lifetime).
    /// - It names its lifetime, or the layer has a [default lifetime](Self::default_lifetime). Its
    ///   age is below that.
    /// - It has no `Set-Cookie`, `Set-Cookie2`, `Authentication-Info`, `Clear-Site-Data` or
    ///   `Content-Range`, no `Vary` with `*`, and no `Trailer`.
    /// - If it has `Content-Encoding`, its `Vary` names `Accept-Encoding`.
    /// - If it is open to the web pages of one origin, its `Vary` names `Origin`: its
    ///   `Access-Control-Allow-Origin` is not `*`, or it permits credentials.
    /// - It is no redirect to its own host, path and query.
    /// - It has no `no-store`, `no-cache`, `private`, `max-age=0` or `s-maxage=0`, and no `Pragma`
    ///   with `no-cache`.
    /// - It is no `text/event-stream` and no `multipart/x-mixed-replace`.
    ///
    /// A header that cannot be parsed forbids sharing. Headers of the connection and extensions are
    /// not shared.
    ///
    /// # Headers that forbid sharing
    ///
    /// A header may change the method or the path of a request if its name contains `method`,
    /// `override` or `rewrite`. So does one with `url`, `uri`, `path` or `query` behind a word such
    /// as `original`, `forwarded`, `request` or `raw`. If a proxy sets one on each request, let an
    /// outer layer remove it.
    ///
    /// A header looks like a credential if its name contains one of these:
    ///
    /// ```text
    /// account assertion auth bearer behalf cert consumer cookie credential csrf customer dpop
    /// email group identity impersonat jwt key login oidc orgid org-id organi passw principal
    /// role saml scope secret sess sign ssl-client subject tenant token user xsrf
    /// ```
    ///
    /// It also does so if one of its words, which `-` and `_` separate, names a tenant
    /// (`workspace`, `team`, ...), a person (`uid`, `member`, ...), a right (`permission`, `acl`,
    /// ...) or a proof (`ticket`, `otp`, ...). `Sec-Fetch-User` and names with `user-agent` do not
    /// count.
    ///
    /// # Other middlewares
    ///
    /// A middleware *outside* of this layer sees all requests, and nothing that it adds to a
    /// response is stored. One *inside* sees the requests that are sent on, and its changes are
    /// stored. From the outside to your service, the right order is: trace, catch panic, a time
    /// limit for callers, compression with weak `ETag`s, CORS, sessions and authentication, this
    /// layer, load shed, concurrency limits and buffers.
    ///
    /// Sessions and authentication check the cookie or the `Authorization`, remove it, and put the
    /// user into an extension, for [`vary_by`](Self::vary_by). A router of axum applies a layer to
    /// each of its routes, so a limit for all of them is a `GlobalConcurrencyLimitLayer`. The
    /// example `middleware` is such a service.
    ///
    /// # The key
    ///
    /// The [key](Self::key) consists of host, path with [query](Self::query), and the
    /// [parts](Self::vary_by) that the layer adds. A proxy in front must keep the `Host` of the
    /// client, or processes with different names share nothing. Only an HTTP/1.1 request whose
    /// target names a scheme has it in its key. A key that is too long for the cache is replaced by
    /// its SHA-256, and so is a query of more than 256 bytes.
    ///
    /// The case of the host, a default port and the case of any percent-encoding do not matter (RFC
    /// 9110, section 4.2.3). A service may take other spellings for another resource. So a request
    /// passes if it has an encoding that is not needed, of a letter or one of `0-9-._~`, or a
    /// segment `.` or `..`. A write to such a path also ends the responses of the path without it.
    ///
    /// With the feature `axum`, the path is the one before [nesting](axum::Router::nest) removed a
    /// prefix, for axum 0.8. Under nested routers of any other version or framework, add the
    /// original path with [`vary_by`](Self::vary_by). Otherwise `/a/items` and `/b/items` share one
    /// response.
    ///
    /// # Variants
    ///
    /// A response with a `Vary` is shared among the requests that agree in all lines of the headers
    /// which it names. Only `Accept-Encoding` is normalised: case, spaces and the order of its
    /// elements do not matter.
    ///
    /// The key of the resource then holds a marker, and its variants have keys of their own. One
    /// invalidation of the key ends all of them. A hit costs two reads. With
    /// [`coalesce_only`](super::Policy::coalesce_only), responses with a `Vary` are not shared.
    ///
    /// # Conditions and ranges
    ///
    /// A shared response answers `HEAD`, `If-None-Match`, `If-Modified-Since`, `Range` and
    /// `If-Range` with a `200`, `206`, `304` or `416`, by RFC 9110. Several ranges in one request
    /// are answered with the whole body, and so is a range while the body arrives. A request with
    /// `If-Match` or `If-Unmodified-Since` passes.
    ///
    /// If nothing is stored, the service receives a `GET` without conditions and ranges, and its
    /// one response answers all callers. The requests for an [uncacheable](#uncacheable-responses)
    /// key reach the service as they are, and so do all with
    /// [`coalesce_only`](super::Policy::coalesce_only).
    ///
    /// # Freshness
    ///
    /// The lifetime of a response is its `s-maxage`, else its `max-age`, else the time from its
    /// `Date` to its `Expires`, else the [default lifetime](Self::default_lifetime). The
    /// [`ttl`](crate::cache::Builder::ttl) of the cache is a cap on it. A stored response is served
    /// with its `Age`. The age at the arrival is the `Age` and the time that the service took, or
    /// the time since the `Date` if that is longer (RFC 9111, section 4.2.3).
    ///
    /// `CDN-Cache-Control` (RFC 9213) takes the place of `Cache-Control` and `Expires`. So the
    /// service may permit sharing here that it forbids to browsers. A `Surrogate-Control` can only
    /// forbid. These fields leave with the response: a CDN in front reads them, too.
    ///
    /// # Stale responses
    ///
    /// A response may have two more windows, which begin together when its lifetime ends (RFC
    /// 5861). Its `stale-while-revalidate` and `stale-if-error` set them, or else the settings of
    /// the cache with [these](crate::cache::Builder::stale_while_revalidate)
    /// [names](crate::cache::Builder::stale_if_error). [`max_stale`](Self::max_stale) is a cap.
    ///
    /// - In the first window all callers receive the stale response at once. One process of the
    ///   fleet sends a request again in the background.
    /// - In the second one a caller waits for the service. It receives the stale response if the
    ///   answer is a `500`, `502`, `503` or `504`, if the service returns an error, or if it takes
    ///   longer than the load limit. Then the key backs off in the whole fleet, and all callers
    ///   receive the stale response at once.
    ///
    /// A response with `must-revalidate` or `proxy-revalidate` is never served stale. The same
    /// holds for one with `s-maxage`, unless it names a window itself.
    ///
    /// A refresh sends a request that takes part, to a fresh clone of the service, in a task of its
    /// own. If its answer cannot be shared, this process tries again after a second at the
    /// earliest. The answer ends the stale response, whether it can be shared or not (RFC 9111,
    /// section 4.3.3). Only a `5xx`, a body that breaks off and an error of the service leave it.
    ///
    /// A refresh or a load that has a stale response sends its `ETag` and its `Last-Modified`. A
    /// `304` renews that response, with the headers of the `304`. A response with a validator that
    /// is never served stale is [kept for that](Self::keep_for_validation), too.
    ///
    /// # Invalidation
    ///
    /// An unsafe request, such as a `POST`, reaches the service. If its answer is no error, the
    /// stored response of its URI ends before the caller gets the answer, with all variants and in
    /// each scheme. So do the responses of its `Location` and `Content-Location`, if these are
    /// relative or name the same host. The responses for each value of [`vary_by`](Self::vary_by)
    /// end in layers with equally many calls of it. While the backend is away, a write ends what
    /// its process remembers, and what is stored may be served again afterwards. A gRPC call ends
    /// nothing. [`purge_if`](Self::purge_if) permits `PURGE` requests.
    ///
    /// If the cache has [tags](crate::cache::Builder::tags), a response belongs to the groups in
    /// its `Cache-Groups`, and the answer to a write ends the groups in its
    /// `Cache-Group-Invalidation` (RFC 9875). A group belongs to its origin: scheme and host.
    ///
    /// # Uncacheable responses
    ///
    /// An uncacheable response goes to its caller untouched, and streams. All waiters, in every
    /// process, send their own requests in parallel. So do later callers, for 10 s. The first
    /// response to a `GET` whose headers allow sharing ends this.
    ///
    /// A `4xx` or `5xx` goes to its caller alone, and its waiters send their own requests. The next
    /// section has the exceptions. But the key never becomes uncacheable by it.
    ///
    /// # Unavailable services
    ///
    /// A `502`, `503` or `504` that no [stale response](#stale-responses) hides goes to its caller.
    /// All others, in every process, receive a `503` with a `Retry-After` while the key backs off:
    /// up to 100 ms after the first failure, and up to 1 s after further ones. The `Retry-After` of
    /// a `503` sets that time, up to a minute. Requests that pass change nothing, and nor do
    /// failures of requests with `Authorization`.
    ///
    /// The cache's [`after_failure`](crate::cache::Builder::after_failure) sets another rule, by
    /// the [status](super::InnerServiceError). With
    /// [`BackOffFromSecond`](crate::cache::AfterFailure::BackOffFromSecond), the callers that wait
    /// for the first failure receive its status. With
    /// [`LoadAgain`](crate::cache::AfterFailure::LoadAgain), they send their own requests, and no
    /// key backs off.
    ///
    /// # Streaming
    ///
    /// A response is shared from its headers on. The callers in this process read the body while it
    /// arrives, from the start and each at its own pace. A caller may join as long as the response
    /// is fresh. The body is in memory once. It is stored when it is complete, and the lease of the
    /// load is renewed until then. Other processes wait for that, up to the
    /// [limit](crate::cache::Builder::wait_limit) of the cache.
    ///
    /// A body that breaks off is an [error](crate::layer::BodyError) for all its readers, never a
    /// clean end, and is not stored. So is one whose length contradicts its `Content-Length`.
    /// Trailers go to the caller whose request ran, and forbid to store the response.
    ///
    /// A body becomes uncacheable if it grows over the [limit](crate::cache::Builder::max_value),
    /// makes no progress for 10 s, or takes [too long](Self::body_limit). Its callers read on, at
    /// the pace of the fastest one. At most as much as that limit is kept for slower ones. While
    /// that is full, the others wait, for a second in all. After that, a reader that is too far
    /// behind gets an error.
    ///
    /// A body that no caller reads any more is read to its end and stored, or to its limits.
    /// [`cancel_abandoned`](crate::cache::Builder::cancel_abandoned) ends it 50 to 100 ms after its
    /// last reader left. A shutdown of the cache ends no body that is read.
    ///
    /// # Errors
    ///
    /// A [stale response](#stale-responses) hides the errors of a load. Without one, a leader
    /// receives the error of the service as it is. The waiters, and a leader whose load panicked,
    /// timed out or was shut down, receive a response of this layer, which
    /// [`on_error`](Self::on_error) replaces:
    ///
    /// - the status of the service if that answered with a failure, and the key does not back off;
    /// - `502 Bad Gateway` if the load failed in another way, or panicked;
    /// - `504 Gateway Timeout` if its headers took longer than the
    ///   [load limit](crate::cache::Builder::load_limit);
    /// - `503 Service Unavailable` if too many callers wait, the key backs off, or the cache was
    ///   shut down. Also if too many loads are running, with
    ///   [`refuse_overload`](Self::refuse_overload). While a key backs off, it has a `Retry-After`.
    ///
    /// After a `500`, an error, a panic or a load limit, a key without a stale response backs off
    /// only if [`after_failure`](crate::cache::Builder::after_failure) of the cache says so.
    ///
    /// # Cancel safety
    ///
    /// A cancelled caller never affects another caller. A request that leads continues in a task of
    /// its own. A request that passes through is cancelled with its caller.
    pub fn http(cache: Cache<CachedResponse>) -> Self {
        Self { mode: Http(Arc::new(HttpSettings::new(cache))) }
    }

    /// Refuses a request that needs a load beyond the
    /// [cap on loads](crate::cache::Builder::max_loads), with the response to an
    /// [`Overloaded`](crate::ErrorKind::Overloaded) error. By default it goes to the inner service.
    ///
    /// Passed requests do not count. Neither choice waits, so slow URLs do not delay others.
    pub fn refuse_overload(mut self) -> Self {
        self.settings().refuses_overload = true;
        self
    }

    /// Sets the response to callers whose load failed. Defaults to an empty response.
    /// [`http`](Self::http) lists its status among the errors.
    pub fn on_error(
        mut self,
        response: impl Fn(&Error) -> Response<Bytes> + Send + Sync + 'static,
    ) -> Self {
        self.settings().on_error = Arc::new(response);
        self
    }

    /// Sets which requests and responses are shared. Defaults to its default.
    pub fn policy(mut self, policy: Policy) -> Self {
        self.settings().policy = policy;
        self
    }

    /// Sets how long a response is shared that names no lifetime of its own. Without it, such a
    /// response is not shared.
    ///
    /// Many services name no lifetime with any response, private ones included. So set it only
    /// where all responses may be shared, for example route by route.
    pub fn default_lifetime(mut self, lifetime: Duration) -> Self {
        self.settings().default_lifetime = Some(lifetime);
        self
    }

    /// Adds a part to the key: anything that the response depends on beside host, path and query.
    ///
    /// Without it, one caller receives the response of another. Each call adds one part:
    ///
    /// - The name of a header. All its lines count. A header that looks like a credential may then
    ///   be in a request, and only a digest of it becomes part of the key. A request in which the
    ///   header is not text takes no part. Headers [that always exclude a request](Self::http),
    ///   such as `Authorization`, still do.
    /// - A function that returns a text, such as the user that an outer layer has authenticated. If
    ///   it returns an `Option`, `None` sends the request to the inner service.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// use bellwether::{BellwetherLayer, MemoryBackend, http_cache};
    /// use http::request::Parts;
    ///
    /// /// An outer layer sets this extension.
    /// #[derive(Clone)]
    /// struct User {
    ///     plan: &'static str,
    ///     is_admin: bool,
    /// }
    ///
    /// let cache = http_cache(MemoryBackend::new(), "pages").build()?;
    /// let layer = BellwetherLayer::http(cache)
    ///     .vary_by("x-tenant")
    ///     // Phones get smaller pictures.
    ///     .vary_by(|parts: &Parts| match parts.headers.get("sec-ch-ua-mobile") {
    ///         Some(mobile) if mobile == "?1" => "phone".to_owned(),
    ///         _ => String::new(),
    ///     })
    ///     .vary_by(|parts: &Parts| match parts.extensions.get::<User>() {
    ///         None => Some("anonymous".to_owned()),
    ///         Some(user) if user.is_admin => None,
    ///         Some(user) => Some(format!("plan {}", user.plan)),
    ///     });
    /// # Ok::<_, bellwether::Error>(()) }).unwrap();
    /// ```
    ///
    /// A hit costs one more read, of the marker by which an invalidation ends the responses with
    /// all values of the parts. Where each user changes what is theirs alone, give it a path or a
    /// host of its own.
    ///
    /// With [`Policy::coalesce_only`](super::Policy::coalesce_only), the text of a part stands in
    /// the key as it is: return a hash of a secret.
    ///
    /// A request with credentials in its headers still takes no part. If an outer layer has checked
    /// a cookie or a header, and a part stands for it, add [`ignore_cookies`](Self::ignore_cookies)
    /// or [`ignore_headers`](Self::ignore_headers).
    pub fn vary_by(mut self, part: impl VaryBy) -> Self {
        let (part, settings) = (part.part(), self.settings());
        settings.known_headers.extend(part.header.clone());
        settings.key_parts.push(part);
        self
    }

    /// Sets what of a query counts, and what of it shows.
    pub fn query(mut self, query: Query) -> Self {
        self.settings().query = query;
        self
    }

    /// Declares headers harmless that [look like credentials](Self::http): no response depends on
    /// them.
    ///
    /// It has no effect on `Authorization`, `Cookie` and other headers that always exclude a
    /// request.
    pub fn ignore_headers<N: AsRef<str>>(mut self, names: impl IntoIterator<Item = N>) -> Self {
        let names = names.into_iter().map(|name| name.as_ref().to_ascii_lowercase());
        self.settings().known_headers.extend(names);
        self
    }

    /// Declares cookies harmless: no response depends on them. A name may end with `*`.
    ///
    /// A request takes part if all its cookies are ignored. The inner service still receives them.
    /// The case of names counts. A cookie with a `,`, a `&`, a space or another separator, plain or
    /// percent-encoded, is not ignored, because the inner service may read another one in it.
    pub fn ignore_cookies<N: AsRef<str>>(mut self, names: impl IntoIterator<Item = N>) -> Self {
        let names = names.into_iter().map(|name| name.as_ref().to_owned());
        self.settings().ignored_cookies.extend(names);
        self
    }

    /// Treats a request with `no-cache` in its `Cache-Control` or `Pragma` as any other one, such
    /// as that of a browser that reloads a page.
    ///
    /// By default such a request reaches the inner service. One with `no-store` always does.
    pub fn ignore_reloads(mut self) -> Self {
        self.settings().ignores_reloads = true;
        self
    }

    /// Sets for how long a response with a validator is kept for its validation, if it may not be
    /// served stale. Zero keeps none. Defaults to 10 minutes.
    ///
    /// No caller is served it before the service has answered `304`.
    pub fn keep_for_validation(mut self, time: Duration) -> Self {
        self.settings().kept_for_validation = time;
        self
    }

    /// Sets for how long a response may be served stale at most, whatever it names itself. Zero
    /// serves no stale response. Defaults to a day.
    pub fn max_stale(mut self, limit: Duration) -> Self {
        self.settings().max_stale = limit;
        self
    }

    /// Sets how long a body that is shared may take in all. Defaults to 60 s.
    ///
    /// After this time the response is not stored, and no more callers join. Its readers read on.
    pub fn body_limit(mut self, limit: Duration) -> Self {
        self.settings().body_limit = limit;
        self
    }

    /// Answers `PURGE` requests that pass a check. Others go to the inner service. The response to
    /// a `GET` of the same URI ends, with all its variants. A `PURGE` with `Cache-Groups` ends the
    /// responses of these groups of its origin instead, if the cache has
    /// [tags](crate::cache::Builder::tags). One whose groups cannot be ended goes to the inner
    /// service.
    ///
    /// The answer is a `204`, or the response to an [error](Self::on_error) of the backend.
    pub fn purge_if(mut self, check: impl Fn(&Parts) -> bool + Send + Sync + 'static) -> Self {
        self.settings().purge = Some(Arc::new(check));
        self
    }

    /// Takes the words of `Surrogate-Key` in a response for groups of it, as those of
    /// `Cache-Groups`. Several caches of other makers know this header.
    ///
    /// A `PURGE` that [passes its check](Self::purge_if) ends the groups in these headers.
    pub fn surrogate_keys(mut self) -> Self {
        self.settings().surrogate_keys = true;
        self
    }

    /// Adds a `Cache-Status` (RFC 9211) to each response of the cache and of the inner service: how
    /// the cache answered.
    ///
    /// | parameters | meaning |
    /// |---|---|
    /// | `hit; ttl=…` | stored, and fresh for so many seconds |
    /// | `hit; ttl=-…; detail=stale` | stored, and not fresh for so many seconds |
    /// | `fwd=uri-miss; stored; ttl=…` | loaded for this request, and stored |
    /// | `fwd=uri-miss; collapsed` | of another request: loaded meanwhile, or still being stored |
    /// | `fwd=uri-miss; detail=degraded` | loaded without a lease, and not stored |
    /// | `fwd=uri-miss` | loaded for this request, and not stored, such as an error |
    ///
    /// In place of `uri-miss`, it is `vary-miss` for a variant, and `stale` beside a stored
    /// response that is no longer fresh.
    ///
    /// A response that did not come from the cache has a `fwd=…` that says why. Its `detail` is
    /// the header of the request that stood in the way, or one of these:
    ///
    /// - `body`: the request has a body.
    /// - `key`: a [`vary_by`](Self::vary_by) returned `None`, or the host or the path is not clear.
    /// - `uncacheable`: its response may not be shared. If this is that response, the reason
    ///   follows: mostly the name of a header, or `lifetime`, if it names none and there is no
    ///   [`default_lifetime`](Self::default_lifetime).
    /// - `overloaded`: as many loads run as the cache [allows](crate::cache::Builder::max_loads).
    ///
    /// A request with another method has `fwd=method`. The layer's own response while a key backs
    /// off has `detail=backing-off` without a `fwd`. Its other responses to
    /// [errors](Self::on_error) have no `Cache-Status`.
    ///
    /// Defaults to no header, because it tells clients about the traffic of others.
    pub fn cache_status(mut self) -> Self {
        self.settings().tells_status = true;
        self
    }

    /// Returns the key under which the response to a request with these parts is shared.
    ///
    /// Use it to [invalidate](Cache::invalidate) that response. A `PUT` that outdates the response
    /// to a `GET` has the same key.
    ///
    /// If the response has a `Vary`, or if the layer adds [parts](Self::vary_by) to the key, the
    /// cache holds a marker under this key: a response with the status 100. All responses below it
    /// end with it. [`expire`](Cache::expire) and [`touch`](crate::cache::Request::touch) act on
    /// the marker alone.
    ///
    /// Returns `None` if the host is not clear, or if the request has no path. With
    /// [`coalesce_only`](super::Policy::coalesce_only), the parts are in the key, and may exclude a
    /// request.
    ///
    /// ```
    /// # let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
    /// # runtime.unwrap().block_on(async {
    /// use bellwether::{BellwetherLayer, MemoryBackend, http_cache};
    /// use http::Request;
    ///
    /// let cache = http_cache(MemoryBackend::new(), "pages").build()?;
    /// let layer = BellwetherLayer::http(cache.clone());
    /// let put = Request::put("http://shop.example/products/42").body(()).unwrap();
    /// if let Some(key) = layer.key(&put.into_parts().0) {
    ///     cache.invalidate(key).await?;
    /// }
    /// # Ok::<_, bellwether::Error>(()) }).unwrap();
    /// ```
    pub fn key(&self, parts: &Parts) -> Option<Key> {
        self.mode.key(parts)
    }

    fn settings(&mut self) -> &mut HttpSettings {
        Arc::make_mut(&mut self.mode.0)
    }
}

#[derive(Clone)]
pub(super) struct HttpSettings {
    pub(super) cache: Cache<CachedResponse>,
    pub(super) marks: Arc<Marks>,
    pub(super) policy: Policy,
    pub(super) key_parts: Vec<KeyPart>,
    pub(super) query: Query,
    /// Headers that look like credentials, and that are in the key or declared harmless.
    pub(super) known_headers: Vec<String>,
    /// The names of cookies that no response depends on. A `*` ends the beginning of names.
    pub(super) ignored_cookies: Vec<String>,
    pub(super) ignores_reloads: bool,
    pub(super) default_lifetime: Option<Duration>,
    pub(super) kept_for_validation: Duration,
    pub(super) max_stale: Duration,
    pub(super) body_limit: Duration,
    pub(super) refuses_overload: bool,
    pub(super) tells_status: bool,
    pub(super) purge: Option<Check>,
    pub(super) surrogate_keys: bool,
    pub(super) on_error: OnError,
}

/// Decides about a request.
pub(super) type Check = Arc<dyn Fn(&Parts) -> bool + Send + Sync>;

pub(super) type OnError = Arc<dyn Fn(&Error) -> Response<Bytes> + Send + Sync>;

impl HttpSettings {
    fn new(cache: Cache<CachedResponse>) -> Self {
        Self {
            cache,
            marks: Arc::new(Marks::new()),
            policy: Policy::default(),
            key_parts: Vec::new(),
            query: Query::default(),
            known_headers: Vec::new(),
            ignored_cookies: Vec::new(),
            ignores_reloads: false,
            default_lifetime: None,
            kept_for_validation: Duration::from_secs(600),
            max_stale: Duration::from_secs(86_400),
            // A body within the size limit that takes longer is a stream.
            body_limit: Duration::from_secs(60),
            refuses_overload: false,
            tells_status: false,
            purge: None,
            surrogate_keys: false,
            on_error: Arc::new(error_response),
        }
    }
}

impl fmt::Debug for Http {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Http")
            .field("cache", &self.0.cache)
            .field("default_lifetime", &self.0.default_lifetime)
            .finish_non_exhaustive()
    }
}
