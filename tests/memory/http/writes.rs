//! Unsafe requests and `PURGE` end the responses that they outdate.

use axum::{Router, extract::State, routing::get as route};
use http::Version;

use super::prelude::*;

fn request(method: &str, path: &str) -> Request<Body> {
    let request = Request::builder().method(method).uri(path).header("host", "shop");
    request.body(Body::empty()).unwrap()
}

fn at(path: &str) -> Request<Body> {
    request("GET", path)
}

#[tokio::test(start_paused = true)]
async fn an_unsafe_request_ends_the_stored_response() {
    for (method, status, ends) in [
        ("POST", 200, true),
        ("PUT", 204, true),
        ("PATCH", 303, true),
        ("DELETE", 200, true),
        ("MKCOL", 201, true),
        ("POST", 400, false),
        ("DELETE", 503, false),
        ("OPTIONS", 200, false),
        ("TRACE", 200, false),
    ] {
        let (inner, _) = origin(move |call, request| {
            let status = if request.method() == "GET" { 200 } else { status };
            Response::builder().status(status).body(Body::from(call.to_string())).unwrap()
        });
        // The write may reach another process.
        let backend = MemoryBackend::new();
        let [one, other] = [(), ()].map(|()| http_layer(cache(&backend)).layer(inner.clone()));
        assert_eq!(ask(&one, at("/a")).await.text(), "1");
        assert_eq!(ask(&one, at("/b")).await.text(), "2");
        ask(&other, request(method, "/a")).await;
        let expected = if ends { "4" } else { "1" };
        assert_eq!(ask(&one, at("/a")).await.text(), expected, "{method} {status}");
        assert_eq!(ask(&one, at("/b")).await.text(), "2", "{method} {status}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_write_ends_its_locations_on_the_same_host() {
    for (name, location, ends) in [
        ("location", "/b", true),
        ("content-location", "http://shop/b#x", true),
        ("location", "b", true),
        ("location", "http://shop:80/c/../b", true),
        ("location", "http://bank/b", false),
        ("location", "//bank/b", false),
        ("content-location", "/b?c", false),
    ] {
        let (inner, _) = origin(move |call, request| {
            let answer = Response::builder();
            let answer = match request.method().as_str() {
                "POST" => answer.status(201).header(name, location),
                _ => answer,
            };
            answer.body(Body::from(call.to_string())).unwrap()
        });
        let service = layered(&inner);
        ask(&service, at("/b")).await;
        ask(&service, request("POST", "/a")).await;
        let expected = if ends { "3" } else { "1" };
        assert_eq!(ask(&service, at("/b")).await.text(), expected, "{name}: {location}");
    }
}

/// A `PUT` to `shop.test:80` left the response of `shop.test` stored.
#[tokio::test(start_paused = true)]
async fn a_write_of_an_equivalent_uri_ends_the_stored_response() {
    for (stored, writes) in [
        (
            ("shop.test", "/x~%c3%a9"),
            &[
                ("shop.test:80", "/x~%C3%A9"),
                ("SHOP.test:443", "/%78%7E%c3%a9"),
                ("shop.test:", "/%78~%C3%A9"),
                ("shop.test", "/y/../x~%C3%A9"),
                ("shop.test", "/%2e/x~%C3%A9"),
                ("", "http://shop.test/x~%C3%A9"),
                ("shop.test", "HTTP://shop.test:80/x~%C3%A9"),
                ("shop.test:443", "https://shop.test/x~%C3%A9"),
            ][..],
        ),
        (("", "http://shop.test/x"), &[("shop.test:80", "/x"), ("shop.test", "/%78")]),
        (("shop.test:443", "https://shop.test/x"), &[("shop.test:443", "/x"), ("shop.test", "/x")]),
        (("shop.test", "/x?a=b"), &[("shop.test:80", "/x?%61=%62")]),
    ] {
        for write in writes {
            for way in ["PUT", "PURGE", "location", "content-location"] {
                // A location names its host with its scheme.
                let location = match write.1.starts_with('/') {
                    true if write.0.ends_with(":443") => format!("https://{}{}", write.0, write.1),
                    true => format!("http://{}{}", write.0, write.1),
                    false => write.1.to_owned(),
                };
                let (inner, _) = origin(move |call, request| {
                    let mut answer = Response::builder();
                    if request.method() == "POST" {
                        answer = answer.header(way, &location);
                    }
                    answer.body(Body::from(call.to_string())).unwrap()
                });
                let layer = http_layer(cache(&MemoryBackend::new())).purge_if(|_| true);
                let service = layer.layer(inner);
                let send = |method: &str, (host, uri): (&str, &str)| {
                    let mut request = Request::builder().method(method).uri(uri);
                    if !host.is_empty() {
                        request = request.header("host", host);
                    }
                    ask(&service, request.body(Body::empty()).unwrap())
                };
                send("GET", stored).await;
                match way {
                    "PUT" | "PURGE" => send(way, *write).await,
                    _ => send("POST", ("shop.test", "/other")).await,
                };
                let after = send("GET", stored).await;
                assert_ne!(after.text(), "1", "{way} {write:?} {stored:?}");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_write_ends_all_variants_and_the_loads_under_way() {
    let (inner, calls) = origin(|call, _| {
        let answer = Response::builder().header("vary", "accept-language");
        answer.body(Body::from(call.to_string())).unwrap()
    });
    let service = layered(&inner);
    let language = |language| get_with(&[("accept-language", language)]);
    for _ in 0..2 {
        ask(&service, language("en")).await;
        ask(&service, language("de")).await;
    }
    assert_eq!(calls.count(), 2);
    // A load that begins with the write, and may see what was before.
    let post = Request::post("/").body(Body::empty()).unwrap();
    let late = ask_all(std::slice::from_ref(&service), [language("fr"), post]).await;
    for (at, wanted) in ["en", "de", "fr"].into_iter().enumerate() {
        let answer = ask(&service, language(wanted)).await;
        assert_ne!(answer.text(), late[0].text());
        assert_eq!(calls.count(), 5 + at);
    }
}

/// A client wrote, and closed its connection while the old responses were ended one by one. The
/// second one stayed until its time to live ended.
#[tokio::test(start_paused = true)]
async fn a_writer_that_goes_away_ends_what_it_has_outdated() {
    let backend = MemoryBackend::new();
    let late =
        Faulty::over(backend.clone(), |op| (op == Op::Edit).then_some(Fault::Late(2 * DELAY)));
    let (inner, _) = origin(|call, request| {
        let is_read = request.method() == "GET";
        let location = if is_read { "" } else { "/b" };
        let body = Body::from(call.to_string());
        Response::builder().header("location", location).body(body).unwrap()
    });
    let own = http_cache(backend, "shop").build().unwrap();
    let reader = http_layer(own).layer(inner.clone());
    let writer = http_layer(http_cache(late, "shop").build().unwrap()).layer(inner);
    for path in ["/a", "/b"] {
        ask(&reader, at(path)).await;
    }
    let write = timeout(2 * DELAY, writer.oneshot(request("POST", "/a"))).await;
    assert!(write.is_err(), "it had its answer");
    sleep(10 * DELAY).await;
    let texts = [ask(&reader, at("/a")).await, ask(&reader, at("/b")).await];
    assert_eq!(texts.each_ref().map(|answer| answer.text()), ["4", "5"]);
}

/// Each call waited for a command, and for its time limit while the backend was away.
#[tokio::test(start_paused = true)]
async fn a_grpc_call_waits_for_no_backend() {
    let backend = Faulty::new(|op| (op == Op::Edit).then_some(Fault::Hang));
    let (inner, _) = origin(|call, request| {
        let kind = request.headers().get("content-type").unwrap();
        let answer = Response::builder().header("content-type", kind);
        answer.body(Body::from(call.to_string())).unwrap()
    });
    let service =
        http_layer(http_cache(backend.clone(), "bellwether").build().unwrap()).layer(inner);
    for kind in ["application/grpc", "application/grpc+proto", "application/grpc-web"] {
        let mut call = request("POST", "/shop.Shop/Buy");
        call.headers_mut().insert("content-type", kind.parse().unwrap());
        timeout(2 * DELAY, ask(&service, call)).await.unwrap();
    }
    assert_eq!(backend.count(Op::Edit), 0);
    let mut write = request("POST", "/a");
    write.headers_mut().insert("content-type", "application/json".parse().unwrap());
    assert!(timeout(2 * DELAY, ask(&service, write)).await.is_err(), "it did not wait");
}

/// The path before the router took its prefix is a part of the key.
#[tokio::test(start_paused = true)]
async fn a_write_in_a_nested_router_ends_its_location() {
    let calls = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let answer = |State(calls): State<std::sync::Arc<std::sync::atomic::AtomicUsize>>| async move {
        calls.fetch_add(1, std::sync::atomic::Ordering::SeqCst).to_string()
    };
    let created = || async { (StatusCode::CREATED, [("location", "/api/items/1")], "") };
    let layer = http_layer(cache(&MemoryBackend::new()));
    let items =
        Router::new().route("/items/1", route(answer)).route("/items", route(answer).post(created));
    let app = Router::new().nest("/api", items.layer(layer)).with_state(calls.clone());
    let ask = async |method: &str, path: &str| {
        app.clone().oneshot(request(method, path)).await.unwrap().status()
    };
    for round in 0..3 {
        for _ in 0..2 {
            ask("GET", "/api/items/1").await;
            ask("GET", "/api/items").await;
        }
        assert_eq!(calls.load(std::sync::atomic::Ordering::SeqCst), 2 * (round + 1));
        assert_eq!(ask("POST", "/api/items").await, StatusCode::CREATED);
    }
}

#[tokio::test(start_paused = true)]
async fn a_purge_needs_the_permission_of_the_user() {
    let (inner, calls) = origin(|call, request| {
        let status = if request.method() == "PURGE" { 405 } else { 200 };
        Response::builder().status(status).body(Body::from(call.to_string())).unwrap()
    });
    let cache = http_cache(MemoryBackend::new(), "bellwether")
        .ttl(Duration::from_secs(3600))
        .build()
        .unwrap();
    let layer = http_layer(cache).purge_if(|parts| parts.headers.contains_key("x-may"));
    let service = layer.layer(inner);
    ask(&service, get("/")).await;
    let mut purge = Request::builder().method("PURGE").uri("/").body(Body::empty()).unwrap();
    assert_eq!(ask(&service, purge).await.status, StatusCode::METHOD_NOT_ALLOWED);
    assert_eq!((ask(&service, get("/")).await.text(), calls.count()), ("1", 2));
    purge = Request::builder()
        .method("PURGE")
        .uri("/")
        .header("x-may", "1")
        .body(Body::empty())
        .unwrap();
    assert_eq!(ask(&service, purge).await.status, StatusCode::NO_CONTENT);
    assert_eq!((ask(&service, get("/")).await.text(), calls.count()), ("3", 3));
}

/// The form of a target is no part of the resource. A write by HTTP/2, which always names a scheme,
/// ended nothing that HTTP/1.1 had stored.
#[tokio::test(start_paused = true)]
async fn a_write_ends_each_form_of_its_target() {
    let (inner, _) = origin(|call, request| {
        let answer = Response::builder();
        let answer = match request.method().as_str() {
            "POST" => answer.status(201).header("location", "/c"),
            _ => answer,
        };
        answer.body(Body::from(call.to_string())).unwrap()
    });
    let layer = http_layer(cache(&MemoryBackend::new())).purge_if(|_| true);
    let service = layer.layer(inner);
    let get = |scheme: &str, path| request("GET", &format!("{scheme}{path}"));
    let forms = ["", "http://shop", "https://shop"];
    let write = |method, scheme: &str, version| {
        let mut write = request(method, &format!("{scheme}/a"));
        *write.version_mut() = version;
        write
    };
    for (write, ends_location) in [
        (write("POST", "", Version::HTTP_11), true),
        (write("POST", "http://shop", Version::HTTP_11), true),
        (write("POST", "https://shop", Version::HTTP_2), true),
        (write("PURGE", "http://shop", Version::HTTP_11), false),
    ] {
        let mut before = Vec::new();
        for form in forms {
            for path in ["/a", "/b", "/c"] {
                before.push(ask(&service, get(form, path)).await.body);
            }
        }
        ask(&service, write).await;
        for (at, body) in before.iter().enumerate() {
            let path = ["/a", "/b", "/c"][at % 3];
            let ended = ask(&service, get(forms[at / 3], path)).await.body != body;
            let expected = path == "/a" || (path == "/c" && ends_location);
            assert_eq!(ended, expected, "{} {path}", forms[at / 3]);
        }
    }
}

/// Behind a terminator of TLS, the scheme of a location is not that of the request.
#[tokio::test(start_paused = true)]
async fn a_location_of_the_host_ends_its_response_whatever_its_scheme() {
    for (location, ends) in [
        ("http://shop/b", true),
        ("https://shop/b", true),
        ("//shop/b", true),
        ("/b", true),
        ("//other/b", false),
        ("https://other/b", false),
    ] {
        let (inner, calls) = origin(move |_, request| {
            let answer = Response::builder();
            let is_write = request.method() == "POST";
            let answer = if is_write { answer.header("location", location) } else { answer };
            answer.body(Body::empty()).unwrap()
        });
        let service = layered(&inner);
        let send = |method: &'static str, uri: &'static str| {
            let request = Request::builder().method(method).uri(uri).version(Version::HTTP_2);
            ask(&service, request.body(Body::empty()).unwrap())
        };
        send("GET", "http://shop/b").await;
        send("POST", "http://shop/a").await;
        send("GET", "http://shop/b").await;
        assert_eq!(calls.count(), if ends { 3 } else { 2 }, "{location}");
    }
}
