//! Decides whether a request takes part. For headers, this is a deny-list: a header that no rule
//! knows does not stand in the way.

use std::sync::{Arc, atomic::Ordering};

use http::{
    HeaderMap, HeaderName, HeaderValue, Method,
    header::{AUTHORIZATION, CACHE_CONTROL, CONNECTION, COOKIE, PRAGMA},
    request::Parts,
};
use http_body::Body;

use super::{
    Http,
    fields::{Directives, names_no_field, pragma},
    header_names::{HeaderClass, classify},
    key::{Target, is_named, may_hold_another, texts},
    question::{Question, TERMS},
    status::Forward,
    variants::{KEY_LENGTH, Place},
};

/// A request that takes part, and where its response is stored.
#[derive(Clone)]
pub(super) struct Asked {
    pub(super) http: Http,
    pub(super) place: Place,
    pub(super) question: Arc<Question>,
}

impl Http {
    /// Gives headers their normal form. Returns all headers as they were, if any header has a
    /// normal form.
    pub(super) fn normalize(&self, head: &mut Parts) -> Option<HeaderMap> {
        let mut as_sent = None;
        for (name, normal_form) in &self.0.normal_forms {
            let mut lines = Vec::new();
            for line in head.headers.get_all(name) {
                lines.push(String::from_utf8_lossy(line.as_bytes()));
            }
            if lines.is_empty() {
                continue;
            }
            let normal = normal_form(&lines.join(", "));
            as_sent.get_or_insert_with(|| head.headers.clone());
            head.headers.remove(name);
            if let Some(normal) = normal
                && let Ok(value) = HeaderValue::try_from(normal)
            {
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
        for (name, value) in &all {
            if self.0.forwards(name) {
                headers.append(name, value.clone());
            }
        }
    }

    /// Returns the place of a request that may receive the response to another request, if that may
    /// be shared. Returns why any other one takes no part.
    pub(super) fn admit(&self, parts: &Parts, body: &impl Body) -> Result<Place, Forward> {
        let coalesces = self.0.policy.coalesces;
        // If nothing is stored, the whole response would be fetched for each `HEAD` and condition.
        let is_head_that_shares = parts.method == Method::HEAD && !coalesces;
        if parts.method != Method::GET && !is_head_that_shares {
            return Err(Forward::Method);
        }
        if let Some(switch) = &self.0.switch
            && switch.load(Ordering::Relaxed)
        {
            return Err(Forward::Switched);
        }
        if !body.is_end_stream() && body.size_hint().exact() != Some(0) {
            return Err(Forward::Body);
        }
        for name in parts.headers.keys() {
            if self.forbids(name, &parts.headers) {
                return Err(Forward::Header(name.clone()));
            }
        }
        self.place_of(parts).ok_or(Forward::Key)
    }

    /// Returns the place of a request, if its target and the parts of the key are clear.
    fn place_of(&self, parts: &Parts) -> Option<Place> {
        let settings = &self.0;
        let target = Target::of(parts)?;
        if target.is_respelled {
            return None;
        }
        let key = self.key(parts, target.scheme, &target.paths)?;
        if settings.key_parts.is_empty() || settings.policy.coalesces {
            return Some(Place::new(key, None));
        }
        if settings.terms.max_key < KEY_LENGTH {
            return None;
        }
        let texts = texts(parts, &settings.key_parts)?;
        Some(Place::new(key, Some(texts)))
    }

    /// Returns whether a header of a request keeps the request away from the cache.
    fn forbids(&self, name: &HeaderName, headers: &HeaderMap) -> bool {
        if TERMS.contains(name) {
            return self.0.policy.coalesces;
        }
        !self.permits(name, headers)
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
            CACHE_CONTROL => {
                let Some(wanted) = Directives::parse(headers, name) else { return false };
                let is_refused = wanted.no_store || (is_careful && wanted.malformed);
                !is_refused && (accepts_no_cache || !wanted.no_cache)
            }
            // Section 5.4: `Pragma` does not count beside `Cache-Control`.
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

/// Returns whether all cookies of a request are ignored.
fn are_ignored(ignored: &[String], headers: &HeaderMap) -> bool {
    for line in headers.get_all(COOKIE) {
        for cookie in line.as_bytes().split(|byte| *byte == b';') {
            let cookie = cookie.trim_ascii();
            if !cookie.is_empty() && !is_ignored(ignored, cookie) {
                return false;
            }
        }
    }
    true
}

/// Returns whether a cookie is ignored. A cookie in which the service may read another cookie is
/// not, such as `_ga=1, session=A`. A cookie without a name has an empty name.
fn is_ignored(ignored: &[String], cookie: &[u8]) -> bool {
    let mut name: &[u8] = b"";
    let mut value = cookie;
    if let Some(end_of_name) = cookie.iter().position(|byte| *byte == b'=') {
        let (before, from_sign) = cookie.split_at(end_of_name);
        name = before.trim_ascii();
        value = from_sign.strip_prefix(b"=").unwrap_or(from_sign);
    }
    is_named(ignored, name) && !may_hold_another(name) && !may_hold_another(value.trim_ascii())
}
