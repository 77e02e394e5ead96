//! What a request asks of the layer, and whether it takes part. For headers, this is a deny-list: a
//! header that no rule knows does not stand in the way.

use std::sync::{Arc, atomic::Ordering};

use http::{
    HeaderMap, HeaderName, HeaderValue, Method,
    header::{AUTHORIZATION, CACHE_CONTROL, CONNECTION, COOKIE, PRAGMA, RANGE},
    request::Parts,
};
use http_body::Body;
use tokio::time::Instant;

use super::{
    Http,
    conditions::{RANGE_TERMS, TERMS},
    fields::{Directives, names_no_field, pragma, sole},
    header_names::{HeaderClass, classify},
    key::{Target, is_named, may_hold_another, texts},
    status::Forward,
    variants::{KEY_LENGTH, Place},
};

/// The head of a request. Most ask for the whole response, as it is stored.
#[derive(Clone)]
pub(super) struct Question {
    pub(super) head: Parts,
    /// All headers as they came, if the head has the normal form of some.
    pub(super) as_sent: Option<HeaderMap>,
    /// When it came.
    pub(super) since: Instant,
    /// It has an `Authorization`, so its answer may be for its user alone.
    pub(super) is_authorized: bool,
}

impl Question {
    /// Returns the head of a request for the whole response, which answers all that is asked. Its
    /// range may stay.
    pub(super) fn for_all(&self, keeps_range: bool) -> Parts {
        let mut head = self.head.clone();
        head.method = Method::GET;
        for name in TERMS {
            if !(keeps_range && RANGE_TERMS.contains(&name)) {
                head.headers.remove(name);
            }
        }
        head
    }

    /// Returns the head as it came.
    pub(super) fn into_sent(self) -> Parts {
        let mut head = self.head;
        if let Some(headers) = self.as_sent {
            head.headers = headers;
        }
        head
    }

    /// Returns whether the request is for a part of the response. A `HEAD` is for none (RFC 9110,
    /// section 14.2).
    pub(super) fn wants_part(&self) -> bool {
        let headers = &self.head.headers;
        if self.head.method != Method::GET || !headers.contains_key(RANGE) {
            return false;
        }
        let range = sole(headers, RANGE).map(|range| range.as_bytes().trim_ascii());
        // Players and download managers begin so. It is all of the response.
        range != Some(b"bytes=0-".as_slice())
    }
}

/// A request that takes part, and where its response is stored.
#[derive(Clone)]
pub(super) struct Asked {
    pub(super) http: Http,
    pub(super) place: Place,
    pub(super) question: Arc<Question>,
}

impl Http {
    /// Gives headers their normal form. Returns all headers as they were, if any has one.
    pub(super) fn normalize(&self, head: &mut Parts) -> Option<HeaderMap> {
        let mut as_sent = None;
        for (name, normal_form) in &self.0.normal_forms {
            let lines = head.headers.get_all(name).iter();
            let lines: Vec<_> =
                lines.map(|line| String::from_utf8_lossy(line.as_bytes())).collect();
            if lines.is_empty() {
                continue;
            }
            let normal = normal_form(&lines.join(", "));
            as_sent.get_or_insert_with(|| head.headers.clone());
            head.headers.remove(name);
            if let Some(value) = normal.and_then(|value| HeaderValue::try_from(value).ok()) {
                head.headers.insert(name, value);
            }
        }
        as_sent
    }

    /// Removes the headers that a load does not send.
    pub(super) fn forward(&self, headers: &mut HeaderMap) {
        if self.0.forwarded.is_none() {
            return;
        }
        let all = std::mem::take(headers);
        for (name, value) in all.iter().filter(|(name, _)| self.0.forwards(name)) {
            headers.append(name, value.clone());
        }
    }

    /// Returns the place of a request that may receive the response to another request, if that may
    /// be shared. Returns why any other one takes no part.
    pub(super) fn admit(&self, parts: &Parts, body: &impl Body) -> Result<Place, Forward> {
        let settings = &self.0;
        let coalesces = settings.policy.coalesces;
        // If nothing is stored, the whole response would be fetched for each `HEAD` and condition.
        if parts.method != Method::GET && (coalesces || parts.method != Method::HEAD) {
            return Err(Forward::Method);
        }
        if settings.switch.as_ref().is_some_and(|switch| switch.load(Ordering::Relaxed)) {
            return Err(Forward::Switched);
        }
        if !body.is_end_stream() && body.size_hint().exact() != Some(0) {
            return Err(Forward::Body);
        }
        let forbids = |name: &&HeaderName| match TERMS.contains(name) {
            true => coalesces,
            false => !self.permits(name, &parts.headers),
        };
        if let Some(name) = parts.headers.keys().find(forbids) {
            return Err(Forward::Header(name.clone()));
        }
        let target = Target::of(parts).filter(|it| !it.is_respelled).ok_or(Forward::Key)?;
        let key = self.key(parts, target.scheme, &target.paths).ok_or(Forward::Key)?;
        let texts = match settings.key_parts.is_empty() || coalesces {
            true => None,
            false if settings.cache.core.settings.max_key < KEY_LENGTH => return Err(Forward::Key),
            false => Some(texts(parts, &settings.key_parts).ok_or(Forward::Key)?),
        };
        Ok(Place::new(key, texts))
    }

    fn permits(&self, name: &HeaderName, headers: &HeaderMap) -> bool {
        let settings = &self.0;
        let is_careful = !settings.policy.is_rfc9111;
        let accepts_no_cache = settings.policy.coalesces || settings.ignores_reloads;
        match *name {
            // The response says whether it may be shared (RFC 9111, section 3.5).
            AUTHORIZATION | COOKIE if !is_careful => true,
            COOKIE => are_ignored(&settings.ignored_cookies, headers),
            CONNECTION => names_no_field(headers),
            CACHE_CONTROL => Directives::parse(headers, name).is_some_and(|wanted| {
                let is_refused = wanted.no_store || (is_careful && wanted.malformed);
                !is_refused && (accepts_no_cache || !wanted.no_cache)
            }),
            // Section 5.4: it does not count beside `Cache-Control`.
            PRAGMA if !is_careful && headers.contains_key(CACHE_CONTROL) => true,
            PRAGMA => accepts_no_cache || !pragma(headers),
            _ => match classify(name.as_str()) {
                HeaderClass::Harmless => true,
                HeaderClass::Forbidden => false,
                HeaderClass::Credential => {
                    !is_careful || settings.known_headers.iter().any(|known| name == known.as_str())
                }
            },
        }
    }
}

/// Returns whether all cookies of a request are ignored. One in which the service may read another
/// cookie is not, such as `_ga=1, session=A`. One without a name has an empty one.
fn are_ignored(ignored: &[String], headers: &HeaderMap) -> bool {
    let lines = headers.get_all(COOKIE).iter().map(HeaderValue::as_bytes);
    let cookies = lines.flat_map(|line| line.split(|byte| *byte == b';')).map(<[u8]>::trim_ascii);
    cookies.filter(|cookie| !cookie.is_empty()).all(|cookie| {
        let end_of_name = cookie.iter().position(|byte| *byte == b'=').unwrap_or(0);
        let (name, value) = cookie.split_at(end_of_name);
        let value = value.strip_prefix(b"=").unwrap_or(value).trim_ascii();
        let name = name.trim_ascii();
        is_named(ignored, name) && !may_hold_another(name) && !may_hold_another(value)
    })
}
