//! Decides which responses may be shared: an allow-list.
//!
//! The rules decide before a response is stored or handed to another request. A response is not
//! shared if it has a property that the rules do not know, or a header that they cannot parse.

pub(super) mod freshness;
pub(super) mod unavailable;
pub(super) mod validation;

use std::time::{Duration, SystemTime};

use http::{
    HeaderMap, HeaderName, HeaderValue, StatusCode,
    header::{
        ACCEPT_ENCODING, ACCESS_CONTROL_ALLOW_CREDENTIALS, ACCESS_CONTROL_ALLOW_ORIGIN,
        CONTENT_ENCODING, CONTENT_RANGE, CONTENT_TYPE, LOCATION, ORIGIN, SET_COOKIE, TRAILER,
    },
    request,
    response::Parts,
    uri::PathAndQuery,
};
use http_body::Body;

pub(super) use self::freshness::Freshness;
use self::freshness::{Named, StaleWindows};
use super::{
    Http,
    fields::{Controls, Directives, Scope, connection, content_length, pragma, vary},
    key::{self, Query},
    policy::PolicyKind,
    question::Question,
    uri::Located,
};

/// Returns whether a `Location` differs from the place of a request at most in the scheme and in
/// parts of the query that are not in the key. A request for that other place may share the key,
/// and would get the redirect again.
fn redirects_to_itself(asked: &request::Parts, answer: &HeaderMap, query: &Query) -> bool {
    let root = PathAndQuery::from_static("/");
    let path = key::original(asked).unwrap_or(&root);
    answer.get_all(LOCATION).iter().any(|location| {
        let Ok(location) = location.to_str() else { return true };
        match Located::resolve(location, path) {
            // Ports differ with the scheme, so they do not count.
            Some(located) => {
                located.is_on_host(asked, false)
                    && query.apply(located.path.as_str()) == query.apply(path.as_str())
            }
            // One that cannot be read may lead anywhere.
            None => location.contains("//"),
        }
    })
}

/// The classes of responses, judged by their status and headers.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ResponseClass {
    /// May be shared if its body is complete and within the limit.
    Shareable(Freshness),
    /// For its caller alone. The next response will probably be so too.
    Uncacheable,
    /// For its caller alone, whose request has credentials. Without them, it could be shared.
    Reserved,
    /// For its caller alone. It is an error, so the next response may be shareable.
    Failing,
}

impl ResponseClass {
    /// Returns the class of a response with this status that is not shared.
    pub(super) fn unshared(status: StatusCode) -> Self {
        match status.is_client_error() || status.is_server_error() {
            true => Self::Failing,
            false => Self::Uncacheable,
        }
    }
}

/// Returns whether a response announces a body that is not there.
pub(super) fn lacks_body(headers: &HeaderMap, body: &impl Body) -> bool {
    let is_announced = content_length(headers).flatten().is_some_and(|length| length > 0);
    is_announced && (body.is_end_stream() || body.size_hint().exact() == Some(0))
}

/// Fields whose response belongs to one caller, whatever it says about caches.
const PERSONAL: [HeaderName; 5] = [
    SET_COOKIE,
    HeaderName::from_static("set-cookie2"),
    HeaderName::from_static("authentication-info"),
    HeaderName::from_static("clear-site-data"),
    TRAILER,
];

impl Http {
    /// Returns the size of the largest body that may be shared.
    pub(super) fn body_size_limit(&self) -> u64 {
        self.0.max_body.min(self.0.cache.settings().max_value as u64)
    }

    /// Classifies the response to a request, which `took` so long.
    pub(super) fn classify(
        &self,
        question: &Question,
        took: Duration,
        parts: &Parts,
        body: &impl Body,
    ) -> ResponseClass {
        let (headers, most) = (&parts.headers, self.body_size_limit());
        let length = || {
            content_length(headers).is_some_and(|length| length.is_none_or(|length| length <= most))
        };
        let is_readable = || connection(headers).is_some() && length() && !endless(headers);
        if body.size_hint().lower() <= most
            && self.is_impersonal(headers)
            && is_readable()
            && let Some(controls) = Controls::of(headers)
            && let Some(freshness) = self.freshness(question, took, parts, &controls)
        {
            return match self.is_reserved(question, &controls.directives) {
                true => ResponseClass::Reserved,
                false => ResponseClass::Shareable(freshness),
            };
        }
        ResponseClass::unshared(parts.status)
    }

    /// Returns whether no field of a response ties it to its caller.
    fn is_impersonal(&self, headers: &HeaderMap) -> bool {
        let is_careful = self.0.policy.kind == PolicyKind::Careful;
        // Requests must be able to tell if they select the response (RFC 9111, section 4.1).
        let Some(names) = vary(headers) else { return false };
        !PERSONAL.iter().any(|name| headers.contains_key(name))
            && (names.is_empty() || !self.0.policy.coalesces)
            && (names.contains(&ORIGIN) || !is_for_one_origin(headers))
            // Some clients cannot read the encoding.
            && (names.contains(&ACCEPT_ENCODING) || !headers.contains_key(CONTENT_ENCODING))
            && !(is_careful && (pragma(headers) || headers.contains_key(CONTENT_RANGE)))
    }

    /// Returns `None` if the response must not be shared, or only while it is validated.
    fn freshness(
        &self,
        question: &Question,
        took: Duration,
        parts: &Parts,
        controls: &Controls,
    ) -> Option<Freshness> {
        if !self.is_storable(question, parts, &controls.directives) {
            return None;
        }
        let received = SystemTime::now();
        let age = freshness::age(&parts.headers, received, took);
        if self.0.policy.coalesces {
            let is_shared = match self.0.policy.kind {
                // Its requests have nothing of their users.
                PolicyKind::Careful => self.is_status_shared(parts.status),
                PolicyKind::Rfc9111 => self.lifetime(parts, controls, received).is_some(),
            };
            let (lifetime, stale) = (Duration::ZERO, StaleWindows::default());
            return is_shared.then_some(Freshness { lifetime, stale, age });
        }
        let lifetime = self.lifetime(parts, controls, received)?;
        let lifetime = lifetime.checked_sub(Duration::from_secs(age))?;
        let stale = self.0.stale.windows(parts, &controls.directives);
        (!lifetime.is_zero()).then_some(Freshness { lifetime, stale, age })
    }

    /// Returns whether a response may be stored at all (RFC 9111, section 3).
    fn is_storable(&self, question: &Question, parts: &Parts, directives: &Directives) -> bool {
        let headers = &parts.headers;
        if matches!(parts.status.as_u16(), ..200 | 206 | 304)
            || self.forbids_storing(directives, parts.status)
            || (parts.status.is_redirection()
                && redirects_to_itself(&question.head, headers, &self.0.query))
        {
            return false;
        }
        match self.0.policy.kind {
            PolicyKind::Careful => {
                let is_whole = |scope: &Scope| *scope == Scope::Nothing;
                !directives.malformed
                    && is_whole(&directives.no_cache)
                    && is_whole(&directives.private)
            }
            PolicyKind::Rfc9111 => {
                !directives.no_cache.covers(headers) && !directives.private.covers(headers)
            }
        }
    }

    /// Returns whether `no-store` or `must-understand` forbids storing (RFC 9111, section 5.2.2.3).
    /// Where the status is understood, the latter takes the place of the former, which is for
    /// caches that know only that one.
    fn forbids_storing(&self, directives: &Directives, status: StatusCode) -> bool {
        match directives.must_understand {
            true if !is_understood(status) => true,
            true if self.0.policy.kind == PolicyKind::Rfc9111 => false,
            _ => directives.no_store,
        }
    }

    /// Returns whether a response is for the credentials of its request alone (RFC 9111, section
    /// 3.5).
    fn is_reserved(&self, question: &Question, it: &Directives) -> bool {
        let permits = it.public || it.must_revalidate || it.s_maxage.is_some();
        self.0.policy.kind == PolicyKind::Rfc9111 && question.is_authorized() && !permits
    }

    /// Returns whether responses with a status are shared.
    fn is_status_shared(&self, status: StatusCode) -> bool {
        status == StatusCode::OK
            || self.0.policy.kind == PolicyKind::Rfc9111
            || self.0.policy.lifetime_of(status).is_some()
    }

    /// Returns how long a response is fresh from its origin on.
    fn lifetime(
        &self,
        parts: &Parts,
        controls: &Controls,
        received: SystemTime,
    ) -> Option<Duration> {
        let (status, headers) = (parts.status, &parts.headers);
        if !self.is_status_shared(status) {
            return None;
        }
        let is_careful = self.0.policy.kind == PolicyKind::Careful;
        if is_careful && controls.directives.max_age == Some(0) {
            // It forbids sharing, even next to a larger `s-maxage`.
            return None;
        }
        match freshness::named(controls, headers) {
            Some(Named::For(lifetime)) => Some(lifetime),
            // The clock may be wrong.
            Some(Named::Until(_)) if is_careful => None,
            Some(Named::Until(end)) => Some(end.duration_since(received).unwrap_or_default()),
            None => self.unnamed_lifetime(parts, &controls.directives, received),
        }
    }

    fn unnamed_lifetime(
        &self,
        parts: &Parts,
        directives: &Directives,
        received: SystemTime,
    ) -> Option<Duration> {
        let default = self.0.default_lifetime.filter(|_| parts.status == StatusCode::OK);
        let set = self.0.policy.lifetime_of(parts.status).or(default);
        let limit = self.0.policy.heuristic_limit;
        let is_heuristic = is_heuristically_cacheable(parts.status) || directives.public;
        let heuristic = || freshness::heuristic(&parts.headers, received, limit);
        set.or_else(|| heuristic().filter(|_| is_heuristic))
    }
}

/// Returns whether the rules of a status are known here (RFC 9111, section 3). The rules of `206`
/// and `304` are not.
fn is_understood(status: StatusCode) -> bool {
    is_heuristically_cacheable(status) || matches!(status.as_u16(), 302 | 303 | 307)
}

/// RFC 9110, section 15.1.
fn is_heuristically_cacheable(status: StatusCode) -> bool {
    matches!(status.as_u16(), 200 | 203 | 204 | 300 | 301 | 308 | 404 | 405 | 410 | 414 | 501)
}

/// Returns whether a response is for the web pages of one origin.
fn is_for_one_origin(headers: &HeaderMap) -> bool {
    let mut origins = headers.get_all(ACCESS_CONTROL_ALLOW_ORIGIN).iter();
    origins.any(|origin| origin != "*") || headers.contains_key(ACCESS_CONTROL_ALLOW_CREDENTIALS)
}

/// Returns whether the content type is one of streams without an end.
fn endless(headers: &HeaderMap) -> bool {
    let streams = |line: &HeaderValue| {
        let line = line.as_bytes().to_ascii_lowercase();
        let kind = line.trim_ascii_start();
        kind.starts_with(b"text/event-stream") || kind.starts_with(b"multipart/x-mixed-replace")
    };
    headers.get_all(CONTENT_TYPE).iter().any(streams)
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::{HeaderValue, Request};

    #[test]
    fn a_redirect_to_another_scheme_leads_to_itself() {
        for (uri, location, to_itself) in [
            ("/a?b=1", "https://shop.example/a?b=1", true),
            ("/a?b=1", "https://SHOP.example:8443/a?b=1", true),
            ("http://shop.example/a", "https://shop.example/a", true),
            ("/", "https://shop.example", true),
            ("/a", "https:// shop.example", true),
            ("/a", "/b", false),
            ("/a", "b/c", false),
            ("/a", "/a#top", true),
            ("/b/a", "./a", true),
            ("/a?b=1", "/a?b=2", false),
            ("/a", "/b?next=https://shop.example/a", false),
            ("/a?b=1", "https://shop.example/a", false),
            ("/a", "https://www.shop.example/a", false),
            ("/a", "https://shop.example/a/", false),
        ] {
            let request = Request::get(uri).header("host", "shop.example").body(()).unwrap();
            let mut headers = HeaderMap::new();
            headers.insert(LOCATION, HeaderValue::from_static(location));
            let found = redirects_to_itself(&request.into_parts().0, &headers, &Query::default());
            assert_eq!(found, to_itself, "{uri} {location}");
        }
    }
}
