use super::{Pair, User};

type Lines<'a> = &'a [(&'static str, &'static str)];

/// Headers of one user, by which services tell users apart.
const CREDENTIALS: [&str; 42] = [
    "authorization",
    "proxy-authorization",
    "x-api-key",
    "x-apikey",
    "x-auth-token",
    "x-authenticated-userid",
    "x-access-token",
    "x-amz-security-token",
    "x-session",
    "session-id",
    "x-client-secret",
    "signature",
    "x-hub-signature-256",
    "x-jwt",
    "cf-access-jwt-assertion",
    "x-goog-iap-jwt-assertion",
    "x-remote-user",
    "x-forwarded-user",
    "x-user-id",
    "x-forwarded-client-cert",
    "ssl-client-cert",
    "x-csrf",
    "x-xsrf",
    "x-amzn-oidc-identity",
    "x-assertion",
    "x-tenant",
    "x-tenant-id",
    "dpop",
    "x-ms-client-principal",
    "x-scope-orgid",
    "x-forwarded-email",
    "x-customer-id",
    "x-ssl-client-s-dn",
    "x-workspace-id",
    "x-team",
    "x-store-id",
    "x-realm",
    "x-uid",
    "x-member-id",
    "x-otp",
    "x-hmac",
    "cookie",
];

/// Headers that the answers of services vary by.
const SELECTING: [&str; 18] = [
    "accept",
    "accept-encoding",
    "accept-language",
    "accept-charset",
    "origin",
    "user-agent",
    "referer",
    "save-data",
    "sec-fetch-dest",
    "sec-ch-ua-mobile",
    "x-forwarded-host",
    "x-forwarded-proto",
    "x-requested-with",
    "x-country",
    "x-inertia",
    "hx-request",
    "te",
    "forwarded",
];

/// Headers of answers that are for one user.
const PERSONAL: [Lines<'_>; 18] = [
    &[("cache-control", "private")],
    &[("cache-control", "max-age=60, Private")],
    &[("cache-control", "max-age=60"), ("cache-control", "private")],
    &[("cache-control", "private=\"x-identity\", max-age=60")],
    &[("cache-control", "no-store")],
    &[("cache-control", "max-age=60, NO-STORE")],
    &[("cache-control", "no-cache, max-age=60")],
    &[("cache-control", "public, max-age=60"), ("cdn-cache-control", "private")],
    &[("cache-control", "public, max-age=60"), ("surrogate-control", "no-store")],
    &[("cache-control", "public, max-age=60"), ("set-cookie", "a=b")],
    &[("cache-control", "public, max-age=60"), ("set-cookie2", "a=b")],
    &[("cache-control", "public, max-age=60"), ("authentication-info", "a=b")],
    &[("cache-control", "public, max-age=60"), ("clear-site-data", "\"*\"")],
    &[("access-control-allow-origin", "https://shop.example")],
    &[("access-control-allow-origin", "*"), ("access-control-allow-credentials", "true")],
    &[("content-encoding", "gzip")],
    &[("vary", "*")],
    &[("trailer", "x-identity")],
];

/// Answers to requests with `Authorization` that do not say that they are for all.
const UNAUTHORIZED: [&str; 6] = [
    "",
    "max-age=60",
    "proxy-revalidate, max-age=60",
    "max-age=60, immutable",
    "s-maxage",
    "stale-if-error=9",
];

/// Requests that ask for something else by one of these headers.
const OVERRIDES: [(&str, &str); 8] = [
    ("x-http-method-override", "DELETE"),
    ("x-method-override", "DELETE"),
    ("x-http-method", "PUT"),
    ("x-original-url", "/admin"),
    ("x-rewrite-url", "/admin"),
    ("if-schedule-tag-match", "\"a\""),
    ("upgrade", "websocket"),
    ("upgrade", "h2c"),
];

/// Statuses of answers. Those below 200 and two others must not be stored, whatever was set.
const STATUSES: [u16; 15] =
    [100, 101, 103, 203, 204, 206, 300, 301, 304, 308, 404, 410, 451, 500, 503];

/// Pairs of hosts and targets that are not the same resource.
const TARGETS: [[(&str, &str); 2]; 15] = [
    [("/", "a.example"), ("/", "b.example")],
    [("/", "a.example"), ("/", "a.example:8080")],
    [("/", "a.example"), ("/", "A.example.")],
    [("/", "a.example"), ("/", "")],
    [("/", "a.example"), ("/", "a.example, b.example")],
    [("http://a.example/", "a.example"), ("http://b.example/", "b.example")],
    [("http://a.example/", "a.example"), ("https://a.example/", "a.example")],
    [("http://a.example/", "a.example"), ("http://a.example/", "b.example")],
    [("http://u@a.example/", "a.example"), ("http://v@a.example/", "a.example")],
    [("/a", "a.example"), ("/A", "a.example")],
    [("/a", "a.example"), ("/a/", "a.example")],
    [("/a", "a.example"), ("//a", "a.example")],
    [("/a%2fb", "a.example"), ("/a/b", "a.example")],
    [("/a?b", "a.example"), ("/a?b=", "a.example")],
    [("/a?b&c", "a.example"), ("/a?c&b", "a.example")],
];

/// Returns a pair of users whose requests are equal.
pub(crate) fn equal_users() -> Pair {
    says_only(&[])
}

/// Returns all pairs that differ.
pub(crate) fn pairs() -> Vec<Pair> {
    let mut pairs = Vec::new();
    for name in CREDENTIALS {
        pairs.extend(of_header(name, false, &[]));
        let public = of_header(name, false, &[("cache-control", "public, max-age=60")]);
        pairs.extend(public.into_iter().take(2));
    }
    for name in SELECTING.into_iter().chain(["x-user-id"]) {
        for is_rfc9111 in [false, true] {
            pairs.extend(of_header(name, is_rfc9111, &[("vary", name)]));
        }
    }
    pairs.extend(of_header("cookie", true, &[("vary", "Cookie")]));
    pairs.extend(of_header("authorization", true, &[("vary", "Authorization")]));
    for control in UNAUTHORIZED {
        pairs.extend(of_header("authorization", true, &[("cache-control", control)]));
    }
    for is_rfc9111 in [false, true] {
        for says in PERSONAL {
            pairs.extend(of_header("user-agent", is_rfc9111, says).into_iter().take(2));
        }
        pairs.extend(of_requests(is_rfc9111));
    }
    pairs.extend(of_keys());
    for is_rfc9111 in [false, true] {
        for status in STATUSES {
            pairs.extend(of_status(status, is_rfc9111));
        }
        pairs.extend(of_extensions(is_rfc9111));
        pairs.extend(of_http2(is_rfc9111));
    }
    pairs
}

/// Returns pairs whose answers have a status, and are for one user each.
fn of_status(status: u16, is_rfc9111: bool) -> Vec<Pair> {
    let lifetime = ("cache-control", "max-age=60");
    let answers: [(_, Lines<'_>); 5] = [
        ("authorization", &[lifetime]),
        ("cookie", &[lifetime, ("vary", "cookie")]),
        ("accept-language", &[lifetime, ("vary", "accept-language")]),
        ("user-agent", &[lifetime, ("set-cookie", "a=b")]),
        ("user-agent", &[("cache-control", "private, max-age=60")]),
    ];
    let mut pairs = Vec::new();
    for (name, says) in answers {
        for pair in of_header(name, is_rfc9111, says).into_iter().take(2) {
            pairs.push(Pair { status, ..pair });
        }
    }
    pairs
}

/// Returns pairs that differ in an extension, which the layer knows as their identity.
fn of_extensions(is_rfc9111: bool) -> Vec<Pair> {
    let mut pairs = Vec::new();
    for says in [&[][..], &[("cache-control", "public, max-age=60")]] {
        for names in [[Some("alice"), Some("bob")], [Some("alice"), None], [None, Some("alice")]] {
            let users = names.map(|extension| User { extension, ..user("GET", "/", &[]) });
            pairs.push(Pair { is_rfc9111, users, ..says_only(says) });
        }
    }
    pairs
}

/// Returns pairs of HTTP/2 clients with each other, and with one of HTTP/1.1.
fn of_http2(is_rfc9111: bool) -> Vec<Pair> {
    let host = ("host", "a.example");
    let mut pairs = Vec::new();
    for (name, says) in [
        ("authorization", [("cache-control", "max-age=60")]),
        ("cookie", [("vary", "cookie")]),
        ("accept-language", [("vary", "accept-language")]),
        ("x-user-id", [("vary", "x-user-id")]),
    ] {
        let alice = (name, "alice=1");
        let bob = (name, "bob=1");
        let reads = if name == "cookie" { "host cookie" } else { name };
        for users in [
            [http2("http://a.example/", &[alice]), http2("http://a.example/", &[bob])],
            [http2("http://a.example/", &[alice]), user("GET", "/", &[host, bob])],
            [user("GET", "/", &[host, alice]), http2("https://a.example/", &[bob])],
            [http2("https://a.example/", &[alice]), http2("https://a.example/", &[])],
        ] {
            pairs.push(Pair { is_rfc9111, users, reads, ..says_only(&says) });
        }
    }
    for users in [
        [http2("http://a.example/", &[]), http2("http://b.example/", &[])],
        [http2("http://a.example/", &[]), user("GET", "/", &[("host", "b.example")])],
        [http2("http://a.example/", &[host]), http2("http://a.example/", &[("host", "b.example")])],
    ] {
        pairs.push(Pair { is_rfc9111, users, reads: "host", ..says_only(&[]) });
    }
    pairs
}

/// Returns pairs that differ in a header: its value, whether it is there, and its lines.
fn of_header(name: &'static str, is_rfc9111: bool, says: Lines<'_>) -> Vec<Pair> {
    let alice = [(name, "alice=1")];
    let bob = [(name, "bob=1")];
    let users: [[Lines<'_>; 2]; 4] = [
        [&alice, &bob],
        [&alice, &[]],
        [&[], &alice],
        [&bob, &[(name, "alice=1"), (name, "bob=1")]],
    ];
    let mut pairs = Vec::new();
    for lines in users {
        let users = lines.map(|lines| user("GET", "/", lines));
        pairs.push(Pair { is_rfc9111, users, reads: name, ..says_only(says) });
    }
    pairs
}

/// Returns pairs that differ in the method, the host or the target.
fn of_requests(is_rfc9111: bool) -> Vec<Pair> {
    let mut users = Vec::new();
    for method in
        ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "PURGE", "QUERY", "get"]
    {
        users.push([user("GET", "/", &[]), user(method, "/", &[])]);
    }
    for line in OVERRIDES {
        users.push([user("GET", "/", &[]), user("GET", "/", &[line])]);
    }
    for pair in TARGETS {
        users.push(pair.map(|(target, host)| match host {
            "" => user("GET", target, &[]),
            _ => user("GET", target, &[("host", host)]),
        }));
    }
    let reads = "host x-http-method-override x-method-override x-http-method x-original-url \
                 x-rewrite-url if-schedule-tag-match upgrade";
    let mut pairs = Vec::new();
    for [one, other] in users {
        for users in [[one.clone(), other.clone()], [other, one]] {
            pairs.push(Pair { is_rfc9111, users, reads, ..says_only(&[]) });
        }
    }
    pairs
}

/// Returns pairs that differ in a header of the key, or in an ignored cookie.
fn of_keys() -> Vec<Pair> {
    let mut pairs = Vec::new();
    for name in ["x-tenant", "x-api-key", "accept-language"] {
        for pair in of_header(name, false, &[]) {
            pairs.push(Pair { keyed: name, ..pair });
        }
    }
    // Both cookies are ignored.
    for pair in of_header("cookie", false, &[("vary", "cookie")]) {
        pairs.push(Pair { ignored_cookies: "alice bo*", ..pair });
    }
    // One of the two is ignored.
    for pair in of_header("cookie", false, &[]).into_iter().take(2) {
        pairs.push(Pair { ignored_cookies: "bob", ..pair });
    }
    pairs
}

fn says_only(says: Lines<'_>) -> Pair {
    let says = says.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
    let users = [user("GET", "/", &[]), user("GET", "/", &[])];
    let is_rfc9111 = false;
    let status = 200;
    Pair { is_rfc9111, users, reads: "", status, says, keyed: "", ignored_cookies: "" }
}

fn user(method: &'static str, target: &'static str, lines: Lines<'_>) -> User {
    User { method, target, lines: lines.to_vec(), extension: None, is_http2: false }
}

fn http2(target: &'static str, lines: Lines<'_>) -> User {
    User { is_http2: true, ..user("GET", target, lines) }
}
