//! The rules for shared answers, one by one.

use super::prelude::*;

#[tokio::test(start_paused = true)]
async fn a_plain_get_is_shared_and_stored() {
    let (inner, calls) =
        with_headers(&[("content-type", "text/plain"), ("x-own", "1"), ("x-own", "2")]);
    let service = layered(&inner);
    let answers = crowd(&service, 200).await;
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

#[tokio::test(start_paused = true)]
async fn requests_that_belong_to_their_callers_pass_through() {
    type Make = Box<dyn Fn() -> Request<Body>>;
    let mut requests: Vec<(&str, Make)> = Vec::new();
    for method in ["POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "get", "PURGE"] {
        requests.push((method, Box::new(move || request(method, "/", &[]))));
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
        requests.push((header, Box::new(move || get_with(&[header.split_once(": ").unwrap()]))));
    }
    let with_body = |body| Request::get("/").body(body).unwrap();
    requests.push(("a body", Box::new(move || with_body(Body::from("x")))));
    let streamed = || Body::from_stream(futures_util::stream::empty::<Result<Bytes, BoxError>>());
    requests.push(("a streamed body", Box::new(move || with_body(streamed()))));
    for (what, request) in requests {
        let (inner, calls) = numbered();
        let service = layered(&inner);
        let own = ask_all(std::slice::from_ref(&service), [request(), request()]).await;
        assert_eq!((calls.count(), different(&own)), (2, 2), "{what}");
        // The request neither fills the cache nor is served from it.
        assert_eq!(ask(&service, get("/")).await.text(), "3", "{what}");
        assert_eq!(ask(&service, request()).await.text(), "4", "{what}");
        // An unsafe request ends the stored answer.
        let stored = if request().method().is_safe() { "3" } else { "5" };
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
        ("cache-control", "private"),
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
        &[("vary", "a,b,c,d,e,f,g,h"), ("vary", "i,j,k,l,m,n,o,p,q")],
        &[("vary", "\u{e4}")],
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
        let answers = crowd(&service, 10).await;
        assert_eq!((calls.count(), different(&answers)), (10, 10), "{headers:?}");
        for answer in answers {
            for (name, value) in headers {
                let mut had = answer.headers.get_all(*name).iter();
                assert!(had.any(|had| had.as_bytes() == value.as_bytes()), "{headers:?}");
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
    let answers = crowd(&service, 2).await;
    let hit = ask(&service, get("/")).await;
    assert_eq!(calls.count(), 1);
    for answer in answers.iter().chain([&hit]) {
        let mut names: Vec<_> = answer.headers.keys().map(|name| name.as_str()).collect();
        names.retain(|name| *name != "age");
        names.sort_unstable();
        assert_eq!(names, ["cache-control", "content-length", "etag", "expires"]);
    }
}
