//! One replica of the service: `GET /products/{id}`, from the cache or from the origin.
//!
//! The handler is the same in all ways. Only the cache around it differs.

use std::{
    io,
    net::{SocketAddr, TcpListener},
    process,
    sync::Arc,
    thread,
    time::Duration,
};

use axum::{
    Json, Router,
    extract::{Path, Request, State},
    http::StatusCode,
    middleware::{self, Next},
    response::{IntoResponse, Response},
    routing::get,
};
use bellwether::{
    BellwetherLayer, Cache, MemoryBackend, RedisBackend,
    cache::{EarlyRefresh, LocalTier},
    http_cache,
    layer::CachedResponse,
};
use serde::{Deserialize, Serialize};

use crate::{Failure, http::Client, origin::Product};

/// The ways to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Way {
    /// A cache with a TTL. Each request that finds no entry loads.
    NoProtection,
    /// Bellwether, with a store of its own in each replica.
    InProcess,
    /// Bellwether, with a store that the replicas share.
    Bellwether,
    /// The same, where the old answer is served while one replica loads.
    StaleWhileRevalidate,
    /// The same, where one replica loads before the answer expires. The old answer is served if
    /// the load fails.
    EarlyRefresh,
    /// The old answer is served while one replica loads, and each replica keeps copies.
    LocalTier,
}

impl Way {
    pub(crate) const ALL: [Self; 6] = [
        Self::NoProtection,
        Self::InProcess,
        Self::Bellwether,
        Self::StaleWhileRevalidate,
        Self::EarlyRefresh,
        Self::LocalTier,
    ];

    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::NoProtection => "no protection",
            Self::InProcess => "in-process only",
            Self::Bellwether => "bellwether",
            Self::StaleWhileRevalidate => "stale while revalidate",
            Self::EarlyRefresh => "early refresh",
            Self::LocalTier => "with a local tier",
        }
    }

    /// Returns how soon after a load the next one of the same key may be due.
    pub(crate) fn shortest_life(self, ttl: Duration) -> Duration {
        match self {
            Self::EarlyRefresh => ttl / 2,
            _ => ttl,
        }
    }

    pub(crate) fn explanation(self) -> &'static str {
        match self {
            Self::NoProtection => "each request that finds no value loads",
            Self::InProcess => "each replica lets one request load, the others wait",
            Self::Bellwether => "the fleet lets one request load, the others wait",
            Self::StaleWhileRevalidate => "the old value is served while one replica loads",
            Self::EarlyRefresh => "one replica loads before the value expires",
            Self::LocalTier => "old values meanwhile, and copies in each replica",
        }
    }
}

/// The settings of a replica.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Settings {
    pub number: u16,
    pub way: Way,
    pub origin: SocketAddr,
    pub redis: Option<String>,
    pub namespace: String,
    pub ttl: Duration,
    pub lease: Duration,
    /// For how long an old answer may be served.
    pub stale: Duration,
    /// For how long a copy of the local tier is served. There is no tier if it is zero.
    pub copies: Duration,
}

/// Serves until the runtime ends.
pub(crate) async fn serve(
    settings: Settings,
    listener: TcpListener,
    shared: MemoryBackend,
) -> Result<(), Failure> {
    let database = Database {
        client: Client::new(),
        rows: format!("http://{}/rows", settings.origin),
        replica: settings.number,
    };
    let app = Router::new().route("/products/{id}", get(product)).with_state(Arc::new(database));
    let app = match settings.way {
        Way::NoProtection => {
            let cache = texts(&settings, shared)?;
            app.layer(middleware::from_fn_with_state(cache, look_aside))
        }
        _ => {
            let answers = answers(&settings, shared)?;
            tokio::spawn(answers.answer_top());
            let layer = BellwetherLayer::http(answers.clone()).default_lifetime(settings.ttl);
            app.layer(layer).route("/local-reads", get(async move || Json(answers.stats().local)))
        }
    };
    listener.set_nonblocking(true)?;
    axum::serve(tokio::net::TcpListener::from_std(listener)?, app).await?;
    Ok(())
}

/// Serves as a process: it reads its settings from the first line of standard input and prints its
/// address. It ends when its standard input ends, and so with the process that started it.
pub(crate) async fn serve_as_process() -> Result<(), Failure> {
    let mut line = String::new();
    io::stdin().read_line(&mut line)?;
    let settings: Settings = serde_json::from_str(&line)?;
    thread::spawn(|| {
        let _ = io::copy(&mut io::stdin(), &mut io::sink());
        process::exit(0);
    });
    let listener = TcpListener::bind("127.0.0.1:0")?;
    println!("{}", listener.local_addr()?);
    serve(settings, listener, MemoryBackend::new()).await
}

/// Opens a cache of answers over the store of the way.
fn answers(settings: &Settings, shared: MemoryBackend) -> Result<Cache<CachedResponse>, Failure> {
    let namespace = &settings.namespace;
    let builder = match (settings.way, &settings.redis) {
        (Way::InProcess, _) => http_cache(MemoryBackend::new(), namespace),
        (_, None) => http_cache(shared, namespace),
        (_, Some(url)) => http_cache(RedisBackend::open(url)?, namespace),
    };
    let builder = builder.ttl(settings.ttl);
    let builder = match settings.way {
        Way::StaleWhileRevalidate | Way::LocalTier => {
            builder.stale_while_revalidate(settings.stale)
        }
        Way::EarlyRefresh => {
            builder.early_refresh(EarlyRefresh::LastPart(0.2)).stale_if_error(settings.stale)
        }
        _ => builder,
    };
    let builder = match settings.way {
        Way::LocalTier if !settings.copies.is_zero() => {
            builder.local(LocalTier::default().max_age(settings.copies))
        }
        _ => builder,
    };
    Ok(builder.lease(settings.lease).build()?)
}

/// Opens a plain cache of texts over the shared store.
fn texts(settings: &Settings, shared: MemoryBackend) -> Result<Cache<String>, Failure> {
    let namespace = &settings.namespace;
    let builder = match &settings.redis {
        None => Cache::builder(shared, namespace),
        Some(url) => Cache::builder(RedisBackend::open(url)?, namespace),
    };
    Ok(builder.ttl(settings.ttl).build()?)
}

/// Looks into the cache, and loads and inserts if there is no entry, as most services do.
async fn look_aside(
    State(cache): State<Cache<String>>,
    request: Request,
    next: Next,
) -> Result<Response, StatusCode> {
    let key = request.uri().path().to_owned();
    if let Ok(Some(body)) = cache.get(&key).await {
        return Ok(body.into_response());
    }
    let response = next.run(request).await;
    if response.status() != StatusCode::OK {
        return Ok(response);
    }
    let body = axum::body::to_bytes(response.into_body(), 1 << 20).await;
    let body = body.map_err(|_| StatusCode::BAD_GATEWAY)?;
    let body = String::from_utf8(body.to_vec()).map_err(|_| StatusCode::BAD_GATEWAY)?;
    // If the insert fails, the next request loads again.
    let _ = cache.insert(&key, &body).await;
    Ok(body.into_response())
}

/// The origin, from the side of a replica.
struct Database {
    client: Client,
    rows: String,
    replica: u16,
}

async fn product(
    State(database): State<Arc<Database>>,
    Path(id): Path<u16>,
) -> Result<Json<Product>, StatusCode> {
    let Database { client, rows, replica } = database.as_ref();
    let answer = client.get(&format!("{rows}/{id}?replica={replica}"), None).await;
    let answer = answer.map_err(|_| StatusCode::SERVICE_UNAVAILABLE)?;
    serde_json::from_slice(&answer).map(Json).map_err(|_| StatusCode::BAD_GATEWAY)
}
