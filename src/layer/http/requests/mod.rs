//! Decides which requests take part: an allow-list.

pub(super) mod key;
pub(super) mod normal;
pub(super) mod query;

use http::{
    HeaderMap, HeaderName, Method,
    header::{AUTHORIZATION, CACHE_CONTROL, CONNECTION, COOKIE, PRAGMA},
    request::Parts,
};
use http_body::Body;

use super::{
    asked::is_term,
    fields::{
        credentials::{HeaderClass, IgnoredCookies, classify},
        directives::{Directives, Scope, pragma},
        framing::names_no_field,
    },
    policy::{Policy, PolicyKind},
    status::Reason,
};

/// Decides about a request that asks for more than a stored response.
///
/// The directives are `no-cache` in `Cache-Control`, and in `Pragma` if there is no
/// `Cache-Control`. `max-age`, `min-fresh`, `max-stale` and `only-if-cached` are not looked at. A
/// request with `no-store` always reaches the inner service.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum RequestDirectives {
    /// The request reaches the inner service, and its response is not stored. The default of both
    /// policies, because the client asks for the response of the service.
    #[default]
    Pass,
    /// The request is treated as if it had none of them. So no client can make the inner service
    /// work for a response that is stored, such as by reloading a page.
    Ignore,
}

/// The rules for requests, as far as the user of the layer sets them.
#[derive(Clone, Debug, Default)]
pub(super) struct RequestRules {
    pub(super) directives: RequestDirectives,
    /// Headers that look like credentials, and that are in the key or declared harmless.
    pub(super) known_headers: Vec<String>,
    pub(super) ignored_cookies: IgnoredCookies,
}

impl RequestRules {
    /// Checks that a request may receive the response to another request, if that may be shared.
    pub(super) fn check(
        &self,
        parts: &Parts,
        body: &impl Body,
        policy: &Policy,
    ) -> Result<(), Reason> {
        let is_head = parts.method == Method::HEAD;
        // If nothing is stored, the whole response would be fetched for each of these.
        let is_get = parts.method == Method::GET;
        if !is_get && (policy.coalesces || !is_head) {
            return Err(Reason::Method);
        }
        if !body.is_end_stream() && body.size_hint().exact() != Some(0) {
            return Err(Reason::Body);
        }
        let headers = &parts.headers;
        let forbids = |name: &&HeaderName| match is_term(name) {
            true => policy.coalesces,
            false => !self.permits(name, headers, policy),
        };
        headers.keys().find(forbids).map_or(Ok(()), |name| Err(Reason::Header(name.clone())))
    }

    fn permits(&self, name: &HeaderName, headers: &HeaderMap, policy: &Policy) -> bool {
        let is_careful = policy.kind == PolicyKind::Careful;
        let accepts_no_cache = policy.coalesces || self.directives != RequestDirectives::Pass;
        match *name {
            // The response says whether it may be shared (RFC 9111, section 3.5).
            AUTHORIZATION | COOKIE if !is_careful => true,
            COOKIE => self.ignored_cookies.cover(headers),
            CONNECTION => names_no_field(headers),
            CACHE_CONTROL => Directives::parse(headers).is_some_and(|wanted| {
                let is_refused = wanted.no_store || (is_careful && wanted.malformed);
                !is_refused && (accepts_no_cache || wanted.no_cache == Scope::Nothing)
            }),
            // Section 5.4: it does not count beside `Cache-Control`.
            PRAGMA if !is_careful && headers.contains_key(CACHE_CONTROL) => true,
            PRAGMA => accepts_no_cache || !pragma(headers),
            _ => match classify(name.as_str()) {
                HeaderClass::Harmless => true,
                HeaderClass::Forbidden => false,
                HeaderClass::Credential => {
                    !is_careful || self.known_headers.iter().any(|known| name == known.as_str())
                }
            },
        }
    }
}
