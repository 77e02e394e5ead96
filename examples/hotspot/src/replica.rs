//! One replica of the service: `GET /products/{id}`, out of the cache or from the origin.
//!
//! The handler is the same in all three ways; what differs is what stands around it.

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
    BellwetherLayer, Cache, MemoryBackend, RedisBackend, http_cache, layer::CachedResponse,
};
use serde::{Deserialize, Serialize};

use crate::{Failure, http::Client, origin::Product};

/// The three ways to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Way {
    /// A cache with a TTL; whoever finds nothing in it loads.
    NoProtection,
    /// Bellwether, with a store of its own in each replica.
    InProcess,
    /// Bellwether, with a store that the replicas share.
    Bellwether,
}

impl Way {
    pub(crate) const ALL: [Self; 3] = [Self::NoProtection, Self::InProcess, Self::Bellwether];

    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::NoProtection => "no protection",
            Self::InProcess => "in-process only",
            Self::Bellwether => "bellwether",
        }
    }

    pub(crate) fn explanation(self) -> &'static str {
        match self {
            Self::NoProtection => "every request that finds nothing in the cache loads",
            Self::InProcess => "each replica has one request load",
            Self::Bellwether => "the fleet has one request load",
        }
    }
}

/// What a replica is told.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Settings {
    pub number: u16,
    pub way: Way,
    pub origin: SocketAddr,
    pub redis: Option<String>,
    pub namespace: String,
    pub ttl: Duration,
    pub lease: Duration,
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
        Way::InProcess | Way::Bellwether => {
            app.layer(BellwetherLayer::http(answers(&settings, shared)?))
        }
    };
    listener.set_nonblocking(true)?;
    axum::serve(tokio::net::TcpListener::from_std(listener)?, app).await?;
    Ok(())
}

/// Serves as a process of its own: settings on the first line of standard input, the address on standard
/// output. It ends when its standard input does, so it does not outlive the process that started it.
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

/// A cache of answers, over the store that the way asks for.
fn answers(settings: &Settings, shared: MemoryBackend) -> Result<Cache<CachedResponse>, Failure> {
    let builder = match (settings.way, &settings.redis) {
        (Way::InProcess, _) => http_cache(MemoryBackend::new()),
        (_, None) => http_cache(shared),
        (_, Some(url)) => http_cache(RedisBackend::open(url)?),
    };
    let builder = builder.namespace(&settings.namespace).ttl(settings.ttl);
    Ok(builder.lease(settings.lease).build()?)
}

/// A plain cache of texts, over the shared store.
fn texts(settings: &Settings, shared: MemoryBackend) -> Result<Cache<String>, Failure> {
    let builder = match &settings.redis {
        None => Cache::builder(shared),
        Some(url) => Cache::builder(RedisBackend::open(url)?),
    };
    Ok(builder.namespace(&settings.namespace).ttl(settings.ttl).build()?)
}

/// What most services do: look into the cache; if there is nothing, load, and put it there.
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
    // What could not be stored is loaded again.
    let _ = cache.insert(&key, &body).await;
    Ok(body.into_response())
}

/// The origin, as a replica asks it.
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
