//! Requests for different resources have different keys.

use std::collections::HashMap;

use axum::body::Body;
use bellwether::{BellwetherLayer, Key, MemoryBackend, http_cache, layer::Http};
use http::{Request, Response, request::Parts};
use tower::Layer;

use super::origin::{Answer, ask, cache, get_with, http_layer, layered, origin};

type Headers = [(&'static str, &'static str)];

fn layer() -> BellwetherLayer<Http> {
    http_layer(cache(&MemoryBackend::new()))
}

fn key(layer: &BellwetherLayer<Http>, uri: &str, headers: &[(&str, &str)]) -> Option<Key> {
    let (mut parts, _) = get_with(headers).into_parts();
    parts.uri = uri.parse().unwrap();
    layer.key(&parts)
}

#[test]
fn scheme_host_path_and_query_make_different_keys() {
    let with_part = |layer: BellwetherLayer<Http>| layer.vary_by(|_: &Parts| String::new());
    let asked: Vec<(&str, BellwetherLayer<Http>, &str, &Headers)> = vec![
        ("a path", layer(), "/", &[]),
        ("another", layer(), "/a", &[]),
        ("with a slash", layer(), "/a/", &[]),
        ("in capitals", layer(), "/A", &[]),
        ("encoded", layer(), "/%61", &[]),
        ("a query", layer(), "/a?b", &[]),
        ("an empty query", layer(), "/a?", &[]),
        ("another query", layer(), "/a?b=c", &[]),
        ("a host", layer(), "/a", &[("host", "a")]),
        ("another host", layer(), "/a", &[("host", "a.b")]),
        ("a port", layer(), "/a", &[("host", "a:80")]),
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

#[tokio::test(start_paused = true)]
async fn each_request_without_a_key_reaches_the_service() {
    let (inner, calls) = origin(|call, _| Response::new(Body::from(call.to_string())));
    let service = layered(&inner);
    for _ in 0..2 {
        ask(&service, get_with(&[("host", "a"), ("host", "b")])).await;
    }
    assert_eq!(calls.count(), 2);
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
    let limited = |limit| {
        let cache = http_cache(MemoryBackend::new()).max_key(limit).build().unwrap();
        http_layer(cache)
    };
    assert!(key(&limited(limit), "/aaa", &[]).is_some());
    // Not even the hash fits.
    assert_eq!(key(&limited(limit - 1), "/aaa", &[]), None);
}

#[tokio::test(start_paused = true)]
async fn a_long_path_is_shared_like_any_other() {
    let (inner, calls) = origin(|call, _| Response::new(Body::from(call.to_string())));
    let service = layered(&inner);
    let path = format!("/{}", "a".repeat(2000));
    for _ in 0..2 {
        ask(&service, super::origin::get(&path)).await;
    }
    assert_eq!(calls.count(), 1);
}

#[tokio::test(start_paused = true)]
async fn tenants_get_answers_of_their_own() {
    let (inner, calls) = origin(|_, request| {
        let tenant = request.headers()["x-tenant"].to_str().unwrap().to_owned();
        Response::new(Body::from(tenant))
    });
    let service = layer()
        .vary_by(|parts| match parts.headers.get("x-tenant") {
            Some(tenant) => String::from_utf8_lossy(tenant.as_bytes()).into_owned(),
            None => String::new(),
        })
        .ignore_headers(["x-tenant"])
        .layer(inner);
    for tenant in ["a", "b", "a", "b"] {
        let Answer { body, .. } = ask(&service, get_with(&[("x-tenant", tenant)])).await;
        assert_eq!(body, tenant);
    }
    assert_eq!(calls.count(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_stored_answer_is_invalidated_by_its_key() {
    let (inner, calls) = origin(|call, _| Response::new(Body::from(call.to_string())));
    let cache = cache(&MemoryBackend::new());
    let layer = http_layer(cache.clone());
    let service = layer.layer(inner);
    ask(&service, super::origin::get("/a")).await;
    let (put, _) = Request::put("/a").body(()).unwrap().into_parts();
    let key = layer.key(&put).unwrap();
    assert_eq!(cache.get(&key).await.unwrap().unwrap().body(), "1");
    cache.invalidate(key).await.unwrap();
    assert_eq!(ask(&service, super::origin::get("/a")).await.text(), "2");
    assert_eq!(calls.count(), 2);
}

#[tokio::test(start_paused = true)]
async fn queries_share_by_what_counts_of_them() {
    let (inner, calls) = origin(|_, request| {
        Response::new(Body::from(request.uri().query().unwrap_or_default().to_owned()))
    });
    let service = layer().sort_query().ignore_query(["utm_*"]).hash_query().layer(inner);
    for (uri, expected) in [
        ("/a?x=1&y=2&utm_id=3", "x=1&y=2&utm_id=3"),
        ("/a?y=2&x=1", "x=1&y=2&utm_id=3"),
        ("/a?y=1&x=2", "y=1&x=2"),
        ("/a?utm_id=3", "utm_id=3"),
        ("/a", "utm_id=3"),
    ] {
        assert_eq!(ask(&service, super::origin::get(uri)).await.text(), expected, "{uri}");
    }
    assert_eq!(calls.count(), 3);
    let shown = layer().hash_query();
    let shown = key(&shown, "/a?token=secret", &[]).unwrap();
    assert!(!shown.to_string().contains("secret"), "{shown}");
}
