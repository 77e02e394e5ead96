//! The variants of a resource, which request headers select (RFC 9110, section 12.5.5).
//!
//! The key of a resource whose responses have a `Vary` holds a marker: the names of the headers,
//! and a generation. Each variant is stored under a key of its own, which the generation is a part
//! of. So each way to a variant leads through the marker. An invalidation removes the marker, and
//! the next one has a new generation. A variant of the old one is never found again, even if its
//! load began before the invalidation and ends after it.

use std::fmt::Write;

use bytes::Bytes;
use http::{
    HeaderMap, HeaderName, HeaderValue, StatusCode,
    header::{ACCEPT_ENCODING, ETAG, VARY},
    response::{Parts, Response},
};
use sha2::{Digest, Sha256};

use crate::{
    key::Key,
    layer::http::{
        CachedResponse,
        asked::is_term,
        cached::ResponseHead,
        fields::vary::{in_order, vary},
    },
};

/// The status of a marker. No response has it.
const MARK: StatusCode = StatusCode::CONTINUE;

/// The length of the key of a variant, in bytes.
pub(super) const KEY_LENGTH: usize = "VARY ".len() + 32 + " ".len() + 64;

/// The headers that select a variant, in one generation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Selector {
    names: Vec<HeaderName>,
    generation: String,
}

impl Selector {
    /// Creates a selector of a new generation.
    pub(crate) fn new(names: Vec<HeaderName>) -> Self {
        Self { names, generation: uuid::Uuid::new_v4().simple().to_string() }
    }

    /// Creates a selector by no headers, of a generation.
    pub(crate) fn of_generation(generation: String) -> Self {
        Self { names: Vec::new(), generation }
    }

    /// Returns the selector that an entry marks, or `None` if the entry is a response.
    pub(crate) fn of(entry: &CachedResponse) -> Option<Self> {
        if entry.status() != MARK {
            return None;
        }
        let generation = entry.headers().get(ETAG)?.to_str().ok()?.to_owned();
        Some(Self { names: vary(entry.headers())?, generation })
    }

    /// Returns the entry that marks this selector.
    pub(crate) fn marker(&self) -> Option<CachedResponse> {
        let (mut parts, ()) = Response::new(()).into_parts();
        parts.status = MARK;
        parts.headers.insert(ETAG, HeaderValue::from_str(&self.generation).ok()?);
        for name in &self.names {
            parts.headers.append(VARY, HeaderValue::from_str(name.as_str()).ok()?);
        }
        Some(marked(&parts))
    }

    /// Returns whether the selector covers all of these names.
    pub(super) fn covers(&self, names: &[HeaderName]) -> bool {
        names.iter().all(|name| self.names.contains(name))
    }

    /// Returns the names.
    pub(super) fn names(&self) -> &[HeaderName] {
        &self.names
    }

    /// Returns a selector of a new generation that covers these names too. Returns `None` if they
    /// are too many.
    pub(super) fn and(&self, names: &[HeaderName]) -> Option<Self> {
        let all: Vec<_> = self.names.iter().chain(names).cloned().collect();
        in_order(all).map(Self::new)
    }

    /// Returns the generation, which no other selector has.
    pub(crate) fn generation(&self) -> &str {
        &self.generation
    }

    /// Returns the key of the variant that a request selects.
    ///
    /// It contains a digest of the headers, because they may be secret. No other key starts with
    /// `VARY`.
    pub(crate) fn key(&self, resource: &Key, request: &HeaderMap) -> Key {
        let mut digest = Sha256::new();
        let mut field = |bytes: &[u8]| {
            digest.update((bytes.len() as u64).to_be_bytes());
            digest.update(bytes);
        };
        field(resource.as_str().as_bytes());
        // The service never sees a term, so that no response depends on it.
        for name in self.names.iter().filter(|name| !is_term(name)) {
            let lines = || request.get_all(name).iter().map(HeaderValue::as_bytes);
            match lines().count() as u64 {
                1.. if *name == ACCEPT_ENCODING => field(&encodings(lines())),
                count => {
                    field(&count.to_be_bytes());
                    lines().for_each(&mut field);
                }
            }
        }
        let mut key = format!("VARY {} ", self.generation);
        for byte in digest.finalize() {
            // Writing to a `String` cannot fail.
            let _ = write!(key, "{byte:02x}");
        }
        Key::from(key)
    }
}

fn marked(parts: &Parts) -> CachedResponse {
    CachedResponse::new(ResponseHead::new(parts, 0), Bytes::new())
}

/// Normalises `Accept-Encoding`: case, spaces, empty elements, and the order of codings that are
/// equally welcome. Two requests of one form accept the same codings, with the same preferences.
fn encodings<'a>(lines: impl Iterator<Item = &'a [u8]>) -> Vec<u8> {
    let mut codings: Vec<Vec<u8>> = lines
        .flat_map(|line| line.split(|byte| *byte == b','))
        .map(|coding| {
            let bytes = coding.iter().filter(|byte| !matches!(byte, b' ' | b'\t'));
            bytes.map(u8::to_ascii_lowercase).collect()
        })
        .filter(|coding: &Vec<u8>| !coding.is_empty())
        .collect();
    codings.sort_unstable();
    codings.dedup();
    codings.join(&b","[..])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(lines: &[(&str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            let name = HeaderName::from_bytes(name.as_bytes()).unwrap();
            headers.append(name, HeaderValue::from_bytes(value.as_bytes()).unwrap());
        }
        headers
    }

    #[test]
    fn a_selector_is_marked_by_an_entry() {
        let names = vary(&headers(&[("vary", "origin, cookie")])).unwrap();
        let selector = Selector::new(names.clone());
        assert_eq!(Selector::of(&selector.marker().unwrap()), Some(selector.clone()));
        let (parts, ()) = Response::new(()).into_parts();
        assert_eq!(Selector::of(&marked(&parts)), None);
        assert!(selector.covers(&names) && !selector.covers(&[ACCEPT_ENCODING]));
        let more = selector.and(&[ACCEPT_ENCODING]).unwrap();
        assert!(more.covers(&names) && more.covers(&[ACCEPT_ENCODING]));
        assert_ne!(more.generation(), selector.generation());
    }

    #[test]
    fn each_difference_in_a_header_selects_another_variant() {
        let names = vary(&headers(&[("vary", "a, b")])).unwrap();
        let (selector, other) = (Selector::new(names.clone()), Selector::new(names));
        let resource = Key::from("GET  /a");
        let mut keys = vec![
            other.key(&resource, &headers(&[])),
            selector.key(&Key::from("GET  /b"), &headers(&[])),
        ];
        let requests: [&[(&str, &str)]; 10] = [
            &[],
            &[("a", "")],
            &[("b", "")],
            &[("a", "1")],
            &[("a", "1"), ("a", "2")],
            &[("a", "2"), ("a", "1")],
            &[("a", "1, 2")],
            &[("a", "1"), ("b", "2")],
            &[("a", "2"), ("b", "1")],
            &[("a", "\u{e4}")],
        ];
        keys.extend(requests.map(|lines| selector.key(&resource, &headers(lines))));
        let all: std::collections::HashSet<_> = keys.iter().collect();
        assert_eq!(all.len(), keys.len());
        let with_others = headers(&[("c", "3"), ("a", "1")]);
        assert_eq!(selector.key(&resource, &with_others), keys[5]);
    }

    #[test]
    fn encodings_that_mean_the_same_select_one_variant() {
        let form = |lines: &[&str]| encodings(lines.iter().map(|line| line.as_bytes()));
        assert_eq!(form(&["gzip, deflate, br"]), form(&["BR ,gzip", "deflate,,"]));
        assert_eq!(form(&["gzip; q=0.5"]), form(&["gzip;q=0.5"]));
        let different = ["", "gzip", "gzip;q=0", "gzip;q=0.5", "gzip, br", "*", "identity"];
        let forms: std::collections::HashSet<_> =
            different.iter().map(|line| form(&[line])).collect();
        assert_eq!(forms.len(), different.len());
    }
}
