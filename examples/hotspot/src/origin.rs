//! The slow origin: an HTTP server that stands for a database.
//!
//! It runs [`CAPACITY`] queries at a time, and each takes the load time. Further queries wait in a
//! queue. Beyond [`CONNECTIONS`] the origin refuses them, as databases do. It records every load,
//! so that the figures of all ways come from one place.

use std::{
    net::SocketAddr,
    ops::Range,
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant, SystemTime},
};

use axum::{
    Json, Router,
    extract::{Path, Query, State},
    http::StatusCode,
    routing::get,
};
use serde::{Deserialize, Serialize};
use tokio::{
    net::TcpListener,
    sync::{Semaphore, broadcast},
    task::JoinHandle,
};

use crate::Failure;

/// Queries that run at once.
pub(crate) const CAPACITY: usize = 16;

/// Queries that may run or queue.
pub(crate) const CONNECTIONS: usize = 100;

/// The origin; it ends when this is dropped.
pub(crate) struct Origin {
    pub(crate) address: SocketAddr,
    database: Arc<Database>,
    server: JoinHandle<()>,
}

/// One load at the origin.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    pub(crate) at: Instant,
    pub(crate) key: u16,
    pub(crate) replica: u16,
}

/// A product, with the time at which the origin read it.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct Product {
    pub id: u16,
    pub name: String,
    pub read_at: SystemTime,
}

/// The replica that sends a query.
#[derive(Deserialize, Serialize)]
pub(crate) struct Asker {
    pub(crate) replica: u16,
}

struct Database {
    load_time: Duration,
    /// When all loads fail.
    failing: OnceLock<Range<Instant>>,
    places: Semaphore,
    connections: AtomicUsize,
    busiest: AtomicUsize,
    loads: Mutex<Vec<Load>>,
    told: broadcast::Sender<Load>,
}

impl Origin {
    /// Starts an origin on a free port.
    pub(crate) async fn start(load_time: Duration) -> Result<Self, Failure> {
        let database = Arc::new(Database {
            load_time,
            failing: OnceLock::new(),
            places: Semaphore::new(CAPACITY),
            connections: AtomicUsize::new(0),
            busiest: AtomicUsize::new(0),
            loads: Mutex::default(),
            told: broadcast::Sender::new(1024),
        });
        let app = Router::new().route("/rows/{key}", get(row)).with_state(database.clone());
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let server = tokio::spawn(async move {
            if let Err(error) = axum::serve(listener, app).await {
                eprintln!("hotspot: the origin ended: {error:#}");
            }
        });
        Ok(Self { address, database, server })
    }

    /// Lets all loads fail that end in this time.
    pub(crate) fn fail(&self, time: Range<Instant>) {
        let _ = self.database.failing.set(time);
    }

    /// Returns all loads since then, in order.
    pub(crate) fn loads(&self, since: Instant) -> Vec<Load> {
        self.database.log().iter().filter(|load| load.at >= since).copied().collect()
    }

    /// Returns the most queries that ran or waited at one time.
    pub(crate) fn busiest(&self) -> usize {
        self.database.busiest.load(Ordering::Relaxed)
    }

    /// Subscribes to the loads from now on.
    pub(crate) fn watch(&self) -> broadcast::Receiver<Load> {
        self.database.told.subscribe()
    }
}

impl Drop for Origin {
    fn drop(&mut self) {
        self.server.abort();
    }
}

impl Database {
    /// Records a load.
    fn note(&self, load: Load) {
        self.log().push(load);
        // There may be no subscriber.
        let _ = self.told.send(load);
    }

    fn log(&self) -> std::sync::MutexGuard<'_, Vec<Load>> {
        self.loads.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn row(
    State(database): State<Arc<Database>>,
    Path(key): Path<u16>,
    Query(asker): Query<Asker>,
) -> Result<Json<Product>, StatusCode> {
    database.note(Load { at: Instant::now(), key, replica: asker.replica });
    let connection = Connection::open(&database);
    if connection.others >= CONNECTIONS {
        return Err(StatusCode::SERVICE_UNAVAILABLE);
    }
    let place = database.places.acquire().await;
    let _place = place.map_err(|_| StatusCode::SERVICE_UNAVAILABLE)?;
    tokio::time::sleep(database.load_time).await;
    if database.failing.get().is_some_and(|time| time.contains(&Instant::now())) {
        return Err(StatusCode::SERVICE_UNAVAILABLE);
    }
    let (name, read_at) = (format!("product {key}"), SystemTime::now());
    Ok(Json(Product { id: key, name, read_at }))
}

/// A connection, counted until it is dropped, even if its client disconnects.
struct Connection<'a> {
    database: &'a Database,
    others: usize,
}

impl<'a> Connection<'a> {
    fn open(database: &'a Database) -> Self {
        let others = database.connections.fetch_add(1, Ordering::Relaxed);
        let connections = (others + 1).min(CONNECTIONS);
        database.busiest.fetch_max(connections, Ordering::Relaxed);
        Self { database, others }
    }
}

impl Drop for Connection<'_> {
    fn drop(&mut self) {
        self.database.connections.fetch_sub(1, Ordering::Relaxed);
    }
}
