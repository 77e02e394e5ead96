//! An axum service with the usual middlewares around a `BellwetherLayer`, in the right order.
//!
//! ```text
//! cargo run --example middleware
//! REDIS_URL=redis://127.0.0.1/ cargo run --example middleware      # as many as you like
//!
//! curl -i --compressed localhost:3000/catalog
//! curl -i -b 'session=…' localhost:3000/basket
//! ```
//!
//! A request goes down this list, and its response comes up (`service`):
//!
//! | middleware | reason for its place |
//! |---|---|
//! | trace | It sees all requests, also those that the cache answers. |
//! | catch panic | It answers for middlewares. The layer answers for a load that panics. |
//! | timeout | It bounds the wait of one caller. The load goes on for the others. |
//! | compression | One plain body is stored, and each client gets a coding that it accepts. |
//! | CORS | Its headers are for one web page, so they are not in the stored response. |
//! | sessions | A cookie becomes an extension. A `Set-Cookie` is added, and never stored. |
//! | **layer** | Its `vary_by` says for which users a response is. |
//! | load shed, concurrency limit | They count handlers that run. A hit needs no permit. |
//! | handlers | |
//!
//! The [docs](bellwether::BellwetherLayer::http) of the layer say what the other order costs.
//! `--once` sends a few requests, and prints how many of them reached a handler.

mod once;
mod service;
mod session;

use std::{env, net::SocketAddr, time::Duration};

use bellwether::{BoxError, MemoryBackend, RedisBackend, http_cache};
use clap::Parser;
use tokio::{net::TcpListener, signal};

use crate::service::Shop;

/// The time limit of loads at the end of the service.
const GRACE: Duration = Duration::from_secs(5);

/// An axum service that shares its responses beneath compression, CORS and sessions.
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
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    let cache = match env::var("REDIS_URL") {
        // The backend connects in the background. The service also starts while Redis is down.
        Ok(url) => http_cache(RedisBackend::open(&url)?, "middleware"),
        Err(_) => http_cache(MemoryBackend::new(), "middleware"),
    };
    let cache = cache.build()?;
    let listen = if options.once { ([127, 0, 0, 1], 0).into() } else { options.listen };
    let listener = TcpListener::bind(listen).await?;
    let address = listener.local_addr()?;
    eprintln!("listening on http://{address}");

    let shop = Shop::default();
    let server = axum::serve(listener, service::router(shop.clone(), cache.clone()));
    if options.once {
        tokio::select! {
            ended = server => ended?,
            shown = once::show(address, &shop) => shown?,
        }
    } else {
        server.with_graceful_shutdown(async { drop(signal::ctrl_c().await) }).await?;
    }
    // After the last request, running loads may end, and their leases are released.
    cache.shutdown(GRACE).await;
    Ok(())
}
