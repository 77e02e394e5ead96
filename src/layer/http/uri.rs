//! The normal form of a URI, which the key has (RFC 9110, section 4.2.3; RFC 3986, section 6.2).
//!
//! Equivalent URIs have one key, so that a write of one ends the responses of all. But a service
//! may tell some of them apart: a router that compares paths as they came does not know `/%61` for
//! `/a`. So a path or a query with an encoding that is not needed is only answered with what is
//! stored for its normal form. Its own response is never stored, because it could be another one.
//!
//! Lower-case digits of an encoding are common, and no reason to keep a response apart.
//!
//! Beside that, this file resolves `Location` and `Content-Location` (RFC 9110, sections 8.7 and
//! 10.2.2).

use std::{borrow::Cow, fmt::Write};

use http::{
    Uri,
    header::HOST,
    request::Parts,
    uri::{Authority, PathAndQuery, Scheme},
};

use super::fields::sole;

/// Returns a part of a URI in normal form: no unreserved character is encoded, and encodings have
/// capitals. Text with an invalid encoding stays as it is.
pub(super) fn normal(text: &str) -> Cow<'_, str> {
    match text.contains('%') {
        true => decoded(text).map_or(text.into(), Cow::Owned),
        false => text.into(),
    }
}

fn decoded(text: &str) -> Option<String> {
    let mut parts = text.split('%');
    let mut normal = parts.next()?.to_owned();
    for part in parts {
        match encoded(part.as_bytes())? {
            byte if is_unreserved(byte) => normal.push(byte.into()),
            byte => write!(normal, "%{byte:02X}").ok()?,
        }
        normal.push_str(part.get(2..)?);
    }
    Some(normal)
}

/// Returns the byte that the digits behind a percent sign encode.
fn encoded(text: &[u8]) -> Option<u8> {
    let digits = text.get(..2).filter(|digits| digits.iter().all(u8::is_ascii_hexdigit))?;
    u8::from_str_radix(str::from_utf8(digits).ok()?, 16).ok()
}

/// Returns whether a list has a name. A `*` in the list ends the beginning of names.
pub(super) fn is_named(list: &[String], name: &[u8]) -> bool {
    list.iter().any(|known| match known.strip_suffix('*') {
        Some(beginning) => name.starts_with(beginning.as_bytes()),
        None => name == known.as_bytes(),
    })
}

/// Returns whether some service may read another parameter or another cookie in a part of one. It
/// has a separator then, as it is or percent-encoded.
pub(super) fn may_hold_another(text: &[u8]) -> bool {
    let separates = |byte: u8| byte <= b' ' || b"&;,?#%\"\\\x7f".contains(&byte);
    let mut parts = text.split(|byte| *byte == b'%');
    parts.next().is_some_and(|part| part.iter().copied().any(separates))
        || parts
            .any(|part| encoded(part).is_none_or(separates) || part.iter().copied().any(separates))
}

/// RFC 3986, section 2.3.
fn is_unreserved(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._~".contains(&byte)
}

/// Returns a host without the port that its scheme has anyway. Without a scheme it stands for
/// `http` and for `https`, as a key does.
pub(super) fn normal_host<'a>(host: &'a str, scheme: &str) -> &'a str {
    let Some((name, port)) = host.rsplit_once(':') else { return host };
    let is_default = match port {
        "" => true,
        "80" => scheme != "https",
        "443" => scheme != "http",
        _ => false,
    };
    // A colon may be in an address.
    let is_port = !name.contains(':') || name.ends_with(']');
    if is_default && is_port && !name.is_empty() { name } else { host }
}

/// Returns whether the service may take a path and its query for another one than their normal form
/// is. No segment of dots is removed from the key, because a service may not remove it either.
pub(super) fn is_respelled(path: &PathAndQuery) -> bool {
    let normal = normal(path.as_str());
    let dots = |path: &str| path.split('/').any(|segment| matches!(segment, "." | ".."));
    normal.len() != path.as_str().len() || normal.split('?').next().is_some_and(dots)
}

/// The place that a location names.
#[derive(Debug)]
pub(super) struct Located {
    /// The scheme, if it is named, and the host. `None` if it is on the host of its request.
    host: Option<(Option<Scheme>, Authority)>,
    pub(super) path: PathAndQuery,
}

impl Located {
    /// Resolves a location in the answer to a request for this path (RFC 3986, section 5.2), and
    /// brings it into normal form. Returns `None` if it is no place of HTTP.
    pub(super) fn resolve(location: &str, base: &PathAndQuery) -> Option<Self> {
        let location = normal(location.split('#').next()?);
        let first = location.split(['/', '?']).next()?;
        if let Some(rest) = location.strip_prefix("//") {
            // The request has the scheme, which may not be known here.
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
        let host = (Some(scheme).filter(|_| names_scheme), parts.authority?);
        Some(Self { host: Some(host), path })
    }

    /// Returns whether the place is on the host of a request, if that has one. A port that is not
    /// told is that of the scheme.
    pub(super) fn is_on_host(&self, parts: &Parts, with_port: bool) -> bool {
        let Some((scheme, host)) = &self.host else { return true };
        let named = || sole(&parts.headers, HOST)?.to_str().ok()?.parse().ok();
        let Some(own) = parts.uri.authority().cloned().or_else(named) else { return !with_port };
        let scheme = scheme.as_ref().map_or("", Scheme::as_str);
        let place = |of: &Authority| match with_port {
            true => {
                let host = of.as_str().rsplit('@').next().unwrap_or_default();
                normal_host(host, scheme).to_ascii_lowercase()
            }
            false => of.host().to_ascii_lowercase(),
        };
        place(host) == place(&own)
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
    use proptest::prelude::*;

    use super::*;

    /// The examples of RFC 3986, section 6.2.2, among others.
    #[test]
    fn equivalent_texts_have_one_normal_form() {
        for (from, to) in [
            ("/a", "/a"),
            ("/%7Esmith/%41%5a%2d%2E%5F?%71=%30", "/~smith/AZ-._?q=0"),
            ("/caf%c3%a9?a%2fb", "/caf%C3%A9?a%2Fb"),
            ("/%2541", "/%2541"),
            ("/a%20b+c%3Bd", "/a%20b+c%3Bd"),
            ("/%", "/%"),
            ("/%4", "/%4"),
            ("/%+1/%61", "/%+1/%61"),
            ("/%%36%31", "/%%36%31"),
        ] {
            assert_eq!(normal(from), to, "{from}");
        }
    }

    #[test]
    fn a_default_port_is_that_of_the_scheme() {
        for (from, scheme, to) in [
            ("a", "", "a"),
            ("a:80", "", "a"),
            ("a:443", "", "a"),
            ("a:", "", "a"),
            ("a:8080", "", "a:8080"),
            ("a:80", "http", "a"),
            ("a:443", "http", "a:443"),
            ("a:80", "https", "a:80"),
            ("a:443", "https", "a"),
            ("[::1]:80", "", "[::1]"),
            ("[::80]", "", "[::80]"),
            ("[::]", "", "[::]"),
            ("::80", "", "::80"),
            (":80", "", ":80"),
        ] {
            assert_eq!(normal_host(from, scheme), to, "{from} {scheme}");
        }
    }

    #[test]
    fn what_a_service_may_take_for_another_path_is_respelled() {
        for (path, expected) in [
            ("/a?b=c", false),
            ("/%C3%a9", false),
            ("/a.b/..c/...?x=/../", false),
            ("/%61", true),
            ("/a?%61", true),
            ("/a/../b", true),
            ("/.", true),
            ("/a/%2E%2e/b", true),
        ] {
            assert_eq!(is_respelled(&PathAndQuery::from_static(path)), expected, "{path}");
        }
    }

    #[test]
    fn a_separator_may_begin_another_parameter_or_cookie() {
        for text in ["", "a", "a.b-c_d~e:f/g@h!i*j+k=l", "caf%C3%A9", "caf\u{e9}", "a%2Fb%7Cc"] {
            assert!(!may_hold_another(text.as_bytes()), "{text}");
        }
        for separator in ["&", ";", ",", "?", "#", " ", "\t", "\r\n", "\0", "\"", "\\", "%"] {
            let encoded: String = separator.bytes().map(|byte| format!("%{byte:02x}")).collect();
            for separator in [separator, &encoded, &encoded.to_uppercase()] {
                for text in [format!("a{separator}b=c"), format!("%41{separator}")] {
                    assert!(may_hold_another(text.as_bytes()), "{text}");
                }
            }
        }
        for text in ["a%", "a%4", "a%zz", "a%253Bb", "%"] {
            assert!(may_hold_another(text.as_bytes()), "{text}");
        }
    }

    proptest! {
        /// Any text of plain characters, encoded here and there in either case.
        #[test]
        fn each_spelling_has_the_form_of_the_others(
            bytes in prop::collection::vec((any::<u8>(), any::<bool>(), any::<bool>()), 0..40),
        ) {
            let spell = |keeps: &dyn Fn(bool, bool) -> (bool, bool)| {
                bytes.iter().fold(String::from("/"), |mut text, (byte, encode, lower)| {
                    let (encode, lower) = keeps(*encode, *lower);
                    match (is_unreserved(*byte) && !encode, lower) {
                        (true, _) => text.push(char::from(*byte)),
                        (false, true) => text.push_str(&format!("%{byte:02x}")),
                        (false, false) => text.push_str(&format!("%{byte:02X}")),
                    }
                    text
                })
            };
            let form = spell(&|_, _| (false, false));
            let spelled = spell(&|encode, lower| (encode, lower));
            prop_assert_eq!(normal(&spelled), &*form);
            prop_assert_eq!(normal(&form), &*form);
        }

        #[test]
        fn the_form_of_any_text_is_its_own_form(any in "[/%0-9a-fA-F.~?&=-]{0,20}") {
            let form = normal(&any).into_owned();
            prop_assert_eq!(normal(&form), &*form);
        }
    }

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
            let request = http::Request::put("/a").header("host", host).body(()).unwrap();
            let is = located.is_on_host(&request.into_parts().0, true);
            assert_eq!(is, is_host, "{location} {host}");
        }
    }
}
