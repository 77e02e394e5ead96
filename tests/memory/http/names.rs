//! The namespace of a cache, which keeps services apart that share a backend.

use bellwether::RedisBackend;

use super::prelude::*;

/// Two services with one host name served each other's answers out of one server.
#[tokio::test]
async fn a_cache_over_a_shared_backend_needs_a_name() {
    // The backend connects when it is first used, so no server is needed.
    let backend = RedisBackend::open("redis://127.0.0.1:1").unwrap();
    let error = http_cache(backend.clone()).build().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidConfig);
    assert!(error.to_string().contains("`namespace`"), "{error}");
    assert!(http_cache(backend).namespace("shop").build().is_ok());
    assert!(http_cache(MemoryBackend::new()).build().is_ok());
}

#[tokio::test(start_paused = true)]
async fn services_with_one_host_name_get_their_own_answers() {
    let backend = MemoryBackend::new();
    let services = ["shop", "bank"].map(|name| {
        let (inner, _) = origin(move |_, _| Response::new(Body::from(name)));
        let cache = http_cache(backend.clone()).namespace(name).build().unwrap();
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
