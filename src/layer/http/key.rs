//! The key of an HTTP request, and the normal form of its URI.
//!
//! The text of a key is `GET <scheme> <host>[ *]... <original path and query>[ <routed path and
//! query>]`, with a `*` for each [`KeyPart`]. So all values of the parts have the same text, and
//! select a place below the marker of the resource. A layer that only coalesces has no markers. The
//! keys of such a layer begin with `COALESCE`, so that the layer never finds what another layer
//! stored. They have `<length>:<part>` in place of each `*`.
//!
//! Two requests that differ in one of these fields never have the same text. Scheme, host and path
//! cannot contain a space. Each part follows its own length. A path begins with a slash, a length
//! with a digit. The scheme is empty unless the target of an HTTP/1.1 request names a scheme.
//!
//! Host, path and query are in normal form (RFC 9110, section 4.2.3; RFC 3986, section 6.2), so
//! that a write of one URI ends the responses of all equivalent URIs. But a router may not know
//! `/%61` for `/a`, so a request with an encoding that is not needed passes.

use std::{borrow::Cow, fmt::Write, sync::Arc};

use http::{
    HeaderName, Uri, Version,
    header::HOST,
    request::Parts,
    uri::{Authority, PathAndQuery},
};
use sha2::{Digest, Sha256};

use super::{
    Http,
    fields::sole,
    header_names::{HeaderClass, classify},
};
use crate::{advice, key::Key};

/// A part of the key of a request, or `None` if the request takes no part.
pub(super) type KeyPart = Arc<dyn Fn(&Parts) -> Option<String> + Send + Sync>;

impl Http {
    /// Returns the key of a resource with these paths, for a target that names this scheme. All
    /// values of the parts have the same key. Returns `None` if the host is not clear, or if even a
    /// digest is too long.
    pub(super) fn key(
        &self,
        parts: &Parts,
        scheme: &str,
        [original, routed]: &Paths<'_>,
    ) -> Option<Key> {
        let settings = &self.0;
        let host = host(parts, scheme)?.to_ascii_lowercase();
        let scheme = scheme.to_ascii_lowercase();
        let mut text = if settings.policy.coalesces {
            let fields = texts(parts, &settings.key_parts)?;
            format!("COALESCE {scheme} {host}{fields}")
        } else {
            let fields = " *".repeat(settings.key_parts.len());
            format!("GET {scheme} {host}{fields}")
        };
        text.push(' ');
        text.push_str(&settings.query.apply(original));
        if original != routed {
            text.push(' ');
            text.push_str(&settings.query.apply(routed));
        }
        let limit = settings.terms.max_key;
        if text.len() > limit {
            text = digest(&text);
        }
        if text.len() > limit { None } else { Some(Key::from(text)) }
    }
}

/// Returns what the parts make of a request, or `None` if a part excludes the request.
pub(super) fn texts(parts: &Parts, key_parts: &[KeyPart]) -> Option<String> {
    let mut text = String::new();
    for part in key_parts {
        let value = part(parts)?;
        write!(text, " {}:{value}", value.len()).ok()?;
    }
    Some(text)
}

/// Shortens a key that is too long. The key of another request starts with its verb, never with
/// `sha256:`.
fn digest(text: &str) -> String {
    format!("sha256:{}", hex(Sha256::digest(text)))
}

/// Returns the part that a header is, whose name is in lower case. The part has the lines of the
/// header, each after the length of the line. The key contains only a digest of a header that looks
/// like a credential.
///
/// The part excludes requests in which the header is not text. Two of these could look the same.
pub(super) fn header_part(header: &str) -> KeyPart {
    let is_secret = classify(header) == HeaderClass::Credential;
    let name = HeaderName::from_bytes(header.as_bytes()).ok();
    if name.is_none() {
        advice::no_header("vary_by_header", header);
    }
    Arc::new(move |parts: &Parts| {
        let lines = name.iter().flat_map(|name| parts.headers.get_all(name));
        let mut text = String::new();
        for line in lines {
            let line = line.to_str().ok()?;
            write!(text, "{}:{line}", line.len()).ok()?;
        }
        let is_digest = is_secret && !text.is_empty();
        Some(if is_digest { digest(&text) } else { text })
    })
}

/// The path and the query before `Router::nest` removed a prefix, because `/a/items` and `/b/items`
/// differ. And the path and the query behind that. Both are in normal form.
pub(super) type Paths<'a> = [Cow<'a, str>; 2];

/// The scheme and the paths that a request names.
pub(super) struct Target<'a> {
    /// The scheme that an HTTP/1.1 request names in front of the host, which few requests do.
    /// Requests of HTTP/2 always name a scheme, and must share with requests of HTTP/1.1.
    pub(super) scheme: &'a str,
    /// The paths as the request spells them.
    pub(super) spelled: [&'a str; 2],
    pub(super) paths: Paths<'a>,
    /// The service may take a path for another path than the normal form. No segment of dots is
    /// removed from the key, because a service may not remove such a segment either.
    pub(super) is_respelled: bool,
}

impl<'a> Target<'a> {
    /// Returns `None` for the `*` of an `OPTIONS`.
    pub(super) fn of(parts: &'a Parts) -> Option<Self> {
        let original = &parts.uri;
        #[cfg(feature = "axum")]
        let original = match parts.extensions.get::<axum::extract::OriginalUri>() {
            Some(original) => &original.0,
            None => original,
        };
        let spelled = [original.path_and_query()?.as_str(), parts.uri.path_and_query()?.as_str()];
        if !spelled.iter().all(|path| path.starts_with('/')) {
            return None;
        }
        let paths = spelled.map(normal);
        let is_respelled = paths
            .iter()
            .zip(spelled)
            .any(|(normal, spelled)| normal.len() != spelled.len() || has_segment_of_dots(normal));
        let names_scheme = parts.version < Version::HTTP_2;
        let scheme = if names_scheme { parts.uri.scheme_str() } else { None };
        Some(Self { scheme: scheme.unwrap_or_default(), spelled, paths, is_respelled })
    }
}

fn has_segment_of_dots(path_and_query: &str) -> bool {
    let path = without_query(path_and_query);
    path.split('/').any(|segment| matches!(segment, "." | ".."))
}

/// Returns a path without the query behind it.
pub(super) fn without_query(path_and_query: &str) -> &str {
    match path_and_query.split_once('?') {
        Some((path, _query)) => path,
        None => path_and_query,
    }
}

/// Returns the requested host in its normal form, or an empty text if the request names no host.
/// Returns `None` if the host has an invalid character, or if there are two hosts.
pub(super) fn host<'a>(parts: &'a Parts, scheme: &str) -> Option<&'a str> {
    let mut in_header = None;
    if parts.headers.contains_key(HOST) {
        let host = sole(&parts.headers, HOST)?.to_str().ok()?;
        in_header = Some(clear_host(host, scheme)?);
    }
    let mut in_target = None;
    if let Some(authority) = parts.uri.authority() {
        in_target = Some(clear_host(authority.as_str(), scheme)?);
    }
    match (in_header, in_target) {
        // The inner service may read either host, so neither host alone decides the response.
        (Some(header), Some(target)) if !header.eq_ignore_ascii_case(target) => None,
        (_, Some(host)) | (Some(host), None) => Some(host),
        (None, None) => Some(""),
    }
}

/// Returns a host in its normal form, if all of its characters are known here.
fn clear_host<'a>(host: &'a str, scheme: &str) -> Option<&'a str> {
    let host = normal_host(host, scheme);
    let is_clear =
        host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._:[]".contains(&byte));
    if is_clear && !host.is_empty() { Some(host) } else { None }
}

/// A longer query is hashed, so that names in the backend and in traces stay short.
const LONGEST: usize = 256;

/// What of a query counts, and what of it shows. By default the whole query does.
///
/// The inner service always receives the query as it came. With `sort` and `ignore(["utm_*"])`,
/// `?page=2&by=name&utm_source=mail` has the key of `?by=name&page=2`.
#[derive(Clone, Debug, Default)]
pub struct Query {
    sorts: bool,
    hashes: bool,
    /// The names of parameters that no response depends on. A name with a `*` at its end is the
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
    /// The parameters are no part of the key. The case of names counts.
    ///
    /// A parameter in which the inner service may read another parameter is not ignored. Such a
    /// parameter has a separator (`;`, `,`, `?`, `#`, a space or its like, plain or
    /// percent-encoded), a second `=`, or an invalid percent-encoding.
    pub fn ignore<N: AsRef<str>>(mut self, names: impl IntoIterator<Item = N>) -> Self {
        for name in names {
            self.ignored.push(name.as_ref().to_owned());
        }
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

    /// Returns a path with its query, both in normal form, as the key has them.
    ///
    /// A hash follows a `#`, which no query has. So a hash is never the query of another request.
    pub(super) fn apply<'a>(&self, path_and_query: &'a str) -> Cow<'a, str> {
        let Some((path, query)) = path_and_query.split_once('?') else {
            return path_and_query.into();
        };
        let changes = self.sorts || !self.ignored.is_empty();
        let query = if changes { self.counting(query).into() } else { Cow::from(query) };
        if changes && query.is_empty() {
            return path.into();
        }
        if self.hashes || query.len() > LONGEST {
            let digest = hex(Sha256::digest(&*query));
            return format!("{path}?#{digest}").into();
        }
        if changes { format!("{path}?{query}").into() } else { path_and_query.into() }
    }

    /// Returns a query without the ignored parameters, in order if that is set.
    fn counting(&self, query: &str) -> String {
        let mut kept: Vec<&str> = Vec::new();
        for parameter in query.split('&') {
            if !parameter.is_empty() && !self.ignores(parameter) {
                kept.push(parameter);
            }
        }
        // Several values of one name stay in their order, which may matter.
        if self.sorts && kept.iter().copied().all(has_one_name) {
            kept.sort_by_key(|parameter| name(parameter));
        }
        kept.join("&")
    }

    /// Returns whether a parameter is ignored. One in which the service may read another parameter
    /// is not: `utm_source=x;user=A` would share the key of requests without that user.
    fn ignores(&self, parameter: &str) -> bool {
        let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
        // In a name, a `+` is a space.
        is_named(&self.ignored, name.as_bytes())
            && !name.contains('+')
            && !value.contains('=')
            && !may_hold_another(parameter.as_bytes())
    }
}

/// Returns whether every service reads one name in a parameter, by which it is sorted.
fn has_one_name(parameter: &str) -> bool {
    !parameter.contains(';') && !name(parameter).contains('%')
}

fn name(parameter: &str) -> &str {
    parameter.split_once('=').map_or(parameter, |(name, _)| name)
}

pub(super) fn hex(digest: impl IntoIterator<Item = u8>) -> String {
    let mut digits = String::new();
    for byte in digest {
        // Writing to a `String` cannot fail.
        let _ = write!(digits, "{byte:02x}");
    }
    digits
}

/// Returns a part of a URI in normal form: no unreserved character is encoded, and encodings have
/// capitals. Text with an invalid encoding stays as it is.
pub(super) fn normal(text: &str) -> Cow<'_, str> {
    let mut parts = text.split('%');
    let mut normal = Cow::from(parts.next().unwrap_or_default());
    for part in parts {
        let Some((byte, rest)) = encoded(part.as_bytes()).zip(part.get(2..)) else {
            return text.into();
        };
        // RFC 3986, section 2.3.
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            normal.to_mut().push(byte.into());
        } else {
            // Writing to a `String` cannot fail.
            let _ = write!(normal.to_mut(), "%{byte:02X}");
        }
        normal.to_mut().push_str(rest);
    }
    normal
}

/// Returns the byte that the digits behind a percent sign encode.
fn encoded(text: &[u8]) -> Option<u8> {
    let digits = text.get(..2)?;
    if !digits.iter().all(u8::is_ascii_hexdigit) {
        return None;
    }
    u8::from_str_radix(str::from_utf8(digits).ok()?, 16).ok()
}

/// Returns whether a list has a name. A `*` in the list ends the beginning of names.
pub(super) fn is_named(list: &[String], name: &[u8]) -> bool {
    list.iter().any(|known| match known.strip_suffix('*') {
        Some(beginning) => name.starts_with(beginning.as_bytes()),
        None => name == known.as_bytes(),
    })
}

/// Returns whether some service may read another parameter or another cookie in a part of a
/// parameter or of a cookie. Such a part has a separator, plain or percent-encoded.
pub(super) fn may_hold_another(text: &[u8]) -> bool {
    let mut rest = text;
    while let Some((first, behind)) = rest.split_first() {
        // The two digits are no separators, so the walk may go over them.
        let byte = if *first == b'%' { encoded(behind) } else { Some(*first) };
        if byte.is_none_or(separates) {
            return true;
        }
        rest = behind;
    }
    false
}

/// Returns whether some service may end a parameter or a cookie at a byte.
fn separates(byte: u8) -> bool {
    byte <= b' ' || b"&;,?#%\"\\\x7f".contains(&byte)
}

/// Returns a host without the port that its scheme has anyway. A host without a scheme stands for
/// `http` and for `https`, as a key does.
fn normal_host<'a>(host: &'a str, scheme: &str) -> &'a str {
    let ports = match scheme {
        "http" => &[":", ":80"][..],
        "https" => &[":", ":443"],
        _ => &[":", ":80", ":443"],
    };
    for port in ports {
        let Some(name) = host.strip_suffix(port) else { continue };
        // A colon may be in an address.
        let is_address_cut = name.contains(':') && !name.ends_with(']');
        if !name.is_empty() && !is_address_cut {
            return name;
        }
    }
    host
}

/// Where a path or a URL leads that a header names.
pub(super) enum Located {
    /// To the host of the request, and there to this path with its query, in normal form.
    OwnHost(String),
    OtherHost,
    /// The text is no path and no URL. Or the text is relative to a path, which is rare.
    Unclear,
}

/// Reads a path or a URL that a header names. Ports differ with the scheme, so ports do not count.
pub(super) fn located(parts: &Parts, location: &str) -> Located {
    let reference = match location.split_once('#') {
        Some((reference, _fragment)) => reference,
        None => location,
    };
    let reference = normal(reference);
    // The request has the scheme, which may not be known here.
    let scheme = if reference.starts_with("//") { "http:" } else { "" };
    let Ok(uri) = format!("{scheme}{reference}").parse::<Uri>() else { return Located::Unclear };
    let path = uri.path_and_query().map_or("/", PathAndQuery::as_str);
    // A URL may have a query behind its host at once.
    if !path.starts_with(['/', '?']) {
        return Located::Unclear;
    }
    let has_scheme = uri.scheme().is_some();
    if has_scheme != uri.host().is_some() {
        return Located::Unclear;
    }
    if let Some(host) = uri.host()
        && let Some(own) = authority(parts)
        && !host.eq_ignore_ascii_case(own.host())
    {
        return Located::OtherHost;
    }
    Located::OwnHost(without_dots(&normal(path)))
}

/// Returns the host and the port that a request names.
fn authority(parts: &Parts) -> Option<Authority> {
    if let Some(authority) = parts.uri.authority() {
        return Some(authority.clone());
    }
    let host = sole(&parts.headers, HOST)?.to_str().ok()?;
    host.parse().ok()
}

/// Removes the segments `.` and `..` from a path with its query (RFC 3986, section 5.2.4).
fn without_dots(path_and_query: &str) -> String {
    let (path, query) = match path_and_query.find('?') {
        Some(at) => path_and_query.split_at(at),
        None => (path_and_query, ""),
    };
    let mut kept = Vec::new();
    for segment in path.split('/').skip(1) {
        match segment {
            "." => {}
            ".." => _ = kept.pop(),
            _ => kept.push(segment),
        }
    }
    if matches!(path.rsplit('/').next(), Some("." | "..")) {
        kept.push("");
    }
    format!("/{}{query}", kept.join("/"))
}
