//! The request that a response is judged by.

use http::{
    HeaderMap, HeaderValue, Request, Uri,
    header::{AUTHORIZATION, HOST, LOCATION},
    uri::{Authority, PathAndQuery},
};

use crate::layer::http::requests::key;

/// The facts of a request that the rules for responses need.
#[derive(Clone, Debug, Default)]
pub(crate) struct Subject {
    /// It has an `Authorization`.
    pub(super) is_authorized: bool,
    authority: Option<Authority>,
    host: Option<HeaderValue>,
    path: Option<PathAndQuery>,
}

impl Subject {
    pub(crate) fn of<B>(request: &Request<B>) -> Self {
        let (headers, uri) = (request.headers(), request.uri());
        Self {
            is_authorized: headers.contains_key(AUTHORIZATION),
            authority: uri.authority().cloned(),
            host: headers.get(HOST).cloned(),
            path: key::original(uri, request.extensions()).cloned(),
        }
    }

    /// Returns whether a `Location` differs from the place of the request in the scheme at most.
    /// Requests of both schemes may share a key, so that the redirect would lead to itself.
    pub(super) fn is_redirected_to_itself(&self, headers: &HeaderMap) -> bool {
        headers.get_all(LOCATION).iter().any(|location| {
            let Ok(location) = location.to_str() else { return true };
            match location.parse::<Uri>() {
                Ok(location) => self.is_at(&location),
                // One that cannot be read may lead anywhere.
                Err(_) => location.contains("//"),
            }
        })
    }

    fn is_at(&self, location: &Uri) -> bool {
        let path = |path: Option<&PathAndQuery>| path.map_or("/", PathAndQuery::as_str).to_owned();
        location.authority().is_some_and(|host| self.is_host(host))
            && path(location.path_and_query()) == path(self.path.as_ref())
    }

    fn is_host(&self, other: &Authority) -> bool {
        let named = || self.host.as_ref().and_then(|host| host.to_str().ok()?.parse().ok());
        // Ports differ with the scheme, so they do not count.
        let is_other = |host: Authority| host.host().eq_ignore_ascii_case(other.host());
        self.authority.clone().or_else(named).is_none_or(is_other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
            ("/a", "/b?next=https://shop.example/a", false),
            ("/a?b=1", "https://shop.example/a", false),
            ("/a", "https://www.shop.example/a", false),
            ("/a", "https://shop.example/a/", false),
        ] {
            let request = Request::get(uri).header("host", "shop.example").body(()).unwrap();
            let mut headers = HeaderMap::new();
            headers.insert(LOCATION, HeaderValue::from_static(location));
            let found = Subject::of(&request).is_redirected_to_itself(&headers);
            assert_eq!(found, to_itself, "{uri} {location}");
        }
    }
}
