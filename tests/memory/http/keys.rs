//! Requests for different resources have different keys.

use std::collections::HashMap;

use bellwether::layer::Query;
use http::request::Parts;

use super::prelude::*;

fn key(layer: &BellwetherLayer<Http>, uri: &str, headers: &[(&str, &str)]) -> Option<Key> {
    let (mut parts, _) = get_with(headers).into_parts();
    parts.uri = uri.parse().unwrap();
    layer.key(&parts)
}

#[test]
fn scheme_host_path_and_query_make_different_keys() {
    let with_part = |layer: BellwetherLayer<Http>| layer.vary_by(|_: &Parts| String::new());
    let asked: Vec<(&str, BellwetherLayer<Http>, &str, Lines<'_>)> = vec![
        ("a path", layer(), "/", &[]),
        ("another", layer(), "/a", &[]),
        ("with a slash", layer(), "/a/", &[]),
        ("in capitals", layer(), "/A", &[]),
        ("an encoded slash", layer(), "/%2Fa", &[]),
        ("an encoded percent sign", layer(), "/%2561", &[]),
        ("an invalid encoding", layer(), "/%6", &[]),
        ("dots", layer(), "/b/../a", &[]),
        ("a query", layer(), "/a?b", &[]),
        ("an empty query", layer(), "/a?", &[]),
        ("another query", layer(), "/a?b=c", &[]),
        ("a host", layer(), "/a", &[("host", "a")]),
        ("another host", layer(), "/a", &[("host", "a.b")]),
        ("a port", layer(), "/a", &[("host", "a:8080")]),
        ("a port of the other scheme", layer(), "https://a:80/a", &[]),
        ("an address", layer(), "/a", &[("host", "[::1]:80")]),
        ("a scheme", layer(), "http://a/a", &[]),
        ("another scheme", layer(), "https://a/a", &[]),
        ("a host like a path", layer(), "/a/a", &[("host", "a")]),
        ("a part", with_part(layer()), "/a", &[]),
        ("two parts", with_part(with_part(layer())), "/a", &[]),
        ("a path like a part", layer(), "/*/a", &[]),
    ];
    let mut keys = HashMap::new();
    for (what, layer, uri, headers) in asked {
        let key = key(&layer, uri, headers).unwrap();
        assert_eq!(keys.insert(key, what), None, "{what}");
    }
}

#[test]
fn a_host_is_the_same_in_any_case_and_place() {
    let layer = layer();
    let by_header = key(&layer, "/a", &[("host", "Shop.Example:8080")]);
    assert_eq!(by_header, key(&layer, "/a", &[("host", "shop.example:8080")]));
    let by_uri = key(&layer, "http://SHOP.example/a", &[]);
    assert!(by_uri.is_some());
    assert_eq!(by_uri, key(&layer, "http://shop.example/a", &[("host", "shop.Example")]));
}

/// RFC 9110, section 4.2.3, and RFC 3986, section 6.2.
#[test]
fn equivalent_uris_have_one_key() {
    let layer = layer();
    for (uris, headers) in [
        (
            &["/~a/b%C3%A9?c=d", "/%7Ea/%62%c3%A9?c=%64"][..],
            &[
                &[("host", "shop.test")][..],
                &[("host", "SHOP.test:80")],
                &[("host", "shop.test:443")],
                &[("host", "shop.test:")],
            ][..],
        ),
        (
            &["http://shop.test/a", "HTTP://Shop.Test:80/%61", "http://shop.test:/a"],
            &[&[], &[("host", "shop.test")], &[("host", "shop.test:80")]],
        ),
        (&["https://shop.test/a", "https://shop.test:443/%61"], &[&[], &[("host", "shop.test")]]),
    ] {
        let expected = key(&layer, uris[0], headers[0]);
        assert!(expected.is_some());
        for uri in uris {
            for headers in headers {
                assert_eq!(key(&layer, uri, headers), expected, "{uri} {headers:?}");
            }
        }
    }
}

/// A router that compares paths as they came does not know one spelling for another. Its answer to
/// that one must not be the answer to all.
#[tokio::test(start_paused = true)]
async fn a_path_that_is_not_in_normal_form_passes() {
    for path in ["/%61", "/a?%62", "/b/../a", "/./a", "/%2e/a", "/%2E%2E/a"] {
        let (inner, calls) =
            origin(|call, request| reply(200, &[], format!("{call} {}", request.uri())));
        let service = layered(&inner);
        let ask = |path: &'static str| ask(&service, get(path));
        for call in 1..=2 {
            assert_eq!(ask(path).await.text(), format!("{call} {path}"));
        }
        let normal = if path.contains('?') { "/a?b" } else { "/a" };
        assert_eq!(ask(normal).await.text(), format!("3 {normal}"));
        assert_eq!(ask(path).await.text(), format!("4 {path}"));
        assert_eq!(calls.count(), 4);
    }
    // Encodings with small letters are common.
    let (inner, calls) = numbered();
    let service = layered(&inner);
    for path in ["/%c3%a9", "/%C3%A9", "/%c3%A9"] {
        assert_eq!(ask(&service, get(path)).await.text(), "1", "{path}");
    }
    for _ in 0..2 {
        assert_eq!(ask(&service, get("/a.b/..c/...?x=/../")).await.text(), "2");
    }
    assert_eq!(calls.count(), 2);
}

#[test]
fn an_ambiguous_host_has_no_key() {
    let layer = layer();
    for headers in [
        &[("host", "a"), ("host", "a")][..],
        &[("host", "a"), ("host", "b")],
        &[("host", "")],
        &[("host", "a b")],
        &[("host", "a/b")],
        &[("host", "a@b")],
        &[("host", "a,b")],
        &[("host", "b\u{e4}d")],
    ] {
        assert_eq!(key(&layer, "/a", headers), None, "{headers:?}");
    }
    assert_eq!(key(&layer, "http://user@a/a", &[]), None);
    // The service may believe either host.
    assert_eq!(key(&layer, "http://a/a", &[("host", "b")]), None);
    assert_eq!(key(&layer, "a:80", &[]), None);
    assert_eq!(key(&layer, "*", &[]), None);
}

#[test]
fn a_key_that_is_too_long_is_its_hash() {
    let layer = layer();
    let long = |end: &str| format!("/{}{end}", "a".repeat(600));
    let [one, other] = ["x", "y"].map(|end| key(&layer, &long(end), &[]).unwrap());
    assert_ne!(one, other);
    assert_eq!(one, key(&layer, &long("x"), &[]).unwrap());
    assert!(one.as_str().starts_with("sha256:") && one.as_str().len() == 71, "{one}");

    // A key of the longest permitted length is not hashed.
    let limit = key(&layer, "/aaa", &[]).unwrap().as_str().len();
    let limited = |limit| layer_of(builder().max_key(limit));
    assert!(key(&limited(limit), "/aaa", &[]).is_some());
    // Not even the hash fits.
    assert_eq!(key(&limited(limit - 1), "/aaa", &[]), None);
}

#[tokio::test(start_paused = true)]
async fn a_stored_answer_is_invalidated_by_its_key() {
    let (inner, calls) = numbered();
    let cache = cache(&MemoryBackend::new());
    let layer = http_layer(cache.clone());
    let service = layer.layer(inner);
    ask(&service, get("/a")).await;
    let key = layer.key(&request("PUT", "/a", &[]).into_parts().0).unwrap();
    assert_eq!(cache.get(&key).await.unwrap().unwrap().body(), "1");
    cache.invalidate(key).await.unwrap();
    assert_eq!(ask(&service, get("/a")).await.text(), "2");
    assert_eq!(calls.count(), 2);
}

/// Asserts the text of a key behind `GET`.
fn assert_key(layer: &BellwetherLayer<Http>, uri: &str, headers: Lines<'_>, expected: &str) {
    let key = key(layer, uri, headers).unwrap();
    assert_eq!(key.as_str(), format!("GET {expected}"), "{uri} {headers:?}");
}

#[test]
fn a_query_is_what_the_rules_leave_of_it() {
    let plain = Query::default();
    let sorts = Query::default().sort();
    let ignores = plain.clone().ignore(["x", "utm_*"]);
    for (query, uri, expected) in [
        (&plain, "/a?b=1&a=2&&", "/a?b=1&a=2&&"),
        (&plain, "/a?", "/a?"),
        (&sorts, "/a", "/a"),
        (&sorts, "/a?", "/a"),
        (&sorts, "/a?b=1&a=2&&", "/a?a=2&b=1"),
        (&sorts, "/a?b=2&a&b=1", "/a?a&b=2&b=1"),
        (&ignores, "/a?b=1&x=2&a=3&utm_id=4&xy=5", "/a?b=1&a=3&xy=5"),
        (&ignores, "/a?x", "/a"),
        (&sorts.clone().ignore(["x"]), "/a?x=1&b=?x&a", "/a?a&b=?x"),
        (&ignores, "/a?x=caf%C3%A9+a.b/c:d|e&%78=2", "/a"),
        // What may be sorted in two ways stays as it is.
        (&sorts, "/a?b=2;a=3&a=1", "/a?b=2;a=3&a=1"),
        (&sorts, "/a?x[]=1&x%5B%5D=2", "/a?x[]=1&x%5B%5D=2"),
    ] {
        assert_key(&layer().query(query.clone()), uri, &[], &format!("  {expected}"));
    }
}

/// `?utm_source=x;u=A` had the key of the URL without a query.
#[test]
fn an_ignored_parameter_hides_no_other_one() {
    let layer = layer().query(Query::default().sort().ignore(["x", "utm_*"]));
    for name in ["x", "utm_source", "utm_"] {
        for separator in
            "; , ? \\ %26 %3b %2C %20 %0a %00 %09 %22 %23 %3f %5C %5c %7f %2526 +".split(' ')
        {
            for query in [
                format!("{name}=1{separator}u=A"),
                format!("{name}=1{separator}u%3dA"),
                format!("{name}{separator}u=A"),
                format!("{name}={separator}u=A"),
                format!("b=1&{name}=1{separator}u=A"),
            ] {
                let key = key(&layer, &format!("/?{query}"), &[]).unwrap();
                // In a value, `+` is no separator.
                let is_cloaked = separator == "+" && query.ends_with("u%3dA");
                assert_eq!(key.as_str().contains(name), !is_cloaked, "{query}");
            }
        }
    }
}

/// The service receives each query as it came.
#[tokio::test(start_paused = true)]
async fn queries_share_by_what_counts_of_them() {
    let (inner, calls) = origin(|_, request| reply(200, &[], request.uri().to_string()));
    let service = layer().query(Query::default().sort().ignore(["utm_*"]).hash()).layer(inner);
    for (uri, expected) in [
        ("/a?y=2&x=1&utm_id=3", "/a?y=2&x=1&utm_id=3"),
        ("/a?x=1&y=2", "/a?y=2&x=1&utm_id=3"),
        ("/a?y=1&x=2", "/a?y=1&x=2"),
        ("/a?utm_id=3;x=1", "/a?utm_id=3;x=1"),
        ("/a?utm_id=3", "/a?utm_id=3"),
        ("/a", "/a?utm_id=3"),
    ] {
        assert_eq!(ask(&service, get(uri)).await.text(), expected, "{uri}");
    }
    assert_eq!(calls.count(), 4);
}

#[test]
fn a_hashed_query_does_not_show() {
    let hashing = layer().query(Query::default().sort().ignore(["x"]).hash());
    let hashed = key(&hashing, "/a?token=secret&b=1", &[]);
    let text = hashed.as_ref().unwrap().as_str();
    assert!(text.starts_with("GET   /a?#") && text.len() == 10 + 64, "{text}");
    assert_eq!(key(&hashing, "/a?b=1&x=2&token=secret", &[]), hashed);
    assert_ne!(key(&hashing, "/a?b=1&token=other", &[]), hashed);
    assert_key(&hashing, "/a?x=1", &[], "  /a");
    // So is a long one that is not to be hashed.
    let shows = layer();
    let long = key(&shows, &format!("/a?{}", "b".repeat(257)), &[]).unwrap();
    assert!(long.as_str().starts_with("GET   /a?#"), "{long}");
    let longest = format!("/a?{}", "b".repeat(256));
    assert_key(&shows, &longest, &[], &format!("  {longest}"));
}

/// The examples of RFC 3986, section 6.2.2, among others.
#[test]
fn equivalent_texts_have_one_normal_form() {
    for (from, to) in [
        ("/%7Esmith/%41%5a%2d%2E%5F?%71=%30", "/~smith/AZ-._?q=0"),
        ("/caf%c3%a9?a%2fb", "/caf%C3%A9?a%2Fb"),
        ("/%2541", "/%2541"),
        ("/a%20b+c%3Bd", "/a%20b+c%3Bd"),
        ("/%", "/%"),
        ("/%4", "/%4"),
        ("/%+1/%61", "/%+1/%61"),
        ("/%%36%31", "/%%36%31"),
    ] {
        assert_key(&layer(), from, &[], &format!("  {to}"));
    }
}

#[test]
fn a_default_port_is_that_of_the_scheme() {
    for (host, expected) in [
        ("a:80", "a"),
        ("a:443", "a"),
        ("a:", "a"),
        ("a:8080", "a:8080"),
        ("[::1]:80", "[::1]"),
        ("[::80]", "[::80]"),
        ("[::]", "[::]"),
        ("::80", "::80"),
        (":80", ":80"),
    ] {
        assert_key(&layer(), "/", &[("host", host)], &format!(" {expected} /"));
    }
    for (uri, expected) in [
        ("http://a:80/", "http a /"),
        ("http://a:443/", "http a:443 /"),
        ("https://a:80/", "https a:80 /"),
        ("https://a:443/", "https a /"),
    ] {
        assert_key(&layer(), uri, &[], expected);
    }
}
