//! Unsafe requests and `PURGE` end the responses that they outdate.

use axum::{Router, extract::State, routing::get as route};
use http::Version;

use super::prelude::*;

fn of_shop(method: &str, path: &str) -> Request<Body> {
    request(method, path, &[("host", "shop")])
}

fn at(path: &str) -> Request<Body> {
    of_shop("GET", path)
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
            reply(status, &[], call.to_string())
        });
        // The write may reach another process.
        let [one, other] = processes(&inner, shared);
        assert_eq!(ask(&one, at("/a")).await.text(), "1");
        assert_eq!(ask(&one, at("/b")).await.text(), "2");
        ask(&other, of_shop(method, "/a")).await;
        let expected = if ends { "4" } else { "1" };
        assert_eq!(ask(&one, at("/a")).await.text(), expected, "{method} {status}");
        assert_eq!(ask(&one, at("/b")).await.text(), "2", "{method} {status}");
    }
}

/// Behind a terminator of TLS, the scheme of a location is not that of the request.
#[tokio::test(start_paused = true)]
async fn a_write_ends_its_locations_on_the_same_host_whatever_their_scheme() {
    for (name, location, ends) in [
        ("location", "/b", true),
        ("content-location", "http://shop/b#x", true),
        ("location", "http://user@shop/b", true),
        ("location", "/c/../b", true),
        ("location", "../b", false),
        ("location", "https://shop:443/b", true),
        ("location", "http://shop:8080/b", true),
        ("location", "//shop:8080/b", true),
        ("location", "b", false),
        ("location", "mailto:b@shop", false),
        ("location", "http://shop:80/c/../b", true),
        ("location", "http://shop/b", true),
        ("location", "https://shop/b", true),
        ("location", "//shop/b", true),
        ("location", "http://bank/b", false),
        ("location", "https://bank/b", false),
        ("location", "//bank/b", false),
        ("content-location", "/b?c", false),
    ] {
        for scheme in ["", "http://shop"] {
            let (inner, _) = origin(move |call, request| match request.method().as_str() {
                "POST" => reply(201, &[(name, location)], ""),
                _ => reply(200, &[], call.to_string()),
            });
            let service = layered(&inner);
            let send = |method: &str, path: &str| {
                let mut request = of_shop(method, &format!("{scheme}{path}"));
                if !scheme.is_empty() {
                    *request.version_mut() = Version::HTTP_2;
                }
                ask(&service, request)
            };
            send("GET", "/b").await;
            send("POST", "/a").await;
            let expected = if ends { "3" } else { "1" };
            assert_eq!(send("GET", "/b").await.text(), expected, "{name}: {location} {scheme}");
        }
    }
}

/// RFC 3986, section 5.2.4.
#[tokio::test(start_paused = true)]
async fn a_location_names_a_path_without_dots() {
    for (location, path) in [
        ("/c/d/..", "/c/"),
        ("/c/.", "/c/"),
        ("/../c", "/c"),
        ("http://shop/c/./d/../e?x", "/c/e?x"),
        ("/b?x=/../y", "/b?x=/../y"),
    ] {
        let (inner, _) = origin(move |call, request| match request.method().as_str() {
            "POST" => reply(201, &[("location", location)], ""),
            _ => reply(200, &[], call.to_string()),
        });
        let service = layered(&inner);
        for (sent, expected) in [(at(path), "1"), (of_shop("POST", "/a"), ""), (at(path), "3")] {
            assert_eq!(ask(&service, sent).await.text(), expected, "{location}");
        }
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
                let (host, uri) = *write;
                let location = if !uri.starts_with('/') {
                    uri.to_owned()
                } else if host.ends_with(":443") {
                    format!("https://{host}{uri}")
                } else {
                    format!("http://{host}{uri}")
                };
                let (inner, _) = origin(move |call, request| match request.method().as_str() {
                    "POST" => reply(200, &[(way, &location)], call.to_string()),
                    _ => reply(200, &[], call.to_string()),
                });
                let service = layer().purge_if(|_| true).layer(inner);
                let send = |method: &str, (host, uri): (&str, &str)| {
                    let host = [("host", host)];
                    let host = if host[0].1.is_empty() { &host[..0] } else { &host };
                    ask(&service, request(method, uri, host))
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
    let (inner, calls) = with_headers(&[("vary", "accept-language")]);
    let service = layered(&inner);
    let language = |language| get_with(&[("accept-language", language)]);
    for _ in 0..2 {
        ask(&service, language("en")).await;
        ask(&service, language("de")).await;
    }
    assert_eq!(calls.count(), 2);
    // A load that begins with the write, and may see what was before.
    let late = ask_all(std::slice::from_ref(&service), [language("fr"), post()]).await;
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
        let location = if request.method() == "GET" { "" } else { "/b" };
        reply(200, &[("location", location)], call.to_string())
    });
    let reader = http_layer(cache(&backend)).layer(inner.clone());
    let writer = http_layer(http_cache(late, "bellwether").build().unwrap()).layer(inner);
    for path in ["/a", "/b"] {
        ask(&reader, at(path)).await;
    }
    let write = timeout(2 * DELAY, writer.oneshot(of_shop("POST", "/a"))).await;
    assert!(write.is_err(), "it had its answer");
    sleep(10 * DELAY).await;
    let texts = [ask(&reader, at("/a")).await, ask(&reader, at("/b")).await];
    assert_eq!(texts.each_ref().map(|answer| answer.text()), ["4", "5"]);
}

/// The registry of HTTP methods says that these are safe.
#[tokio::test(start_paused = true)]
async fn a_safe_method_ends_no_stored_response() {
    for (method, is_safe) in [
        ("PROPFIND", true),
        ("REPORT", true),
        ("SEARCH", true),
        ("QUERY", true),
        ("PROPPATCH", false),
        ("UNKNOWN", false),
    ] {
        let (inner, _) = numbered();
        let service = layered(&inner);
        ask(&service, get("/")).await;
        ask(&service, request(method, "/", &[])).await;
        let expected = if is_safe { "1" } else { "3" };
        assert_eq!(ask(&service, get("/")).await.text(), expected, "{method}");
    }
}

/// Each call waited for a command, and for its time limit while the backend was away.
#[tokio::test(start_paused = true)]
async fn a_grpc_call_waits_for_no_backend() {
    let backend = Faulty::new(|op| (op == Op::Edit).then_some(Fault::Hang));
    let (inner, _) = origin(|call, request| {
        let kind = request.headers()["content-type"].to_str().unwrap();
        reply(200, &[("content-type", kind)], call.to_string())
    });
    let service = layer_of(http_cache(backend.clone(), "bellwether")).layer(inner);
    let write = |kind| request("POST", "/shop.Shop/Buy", &[("content-type", kind)]);
    for kind in ["application/grpc", "application/grpc+proto", "application/grpc-web"] {
        timeout(2 * DELAY, ask(&service, write(kind))).await.unwrap();
    }
    assert_eq!(backend.count(Op::Edit), 0);
    let plain = timeout(2 * DELAY, ask(&service, write("application/json"))).await;
    assert!(plain.is_err(), "it did not wait");
}

/// The path before the router took its prefix is a part of the key.
#[tokio::test(start_paused = true)]
async fn a_write_in_a_nested_router_ends_its_location() {
    let calls = Arc::new(AtomicUsize::new(0));
    let answer = |State(calls): State<Arc<AtomicUsize>>| async move {
        calls.fetch_add(1, Ordering::SeqCst).to_string()
    };
    let created = || async { (StatusCode::CREATED, [("location", "/api/items/1")], "") };
    let items =
        Router::new().route("/items/1", route(answer)).route("/items", route(answer).post(created));
    let app = Router::new().nest("/api", items.layer(layer())).with_state(calls.clone());
    let ask = async |method: &str, path: &str| {
        app.clone().oneshot(of_shop(method, path)).await.unwrap().status()
    };
    for round in 0..3 {
        for _ in 0..2 {
            ask("GET", "/api/items/1").await;
            ask("GET", "/api/items").await;
        }
        assert_eq!(calls.load(Ordering::SeqCst), 2 * (round + 1));
        assert_eq!(ask("POST", "/api/items").await, StatusCode::CREATED);
    }
}

/// A prefix with an invalid encoding has no normal form, and the rest of the path has one.
#[tokio::test(start_paused = true)]
async fn a_write_below_an_invalid_prefix_ends_its_location() {
    let (inner, calls) = origin(|call, request| {
        let is_write = request.method() == "POST";
        let lines: Lines<'_> = if is_write { &[("location", "/%zz/b")] } else { &[] };
        reply(200, lines, call.to_string())
    });
    let service = layered(&inner);
    let asked = [("GET", "/b", 1), ("GET", "/b", 1), ("POST", "/%41", 2), ("GET", "/b", 3)];
    for (method, path, expected) in asked {
        let mut request = of_shop(method, path);
        let original = format!("/%zz{path}");
        request.extensions_mut().insert(axum::extract::OriginalUri(original.parse().unwrap()));
        ask(&service, request).await;
        assert_eq!(calls.count(), expected);
    }
}

#[tokio::test(start_paused = true)]
async fn a_write_ends_the_page_at_the_root_of_its_nested_router() {
    let calls = Arc::new(AtomicUsize::new(0));
    let answer = |State(calls): State<Arc<AtomicUsize>>| async move {
        calls.fetch_add(1, Ordering::SeqCst).to_string()
    };
    let moved = || async { (StatusCode::SEE_OTHER, [("location", "/items")], "") };
    let sorted = || async { (StatusCode::SEE_OTHER, [("location", "/items?by=age")], "") };
    let created = || async { (StatusCode::CREATED, [("location", "/items/2")], "") };
    let items = Router::new()
        .route("/", route(answer).post(created).delete(sorted))
        .route("/{id}", route(answer).delete(moved));
    let app = Router::new().nest("/items", items.layer(layer())).with_state(calls.clone());
    let ask = async |method: &str, path: &str| {
        app.clone().oneshot(of_shop(method, path)).await.unwrap();
        calls.load(Ordering::SeqCst)
    };
    let writes = [
        ("DELETE", "/items/1", "/items"),
        ("POST", "/items", "/items/2"),
        ("DELETE", "/items", "/items?by=age"),
    ];
    for (method, path, location) in writes {
        let asked = ask("GET", location).await;
        assert_eq!(ask("GET", location).await, asked);
        ask(method, path).await;
        assert_eq!(ask("GET", location).await, asked + 1, "{method} {path}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_purge_needs_the_permission_of_the_user() {
    let (inner, calls) = origin(|call, request| {
        let status = if request.method() == "PURGE" { 405 } else { 200 };
        reply(status, &[], call.to_string())
    });
    let layer = layer_of(builder().ttl(3600 * SECOND));
    let service = layer.purge_if(|parts| parts.headers.contains_key("x-may")).layer(inner);
    ask(&service, get("/")).await;
    for (headers, status, found, count) in
        [(&[][..], 405, "1", 2), (&[("x-may", "1")], 204, "3", 3)]
    {
        assert_eq!(ask(&service, request("PURGE", "/", headers)).await.status, status);
        assert_eq!((ask(&service, get("/")).await.text(), calls.count()), (found, count));
    }
}

/// The form of a target is no part of the resource. A write by HTTP/2, which always names a scheme,
/// ended nothing that HTTP/1.1 had stored.
#[tokio::test(start_paused = true)]
async fn a_write_ends_each_form_of_its_target() {
    let (inner, _) = origin(|call, request| match request.method().as_str() {
        "POST" => reply(201, &[("location", "/c")], call.to_string()),
        _ => reply(200, &[], call.to_string()),
    });
    let service = layer().purge_if(|_| true).layer(inner);
    let get = |scheme: &str, path| at(&format!("{scheme}{path}"));
    let forms = ["", "http://shop", "https://shop"];
    let write = |method, scheme: &str, version| {
        let mut write = of_shop(method, &format!("{scheme}/a"));
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
