//! Decides which responses may be shared, by an allow-list. Says how long they are fresh and how
//! old they are (RFC 9111, section 4.2), and for how long they may be served stale (RFC 5861).
//!
//! The rules decide before a response is stored or handed to another request. A response is not
//! shared if it has a property that the rules do not know, or a header that they cannot parse.

use std::time::{Duration, SystemTime};

use http::{
    HeaderMap, HeaderName, HeaderValue, StatusCode,
    header::{
        ACCEPT_ENCODING, ACCESS_CONTROL_ALLOW_CREDENTIALS, ACCESS_CONTROL_ALLOW_ORIGIN, AGE,
        CONTENT_ENCODING, CONTENT_RANGE, CONTENT_TYPE, DATE, EXPIRES, LAST_MODIFIED, LOCATION,
        ORIGIN, SET_COOKIE, TRAILER,
    },
    request,
    response::Parts,
    uri::PathAndQuery,
};
use http_body::Body;

use super::{
    CachedResponse, Http, ResponseBody,
    fields::{Directives, Scope, connection, content_length, date, pragma, seconds, vary},
    key::{self, Located, Query},
    layer::HttpSettings,
    request::Question,
    validation::has_validator,
};
use crate::{
    backend::Windows,
    cache::{Lead, Request},
};

/// Returns whether a `Location` differs from the place of a request at most in the scheme and in
/// parts of the query that are not in the key. A request for that other place may share the key,
/// and would get the redirect again.
fn redirects_to_itself(asked: &request::Parts, answer: &HeaderMap, query: &Query) -> bool {
    let root = PathAndQuery::from_static("/");
    let path = key::original(asked).unwrap_or(&root);
    answer.get_all(LOCATION).iter().any(|location| {
        // One that cannot be read may lead anywhere.
        location.to_str().ok().and_then(Located::read).is_none_or(|located| {
            located.is_on_host(asked)
                && query.apply(located.path.as_str()) == query.apply(path.as_str())
        })
    })
}

/// The classes of responses, judged by their status and headers.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ResponseClass {
    /// May be shared if its body is complete and within the limit.
    Shareable(Freshness),
    /// For its caller alone, for this reason. The next response will probably be so too.
    Uncacheable(&'static str),
    /// For its caller alone, whose request has credentials. Without them, it could be shared.
    Reserved,
    /// For its caller alone. It is an error, so the next response may be shareable.
    Failing,
}

/// Fields whose response belongs to one caller, whatever it says about caches.
const PERSONAL: [HeaderName; 5] = [
    SET_COOKIE,
    HeaderName::from_static("set-cookie2"),
    HeaderName::from_static("authentication-info"),
    HeaderName::from_static("clear-site-data"),
    TRAILER,
];

/// A property of a response, or why it must not be shared: mostly the name of a header.
type Verdict<T> = Result<T, &'static str>;

impl Http {
    /// Classifies the response to a request, which `took` so long.
    pub(super) fn classify(
        &self,
        question: &Question,
        took: Duration,
        parts: &Parts,
        body: &ResponseBody,
    ) -> ResponseClass {
        let is_error = parts.status.is_client_error() || parts.status.is_server_error();
        match self.judge(question, took, parts, body) {
            Ok(class) => class,
            Err(_) if is_error => ResponseClass::Failing,
            Err(why) => ResponseClass::Uncacheable(why),
        }
    }

    fn judge(
        &self,
        question: &Question,
        took: Duration,
        parts: &Parts,
        body: &ResponseBody,
    ) -> Verdict<ResponseClass> {
        self.judge_framing(&parts.headers, body)?;
        self.judge_fields(&parts.headers)?;
        let directives = Directives::of_response(&parts.headers).ok_or("cache-control")?;
        let it = Judged { settings: &self.0, parts, directives, received: SystemTime::now() };
        it.judge_storable(question)?;
        let freshness = it.freshness(took)?;
        Ok(match it.is_for_all() || !question.is_authorized() {
            true => ResponseClass::Shareable(freshness),
            false => ResponseClass::Reserved,
        })
    }

    /// Judges whether the body of a response may be kept.
    fn judge_framing(&self, headers: &HeaderMap, body: &ResponseBody) -> Verdict<()> {
        let most = self.most_of_body(headers);
        let announced = content_length(headers).ok_or("content-length")?.unwrap_or_default();
        let is_empty = body.is_end_stream() || body.size_hint().exact() == Some(0);
        if announced > 0 && is_empty {
            return Err("body");
        }
        if announced.max(body.size_hint().lower()) > most {
            return Err("size");
        }
        connection(headers).ok_or("connection")?;
        if endless(headers) { Err("content-type") } else { Ok(()) }
    }

    /// Judges whether no field of a response ties it to its caller.
    fn judge_fields(&self, headers: &HeaderMap) -> Verdict<()> {
        let is_careful = !self.0.policy.is_rfc9111;
        // Requests must be able to tell if they select the response (RFC 9111, section 4.1).
        let names = vary(headers).ok_or("vary")?;
        match PERSONAL.iter().find(|name| headers.contains_key(*name)) {
            Some(&SET_COOKIE) => Err("set-cookie"),
            Some(_) => Err("personal"),
            _ if !names.is_empty() && self.0.policy.coalesces => Err("vary"),
            _ if !names.contains(&ORIGIN) && is_for_one_origin(headers) => Err("vary-origin"),
            // Some clients cannot read the encoding.
            _ if !names.contains(&ACCEPT_ENCODING) && headers.contains_key(CONTENT_ENCODING) => {
                Err("vary-accept-encoding")
            }
            _ if is_careful && pragma(headers) => Err("pragma"),
            _ if is_careful && headers.contains_key(CONTENT_RANGE) => Err("content-range"),
            _ => Ok(()),
        }
    }
}

/// A response whose fields permit to share it.
struct Judged<'a> {
    settings: &'a HttpSettings,
    parts: &'a Parts,
    directives: Directives,
    received: SystemTime,
}

impl Judged<'_> {
    /// Judges whether the response may be stored at all (RFC 9111, section 3).
    fn judge_storable(&self, question: &Question) -> Verdict<()> {
        let (Parts { status, headers, .. }, it) = (self.parts, &self.directives);
        let policy = &self.settings.policy;
        let is_shared =
            policy.is_rfc9111 || *status == StatusCode::OK || policy.lifetime_of(*status).is_some();
        if !is_shared || matches!(status.as_u16(), ..200 | 206 | 304) {
            return Err("status");
        }
        let query = &self.settings.query;
        if status.is_redirection() && redirects_to_itself(&question.head, headers, query) {
            return Err("location");
        }
        // Where the status is understood, `must-understand` takes the place of `no-store`, which is
        // for caches that know only that one (RFC 9111, section 5.2.2.3).
        let forbids_storing = match it.must_understand {
            true if !is_understood(*status) => true,
            true if policy.is_rfc9111 => false,
            _ => it.no_store,
        };
        let is_private = match policy.is_rfc9111 {
            true => it.no_cache.covers(headers) || it.private.covers(headers),
            false => it.malformed || it.no_cache != Scope::Nothing || it.private != Scope::Nothing,
        };
        if forbids_storing || is_private { Err("cache-control") } else { Ok(()) }
    }

    /// Returns whether the response is not for the credentials of its request alone (RFC 9111,
    /// section 3.5).
    fn is_for_all(&self) -> bool {
        let it = &self.directives;
        it.public || it.must_revalidate || it.s_maxage.is_some()
    }

    /// Returns how long the response may be shared: by those that wait for it, and beyond.
    fn freshness(&self, took: Duration) -> Verdict<Freshness> {
        let age = age(&self.parts.headers, self.received, took);
        let (lifetime, policy) = (self.lifetime(), &self.settings.policy);
        // Requests to a careful layer have nothing of their users.
        if policy.coalesces && (!policy.is_rfc9111 || lifetime.is_some()) {
            return Ok(Freshness::new(Duration::ZERO, age));
        }
        let left = lifetime.and_then(|lifetime| lifetime.checked_sub(Duration::from_secs(age)));
        let left = left.filter(|left| !left.is_zero() && !policy.coalesces).ok_or("lifetime")?;
        Ok(self.windows(Freshness::new(left, age)))
    }

    /// Returns how long the response is fresh from its origin on.
    fn lifetime(&self) -> Option<Duration> {
        let is_careful = !self.settings.policy.is_rfc9111;
        if is_careful && self.directives.max_age == Some(0) {
            // It forbids sharing, even next to a larger `s-maxage`.
            return None;
        }
        // The clock of this process may be wrong.
        let received = Some(self.received).filter(|_| !is_careful);
        named(&self.directives, &self.parts.headers, received).or_else(|| self.unnamed_lifetime())
    }

    fn unnamed_lifetime(&self) -> Option<Duration> {
        let (status, policy) = (self.parts.status, &self.settings.policy);
        let default = self.settings.default_lifetime.filter(|_| status == StatusCode::OK);
        let is_heuristic =
            policy.is_rfc9111 && (is_heuristically_cacheable(status) || self.directives.public);
        let heuristic = || heuristic(&self.parts.headers, self.received).filter(|_| is_heuristic);
        let lifetime = policy.lifetime_of(status).or(default).or_else(heuristic);
        lifetime.filter(|lifetime| !lifetime.is_zero())
    }

    /// Adds what the response is good for when it is no longer fresh.
    fn windows(&self, fresh: Freshness) -> Freshness {
        let (it, limit) = (&self.directives, self.settings.max_stale);
        let windows = self.settings.cache.settings().options.windows;
        let window = |named: Option<u64>, setting: Duration| match named {
            _ if it.revalidates() => Duration::ZERO,
            Some(seconds) => Duration::from_secs(seconds).min(limit),
            // It implies `proxy-revalidate` (RFC 9111, section 5.2.2.10).
            None if it.s_maxage.is_some() => Duration::ZERO,
            None => setting.min(limit),
        };
        let while_revalidate = window(it.stale_while_revalidate, windows.stale);
        let if_error = window(it.stale_if_error, windows.error);
        let validation = self.settings.kept_for_validation;
        let only_validates = while_revalidate.max(if_error).is_zero()
            && !validation.is_zero()
            && has_validator(self.parts);
        let kept = if only_validates { validation } else { if_error };
        Freshness { while_revalidate, kept, only_validates, ..fresh }
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

/// How long a response may be shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Freshness {
    /// The remaining time. Zero if only those may have it that wait for it.
    pub(super) lifetime: Duration,
    while_revalidate: Duration,
    /// For how long it is kept in case of a failure, or for its validation.
    kept: Duration,
    /// Once it is no longer fresh, it may only be validated, and not be served.
    pub(super) only_validates: bool,
    /// The age of the response when it arrived, in seconds.
    pub(super) age: u64,
}

impl Freshness {
    fn new(lifetime: Duration, age: u64) -> Self {
        let (while_revalidate, kept) = (Duration::ZERO, Duration::ZERO);
        Self { lifetime, while_revalidate, kept, only_validates: false, age }
    }

    /// Returns the same freshness with a lifetime of this at most.
    pub(super) fn capped(self, cap: Duration) -> Self {
        Self { lifetime: self.lifetime.min(cap), ..self }
    }

    /// Sets how long a response is kept that is stored without a load.
    pub(super) fn kept(&self, request: Request<CachedResponse>) -> Request<CachedResponse> {
        request
            .ttl(self.lifetime)
            .stale_while_revalidate(self.while_revalidate)
            .stale_if_error(self.kept)
    }

    /// Sets how long the response is kept.
    pub(super) fn keep(&self, lead: &Lead<CachedResponse>) {
        if self.lifetime.is_zero() {
            return lead.do_not_store();
        }
        let (fresh, stale, error) = (self.lifetime, self.while_revalidate, self.kept);
        lead.keep(Windows { fresh, stale, error });
    }
}

/// Returns the lifetime that a response names, from its origin on (section 4.2.1). Invalid
/// freshness is stale, and so is an `Expires` without a `Date` if the time of receipt is `None`.
fn named(
    directives: &Directives,
    headers: &HeaderMap,
    received: Option<SystemTime>,
) -> Option<Duration> {
    if let Some(seconds) = directives.s_maxage.or(directives.max_age) {
        return Some(Duration::from_secs(seconds));
    }
    if directives.is_targeted || !headers.contains_key(EXPIRES) {
        return None;
    }
    let expires = date(headers, EXPIRES).zip(date(headers, DATE).or(received));
    let left = expires.and_then(|(expires, from)| expires.duration_since(from).ok());
    Some(left.unwrap_or_default())
}

/// The longest lifetime by a heuristic.
const HEURISTIC_LIMIT: Duration = Duration::from_secs(86_400);

/// Returns a lifetime of a tenth of the time since the last change (section 4.2.2).
fn heuristic(headers: &HeaderMap, received: SystemTime) -> Option<Duration> {
    let changed = date(headers, LAST_MODIFIED)?;
    let sent = date(headers, DATE).unwrap_or(received);
    Some((sent.duration_since(changed).ok()? / 10).min(HEURISTIC_LIMIT))
}

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
