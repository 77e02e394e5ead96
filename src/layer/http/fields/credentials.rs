//! The names of request headers: which of them belong to one user, which to all.

/// The meaning of a header's name for the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HeaderClass {
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
pub(crate) fn classify(name: &str) -> HeaderClass {
    match name {
        // A list is faster than the search below.
        _ if is_ordinary(name) => HeaderClass::Harmless,
        "authorization" | "proxy-authorization" | "upgrade" => HeaderClass::Forbidden,
        "x-http-method" | "x-original-url" | "x-rewrite-url" => HeaderClass::Forbidden,
        _ if name.starts_with("if-") || name.contains("method-override") => HeaderClass::Forbidden,
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

/// Returns whether a part of the name is a word for credentials or for their bearer.
fn looks_like_credential(name: &str) -> bool {
    let name = name.as_bytes();
    let begins = |at: usize| {
        let words: &[&[u8]] = match name[at] {
            b'a' => &[b"auth", b"assertion", b"account"],
            b'b' => &[b"bearer", b"behalf"],
            b'c' => &[b"cert", b"csrf", b"cookie", b"credential", b"customer", b"consumer"],
            b'd' => &[b"dpop"],
            b'e' => &[b"email"],
            b'g' => &[b"group"],
            b'i' => &[b"identity", b"impersonat"],
            b'j' => &[b"jwt"],
            b'k' => &[b"key"],
            b'l' => &[b"login"],
            b'o' => &[b"oidc", b"orgid", b"org-id", b"organi"],
            b'p' => &[b"passw", b"principal"],
            b'r' => &[b"role"],
            b's' => &[b"session", b"secret", b"sign", b"saml", b"scope", b"subject", b"ssl-client"],
            b't' => &[b"token", b"tenant"],
            b'u' => &[b"user"],
            b'x' => &[b"xsrf"],
            _ => return false,
        };
        words.iter().any(|word| name[at..].starts_with(word))
    };
    (0..name.len()).any(begins)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_credentials_are_found_in_any_part_of_a_name() {
        for name in [
            "x-api-key",
            "x-apikey",
            "apikey",
            "x-auth-request-email",
            "x-amz-security-token",
            "x-amzn-mtls-clientcert",
            "x-forwarded-client-cert",
            "x-forwarded-user",
            "x-goog-iap-jwt-assertion",
            "x-ms-client-principal",
            "x-csrftoken",
            "x-xsrf",
            "session",
            "x-session-id",
            "x-userid",
            "x-user",
            "user",
            "signature",
            "x-hub-signature",
            "tenant",
            "x-tenant-id",
            "client_secret",
            "dpop",
            "identity",
            "cookie2",
            "x-user-agent-token",
        ] {
            assert_eq!(classify(name), HeaderClass::Credential, "{name}");
        }
    }

    #[test]
    fn names_of_a_person_or_of_a_customer_count_as_credentials() {
        for name in [
            "x-scope-orgid",
            "x-organization",
            "x-forwarded-email",
            "x-forwarded-groups",
            "remote-email",
            "remote-groups",
            "x-ssl-client-s-dn",
            "x-role",
            "x-customer-id",
            "x-consumer-id",
            "x-subject",
            "x-impersonate",
            "x-on-behalf-of",
        ] {
            assert_eq!(classify(name), HeaderClass::Credential, "{name}");
        }
    }

    #[test]
    fn headers_of_browsers_and_proxies_are_harmless() {
        for name in [
            "user-agent",
            "x-user-agent",
            "x-original-user-agent",
            "sec-fetch-user",
            "sec-ch-ua-full-version-list",
            "sec-ch-prefers-color-scheme",
            "sec-gpc",
            "sec-purpose",
            "save-data",
            "keep-alive",
            "x-requested-with",
            "x-correlation-id",
            "x-amzn-trace-id",
            "x-amz-cf-id",
            "x-cloud-trace-context",
            "x-envoy-attempt-count",
            "x-envoy-expected-rq-timeout-ms",
            "x-forwarded-prefix",
            "x-b3-traceid",
            "x-datadog-sampling-priority",
            "cf-connecting-ip",
            "cf-ipcountry",
            "cf-ray",
            "cdn-loop",
            "cloudfront-viewer-country",
            "fly-client-ip",
            "baggage",
            "b3",
        ] {
            assert_eq!(classify(name), HeaderClass::Harmless, "{name}");
        }
    }

    #[test]
    fn headers_that_change_the_request_are_forbidden() {
        for name in [
            "x-http-method-override",
            "x-method-override",
            "x-http-method",
            "x-original-url",
            "x-rewrite-url",
            "if-something-new",
            "authorization",
        ] {
            assert_eq!(classify(name), HeaderClass::Forbidden, "{name}");
        }
    }
}
