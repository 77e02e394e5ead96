//! Responses from a local tier.

use bellwether::cache::LocalTier;

use super::prelude::*;

#[tokio::test(start_paused = true)]
async fn a_copy_of_a_response_has_its_age_and_ends_with_a_write_elsewhere() {
    let (inner, calls) = origin(|call, request| {
        let language = request
            .headers()
            .get("accept-language")
            .map_or("", |language| language.to_str().unwrap());
        let headers = [("cache-control", "max-age=60"), ("vary", "accept-language")];
        reply(200, &headers, format!("{call}{language}"))
    });
    let backend = MemoryBackend::new();
    let caches = [(); 2].map(|()| {
        let builder = http_cache(backend.clone(), "shop").local(LocalTier::default());
        builder.build().unwrap()
    });
    let [one, other] = caches.clone().map(|cache| http_layer(cache).layer(inner.clone()));
    for language in ["en", "de"] {
        let of = [("accept-language", language)];
        for _ in 0..3 {
            ask(&one, get_with(&of)).await;
        }
        sleep(3 * SECOND).await;
        let hits = caches[0].stats().hits;
        let local = caches[0].stats().local;
        let answer = ask(&one, get_with(&of)).await;
        assert_eq!(answer.headers["age"], "3", "{language}");
        assert_eq!((caches[0].stats().hits, caches[0].stats().local), (hits, local + 1));
        assert!(answer.text().ends_with(language));
    }
    // A request that wants a newer one is not served the copy.
    let before = calls.count();
    ask(&one, get_with(&[("accept-language", "en"), ("cache-control", "no-cache")])).await;
    assert_eq!(calls.count(), before + 1);
    ask(&other, request("POST", "/", &[("host", "shop")])).await;
    let before = calls.count();
    ask(&one, get("/")).await;
    assert_eq!(calls.count(), before + 1);
}
