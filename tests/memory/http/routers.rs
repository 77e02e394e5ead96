//! The layer in routers of axum, and behind hyper.

use axum::{
    Router,
    extract::{Path, Request},
    middleware::{self, Next},
    response::IntoResponse,
    routing::get as route,
};
use http_body_util::Empty;

use super::{
    prelude::*,
    upgrades::{client, connect},
};
async fn read(app: &Router, path: &str) -> String {
    let response = app.clone().oneshot(get(path)).await.unwrap();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    String::from_utf8(body.to_vec()).unwrap()
}

/// Returns a handler that answers with a name and the number of the call.
fn named(name: &'static str) -> axum::routing::MethodRouter {
    let calls = Arc::new(AtomicUsize::new(0));
    route(move || {
        let call = calls.fetch_add(1, Ordering::SeqCst) + 1;
        sleep(DELAY).map(move |()| format!("{name} {call}"))
    })
}

#[tokio::test(start_paused = true)]
async fn a_router_shares_with_layer_and_with_route_layer() {
    let both = || Router::new().route("/a", named("a")).route("/b", named("b"));
    let apps = [
        both().layer(layer()),
        both().route_layer(layer()),
        Router::new()
            .route("/a", named("a").layer(layer()))
            .route("/b", named("b").route_layer(layer())),
    ];
    for app in apps {
        let asked = (0..100).map(|caller| {
            let app = app.clone();
            spawn(async move { read(&app, ["/a", "/b"][caller % 2]).await })
        });
        for (caller, answer) in all(asked).await.iter().enumerate() {
            assert_eq!(*answer, ["a 1", "b 1"][caller % 2]);
        }
    }
}

/// `nest` strips the prefix before an inner layer sees the URI.
#[tokio::test(start_paused = true)]
async fn nested_routers_do_not_share_different_routes() {
    let layer = layer();
    let inner = |name| Router::new().route("/items", named(name)).layer(layer.clone());
    let app = Router::new()
        .nest("/a", inner("a"))
        .nest("/b", inner("b"))
        .nest("/c", Router::new().nest("/a", inner("c")));
    for _ in 0..2 {
        assert_eq!(read(&app, "/a/items").await, "a 1");
        assert_eq!(read(&app, "/b/items").await, "b 1");
        assert_eq!(read(&app, "/c/a/items").await, "c 1");
    }
}

/// A middleware may send one path to two routes. The original path alone is then not enough for the
/// key.
#[tokio::test(start_paused = true)]
async fn a_path_that_was_rewritten_on_the_way_is_part_of_the_key() {
    async fn by_version(mut request: Request, next: Next) -> impl IntoResponse {
        let version = request.headers()["x-version"].to_str().unwrap().to_owned();
        *request.uri_mut() = format!("/{version}").parse().unwrap();
        next.run(request).await
    }
    let (inner, _) = origin(|_, request| reply(200, &[], request.uri().path().to_owned()));
    let service = layered(&inner);
    let app = Router::new()
        .fallback_service(service.map_response(|response| response.map(Body::new)))
        .layer(middleware::from_fn(by_version));
    for version in ["v1", "v2", "v1"] {
        let response = app.clone().oneshot(get_with(&[("x-version", version)])).await.unwrap();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        assert_eq!(body, format!("/{version}"));
    }
}

#[tokio::test(start_paused = true)]
async fn extractors_see_the_request_as_it_came() {
    let app = Router::new()
        .route(
            "/products/{id}",
            route(|Path(id): Path<u64>| async move { format!("product {id}") }),
        )
        .layer(layer());
    for id in [1, 2, 1] {
        assert_eq!(read(&app, &format!("/products/{id}")).await, format!("product {id}"));
    }
}

/// The layer is applied to a router and to a nested router, over one cache.
#[tokio::test(start_paused = true)]
async fn a_layer_within_itself_does_not_wait_for_itself() {
    let layer = layer();
    let inner = Router::new().route("/items", named("a")).layer(layer.clone());
    let app = Router::new().merge(inner).layer(layer);
    assert_eq!(timeout(5 * SECOND, read(&app, "/items")).await.unwrap(), "a 1");
}

#[tokio::test]
async fn hyper_serves_the_layer() {
    let (inner, calls) = origin(|_, request| {
        assert_eq!(request.headers()["host"], "shop.example");
        reply(200, &[], "a product")
    });
    let service = layer().layer(
        // Converts bodies of hyper to those of axum.
        tower::ServiceBuilder::new()
            .map_request(|request: http::Request<hyper::body::Incoming>| request.map(Body::new))
            .service(inner),
    );
    for _ in 0..2 {
        let request = http::Request::get("/a").header("host", "shop.example");
        let request = request.body(Empty::<Bytes>::new()).unwrap();
        let response = client(connect(&service)).await.send_request(request).await.unwrap();
        assert_eq!(response.headers()["content-length"], "9");
        assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), "a product");
    }
    assert_eq!(calls.count(), 1);
}
