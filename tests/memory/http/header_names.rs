//! The names of headers by which a request is shared or not.

use super::prelude::*;

/// Asserts whether requests with one of these headers share: as it is, and if it is ignored.
async fn all_are(names: &str, shares: [bool; 2]) {
    for name in names.split_whitespace() {
        for (layer, shares) in [layer(), layer().ignore_headers([name])].into_iter().zip(shares) {
            let service = layer.cache_status().layer(numbered().0);
            ask(&service, get("/")).await;
            let answer = ask(&service, get_with(&[(name, "1")])).await;
            let status = answer.headers["cache-status"].to_str().unwrap();
            let expected = if shares { "bellwether; hit" } else { "bellwether; fwd=bypass" };
            assert!(status.starts_with(expected), "{name}: {status}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn names_of_credentials_and_of_their_bearers_are_found_in_any_part_of_a_name() {
    let names = "x-api-key x-apikey apikey x-auth-request-email x-amz-security-token \
                 x-amzn-mtls-clientcert x-forwarded-client-cert x-forwarded-user \
                 x-goog-iap-jwt-assertion x-ms-client-principal x-csrftoken x-xsrf session \
                 x-session-id x-userid x-user user signature x-hub-signature tenant \
                 x-tenant-id client_secret dpop identity cookie2 x-user-agent-token \
                 x-scope-orgid x-organization x-forwarded-email x-forwarded-groups \
                 remote-email remote-groups x-ssl-client-s-dn x-role x-customer-id \
                 x-consumer-id x-subject x-impersonate x-on-behalf-of";
    all_are(names, [false, true]).await;
}

#[tokio::test(start_paused = true)]
async fn words_of_a_name_tell_tenants_persons_and_proofs() {
    let names = "x-workspace x-workspace-id x_workspace_id workspaceid x-project \
                 x-project-name openai-project x-team x-team-slug x-merchant-id x-merchantid \
                 store x-store-id x-realm x-org x-company-id x-vault-namespace x-site-id \
                 x-client-id x-device-id x-deviceid x-visitor-uuid x-uid x-member x-members \
                 x-member-id x-claims client-dn x-client-cn x-client-verify x-ticket x-hmac \
                 x-content-hmac-sha256 x-otp x-mfa-code x-pin x-sid phpsessid x-msisdn \
                 x-permissions x-employee-id";
    all_are(names, [false, true]).await;
}

/// Each of these was harmless.
#[tokio::test(start_paused = true)]
async fn words_of_access_managers_and_of_proofs_are_found() {
    let names = "x-wsse wsse x-cred x-creds x_creds x-passcode x-pass passcode x-userpass \
                 x-pass-phrase x-jenkins-crumb jenkins-crumb .crumb x-request-forgery \
                 x-antiforgery eppn x-eppn upn x-upn x-ms-upn x-spiffe-id spiffe iv-remote \
                 iv-address iv_server sm_transactionid sm-universalid sm_serveridentityspec \
                 displayname x-displayname x-display-name display_name x-access-code \
                 accesscode x-device-code x_device_code otp-code x-otpcode x-verification";
    all_are(names, [false, true]).await;
    all_are("destination x-destination", [false, false]).await;
}

/// `X-DomainName` was a credential, and `X-Domain-Name` was harmless.
#[tokio::test(start_paused = true)]
async fn an_end_is_a_part_of_its_word_or_a_word_of_its_own() {
    for word in ["site", "domain", "client", "device", "visitor"] {
        for end in ["id", "ids", "uuid", "guid", "name", "slug"] {
            let names = format!("x-{word}{end} x-{word}-{end} x_{word}_{end} {word}-{end}");
            all_are(&names, [false, true]).await;
        }
        all_are(&format!("x-{word} x-{word}s x-{word}-region"), [true, true]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn headers_of_browsers_and_proxies_are_harmless() {
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
    all_are(names, [true, true]).await;
}

#[tokio::test(start_paused = true)]
async fn headers_that_change_the_request_are_forbidden() {
    let names = "x-http-method-override x-method-override x-http-method x-http-verb x-method \
                 x-original-method x-forwarded-method x-host-override x-original-url \
                 x-original-uri x-originaluri x_original_uri x-original-path x-forwarded-uri \
                 x-forwarded-path x-forwarded-url x-envoy-original-path x-rewrite-url \
                 x-rewrite-uri x-rewritten-path x-request-uri x-requested-url x-real-uri \
                 x-raw-url x-proxy-url x-invoke-path x-matched-path x-invoke-query x-url \
                 x-path if-something-new authorization";
    all_are(names, [false, false]).await;
}

/// A service that reads its user in any header has the pages of one shared with others. With
/// `forward_only` it does not see the header.
#[tokio::test(start_paused = true)]
async fn a_load_carries_only_the_headers_that_are_named() {
    const USER: &str = "x-badge";
    let (inner, calls) = origin(|_, request| {
        let mut seen: Vec<_> = request.headers().keys().map(|name| name.as_str()).collect();
        seen.sort_unstable();
        let user = request.headers().get(USER).map_or("nobody", |user| user.to_str().unwrap());
        let headers = [("x-seen", &*seen.join(",")), ("vary", "x-badge, accept-language")];
        reply(200, &headers, user.to_owned())
    });
    let layer = layer().ignore_cookies(["theme"]).vary_by_header("x-shop");
    let layer = layer.forward_only(["Accept"]).forward_only(["accept-language", "not a name"]);
    let service = layer.layer(inner);
    let of = |user| {
        get_with(&[
            ("accept", "*/*"),
            ("accept-language", "en"),
            ("cookie", "theme=dark"),
            ("host", "shop"),
            ("referer", "/"),
            ("x-shop", "a"),
            (USER, user),
        ])
    };
    let answers = ask_all(std::slice::from_ref(&service), ["alice", "bob"].map(of)).await;
    for answer in &answers {
        assert_eq!(answer.text(), "nobody");
        assert_eq!(answer.headers["x-seen"], "accept,accept-language,cookie,host,x-shop");
    }
    // It makes no variants by what it does not send.
    assert_eq!(calls.count(), 1);
    // A request that passes has all of its headers, and no more requests pass.
    let mut passed = of("alice");
    passed.headers_mut().insert("authorization", "a".parse().unwrap());
    assert_eq!(ask(&service, passed).await.text(), "alice");
    let mut keyed = of("alice");
    keyed.headers_mut().insert("x-api-key", "a".parse().unwrap());
    assert_eq!(ask(&service, keyed).await.text(), "alice");
}

/// By RFC 9111 the response decides, so the service must see the credentials.
#[tokio::test(start_paused = true)]
async fn credentials_keep_their_rules_where_few_headers_are_sent() {
    let (inner, calls) = origin(|_, request| {
        let known = ["authorization", "cookie"].map(|name| request.headers().get(name));
        let user =
            known.into_iter().flatten().next().map_or("nobody", |user| user.to_str().unwrap());
        let control = if request.uri() == "/all" { "public, max-age=60" } else { "private" };
        reply(200, &[("cache-control", control)], user.to_owned())
    });
    let service = layer().policy(Policy::rfc9111()).forward_only(["accept"]).layer(inner);
    for credential in ["authorization", "cookie"] {
        for user in ["alice", "bob"] {
            let answer = ask(&service, request("GET", "/", &[(credential, user)])).await;
            assert_eq!(answer.text(), user);
        }
    }
    let before = calls.count();
    for user in ["alice", "bob"] {
        ask(&service, request("GET", "/all", &[("authorization", user)])).await;
    }
    assert_eq!(calls.count() - before, 1);
}

/// Without an `Accept-Encoding` a service may choose any coding, and without an `Origin` any page.
#[tokio::test(start_paused = true)]
async fn what_depends_on_a_header_that_is_not_sent_is_not_shared() {
    for (lines, is_shared) in [
        (&[("content-encoding", "gzip"), ("vary", "accept-encoding")][..], false),
        (&[("access-control-allow-origin", "https://a"), ("vary", "origin")], false),
        (&[("access-control-allow-origin", "*"), ("vary", "origin")], true),
    ] {
        let (inner, calls) = origin(move |_, _| reply(200, lines, ""));
        let service = layer().forward_only(["accept"]).layer(inner);
        for _ in 0..2 {
            ask(&service, get("/")).await;
        }
        assert_eq!(calls.count(), if is_shared { 1 } else { 2 }, "{lines:?}");
    }
}
