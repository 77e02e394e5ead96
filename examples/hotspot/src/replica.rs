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
    BellwetherLayer, Cache, RedisBackend,
    cache::{AfterFailure, Builder, EarlyRefresh, LocalTier},
    http_cache,
    layer::CachedResponse,
};
use serde::{Deserialize, Serialize};

use crate::{Failure, http::Client, options::Options, origin::Product, store::Shared};

/// What a replica may remember for the time in which the store is away, in bytes.
const OUTAGE_MEMORY: usize = 4 << 20;

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
    /// The old answer is served while one replica loads, and the shared store goes away for a
    /// while.
    StoreAway,
}

impl Way {
    pub(crate) const ALL: [Self; 7] = [
        Self::NoProtection,
        Self::InProcess,
        Self::Bellwether,
        Self::StaleWhileRevalidate,
        Self::EarlyRefresh,
        Self::LocalTier,
        Self::StoreAway,
    ];

    pub(crate) fn title(self, options: &Options) -> String {
        match self {
            Self::NoProtection => "no protection".to_owned(),
            Self::InProcess => "each replica alone".to_owned(),
            Self::Bellwether => "bellwether".to_owned(),
            Self::StaleWhileRevalidate => "stale while revalidate".to_owned(),
            Self::EarlyRefresh => "early refresh".to_owned(),
            Self::LocalTier => "with a local tier".to_owned(),
            Self::StoreAway => format!("{} goes away", options.store_name()),
        }
    }

    /// Returns how soon after a load the next one of the same key may be due.
    pub(crate) fn shortest_life(self, ttl: Duration) -> Duration {
        match self {
            Self::EarlyRefresh => ttl / 2,
            _ => ttl,
        }
    }

    pub(crate) fn explanation(self, options: &Options) -> String {
        let text = match self {
            Self::NoProtection => "each request that finds no value runs a query",
            Self::InProcess => "one request of each replica runs a query, others wait",
            Self::Bellwether => "one request of the fleet runs a query, others wait",
            Self::StaleWhileRevalidate => "the old value is served while one replica loads",
            Self::EarlyRefresh => "one replica loads before the value expires",
            Self::LocalTier => "old values meanwhile, and copies in each replica",
            Self::StoreAway => {
                return format!("for {:?}; each replica serves what it remembers", options.away);
            }
        };
        text.to_owned()
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
    shared: Shared,
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
    serve(settings, listener, Shared::default()).await
}

/// Opens a cache of answers over the store of the way.
fn answers(settings: &Settings, shared: Shared) -> Result<Cache<CachedResponse>, Failure> {
    let namespace = &settings.namespace;
    let builder = match (settings.way, &settings.redis) {
        (Way::InProcess, _) => http_cache(Shared::default().memory(), namespace),
        (Way::StoreAway, None) => http_cache(shared.memory_that_goes_away(), namespace),
        (_, None) => http_cache(shared.memory(), namespace),
        (_, Some(url)) => http_cache(RedisBackend::open(url)?, namespace),
    };
    // A refusal of this database is not the fault of one caller.
    let builder = builder.after_failure(|_| Some(AfterFailure::BACK_OFF));
    let builder = builder.ttl(settings.ttl).lease(settings.lease);
    Ok(with_windows(builder, settings).build()?)
}

/// Adds what the way has beyond a time to live.
fn with_windows<C>(
    builder: Builder<CachedResponse, C>,
    settings: &Settings,
) -> Builder<CachedResponse, C> {
    match settings.way {
        Way::NoProtection | Way::InProcess | Way::Bellwether => builder,
        Way::StaleWhileRevalidate => builder.stale_while_revalidate(settings.stale),
        // Over Redis this much is the default. The store in memory cannot go away by itself.
        Way::StoreAway => {
            builder.stale_while_revalidate(settings.stale).outage_memory(OUTAGE_MEMORY)
        }
        Way::EarlyRefresh => {
            builder.early_refresh(EarlyRefresh::LastPart(0.2)).stale_if_error(settings.stale)
        }
        Way::LocalTier => {
            let builder = builder.stale_while_revalidate(settings.stale);
            if settings.copies.is_zero() {
                return builder;
            }
            builder.local(LocalTier::default().max_age(settings.copies))
        }
    }
}

/// Opens a plain cache of texts over the shared store.
fn texts(settings: &Settings, shared: Shared) -> Result<Cache<String>, Failure> {
    let namespace = &settings.namespace;
    let builder = match &settings.redis {
        None => Cache::builder(shared.memory(), namespace),
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
