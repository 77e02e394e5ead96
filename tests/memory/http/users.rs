//! What tells users apart, and what does not. `scenarios` has the pairs of users.

use super::prelude::*;

const USERS: [&str; 2] = ["alice", "bob"];

/// Returns all that the headers say about the user.
pub(super) fn said(headers: &HeaderMap) -> String {
    let lines = headers.iter().map(|(name, value)| (name.as_str(), value.as_bytes()));
    let lines: Vec<_> =
        lines.map(|(name, value)| format!("{name}={}", value.escape_ascii())).collect();
    lines.join(";")
}

/// Returns a service that answers with all the headers of the request.
fn by_headers(layer: BellwetherLayer<Http>) -> (Layered, Calls) {
    let (inner, calls) = origin(|_, request| reply(200, &[], said(request.headers())));
    (layer.layer(inner), calls)
}

/// Sends the requests of two users one after the other, then at once. Each gets its own answer.
async fn each_gets_its_own(
    service: &Layered,
    request: impl Fn(&'static str) -> Request<Body>,
    expected: impl Fn(&Request<Body>) -> String,
    what: &str,
) {
    for user in USERS.into_iter().chain(USERS) {
        let sent = request(user);
        let expected = expected(&sent);
        assert_eq!(ask(service, sent).await.text(), expected, "{what}");
    }
    let sent: Vec<_> = (0..20).map(|at| request(USERS[at % 2])).collect();
    let expected: Vec<_> = sent.iter().map(expected).collect();
    let answers = ask_all(std::slice::from_ref(service), sent).await;
    for (answer, expected) in answers.iter().zip(expected) {
        assert_eq!(answer.text(), expected, "{what}");
    }
}

#[tokio::test(start_paused = true)]
async fn headers_of_ordinary_browsers_and_proxies_share() {
    let browser = [
        ("accept", "text/html,application/xhtml+xml"),
        ("accept-encoding", "gzip, deflate, br, zstd"),
        ("accept-language", "en-GB,en;q=0.5"),
        ("cache-control", "max-age=0"),
        ("connection", "keep-alive"),
        ("dnt", "1"),
        ("priority", "u=0, i"),
        ("referer", "http://shop.example/"),
        ("sec-ch-ua", "\"Chromium\";v=\"140\""),
        ("sec-ch-ua-mobile", "?0"),
        ("sec-ch-ua-platform", "\"Linux\""),
        ("sec-fetch-dest", "document"),
        ("sec-fetch-mode", "navigate"),
        ("sec-fetch-site", "none"),
        ("sec-fetch-user", "?1"),
        ("sec-gpc", "1"),
        ("upgrade-insecure-requests", "1"),
        ("user-agent", "Mozilla/5.0"),
    ];
    let proxy = [
        ("cdn-loop", "cloudflare"),
        ("cf-connecting-ip", "192.0.2.1"),
        ("forwarded", "for=192.0.2.1"),
        ("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
        ("via", "1.1 proxy"),
        ("x-amzn-trace-id", "Root=1-67891233-abcdef012345678912345678"),
        ("x-envoy-attempt-count", "1"),
        ("x-forwarded-for", "192.0.2.1"),
        ("x-forwarded-proto", "https"),
        ("x-original-user-agent", "Mozilla/5.0"),
        ("x-real-ip", "192.0.2.1"),
        ("x-request-id", "c0ffee"),
    ];
    let (service, calls) = by_headers(layer());
    ask(&service, get_with(&browser)).await;
    ask(&service, get_with(&proxy)).await;
    ask(&service, get("/")).await;
    assert_eq!(calls.count(), 1);
}

#[tokio::test(start_paused = true)]
async fn an_ignored_cookie_selects_if_the_answer_says_so() {
    let (inner, calls) =
        origin(|_, request| reply(200, &[("vary", "cookie")], said(request.headers())));
    let service = layer().ignore_cookies(["theme"]).layer(inner);
    let request = |user: &'static str| {
        let theme = if user == "alice" { "theme=dark" } else { "theme=light" };
        get_with(&[("cookie", theme)])
    };
    each_gets_its_own(&service, request, |request| said(request.headers()), "a theme").await;
    assert_eq!(calls.count(), 2);
}

#[tokio::test(start_paused = true)]
async fn all_lines_of_a_header_are_in_the_key() {
    let (service, calls) = by_headers(layer().vary_by_header("x-tenant"));
    let requests: [&[(&str, &str)]; 6] = [
        &[],
        &[("x-tenant", "")],
        &[("x-tenant", "a")],
        &[("x-tenant", "a"), ("x-tenant", "b")],
        &[("x-tenant", "b"), ("x-tenant", "a")],
        &[("x-tenant", "a1:b")],
    ];
    for _ in 0..2 {
        for headers in requests {
            let expected = said(get_with(headers).headers());
            assert_eq!(ask(&service, get_with(headers)).await.text(), expected);
        }
    }
    assert_eq!(calls.count(), requests.len());
    // Two values that are not text could look the same in a key.
    let request = || get_with(&[("x-tenant", "\u{e4}")]);
    for call in 1..3 {
        ask(&service, request()).await;
        assert_eq!(calls.count(), requests.len() + call);
    }
}

/// Without variants, the parts are in the key itself.
#[test]
fn the_key_has_only_a_digest_of_a_secret() {
    let layer = layer().vary_by_header("x-api-key").vary_by_header("accept-language");
    let request = get_with(&[("x-api-key", "s3cret"), ("accept-language", "en")]);
    let parts = request.into_parts().0;
    let key = layer.key(&parts).unwrap();
    assert!(!key.as_str().contains("s3cret") && !key.as_str().contains("2:en"), "{key}");
    let key = layer.policy(Policy::default().coalesce_only()).key(&parts).unwrap();
    assert!(!key.as_str().contains("s3cret") && key.as_str().contains("2:en"), "{key}");
}

#[tokio::test(start_paused = true)]
async fn a_header_that_is_ignored_does_not_matter() {
    let (service, calls) = by_headers(layer().ignore_headers(["X-User-Timezone", "cookie"]));
    for zone in ["Europe/Berlin", "Asia/Tokyo"] {
        ask(&service, get_with(&[("x-user-timezone", zone)])).await;
    }
    assert_eq!(calls.count(), 1);
    // Some headers cannot be ignored, and neither can a second one that looks like a credential.
    for headers in [[("cookie", "a"), ("x", "1")], [("x-user-timezone", "a"), ("x-user", "1")]] {
        let expected = said(get_with(&headers).headers());
        assert_eq!(ask(&service, get_with(&headers)).await.text(), expected);
    }
}

/// A `DELETE` by an override was answered from the cache, and lost.
#[tokio::test(start_paused = true)]
async fn a_request_that_overrides_its_method_or_path_reaches_the_service() {
    for (name, value) in [
        ("X-HTTP-Method-Override", "DELETE"),
        ("x-method-override", "DELETE"),
        ("x-http-method", "PUT"),
        ("x-original-url", "/admin"),
        ("x-rewrite-url", "/admin"),
        ("x-method", "DELETE"),
        ("x-original-uri", "/admin"),
        ("x-forwarded-uri", "/admin"),
        ("x-envoy-original-path", "/admin"),
    ] {
        let (service, calls) =
            by_headers(layer().vary_by_header(name).ignore_headers([name.to_owned()]));
        ask(&service, get("/")).await;
        for call in 2..4 {
            let request = get_with(&[(name, value)]);
            let expected = said(request.headers());
            assert_eq!(ask(&service, request).await.text(), expected);
            assert_eq!(calls.count(), call, "{name}");
        }
        assert_eq!(ask(&service, get("/")).await.text(), "");
        assert_eq!(calls.count(), 3, "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn only_ignored_cookies_take_part() {
    let layer = layer().ignore_cookies(["_ga", "_ga_*", "theme"]);
    let (service, calls) = by_headers(layer);
    for cookies in [
        "_ga=1; _ga_X=2",
        "theme=dark",
        "theme=light; _ga=3",
        "_ga_ABC=x=y",
        " theme = \u{e4};;",
        "_ga=a.b-c_d~e:f/g@h!i*j+k=l",
        "_ga=",
    ] {
        ask(&service, get_with(&[("cookie", cookies)])).await;
    }
    ask(&service, get("/")).await;
    assert_eq!(calls.count(), 1);
    let request = |user: &'static str| {
        let session = if user == "alice" { "_ga=1; session=a" } else { "_ga=1; session=b" };
        get_with(&[("cookie", session)])
    };
    let expected = |request: &Request<Body>| said(request.headers());
    each_gets_its_own(&service, request, expected, "a session").await;
    assert_eq!(calls.count(), 25);
    // The session may be in a line of its own.
    let request = || get_with(&[("cookie", "_ga=1"), ("cookie", "session=a")]);
    assert_eq!(ask(&service, request()).await.text(), said(request().headers()));
    // A service may read another cookie in each of these.
    for (at, cookie) in [
        "_GA=1",
        "_gat=1",
        "theme",
        "=1",
        "_ga=1;session=1",
        "_ga=\"1; session=1\"",
        "_ga=1, session=1",
        "_ga=1,session=1",
        "_ga=1 session=1",
        "_ga=1\tsession=1",
        "_ga=1&session=1",
        "_ga=1#session=1",
        "_ga=1?session=1",
        "_ga=1%3Bsession=1",
        "_ga=1%2c%20session=1",
        "_ga=1%0d%0asession=1",
        "_ga=1%00session=1",
        "_ga=1%253Bsession=1",
        "_ga=\"1\\073 session=1\"",
        "_ga=\"1\\073session=1\"",
        "_ga=a\"b",
        "_ga=a\\b",
        "_ga_%3Bsession=1",
        "_ga_,session=1",
        "_ga session=1",
        "_ga_x session=1",
        "_ga=1%",
        "_ga=1%4",
        "_ga=1%zz",
    ]
    .into_iter()
    .enumerate()
    {
        let request = get_with(&[("cookie", cookie)]);
        let expected = said(request.headers());
        assert_eq!(ask(&service, request).await.text(), expected);
        assert_eq!(calls.count(), 27 + at, "{cookie}");
    }
}
