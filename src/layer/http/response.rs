//! Decides whether a response may be shared.
//!
//! [`Http::judge`] is the place, before a response is stored or handed to another request. Each
//! rule is a function of its own, in the order of the guide, "What is shared". The rules are a
//! deny-list of headers: a header that no rule knows forbids nothing. A header that a rule cannot
//! parse forbids sharing.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use http::{
    HeaderMap, HeaderName, StatusCode,
    header::{
        ACCEPT_ENCODING, ACCESS_CONTROL_ALLOW_CREDENTIALS, ACCESS_CONTROL_ALLOW_ORIGIN, CONNECTION,
        CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, LOCATION, ORIGIN,
        SET_COOKIE, TRAILER,
    },
    response::Parts,
};
use http_body::Body;

use super::{
    Http,
    cached::encoded_head_len,
    fields::{Directives, listed, pragma, seconds, sole, vary},
    invalidation::GROUPS,
    key::{Located, Target, located},
    lifetime::{Arrived, Freshness, is_heuristically_cacheable},
    question::{Question, RANGE_TERMS},
    settings::HttpSettings,
};

/// Why a response is for its caller alone.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Unshared {
    /// A rule forbids to share the response. The text names the rule, mostly by a header. The same
    /// rule will probably forbid the next response, if both requests or none have an
    /// `Authorization`.
    Uncacheable(&'static str),
    /// The response is about the range of the request. The whole response may be shareable.
    Part,
    /// The response is an error, so the next response may be shareable.
    Failing,
}

impl Unshared {
    /// Returns why a response with this status is not shared, if this rule forbids that.
    fn by(rule: &'static str, status: StatusCode) -> Self {
        if status.is_client_error() || status.is_server_error() {
            Self::Failing
        } else {
            Self::Uncacheable(rule)
        }
    }
}

/// A response that may be shared, if its body is complete and within the limit.
pub(super) struct Shareable {
    pub(super) freshness: Freshness,
    /// The headers of a request that select the response.
    pub(super) vary: Vec<HeaderName>,
    /// The tags of the groups of the response.
    pub(super) groups: Vec<Arc<str>>,
    /// The length of the body, if the headers have a length.
    pub(super) announced: Option<u64>,
    /// The length of the largest body that is stored with its headers.
    pub(super) body_limit: u64,
}

impl Http {
    /// Judges the response to a request, which `took` so long, by its status and its headers.
    ///
    /// **This function decides whether a response is shared.**
    pub(super) fn judge(
        &self,
        question: &Question,
        took: Duration,
        parts: &Parts,
        body: &impl Body,
    ) -> Result<Shareable, Unshared> {
        let status = parts.status;
        let judged = match Judged::read(&self.0, parts) {
            Ok(judged) => judged,
            Err(unreadable) => return Err(Unshared::by(unreadable, status)),
        };
        if let Some(rule) = judged.forbidden_by(question, body) {
            return Err(Unshared::by(rule, status));
        }
        let Some(freshness) = judged.freshness(took) else {
            return Err(Unshared::by("lifetime", status));
        };
        let Some(groups) = self.groups(question, parts) else {
            return Err(Unshared::by("cache-groups", status));
        };
        if question.is_authorized && !judged.is_for_all_users() {
            return Err(Unshared::Uncacheable("authorization"));
        }
        let body_limit = judged.body_limit();
        let Judged { announced, vary, .. } = judged;
        Ok(Shareable { freshness, vary, groups, announced, body_limit })
    }

    /// Returns the tags of the groups that a response belongs to (RFC 9875, section 2). Returns
    /// `None` if the cache cannot store so many tags, or so long tags.
    fn groups(&self, question: &Question, parts: &Parts) -> Option<Vec<Arc<str>>> {
        let tags = self.tags(&question.head, &parts.headers, &GROUPS);
        let mut groups: Vec<Arc<str>> = Vec::new();
        for tag in tags {
            groups.push(tag.into());
        }
        groups.sort_unstable();
        groups.dedup();
        if self.0.cache.permits_tags(&groups) { Some(groups) } else { None }
    }
}

/// A response that is judged.
struct Judged<'a> {
    settings: &'a HttpSettings,
    status: StatusCode,
    headers: &'a HeaderMap,
    announced: Option<u64>,
    vary: Vec<HeaderName>,
    directives: Directives,
    received: SystemTime,
}

impl<'a> Judged<'a> {
    /// Reads the fields of a response. Returns the name of a field that cannot be parsed.
    fn read(settings: &'a HttpSettings, parts: &'a Parts) -> Result<Self, &'static str> {
        let headers = &parts.headers;
        listed(headers, &CONNECTION).ok_or("connection")?;
        Ok(Self {
            settings,
            status: parts.status,
            headers,
            announced: announced_length(headers)?,
            // A request must be able to tell whether it selects the response (RFC 9111, section
            // 4.1).
            vary: vary(headers).ok_or("vary")?,
            directives: Directives::of_response(headers).ok_or("cache-control")?,
            received: SystemTime::now(),
        })
    }

    /// Returns the name of the first rule that forbids to share the response, mostly the name of a
    /// header. The functions below have the order of these calls.
    fn forbidden_by(&self, question: &Question, body: &impl Body) -> Option<&'static str> {
        if self.has_other_status() {
            return Some("status");
        }
        if self.is_too_large(body) {
            return Some("size");
        }
        if self.lacks_its_body(body) {
            return Some("body");
        }
        if self.has(&SET_COOKIE) {
            return Some("set-cookie");
        }
        if self.is_personal() {
            return Some("personal");
        }
        if self.is_unexpected_part() {
            return Some("content-range");
        }
        if self.has_variants_that_nothing_stores() {
            return Some("vary");
        }
        if self.has_hidden_encoding() {
            return Some("vary-accept-encoding");
        }
        if self.is_for_one_origin() {
            return Some("vary-origin");
        }
        if self.redirects_to_itself(question) {
            return Some("location");
        }
        if self.is_restricted() {
            return Some("cache-control");
        }
        if self.has_pragma() {
            return Some("pragma");
        }
        if self.is_endless() {
            return Some("content-type");
        }
        None
    }

    /// The policy does not share this status. The careful policy shares only a `200` and the
    /// statuses that a user of the layer has named. A part of a response and the answer to a
    /// condition are never shared (RFC 9111, sections 3.3 and 4.3).
    fn has_other_status(&self) -> bool {
        let status = self.status;
        if matches!(status.as_u16(), ..200 | 206 | 304) {
            return true;
        }
        let policy = &self.settings.policy;
        let is_named = status == StatusCode::OK || policy.statuses.contains_key(&status);
        self.is_careful() && !is_named
    }

    /// The body and the headers exceed the limit of the cache, as far as the length is known.
    fn is_too_large(&self, body: &impl Body) -> bool {
        let announced = self.announced.unwrap_or_default();
        let least = body.size_hint().lower();
        let head = encoded_head_len(self.headers) as u64;
        head.saturating_add(announced.max(least)) > self.settings.terms.max_value as u64
    }

    /// The headers announce a body, and there is none: the response is incomplete (RFC 9111,
    /// section 3.3).
    fn lacks_its_body(&self, body: &impl Body) -> bool {
        let is_empty = body.is_end_stream() || body.size_hint().exact() == Some(0);
        is_empty && self.announced.is_some_and(|length| length > 0)
    }

    /// The response has a field that is for one caller, whatever else it says about caches. The RFC
    /// does not forbid to share such a field, nor a `Set-Cookie` (RFC 9111, section 7.3).
    fn is_personal(&self) -> bool {
        PERSONAL.iter().any(|name| self.has(name))
    }

    /// The response has a `Content-Range`, which only a `206` and a `416` may have (RFC 9110,
    /// section 14.4).
    fn is_unexpected_part(&self) -> bool {
        self.is_careful() && self.has(&CONTENT_RANGE)
    }

    /// Variants have keys below a marker, which a layer that stores nothing does not have. A `Vary`
    /// that cannot be parsed, or has a `*`, is unreadable already (RFC 9111, section 4.1).
    fn has_variants_that_nothing_stores(&self) -> bool {
        self.settings.policy.coalesces && !self.vary.is_empty()
    }

    /// The response is encoded, and does not say that the encoding depends on the request (RFC
    /// 9110, section 12.5.3). Some clients cannot read the encoding.
    fn has_hidden_encoding(&self) -> bool {
        self.has(&CONTENT_ENCODING) && !self.depends_on(&ACCEPT_ENCODING)
    }

    /// The response is open to the web pages of one origin, and does not say that it depends on the
    /// `Origin` (Fetch Standard, "CORS protocol and HTTP caches").
    fn is_for_one_origin(&self) -> bool {
        let mut origins = self.headers.get_all(ACCESS_CONTROL_ALLOW_ORIGIN).iter();
        let names_origin = origins.any(|origin| origin != "*");
        let permits_credentials = self.has(&ACCESS_CONTROL_ALLOW_CREDENTIALS);
        (names_origin || permits_credentials) && !self.depends_on(&ORIGIN)
    }

    /// The response redirects to the place of its request, or to a place that differs at most in
    /// the scheme and in parts of the query that are not in the key (RFC 9110, section 15.4). A
    /// request for that other place may share the key, and would get the redirect again.
    fn redirects_to_itself(&self, question: &Question) -> bool {
        if !self.status.is_redirection() {
            return false;
        }
        let query = &self.settings.query;
        let own = match Target::of(&question.head) {
            Some(Target { paths: [own, _], .. }) => own,
            None => "/".into(),
        };
        for location in self.headers.get_all(LOCATION) {
            // A location that cannot be read may lead anywhere.
            let Ok(location) = location.to_str() else { return true };
            match located(&question.head, location) {
                Located::Unclear => return true,
                Located::OtherHost => {}
                Located::OwnHost(path) => {
                    if query.apply(&path) == query.apply(&own) {
                        return true;
                    }
                }
            }
        }
        false
    }

    /// The directives forbid to share the response (RFC 9111, section 5.2.2).
    fn is_restricted(&self) -> bool {
        let directives = &self.directives;
        if directives.restricts {
            return true;
        }
        // Section 5.2.2.3: `must-understand` permits to store only what is understood here.
        if directives.must_understand && !is_understood(self.status) {
            return true;
        }
        if self.is_careful() {
            let is_private = directives.private || directives.no_cache || directives.no_store;
            return is_private || directives.malformed;
        }
        // Section 5.2.2.3: beside `must-understand`, `no-store` is for caches that do not know
        // `must-understand`.
        directives.no_store && !directives.must_understand
    }

    /// The response has `Pragma: no-cache`, which RFC 9111 does not define for a response (section
    /// 5.4).
    fn has_pragma(&self) -> bool {
        self.is_careful() && pragma(self.headers)
    }

    /// The body is a stream without an end.
    fn is_endless(&self) -> bool {
        for kind in self.headers.get_all(CONTENT_TYPE) {
            let kind = kind.as_bytes().to_ascii_lowercase();
            let kind = kind.trim_ascii_start();
            if ENDLESS.iter().any(|endless| kind.starts_with(endless)) {
                return true;
            }
        }
        false
    }

    /// The response says that it is for more than the credentials of its request (RFC 9111, section
    /// 3.5).
    fn is_for_all_users(&self) -> bool {
        let directives = &self.directives;
        directives.public || directives.must_revalidate || directives.s_maxage.is_some()
    }

    fn freshness(&self, took: Duration) -> Option<Freshness> {
        let arrived = Arrived {
            settings: self.settings,
            status: self.status,
            headers: self.headers,
            directives: &self.directives,
            received: self.received,
            took,
        };
        arrived.freshness()
    }

    fn is_careful(&self) -> bool {
        !self.settings.policy.is_rfc9111
    }

    fn has(&self, name: &HeaderName) -> bool {
        self.headers.contains_key(name)
    }

    /// Returns whether the `Vary` of the response names this header, and the service has seen this
    /// header of the request.
    fn depends_on(&self, name: &HeaderName) -> bool {
        self.vary.contains(name) && self.settings.forwards(name)
    }

    /// Returns the length of the largest body that is stored with these headers.
    fn body_limit(&self) -> u64 {
        let limit = self.settings.terms.max_value;
        limit.saturating_sub(encoded_head_len(self.headers)) as u64
    }
}

/// Fields whose response belongs to one caller, whatever else the response says about caches.
const PERSONAL: [HeaderName; 4] = [
    HeaderName::from_static("set-cookie2"),
    HeaderName::from_static("authentication-info"),
    HeaderName::from_static("clear-site-data"),
    TRAILER,
];

/// Content types of streams without an end.
const ENDLESS: [&[u8]; 2] = [b"text/event-stream", b"multipart/x-mixed-replace"];

/// Returns the length that the headers announce. Fails with the name of the field if that is not
/// one number (RFC 9110, section 8.6).
fn announced_length(headers: &HeaderMap) -> Result<Option<u64>, &'static str> {
    if !headers.contains_key(CONTENT_LENGTH) {
        return Ok(None);
    }
    let text = sole(headers, CONTENT_LENGTH).and_then(|length| length.to_str().ok());
    match text.and_then(seconds) {
        Some(length) => Ok(Some(length)),
        None => Err("content-length"),
    }
}

/// Returns whether this layer follows the rules of a status, as `must-understand` demands.
fn is_understood(status: StatusCode) -> bool {
    is_heuristically_cacheable(status) || matches!(status.as_u16(), 302 | 303 | 307)
}

/// Returns whether the response to a request with a range is about that range: a part (RFC 9110,
/// section 15.3.7), or that there is no such part (section 15.5.17). So is a response whose `Vary`
/// names the range, whatever the status.
pub(super) fn is_about_range(parts: &Parts) -> bool {
    if matches!(parts.status, StatusCode::PARTIAL_CONTENT | StatusCode::RANGE_NOT_SATISFIABLE) {
        return true;
    }
    if parts.headers.contains_key(CONTENT_RANGE) {
        return true;
    }
    let varies_by = vary(&parts.headers).unwrap_or_default();
    RANGE_TERMS.iter().any(|name| varies_by.contains(name))
}
