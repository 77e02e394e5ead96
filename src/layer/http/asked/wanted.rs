//! How fresh a response a request wants.

use http::{HeaderMap, header::CACHE_CONTROL};

use crate::{
    cache::{Loaded, Source},
    layer::http::{
        CachedResponse,
        fields::directives::{Directives, Scope, pragma},
    },
};

/// The directives of a request (RFC 9111, section 5.2.1), if it has any. By default, any fresh
/// response will do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Wanted {
    no_cache: bool,
    /// Seconds, as all of these.
    max_age: Option<u64>,
    min_fresh: Option<u64>,
    max_stale: Option<u64>,
    pub(crate) only_if_cached: bool,
}

impl Wanted {
    /// Returns what a request with these headers wants. `None` if any stored response will do.
    pub(crate) fn of(headers: &HeaderMap) -> Option<Box<Self>> {
        let directives = Directives::parse(headers)?;
        // It does not count beside `Cache-Control` (section 5.4).
        let by_pragma = || !headers.contains_key(CACHE_CONTROL) && pragma(headers);
        let wanted = Self {
            no_cache: directives.no_cache != Scope::Nothing || by_pragma(),
            max_age: directives.max_age,
            min_fresh: directives.min_fresh,
            max_stale: directives.max_stale,
            only_if_cached: directives.only_if_cached,
        };
        let is_any = !wanted.needs_load(true) && wanted.max_stale.is_none();
        (!is_any || wanted.only_if_cached).then(|| Box::new(wanted))
    }

    /// Returns whether a load has to begin, if no response is stored that is fresh enough.
    /// Otherwise the load that is under way will do.
    pub(crate) fn needs_load(&self, is_stored: bool) -> bool {
        self.no_cache || (is_stored && (self.max_age.is_some() || self.min_fresh.is_some()))
    }

    /// Returns whether a stored response is fresh enough.
    pub(crate) fn accepts(&self, stored: &Loaded<CachedResponse>) -> bool {
        let kept = stored.age().unwrap_or_default().as_secs();
        let age = stored.value().age_on_arrival().saturating_add(kept);
        if self.no_cache || self.max_age.is_some_and(|most| age > most) {
            return false;
        }
        match (stored.source(), stored.lateness()) {
            (Source::Stale, Some(late)) => {
                let accepted = self.max_stale.filter(|_| self.min_fresh.is_none());
                accepted.is_some_and(|most| late.as_secs() <= most)
            }
            (Source::Stale, None) => false,
            _ => {
                let left = stored.expires_in().unwrap_or_default().as_secs();
                self.min_fresh.is_none_or(|least| left >= least)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn a_request_wants_what_its_directives_say() {
        let none = Wanted {
            no_cache: false,
            max_age: None,
            min_fresh: None,
            max_stale: None,
            only_if_cached: false,
        };
        for (line, expected) in [
            ("x", None),
            ("no-cache", Some(Wanted { no_cache: true, ..none.clone() })),
            ("no-cache=\"x\"", Some(Wanted { no_cache: true, ..none.clone() })),
            ("max-age=5, max-age=3", Some(Wanted { max_age: Some(3), ..none.clone() })),
            ("max-age=x", Some(Wanted { max_age: Some(0), ..none.clone() })),
            ("min-fresh=5, min-fresh=3", Some(Wanted { min_fresh: Some(5), ..none.clone() })),
            ("min-fresh", Some(Wanted { min_fresh: Some(u64::MAX), ..none.clone() })),
            ("max-stale", Some(Wanted { max_stale: Some(u64::MAX), ..none.clone() })),
            ("max-stale=7, max-stale", Some(Wanted { max_stale: Some(7), ..none.clone() })),
            ("max-stale=x", Some(Wanted { max_stale: Some(0), ..none.clone() })),
            ("Only-If-Cached", Some(Wanted { only_if_cached: true, ..none.clone() })),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(CACHE_CONTROL, HeaderValue::from_static(line));
            assert_eq!(Wanted::of(&headers).map(|wanted| *wanted), expected, "{line}");
        }
        let mut headers = HeaderMap::new();
        headers.insert("pragma", HeaderValue::from_static("no-cache"));
        assert!(Wanted::of(&headers).is_some_and(|wanted| wanted.no_cache));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("x"));
        assert_eq!(Wanted::of(&headers), None);
    }
}
