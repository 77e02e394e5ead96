//! A small service to copy from: products out of a slow database.
//!
//! ```text
//! cargo run --example axum_service
//! REDIS_URL=redis://127.0.0.1/ cargo run --example axum_service      # as many as you like
//!
//! curl localhost:3000/products/1
//! curl localhost:3000/catalog
//! curl -X PUT localhost:3000/products/1 \
//!     -H 'content-type: application/json' -d '{"name":"bell","price":9}'
//! ```
//!
//! `/products/{id}` guards the query itself, with `Cache::get_or_load`. `/catalog` is an ordinary
//! handler with a `BellwetherLayer` around it.

use std::{
    collections::BTreeMap,
    env,
    io::{self, IsTerminal},
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use axum::{
    Json, Router,
    extract::{Path, State},
    http::StatusCode,
    routing::get,
};
use bellwether::{
    BellwetherLayer, BoxError, Cache, ErrorKind, MemoryBackend, RedisBackend,
    backend::Store,
    cache::{Lead, Stats},
    http_cache,
    layer::CachedResponse,
};
use clap::Parser;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::{net::TcpListener, signal, task::JoinSet, time::sleep};
use tracing::{error, info, warn};
use tracing_subscriber::EnvFilter;

/// The time limit of loads at the end of the service.
const GRACE: Duration = Duration::from_secs(5);

/// How old the catalog may be.
const CATALOG_LIFETIME: Duration = Duration::from_secs(2);

/// A small service that sends one query for all requests that want the same at once.
#[derive(Parser)]
struct Options {
    /// Where to listen.
    #[arg(long, default_value = "127.0.0.1:3000")]
    listen: SocketAddr,

    /// Start on a free port, make a few requests, print what came, and exit.
    #[arg(long)]
    once: bool,
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let options = Options::parse();
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(io::stderr().is_terminal())
        .with_writer(io::stderr)
        .init();

    let shop = match env::var("REDIS_URL") {
        // The backend connects in the background. The service also starts while Redis is down.
        Ok(url) => Shop::new(RedisBackend::open(&url)?)?,
        Err(_) => Shop::new(MemoryBackend::new())?,
    };
    let listen = if options.once { ([127, 0, 0, 1], 0).into() } else { options.listen };
    let listener = TcpListener::bind(listen).await?;
    let address = listener.local_addr()?;
    info!(%address, "listening");

    let server = axum::serve(listener, router(shop.clone()));
    if options.once {
        tokio::select! {
            ended = server => ended?,
            shown = try_it(address) => shown?,
        }
    } else {
        server.with_graceful_shutdown(told_to_end()).await?;
    }
    // After the last request, running loads may end, and their leases are released.
    shop.products.shutdown(GRACE).await;
    shop.pages.shutdown(GRACE).await;
    Ok(())
}

/// The state of the handlers. Clones share it.
#[derive(Clone)]
struct Shop {
    database: Arc<Database>,
    /// Products by number. A missing product is an entry, too.
    products: Cache<Option<Product>>,
    /// Complete HTTP answers.
    pages: Cache<CachedResponse>,
}

impl Shop {
    fn new(backend: impl Store + Clone) -> Result<Self, bellwether::Error> {
        Ok(Self {
            database: Arc::new(Database::filled()),
            products: Cache::builder(backend.clone(), "shop")
                .ttl(Duration::from_secs(60))
                .build()?,
            pages: http_cache(backend, "shop-pages").build()?,
        })
    }
}

fn router(shop: Shop) -> Router {
    let catalog = Router::new()
        .route("/catalog", get(catalog))
        // The answers of this route name no lifetime, and all of them may be shared.
        .layer(BellwetherLayer::http(shop.pages.clone()).default_lifetime(CATALOG_LIFETIME));
    Router::new()
        .route("/products/{id}", get(product).put(update))
        .route("/healthz", get(|| async { "ok" }))
        .route("/stats", get(stats))
        .merge(catalog)
        .with_state(shop)
}

async fn product(
    State(shop): State<Shop>,
    Path(id): Path<u64>,
) -> Result<Json<Product>, StatusCode> {
    let database = shop.database.clone();
    let load = move |lead: Lead<_>| async move {
        let product = database.product(id).await;
        if product.is_none() {
            // A short time, because the product may be added at any time.
            lead.expire_after(Duration::from_secs(5));
        }
        Ok::<_, BoxError>(product)
    };
    match shop.products.get_or_load(key(id), load).await {
        Ok(Some(product)) => Ok(Json(product)),
        Ok(None) => Err(StatusCode::NOT_FOUND),
        Err(error) if error.kind() == ErrorKind::Overloaded => Err(StatusCode::SERVICE_UNAVAILABLE),
        Err(error) => {
            error!(error = %format_args!("{error:#}"), id, "a product could not be loaded");
            Err(StatusCode::BAD_GATEWAY)
        }
    }
}

/// Writes the database first, then the cache. A request after the answer sees the new product in
/// the whole fleet, and a load of the old product is not stored. The catalog may be 2 s old.
async fn update(
    State(shop): State<Shop>,
    Path(id): Path<u64>,
    Json(change): Json<Change>,
) -> Result<Json<Product>, StatusCode> {
    let product = shop.database.update(id, change).await;
    match shop.products.invalidate(key(id)).await {
        Ok(_) => Ok(Json(product)),
        Err(error) if error.is_deferred() => {
            // Redis is away. This process invalidates the product as soon as Redis answers. Other
            // processes may serve the old one until then.
            warn!(error = %format_args!("{error:#}"), id, "an updated product ends later");
            Ok(Json(product))
        }
        Err(error) => {
            // Redis refused it, and nobody repeats it: the old product may be served until it
            // expires. The client may send the request again.
            error!(
                error = %format_args!("{error:#}"),
                id,
                "an updated product is still in the cache"
            );
            Err(StatusCode::SERVICE_UNAVAILABLE)
        }
    }
}

/// Lists all products. This handler does not know of the layer around it.
async fn catalog(State(shop): State<Shop>) -> Json<Vec<Product>> {
    Json(shop.database.catalog().await)
}

async fn stats(State(shop): State<Shop>) -> Json<Value> {
    let queries = *shop.database.queries();
    Json(json!({
        "queries": queries,
        "products": counted(shop.products.stats()),
        "pages": counted(shop.pages.stats()),
    }))
}

fn counted(stats: Stats) -> Value {
    json!({
        "hits": stats.hits,
        "led": stats.led,
        "followed": stats.followed,
        "received": stats.received,
        "degraded": stats.degraded,
        "passed": stats.passed,
        "failures": stats.failures,
        "backend_errors": stats.backend_errors,
        "flights": stats.flights,
    })
}

fn key(id: u64) -> String {
    format!("product:{id}")
}

#[derive(Clone, Debug, Deserialize, Serialize)]
struct Product {
    id: u64,
    name: String,
    price: u32,
}

#[derive(Debug, Deserialize, Serialize)]
struct Change {
    name: String,
    price: u32,
}

/// Stands for a database: each query takes 300 ms. Unlike a real one, each replica has its own.
struct Database {
    products: Mutex<BTreeMap<u64, Product>>,
    queries: Mutex<u64>,
}

impl Database {
    fn filled() -> Self {
        let names = ["bell", "crook", "shears"];
        let product =
            |(id, name): (u64, &str)| (id, Product { id, name: name.to_owned(), price: 7 });
        Self {
            products: Mutex::new((1..).zip(names).map(product).collect()),
            queries: Mutex::new(0),
        }
    }

    async fn product(&self, id: u64) -> Option<Product> {
        self.query().await;
        self.products().get(&id).cloned()
    }

    async fn catalog(&self) -> Vec<Product> {
        self.query().await;
        self.products().values().cloned().collect()
    }

    async fn update(&self, id: u64, Change { name, price }: Change) -> Product {
        self.query().await;
        let product = Product { id, name, price };
        self.products().insert(id, product.clone());
        product
    }

    async fn query(&self) {
        *self.queries() += 1;
        sleep(Duration::from_millis(300)).await;
    }

    fn products(&self) -> MutexGuard<'_, BTreeMap<u64, Product>> {
        self.products.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn queries(&self) -> MutexGuard<'_, u64> {
        self.queries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Completes on Ctrl-C and on SIGTERM, the signal of a deployment.
async fn told_to_end() {
    let interrupted = async {
        if let Err(error) = signal::ctrl_c().await {
            error!(error = %format_args!("{error:#}"), "Ctrl-C cannot be heard");
            std::future::pending::<()>().await;
        }
    };
    #[cfg(unix)]
    let terminated = async {
        match signal::unix::signal(signal::unix::SignalKind::terminate()) {
            Ok(mut terminate) => terminate.recv().await,
            Err(error) => {
                error!(error = %format_args!("{error:#}"), "SIGTERM cannot be heard");
                std::future::pending().await
            }
        }
    };
    #[cfg(not(unix))]
    let terminated = std::future::pending::<Option<()>>();
    tokio::select! {
        () = interrupted => {}
        _ = terminated => {}
    }
    info!("ending");
}

/// Sends a few requests and prints the answers.
async fn try_it(address: SocketAddr) -> Result<(), BoxError> {
    let client = reqwest::Client::builder().no_proxy().build()?;
    let url = |path: &str| format!("http://{address}{path}");
    let read = async |path: &str| client.get(url(path)).send().await?.text().await;

    println!("GET /healthz            {}", read("/healthz").await?);
    for path in ["/products/1", "/catalog"] {
        let mut requests = JoinSet::new();
        for _ in 0..20 {
            requests.spawn(client.get(url(path)).send());
        }
        for answer in requests.join_all().await {
            answer?.error_for_status()?;
        }
        println!("GET {path:<12} x 20   {}", read(path).await?);
    }
    println!("GET /products/9         {}", client.get(url("/products/9")).send().await?.status());
    let change = Change { name: "big bell".to_owned(), price: 9 };
    let changed = client.put(url("/products/1")).json(&change).send().await?;
    println!("PUT /products/1         {}", changed.status());
    println!("GET /products/1         {}", read("/products/1").await?);
    println!("GET /stats              {}", read("/stats").await?);
    Ok(())
}
