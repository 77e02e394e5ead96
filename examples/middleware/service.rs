//! The handlers, and the middlewares around them.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use axum::{
    BoxError, Json, Router,
    error_handling::HandleErrorLayer,
    extract::{Request, State},
    http::{HeaderValue, Method, StatusCode, header::CACHE_CONTROL, request::Parts},
    middleware,
    response::{AppendHeaders, IntoResponse},
    routing::get,
};
use bellwether::{BellwetherLayer, Cache, layer::CachedResponse};
use serde_json::{Value, json};
use tokio::time::sleep;
use tower::{ServiceBuilder, limit::GlobalConcurrencyLimitLayer, load_shed::LoadShedLayer};
use tower_http::{
    catch_panic::CatchPanicLayer, compression::CompressionLayer, cors::CorsLayer,
    timeout::TimeoutLayer, trace::TraceLayer,
};

use crate::session::{self, Session};

/// The web page that may call this service, with the cookies of its user.
pub(crate) const PAGE: &str = "https://shop.example";

/// The largest number of handlers that run at once.
const HANDLERS: usize = 64;

/// The longest time that a caller waits.
const PATIENCE: Duration = Duration::from_secs(10);

/// The state of the handlers. Clones share it.
#[derive(Clone, Default)]
pub(crate) struct Shop {
    calls: Arc<AtomicU64>,
}

impl Shop {
    /// Returns how many requests have reached a handler.
    pub(crate) fn calls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }

    /// Stands for a slow database.
    async fn query(&self) {
        self.calls.fetch_add(1, Ordering::Relaxed);
        sleep(Duration::from_millis(100)).await;
    }
}

/// Returns the service. The first layer of a `ServiceBuilder` is the outermost one.
pub(crate) fn router(shop: Shop, cache: Cache<CachedResponse>) -> Router {
    let layers = ServiceBuilder::new()
        .layer(TraceLayer::new_for_http())
        .layer(CatchPanicLayer::new())
        .layer(TimeoutLayer::with_status_code(StatusCode::GATEWAY_TIMEOUT, PATIENCE))
        .layer(CompressionLayer::new())
        .layer(cors())
        .layer(middleware::from_fn(session::find))
        .layer(BellwetherLayer::http(cache).vary_by(plan).cache_status())
        // An overloaded service answers with a status, as a stale response may stand in for it.
        .layer(HandleErrorLayer::new(overloaded))
        .layer(LoadShedLayer::new())
        // A router applies a layer to each of its routes. A `ConcurrencyLimitLayer` would give
        // each route a limit of its own.
        .layer(GlobalConcurrencyLimitLayer::new(HANDLERS));
    Router::new()
        .route("/catalog", get(catalog))
        .route("/basket", get(basket))
        .with_state(shop)
        .layer(layers)
}

fn cors() -> CorsLayer {
    CorsLayer::new()
        .allow_origin(HeaderValue::from_static(PAGE))
        .allow_methods([Method::GET])
        .allow_credentials(true)
}

/// Returns the users that share a response: all with the same prices.
fn plan(parts: &Parts) -> Option<String> {
    Some(parts.extensions.get::<Session>()?.plan().to_owned())
}

async fn overloaded(_error: BoxError) -> StatusCode {
    StatusCode::SERVICE_UNAVAILABLE
}

/// Lists the products, with the prices of a plan. Its response is for all users of the plan.
async fn catalog(State(shop): State<Shop>, request: Request) -> impl IntoResponse {
    shop.query().await;
    let plan = request.extensions().get::<Session>().map(Session::plan);
    let products: Vec<Value> =
        (1..=20).map(|id| json!({ "id": id, "name": format!("bell {id}") })).collect();
    let control = AppendHeaders([(CACHE_CONTROL, "public, max-age=5")]);
    (control, Json(json!({ "prices": plan, "products": products })))
}

/// Returns the basket of one user. Its response says so.
async fn basket(State(shop): State<Shop>, request: Request) -> impl IntoResponse {
    shop.query().await;
    let user = request.extensions().get::<Session>().map(|session| session.user.clone());
    (AppendHeaders([(CACHE_CONTROL, "private")]), Json(json!({ "basket of": user })))
}
