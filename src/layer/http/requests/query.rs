//! The part of a query that belongs to the key.

use std::{borrow::Cow, fmt::Write};

use sha2::{Digest, Sha256};

use super::normal;

/// A longer query is hashed, so that names in the backend and in traces stay short.
const LONGEST: usize = 256;

/// What of a query counts, and what of it shows. By default all of it does, as it came.
///
/// The inner service always receives the query as it came.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// use bellwether::{BellwetherLayer, MemoryBackend, http_cache, layer::Query};
/// use http::Request;
///
/// let cache = http_cache(MemoryBackend::new()).build()?;
/// let query = Query::default().sort().ignore(["utm_*", "fbclid"]);
/// let layer = BellwetherLayer::http(cache).query(query.clone());
/// let key = |uri: &str| layer.key(&Request::get(uri).body(()).unwrap().into_parts().0);
/// assert_eq!(key("/list?page=2&by=name&utm_source=mail"), key("/list?by=name&page=2"));
///
/// let layer = layer.query(query.hash());
/// let key = layer.key(&Request::get("/list?by=name").body(()).unwrap().into_parts().0);
/// assert!(!format!("{key:?}").contains("name"));
/// # Ok::<_, bellwether::Error>(()) }).unwrap();
/// ```
#[derive(Clone, Debug, Default)]
pub struct Query {
    sorts: bool,
    hashes: bool,
    /// The names of parameters that no response depends on. One with a `*` at its end is the
    /// beginning of names.
    ignored: Vec<String>,
}

impl Query {
    /// Shares responses between requests whose queries differ in the order of their parameters.
    ///
    /// The order of several parameters with one name still counts. A query in which a `;` may
    /// separate parameters, or whose names have a percent-encoding, stays as it is.
    pub fn sort(mut self) -> Self {
        self.sorts = true;
        self
    }

    /// Declares parameters harmless: no response depends on them. A name may end with `*`.
    ///
    /// They are no part of the key. Names are compared with their case.
    ///
    /// A parameter in which the inner service may read another one is not ignored. It has a
    /// separator (`;`, `,`, `?`, `#`, a space or its like, plain or percent-encoded), a second `=`,
    /// or an invalid percent-encoding.
    pub fn ignore<N: AsRef<str>>(mut self, names: impl IntoIterator<Item = N>) -> Self {
        self.ignored.extend(names.into_iter().map(|name| name.as_ref().to_owned()));
        self
    }

    /// Replaces the query in the key by its SHA-256, so that the names in the backend and the
    /// traces do not show it. Use it if queries may be secret.
    ///
    /// A query of more than 256 bytes is always replaced.
    pub fn hash(mut self) -> Self {
        self.hashes = true;
        self
    }

    /// Returns a path with its query as it is in the key: in normal form.
    ///
    /// A hash follows a `#`, which no query has. So it is never the query of another request.
    pub(crate) fn apply<'a>(&self, path_and_query: &'a str) -> Cow<'a, str> {
        let normal = normal::text(path_and_query);
        let Some((path, query)) = normal.split_once('?') else { return normal };
        let query = self.counting(query);
        match query.is_empty() && self.changes() {
            true => path.to_owned().into(),
            false if self.hashes || query.len() > LONGEST => {
                format!("{path}?#{}", sha256(&query)).into()
            }
            false if self.changes() => format!("{path}?{query}").into(),
            false => normal,
        }
    }

    fn changes(&self) -> bool {
        self.sorts || !self.ignored.is_empty()
    }

    /// Returns a query without the ignored parameters, in order if that is set.
    fn counting<'a>(&self, query: &'a str) -> Cow<'a, str> {
        if !self.changes() {
            return query.into();
        }
        let parameters = query.split('&').filter(|parameter| !parameter.is_empty());
        let mut kept: Vec<_> = parameters.filter(|parameter| !self.ignores(parameter)).collect();
        // Several values of one name stay in their order, which may matter.
        if self.sorts && kept.iter().all(|parameter| has_one_name(parameter)) {
            kept.sort_by_key(|parameter| name(parameter));
        }
        kept.join("&").into()
    }

    /// Returns whether a parameter is ignored. One in which the service may read another parameter
    /// is not: `utm_source=x;user=A` would share the key of requests without that user.
    fn ignores(&self, parameter: &str) -> bool {
        let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
        let is_ignored = self.ignored.iter().any(|ignored| match ignored.strip_suffix('*') {
            Some(beginning) => name.starts_with(beginning),
            None => name == ignored,
        });
        // In a name, a `+` is a space.
        is_ignored
            && !name.contains('+')
            && !value.contains('=')
            && !normal::may_hold_another(parameter.as_bytes())
    }
}

/// Returns whether a parameter has the one name that it is sorted by, for every service.
fn has_one_name(parameter: &str) -> bool {
    !parameter.contains(';') && !name(parameter).contains('%')
}

/// Returns the SHA-256 of a text in hexadecimal digits.
pub(super) fn sha256(text: &str) -> String {
    let mut digits = String::new();
    for byte in Sha256::digest(text) {
        // Writing to a `String` cannot fail.
        let _ = write!(digits, "{byte:02x}");
    }
    digits
}

fn name(parameter: &str) -> &str {
    parameter.split_once('=').map_or(parameter, |(name, _)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(sorts: bool, ignored: &[&str]) -> Query {
        let ignored = ignored.iter().map(|name| (*name).to_owned()).collect();
        Query { sorts, hashes: false, ignored }
    }

    #[test]
    fn a_query_is_what_the_rules_leave_of_it() {
        for (rules, query, expected) in [
            (rules(false, &[]), "/a?b=1&a=2&&", "/a?b=1&a=2&&"),
            (rules(false, &[]), "/a?", "/a?"),
            (rules(true, &[]), "/a", "/a"),
            (rules(true, &[]), "/a?", "/a"),
            (rules(true, &[]), "/a?b=1&a=2&&", "/a?a=2&b=1"),
            (rules(true, &[]), "/a?b=2&a&b=1", "/a?a&b=2&b=1"),
            (rules(false, &["x", "utm_*"]), "/a?b=1&x=2&a=3&utm_id=4&xy=5", "/a?b=1&a=3&xy=5"),
            (rules(false, &["x"]), "/a?x", "/a"),
            (rules(true, &["x"]), "/a?x=1&b=?x&a", "/a?a&b=?x"),
            (rules(false, &["x"]), "/a?x=caf%C3%A9+a.b/c:d|e&%78=2", "/a"),
            // What may be sorted in two ways stays as it is.
            (rules(true, &[]), "/a?b=2;a=3&a=1", "/a?b=2;a=3&a=1"),
            (rules(true, &[]), "/a?x[]=1&x%5B%5D=2", "/a?x[]=1&x%5B%5D=2"),
        ] {
            assert_eq!(rules.apply(query), expected, "{query}");
        }
    }

    /// `?utm_source=x;u=A` had the key of the URL without a query.
    #[test]
    fn an_ignored_parameter_hides_no_other_one() {
        let rules = rules(true, &["x", "utm_*"]);
        for name in ["x", "utm_source", "utm_"] {
            for separator in [";", ",", "?", "%26", "%3b", "%2C", "%20", "%0a", "%00", "+", "%2526"]
            {
                for query in [
                    format!("{name}=1{separator}u=A"),
                    format!("{name}=1{separator}u%3dA"),
                    format!("{name}{separator}u=A"),
                    format!("{name}={separator}u=A"),
                    format!("b=1&{name}=1{separator}u=A"),
                ] {
                    // In a value, `+` is no separator.
                    let kept = rules.counting(&query).contains(name);
                    let is_cloaked = separator == "+" && query.ends_with("u%3dA");
                    assert_eq!(kept, !is_cloaked, "{query}");
                }
            }
        }
    }

    #[test]
    fn a_hashed_query_does_not_show() {
        let hashes = Query { hashes: true, ..rules(true, &["x"]) };
        let hashed = hashes.apply("/a?token=secret&b=1");
        assert!(hashed.starts_with("/a?#") && hashed.len() == 4 + 64, "{hashed}");
        assert_eq!(hashes.apply("/a?b=1&x=2&token=secret"), hashed);
        assert_ne!(hashes.apply("/a?b=1&token=other"), hashed);
        assert_eq!(hashes.apply("/a?x=1"), "/a");
        let long = format!("/a?{}", "b".repeat(LONGEST + 1));
        assert!(Query::default().apply(&long).starts_with("/a?#"));
        let longest = format!("/a?{}", "b".repeat(LONGEST));
        assert_eq!(Query::default().apply(&longest), longest);
    }
}
