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
//! and query are in their [normal form](super::normal).

use std::{fmt::Write, sync::Arc};

use http::{
    Extensions, HeaderMap, HeaderName, Uri, Version,
    header::HOST,
    request::Parts,
    uri::{Authority, PathAndQuery},
};

use super::{
    normal,
    query::{Query, sha256},
};
use crate::{
    key::Key,
    layer::http::fields::credentials::{HeaderClass, classify},
};

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
    pub(crate) header: Option<String>,
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

/// Returns what the parts make of a request, or `None` if one of them excludes it.
pub(crate) fn texts(parts: &Parts, key_parts: &[KeyPart]) -> Option<String> {
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
pub(crate) fn key(
    parts: &Parts,
    verb: &str,
    scheme: &str,
    fields: &str,
    query: &Query,
    limit: usize,
) -> Option<Key> {
    let routed = path(&parts.uri)?;
    let original = original(&parts.uri, &parts.extensions)?;
    let host = host(&parts.uri, &parts.headers, scheme)?;
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
    format!("sha256:{}", sha256(text))
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
pub(crate) fn original<'a>(uri: &'a Uri, extensions: &'a Extensions) -> Option<&'a PathAndQuery> {
    #[cfg(feature = "axum")]
    if let Some(original) = extensions.get::<axum::extract::OriginalUri>() {
        return path(original);
    }
    #[cfg(not(feature = "axum"))]
    let _ = extensions;
    path(uri)
}

/// Returns the scheme that an HTTP/1.1 request names in front of its host. Requests of HTTP/2
/// always name one, and must share with those of HTTP/1.1, which usually name none.
pub(crate) fn scheme(parts: &Parts) -> &str {
    scheme_of(parts.version, &parts.uri)
}

fn scheme_of(version: Version, uri: &Uri) -> &str {
    let names_it = version < Version::HTTP_2;
    uri.scheme_str().filter(|_| names_it).unwrap_or_default()
}

/// Returns whether the service may take the path of a request for another one than the key tells.
pub(crate) fn is_respelled(parts: &Parts) -> bool {
    let paths = [parts.uri.path_and_query(), original(&parts.uri, &parts.extensions)];
    paths.into_iter().flatten().any(normal::is_respelled)
}

fn path(uri: &Uri) -> Option<&PathAndQuery> {
    uri.path_and_query().filter(|path| path.as_str().starts_with('/'))
}

/// Returns the scheme and the host of a request, as its key begins. Returns `None` if the host is
/// not clear.
pub(crate) fn origin(version: Version, uri: &Uri, headers: &HeaderMap) -> Option<String> {
    let scheme = scheme_of(version, uri);
    let host = host(uri, headers, scheme)?;
    Some(format!("{scheme} {host}").to_ascii_lowercase())
}

/// Returns the requested host in its normal form, or an empty one if the request names none.
///
/// Returns `None` if the host has an invalid character, or if the request names two.
fn host<'a>(uri: &'a Uri, headers: &'a HeaderMap, scheme: &str) -> Option<&'a str> {
    let mut hosts = headers.get_all(HOST).iter();
    let (header, second) = (hosts.next(), hosts.next());
    if second.is_some() {
        return None;
    }
    let header = match header {
        Some(host) => Some(normal::host(valid(host.to_str().ok()?)?, scheme)),
        None => None,
    };
    let authority = match uri.authority().map(Authority::as_str) {
        Some(host) => Some(normal::host(valid(host)?, scheme)),
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
