//! Groups of responses (RFC 9875), and surrogate keys.

use http::HeaderName;

use super::{
    bodies::{data, fed},
    prelude::*,
};

fn cache(backend: &MemoryBackend) -> Cache<CachedResponse> {
    http_cache(backend.clone(), "bellwether").tags().build().unwrap()
}

/// Returns an answer with the headers that the request has, without `x-`, and its number as the
/// body.
fn echo(call: usize, request: &Request<Body>) -> Response<Body> {
    let mut answer = reply(200, &[("cache-control", "max-age=60")], call.to_string());
    for (name, value) in request.headers() {
        if let Some(name) = name.as_str().strip_prefix("x-answer-") {
            answer
                .headers_mut()
                .append(HeaderName::from_bytes(name.as_bytes()).unwrap(), value.clone());
        }
        if name == "x-status" {
            *answer.status_mut() = value.to_str().unwrap().parse().unwrap();
        }
    }
    answer
}

/// Returns a request to a host.
fn to(method: &str, host: &str, path: &str, headers: Lines<'_>) -> Request<Body> {
    request(method, path, &[headers, &[("host", host)]].concat())
}

/// Returns a layer that tells what is stored.
fn telling(cache: Cache<CachedResponse>) -> BellwetherLayer<Http> {
    http_layer(cache).policy(Policy::rfc9111()).cache_status()
}

fn service(backend: &MemoryBackend) -> Layered {
    telling(cache(backend)).layer(origin(echo).0)
}

/// Asks for a path whose response belongs to some groups.
async fn page(service: &Layered, path: &str, groups: &str) -> Answer {
    ask(service, to("GET", "shop", path, &[("x-answer-cache-groups", groups)])).await
}

/// Sends a write whose answer ends some groups.
async fn end(service: &Layered, host: &str, groups: &str) -> Answer {
    let header = ("x-answer-cache-group-invalidation", groups);
    ask(service, to("POST", host, "/write", &[header])).await
}

/// Returns whether a page is still stored. The answer to this request is not, and marks nothing.
async fn is_stored(service: &Layered, path: &str) -> bool {
    let headers = [("x-status", "404"), ("x-answer-cache-control", "no-store")];
    let answer = ask(service, to("GET", "shop", path, &headers)).await;
    answer.headers["cache-status"].to_str().unwrap().contains("hit")
}

/// Section 2: a list of strings, whose other members and parameters are ignored. They are compared
/// as they are.
#[tokio::test(start_paused = true)]
async fn a_response_belongs_to_the_strings_in_its_list() {
    for (groups, ended, is_ended) in [
        (r#""a""#, r#""a""#, true),
        (r#""a", "b c""#, r#""b c""#, true),
        (r#""a";p=1, token, 7, ("x")"#, r#""a""#, true),
        (r#""a", token"#, r#""token""#, false),
        (r#""a""#, r#""A""#, false),
        (r#""a""#, r#""a ""#, false),
        (r#""a"#, r#""a""#, false),
        (r#""x\"y""#, r#""x\"y""#, true),
        (r#""a""#, "a", false),
        (r#""a""#, r#""b", "a", 5"#, true),
        ("", r#""a""#, false),
    ] {
        let service = service(&MemoryBackend::new());
        page(&service, "/a", groups).await;
        end(&service, "shop", ended).await;
        assert_eq!(is_stored(&service, "/a").await, !is_ended, "{groups} {ended}");
    }
}

/// Section 2.1: at least 32 groups of at least 32 characters.
#[tokio::test(start_paused = true)]
async fn a_response_may_have_many_groups() {
    let group = |at: usize| format!("\"{at:0>100}\"");
    let groups = (0..100).map(group).collect::<Vec<_>>().join(", ");
    for at in [0, 31, 99] {
        let service = service(&MemoryBackend::new());
        page(&service, "/a", &groups).await;
        end(&service, "shop", &group(100)).await;
        assert!(is_stored(&service, "/a").await);
        end(&service, "shop", &group(at)).await;
        assert!(!is_stored(&service, "/a").await);
    }
}

/// It was said to be stored, and was loaded by each caller that came later.
#[tokio::test(start_paused = true)]
async fn a_response_of_too_many_groups_says_why_it_is_not_stored() {
    let many =
        |count: usize| (0..count).map(|at| format!("\"{at}\"")).collect::<Vec<_>>().join(", ");
    let long = |length: usize| format!("\"{}\"", "x".repeat(length));
    let stored = "bellwether; fwd=uri-miss; stored; ttl=60";
    let alone = "bellwether; fwd=uri-miss; detail=\"uncacheable: cache-groups\"";
    // A tag has the host and a space before its group.
    for (groups, status) in [
        (many(128), stored),
        (format!("{}, \"0\"", many(128)), stored),
        (many(129), alone),
        (long(507), stored),
        (long(508), alone),
    ] {
        let service = service(&MemoryBackend::new());
        let answer = page(&service, "/a", &groups).await;
        assert_eq!(answer.headers["cache-status"], status);
        assert_eq!(is_stored(&service, "/a").await, status == stored);
        // The mark stays, so no caller waits.
        let begun = Instant::now();
        let lines = [("x-answer-cache-groups", &*groups)];
        let asked = (0..10).map(|_| to("GET", "shop", "/a", &lines));
        ask_all(std::slice::from_ref(&service), asked).await;
        assert!(begun.elapsed() <= DELAY, "{:?}", begun.elapsed());
    }
}

/// Section 3: the answer to an unsafe request ends the groups that it names, whatever its status.
/// The answer to a safe one ends none.
#[tokio::test(start_paused = true)]
async fn the_answer_to_an_unsafe_request_ends_groups() {
    for (method, status, is_ended) in [
        ("POST", "200", true),
        ("PUT", "204", true),
        ("DELETE", "404", true),
        ("PATCH", "500", true),
        ("GET", "200", false),
        ("HEAD", "200", false),
        ("OPTIONS", "200", false),
        ("PROPFIND", "207", false),
        ("REPORT", "200", false),
        ("SEARCH", "200", false),
        ("QUERY", "200", false),
        ("propfind", "200", true),
        ("PROPPATCH", "207", true),
        ("MKCOL", "201", true),
        ("UNKNOWN", "200", true),
    ] {
        let backend = MemoryBackend::new();
        let [one, other] = [(); 2].map(|()| service(&backend));
        for (path, groups) in [("/a", r#""a""#), ("/ab", r#""a", "b""#), ("/b", r#""b""#)] {
            page(&one, path, groups).await;
        }
        let headers = [("x-answer-cache-group-invalidation", r#""a""#), ("x-status", status)];
        ask(&other, to(method, "shop", "/write", &headers)).await;
        for (path, is_of_group) in [("/a", true), ("/ab", true), ("/b", false)] {
            let expected = !(is_ended && is_of_group);
            assert_eq!(is_stored(&one, path).await, expected, "{method} {status} {path}");
        }
    }
}

/// Section 2.1: both share an origin.
#[tokio::test(start_paused = true)]
async fn two_origins_never_end_each_others_groups() {
    let service = service(&MemoryBackend::new());
    page(&service, "/a", r#""a""#).await;
    for host in ["bank", "shop:8080", "shop.bank", "shop \"a\"", "a"] {
        end(&service, host, r#""a""#).await;
        end(&service, host, r#""shop a", "a", " a""#).await;
        assert!(is_stored(&service, "/a").await, "{host}");
    }
    let ends = [("x-answer-cache-group-invalidation", r#""a""#)];
    ask(&service, to("POST", "shop:443", "http://shop:443/write", &ends)).await;
    assert!(is_stored(&service, "/a").await, "the port of another scheme");
    end(&service, "SHOP:80", r#""a""#).await;
    assert!(!is_stored(&service, "/a").await, "the same origin in another spelling");
    page(&service, "http://shop/b", r#""b""#).await;
    end(&service, "shop", r#""b""#).await;
    assert!(!is_stored(&service, "http://shop/b").await, "the same origin in another form");
}

/// Section 2.2.1: to end a response need not end the others of its groups, and does not here.
#[tokio::test(start_paused = true)]
async fn the_end_of_a_response_does_not_end_its_groups() {
    let service = service(&MemoryBackend::new());
    page(&service, "/a", r#""a""#).await;
    page(&service, "/b", r#""a""#).await;
    ask(&service, to("POST", "shop", "/a", &[])).await;
    assert_eq!([is_stored(&service, "/a").await, is_stored(&service, "/b").await], [false, true]);
}

#[tokio::test(start_paused = true)]
async fn without_tags_groups_are_headers_as_others() {
    let service = telling(super::origin::cache(&MemoryBackend::new())).layer(origin(echo).0);
    page(&service, "/a", r#""a""#).await;
    end(&service, "shop", r#""a""#).await;
    assert!(is_stored(&service, "/a").await);
}

/// A group ends in the process or in another one while the body of a response is on its way. Who
/// asks afterwards does not get it.
#[tokio::test(start_paused = true)]
async fn a_stream_whose_group_has_ended_is_for_those_who_asked_before() {
    for ends in [0, 1] {
        let backend = MemoryBackend::new();
        let caches = [(); 2].map(|()| cache(&backend));
        let (inner, mut feeds) = fed(&[("cache-groups", "\"a\"")]);
        let service = http_layer(caches[0].clone()).layer(inner);
        let asks = || asking(&service, to("GET", "shop", "/a", &[]));
        let before = asks();
        sleep(100 * MS).await;
        let feed = feeds.recv().await.unwrap();
        feed.send(data("old")).unwrap();
        let also_before = asks();
        sleep(100 * MS).await;
        caches[ends].invalidate_tag("shop a").await.unwrap();
        let after = asks();
        sleep(100 * MS).await;
        drop(feed);
        for before in [before, also_before] {
            assert_eq!(before.await.unwrap().text(), "old");
        }
        sleep(100 * MS).await;
        let new = feeds.try_recv().expect("a caller joined a body whose group has ended");
        new.send(data("new")).unwrap();
        drop(new);
        assert_eq!(after.await.unwrap().text(), "new");
    }
}

/// The groups of a response that was validated are those that it has then.
#[tokio::test(start_paused = true)]
async fn a_validated_response_has_the_groups_of_its_304() {
    let (inner, _) = origin(|call, request| {
        let tag = ("etag", "\"1\"");
        let life = ("cache-control", "max-age=1");
        match request.headers().get("if-none-match") {
            Some(_) => reply(304, &[tag, life, ("cache-groups", "\"b\"")], ""),
            None => reply(200, &[tag, life, ("cache-groups", "\"a\"")], call.to_string()),
        }
    });
    let cache = builder().stale_if_error(3600 * SECOND);
    let cache = cache.tags().build().unwrap();
    let service = http_layer(cache.clone()).layer(inner);
    let ask = async || ask(&service, to("GET", "shop", "/a", &[])).await.text().to_owned();
    ask().await;
    sleep(2 * SECOND).await;
    assert_eq!(ask().await, "1");
    for (group, expected) in [("a", "1"), ("b", "3")] {
        cache.invalidate_tag(format!("shop {group}")).await.unwrap();
        assert_eq!(ask().await, expected);
    }
}

#[tokio::test(start_paused = true)]
async fn a_purge_that_is_permitted_ends_the_groups_in_its_headers() {
    let may = ("x-may", "1");
    for surrogates in [false, true] {
        let layer = telling(cache(&MemoryBackend::new()));
        let layer = if surrogates { layer.surrogate_keys() } else { layer };
        let layer = layer.purge_if(|parts| parts.headers.contains_key("x-may"));
        let service = layer.layer(origin(echo).0);
        let headers = [("x-answer-surrogate-key", "k  l"), ("x-answer-cache-groups", "\"g\"")];
        let ask = |method: &str, path: &str, headers: &[(&str, &str)]| {
            ask(&service, to(method, "shop", path, headers))
        };
        let purge =
            async |headers: &[(&str, &str)]| ask("PURGE", "/a", headers).await.status.as_u16();
        for path in ["/a", "/b"] {
            ask("GET", path, &headers).await;
        }
        purge(&[("cache-groups", "\"g\"")]).await;
        assert!(is_stored(&service, "/b").await, "it is not permitted");
        // As an unsafe request it has ended its target.
        ask("GET", "/a", &headers).await;
        assert_eq!(purge(&[may, ("cache-groups", "\"other\"")]).await, 204);
        assert!(is_stored(&service, "/a").await, "it is for a group, and not for its URI");
        // One whose groups cannot be ended is not taken for one of its URI.
        for unclear in ["g", "\"g"] {
            let purged = purge(&[may, ("cache-groups", unclear)]).await;
            assert_eq!(purged, 200, "the service answers it");
            assert!(is_stored(&service, "/b").await, "{unclear:?}");
        }
        let expected = if surrogates { 204 } else { 200 };
        assert_eq!(purge(&[may, ("surrogate-key", "l m")]).await, expected);
        assert_eq!(is_stored(&service, "/b").await, !surrogates);
        ask("GET", "/a", &headers).await;
        assert_eq!(purge(&[may, ("cache-groups", "\"g\"")]).await, 204);
        for path in ["/a", "/b"] {
            assert!(!is_stored(&service, path).await, "{path}");
        }
    }
}

/// Each variant is of its own groups, also the one that came with the resource.
#[tokio::test(start_paused = true)]
async fn each_variant_has_its_own_groups() {
    let (inner, _) = origin(|call, request| {
        let language = request
            .headers()
            .get("accept-language")
            .map_or("", |language| language.to_str().unwrap());
        let groups = format!("\"of {language}\", \"all\"");
        let headers = [("vary", "accept-language"), ("cache-groups", &*groups)];
        reply(200, &headers, format!("{call} {language}"))
    });
    let backend = MemoryBackend::new();
    let [one, other] = [(); 2].map(|()| http_layer(cache(&backend)).layer(inner.clone()));
    let texts = async |service: &Layered| {
        let mut texts = Vec::new();
        for language in ["en", "de"] {
            let answer = ask(service, to("GET", "shop", "/a", &[("accept-language", language)]));
            texts.push(answer.await.text().to_owned());
        }
        texts
    };
    for _ in 0..2 {
        assert_eq!(texts(&one).await, ["1 en", "2 de"]);
        assert_eq!(texts(&other).await, ["1 en", "2 de"]);
    }
    cache(&backend).invalidate_tag("shop of en").await.unwrap();
    assert_eq!(texts(&one).await, ["3 en", "2 de"]);
    cache(&backend).expire_tag("shop of en").await.unwrap();
    assert_eq!(texts(&other).await, ["4 en", "2 de"]);
    cache(&backend).invalidate_tag("shop all").await.unwrap();
    assert_eq!(texts(&one).await, ["5 en", "6 de"]);
    assert_eq!(texts(&other).await, ["5 en", "6 de"]);
}
