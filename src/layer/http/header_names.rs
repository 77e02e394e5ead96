//! What the name of a request's header says: whether it is harmless, a credential, or forbidden.

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
#[rustfmt::skip]
pub(super) fn classify(name: &str) -> HeaderClass {
    match name {
        // What ordinary browsers and proxies send. A list is faster than the search below.
        "host" | "accept" | "user-agent" | "accept-encoding" | "accept-language" | "connection"
        | "cache-control" | "cookie" | "referer" | "origin" | "dnt" | "te" | "via" | "priority"
        | "forwarded" | "traceparent" | "tracestate" | "upgrade-insecure-requests"
        | "sec-fetch-dest" | "sec-fetch-mode" | "sec-fetch-site" | "sec-fetch-user"
        | "sec-ch-ua" | "sec-ch-ua-mobile" | "sec-ch-ua-platform" | "x-request-id"
        | "x-forwarded-for" | "x-forwarded-host" | "x-forwarded-port" | "x-forwarded-proto"
        | "x-real-ip" => HeaderClass::Harmless,
        "authorization" | "proxy-authorization" | "upgrade" => HeaderClass::Forbidden,
        _ if name.starts_with("if-") || changes_target(name) => HeaderClass::Forbidden,
        // `X-Device-User-Agent` and its like describe a program, not a user.
        _ if name.split("user-agent").any(looks_like_credential) => HeaderClass::Credential,
        _ => HeaderClass::Harmless,
    }
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

/// What may follow a word in a name.
const ENDS: [&str; 8] = ["", "s", "id", "ids", "uuid", "guid", "name", "slug"];
/// Words that count only with an end: there are `CF-Visitor`, `Client-IP`, `Device-Memory` and
/// `Sec-Fetch-Site`.
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
    has_word_of_user(name) || CREDENTIALS.iter().any(|word| name.contains(word))
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
