//! The settings that decide what is shared, and between which requests.

use std::{sync::Arc, time::Duration};

use http::request::Parts;

use super::{BellwetherLayer, Http, requests::key::header_part};

impl BellwetherLayer<Http> {
    /// Sets how long a response is shared that names no lifetime of its own. Without it, such a
    /// response is not shared.
    ///
    /// It is at most the [`ttl`](crate::cache::Builder::ttl) of the cache, 60 s by default.
    /// It applies to a response with neither `s-maxage` nor `max-age` nor `Expires`. Many services
    /// send no such header with any response, private ones included. So set it only where all
    /// responses may be shared, for example route by route.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// use std::time::Duration;
    /// use bellwether::{BellwetherLayer, MemoryBackend, http_cache};
    ///
    /// let cache = http_cache(MemoryBackend::new()).build()?;
    /// let layer = BellwetherLayer::http(cache).default_lifetime(Duration::from_secs(2));
    /// # Ok::<_, bellwether::Error>(()) }).unwrap();
    /// ```
    pub fn default_lifetime(mut self, lifetime: Duration) -> Self {
        self.settings().default_lifetime = Some(lifetime);
        self
    }

    /// Shares a response with the callers that wait for it, and stores nothing.
    ///
    /// A caller that comes while the response is on its way may receive it too, even if a write has
    /// ended since the load began. The next caller begins a new load. A response needs no lifetime
    /// for this, and may have `max-age=0`. But [`rfc9111`](super::Policy::rfc9111) shares none that
    /// says nothing, because its requests may have cookies. A request may have `no-cache`, as those
    /// have that a browser reloads. All other rules hold.
    ///
    /// Another process waits for one load at most. A response that is too large to be
    /// [pushed](crate::backend::RedisBackendBuilder::push_limit) is shared within its process only.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// use bellwether::{BellwetherLayer, MemoryBackend, http_cache};
    ///
    /// let cache = http_cache(MemoryBackend::new()).build()?;
    /// let layer = BellwetherLayer::http(cache).coalesce_only();
    /// # Ok::<_, bellwether::Error>(()) }).unwrap();
    /// ```
    pub fn coalesce_only(mut self) -> Self {
        self.settings().coalesce_only = true;
        self
    }

    /// Adds to the key the identity that a response is made for, or excludes the request by `None`.
    ///
    /// Use it for facts that only the extensions of a request tell. Examples are the user that an
    /// outer layer has authenticated, and the client's address in `ConnectInfo` or its certificate.
    /// Requests with one text share responses. `None` sends the request to the inner service.
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
    /// let cache = http_cache(MemoryBackend::new()).build()?;
    /// let layer = BellwetherLayer::http(cache).identity(
    ///     |parts: &Parts| match parts.extensions.get::<User>() {
    ///         None => Some("anonymous".to_owned()),
    ///         Some(user) if user.is_admin => None,
    ///         Some(user) => Some(format!("plan {}", user.plan)),
    ///     },
    /// );
    /// # Ok::<_, bellwether::Error>(()) }).unwrap();
    /// ```
    ///
    /// An [unsafe request](Self::http) ends the responses of all identities, also if its own is
    /// excluded. They stay in the backend until their lifetime ends, and are found no more. Where
    /// each user changes what is theirs alone, give it a path or a host of its own.
    ///
    /// A request with credentials in its headers still takes no part. If the outer layer has
    /// checked a cookie or a header, and the identity stands for it, add
    /// [`ignore_cookies`](Self::ignore_cookies) or [`ignore_headers`](Self::ignore_headers).
    pub fn identity(
        mut self,
        identity: impl Fn(&Parts) -> Option<String> + Send + Sync + 'static,
    ) -> Self {
        self.settings().key_parts.push(Arc::new(identity));
        self
    }

    /// Adds a header to the key. A header that looks like a credential may then be in a request.
    ///
    /// All lines of the header count. A request in which it is not text takes no part. Of a header
    /// that looks like a credential, only a digest becomes part of the key.
    ///
    /// `Authorization`, `Cookie` and other headers [that exclude a request](Self::http) still do.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// use bellwether::{BellwetherLayer, MemoryBackend, http_cache};
    ///
    /// let cache = http_cache(MemoryBackend::new()).build()?;
    /// let layer = BellwetherLayer::http(cache)
    ///     .vary_by_header("x-tenant")
    ///     .vary_by_header("accept-language");
    /// # Ok::<_, bellwether::Error>(()) }).unwrap();
    /// ```
    pub fn vary_by_header(mut self, name: &str) -> Self {
        let name = name.to_ascii_lowercase();
        let settings = self.settings();
        settings.key_parts.push(header_part(&name));
        settings.requests.known_headers.push(name);
        self
    }

    /// Adds a part to the key: anything that the response depends on beside host, path and query.
    ///
    /// If the response depends on a part of the request that the key does not contain, one caller
    /// receives the response of another.
    ///
    /// Each call adds one part. The parts are joined so that no two lists of parts have the same
    /// key. The backend sees the text of a part in its key names, so return a hash of a secret.
    ///
    /// The layer does not know which headers the function reads. If one of them looks like a
    /// credential, add [`ignore_headers`](Self::ignore_headers), or use
    /// [`vary_by_header`](Self::vary_by_header).
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// use bellwether::{BellwetherLayer, MemoryBackend, http_cache};
    /// use http::request::Parts;
    ///
    /// let cache = http_cache(MemoryBackend::new()).build()?;
    /// let layer = BellwetherLayer::http(cache)
    ///     // Phones get smaller pictures.
    ///     .vary_by(|parts: &Parts| match parts.headers.get("sec-ch-ua-mobile") {
    ///         Some(mobile) if mobile == "?1" => "phone".to_owned(),
    ///         _ => String::new(),
    ///     });
    /// # Ok::<_, bellwether::Error>(()) }).unwrap();
    /// ```
    pub fn vary_by(mut self, part: impl Fn(&Parts) -> String + Send + Sync + 'static) -> Self {
        self.settings().key_parts.push(Arc::new(move |parts| Some(part(parts))));
        self
    }

    /// Declares headers harmless that [look like credentials](Self::http): no response depends on
    /// them.
    ///
    /// It has no effect on `Authorization`, `Cookie` and other headers that always exclude a
    /// request.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// use bellwether::{BellwetherLayer, MemoryBackend, http_cache};
    ///
    /// let cache = http_cache(MemoryBackend::new()).build()?;
    /// let layer = BellwetherLayer::http(cache)
    ///     .ignore_headers(["x-user-timezone", "idempotency-key"]);
    /// # Ok::<_, bellwether::Error>(()) }).unwrap();
    /// ```
    pub fn ignore_headers<N: AsRef<str>>(mut self, names: impl IntoIterator<Item = N>) -> Self {
        let names = names.into_iter().map(|name| name.as_ref().to_ascii_lowercase());
        self.settings().requests.known_headers.extend(names);
        self
    }

    /// Declares cookies harmless: no response depends on them. A name may end with `*`.
    ///
    /// A request takes part if all its cookies are ignored. The inner service still receives them.
    /// The names of cookies are compared with their case. A cookie in which the inner service may
    /// read another one is not ignored. Such a cookie has a `,`, a `&`, a space or another
    /// separator, plain or percent-encoded.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// use bellwether::{BellwetherLayer, MemoryBackend, http_cache};
    ///
    /// let cache = http_cache(MemoryBackend::new()).build()?;
    /// let layer = BellwetherLayer::http(cache)
    ///     .ignore_cookies(["_ga", "_ga_*", "theme"]);
    /// # Ok::<_, bellwether::Error>(()) }).unwrap();
    /// ```
    pub fn ignore_cookies<N: AsRef<str>>(mut self, names: impl IntoIterator<Item = N>) -> Self {
        let settings = self.settings();
        names.into_iter().for_each(|name| settings.requests.ignored_cookies.add(name.as_ref()));
        self
    }
}
