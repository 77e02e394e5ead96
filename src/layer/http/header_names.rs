//! Classifies a request's header by its name: harmless, a credential, or forbidden.
//!
//! This is a deny-list of words. A header that no word describes is harmless here.

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
        // Ordinary browsers and proxies send these. A list is faster than the search below.
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
            if WHICH.iter().any(|which| before.ends_with(which)) {
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

/// Words for the tenants and persons that a response may be for, and for their proofs. Each word is
/// a whole word of a header's name, or has one of the [ends](ENDS) there.
#[rustfmt::skip]
const WORDS: [&str; 81] = [
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
        // `X-Device-ID` and `X-DeviceID` are one name.
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
const CREDENTIALS: [&str; 45] = [
    "auth", "assertion", "account", "bearer", "behalf", "cert", "crumb", "csrf", "cookie", "cred",
    "customer", "consumer", "displayname", "display-name", "display_name", "dpop", "email", "eppn",
    "forgery", "group", "identity", "impersonat", "jwt", "key", "login", "oidc", "orgid", "org-id",
    "organi", "pass", "principal", "role", "sess", "secret", "sign", "saml", "scope", "spiffe",
    "subject", "ssl-client", "token", "tenant", "user", "wsse", "xsrf",
];

/// What two access managers put before the name of each header that is about the user.
const BEGINNINGS: [&str; 4] = ["iv-", "iv_", "sm-", "sm_"];

/// What stands before `code`, where that is a proof.
const CODES: [&str; 3] = ["access", "device", "otp"];

/// Returns whether a part of the name is a word for credentials or for their bearer.
fn looks_like_credential(name: &str) -> bool {
    has_word_of_user(name)
        || CREDENTIALS.iter().any(|word| name.contains(word))
        || BEGINNINGS.iter().any(|beginning| name.starts_with(beginning))
        || has_code_of_proof(name)
}

fn has_code_of_proof(name: &str) -> bool {
    name.match_indices("code").any(|(at, _)| {
        let before = before_word(name, at);
        CODES.iter().any(|code| before.ends_with(code))
    })
}
