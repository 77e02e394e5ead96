//! Classifies a request's header by its name: harmless, a credential, or forbidden.
//!
//! This is a deny-list of words. A header that no word describes is harmless here. With
//! `Policy::rfc9111`, the caller takes a request in spite of its credentials.

/// The meaning of a header's name for the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HeaderClass {
    /// The header does not stand in the way of sharing.
    Harmless,
    /// The request takes no part, even if the header is in the key or declared harmless.
    Forbidden,
    /// The header looks like a credential. The request takes part only if the header is in the key
    /// or declared harmless.
    Credential,
}

/// Classifies a header by its name in lower case. The caller first checks headers whose value
/// decides (`Cookie`, `Cache-Control`, `Pragma`). This function returns `Harmless` for these
/// headers.
#[rustfmt::skip]
pub(super) fn classify(name: &str) -> HeaderClass {
    match name {
        // Ordinary browsers and proxies send these. The list saves the search below. It also
        // decides for names in which the search would find a word, such as `sec-fetch-user`.
        "host" | "accept" | "user-agent" | "accept-encoding" | "accept-language" | "connection"
        | "cache-control" | "cookie" | "referer" | "origin" | "dnt" | "te" | "via" | "priority"
        | "forwarded" | "traceparent" | "tracestate" | "upgrade-insecure-requests"
        | "sec-fetch-dest" | "sec-fetch-mode" | "sec-fetch-site" | "sec-fetch-user"
        | "sec-ch-ua" | "sec-ch-ua-mobile" | "sec-ch-ua-platform" | "x-request-id"
        | "x-forwarded-for" | "x-forwarded-host" | "x-forwarded-port" | "x-forwarded-proto"
        | "x-real-ip" => HeaderClass::Harmless,
        "authorization" | "proxy-authorization" | "upgrade" => HeaderClass::Forbidden,
        _ if name.starts_with("if-") || changes_target(name) => HeaderClass::Forbidden,
        // The text `user-agent` is cut out first, because it contains the word `user`.
        _ if name.split("user-agent").any(looks_like_credential) => HeaderClass::Credential,
        _ => HeaderClass::Harmless,
    }
}

/// Returns whether the header may change the method or the path of its request.
fn changes_target(name: &str) -> bool {
    const PLACES: [&str; 4] = ["url", "uri", "path", "query"];
    #[rustfmt::skip]
    const BEFORE_PLACE: [&str; 16] = [
        "original", "forwarded", "rewritten", "request", "requested", "real", "raw", "http",
        "target", "effective", "internal", "invoke", "matched", "proxy", "proxied", "route",
    ];
    if ["method", "override", "rewrite", "destination"].iter().any(|word| name.contains(word)) {
        return true;
    }
    if words(name).any(|word| word == "verb") {
        return true;
    }
    for place in PLACES {
        for (at, _) in name.match_indices(place) {
            let before = before_word(name, at);
            // `X-URL`, and `X-Original-URL` but not `HX-Current-URL`.
            if before == "x" && name.ends_with(place) {
                return true;
            }
            if BEFORE_PLACE.iter().any(|word| before.ends_with(word)) {
                return true;
            }
        }
    }
    false
}

/// Returns what stands before a word in a name, without the separators between them.
fn before_word(name: &str, at: usize) -> &str {
    let before = name.get(..at).unwrap_or_default();
    before.trim_end_matches(['-', '_'])
}

fn words(name: &str) -> impl Iterator<Item = &str> {
    name.split(|character: char| !character.is_ascii_alphanumeric())
}

/// Words that name a tenant, a person, a right or a proof. A header's name has such a word as a
/// whole word, in the plural, or with one of the [ends](ENDS). Some words [need an
/// end](NEEDS_END).
#[rustfmt::skip]
const WORDS: [&str; 80] = [
    // Tenants.
    "workspace", "project", "team", "merchant", "store", "realm", "org", "company", "vendor",
    "partner", "seller", "buyer", "shop", "school", "department", "division", "namespace",
    "franchise", "household", "site", "domain", "client", "device", "visitor",
    // Persons.
    "uid", "uin", "sub", "member", "person", "employee", "staff", "admin", "sudo", "patient",
    "student", "owner", "actor", "acting", "subscriber", "player", "guest",
    "delegate", "dn", "cn", "upn", "msisdn", "imsi", "imei", "phone", "ssn",
    // What persons may do.
    "claim", "permission", "privilege", "entitlement", "grant", "acl", "clearance",
    "subscription", "verify", "verified", "verification",
    // What persons prove it with.
    "ticket", "hmac", "mac", "otp", "totp", "mfa", "pin", "pwd", "nonce", "proof",
    "voucher", "license", "licence", "sid", "sso", "openid", "krb", "kerberos", "wallet",
];

/// What may follow a word: `X-DeviceID` and `X-Device-ID` are one name.
const ENDS: [&str; 6] = ["id", "ids", "uuid", "guid", "name", "slug"];
/// Words that count only with an end, because ordinary requests have `CF-Visitor`, `Client-IP`,
/// `Device-Memory` and `Sec-Fetch-Site`.
const NEEDS_END: [&str; 5] = ["site", "domain", "client", "device", "visitor"];

/// Returns whether a word of the name is one of [`WORDS`].
fn has_known_word(name: &str) -> bool {
    let mut following = words(name).skip(1);
    for word in words(name) {
        let next = following.next().unwrap_or_default();
        for known in WORDS {
            let Some(end) = word.strip_prefix(known) else { continue };
            let has_end = ENDS.contains(&end) || (end.is_empty() && ENDS.contains(&next));
            let is_enough = matches!(end, "" | "s") && !NEEDS_END.contains(&known);
            if has_end || is_enough {
                return true;
            }
        }
    }
    false
}

/// Words for credentials and for their bearer, anywhere in a name.
#[rustfmt::skip]
const CREDENTIALS: [&str; 45] = [
    "auth", "assertion", "account", "bearer", "behalf", "cert", "crumb", "csrf", "cookie", "cred",
    "customer", "consumer", "displayname", "display-name", "display_name", "dpop", "email", "eppn",
    "forgery", "group", "identity", "impersonat", "jwt", "key", "login", "oidc", "orgid", "org-id",
    "organi", "pass", "principal", "role", "sess", "secret", "sign", "saml", "scope", "spiffe",
    "subject", "ssl-client", "token", "tenant", "user", "wsse", "xsrf",
];

/// How the headers of two access managers begin: WebSEAL (`iv-`) and SiteMinder (`sm_`).
const BEGINNINGS: [&str; 4] = ["iv-", "iv_", "sm-", "sm_"];

/// Words before `code` that make the code a proof.
const BEFORE_CODE: [&str; 3] = ["access", "device", "otp"];

/// Returns whether a part of a name is a word for credentials or for their bearer.
fn looks_like_credential(part: &str) -> bool {
    has_known_word(part)
        || CREDENTIALS.iter().any(|word| part.contains(word))
        || BEGINNINGS.iter().any(|beginning| part.starts_with(beginning))
        || has_code_of_proof(part)
}

fn has_code_of_proof(part: &str) -> bool {
    part.match_indices("code").any(|(at, _)| {
        let before = before_word(part, at);
        BEFORE_CODE.iter().any(|word| before.ends_with(word))
    })
}
