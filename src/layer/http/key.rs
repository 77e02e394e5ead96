//! What an HTTP request asks for, in one text.
//!
//! `GET <scheme> <host> <length>:<what it varies by> <path and query>[ <path and query that is routed]`. No
//! two requests that differ in one of these have the same text: neither scheme, nor host, nor path can
//! have a space, what it varies by is led by its length, and a path begins with a slash where a length
//! begins with a digit.

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

/// The key of a GET, of at most `limit` bytes.
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

/// No key that is not too long begins like this.
fn digest(text: &str) -> String {
    let mut key = String::from("sha256:");
    for byte in Sha256::digest(text) {
        // Writing to a string does not fail.
        let _ = write!(key, "{byte:02x}");
    }
    key
}

/// The path before a router stripped its prefix: `/a/items` and `/b/items` may both be routed as
/// `/items`.
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

/// The host that is asked, which may be nobody's in particular; none if that is not clear.
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
        // The service may read either, so neither alone would tell what it answers.
        (Some(authority), Some(header)) if authority != header => None,
        (authority, header) => Some(authority.or(header).unwrap_or_default()),
    }
}

fn valid(host: &str) -> Option<String> {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-._:[]".contains(&byte);
    (!host.is_empty() && host.bytes().all(fits)).then(|| host.to_ascii_lowercase())
}
