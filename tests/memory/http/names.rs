//! The namespace of a cache, which keeps services apart that share a backend.

use super::prelude::*;

/// They served each other's answers out of one server.
#[tokio::test(start_paused = true)]
async fn services_with_one_host_name_get_their_own_answers() {
    let backend = MemoryBackend::new();
    let services = ["shop", "bank"].map(|name| {
        let (inner, _) = origin(move |_, _| Response::new(Body::from(name)));
        let cache = http_cache(backend.clone(), name).build().unwrap();
        http_layer(cache).layer(inner)
    });
    let request = || get_with(&[("host", "internal")]);
    for _ in 0..2 {
        let [shop, bank] = &services;
        assert_eq!(ask(shop, request()).await.text(), "shop");
        assert_eq!(ask(bank, request()).await.text(), "bank");
    }
    let answers = ask_all(&services, (0..20).map(|_| request())).await;
    for (at, answer) in answers.iter().enumerate() {
        assert_eq!(answer.text(), ["shop", "bank"][at % 2]);
    }
}
