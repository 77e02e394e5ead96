//! Decides which requests take part: an allow-list.

use http::{
    HeaderMap, HeaderName, Method,
    header::{AUTHORIZATION, CACHE_CONTROL, CONNECTION, COOKIE, PRAGMA, UPGRADE},
    request::Parts,
};
use http_body::Body;

use super::{
    asked::{Asked, is_term},
    cookies::IgnoredCookies,
    credentials::{HeaderClass, classify},
    directives::{Directives, Scope, connection, pragma},
    policy::PolicyKind,
    reason::Reason,
};

/// The rules for requests, as far as the user of the layer sets them.
#[derive(Clone, Debug)]
pub(super) struct RequestRules {
    pub(super) policy: PolicyKind,
    /// Headers that look like credentials, and that are in the key or declared harmless.
    pub(super) known_headers: Vec<String>,
    pub(super) ignored_cookies: IgnoredCookies,
}

impl RequestRules {
    pub(super) fn new(policy: PolicyKind) -> Self {
        Self { policy, known_headers: Vec::new(), ignored_cookies: IgnoredCookies::default() }
    }

    /// Checks that a request may receive the response to another request, if that may be shared.
    /// Returns what it asks of that response.
    pub(super) fn check(
        &self,
        parts: &Parts,
        body: &impl Body,
        coalesce_only: bool,
    ) -> Result<Asked, Reason> {
        let is_head = parts.method == Method::HEAD;
        // If nothing is stored, the whole response would be fetched for each of these.
        let is_get = parts.method == Method::GET;
        if !is_get && (coalesce_only || !is_head) {
            return Err(Reason::Method);
        }
        if !body.is_end_stream() && body.size_hint().exact() != Some(0) {
            return Err(Reason::Body);
        }
        let headers = &parts.headers;
        let mut has_terms = is_head;
        for name in headers.keys() {
            if is_term(name) && !coalesce_only {
                has_terms = true;
            } else if is_term(name) || !self.permits(name, headers, coalesce_only) {
                return Err(Reason::Header(name.clone()));
            }
        }
        Ok(if has_terms { Asked::of(parts) } else { Asked::default() })
    }

    fn permits(&self, name: &HeaderName, headers: &HeaderMap, coalesce_only: bool) -> bool {
        let is_careful = self.policy == PolicyKind::Careful;
        match *name {
            // The response says whether it may be shared (RFC 9111, section 3.5).
            AUTHORIZATION | COOKIE if !is_careful => true,
            COOKIE => self.ignored_cookies.cover(headers),
            CONNECTION => connection(headers).is_some_and(|names| !names.contains(&UPGRADE)),
            CACHE_CONTROL => Directives::parse(headers).is_some_and(|wanted| {
                let is_refused = wanted.no_store || (is_careful && wanted.malformed);
                !is_refused && (coalesce_only || wanted.no_cache == Scope::Nothing)
            }),
            // Section 5.4: it does not count beside `Cache-Control`.
            PRAGMA if !is_careful && headers.contains_key(CACHE_CONTROL) => true,
            PRAGMA => coalesce_only || !pragma(headers),
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
