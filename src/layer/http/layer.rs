//! How a user makes a layer for HTTP services, and its settings.

use std::{
    fmt,
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderName, Response, request::Parts};

use super::{
    BellwetherLayer, CachedResponse, Http, Policy, Query,
    body::Backlog,
    key::{Target, header_part},
    settings::HttpSettings,
};
use crate::{advice, cache::Cache, error::Error, key::Key};

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
    /// The layer sees the method, the URI and the headers of a request. A response that depends on
    /// anything else needs [`vary_by`](Self::vary_by), and authentication belongs outside of the
    /// layer. [`sharing`](crate::layer::sharing) has all rules: what is shared, for how long, what
    /// ends a stored response, and the answers when the service fails.
    ///
    /// # Errors
    ///
    /// A caller whose request ran receives the error of the service as it is, unless a stale
    /// response hides that. Other callers join the next load. If the key backs off, these callers
    /// receive a response to the failure, which [`on_error`](Self::on_error) replaces.
    ///
    /// # Cancel safety
    ///
    /// A cancelled caller never affects another caller. A request that leads continues in a task of
    /// its own. A request that passes through is cancelled with its caller.
    pub fn http(cache: Cache<CachedResponse>) -> Self {
        Self { mode: Http(Arc::new(HttpSettings::new(cache))) }
    }

    /// Refuses a request that needs a load beyond the [cap on
    /// loads](crate::cache::Builder::max_loads), with the response to an
    /// [`Overloaded`](crate::ErrorKind::Overloaded) error. By default such a request goes to the
    /// inner service.
    ///
    /// Passed requests do not count. Neither choice waits, so slow URLs do not delay others.
    pub fn refuse_overload(self) -> Self {
        self.with(|settings| settings.refuses_overload = true)
    }

    /// Sets the response to callers whose load failed. Defaults to an empty response.
    /// [Errors](crate::layer::sharing#errors) lists the statuses.
    pub fn on_error(
        self,
        response: impl Fn(&Error) -> Response<Bytes> + Send + Sync + 'static,
    ) -> Self {
        self.with(|settings| settings.on_error = Arc::new(response))
    }

    /// Sets which requests and responses are shared. Defaults to `Policy::default()`.
    pub fn policy(self, policy: Policy) -> Self {
        self.with(|settings| settings.policy = policy)
    }

    /// Sets how long a response is shared that names no lifetime of its own. Without this setting,
    /// such a response is not shared.
    ///
    /// Many services name no lifetime with any response, private ones included. So set it only
    /// where all responses may be shared, for example route by route.
    pub fn default_lifetime(self, lifetime: Duration) -> Self {
        self.with(|settings| settings.default_lifetime = Some(lifetime))
    }

    /// Adds a part to the key: anything that the response depends on beside host, path and query,
    /// such as the user that an outer layer has authenticated.
    ///
    /// Without such a part, one caller receives the response of another caller. The part is a text.
    /// If the function returns an `Option`, `None` sends the request to the inner service. The
    /// guide has [a page for each user](crate::guide#a-page-for-each-user). Each call adds one more
    /// part.
    ///
    /// A hit costs one more read, of the marker by which an invalidation ends the responses with
    /// all values of the parts. Where each user changes private pages, give these pages a path or a
    /// host of their own.
    ///
    /// With [`Policy::coalesce_only`](super::Policy::coalesce_only), the text of a part stands in
    /// the key as it is: return a hash of a secret.
    ///
    /// A request with credentials in its headers still takes no part. If an outer layer has checked
    /// a cookie or a header, and a part stands for that, add
    /// [`ignore_cookies`](Self::ignore_cookies) or [`ignore_headers`](Self::ignore_headers).
    pub fn vary_by<T: Into<Option<String>>>(
        self,
        part: impl Fn(&Parts) -> T + Send + Sync + 'static,
    ) -> Self {
        self.with(|settings| {
            settings.key_parts.push(Arc::new(move |parts: &Parts| part(parts).into()));
        })
    }

    /// Adds all lines of a header to the key, as [`vary_by`](Self::vary_by) does a text.
    ///
    /// A header that looks like a credential may then be in a request, and only a digest of it
    /// becomes part of the key. A request in which the header is not text takes no part. Headers
    /// that always exclude a request, such as `Authorization`, still do. A name that no header can
    /// have has no effect, and is warned of.
    pub fn vary_by_header(self, name: &str) -> Self {
        let name = name.to_ascii_lowercase();
        self.with(|settings| {
            settings.key_parts.push(header_part(&name));
            settings.keyed_headers.extend(HeaderName::from_bytes(name.as_bytes()));
            settings.known_headers.push(name);
        })
    }

    /// Sends only these headers to the service with a load whose response may be shared. So no
    /// shared response depends on another header.
    ///
    /// By default all headers are sent, and the names of the headers that forbid sharing are a
    /// [deny-list of words](crate::layer::sharing#headers-that-forbid-sharing). A service that
    /// reads its user in a header that no word describes then has the page of one user shared with
    /// others.
    ///
    /// `Host`, `Cookie`, `Authorization` and the headers [in the key](Self::vary_by_header) are
    /// always sent, and keep their rules. So are the layer's own conditions, and a `Range`. Which
    /// requests take part does not change: a request with a header that looks like a credential
    /// still passes, with all of its headers. A response makes no variants by a header that is not
    /// sent, whatever its `Vary` says.
    ///
    /// A response to such a load may turn out to be for its caller alone. It was made without the
    /// other headers, too. The later requests of its key then pass, for 10 s. Extensions of the
    /// request are sent on, and need [`vary_by`](Self::vary_by). Each call adds more names.
    ///
    /// ```
    /// # fn layer(cache: bellwether::Cache<bellwether::layer::CachedResponse>) {
    /// use bellwether::BellwetherLayer;
    ///
    /// let headers = ["accept", "accept-encoding", "accept-language"];
    /// let layer = BellwetherLayer::http(cache).forward_only(headers);
    /// # }
    /// ```
    pub fn forward_only<N: AsRef<str>>(self, names: impl IntoIterator<Item = N>) -> Self {
        let mut headers = Vec::new();
        for name in names {
            headers.extend(header("forward_only", name.as_ref()));
        }
        self.with(|settings| settings.forwarded.get_or_insert_default().extend(headers))
    }

    /// Replaces a header of each request before its key is made, so that fewer requests differ.
    ///
    /// A response with `Vary: User-Agent` is stored for each `User-Agent` that a client may think
    /// of. Mostly, such a response depends on a few kinds of clients. The function gets the value
    /// of the header, and all of its lines as one value with `, ` between them. It is not called
    /// without the header. If the function returns `None`, or a text that no header can have, the
    /// header is removed.
    ///
    /// The service receives the new value with a load whose response may be shared, so that no
    /// shared response depends on the old value. With a request that passes, the service receives
    /// the old value. Setting the same header again replaces the result of the first function.
    ///
    /// ```
    /// # fn layer(cache: bellwether::Cache<bellwether::layer::CachedResponse>) {
    /// use bellwether::BellwetherLayer;
    ///
    /// let layer = BellwetherLayer::http(cache).normalize("user-agent", |value: &str| {
    ///     let kind = if value.contains("Mobile") { "mobile" } else { "desktop" };
    ///     Some(kind.to_owned())
    /// });
    /// # }
    /// ```
    pub fn normalize(
        self,
        name: &str,
        value: impl Fn(&str) -> Option<String> + Send + Sync + 'static,
    ) -> Self {
        let Some(name) = header("normalize", name) else { return self };
        self.with(|settings| settings.normal_forms.push((name, Arc::new(value))))
    }

    /// Sets what of a query counts, and what of it shows.
    pub fn query(self, query: Query) -> Self {
        self.with(|settings| settings.query = query)
    }

    /// Declares headers harmless that look like
    /// [credentials](crate::layer::sharing#headers-that-forbid-sharing): no response depends on
    /// them.
    ///
    /// It has no effect on `Authorization`, `Cookie` and other headers that always exclude a
    /// request.
    pub fn ignore_headers<N: AsRef<str>>(self, names: impl IntoIterator<Item = N>) -> Self {
        let names = names.into_iter().map(|name| name.as_ref().to_ascii_lowercase());
        self.with(|settings| settings.known_headers.extend(names))
    }

    /// Declares cookies harmless: no response depends on them. A name may end with `*`.
    ///
    /// A request takes part if all its cookies are ignored. The inner service still receives them.
    /// The case of names counts. A cookie with a `,`, a `&`, a space or another separator, plain or
    /// percent-encoded, is not ignored, because the inner service may read another cookie in such a
    /// cookie.
    pub fn ignore_cookies<N: AsRef<str>>(self, names: impl IntoIterator<Item = N>) -> Self {
        let names = names.into_iter().map(|name| name.as_ref().to_owned());
        self.with(|settings| settings.ignored_cookies.extend(names))
    }

    /// Treats a request with `no-cache` in its `Cache-Control` or `Pragma` as any other request. A
    /// browser that reloads a page sends such a request.
    ///
    /// By default such a request reaches the inner service. One with `no-store` always does.
    pub fn ignore_reloads(self) -> Self {
        self.with(|settings| settings.ignores_reloads = true)
    }

    /// Sets for how long a response with a validator is kept for its validation, if the response
    /// may not be served stale. Zero keeps no response. Defaults to 10 minutes.
    ///
    /// No caller is served such a response before the service has answered `304`.
    pub fn keep_for_validation(self, time: Duration) -> Self {
        self.with(|settings| settings.kept_for_validation = time)
    }

    /// Sets for how long a response may be served stale at most, whatever it names itself. Zero
    /// serves no stale response. Defaults to a day.
    pub fn max_stale(self, limit: Duration) -> Self {
        self.with(|settings| settings.max_stale = limit)
    }

    /// Sets how long a body that is shared may take in all. Defaults to 60 s.
    ///
    /// After this time the response is not stored, and no more callers join. Its readers read on.
    pub fn body_limit(self, limit: Duration) -> Self {
        self.with(|settings| settings.body_limit = limit)
    }

    /// Sets how many bytes of one body that is not stored are kept for its slow readers.
    /// Defaults to 8 MiB.
    ///
    /// The callers that share a body read at their own paces. While so many bytes are kept, the
    /// other callers wait for the slowest caller, for as long as they have read. So the slowest
    /// caller may hold the other callers to half of their pace, and no lower. After that the
    /// slowest caller gets [an error](crate::layer::BodyError::Slow).
    pub fn body_backlog(self, bytes: usize) -> Self {
        self.with(|settings| {
            let backlog = Backlog::new(bytes as u64, settings.backlog.of_layer);
            settings.backlog = Arc::new(backlog);
        })
    }

    /// Sets how many bytes of all such bodies are kept for slow readers. Defaults to 64 MiB.
    ///
    /// Beyond that, one caller gets [an error](crate::layer::BodyError::Slow): of the callers that
    /// are behind another caller, the caller that has taken nothing for longest.
    pub fn layer_backlog(self, bytes: usize) -> Self {
        self.with(|settings| {
            let backlog = Backlog::new(settings.backlog.of_body, bytes as u64);
            settings.backlog = Arc::new(backlog);
        })
    }

    /// Lets each request pass to the inner service while a flag is set, as if the layer were not
    /// there. It is a switch for an incident, such as a private page that was served.
    ///
    /// Writes still end the responses that they outdate, and a `PURGE` is answered. What is stored
    /// stays, and is served again when the flag is cleared, unless you [clear](crate::Cache::clear)
    /// the cache or remove it. Requests that already share a response still get that response.
    ///
    /// ```
    /// # fn layers(cache: bellwether::Cache<bellwether::layer::CachedResponse>) {
    /// use std::sync::{Arc, atomic::{AtomicBool, Ordering}};
    /// use bellwether::BellwetherLayer;
    ///
    /// let is_off = Arc::new(AtomicBool::new(false));
    /// let layer = BellwetherLayer::http(cache).pass_if(is_off.clone());
    /// // At night, by a signal or a page for operators:
    /// is_off.store(true, Ordering::Relaxed);
    /// # }
    /// ```
    pub fn pass_if(self, switch: Arc<AtomicBool>) -> Self {
        self.with(|settings| settings.switch = Some(switch))
    }

    /// Answers `PURGE` requests that pass a check. Others go to the inner service. The response to
    /// a `GET` of the same URI ends, with all its variants. A `PURGE` with `Cache-Groups` ends the
    /// responses of these groups of its origin instead, if the cache has
    /// [tags](crate::cache::Builder::tags). A `PURGE` whose groups cannot be ended goes to the
    /// inner service.
    ///
    /// The answer is a `204`, or the response to an [error](Self::on_error) of the backend.
    pub fn purge_if(self, check: impl Fn(&Parts) -> bool + Send + Sync + 'static) -> Self {
        self.with(|settings| settings.purge = Some(Arc::new(check)))
    }

    /// Takes the words of `Surrogate-Key` in a response for groups of the response, as the words of
    /// `Cache-Groups` are. Several caches of other makers know this header.
    ///
    /// A `PURGE` that [passes its check](Self::purge_if) ends the groups in these headers.
    pub fn surrogate_keys(self) -> Self {
        self.with(|settings| settings.surrogate_keys = true)
    }

    /// Adds a [`Cache-Status`](crate::layer::sharing#cache-status) (RFC 9211) to each response: how
    /// the cache answered, or why it did not.
    ///
    /// Defaults to no header, because the header tells clients about the traffic of other clients.
    pub fn cache_status(self) -> Self {
        self.with(|settings| settings.tells_status = true)
    }

    /// Returns the key under which the response to a request with these parts is shared.
    ///
    /// Use it to [invalidate](Cache::invalidate) that response. A `PUT` that outdates the response
    /// to a `GET` has the same key, if its target has the same form.
    ///
    /// If the response has a `Vary`, or if the layer adds [parts](Self::vary_by) to the key, the
    /// cache holds a marker under this key: a response with the status 100. All responses below a
    /// marker end with the marker. [`expire`](Cache::expire) and
    /// [`touch`](crate::cache::Request::touch) act on the marker alone.
    ///
    /// Returns `None` if the host is not clear, or if the request has no path. With
    /// [`coalesce_only`](super::Policy::coalesce_only), the parts are in the key, and may exclude a
    /// request.
    pub fn key(&self, parts: &Parts) -> Option<Key> {
        let mut normal = parts.clone();
        self.mode.normalize(&mut normal);
        let target = Target::of(&normal)?;
        self.mode.key(&normal, target.scheme, &target.paths)
    }

    fn with(mut self, set: impl FnOnce(&mut HttpSettings)) -> Self {
        set(Arc::make_mut(&mut self.mode.0));
        self
    }
}

/// Returns the name of a header that a user has set.
fn header(setting: &'static str, name: &str) -> Option<HeaderName> {
    let header = HeaderName::from_bytes(name.as_bytes()).ok();
    if header.is_none() {
        advice::no_header(setting, name);
    }
    header
}

impl fmt::Debug for Http {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Http")
            .field("cache", &self.0.cache)
            .field("default_lifetime", &self.0.default_lifetime)
            .finish_non_exhaustive()
    }
}
