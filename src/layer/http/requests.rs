//! Decides which requests take part: an allow-list.

use http::{
    HeaderMap, HeaderName, Method,
    header::{AUTHORIZATION, CACHE_CONTROL, CONNECTION, COOKIE, PRAGMA},
    request::Parts,
};
use http_body::Body;

use super::{
    fields::{Directives, Scope, names_no_field, pragma},
    policy::{Policy, PolicyKind},
    question::is_term,
    status::Forward,
    uri::{is_named, may_hold_another},
};

/// The rules for requests, as far as the user of the layer sets them.
#[derive(Clone, Debug, Default)]
pub(super) struct RequestRules {
    /// A request that asks for more than a stored response is treated as any other one.
    pub(super) ignores_reloads: bool,
    /// Headers that look like credentials, and that are in the key or declared harmless.
    pub(super) known_headers: Vec<String>,
    /// The names of cookies that no response depends on. A `*` ends the beginning of names.
    pub(super) ignored_cookies: Vec<String>,
}

impl RequestRules {
    /// Checks that a request may receive the response to another request, if that may be shared.
    pub(super) fn check(
        &self,
        parts: &Parts,
        body: &impl Body,
        policy: &Policy,
    ) -> Result<(), Forward> {
        let is_head = parts.method == Method::HEAD;
        // If nothing is stored, the whole response would be fetched for each of these.
        let is_get = parts.method == Method::GET;
        if !is_get && (policy.coalesces || !is_head) {
            return Err(Forward::Method);
        }
        if !body.is_end_stream() && body.size_hint().exact() != Some(0) {
            return Err(Forward::Body);
        }
        let headers = &parts.headers;
        let forbids = |name: &&HeaderName| match is_term(name) {
            true => policy.coalesces,
            false => !self.permits(name, headers, policy),
        };
        headers.keys().find(forbids).map_or(Ok(()), |name| Err(Forward::Header(name.clone())))
    }

    fn permits(&self, name: &HeaderName, headers: &HeaderMap, policy: &Policy) -> bool {
        let is_careful = policy.kind == PolicyKind::Careful;
        let accepts_no_cache = policy.coalesces || self.ignores_reloads;
        match *name {
            // The response says whether it may be shared (RFC 9111, section 3.5).
            AUTHORIZATION | COOKIE if !is_careful => true,
            COOKIE => are_ignored(&self.ignored_cookies, headers),
            CONNECTION => names_no_field(headers),
            CACHE_CONTROL => Directives::parse(headers).is_some_and(|wanted| {
                let is_refused = wanted.no_store || (is_careful && wanted.malformed);
                !is_refused && (accepts_no_cache || wanted.no_cache == Scope::Nothing)
            }),
            // Section 5.4: it does not count beside `Cache-Control`.
            PRAGMA if !is_careful && headers.contains_key(CACHE_CONTROL) => true,
            PRAGMA => accepts_no_cache || !pragma(headers),
            _ => match classify(name.as_str()) {
                HeaderClass::Harmless => true,
                HeaderClass::Forbidden => false,
                HeaderClass::Credential => {
                    !is_careful || self.known_headers.iter().any(|known| name == known.as_str())
                }
            },
        }
    }
}

/// The meaning of a header's name for the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HeaderClass {
    /// The header does not stand in the way of sharing.
    Harmless,
    /// The request takes no part, whatever was declared.
    Forbidden,
    /// The header looks like a credential. The request takes part only if the header is in the key
    /// or declared harmless.
    Credential,
}

/// Classifies a header by its name in lower case. Headers with rules about their values count as
/// harmless here.
pub(super) fn classify(name: &str) -> HeaderClass {
    match name {
        // A list is faster than the search below.
        _ if is_ordinary(name) => HeaderClass::Harmless,
        "authorization" | "proxy-authorization" | "upgrade" => HeaderClass::Forbidden,
        _ if name.starts_with("if-") || changes_target(name) => HeaderClass::Forbidden,
        // `X-Device-User-Agent` and its like describe a program, not a user.
        _ if name.split("user-agent").any(looks_like_credential) => HeaderClass::Credential,
        _ => HeaderClass::Harmless,
    }
}

/// Returns whether ordinary browsers and proxies send the header.
#[rustfmt::skip]
fn is_ordinary(name: &str) -> bool {
    matches!(
        name,
        "host" | "accept" | "user-agent" | "accept-encoding" | "accept-language" | "connection"
            | "cache-control" | "cookie" | "referer" | "origin" | "dnt" | "te" | "via" | "priority"
            | "forwarded" | "traceparent" | "tracestate" | "upgrade-insecure-requests"
            | "sec-fetch-dest" | "sec-fetch-mode" | "sec-fetch-site" | "sec-fetch-user"
            | "sec-ch-ua" | "sec-ch-ua-mobile" | "sec-ch-ua-platform" | "x-request-id"
            | "x-forwarded-for" | "x-forwarded-host" | "x-forwarded-port" | "x-forwarded-proto"
            | "x-real-ip"
    )
}

/// Returns whether the header may change the method or the path of its request.
fn changes_target(name: &str) -> bool {
    const PLACES: [&str; 4] = ["url", "uri", "path", "query"];
    #[rustfmt::skip]
    const WHICH: [&str; 16] = [
        "original", "forwarded", "rewritten", "request", "requested", "real", "raw", "http",
        "target", "effective", "internal", "invoke", "matched", "proxy", "proxied", "route",
    ];
    let is_place = |(at, place): (usize, &str)| {
        let before = name.get(..at).unwrap_or_default().trim_end_matches(['-', '_']);
        // `X-URL`, and `X-Original-URL` but not `HX-Current-URL`.
        (before == "x" && name.ends_with(place)) || WHICH.iter().any(|it| before.ends_with(it))
    };
    ["method", "override", "rewrite"].iter().any(|word| name.contains(word))
        || words(name).any(|word| word == "verb")
        || PLACES.iter().any(|place| name.match_indices(place).any(is_place))
}

fn words(name: &str) -> impl Iterator<Item = &str> {
    name.split(|character: char| !character.is_ascii_alphanumeric())
}

/// Words for the tenants and persons that a response may be for, and for their proofs. Each is a
/// whole word of a name, or has one of the [ends](ENDS).
#[rustfmt::skip]
const WORDS: [&str; 80] = [
    // Tenants.
    "workspace", "project", "team", "merchant", "store", "realm", "org", "company", "vendor",
    "partner", "seller", "buyer", "shop", "school", "department", "division", "namespace",
    "franchise", "household", "site", "domain", "client", "device", "visitor",
    // Persons.
    "uid", "uin", "sub", "member", "person", "employee", "staff", "admin", "sudo", "patient",
    "student", "owner", "actor", "acting", "subscriber", "player", "guest",
    "delegate", "dn", "cn", "msisdn", "imsi", "imei", "phone", "ssn",
    // What they may do.
    "claim", "permission", "privilege", "entitlement", "grant", "acl", "clearance",
    "subscription", "verify", "verified",
    // What they prove it with.
    "ticket", "hmac", "mac", "otp", "totp", "mfa", "pin", "pass", "pwd", "nonce", "proof",
    "voucher", "license", "licence", "sid", "sess", "sso", "openid", "krb", "kerberos", "wallet",
];

/// Ends of words that are no reason to tell them apart. Some words are no credentials without one:
/// there are `CF-Visitor`, `Client-IP`, `Device-Memory` and `Sec-Fetch-Site`.
const ENDS: [&str; 8] = ["", "s", "id", "ids", "uuid", "guid", "name", "slug"];
const NEEDS_END: [&str; 5] = ["site", "domain", "client", "device", "visitor"];

/// Returns whether a word of the name is one of [`WORDS`].
fn has_word_of_user(name: &str) -> bool {
    let mut next = words(name).skip(1);
    words(name).any(|word| {
        // `X-Device-ID` and `X-DeviceID` are one.
        let next = next.next().filter(|next| matches!(*next, "id" | "uuid" | "guid"));
        WORDS.iter().any(|known| match word.strip_prefix(known) {
            Some("") if NEEDS_END.contains(known) => next.is_some(),
            Some("s") if NEEDS_END.contains(known) => false,
            Some(end) => ENDS.contains(&end),
            None => false,
        })
    })
}

/// Words for credentials and for their bearer, anywhere in a name.
#[rustfmt::skip]
const CREDENTIALS: [&str; 37] = [
    "auth", "assertion", "account", "bearer", "behalf", "cert", "csrf", "cookie", "credential",
    "customer", "consumer", "dpop", "email", "group", "identity", "impersonat", "jwt", "key",
    "login", "oidc", "orgid", "org-id", "organi", "passw", "principal", "role", "sess", "secret",
    "sign", "saml", "scope", "subject", "ssl-client", "token", "tenant", "user", "xsrf",
];

/// Returns whether a part of the name is a word for credentials or for their bearer.
fn looks_like_credential(name: &str) -> bool {
    if has_word_of_user(name) {
        return true;
    }
    CREDENTIALS.iter().any(|word| name.contains(word))
}

/// Returns whether all cookies of a request are ignored. One in which the service may read another
/// cookie is not, such as `_ga=1, session=A`.
fn are_ignored(ignored: &[String], headers: &HeaderMap) -> bool {
    let mut cookies = headers.get_all(COOKIE).iter().flat_map(|line| pairs(line.as_bytes()));
    cookies.all(|(name, value)| {
        is_named(ignored, name) && !may_hold_another(name) && !may_hold_another(value)
    })
}

/// Returns the cookies in one line, each with its value. One without a name has an empty one.
fn pairs(line: &[u8]) -> impl Iterator<Item = (&[u8], &[u8])> {
    let pairs = line.split(|byte| *byte == b';').map(<[u8]>::trim_ascii);
    pairs.filter(|pair| !pair.is_empty()).map(|pair| {
        let (name, value) = pair.split_at(pair.iter().position(|it| *it == b'=').unwrap_or(0));
        (name.trim_ascii(), value.strip_prefix(b"=").unwrap_or(value).trim_ascii())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    fn all_are(names: &str, class: HeaderClass) {
        for name in names.split_whitespace() {
            assert_eq!(classify(name), class, "{name}");
        }
    }

    #[test]
    fn names_of_credentials_and_of_their_bearers_are_found_in_any_part_of_a_name() {
        let names = "x-api-key x-apikey apikey x-auth-request-email x-amz-security-token \
                     x-amzn-mtls-clientcert x-forwarded-client-cert x-forwarded-user \
                     x-goog-iap-jwt-assertion x-ms-client-principal x-csrftoken x-xsrf session \
                     x-session-id x-userid x-user user signature x-hub-signature tenant \
                     x-tenant-id client_secret dpop identity cookie2 x-user-agent-token \
                     x-scope-orgid x-organization x-forwarded-email x-forwarded-groups \
                     remote-email remote-groups x-ssl-client-s-dn x-role x-customer-id \
                     x-consumer-id x-subject x-impersonate x-on-behalf-of";
        all_are(names, HeaderClass::Credential);
    }

    #[test]
    fn words_of_a_name_tell_tenants_persons_and_proofs() {
        let names = "x-workspace x-workspace-id x_workspace_id workspaceid x-project \
                     x-project-name openai-project x-team x-team-slug x-merchant-id x-merchantid \
                     store x-store-id x-realm x-org x-company-id x-vault-namespace x-site-id \
                     x-client-id x-device-id x-deviceid x-visitor-uuid x-uid x-member x-members \
                     x-member-id x-claims client-dn x-client-cn x-client-verify x-ticket x-hmac \
                     x-content-hmac-sha256 x-otp x-mfa-code x-pin x-sid phpsessid x-msisdn \
                     x-permissions x-employee-id";
        all_are(names, HeaderClass::Credential);
    }

    #[test]
    fn headers_of_browsers_and_proxies_are_harmless() {
        let names = "sec-fetch-site sec-fetch-storage-access sec-ch-ua-model sec-ch-ua-arch \
                     sec-ch-ua-form-factors sec-ch-device-memory sec-ch-viewport-width \
                     device-memory viewport-width dpr ect rtt downlink purpose x-purpose x-moz \
                     early-data service-worker service-worker-navigation-preload alt-used \
                     available-dictionary dictionary-id upgrade-insecure-requests dnt traceparent \
                     x-request-id x-request-start x-queue-start x-forwarded-proto x-forwarded-ssl \
                     x-forwarded-scheme x-forwarded-server x-original-host x-original-proto \
                     x-original-forwarded-for x-envoy-external-address x-envoy-peer-metadata-id \
                     x-envoy-decorator-operation x-client-ip client-ip true-client-ip \
                     x-cluster-client-ip x-azure-clientip x-azure-ref x-azure-fdid x-arr-log-id \
                     x-arr-ssl x-site-deployment-id was-default-hostname disguised-host \
                     max-forwards cf-visitor cf-connecting-ipv6 cf-ew-via cf-worker x-vercel-id \
                     x-vercel-ip-country x-vercel-deployment-url x-nf-request-id \
                     x-nf-client-connection-ip fly-region fly-request-id x-akamai-edgescape \
                     akamai-origin-hop x-appengine-country x-appengine-citylatlong x-wap-profile \
                     uber-trace-id sentry-trace elastic-apm-traceparent newrelic hx-request \
                     hx-current-url hx-target hx-trigger-name next-url next-router-state-tree rsc \
                     turbo-frame x-pjax-container x-inertia-version x-inertia-partial-data \
                     x-up-target content-digest want-digest from range user-agent x-user-agent \
                     x-original-user-agent sec-fetch-user sec-ch-ua-full-version-list \
                     sec-ch-prefers-color-scheme sec-gpc sec-purpose save-data keep-alive \
                     x-requested-with x-correlation-id x-amzn-trace-id x-amz-cf-id \
                     x-cloud-trace-context x-envoy-attempt-count x-envoy-expected-rq-timeout-ms \
                     x-forwarded-prefix x-b3-traceid x-datadog-sampling-priority cf-connecting-ip \
                     cf-ipcountry cf-ray cdn-loop cloudfront-viewer-country fly-client-ip baggage \
                     b3";
        all_are(names, HeaderClass::Harmless);
    }

    #[test]
    fn headers_that_change_the_request_are_forbidden() {
        let names = "x-http-method-override x-method-override x-http-method x-http-verb x-method \
                     x-original-method x-forwarded-method x-host-override x-original-url \
                     x-original-uri x-originaluri x_original_uri x-original-path x-forwarded-uri \
                     x-forwarded-path x-forwarded-url x-envoy-original-path x-rewrite-url \
                     x-rewrite-uri x-rewritten-path x-request-uri x-requested-url x-real-uri \
                     x-raw-url x-proxy-url x-invoke-path x-matched-path x-invoke-query x-url \
                     x-path if-something-new authorization";
        all_are(names, HeaderClass::Forbidden);
    }

    fn ignored(names: &[&str], lines: &[&str]) -> bool {
        let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut headers = HeaderMap::new();
        for line in lines {
            headers.append(COOKIE, HeaderValue::from_bytes(line.as_bytes()).unwrap());
        }
        are_ignored(&names, &headers)
    }

    #[test]
    fn all_cookies_of_all_lines_must_be_ignored() {
        let known = ["_ga", "_ga_*", "theme"];
        let covered: [&[&str]; 5] = [
            &[],
            &["_ga=1"],
            &["_ga=GA1.1; theme=dark"],
            &["_ga_ABC=x=y", " theme = \u{e4};;"],
            &["_ga="],
        ];
        for lines in covered {
            assert!(ignored(&known, lines), "{lines:?}");
        }
        for lines in [
            &["session=1"][..],
            &["_ga=1; session=1"],
            &["_ga=1", "session=1"],
            &["_ga=1;session=1"],
            &["_GA=1"],
            &["_gat=1"],
            &["theme"],
            &["=1"],
            &["_ga=\"1; session=1\""],
            // A service may read another cookie in it.
            &["_ga=1, session=1"],
            &["_ga=1,session=1"],
            &["_ga=1 session=1"],
            &["_ga=1\tsession=1"],
            &["_ga=1&session=1"],
            &["_ga=1%3Bsession=1"],
            &["_ga=1%2c%20session=1"],
            &["_ga=\"1\\073 session=1\""],
            &["_ga_%3Bsession=1"],
            &["_ga_,session=1"],
            &["_ga session=1"],
            &["_ga_x session=1"],
            &["_ga=1%"],
        ] {
            assert!(!ignored(&known, lines), "{lines:?}");
        }
        assert!(!ignored(&[], &["_ga=1"]));
    }
}
