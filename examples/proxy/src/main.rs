//! A reverse proxy that shares responses across a fleet.
//!
//! ```text
//! cargo run --release -p proxy -- --upstream http://127.0.0.1:8080
//! cargo run --release -p proxy -- --upstream http://127.0.0.1:8080 --redis redis://127.0.0.1/
//!
//! curl -i localhost:3000/
//! curl localhost:3001/metrics
//! ```
//!
//! Every line of it uses the public API alone. A request takes this way:
//!
//! 1. `server` accepts the connection. HTTP/1.1 and HTTP/2 share a port.
//! 2. `access` logs the request and counts it, and answers `502` in place of an error.
//! 3. The `BellwetherLayer` answers from the cache, or lets one request go on.
//! 4. `upstream` sends the request to the origin, without the headers of the connection. It answers
//!    `504` if the origin is too slow.
//!
//! On Ctrl-C and SIGTERM it accepts no more connections, finishes the running requests, and
//! releases its leases. `--once` starts an origin of its own and shows two requests.
//!
//! Build with `--profile bench` in place of `--release` before you measure. The release profile of
//! this repository optimises little, so that examples are compiled quickly, and a hit takes an
//! eighth more processor time. The access log costs 1 us to 2.5 us for each request, and `--quiet`
//! turns it off.

mod access;
mod metrics;
mod once;
mod options;
mod server;
mod upstream;

use std::{process::ExitCode, sync::Arc, time::Duration};

use bellwether::{
    BellwetherLayer, BoxError, Cache, Error, MemoryBackend, RedisBackend,
    cache::{Builder, Codec},
    http_cache,
    layer::{self, CachedResponse, Http},
};
use http::request::Parts;
use tokio::net::TcpListener;
use tower::Layer;

use crate::{
    access::AccessLog,
    metrics::Metrics,
    options::{Options, Policy},
    server::Server,
    upstream::Upstream,
};

#[tokio::main]
async fn main() -> ExitCode {
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("proxy: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Result<(), BoxError> {
    let options = Options::read()?;
    if options.once {
        once::show(options).await
    } else {
        serve(options, server::told_to_end()).await
    }
}

/// Serves until `end`, then finishes the running requests.
async fn serve(options: Options, end: impl Future<Output = ()>) -> Result<(), BoxError> {
    let listener = TcpListener::bind(options.listen).await?;
    let metrics_listener = TcpListener::bind(options.metrics).await?;
    eprintln!("proxy: {} -> {}", listener.local_addr()?, options.upstream);
    eprintln!("proxy: metrics on http://{}/metrics", metrics_listener.local_addr()?);
    proxy(options, listener, metrics_listener, end).await
}

async fn proxy(
    options: Options,
    listener: TcpListener,
    metrics_listener: TcpListener,
    end: impl Future<Output = ()>,
) -> Result<(), BoxError> {
    let cache = cache(&options)?;
    let metrics = Arc::new(Metrics::default());
    let upstream = Upstream::new(&options)?;
    let service = sharing(&options, cache.clone()).layer(upstream);
    let service = AccessLog::new(service, metrics.clone(), !options.quiet);

    let server = Server::new(options.connections, options.grace);
    let scraped = metrics::service(metrics, cache.clone());
    let measured = Server::new(16, options.grace);
    tokio::select! {
        () = server.serve(listener, service, end) => {}
        () = measured.serve(metrics_listener, scraped, std::future::pending()) => {}
    }
    // After the last request, running loads may end, and their leases are released.
    cache.shutdown(options.grace).await;
    Ok(())
}

fn cache(options: &Options) -> Result<Cache<CachedResponse>, BoxError> {
    Ok(match &options.redis {
        // The backend connects in the background. The proxy also starts while Redis is down.
        Some(url) => build(http_cache(RedisBackend::open(url)?, &options.namespace), options)?,
        None => build(http_cache(MemoryBackend::new(), &options.namespace), options)?,
    })
}

fn build<C: Codec<CachedResponse>>(
    builder: Builder<CachedResponse, C>,
    options: &Options,
) -> Result<Cache<CachedResponse>, Error> {
    builder
        .ttl(options.ttl)
        // The origin's time-out comes first, and is a response like any other.
        .load_limit(options.timeout + Duration::from_secs(1))
        .max_loads(options.loads)
        .max_value(options.max_body)
        // A response that is kept beyond its lifetime can be validated.
        .stale_if_error(options.stale)
        .tags()
        .build()
}

fn sharing(options: &Options, cache: Cache<CachedResponse>) -> BellwetherLayer<Http> {
    let layer = BellwetherLayer::http(cache).surrogate_keys().cache_status();
    let layer = if options.ignores_reloads { layer.ignore_reloads() } else { layer };
    let layer = match options.purge_key.clone() {
        Some(key) => layer.purge_if(move |parts| {
            parts.headers.get("x-purge-key").is_some_and(|given| given.as_bytes() == key.as_bytes())
        }),
        None => layer,
    };
    let layer = match options.lifetime {
        Some(lifetime) => layer.default_lifetime(lifetime),
        None => layer,
    };
    match options.policy {
        Policy::Careful => layer,
        Policy::Rfc9111 => layer.policy(layer::Policy::rfc9111()),
        // A request without this part is not shared.
        Policy::Off => layer.vary_by(|_parts: &Parts| None::<String>),
    }
}
