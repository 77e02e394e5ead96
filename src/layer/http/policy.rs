use std::time::Duration;

use http::StatusCode;

use super::{BellwetherLayer, Http};

/// Which requests and responses a layer shares.
///
/// | | [`careful`](Self::careful) | [`rfc9111`](Self::rfc9111) |
/// |---|---|---|
/// | cookies in a request | only if [ignored](BellwetherLayer::ignore_cookies) | do not matter |
/// | `Authorization` in a request | never | with `public`, `s-maxage` or `must-revalidate` |
/// | [headers like credentials](BellwetherLayer::http) | only if named | do not matter |
/// | statuses | `200` | all but `206` and `304` |
/// | no lifetime | the [default one](BellwetherLayer::default_lifetime) | that, or a heuristic |
/// | `Expires` | beside a `Date` | always |
/// | a malformed `Cache-Control` | not shared | counts as stale |
/// | `no-store` beside `must-understand` | not shared | shared if the status is understood |
/// | `private` or `no-cache` for fields | not shared | shared if it has none of these fields |
/// | `Pragma` in a response | not shared | does not matter |
///
/// No policy shares a response with
///
/// - `Set-Cookie`, `Set-Cookie2`, `Authentication-Info` or `Clear-Site-Data`;
/// - `Access-Control-Allow-Origin` other than `*`, or `Access-Control-Allow-Credentials`, unless
///   its `Vary` names `Origin`;
/// - `Content-Encoding`, unless its `Vary` names `Accept-Encoding`;
/// - a redirect to its own host, path and query. It may differ in the scheme, or in parts of the
///   query that are not in the key.
///
/// `CDN-Cache-Control` (RFC 9213) and `Surrogate-Control` take the place of `Cache-Control` and
/// `Expires`. A directive in `Surrogate-Control` may have the target `bellwether`.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// use std::time::Duration;
/// use bellwether::{BellwetherLayer, MemoryBackend, http_cache, layer::Policy};
/// use http::StatusCode;
///
/// let cache = http_cache(MemoryBackend::new()).build()?;
/// let layer = BellwetherLayer::http(cache).policy(
///     Policy::careful().status_lifetime(StatusCode::NOT_FOUND, Duration::from_secs(5)),
/// );
/// # Ok::<_, bellwether::Error>(()) }).unwrap();
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    pub(super) kind: PolicyKind,
    /// The longest lifetime by a heuristic.
    pub(super) heuristic_limit: Duration,
    /// The statuses that may be shared, with the lifetime of those that name none.
    pub(super) statuses: Vec<(StatusCode, Duration)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PolicyKind {
    Careful,
    Rfc9111,
}

impl Policy {
    /// Shares what cannot belong to one user, by an allow-list. The default.
    ///
    /// The docs of [`BellwetherLayer::http`] have the whole list.
    pub fn careful() -> Self {
        Self::new(PolicyKind::Careful, Duration::ZERO)
    }

    /// Shares what RFC 9111 permits to a shared cache.
    ///
    /// The inner service must say what is private: by `Cache-Control`, or by `Vary`. Many services
    /// say nothing. A response that depends on a cookie then goes to all callers, if it names a
    /// lifetime or has a `Last-Modified`.
    pub fn rfc9111() -> Self {
        Self::new(PolicyKind::Rfc9111, Duration::from_secs(86_400))
    }

    fn new(kind: PolicyKind, heuristic_limit: Duration) -> Self {
        Self { kind, heuristic_limit, statuses: Vec::new() }
    }

    /// Sets the longest lifetime by a heuristic: a tenth of the time since `Last-Modified` (RFC
    /// 9111, section 4.2.2). Zero uses no heuristic.
    ///
    /// Defaults to a day for [`rfc9111`](Self::rfc9111), and to zero for
    /// [`careful`](Self::careful).
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use bellwether::layer::Policy;
    /// let policy = Policy::rfc9111().heuristic_limit(Duration::from_secs(60));
    /// ```
    pub fn heuristic_limit(mut self, limit: Duration) -> Self {
        self.heuristic_limit = limit;
        self
    }

    /// Shares responses with this status, and sets the lifetime of those that name none.
    ///
    /// It is meant for `301`, `308`, `404` and `410`. It has no effect on `1xx`, `206` and `304`.
    pub fn status_lifetime(mut self, status: StatusCode, lifetime: Duration) -> Self {
        self.statuses.retain(|(known, _)| *known != status);
        self.statuses.push((status, lifetime));
        self
    }

    pub(super) fn lifetime_of(&self, status: StatusCode) -> Option<Duration> {
        self.statuses.iter().find(|(known, _)| *known == status).map(|(_, lifetime)| *lifetime)
    }
}

impl Default for Policy {
    fn default() -> Self {
        Self::careful()
    }
}

impl BellwetherLayer<Http> {
    /// Sets which requests and responses are shared. Defaults to [`Policy::careful`].
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// use bellwether::{BellwetherLayer, MemoryBackend, http_cache, layer::Policy};
    ///
    /// let cache = http_cache(MemoryBackend::new()).build()?;
    /// let layer = BellwetherLayer::http(cache).policy(Policy::rfc9111());
    /// # Ok::<_, bellwether::Error>(()) }).unwrap();
    /// ```
    pub fn policy(mut self, policy: Policy) -> Self {
        let settings = self.settings();
        settings.requests.policy = policy.kind;
        settings.policy = policy;
        self
    }
}
