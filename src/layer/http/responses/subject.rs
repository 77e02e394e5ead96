//! The request that a response is judged by.

use http::{
    HeaderMap, HeaderValue, Request,
    header::{AUTHORIZATION, HOST, LOCATION},
    uri::{Authority, PathAndQuery},
};

use crate::layer::http::{
    fields::location::{Located, LocatedHost},
    requests::{key, query::Query},
};

/// The facts of a request that the rules for responses need.
#[derive(Clone, Debug, Default)]
pub(crate) struct Subject {
    /// It has an `Authorization`.
    pub(super) is_authorized: bool,
    authority: Option<Authority>,
    host: Option<HeaderValue>,
    path: Option<PathAndQuery>,
    query: Query,
}

impl Subject {
    /// `query` says which part of a query is in the key.
    pub(crate) fn new<B>(request: &Request<B>, query: &Query) -> Self {
        let (headers, uri) = (request.headers(), request.uri());
        Self {
            is_authorized: headers.contains_key(AUTHORIZATION),
            authority: uri.authority().cloned(),
            host: headers.get(HOST).cloned(),
            path: key::original(uri, request.extensions()).cloned(),
            query: query.clone(),
        }
    }

    /// Returns whether a `Location` differs from the place of the request at most in the scheme and
    /// in parts of the query that are not in the key. A request for that other place may share the
    /// key, and would get the redirect again.
    pub(super) fn is_redirected_to_itself(&self, headers: &HeaderMap) -> bool {
        let path = self.path.clone().unwrap_or_else(|| PathAndQuery::from_static("/"));
        headers.get_all(LOCATION).iter().any(|location| {
            let Ok(location) = location.to_str() else { return true };
            match Located::resolve(location, &path) {
                Some(Located { host, path: located }) => {
                    host.is_none_or(|host| self.is_host(&host))
                        && self.query.apply(located.as_str()) == self.query.apply(path.as_str())
                }
                // One that cannot be read may lead anywhere.
                None => location.contains("//"),
            }
        })
    }

    /// Returns whether this is the host of the request. Ports differ with the scheme, so they do
    /// not count.
    fn is_host(&self, located: &LocatedHost) -> bool {
        let named = || self.host.as_ref().and_then(|host| host.to_str().ok()?.parse().ok());
        self.authority.clone().or_else(named).is_none_or(|host| located.is_named(&host))
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
            let subject = Subject::new(&request, &Query::default());
            let found = subject.is_redirected_to_itself(&headers);
            assert_eq!(found, to_itself, "{uri} {location}");
        }
    }
}
