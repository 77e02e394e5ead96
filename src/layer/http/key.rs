//! Derives the key of an HTTP request.
//!
//! The text of a key is `GET <scheme> <host>[ *]... <original path and query>[ <routed path and
//! query>]`, with a `*` for each [`KeyPart`]. So it is the same for all values of the parts, which
//! select a place below its marker. A layer that only coalesces has no markers. Its key begins with
//! `COALESCE`, so that it never finds what another layer stored, and has `<length>:<part>` in place
//! of each `*`.
//!
//! Two requests that differ in one of these fields never have the same text. Scheme, host and path
//! cannot contain a space. Each part follows its own length. A path begins with a slash, a length
//! with a digit. The scheme is empty unless the target of an HTTP/1.1 request names one. Host, path
//! and query are in their [normal form](super::uri).

use std::{borrow::Cow, fmt::Write, sync::Arc};

use http::{HeaderName, Uri, Version, header::HOST, request::Parts, uri::PathAndQuery};
use sha2::{Digest, Sha256};

use super::{
    Http,
    fields::sole,
    requests::{HeaderClass, classify},
    uri::{self, normal, normal_host},
};
use crate::{key::Key, layer::KeyFor};

/// A part of the key of a request. [`BellwetherLayer::vary_by`] adds it.
///
/// It is implemented for names of headers, and for functions from [`&Parts`](Parts) to a `String`
/// or an `Option<String>`. `None` sends the request to the inner service.
///
/// [`BellwetherLayer::vary_by`]: crate::BellwetherLayer::vary_by
pub trait VaryBy {
    /// Returns the part as a function.
    #[doc(hidden)]
    fn part(self) -> KeyPart;
}

type PartOf = dyn Fn(&Parts) -> Option<String> + Send + Sync;

/// A part of the key, ready to be asked for.
#[derive(Clone)]
pub struct KeyPart {
    /// The header that it is, in lower case.
    pub(super) header: Option<String>,
    /// Returns `None` if the request takes no part.
    text: Arc<PartOf>,
}

impl<F, T> VaryBy for F
where
    F: Fn(&Parts) -> T + Send + Sync + 'static,
    T: Into<Option<String>>,
{
    fn part(self) -> KeyPart {
        KeyPart { header: None, text: Arc::new(move |parts| self(parts).into()) }
    }
}

impl Http {
    /// Returns the key of the resource of a request. It is the same for all values of the parts.
    pub(super) fn key(&self, parts: &Parts) -> Option<Key> {
        self.key_with(parts, scheme(parts))
    }

    /// Returns the keys of a resource, whether the target of a request names its scheme or not.
    pub(super) fn keys(&self, parts: &Parts) -> impl Iterator<Item = Key> {
        let schemes = ["", "http", "https", scheme(parts)];
        schemes.into_iter().filter_map(|scheme| self.key_with(parts, scheme))
    }

    fn key_with(&self, parts: &Parts, scheme: &str) -> Option<Key> {
        let (verb, fields) = match self.0.policy.coalesces {
            true => ("COALESCE", texts(parts, &self.0.key_parts)?),
            false => ("GET", " *".repeat(self.0.key_parts.len())),
        };
        key(parts, verb, scheme, &fields, &self.0.query, self.0.cache.settings().max_key)
    }
}

impl KeyFor<Parts> for Http {
    fn key_for(&self, parts: &Parts) -> Option<Key> {
        self.key(parts)
    }
}

/// Returns what the parts make of a request, or `None` if one of them excludes it.
pub(super) fn texts(parts: &Parts, key_parts: &[KeyPart]) -> Option<String> {
    let mut text = String::new();
    for part in key_parts {
        let value = (part.text)(parts)?;
        write!(text, " {}:{value}", value.len()).ok()?;
    }
    Some(text)
}

/// Returns the key of a `GET` whose target names this scheme, of at most `limit` bytes. The verb is
/// the first field of its text, and `fields` lie between the host and the path.
///
/// Returns `None` if the host is not clear, if there is no path, or if even a digest is too long.
fn key(
    parts: &Parts,
    verb: &str,
    scheme: &str,
    fields: &str,
    query: &Query,
    limit: usize,
) -> Option<Key> {
    let routed = path(&parts.uri)?;
    let original = original(parts)?;
    let host = host(parts, scheme)?;
    let ends = verb.len() + scheme.len() + host.len() + original.as_str().len();
    let length = ends + fields.len() + 3;
    let mut text = String::with_capacity(length);
    for field in [verb, " ", scheme, " ", host] {
        text.push_str(field);
    }
    text[verb.len()..].make_ascii_lowercase();
    text.push_str(fields);
    text.push(' ');
    text.push_str(&query.apply(original.as_str()));
    if original != routed {
        text.push(' ');
        text.push_str(&query.apply(routed.as_str()));
    }
    if text.len() > limit {
        text = digest(&text);
    }
    (text.len() <= limit).then(|| Key::from(text))
}

/// Shortens a key that is too long. The key of another request starts with its verb, never with
/// `sha256:`.
fn digest(text: &str) -> String {
    format!("sha256:{}", hex(Sha256::digest(text)))
}

/// The lines of a header, each after its own length. The key contains only a digest of a header
/// that looks like a credential.
///
/// The part excludes requests in which the header is not text. Two of these could look the same.
impl VaryBy for &str {
    fn part(self) -> KeyPart {
        let header = self.to_ascii_lowercase();
        let is_secret = classify(&header) == HeaderClass::Credential;
        let name = HeaderName::from_bytes(header.as_bytes()).ok();
        let text = move |parts: &Parts| {
            let lines = name.iter().flat_map(|name| parts.headers.get_all(name));
            let mut text = String::new();
            for line in lines {
                let line = line.to_str().ok()?;
                write!(text, "{}:{line}", line.len()).ok()?;
            }
            let is_digest = is_secret && !text.is_empty();
            Some(if is_digest { digest(&text) } else { text })
        };
        KeyPart { header: Some(header), text: Arc::new(text) }
    }
}

/// Returns the path before `Router::nest` removed a prefix. Without it, `/a/items` and `/b/items`
/// would both have the key of `/items`, and one response would be served for the other.
pub(super) fn original(parts: &Parts) -> Option<&PathAndQuery> {
    #[cfg(feature = "axum")]
    if let Some(original) = parts.extensions.get::<axum::extract::OriginalUri>() {
        return path(original);
    }
    path(&parts.uri)
}

/// Returns the scheme that an HTTP/1.1 request names in front of its host. Requests of HTTP/2
/// always name one, and must share with those of HTTP/1.1, which usually name none.
fn scheme(parts: &Parts) -> &str {
    let names_it = parts.version < Version::HTTP_2;
    parts.uri.scheme_str().filter(|_| names_it).unwrap_or_default()
}

/// Returns whether the service may take the path of a request for another one than the key tells.
pub(super) fn is_respelled(parts: &Parts) -> bool {
    let paths = [parts.uri.path_and_query(), original(parts)];
    paths.into_iter().flatten().any(uri::is_respelled)
}

fn path(uri: &Uri) -> Option<&PathAndQuery> {
    uri.path_and_query().filter(|path| path.as_str().starts_with('/'))
}

/// Returns the scheme and the host of a request, as its key begins. Returns `None` if the host is
/// not clear.
pub(super) fn origin(parts: &Parts) -> Option<String> {
    let scheme = scheme(parts);
    let host = host(parts, scheme)?;
    Some(format!("{scheme} {host}").to_ascii_lowercase())
}

/// Returns the requested host in its normal form, or an empty one if the request names none.
///
/// Returns `None` if the host has an invalid character, or if the request names two.
fn host<'a>(parts: &'a Parts, scheme: &str) -> Option<&'a str> {
    let normal = |host: &'a str| Some(normal_host(valid(host)?, scheme));
    let header = match parts.headers.contains_key(HOST) {
        true => Some(normal(sole(&parts.headers, HOST)?.to_str().ok()?)?),
        false => None,
    };
    let authority = match parts.uri.authority() {
        Some(host) => Some(normal(host.as_str())?),
        None => None,
    };
    match (authority, header) {
        // The inner service may read either, so neither alone decides its response.
        (Some(authority), Some(header)) if !authority.eq_ignore_ascii_case(header) => None,
        (authority, header) => Some(authority.or(header).unwrap_or_default()),
    }
}

fn valid(host: &str) -> Option<&str> {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-._:[]".contains(&byte);
    (!host.is_empty() && host.bytes().all(fits)).then_some(host)
}

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
/// let cache = http_cache(MemoryBackend::new(), "pages").build()?;
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
    pub(super) fn apply<'a>(&self, path_and_query: &'a str) -> Cow<'a, str> {
        let normal = normal(path_and_query);
        let Some((path, query)) = normal.split_once('?') else { return normal };
        let query = self.counting(query);
        match query.is_empty() && self.changes() {
            true => path.to_owned().into(),
            false if self.hashes || query.len() > LONGEST => {
                format!("{path}?#{}", hex(Sha256::digest(&*query))).into()
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
        // In a name, a `+` is a space.
        uri::is_named(&self.ignored, name.as_bytes())
            && !name.contains('+')
            && !value.contains('=')
            && !uri::may_hold_another(parameter.as_bytes())
    }
}

/// Returns whether a parameter has the one name that it is sorted by, for every service.
fn has_one_name(parameter: &str) -> bool {
    !parameter.contains(';') && !name(parameter).contains('%')
}

/// Returns a digest in hexadecimal digits.
pub(super) fn hex(digest: impl IntoIterator<Item = u8>) -> String {
    let mut digits = String::new();
    for byte in digest {
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
