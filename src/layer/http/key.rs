//! Derives the key of an HTTP request.
//!
//! The text of a key is `GET <scheme> <host>[ <length>:<part>]... <original path and query>[
//! <routed path and query>]`. A `<part>` is the result of one `vary_by` function.
//!
//! Two requests that differ in one of these fields never have the same text. Scheme, host and path
//! cannot contain a space. Each part follows its own length. A path begins with a slash, a length
//! with a digit.

use std::fmt::Write;

use http::{
    HeaderMap, Uri,
    header::HOST,
    request::Parts,
    uri::{Authority, PathAndQuery},
};
use sha2::{Digest, Sha256};

use super::VaryBy;
use crate::key::Key;

/// Returns the key of a `GET`, of at most `limit` bytes.
///
/// Returns `None` if the host is not clear, if there is no path, or if even a digest is too long.
pub(super) fn key(parts: &Parts, vary_by: &[VaryBy], limit: usize) -> Option<Key> {
    let host = host(&parts.uri, &parts.headers)?;
    let scheme = parts.uri.scheme_str().unwrap_or_default().to_ascii_lowercase();
    let mut text = format!("GET {scheme} {host}");
    for vary_by in vary_by {
        let value = vary_by(parts);
        write!(text, " {}:{value}", value.len()).ok()?;
    }
    let routed = path(&parts.uri)?;
    let original = original(parts)?;
    text.push(' ');
    text.push_str(original.as_str());
    if original != routed {
        text.push(' ');
        text.push_str(routed.as_str());
    }
    if text.len() > limit {
        text = digest(&text);
    }
    (text.len() <= limit).then(|| Key::from(text))
}

/// Shortens a key that is too long. The key of another request starts with `GET`, never with
/// `sha256:`.
fn digest(text: &str) -> String {
    let mut key = String::from("sha256:");
    for byte in Sha256::digest(text) {
        // Writing to a `String` cannot fail.
        let _ = write!(key, "{byte:02x}");
    }
    key
}

/// Returns the path before `Router::nest` removed a prefix. Without it, `/a/items` and `/b/items`
/// would both have the key of `/items`, and one response would be served for the other.
#[cfg(feature = "axum")]
fn original(parts: &Parts) -> Option<&PathAndQuery> {
    match parts.extensions.get::<axum::extract::OriginalUri>() {
        Some(original) => path(original),
        None => path(&parts.uri),
    }
}

#[cfg(not(feature = "axum"))]
fn original(parts: &Parts) -> Option<&PathAndQuery> {
    path(&parts.uri)
}

fn path(uri: &Uri) -> Option<&PathAndQuery> {
    uri.path_and_query().filter(|path| path.as_str().starts_with('/'))
}

/// Returns the requested host, or an empty one if the request names none.
///
/// Returns `None` if the host has an invalid character, or if the request names two.
fn host(uri: &Uri, headers: &HeaderMap) -> Option<String> {
    let mut hosts = headers.get_all(HOST).iter();
    let (header, second) = (hosts.next(), hosts.next());
    if second.is_some() {
        return None;
    }
    let header = match header {
        Some(host) => Some(valid(host.to_str().ok()?)?),
        None => None,
    };
    let authority = match uri.authority().map(Authority::as_str) {
        Some(host) => Some(valid(host)?),
        None => None,
    };
    match (authority, header) {
        // The inner service may read either, so neither alone decides its response.
        (Some(authority), Some(header)) if authority != header => None,
        (authority, header) => Some(authority.or(header).unwrap_or_default()),
    }
}

fn valid(host: &str) -> Option<String> {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-._:[]".contains(&byte);
    (!host.is_empty() && host.bytes().all(fits)).then(|| host.to_ascii_lowercase())
}
