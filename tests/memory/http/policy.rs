//! What the two policies share.

use std::time::SystemTime;

use bellwether::layer::Query;
use http::{HeaderName, HeaderValue, Version};

use super::prelude::*;

type Headers<'a> = &'a [(&'static str, &'static str)];

fn policies() -> [(&'static str, Policy); 2] {
    [("careful", Policy::default()), ("rfc9111", Policy::rfc9111())]
}

/// Returns headers in which a number behind an `@` stands for a date, in seconds from now on.
fn dated(headers: Headers<'_>) -> HeaderMap {
    let mut map = HeaderMap::new();
    for (name, value) in headers {
        let value = match value.strip_prefix('@').map(|offset| offset.parse::<f64>().unwrap()) {
            Some(offset) => {
                let length = Duration::from_secs_f64(offset.abs());
                let now = SystemTime::now();
                let date = if offset < 0.0 { now - length } else { now + length };
                httpdate::fmt_http_date(date)
            }
            None => (*value).to_owned(),
        };
        let value = HeaderValue::from_bytes(value.as_bytes()).unwrap();
        map.append(HeaderName::from_static(name), value);
    }
    map
}

/// Returns how many of two requests reached the origin.
async fn calls(status: u16, answer: Headers<'_>, request: Headers<'_>, policy: Policy) -> usize {
    let answer = dated(answer);
    let (inner, calls) = origin(move |call, _| {
        let mut response = reply(status, &[], call.to_string());
        *response.headers_mut() = answer.clone();
        response
    });
    // A failure of the service is no reason not to ask again.
    let cache = builder().after_failure(|_| Some(AfterFailure::LoadAgain));
    let service = BellwetherLayer::http(cache.build().unwrap()).policy(policy).layer(inner);
    for _ in 0..2 {
        ask(&service, get_with(request)).await;
    }
    calls.count()
}

/// Asserts for both policies whether a `200` is shared.
async fn assert_shared(table: &[(Headers<'_>, [bool; 2])]) {
    for (headers, expected) in table {
        for ((name, policy), is_shared) in policies().into_iter().zip(expected) {
            let expected = if *is_shared { 1 } else { 2 };
            assert_eq!(calls(200, headers, &[], policy).await, expected, "{name} {headers:?}");
        }
    }
}

/// RFC 9111, sections 4.2.1, 4.2.2, 4.2.3, 5.2.2 and 5.3.
#[tokio::test(start_paused = true)]
async fn the_lifetime_of_an_answer_is_that_of_its_policy() {
    let fresh = ("cache-control", "max-age=60");
    assert_shared(&[
        (&[fresh], [true, true]),
        (&[fresh, ("age", "60")], [false, false]),
        (&[fresh, ("age", "60, 0")], [false, false]),
        (&[fresh, ("age", "60"), ("age", "0")], [false, false]),
        (&[fresh, ("age", "0, 60")], [true, true]),
        (&[fresh, ("age", "0"), ("age", "60")], [true, true]),
        (&[fresh, ("age", "x")], [true, true]),
        (&[fresh, ("age", "-60")], [true, true]),
        (&[fresh, ("age", "60.0")], [true, true]),
        (&[fresh, ("age", "60s")], [true, true]),
        (&[fresh, ("age", "60;x=y")], [true, true]),
        (&[fresh, ("age", "\"60\"")], [true, true]),
        (&[fresh, ("age", "+60")], [true, true]),
        (&[fresh, ("age", ", 60")], [true, true]),
        (&[fresh, ("age", "x, 60")], [true, true]),
        (&[fresh, ("age", "x"), ("age", "60")], [true, true]),
        (&[fresh, ("age", "\u{e4}")], [true, true]),
        (&[fresh, ("age", " 60 , \u{e4}"), ("age", "x")], [false, false]),
        (&[fresh, ("age", "99999999999999999999")], [false, false]),
        (&[fresh, ("age", "7"), ("date", "@-90")], [false, false]),
        (&[fresh, ("age", "7"), ("date", "@-90"), ("date", "@-90")], [true, true]),
        (&[fresh, ("date", "x"), ("age", "x")], [true, true]),
        (&[fresh, ("age", "x"), ("date", "@-90")], [false, false]),
        (&[fresh, ("date", "@-90")], [false, false]),
        (&[fresh, ("date", "@90")], [true, true]),
        (&[("expires", "@60"), ("date", "@0")], [true, true]),
        (&[("expires", "@-60"), ("date", "@0")], [false, false]),
        (&[("expires", "@60"), ("date", "@60")], [false, false]),
        (&[("expires", "@60")], [false, true]),
        (&[("expires", "@60"), ("date", "x")], [false, true]),
        (&[("expires", "@-60"), ("date", "x")], [false, false]),
        (&[("expires", "@60"), ("date", "@0"), ("date", "@0")], [false, true]),
        (&[("expires", "0"), ("date", "@0")], [false, false]),
        (&[("expires", "@60"), ("expires", "@60"), ("date", "@0")], [false, false]),
        (&[("expires", "@60"), ("date", "@-5"), ("age", "60")], [true, true]),
        (&[("expires", "@60"), ("date", "@-5"), ("age", "70")], [false, false]),
        (&[("cdn-cache-control", "public"), ("expires", "@60"), ("date", "@0")], [false, false]),
        (&[fresh, ("expires", "0")], [true, true]),
        (&[("cache-control", "max-age=0, s-maxage=60")], [false, true]),
        (&[("cache-control", "max-age=60, s-maxage=0")], [false, false]),
        (&[("last-modified", "@-6000"), ("date", "@0")], [false, true]),
        (&[("last-modified", "@-6000"), ("date", "@0"), ("age", "590")], [false, true]),
        (&[("last-modified", "@-6000"), ("date", "@0"), ("age", "610")], [false, false]),
        (&[("last-modified", "@-6000"), ("date", "@6000"), ("age", "1190")], [false, true]),
        (&[("last-modified", "@-6000"), ("age", "590")], [false, true]),
        (&[("last-modified", "@-99999999"), ("age", "86390")], [false, true]),
        (&[("last-modified", "@-99999999"), ("age", "86400")], [false, false]),
        (&[("last-modified", "yesterday")], [false, false]),
        (&[("last-modified", "@-6000"), ("cache-control", "max-age=0")], [false, false]),
        (&[("last-modified", "@60"), ("date", "@0")], [false, false]),
        (&[("cache-control", "public")], [false, false]),
        (&[("cache-control", "max-age=60, max-age=50")], [false, true]),
        (&[("cache-control", "max-age=60, max-age=0")], [false, false]),
        (&[("cache-control", "max-age=60, max-age=2"), ("age", "30")], [false, false]),
        (&[("cache-control", "max-age=60, max-age=60")], [true, true]),
        (
            &[("cache-control", "x, MAX-AGE=60,,"), ("cache-control", " ,\tx=\"a,no-store\\\"\"")],
            [true; 2],
        ),
        (&[("cache-control", "max-age=60"), ("cache-control", "No-Store")], [false, false]),
        (&[("cache-control", "max-age")], [false, false]),
        (&[("cache-control", "max-age=")], [false, false]),
        (&[("cache-control", "max-age=-60")], [false, false]),
        (&[("cache-control", "max-age=60.5")], [false, false]),
        (&[("cache-control", "max-age = 60")], [false, false]),
        (&[("cache-control", "max-age= 60")], [false, false]),
        (&[("cache-control", "max-age='60'")], [false, false]),
        (&[("cache-control", "max-age=60x")], [false, false]),
        (&[("cache-control", "max-age=60; x")], [false, false]),
        (&[("cache-control", "max-age=60 no-store")], [false, false]),
        (&[("cache-control", "max-age=60, max-age=x, max-age=60")], [false, false]),
        (&[("cache-control", "max-age=60, x y")], [false, false]),
        (&[("cache-control", "max-age=60, no store")], [false, false]),
        (&[("cache-control", "max-age=60, no\tstore")], [false, false]),
        (&[("cache-control", "max-age=60, pri vate")], [false, false]),
        (&[("cache-control", "max-age=60, no/store")], [false, false]),
        (&[("cache-control", "no:store"), ("expires", "@60"), ("date", "@0")], [false, false]),
        (&[("cache-control", "no store"), ("last-modified", "@-6000")], [false, false]),
        (&[("cache-control", "public max-age=60")], [false, false]),
        (&[("cache-control", "x; max-age=60")], [false, false]),
        (&[("cache-control", "=1, max-age=60")], [false, false]),
        (&[("cache-control", "\"a, max-age=1\" b, max-age=60")], [false, false]),
        (&[("cache-control", "max-age=60, x=\"a\\")], [false, false]),
        (&[("cache-control", "max-age=60, no-st\u{f6}re")], [false, false]),
        (&[("cache-control", "max-age=60, 'private'")], [false, false]),
        (&[("cache-control", "max-age=60, \"no-store\"")], [false, false]),
        (&[fresh, ("cdn-cache-control", "'private'")], [false, false]),
        (&[("cache-control", "max-age=60, x=\"")], [false, false]),
        (&[fresh, ("pragma", "no-cache")], [false, true]),
        (&[fresh, ("pragma", "x=no-cache")], [false, true]),
        (&[fresh, ("pragma", "public;")], [true, true]),
    ])
    .await;
}

/// RFC 9111, sections 5.2.2.4, 5.2.2.5, 5.2.2.7 and 3. `rules` has more that is careful alone.
#[tokio::test(start_paused = true)]
async fn an_answer_for_one_caller_is_never_shared() {
    let fresh = ("cache-control", "max-age=60");
    let for_one_page = ("access-control-allow-origin", "https://a.example");
    let for_all_pages = ("access-control-allow-origin", "*");
    assert_shared(&[
        (&[("cache-control", "max-age=60, no-store")], [false, false]),
        (&[("cache-control", "max-age=60, private")], [false, false]),
        (&[("cache-control", "max-age=60, no-cache")], [false, false]),
        (&[("cache-control", "max-age=60, private=\"x-user\"")], [false, true]),
        (&[("cache-control", "max-age=60, private=x-user")], [false, true]),
        (&[("cache-control", "max-age=60, private='x-user'")], [false, false]),
        (&[("cache-control", "max-age=60, private=\"'x-user'\"")], [false, false]),
        (&[("cache-control", "max-age=60, private=\"*\"")], [false, false]),
        (&[("cache-control", "max-age=60, private=*")], [false, false]),
        (&[("cache-control", "max-age=60, no-cache=\"*, x\"")], [false, false]),
        (&[("cache-control", "max-age=60, no-cache='set-cookie'")], [false, false]),
        (&[("cdn-cache-control", "max-age=60, private=\"*\"")], [false, false]),
        (&[("cache-control", "max-age=60, private=\"x-user\""), ("x-user", "1")], [false, false]),
        (&[("cache-control", "max-age=60, no-cache=\"x-user\""), ("x-user", "1")], [false, false]),
        (
            &[("cache-control", "max-age=60, private=\"X-User, y\""), ("x-user", "1")],
            [false, false],
        ),
        (&[("cache-control", "max-age=60, private=x-user"), ("x-user", "1")], [false, false]),
        (
            &[("cache-control", "private=y, private=x-user, max-age=60"), ("x-user", "1")],
            [false; 2],
        ),
        (&[("cache-control", "max-age=60, private=\"\"")], [false, false]),
        (&[("cache-control", "max-age=60, private=\"y, a b\"")], [false, false]),
        (&[("cache-control", "max-age=60, no-cache=\"y\", no-cache")], [false, false]),
        (&[("cache-control", "max-age=60, private=\"set-cookie, y\"")], [false, true]),
        (&[("cache-control", "max-age=60, no-cache=y")], [false, true]),
        (&[fresh, ("set-cookie", "session=1")], [false, false]),
        (&[fresh, ("set-cookie2", "session=1")], [false, false]),
        (&[fresh, ("authentication-info", "nextnonce=1")], [false, false]),
        (&[fresh, ("clear-site-data", "\"cookies\"")], [false, false]),
        (&[fresh, for_one_page], [false, false]),
        (&[fresh, for_one_page, ("vary", "origin")], [true, true]),
        (&[fresh, for_all_pages], [true, true]),
        (&[fresh, for_all_pages, ("access-control-allow-credentials", "true")], [false, false]),
        (&[fresh, ("content-encoding", "gzip")], [false, false]),
        (&[fresh, ("content-encoding", "gzip"), ("vary", "accept")], [false, false]),
        (&[fresh, ("content-encoding", "gzip"), ("vary", "Accept-Encoding")], [true, true]),
        (&[fresh, ("vary", "*")], [false, false]),
        (&[fresh, ("trailer", "x")], [false, false]),
    ])
    .await;
}

/// `max-age=60;private` was a lifetime with a parameter, and the response to one user went to
/// another.
#[tokio::test(start_paused = true)]
async fn a_restriction_behind_a_wrong_separator_restricts() {
    for separator in [";", "; ", " ", "\t", " ; ", "/", ";;", "\"\"", ";\"x\" ", ";x=1;"] {
        for before in ["max-age=60", "max-age=60, x=\"1\"", "max-age=60, public"] {
            for restriction in ["private", "no-store", "no-cache"] {
                let line = format!("{before}{separator}{restriction}").leak();
                assert_shared(&[(&[("cache-control", line)], [false, false])]).await;
            }
        }
    }
}

/// `max-age=60, 'private'` was shared.
#[tokio::test(start_paused = true)]
async fn a_restriction_in_wrong_quotes_restricts() {
    for (text, shared) in [
        ("'private'", [false, false]),
        ("\"private\"", [false, false]),
        ("\"Private, max-age=1\"", [false, false]),
        ("'no-store'", [false, false]),
        ("\"no-store\"", [false, false]),
        ("`no-cache`", [false, false]),
        ("no_store", [false, false]),
        ("nostore", [false, false]),
        ("NoCache", [false, false]),
        ("private'", [false, false]),
        ("*private*", [false, false]),
        ("{private}", [false, false]),
        ("(no-store)", [false, false]),
        ("\\private", [false, false]),
        ("'private'=\"x\"", [false, false]),
        ("x=1 'private'", [false, false]),
        ("x=\"private\"", [true, true]),
        ("x=private", [true, true]),
        ("x-private", [true, true]),
        ("privately", [true, true]),
        ("\"private-ish\"", [false, false]),
        ("no-transform", [true, true]),
    ] {
        for line in [format!("max-age=60, {text}"), format!("{text}, max-age=60")] {
            assert_shared(&[(&[("cache-control", line.leak())], shared)]).await;
        }
    }
    // It is a directive and its end.
    assert_shared(&[(&[("cache-control", "'max-age=60, private', max-age=60")], [false; 2])]).await;
}

/// RFC 9213, section 2.2.
#[tokio::test(start_paused = true)]
async fn a_targeted_field_takes_the_place_of_cache_control() {
    let fresh = ("cache-control", "max-age=60");
    let fresh_here = ("cdn-cache-control", "max-age=60");
    let old = ("age", "30");
    let understood = ("cache-control", "must-understand, no-store, max-age=60");
    assert_shared(&[
        (&[fresh_here], [true, true]),
        (&[fresh_here, ("cache-control", "no-store")], [true, true]),
        (&[fresh_here, ("cache-control", "private")], [true, true]),
        (&[fresh_here, ("expires", "0")], [true, true]),
        (&[fresh_here, ("age", "90")], [false, false]),
        (&[fresh_here, ("set-cookie", "a=1")], [false, false]),
        (&[fresh, ("cdn-cache-control", "max-age=2;a, foo"), old], [false, false]),
        (
            &[fresh, ("cdn-cache-control", "max-age=2, a"), ("cdn-cache-control", "b"), old],
            [false; 2],
        ),
        (&[fresh, ("cdn-cache-control", "max-age=\"60\"")], [false, false]),
        (&[fresh, ("cdn-cache-control", "max-age=-60")], [false, false]),
        (&[fresh, ("cdn-cache-control", "max-age=60, private=\"x-user\"")], [false, true]),
        (&[("cdn-cache-control", "max-age=60, private=\"x-user\""), ("x-user", "1")], [false; 2]),
        (&[fresh, ("cdn-cache-control", "max-age=60, no-cache")], [false, false]),
        // What says nothing that is known leaves `Cache-Control`.
        (&[fresh, ("cdn-cache-control", "no-store=?0")], [true, true]),
        (&[fresh, ("cdn-cache-control", "")], [true, true]),
        (&[fresh, ("cdn-cache-control", "foo")], [true, true]),
        (&[fresh, ("surrogate-control", "max-age=3"), old], [true, true]),
        // A number of seconds with more in which it may be stale, and the name of one surrogate.
        (&[fresh, ("surrogate-control", "max-age=3600+600")], [true, true]),
        (&[fresh, ("surrogate-control", "max-age=3600+600;cdn, content=\"ESI/1.0\"")], [true; 2]),
        (&[fresh, ("surrogate-control", "content=\"ESI/1.0 X/2\", max-age=60;a; b")], [false; 2]),
        (&[fresh, ("surrogate-control", "max-age=3600; cdn, max-age=60")], [true, true]),
        (&[fresh, ("surrogate-control", "max-age=0+600")], [false, false]),
        (&[fresh, ("surrogate-control", "max-age=0;cdn")], [false, false]),
        (&[fresh, ("surrogate-control", "max-age=3600+x")], [false, false]),
        (&[fresh, ("surrogate-control", "max-age=+600")], [false, false]),
        (&[fresh, ("surrogate-control", "max-age=600, no store")], [false, false]),
        (&[("cache-control", "max-age=60+60")], [false, false]),
        (&[fresh, ("surrogate-control", "max-age=3, private")], [false, false]),
        (&[fresh, ("surrogate-control", "no-store;other")], [false, false]),
        (&[fresh, ("surrogate-control", "x=\"")], [false, false]),
        (&[("cdn-cache-control", "no-store"), fresh], [false, false]),
        (&[("cdn-cache-control", "max-age=0"), fresh], [false, false]),
        (&[("cdn-cache-control", "max-age 60"), ("cache-control", "no-store")], [false, false]),
        (&[("surrogate-control", "max-age=60"), ("cache-control", "no-store")], [false, false]),
        (&[("surrogate-control", "no-store"), fresh], [false, false]),
        (&[("surrogate-control", "max-age=0"), fresh], [false, false]),
        (&[("surrogate-control", "private"), understood], [false, false]),
        // One that cannot be parsed forbids to share.
        (&[fresh, ("cdn-cache-control", "Max-Age=60")], [false, false]),
        (&[fresh, ("cdn-cache-control", "max-age = 60")], [false, false]),
        (&[fresh, ("cdn-cache-control", "No-Store")], [false, false]),
        (&[fresh, ("cdn-cache-control", "private, max-age = 0")], [false, false]),
        (&[fresh, ("cdn-cache-control", "no-store,")], [false, false]),
        (&[fresh, ("cdn-cache-control", "no-store; private")], [false, false]),
        (&[fresh, ("cdn-cache-control", "Private")], [false, false]),
    ])
    .await;
}

/// RFC 9110, section 15.1, and RFC 9111, sections 3 and 5.2.2.3.
#[tokio::test(start_paused = true)]
async fn statuses_are_shared_by_policy() {
    let fresh = [("cache-control", "max-age=60")];
    let changed = [("last-modified", "@-6000")];
    let public = [("last-modified", "@-6000"), ("cache-control", "public")];
    let understood = [("cache-control", "max-age=60, must-understand")];
    let no_store = [("cache-control", "max-age=60, no-store, must-understand")];
    let by_heuristic = [200, 203, 204, 300, 301, 308, 404, 405, 410, 414, 501];
    // All that have a meaning, and some beside them.
    let statuses = [200..210, 226..228, 300..310, 400..432, 451..453, 499..512];
    for status in statuses.into_iter().flatten().filter(|status| *status != 304) {
        let shared = |expected| if expected { 1 } else { 2 };
        let careful = calls(status, &fresh, &[], Policy::default()).await;
        assert_eq!(careful, shared(status == 200), "{status}");
        let is_heuristic = by_heuristic.contains(&status);
        let is_understood = is_heuristic || [302, 303, 307].contains(&status);
        for (headers, expected) in [
            (&fresh[..], status != 206),
            (&changed, is_heuristic),
            (&public, status != 206),
            (&understood, is_understood),
            (&no_store, is_understood),
        ] {
            let found = calls(status, headers, &[], Policy::rfc9111()).await;
            assert_eq!(found, shared(expected), "{status} {headers:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_status_may_have_a_lifetime_of_its_own() {
    for (_, policy) in policies() {
        for status in [301, 308, 404, 410] {
            let code = StatusCode::from_u16(status).unwrap();
            let policy = policy.clone().status_lifetime(code, 5 * SECOND);
            assert_eq!(calls(status, &[], &[], policy.clone()).await, 1, "{status}");
            let explicit = [("cache-control", "max-age=0")];
            assert_eq!(calls(status, &explicit, &[], policy.clone()).await, 2, "{status}");
            assert_eq!(calls(307, &[], &[], policy).await, 2);
        }
    }
}

/// A redirect that has the key of its request was served to the request that follows it: to the
/// other scheme, or from a query to its canonical form.
#[tokio::test(start_paused = true)]
async fn a_redirect_to_its_own_key_is_not_shared() {
    for (from, location, expected) in [
        ("/a", "https://shop.example/a", 2),
        ("/a", "https://shop.example/b", 1),
        ("/a?utm_id=1", "/a", 2),
        ("/a?utm_id=1", "//shop.example/a", 2),
        ("/a?c=1&b=2", "/a?b=2&c=1", 2),
        ("/a?c=1&b=2", "?b=2&c=1", 2),
        ("/a?c=1&b=2", "/a?b=2", 1),
        ("/a", "/b/../%61", 2),
        ("/a", "http://user%zz@shop.example/%61", 2),
        ("/a", "/../../b", 1),
        ("/a", "//shop.example?b=2", 1),
        ("/?b=2", "//shop.example?b=2", 2),
        // What is not read may lead anywhere.
        ("/a", "b", 2),
    ] {
        let (inner, calls) = origin(move |_, _| reply(301, &[("location", location)], ""));
        let day = 86_400 * SECOND;
        let policy = Policy::default().status_lifetime(StatusCode::MOVED_PERMANENTLY, day);
        let query = Query::default().sort().ignore(["utm_*"]);
        let service = silent_layer().policy(policy).query(query).layer(inner);
        for _ in 0..2 {
            ask(&service, request("GET", from, &[("host", "shop.example")])).await;
        }
        assert_eq!(calls.count(), expected, "{from} {location}");
    }
}

/// RFC 9111, section 3.5.
#[tokio::test(start_paused = true)]
async fn credentials_and_cookies_are_for_the_policy() {
    let authorized = [("authorization", "Basic YTpi")];
    for (request, answer, expected) in [
        (&authorized[..], "max-age=60", [2, 2]),
        (&authorized, "max-age=60, public", [2, 1]),
        (&authorized, "max-age=60, must-revalidate", [2, 1]),
        (&authorized, "s-maxage=60", [2, 1]),
        (&authorized, "max-age=60, proxy-revalidate", [2, 2]),
        (&[("cookie", "session=1")], "max-age=60", [2, 1]),
        (&[("x-api-key", "1")], "max-age=60", [2, 1]),
        (&[("proxy-authorization", "Basic YTpi")], "max-age=60, public", [2, 2]),
        (&[("x-http-method-override", "DELETE")], "max-age=60, public", [2, 2]),
        (&[("pragma", "no-cache")], "max-age=60", [2, 2]),
        (&[("pragma", "no-cache"), ("cache-control", "x")], "max-age=60", [2, 1]),
        (&[("cache-control", "no-store")], "max-age=60", [2, 2]),
    ] {
        for ((name, policy), expected) in policies().into_iter().zip(expected) {
            let found = calls(200, &[("cache-control", answer)], request, policy).await;
            assert_eq!(found, expected, "{name} {request:?} {answer}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn clients_of_both_versions_of_http_share() {
    let (inner, calls) = numbered();
    let service = layered(&inner);
    ask(&service, request("GET", "/a", &[("host", "shop.example")])).await;
    for scheme in ["http", "https"] {
        let mut second = get(&format!("{scheme}://shop.example/a"));
        *second.version_mut() = Version::HTTP_2;
        assert_eq!(ask(&service, second).await.text(), "1");
    }
    assert_eq!(calls.count(), 1);
}

/// The bars: none on a fresh entry, and one on a cold one.
#[tokio::test(start_paused = true)]
async fn a_reload_reaches_the_origin_unless_that_is_ignored() {
    let reloads: [Lines<'_>; 3] = [
        &[("cache-control", "no-cache")],
        &[("cache-control", "max-age=0, no-cache"), ("pragma", "no-cache")],
        &[("pragma", "no-cache")],
    ];
    for (_, policy) in policies() {
        for lines in reloads {
            for (ignores, calls_of_all) in [(true, 1), (false, 200)] {
                let (inner, calls) = with_headers(&[("cache-control", "max-age=60")]);
                let layer = silent_layer().policy(policy.clone());
                let service = if ignores { layer.ignore_reloads() } else { layer }.layer(inner);
                for _ in 0..2 {
                    let reload = |_| get_with(lines);
                    ask_all(std::slice::from_ref(&service), (0..100).map(reload)).await;
                }
                assert_eq!(calls.count(), calls_of_all, "{ignores} {lines:?}");
                // The client forbids to store its answer.
                ask(&service, get_with(&[("cache-control", "no-store")])).await;
                assert_eq!(calls.count(), calls_of_all + 1, "{ignores}");
            }
        }
    }
}

/// Returns an origin that answers with the name in the credentials, or with `all`.
fn named() -> (Inner, Calls) {
    origin(|_, request| {
        let name =
            request.headers().get("authorization").map_or("all", |user| user.to_str().unwrap());
        reply(200, &[("cache-control", "max-age=60")], name.to_owned())
    })
}

fn of(name: &str, path: &str) -> Request<Body> {
    request("GET", path, &[("authorization", name)])
}

/// An answer to a request with credentials sent a hundred callers without any to the origin, each
/// alone: the key counted as uncacheable in the whole fleet.
#[tokio::test(start_paused = true)]
async fn callers_without_credentials_share_an_answer_after_a_reserved_one() {
    let (inner, calls) = named();
    let services: [_; 2] = processes(&inner, |layer| layer.policy(Policy::rfc9111()));
    for (path, services) in [("/one", &services[..1]), ("/two", &services[..])] {
        let before = calls.count();
        let leader = asking(&services[0], of("ann", path));
        sleep(DELAY / 2).await;
        let begun = Instant::now();
        let answers = ask_all(services, (0..100).map(|_| get(path))).await;
        assert_eq!(begun.elapsed(), DELAY / 2 + DELAY);
        assert!(answers.iter().all(|answer| answer.text() == "all"));
        assert_eq!(leader.await.unwrap().text(), "ann");
        assert_eq!(calls.count() - before, 2);
        for service in services {
            assert_eq!(ask(service, get(path)).await.text(), "all");
        }
        assert_eq!(calls.count() - before, 2);
    }
}

/// Returns an origin that answers requests with credentials in this way, and others with a page.
fn refusing(
    status: u16,
    headers: impl AsRef<[(&'static str, &'static str)]> + Clone + Send + Sync + 'static,
    control: &'static str,
) -> (Inner, Calls) {
    origin(move |call, request| {
        if request.headers().contains_key("authorization") {
            return reply(status, headers.as_ref(), "own");
        }
        reply(200, &[("cache-control", control)], call.to_string())
    })
}

/// An answer that was `private` marked its URL for all callers: 500 waiters beside such a client
/// were 500 calls.
#[tokio::test(start_paused = true)]
async fn an_answer_to_a_request_with_credentials_decides_nothing_for_requests_without() {
    let answers: [(u16, Lines<'static>); 8] = [
        (200, &[("cache-control", "private, max-age=60")]),
        (200, &[("cache-control", "no-store")]),
        (200, &[("set-cookie", "a=b"), ("cache-control", "public, max-age=60")]),
        (200, &[("vary", "*"), ("cache-control", "public, max-age=60")]),
        (200, &[("content-type", "text/event-stream")]),
        (302, &[("location", "/login")]),
        (404, &[]),
        (410, &[]),
    ];
    for (status, headers) in answers {
        for count in [1, 2] {
            let (inner, calls) = refusing(status, headers, "max-age=1");
            let set = |layer: BellwetherLayer<Http>| layer.policy(Policy::rfc9111());
            let services: [_; 2] = processes(&inner, set);
            let services = &services[..count];
            for _ in 0..3 {
                let before = calls.count();
                let refused = asking(&services[0], of("ann", "/"));
                sleep(DELAY / 2).await;
                let waiters = ask_all(services, (0..500).map(|_| get("/"))).await;
                assert_eq!(different(&waiters), 1, "{status} {headers:?}");
                assert_eq!(refused.await.unwrap().text(), "own");
                assert_eq!(calls.count() - before, 2, "{status} {headers:?}");
                sleep(1100 * MS).await;
            }
        }
    }
}

/// Such an answer to a refresh ended the stale response for all callers.
#[tokio::test(start_paused = true)]
async fn an_answer_to_a_request_with_credentials_ends_no_stale_response() {
    for (status, control) in [(200, "private"), (200, "no-store"), (404, "private")] {
        let headers = [("cache-control", control)];
        let page = "max-age=1, stale-while-revalidate=60";
        let (inner, calls) = refusing(status, headers, page);
        let [service] = processes(&inner, |layer| layer.policy(Policy::rfc9111()));
        assert_eq!(ask(&service, get("/")).await.text(), "1");
        sleep(1100 * MS).await;
        // It begins the refresh, and is answered with the stale response.
        let begun = Instant::now();
        ask(&service, of("ann", "/")).await;
        sleep(2 * DELAY).await;
        assert_eq!(calls.count(), 2);
        for answer in crowd(&service, 50).await {
            assert_eq!(answer.text(), "1", "{status}");
        }
        sleep(2 * DELAY).await;
        assert_eq!(ask(&service, get("/")).await.text(), "3", "{status}");
        assert!(begun.elapsed() < SECOND);
        assert_eq!(calls.count(), 3);
    }
}

/// One answer of that kind sends no more callers with credentials alone than those of its time.
#[tokio::test(start_paused = true)]
async fn the_first_answer_for_all_users_ends_the_mark_of_credentials() {
    let (inner, calls) = origin(|call, _| {
        let control = if call == 1 { "private" } else { "public, max-age=60" };
        reply(200, &[("cache-control", control)], call.to_string())
    });
    let [service] = processes(&inner, |layer| layer.policy(Policy::rfc9111()));
    for call in ["1", "2", "3", "3"] {
        assert_eq!(ask(&service, of("ann", "/")).await.text(), call);
    }
    assert_eq!(calls.count(), 3);
}

#[tokio::test(start_paused = true)]
async fn callers_with_credentials_wait_for_one_reserved_answer_and_then_for_none() {
    let (inner, calls) = named();
    let service = silent_layer().policy(Policy::rfc9111()).layer(inner);
    for (round, rounds) in [(1, 2), (2, 1), (3, 1)] {
        let begun = Instant::now();
        let names: Vec<_> = (0..64).map(|number| format!("user {number}")).collect();
        let requests = names.iter().map(|name| of(name, "/"));
        let answers = ask_all(std::slice::from_ref(&service), requests).await;
        assert!(begun.elapsed() <= rounds * DELAY);
        for (answer, name) in answers.iter().zip(&names) {
            assert_eq!(answer.text(), name);
        }
        assert_eq!(calls.count(), round * 64);
    }
}
