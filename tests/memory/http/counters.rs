//! What the counters of the cache say of requests over HTTP.

use bellwether::cache::Stats;

use super::prelude::*;

/// Returns how many callers were counted, by any result.
fn counted(stats: &Stats) -> u64 {
    let served = stats.hits + stats.local + stats.stale + stats.led + stats.followed;
    served + stats.received + stats.degraded + stats.failed + stats.passed
}

/// An answer that belongs to its caller, or says that the service fails.
type Kind = (u16, Lines<'static>);

const KINDS: &[Kind] = &[
    (200, &[("cache-control", "max-age=60")]),
    (200, &[("cache-control", "private")]),
    (200, &[("cache-control", "no-store")]),
    (200, &[("set-cookie", "a=b")]),
    (200, &[("vary", "accept-language"), ("cache-control", "max-age=60")]),
    (200, &[("vary", "*")]),
    (204, &[]),
    (301, &[("location", "/other")]),
    (304, &[]),
    (400, &[]),
    (403, &[]),
    (404, &[]),
    (410, &[]),
    (429, &[("retry-after", "1")]),
    (500, &[]),
    (501, &[]),
    (502, &[]),
    (503, &[("retry-after", "1")]),
    (503, &[("cache-control", "max-age=60")]),
    (504, &[]),
];

fn requests() -> Vec<Request<Body>> {
    let headers: [Lines<'_>; 8] = [
        &[],
        &[("cookie", "a=b")],
        &[("authorization", "Basic YTpi")],
        &[("if-none-match", "\"a\"")],
        &[("range", "bytes=0-0")],
        &[("cache-control", "no-cache")],
        &[("host", "one two")],
        &[("accept-language", "de")],
    ];
    let mut requests: Vec<_> = headers.into_iter().map(get_with).collect();
    requests.extend([request("HEAD", "/", &[]), post(), request("PURGE", "/", &[])]);
    requests
}

/// A leader whose answer was its own counted nowhere.
#[tokio::test(start_paused = true)]
async fn each_caller_counts_once() {
    for (status, headers) in KINDS {
        for policy in [Policy::default(), Policy::rfc9111(), Policy::default().coalesce_only()] {
            for is_at_once in [false, true] {
                for with_parts in [false, true] {
                    let (inner, _) = origin(move |_, _| reply(*status, headers, "answer"));
                    let cache = cache(&MemoryBackend::new());
                    let mut layer = http_layer(cache.clone()).policy(policy.clone());
                    if with_parts {
                        layer = layer.vary_by(|_| "part".to_owned());
                    }
                    let services = [layer.layer(inner)];
                    let mut asked = 0;
                    for _ in 0..4 {
                        asked += requests().len() as u64;
                        if is_at_once {
                            ask_all(&services, requests()).await;
                            continue;
                        }
                        for request in requests() {
                            ask(&services[0], request).await;
                        }
                    }
                    let stats = cache.stats();
                    assert_eq!(counted(&stats), asked, "{status} {headers:?} {stats:?}");
                }
            }
        }
    }
}

/// A request that passes counts when it is sent, and any other one when it is answered. A `PURGE`
/// that the layer answers counts nowhere.
#[tokio::test(start_paused = true)]
async fn callers_that_leave_and_purges_count_as_the_guide_says() {
    for (status, headers) in KINDS {
        for policy in [Policy::default(), Policy::rfc9111(), Policy::default().coalesce_only()] {
            let (inner, _) = origin(move |_, _| reply(*status, headers, "answer"));
            let cache = cache(&MemoryBackend::new());
            let layer = http_layer(cache.clone()).policy(policy.clone());
            let layer = layer.purge_if(|parts| parts.headers.contains_key("x-permitted"));
            let service = layer.layer(inner);
            // The first one leads, and the second one follows.
            let leavers = [asking(&service, get("/")), asking(&service, get("/"))];
            let passes = [
                asking(&service, get_with(&[("authorization", "Basic YTpi"), ("upgrade", "a")])),
                asking(&service, get_with(&[("host", "one two")])),
                asking(&service, post()),
            ];
            sleep(DELAY / 2).await;
            assert_eq!(counted(&cache.stats()), passes.len() as u64, "{status} {headers:?}");
            for leaver in leavers.iter().chain(&passes) {
                leaver.abort();
            }
            ask(&service, request("PURGE", "/", &[("x-permitted", "1")])).await;
            let mut answered = 0;
            for request in requests() {
                ask(&service, request).await;
                answered += 1;
            }
            let stats = cache.stats();
            assert_eq!(counted(&stats), passes.len() as u64 + answered, "{status} {headers:?}");
        }
    }
}

/// Ten requests one after the other, of which some lead and the others pass.
#[tokio::test(start_paused = true)]
async fn an_own_answer_is_led_and_each_5xx_counts_as_a_failure() {
    // The status, the headers, and how many of ten lead, fail as loads, and fail as passes.
    type Row = (u16, Lines<'static>, [u64; 3]);
    const TABLE: &[Row] = &[
        (200, &[("cache-control", "private")], [1, 0, 0]),
        (403, &[], [10, 0, 0]),
        (404, &[], [10, 0, 0]),
        (500, &[], [10, 10, 0]),
        (501, &[], [10, 10, 0]),
        (503, &[("retry-after", "60")], [10, 10, 0]),
    ];
    for (status, headers, expected) in TABLE {
        let (inner, _) = origin(move |_, _| reply(*status, headers, "answer"));
        let cache = cache(&MemoryBackend::new());
        let service = http_layer(cache.clone()).layer(inner);
        for _ in 0..10 {
            ask(&service, get("/")).await;
        }
        let stats = cache.stats();
        assert_eq!([stats.led, stats.failures, stats.passed_failed], *expected, "{status}");
        assert_eq!((stats.led + stats.passed, stats.failed), (10, 0), "{status}");
    }
    // One that is shared is a failure of the service as well.
    let (inner, _) = origin(|_, _| reply(503, &[("cache-control", "max-age=60")], "answer"));
    let cache = cache(&MemoryBackend::new());
    let service = http_layer(cache.clone()).policy(Policy::rfc9111()).layer(inner);
    for _ in 0..10 {
        ask(&service, get("/")).await;
    }
    let stats = cache.stats();
    assert_eq!((stats.led, stats.hits, stats.loads, stats.failures), (1, 9, 1, 1));
    // So is one that is beyond the load limit.
    let cache = builder().load_limit(DELAY / 2).build().unwrap();
    let service = http_layer(cache.clone()).layer(numbered().0);
    ask(&service, get("/")).await;
    let stats = cache.stats();
    assert_eq!((stats.failed, stats.failures, counted(&stats)), (1, 1, 1));
}

/// Of the waiters of a failing service, each is answered by its own call in the end.
#[tokio::test(start_paused = true)]
async fn a_pass_that_fails_is_counted() {
    let (inner, calls) = origin(|_, _| reply(503, &[], "answer"));
    let cache = cache(&MemoryBackend::new());
    let service = http_layer(cache.clone()).layer(inner);
    crowd(&service, 50).await;
    let stats = cache.stats();
    assert_eq!((calls.count(), counted(&stats), stats.failed), (50, 50, 0));
    assert_eq!(stats.failures + stats.passed_failed, 50);
    assert_eq!((stats.passed, stats.passed_failed), (stats.passed_uncacheable, stats.passed));
    for header in [("cookie", "a=b"), ("authorization", "Basic YTpi")] {
        ask(&service, get_with(&[header])).await;
    }
    assert_eq!(cache.stats().passed_failed, stats.passed_failed + 2);
}

/// The refresh behind a stale response counted as a caller whose response was too old.
#[tokio::test(start_paused = true)]
async fn a_stale_hit_has_missed_nothing() {
    let (inner, _) = with_headers(&[("cache-control", "max-age=10, stale-while-revalidate=60")]);
    let cache = cache(&MemoryBackend::new());
    let service = http_layer(cache.clone()).layer(inner);
    ask(&service, get("/")).await;
    sleep(11 * SECOND).await;
    ask(&service, get("/")).await;
    sleep(2 * DELAY).await;
    let stats = cache.stats();
    assert_eq!((stats.stale, stats.refreshes, stats.missed_stale), (1, 1, 0));
}

/// The marker of a resource with parts counted as a load of its own.
#[tokio::test(start_paused = true)]
async fn a_marker_is_no_load() {
    let (inner, _) = with_headers(&[("cache-control", "max-age=60")]);
    let cache = cache(&MemoryBackend::new());
    let layer = http_layer(cache.clone()).vary_by(|_| "part".to_owned());
    let service = layer.layer(inner);
    for _ in 0..10 {
        ask(&service, get("/")).await;
    }
    let stats = cache.stats();
    assert_eq!((stats.led, stats.hits, stats.loads, stats.stored), (1, 9, 1, 1));
}
