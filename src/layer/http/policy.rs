use std::{collections::HashMap, time::Duration};

use http::StatusCode;

/// Which requests and responses a layer shares.
///
/// | | default | [`rfc9111`](Self::rfc9111) |
/// |---|---|---|
/// | cookies in a request | only if [ignored] | do not matter |
/// | `Authorization` in a request | never | with `public`, `s-maxage` or `must-revalidate` |
/// | [headers like credentials] | only if named | do not matter |
/// | statuses | `200` | all but `206` and `304` |
/// | no lifetime | the [default one] | that, or a heuristic |
/// | `Expires` | beside a `Date` | always |
/// | a malformed `Cache-Control` | not shared | counts as stale |
/// | `no-store` beside `must-understand` | not shared | shared if the status is understood |
/// | `private` or `no-cache` for fields | not shared | shared if it has none of these fields |
/// | `Pragma` in a response | not shared | does not matter |
///
/// Both follow the rest of the [list], such as for `Set-Cookie`,
/// `Content-Encoding` and responses that are open to one origin. A redirect to its own place may
/// differ in the scheme, or in parts of the query that are not in the key.
///
/// [list]: crate::layer::sharing#what-is-shared
/// [ignored]: crate::BellwetherLayer::ignore_cookies
/// [headers like credentials]: crate::layer::sharing#headers-that-forbid-sharing
/// [default one]: crate::BellwetherLayer::default_lifetime
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    pub(super) is_rfc9111: bool,
    /// The statuses that may be shared, with the lifetime of a response that names none.
    pub(super) statuses: HashMap<StatusCode, Duration>,
    /// A response goes only to the callers that wait for it.
    pub(super) coalesces: bool,
}

impl Policy {
    /// Shares what RFC 9111 permits to a shared cache.
    ///
    /// The inner service must say what is private: by `Cache-Control`, or by `Vary`. Many services
    /// say nothing. A response that depends on a cookie then goes to all callers, if it names a
    /// lifetime or has a `Last-Modified`.
    ///
    /// A response without a lifetime is fresh for a tenth of the time since `Last-Modified` (RFC
    /// 9111, section 4.2.2), up to a day. [`status_lifetime`](Self::status_lifetime) and
    /// [`default_lifetime`](crate::BellwetherLayer::default_lifetime) take its place. Zero shares
    /// no such response.
    pub fn rfc9111() -> Self {
        Self { is_rfc9111: true, ..Self::default() }
    }

    /// Shares responses with this status, and sets the lifetime of a response that names none.
    ///
    /// It is meant for `301`, `308`, `404` and `410`. It has no effect on `1xx`, `206` and `304`.
    pub fn status_lifetime(mut self, status: StatusCode, lifetime: Duration) -> Self {
        self.statuses.insert(status, lifetime);
        self
    }

    /// Shares a response with the callers that wait for it, and stores nothing.
    ///
    /// A caller that comes while the response is on its way may receive the response, too, even if
    /// a write has ended since the load began. The next caller begins a new load. A response needs
    /// no lifetime for this, and may have `max-age=0`. With [`rfc9111`](Self::rfc9111), a request
    /// may have the cookies of its user, so only a response that is fresh when it arrives is shared
    /// (RFC 9111, section 4). A request may have `no-cache`, as the request of a browser that
    /// reloads a page. All other rules hold.
    ///
    /// Another process waits for one load at most. A response that is too large to be
    /// [pushed](crate::backend::RedisBackendBuilder::push_limit) is shared within its process only.
    pub fn coalesce_only(mut self) -> Self {
        self.coalesces = true;
        self
    }
}
