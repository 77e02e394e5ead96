//! Decides which responses may be shared. Says how long they are fresh and how old they are (RFC
//! 9111, section 4.2), and for how long they may be served stale (RFC 5861).
//!
//! The rules decide before a response is stored or handed to another request. They list the
//! statuses that may be shared, and the headers that forbid it: a header that they do not know
//! forbids nothing. A response with a header that they cannot parse is not shared.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use http::{
    HeaderMap, HeaderName, HeaderValue, StatusCode,
    header::{
        ACCEPT_ENCODING, ACCESS_CONTROL_ALLOW_CREDENTIALS, ACCESS_CONTROL_ALLOW_ORIGIN, AGE,
        CONNECTION, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, DATE, EXPIRES,
        LAST_MODIFIED, LOCATION, ORIGIN, SET_COOKIE, TRAILER,
    },
    response::Parts,
};
use http_body::Body;

use super::{
    Http,
    cached::encoded_head_len,
    conditions::RANGE_TERMS,
    fields::{Directives, date, listed, pragma, seconds, sole, vary},
    invalidation::GROUPS,
    key::{Target, located},
    layer::HttpSettings,
    request::Question,
    validation::VALIDATORS,
};
use crate::{backend::Windows, cache::are_fit};

/// Why a response is for its caller alone.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Unshared {
    /// For this reason, mostly the name of a header. The next response will probably be so too.
    Uncacheable(&'static str),
    /// Its request has credentials. Without them, it could be shared.
    Reserved,
    /// It is about the range of its request. The whole response may be shareable.
    Part,
    /// It is an error, so the next response may be shareable.
    Failing,
}

/// Fields whose response belongs to one caller, whatever it says about caches.
const PERSONAL: [HeaderName; 4] = [
    HeaderName::from_static("set-cookie2"),
    HeaderName::from_static("authentication-info"),
    HeaderName::from_static("clear-site-data"),
    TRAILER,
];

/// Content types of streams without an end.
const ENDLESS: [&[u8]; 2] = [b"text/event-stream", b"multipart/x-mixed-replace"];

/// A response that may be shared, if its body is complete and within the limit.
pub(super) struct Shareable {
    /// The remaining lifetime, and what follows it. All are zero if only those may have the
    /// response that wait for it.
    pub(super) windows: Windows,
    /// For how long after its head callers may join its body.
    pub(super) joined_for: Duration,
    /// Once it is no longer fresh, it may only be validated, and not be served.
    pub(super) only_validates: bool,
    /// The age of the response when it arrived, in seconds.
    pub(super) age: u64,
    /// The headers of a request that select it.
    pub(super) vary: Vec<HeaderName>,
    /// The tags of its groups.
    pub(super) groups: Vec<Arc<str>>,
    /// Its length, if its headers have it.
    pub(super) announced: Option<u64>,
    /// The length of the largest body that is stored with its headers.
    pub(super) body_limit: u64,
}

impl Http {
    /// Judges the response to a request, which `took` so long, by its status and its headers.
    pub(super) fn judge(
        &self,
        question: &Question,
        took: Duration,
        parts: &Parts,
        body: &impl Body,
    ) -> Result<Shareable, Unshared> {
        let is_error = parts.status.is_client_error() || parts.status.is_server_error();
        let unshared = |why| if is_error { Unshared::Failing } else { Unshared::Uncacheable(why) };
        let it = Judged::read(&self.0, parts).map_err(unshared)?;
        let mut rules = it.rules(question, body).into_iter();
        if let Some((why, _)) = rules.find(|(_, forbids)| *forbids) {
            return Err(unshared(why));
        }
        // It may be for more than the credentials of its request (RFC 9111, section 3.5).
        let Directives { public, must_revalidate, s_maxage, .. } = it.directives;
        let is_for_all = public || must_revalidate || s_maxage.is_some();
        let mut shareable = it.shareable(took).ok_or_else(|| unshared("lifetime"))?;
        shareable.groups = self.groups(question, parts).ok_or_else(|| unshared("cache-groups"))?;
        match question.is_authorized && !is_for_all {
            true => Err(Unshared::Reserved),
            false => Ok(shareable),
        }
    }
}

impl Http {
    /// Returns the tags of the groups that a response belongs to. Returns `None` if the cache
    /// cannot store so many of them, or so long ones.
    fn groups(&self, question: &Question, parts: &Parts) -> Option<Vec<Arc<str>>> {
        let tags = self.tags(&question.head, &parts.headers, &GROUPS);
        let mut groups: Vec<Arc<str>> = tags.into_iter().map(Arc::from).collect();
        groups.sort_unstable();
        groups.dedup();
        are_fit(&groups).then_some(groups)
    }
}

/// Returns whether the response to a request with a range is about that range: a part (RFC 9110,
/// section 15.3.7), or that there is no such part (section 15.5.17). One that says that it depends
/// on the range is, too, whatever its status.
pub(super) fn is_about_range(parts: &Parts) -> bool {
    let is_part = parts.status == StatusCode::PARTIAL_CONTENT;
    if is_part || parts.status == StatusCode::RANGE_NOT_SATISFIABLE {
        return true;
    }
    let varies_by = vary(&parts.headers).unwrap_or_default();
    parts.headers.contains_key(CONTENT_RANGE)
        || RANGE_TERMS.iter().any(|name| varies_by.contains(name))
}

/// A response that is judged.
struct Judged<'a> {
    settings: &'a HttpSettings,
    parts: &'a Parts,
    announced: Option<u64>,
    body_limit: u64,
    vary: Vec<HeaderName>,
    directives: Directives,
    received: SystemTime,
}

impl<'a> Judged<'a> {
    /// Reads the fields of a response. Returns the name of one that cannot be parsed.
    fn read(settings: &'a HttpSettings, parts: &'a Parts) -> Result<Self, &'static str> {
        let (headers, limit) = (&parts.headers, settings.cache.core.settings.max_value);
        listed(headers, &CONNECTION).ok_or("connection")?;
        let length = || seconds(sole(headers, CONTENT_LENGTH)?.to_str().ok()?);
        let announced = headers.contains_key(CONTENT_LENGTH);
        let announced = announced.then(|| length().ok_or("content-length"));
        Ok(Self {
            settings,
            parts,
            announced: announced.transpose()?,
            body_limit: limit.saturating_sub(encoded_head_len(headers)) as u64,
            // Requests must be able to tell if they select the response (RFC 9111, section 4.1).
            vary: vary(headers).ok_or("vary")?,
            directives: Directives::of_response(headers).ok_or("cache-control")?,
            received: SystemTime::now(),
        })
    }

    /// Returns the rules that forbid to share a response, and whether each does so here.
    fn rules(&self, question: &Question, body: &impl Body) -> [(&'static str, bool); 15] {
        let (policy, it) = (&self.settings.policy, &self.directives);
        let &Parts { status, ref headers, .. } = self.parts;
        let has = |name: &HeaderName| headers.contains_key(name);
        let ignores =
            |name: HeaderName| !self.vary.contains(&name) || !self.settings.forwards(&name);
        let is_careful = !policy.is_rfc9111;
        let is_unknown = matches!(status.as_u16(), ..200 | 206 | 304);
        let is_unnamed = status != StatusCode::OK && !policy.statuses.contains_key(&status);
        let announced = self.announced.unwrap_or_default();
        let has_credentials = has(&ACCESS_CONTROL_ALLOW_CREDENTIALS);
        let mut origins = headers.get_all(ACCESS_CONTROL_ALLOW_ORIGIN).iter();
        let names_origin = origins.any(|origin| origin != "*");
        let kinds = headers.get_all(CONTENT_TYPE).iter().map(HeaderValue::as_bytes);
        let mut kinds = kinds.map(|kind| kind.trim_ascii_start().to_ascii_lowercase());
        let hint = body.size_hint();
        let is_empty = body.is_end_stream() || hint.exact() == Some(0);
        [
            ("body", announced > 0 && is_empty),
            ("size", announced.max(hint.lower()) > self.body_limit),
            ("content-type", kinds.any(|kind| ENDLESS.iter().any(|it| kind.starts_with(it)))),
            ("set-cookie", has(&SET_COOKIE)),
            ("personal", PERSONAL.iter().any(has)),
            ("vary", policy.coalesces && !self.vary.is_empty()),
            // It is for the web pages of one origin.
            ("vary-origin", ignores(ORIGIN) && (has_credentials || names_origin)),
            // Some clients cannot read the encoding.
            ("vary-accept-encoding", ignores(ACCEPT_ENCODING) && has(&CONTENT_ENCODING)),
            ("pragma", is_careful && pragma(headers)),
            ("content-range", is_careful && has(&CONTENT_RANGE)),
            ("status", is_unknown || (is_careful && is_unnamed)),
            ("location", status.is_redirection() && self.redirects_to_itself(question)),
            ("cache-control", it.restricts || (it.must_understand && !is_understood(status))),
            ("cache-control", is_careful && (it.malformed || it.no_cache || it.private)),
            // It is for caches that know no `must-understand` (RFC 9111, section 5.2.2.3).
            ("cache-control", it.no_store && (is_careful || !it.must_understand)),
        ]
    }

    /// Returns whether a redirect differs from the place of its request at most in the scheme and
    /// in parts of the query that are not in the key. A request for that other place may share the
    /// key, and would get the redirect again.
    fn redirects_to_itself(&self, question: &Question) -> bool {
        let (asked, query) = (&question.head, &self.settings.query);
        let own = Target::of(asked).map_or("/".into(), |Target { paths: [own, _], .. }| own);
        let is_itself = |path: String| query.apply(&path) == query.apply(&own);
        self.parts.headers.get_all(LOCATION).iter().any(|location| {
            let location = location.to_str().ok().and_then(|it| located(asked, it));
            // One that cannot be read may lead anywhere.
            location.is_none_or(|path| path.is_some_and(is_itself))
        })
    }

    /// Returns how the response may be shared, unless it is not fresh.
    fn shareable(self, took: Duration) -> Option<Shareable> {
        let (lifetime, settings) = (self.lifetime(), self.settings);
        let Self { parts, announced, body_limit, vary, directives: it, .. } = self;
        let age = age(&parts.headers, self.received, took);
        let (mut windows, mut only_validates) = (Windows::fresh(Duration::ZERO), false);
        let mut joined_for = Duration::MAX;
        if settings.policy.coalesces {
            // Requests to a careful layer have nothing of their users. A request to the other one
            // may, so only a response that may be reused answers it (RFC 9111, section 4).
            if settings.policy.is_rfc9111 {
                let left = lifetime?.checked_sub(Duration::from_secs(age));
                joined_for = left.filter(|left| !left.is_zero())?;
            }
        } else {
            let (limit, default) =
                (settings.max_stale, settings.cache.core.settings.options.windows);
            let window = |named: Option<u64>, setting: Duration| match named {
                _ if it.must_revalidate || it.proxy_revalidate => Duration::ZERO,
                Some(seconds) => Duration::from_secs(seconds).min(limit),
                // It implies `proxy-revalidate` (RFC 9111, section 5.2.2.10).
                None if it.s_maxage.is_some() => Duration::ZERO,
                None => setting.min(limit),
            };
            let left = lifetime?.checked_sub(Duration::from_secs(age));
            windows.fresh = left.filter(|left| !left.is_zero())?.min(default.fresh);
            joined_for = windows.fresh;
            windows.stale = window(it.stale_while_revalidate, default.stale);
            windows.error = window(it.stale_if_error, default.error);
            only_validates = windows.is_fresh_only()
                && parts.status == StatusCode::OK
                && VALIDATORS.iter().any(|name| parts.headers.contains_key(name));
        }
        if only_validates {
            windows.error = settings.kept_for_validation;
        }
        Some(Shareable {
            windows,
            joined_for,
            only_validates,
            age,
            vary,
            groups: Vec::new(),
            announced,
            body_limit,
        })
    }

    /// Returns how long the response is fresh from its origin on (section 4.2.1). Invalid freshness
    /// is stale.
    fn lifetime(&self) -> Option<Duration> {
        let (it, headers) = (&self.directives, &self.parts.headers);
        let is_careful = !self.settings.policy.is_rfc9111;
        if is_careful && it.max_age == Some(0) {
            // It forbids sharing, even next to a larger `s-maxage`.
            return None;
        }
        if it.is_garbled {
            return Some(Duration::ZERO);
        }
        if let Some(seconds) = it.s_maxage.or(it.max_age) {
            return Some(Duration::from_secs(seconds));
        }
        if it.is_targeted || !headers.contains_key(EXPIRES) {
            let (status, policy) = (self.parts.status, &self.settings.policy);
            let default = self.settings.default_lifetime.filter(|_| status == StatusCode::OK);
            let lifetime = policy.statuses.get(&status).copied().or(default);
            return lifetime.or_else(|| self.heuristic()).filter(|lifetime| !lifetime.is_zero());
        }
        // The clock of this process may be wrong, so the careful policy wants a date.
        let sent = date(headers, DATE).or(Some(self.received).filter(|_| !is_careful));
        let expires = date(headers, EXPIRES).zip(sent);
        let left = expires.and_then(|(expires, sent)| expires.duration_since(sent).ok());
        Some(left.unwrap_or_default())
    }

    /// Returns the lifetime that RFC 9111 permits to a response without any: a tenth of the time
    /// since its last change (section 4.2.2).
    fn heuristic(&self) -> Option<Duration> {
        let &Parts { status, ref headers, .. } = self.parts;
        if !self.settings.policy.is_rfc9111
            || !(is_heuristically_cacheable(status) || self.directives.public)
        {
            return None;
        }
        let sent = date(headers, DATE).unwrap_or(self.received);
        let unchanged = sent.duration_since(date(headers, LAST_MODIFIED)?).ok()?;
        Some((unchanged / 10).min(HEURISTIC_LIMIT))
    }
}

/// RFC 9110, section 15.1.
fn is_heuristically_cacheable(status: StatusCode) -> bool {
    matches!(status.as_u16(), 200 | 203 | 204 | 300 | 301 | 308 | 404 | 405 | 410 | 414 | 501)
}

/// Whether its rules are followed here, as `must-understand` demands.
fn is_understood(status: StatusCode) -> bool {
    is_heuristically_cacheable(status) || matches!(status.as_u16(), 302 | 303 | 307)
}

/// The longest lifetime by a heuristic.
const HEURISTIC_LIMIT: Duration = Duration::from_secs(86_400);

/// Returns the age of a response at its arrival, in seconds (section 4.2.3).
///
/// `took` is the time since its request was sent. A response without an `Age` comes from the
/// service itself, which made it at the end of that time. So does one with an invalid `Age`, which
/// is ignored (section 5.1). Of a list the first member counts.
fn age(headers: &HeaderMap, received: SystemTime, took: Duration) -> u64 {
    let first = headers.get(AGE).and_then(|line| line.as_bytes().split(|it| *it == b',').next());
    let told = first.and_then(|age| seconds(str::from_utf8(age.trim_ascii()).ok()?));
    let told = told.map_or(0, |age| age.saturating_add(took.as_secs()));
    let apparent = date(headers, DATE).and_then(|sent| received.duration_since(sent).ok());
    told.max(apparent.unwrap_or_default().as_secs())
}
