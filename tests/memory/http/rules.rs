//! The rules for shared answers, one by one.

use http::Method;

use super::prelude::*;

#[tokio::test(start_paused = true)]
async fn a_plain_get_is_shared_and_stored() {
    let (inner, calls) =
        with_headers(&[("content-type", "text/plain"), ("x-own", "1"), ("x-own", "2")]);
    let service = layered(&inner);
    let answers = ask_all(std::slice::from_ref(&service), (0..200).map(|_| get("/"))).await;
    assert_eq!((calls.count(), different(&answers)), (1, 1));
    let hit = ask(&service, get("/")).await;
    assert_eq!(calls.count(), 1);
    for answer in answers.iter().chain([&hit]) {
        assert_eq!((answer.status, answer.text()), (StatusCode::OK, "1"));
        assert_eq!(answer.headers["content-type"], "text/plain");
        let own: Vec<_> = answer.headers.get_all("x-own").iter().collect();
        assert_eq!(own, ["1", "2"]);
    }
}

/// Makes a request from its description.
type Make = fn(&str) -> Request<Body>;

#[tokio::test(start_paused = true)]
async fn requests_that_belong_to_their_callers_pass_through() {
    let mut requests: Vec<(String, Make)> = Vec::new();
    for method in ["POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "get", "PURGE"] {
        requests.push((method.to_owned(), |method| {
            let method = Method::from_bytes(method.as_bytes()).unwrap();
            Request::builder().method(method).uri("/").body(Body::empty()).unwrap()
        }));
    }
    for header in [
        "authorization: Basic eDp5",
        "proxy-authorization: Basic eDp5",
        "cookie: session=1",
        "if-something-new: 1",
        "upgrade: websocket",
        "connection: upgrade",
        "connection: keep-alive, Upgrade",
        "connection: b\u{e4}d",
        // A proxy in the service removes the fields that are named, also those in the key.
        "connection: host",
        "connection: keep-alive, Accept-Language",
        "cache-control: no-cache",
        "cache-control: max-age=0, No-Store",
        "cache-control: max-age",
        "pragma: no-cache",
        "pragma: No-Cache",
    ] {
        requests.push((header.to_owned(), |header| {
            let (name, value) = header.split_once(": ").unwrap();
            get_with(&[(name, value)])
        }));
    }
    requests.push(("a body".to_owned(), |_| Request::get("/").body(Body::from("x")).unwrap()));
    requests.push(("a streamed body".to_owned(), |_| {
        let body = http_body_util::StreamBody::new(futures_util::stream::empty::<
            Result<http_body::Frame<bytes::Bytes>, std::convert::Infallible>,
        >());
        Request::get("/").body(Body::new(body)).unwrap()
    }));

    for (what, request) in requests {
        let (inner, calls) = with_headers(&[]);
        let service = layered(&inner);
        let own = ask_all(std::slice::from_ref(&service), [request(&what), request(&what)]).await;
        assert_eq!((calls.count(), different(&own)), (2, 2), "{what}");
        // The request neither fills the cache nor is served from it.
        assert_eq!(ask(&service, get("/")).await.text(), "3", "{what}");
        assert_eq!(ask(&service, request(&what)).await.text(), "4", "{what}");
        // An unsafe request ends the stored answer.
        let stored = if request(&what).method().is_safe() { "3" } else { "5" };
        assert_eq!(ask(&service, get("/")).await.text(), stored, "{what}");
    }
}

#[tokio::test(start_paused = true)]
async fn other_request_headers_do_not_matter() {
    for header in [
        ("accept", "*/*"),
        ("accept-encoding", "gzip"),
        ("user-agent", "a browser"),
        ("connection", "keep-alive, te"),
        ("cache-control", "max-age=0"),
        ("cache-control", "max-stale, min-fresh=\"1\", , only-if-cached"),
        ("pragma", "x"),
        ("content-length", "0"),
    ] {
        let (inner, calls) = with_headers(&[]);
        let service = layered(&inner);
        ask(&service, get("/")).await;
        assert_eq!(ask(&service, get_with(&[header])).await.text(), "1", "{header:?}");
        assert_eq!(calls.count(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn answers_that_belong_to_their_callers_are_not_shared() {
    for headers in [
        &[("set-cookie", "session=1")][..],
        &[("vary", "accept, *")],
        &[("vary", "*")],
        &[("vary", "accept encoding")],
        &[("content-range", "bytes 0-0/1")],
        &[("trailer", "x")],
        &[("cache-control", "no-store")],
        &[("cache-control", "NO-CACHE")],
        &[("cache-control", "public, private, max-age=60")],
        &[("cache-control", "private=\"x\"")],
        &[("cache-control", "public"), ("cache-control", "x=\"a,b\", no-store")],
        &[("cache-control", "max-age=0")],
        &[("cache-control", "s-maxage=0, max-age=60")],
        &[("cache-control", "max-age=x")],
        &[("cache-control", "max-age=1, max-age=2")],
        &[("cache-control", "max-age=\"1")],
        &[("cache-control", "b\u{e4}d")],
        &[("cache-control", "max-age=60;private")],
        &[("cache-control", "max-age=60, 'private'")],
        &[("cache-control", "max-age=60; no-store")],
        &[("cache-control", "public max-age=60 no-cache")],
        &[("cache-control", "max-age=60"), ("age", "60")],
        &[("cache-control", "max-age=60"), ("age", "60"), ("age", "0")],
        &[("expires", "Thu, 19 Nov 2081 08:52:00 GMT")],
        &[("pragma", "no-cache")],
        &[("content-type", "text/event-stream; charset=utf-8")],
        &[("content-type", "multipart/x-mixed-replace;boundary=x")],
        &[("connection", "a b")],
        &[("content-length", "1"), ("content-length", "1")],
        &[("content-length", "x")],
        &[("content-length", "1000000000")],
    ] {
        let (inner, calls) = with_headers(headers);
        let service = layered(&inner);
        let answers = ask_all(std::slice::from_ref(&service), (0..10).map(|_| get("/"))).await;
        assert_eq!((calls.count(), different(&answers)), (10, 10), "{headers:?}");
        for answer in answers {
            for (name, value) in headers {
                let value = http::HeaderValue::from_str(value)
                    .unwrap_or_else(|_| http::HeaderValue::from_bytes(value.as_bytes()).unwrap());
                assert!(
                    answer.headers.get_all(*name).iter().any(|had| had == value),
                    "{headers:?}"
                );
            }
        }
        assert_eq!(ask(&service, get("/")).await.text(), "11", "{headers:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn other_answer_headers_are_shared_but_those_of_the_connection() {
    let (inner, calls) = with_headers(&[
        ("cache-control", "public, max-age=60, must-revalidate"),
        ("expires", "0"),
        ("etag", "\"1\""),
        ("content-length", "1"),
        ("connection", "close, X-Hop"),
        ("x-hop", "1"),
        ("keep-alive", "timeout=5"),
        ("upgrade", "h2c"),
        ("proxy-authenticate", "Basic"),
    ]);
    let service = layered(&inner);
    let answers = ask_all(std::slice::from_ref(&service), [get("/"), get("/")]).await;
    let hit = ask(&service, get("/")).await;
    assert_eq!(calls.count(), 1);
    for answer in answers.iter().chain([&hit]) {
        let mut names: Vec<_> = answer.headers.keys().map(|name| name.as_str()).collect();
        names.retain(|name| *name != "age");
        names.sort_unstable();
        assert_eq!(names, ["cache-control", "content-length", "etag", "expires"]);
    }
}
