//! Resolves `Location` and `Content-Location` (RFC 9110, sections 8.7 and 10.2.2).

use http::{
    Uri,
    uri::{Authority, PathAndQuery, Scheme},
};

use crate::layer::http::requests::normal;

/// The place that a location names.
#[derive(Debug)]
pub(crate) struct Located {
    /// `None` if it is on the host of its request.
    pub(crate) host: Option<LocatedHost>,
    pub(crate) path: PathAndQuery,
}

#[derive(Debug)]
pub(crate) struct LocatedHost {
    scheme: Option<Scheme>,
    authority: Authority,
}

impl Located {
    /// Resolves a location in the answer to a request for this path (RFC 3986, section 5.2), and
    /// brings it into normal form.
    /// Returns `None` if it is no place of HTTP.
    pub(crate) fn resolve(location: &str, base: &PathAndQuery) -> Option<Self> {
        let location = normal::text(location.split('#').next()?);
        let first = location.split(['/', '?']).next()?;
        if let Some(rest) = location.strip_prefix("//") {
            // The scheme is that of the request, which may not be known here.
            Self::absolute(&format!("http://{rest}"), false)
        } else if first.contains(':') {
            Self::absolute(&location, true)
        } else {
            Some(Self { host: None, path: merged(base, &location).parse().ok()? })
        }
    }

    fn absolute(location: &str, names_scheme: bool) -> Option<Self> {
        let parts = location.parse::<Uri>().ok()?.into_parts();
        let scheme = parts.scheme?;
        let path = parts.path_and_query.as_ref().map_or("/", PathAndQuery::as_str);
        let path = without_dots(path).parse().ok()?;
        let host = LocatedHost {
            scheme: Some(scheme).filter(|_| names_scheme),
            authority: parts.authority?,
        };
        Some(Self { host: Some(host), path })
    }
}

impl LocatedHost {
    /// Returns whether this is a host, whatever the ports.
    pub(crate) fn is_named(&self, host: &Authority) -> bool {
        self.authority.host().eq_ignore_ascii_case(host.host())
    }

    /// Returns whether this is a host with its port. A port that is not told is that of the scheme.
    pub(crate) fn is(&self, host: &Authority) -> bool {
        let scheme = self.scheme.as_ref().map_or("", Scheme::as_str);
        let place = |of: &Authority| {
            let host = of.as_str().rsplit('@').next().unwrap_or_default();
            normal::host(host, scheme).to_ascii_lowercase()
        };
        place(&self.authority) == place(host)
    }
}

/// Returns the path and query of a relative reference.
fn merged(base: &PathAndQuery, reference: &str) -> String {
    let is_query = reference.starts_with('?');
    match reference.starts_with('/') {
        true => without_dots(reference),
        false if reference.is_empty() => base.as_str().to_owned(),
        false if is_query => format!("{}{reference}", base.path()),
        false => {
            let folder = base.path().rsplit_once('/').map_or("", |(folder, _)| folder);
            without_dots(&format!("{folder}/{reference}"))
        }
    }
}

/// Removes the segments `.` and `..` from a path with its query (RFC 3986, section 5.2.4).
fn without_dots(path_and_query: &str) -> String {
    let (path, query) = match path_and_query.find('?') {
        Some(at) => path_and_query.split_at(at),
        None => (path_and_query, ""),
    };
    let mut kept = Vec::new();
    let mut segments = path.split('/').skip(1).peekable();
    while let Some(segment) = segments.next() {
        let is_dots = matches!(segment, "." | "..");
        if segment == ".." {
            kept.pop();
        } else if !is_dots {
            kept.push(segment);
        }
        if is_dots && segments.peek().is_none() {
            kept.push("");
        }
    }
    format!("/{}{query}", kept.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 3986, section 5.4, without the paths that have parameters.
    #[test]
    fn references_are_resolved_as_in_the_examples_of_the_rfc() {
        let base = PathAndQuery::from_static("/b/c/d;p?q");
        for (reference, expected) in [
            ("g", "/b/c/g"),
            ("./g", "/b/c/g"),
            ("g/", "/b/c/g/"),
            ("/g", "/g"),
            ("?y", "/b/c/d;p?y"),
            ("g?y", "/b/c/g?y"),
            ("#s", "/b/c/d;p?q"),
            ("g#s", "/b/c/g"),
            ("g?y#s", "/b/c/g?y"),
            (";x", "/b/c/;x"),
            ("", "/b/c/d;p?q"),
            (".", "/b/c/"),
            ("./", "/b/c/"),
            ("..", "/b/"),
            ("../", "/b/"),
            ("../g", "/b/g"),
            ("../..", "/"),
            ("../../g", "/g"),
            ("../../../../g", "/g"),
            ("/./g", "/g"),
            ("/../g", "/g"),
            ("g.", "/b/c/g."),
            ("..g", "/b/c/..g"),
            ("./g/.", "/b/c/g/"),
            ("g/../h", "/b/c/h"),
            ("g?y/../x", "/b/c/g?y/../x"),
            ("g?a:b", "/b/c/g?a:b"),
            // Section 6.2.2.
            ("/%67%2f", "/g%2F"),
            ("%2E%2e/g", "/b/g"),
        ] {
            let located = Located::resolve(reference, &base).unwrap();
            assert_eq!((located.path.as_str(), located.host.is_none()), (expected, true));
        }
        for no_place in ["mailto:a@b", "urn:x", "http:g", "https:///a", "http://a b/"] {
            assert!(Located::resolve(no_place, &base).is_none(), "{no_place}");
        }
    }

    #[test]
    fn a_port_that_is_not_told_is_that_of_the_scheme() {
        let base = PathAndQuery::from_static("/a");
        for (location, host, is_host) in [
            ("http://shop/b", "shop", true),
            ("https://SHOP/b", "shop", true),
            ("http://shop:80/b", "shop", true),
            ("https://shop:443/b", "shop", true),
            ("http://shop/b", "shop:80", true),
            ("https://shop/b", "shop:80", false),
            ("http://shop:8080/b", "shop", false),
            ("http://shop:8080/b", "shop:8080", true),
            ("//shop/b", "shop", true),
            ("//shop:80/b", "shop", true),
            ("//shop:8080/b", "shop", false),
            ("http://user@shop/b", "shop", true),
            ("http://bank/b", "shop", false),
        ] {
            let located = Located::resolve(location, &base).unwrap();
            assert_eq!(located.path.as_str(), "/b");
            let is = located.host.unwrap().is(&host.parse().unwrap());
            assert_eq!(is, is_host, "{location} {host}");
        }
    }
}
