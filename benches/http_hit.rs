//! What a hit through the HTTP layer costs beside the bare handler.
//!
//! `cargo bench --bench http_hit [-- rounds]` runs without a server: the cache is in memory. A
//! request has the 12 headers of a browser. Both ways take turns in one run, in processor time.
#![allow(missing_docs, unreachable_pub, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::time::Duration;

use axum::{Router, body::Body, routing::get};
use bellwether::{BellwetherLayer, MemoryBackend, http_cache};
use cpu_time::ProcessTime;
use http_body_util::BodyExt;
use tower::ServiceExt;

const HITS: u32 = 50_000;

fn main() {
    let rounds = std::env::args().skip(1).find_map(|word| word.parse().ok()).unwrap_or(7);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let bare: Router = Router::new().route("/products/{id}", get(|| async { "a product" }));
        let cache = http_cache(MemoryBackend::new()).build().unwrap();
        let layer = BellwetherLayer::http(cache.clone()).default_lifetime(Duration::from_secs(60));
        let layered = bare.clone().layer(layer);
        let mut best = [Duration::MAX; 2];
        for _ in 0..rounds {
            for (way, app) in [&bare, &layered].into_iter().enumerate() {
                let begun = ProcessTime::now();
                for _ in 0..HITS {
                    ask(app).await;
                }
                best[way] = best[way].min(begun.elapsed() / HITS);
            }
        }
        assert_eq!(cache.stats().loads, 1);
        let [bare, layered] = best;
        let (more, ratio) = (layered - bare, layered.as_secs_f64() / bare.as_secs_f64());
        println!("bare {bare:?}, a hit {layered:?}: {more:?} more, ratio {ratio:.2}");
    });
}

async fn ask(app: &Router) {
    let request = axum::http::Request::get("/products/42")
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
        .unwrap();
    let response = app.clone().oneshot(request).await.unwrap();
    assert_eq!(response.into_body().collect().await.unwrap().to_bytes().len(), 9);
}
