//! Variants: answers that headers of the request select.

use tokio::sync::Semaphore;

use super::{prelude::*, users::said};

fn line<'a>(headers: &'a HeaderMap, name: &str) -> &'a str {
    headers.get(name).map_or("-", |value| value.to_str().unwrap())
}

/// Returns an origin that answers by language, with the number of its call.
fn by_language() -> (Inner, Calls) {
    origin(|call, request| {
        let language = line(request.headers(), "accept-language");
        let etag = format!("\"{language}\"");
        let headers = [("vary", "Accept-Language"), ("etag", &*etag)];
        reply(200, &headers, format!("{language} {call}"))
    })
}

fn in_language(language: &str) -> Request<Body> {
    get_with(&[("accept-language", language)])
}

fn assert_language(answer: &Answer, language: &str) {
    assert_eq!(answer.text().split(' ').next(), Some(language), "{answer:?}");
}

#[tokio::test(start_paused = true)]
async fn requests_share_the_variant_that_they_select() {
    let (inner, calls) = by_language();
    let services: [_; 2] = processes(&inner, shared);
    let languages = ["en", "de", "fr", "-"];
    let request = |at: usize| match languages[at % 4] {
        "-" => get("/"),
        language => in_language(language),
    };
    for _ in 0..3 {
        let answers = ask_all(&services, (0..100).map(request)).await;
        for (at, answer) in answers.iter().enumerate() {
            assert_language(answer, languages[at % 4]);
        }
        assert_eq!((calls.count(), different(&answers)), (4, 4));
    }
    let hit = ask(&services[0], in_language("de")).await;
    assert!(hit.headers.contains_key("age") && line(&hit.headers, "vary") == "Accept-Language");
}

#[tokio::test(start_paused = true)]
async fn a_cold_variant_waits_for_no_other() {
    let service = layered(&by_language().0);
    ask(&service, in_language("en")).await;
    let begun = Instant::now();
    let languages: Vec<_> = (0..20).map(|at| format!("x-{at}")).collect();
    let requests = languages.iter().map(|language| in_language(language));
    let answers = ask_all(&[service], requests).await;
    for (answer, language) in answers.iter().zip(&languages) {
        assert_language(answer, language);
    }
    assert_eq!(begun.elapsed(), DELAY);
}

#[tokio::test(start_paused = true)]
async fn a_variant_meets_conditions() {
    let (inner, calls) = by_language();
    let service = layered(&inner);
    for _ in 0..2 {
        for language in ["en", "de"] {
            for (name, value, status) in [
                ("if-none-match", format!("\"{language}\""), 304),
                ("if-none-match", "\"fr\"".to_owned(), 200),
                ("range", "bytes=0-1".to_owned(), 206),
            ] {
                let asked = get_with(&[("accept-language", language), (name, &value)]);
                let answer = ask(&service, asked).await;
                // The answer to the caller that makes the load is not cut.
                let is_first = calls.count() < 2 && status == 206;
                assert!(is_first || answer.status.as_u16() == status, "{language} {name}");
            }
        }
    }
    assert_eq!(calls.count(), 2);
}

/// The marker was not remembered, so no variant was found that was.
#[tokio::test(start_paused = true)]
async fn a_variant_that_was_seen_stands_in_while_the_backend_is_away() {
    let fails = Arc::new(AtomicBool::new(false));
    let failing = fails.clone();
    let (inner, calls) = origin(move |call, _| {
        let status = if failing.load(Ordering::SeqCst) { 503 } else { 200 };
        let control = ("cache-control", "max-age=60, stale-if-error=600");
        reply(status, &[("vary", "accept-language"), control], call.to_string())
    });
    let faulty = Faulty::new(|_| None);
    let cache = http_cache(faulty.clone(), "shop").outage_memory(1 << 20);
    let service = http_layer(cache.build().unwrap()).layer(inner);
    for _ in 0..2 {
        ask(&service, in_language("en")).await;
    }
    faulty.plan(|_| Some(Fault::Refuse));
    assert_eq!((ask(&service, in_language("en")).await.text(), calls.count()), ("1", 1));
    fails.store(true, Ordering::SeqCst);
    sleep(61 * SECOND).await;
    assert_eq!((ask(&service, in_language("en")).await.text(), calls.count()), ("1", 2));
}

#[tokio::test(start_paused = true)]
async fn one_invalidation_ends_all_variants() {
    let (inner, calls) = by_language();
    let cache = cache(&MemoryBackend::new());
    let layer = http_layer(cache.clone());
    let service = layer.layer(inner);
    for round in 0..3 {
        for language in ["en", "de", "en", "de"] {
            ask(&service, in_language(language)).await;
        }
        assert_eq!(calls.count(), 2 * (round + 1));
        let key = layer.key(&in_language("fr").into_parts().0).unwrap();
        cache.invalidate(key).await.unwrap();
    }
}

/// The entry of a variant is written after the invalidation of its resource, for its load began
/// before. No request may find it, as each asks for the marker first.
#[tokio::test(start_paused = true)]
async fn a_load_that_began_before_an_invalidation_is_not_found_after_it() {
    // A load of the resource, and one of a known resource's variant.
    for known in [false, true] {
        let gate = Arc::new(Semaphore::new(0));
        let (inner, _) = by_language();
        let held = gate.clone();
        let slow = service_fn(move |request: Request<Body>| {
            let inner = inner.clone();
            let held = held.clone();
            async move {
                let answer = inner.oneshot(request).await;
                // The answer is made, and is late.
                held.acquire().await.unwrap().forget();
                answer
            }
        });
        let backend = MemoryBackend::new();
        let caches = [(), ()].map(|()| cache(&backend));
        let layers = caches.clone().map(http_layer);
        let inner = BoxCloneSyncService::new(slow);
        let services: [Layered; 2] = layers.clone().map(|layer| layer.layer(inner.clone()));
        if known {
            gate.add_permits(1);
            ask(&services[0], in_language("de")).await;
        }
        let early = asking(&services[0], in_language("en"));
        sleep(2 * DELAY).await;
        // In the same process or in another one.
        let key = layers[1].key(&get("/").into_parts().0).unwrap();
        caches[usize::from(known)].invalidate(key).await.unwrap();
        gate.add_permits(100);
        let old = early.await.unwrap();
        for service in &services {
            let new = ask(service, in_language("en")).await;
            assert_language(&new, "en");
            assert_ne!(new.text(), old.text(), "known: {known}");
        }
    }
}

/// A response with one more name in its `Vary` was stored after an invalidation, with a new marker.
#[tokio::test(start_paused = true)]
async fn a_resource_that_varies_by_more_than_was_known_shares_by_all_of_it() {
    let (inner, calls) = origin(|call, request| {
        let [language, theme] =
            ["accept-language", "x-theme"].map(|name| line(request.headers(), name).to_owned());
        // The German answers have themes.
        let (vary, theme) = if language == "de" {
            ("accept-language, x-theme", theme)
        } else {
            ("accept-language", String::new())
        };
        reply(200, &[("vary", vary)], format!("{language}/{theme} {call}"))
    });
    let service = layered(&inner);
    let request = |language, theme| get_with(&[("accept-language", language), ("x-theme", theme)]);
    for _ in 0..4 {
        assert_language(&ask(&service, request("en", "dark")).await, "en/");
        let both = (0..10).map(|at| request("de", ["dark", "light"][at % 2]));
        let answers = ask_all(std::slice::from_ref(&service), both).await;
        for (at, answer) in answers.iter().enumerate() {
            assert_language(answer, ["de/dark", "de/light"][at % 2]);
        }
    }
    // The names do not alternate, so the variants stay.
    let before = calls.count();
    for _ in 0..3 {
        for (language, theme) in [("en", "dark"), ("de", "dark"), ("de", "light")] {
            ask(&service, request(language, theme)).await;
        }
    }
    assert_eq!(calls.count(), before);
}

/// The resource has a marker of the first name, the variants with that header one of the second
/// name, and so on.
#[tokio::test(start_paused = true)]
async fn a_response_behind_too_many_markers_is_not_shared() {
    const NAMES: [&str; 6] = ["a", "b", "c", "d", "e", "f"];
    let (inner, calls) = origin(|call, request| {
        let known = request.headers().len();
        reply(200, &[("vary", &*NAMES[..=known].join(","))], call.to_string())
    });
    let service = layered(&inner);
    for known in 0..NAMES.len() {
        let lines: Vec<_> = NAMES[..known].iter().map(|name| (*name, "1")).collect();
        let before = calls.count();
        for _ in 0..3 {
            ask(&service, get_with(&lines)).await;
        }
        let expected = if known < 4 { 1 } else { 3 };
        assert_eq!(calls.count() - before, expected, "{known}");
    }
}

#[tokio::test(start_paused = true)]
async fn each_difference_in_a_header_selects_another_variant() {
    let (inner, calls) =
        origin(|_, request| reply(200, &[("vary", "a, b")], said(request.headers())));
    let service = layered(&inner);
    let requests: [Lines<'_>; 10] = [
        &[],
        &[("a", "")],
        &[("b", "")],
        &[("a", "1")],
        &[("a", "1"), ("a", "2")],
        &[("a", "2"), ("a", "1")],
        &[("a", "1, 2")],
        &[("a", "1"), ("b", "2")],
        &[("a", "2"), ("b", "1")],
        &[("a", "\u{e4}")],
    ];
    for lines in requests.into_iter().chain(requests) {
        let expected = said(get_with(lines).headers());
        assert_eq!(ask(&service, get_with(lines)).await.text(), expected);
    }
    // Another header does not matter.
    assert_eq!(ask(&service, get_with(&[("c", "3"), ("a", "1")])).await.text(), "a=1");
    assert_eq!(calls.count(), requests.len());
}

#[tokio::test(start_paused = true)]
async fn encodings_in_another_order_share() {
    let (inner, calls) = origin(|_, request| {
        let accepted = line(request.headers(), "accept-encoding").to_owned();
        reply(200, &[("vary", "accept-encoding")], accepted)
    });
    let service = layered(&inner);
    for (accepted, expected, count) in [
        ("gzip, br", "gzip, br", 1),
        ("br,gzip", "gzip, br", 1),
        ("BR , GZIP,,", "gzip, br", 1),
        ("gzip", "gzip", 2),
        ("gzip;q=0.5, br", "gzip;q=0.5, br", 3),
        ("br, gzip; q=0.5", "gzip;q=0.5, br", 3),
        ("br", "br", 4),
        ("", "", 5),
        ("gzip;q=0", "gzip;q=0", 6),
        ("*", "*", 7),
        ("identity", "identity", 8),
    ] {
        let answer = ask(&service, get_with(&[("accept-encoding", accepted)])).await;
        assert_eq!((answer.text(), calls.count()), (expected, count));
    }
}

/// The refresh of a marker took the request from its caller, which needed it for its variant.
#[tokio::test(start_paused = true)]
async fn an_early_refresh_keeps_the_marker() {
    let (inner, calls) = by_language();
    let early = EarlyRefresh::Within(1_000_000 * SECOND);
    let service = layer_of(builder().early_refresh(early)).layer(inner);
    for at in 0..50 {
        let answer = ask(&service, in_language(["en", "de"][at % 2])).await;
        assert_eq!(answer.status, StatusCode::OK);
        assert_language(&answer, ["en", "de"][at % 2]);
        sleep(3 * SECOND).await;
    }
    assert!(calls.count() <= 52, "{}", calls.count());
}

/// Any number of values of a header made as many entries.
#[tokio::test(start_paused = true)]
async fn a_header_in_its_normal_form_makes_as_many_variants_as_there_are_forms() {
    let (inner, calls) = origin(|call, request| {
        let agent =
            request.headers().get("user-agent").map_or("none", |agent| agent.to_str().unwrap());
        let control = if request.uri() == "/own" { "private" } else { "max-age=60" };
        let headers = [("vary", "user-agent"), ("cache-control", control), ("x-agent", agent)];
        reply(200, &headers, call.to_string())
    });
    let layer = layer().normalize("User-Agent", |value| match value {
        "robot" => None,
        "broken" => Some("a\nb".to_owned()),
        value if value.contains("Mobile") => Some("mobile".to_owned()),
        _ => Some("desktop".to_owned()),
    });
    let service = layer.layer(inner);
    let mut agents: Vec<_> = (0..100).map(|at| format!("Mozilla/{at}")).collect();
    agents.extend((0..100).map(|at| format!("Mobile/{at}")));
    for agent in &agents {
        let answer = ask(&service, get_with(&[("user-agent", agent)])).await;
        let form = if agent.starts_with("Mobile") { "mobile" } else { "desktop" };
        assert_eq!(answer.headers["x-agent"], form);
    }
    // All lines are one value, and any bytes are one. What is removed is as without the header.
    let [line, mobile] = [("user-agent", "a"), ("user-agent", "Mobile")];
    assert_eq!(ask(&service, get_with(&[line, mobile])).await.headers["x-agent"], "mobile");
    let mut request = get("/");
    request.headers_mut().insert("user-agent", "Mobile \u{e4}".parse().unwrap());
    assert_eq!(ask(&service, request).await.headers["x-agent"], "mobile");
    assert_eq!(calls.count(), 2);
    for lines in [&[("user-agent", "robot")][..], &[("user-agent", "broken")], &[]] {
        assert_eq!(ask(&service, get_with(lines)).await.headers["x-agent"], "none");
    }
    assert_eq!(calls.count(), 3);
    // A request that passes has its own.
    let passes = [
        request_of("POST", "/", "Mobile/1"),
        get_with(&[("user-agent", "Mobile/1"), ("authorization", "a")]),
    ];
    for request in passes {
        assert_eq!(ask(&service, request).await.headers["x-agent"], "Mobile/1");
    }
    for agent in ["mobile", "Mobile/1"] {
        let answer = ask(&service, request_of("GET", "/own", "Mobile/1")).await;
        assert_eq!(answer.headers["x-agent"], agent);
    }
}

fn request_of(method: &str, path: &str, agent: &str) -> Request<Body> {
    request(method, path, &[("user-agent", agent)])
}

/// The key of a request is that of its normal form, also for a write.
#[tokio::test(start_paused = true)]
async fn a_normal_form_counts_for_each_key() {
    let (inner, calls) = numbered();
    let layer = layer().normalize("host", |host| Some(host.trim_start_matches("www.").to_owned()));
    let parts = |host: &str| request("GET", "/", &[("host", host)]).into_parts().0;
    assert_eq!(layer.key(&parts("www.shop")), layer.key(&parts("shop")));
    let service = layer.layer(inner);
    for (method, host, expected) in [
        ("GET", "shop", "1"),
        ("GET", "www.shop", "1"),
        ("POST", "www.shop", "2"),
        ("GET", "shop", "3"),
    ] {
        let answer = ask(&service, request(method, "/", &[("host", host)])).await;
        assert_eq!(answer.text(), expected, "{method} {host}");
    }
    assert_eq!(calls.count(), 3);
}
