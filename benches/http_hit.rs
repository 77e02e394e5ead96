//! What a hit through the HTTP layer costs beside the bare handler.
//!
//! `cargo bench --bench http_hit [-- rounds]`. A request has the 12 headers of a browser, and its
//! response has 12 headers too. The first row needs no server, for the cache is in memory: both
//! ways take turns in one run, in processor time. The next rows are hits with one feature of
//! `examples/proxy` each, and with all, beside those without. The last row is a hit from Redis
//! beside a bare `GET` of the same entry by the same client library, one after the other.
#![allow(missing_docs, unreachable_pub, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::time::{Duration, Instant};

use axum::{
    Router,
    body::Body,
    http::{HeaderName, Request, header},
    routing::get,
};
use bellwether::{
    BellwetherLayer, MemoryBackend, RedisBackend, http_cache,
    key::{Family, Name, Namespace},
    layer::{Http, Policy},
};
use cpu_time::ProcessTime;
use http_body_util::BodyExt;
use redis::IntoConnectionInfo;
use report::figures::{Chart, Rows, Statistic, turns};
use testkit::RedisServer;
use tower::ServiceExt;

const HITS: u32 = 1_000;
/// A turn of a way that needs the server is short, because the time of a round trip changes.
const TURN: u32 = 100;

fn main() {
    let mut words = std::env::args().skip(1);
    let rounds = words.find_map(|word| word.parse().ok()).unwrap_or(7);
    let in_memory = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    in_memory.block_on(from_memory(rounds));
    in_memory.block_on(with_features(rounds));
    let with_server = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    // The task is spawned, so that no measured future runs in `block_on`.
    with_server.block_on(async move { tokio::spawn(from_redis(rounds)).await.unwrap() });
}

const ROWS: Rows = Rows {
    chart: Chart::HttpHit,
    command: "cargo bench --bench http_hit",
    statistic: Statistic::Median,
};

async fn from_memory(rounds: usize) {
    let bare = router();
    let cache = http_cache(MemoryBackend::new(), "bellwether").build().unwrap();
    let layer = BellwetherLayer::http(cache.clone()).default_lifetime(Duration::from_secs(60));
    let layered = bare.clone().layer(layer);
    let mut times = [const { Vec::new() }; 2];
    for _ in 0..turns(rounds * 50) {
        for (way, app) in [&bare, &layered].into_iter().enumerate() {
            let begun = ProcessTime::now();
            for _ in 0..HITS {
                ask(app).await;
            }
            times[way].push(begun.elapsed() / HITS);
        }
    }
    assert_eq!(cache.stats().loads, 1);
    let [bare, layered] = &times;
    ROWS.floor(("a hit from memory", layered), ("the bare handler", bare)).unwrap();
}

/// What the proxy sets, each alone and then all of them. The first row is without any.
const FEATURES: [(&str, Set); 7] = [
    ("a hit from memory", |layer| layer),
    ("a hit with Cache-Status", BellwetherLayer::cache_status),
    ("a hit with surrogate keys", BellwetherLayer::surrogate_keys),
    ("a hit with a permitted PURGE", permit_purge),
    ("a hit with reloads ignored", BellwetherLayer::ignore_reloads),
    ("a hit by RFC 9111", |layer| layer.policy(Policy::rfc9111())),
    (ALL, |layer| permit_purge(layer.cache_status().surrogate_keys().ignore_reloads())),
];
const TAGS: &str = "a hit of a cache with tags";
const ALL: &str = "a hit with the features of the proxy";

type Set = fn(BellwetherLayer<Http>) -> BellwetherLayer<Http>;

fn permit_purge(layer: BellwetherLayer<Http>) -> BellwetherLayer<Http> {
    layer.purge_if(|parts| parts.headers.contains_key("x-purge-key"))
}

async fn with_features(rounds: usize) {
    let mut apps = Vec::new();
    for (name, set) in FEATURES.into_iter().chain([(TAGS, FEATURES[0].1)]) {
        let cache = http_cache(MemoryBackend::new(), "bellwether");
        let cache = if [TAGS, ALL].contains(&name) { cache.tags() } else { cache };
        let layer = BellwetherLayer::http(cache.build().unwrap());
        let layer = set(layer.default_lifetime(Duration::from_secs(60)));
        apps.push((name, router().layer(layer), Vec::new()));
    }
    for _ in 0..turns(rounds * 20) {
        for (_, app, times) in &mut apps {
            let begun = ProcessTime::now();
            for _ in 0..HITS {
                ask(app).await;
            }
            times.push(begun.elapsed() / HITS);
        }
    }
    let (without, with) = apps.split_first().unwrap();
    for (name, _, times) in with {
        ROWS.floor((name, times), (without.0, &without.2)).unwrap();
    }
}

async fn from_redis(rounds: usize) {
    let server = RedisServer::start().await;
    let cache = http_cache(RedisBackend::open(&server.url()).unwrap(), "shop").build().unwrap();
    let layer = BellwetherLayer::http(cache.clone()).default_lifetime(Duration::from_secs(3_600));
    let (parts, _) = request().into_parts();
    let key = layer.key(&parts).unwrap();
    let namespace = Namespace::new("shop").unwrap();
    let entry = Name::new(&namespace, Family::Cache, &key, 512).unwrap().entry();
    let layered = router().layer(layer);
    ask(&layered).await;
    let tcp = redis::io::tcp::TcpSettings::default().set_nodelay(true);
    let info = server.url().into_connection_info().unwrap().set_tcp_settings(tcp);
    let client = redis::Client::open(info).unwrap();
    let mut client = client.get_multiplexed_async_connection().await.unwrap();
    let mut times = [const { Vec::new() }; 2];
    for _ in 0..turns(rounds * 60) {
        let begun = Instant::now();
        for _ in 0..TURN {
            ask(&layered).await;
        }
        times[0].push(begun.elapsed() / TURN);
        let begun = Instant::now();
        for _ in 0..TURN {
            let stored: Vec<u8> =
                redis::cmd("GET").arg(&entry).query_async(&mut client).await.unwrap();
            assert!(stored.len() > 400);
        }
        times[1].push(begun.elapsed() / TURN);
    }
    assert_eq!(cache.stats().loads, 1);
    let [hit, bare] = &times;
    ROWS.floor(("a hit from Redis", hit), ("GET by the redis crate", bare)).unwrap();
}

/// Returns a service whose responses have 12 headers. axum adds the type and the length.
fn router() -> Router {
    let headers = [
        (header::CACHE_CONTROL, "max-age=3600"),
        (header::ETAG, "\"5f3c-61a0b7\""),
        (header::LAST_MODIFIED, "Tue, 14 Nov 2023 22:13:20 GMT"),
        (header::CONTENT_LANGUAGE, "en"),
        (header::CONTENT_SECURITY_POLICY, "default-src 'self'; img-src 'self' data:"),
        (header::STRICT_TRANSPORT_SECURITY, "max-age=31536000; includeSubDomains"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::X_FRAME_OPTIONS, "DENY"),
        (header::SERVER, "shop"),
        (HeaderName::from_static("x-release"), "2026-11-20"),
    ];
    Router::new().route("/products/{id}", get(async move || (headers.clone(), "a product")))
}

fn request() -> Request<Body> {
    Request::get("/products/42")
        .header("host", "shop.example")
        .header("user-agent", "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101")
        .header("accept", "text/html,application/xhtml+xml,application/xml;q=0.9")
        .header("accept-language", "en-GB,en;q=0.5")
        .header("accept-encoding", "gzip, deflate, br, zstd")
        .header("referer", "https://shop.example/")
        .header("connection", "keep-alive")
        .header("upgrade-insecure-requests", "1")
        .header("sec-fetch-dest", "document")
        .header("sec-fetch-mode", "navigate")
        .header("sec-fetch-site", "none")
        .header("sec-fetch-user", "?1")
        .body(Body::empty())
        .unwrap()
}

async fn ask(app: &Router) {
    let response = app.clone().oneshot(request()).await.unwrap();
    assert!(response.headers().len() >= 12);
    assert_eq!(response.into_body().collect().await.unwrap().to_bytes().len(), 9);
}
