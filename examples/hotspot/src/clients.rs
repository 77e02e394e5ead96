//! The clients: real HTTP over connections that are kept alive.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use hdrhistogram::Histogram;
use tokio::{
    task::JoinSet,
    time::{sleep, timeout},
};

use crate::{Failure, fleet::Doors, http::Client, options::Options};

/// How long a client waits on average before it asks again.
const PAUSE: Duration = Duration::from_millis(25);

/// The name of the service. The host is part of the cache key, so all replicas answer to one name.
const HOST: &str = "shop.example";

/// How long a client waits for an answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// The answers, as clients saw them.
pub(crate) struct Tally {
    /// The time of each answer in microseconds, errors included.
    pub(crate) latency: Histogram<u64>,
    /// Requests that ended without an answer, or with another status than 200.
    pub errors: u64,
}

impl Tally {
    fn new() -> Result<Self, Failure> {
        Ok(Self { latency: Histogram::new_with_bounds(1, 60_000_000, 2)?, errors: 0 })
    }

    fn add(&mut self, other: &Self) -> Result<(), Failure> {
        self.latency.add(&other.latency)?;
        self.errors += other.errors;
        Ok(())
    }
}

/// Runs all clients until the time is over, and adds up their tallies.
pub(crate) async fn hammer(options: &Options, doors: Arc<Doors>) -> Result<Tally, Failure> {
    let http = Client::new();
    let end = Instant::now() + options.length();
    let mut clients = JoinSet::new();
    for _ in 0..options.clients {
        clients.spawn(ask(http.clone(), doors.clone(), options.keys, end));
    }
    let mut total = Tally::new()?;
    while let Some(tally) = clients.join_next().await {
        total.add(&tally??)?;
    }
    Ok(total)
}

/// Runs one client: it asks a replica for a key, reads the answer, and pauses.
async fn ask(http: Client, doors: Arc<Doors>, keys: u16, end: Instant) -> Result<Tally, Failure> {
    let mut tally = Tally::new()?;
    loop {
        sleep(PAUSE.mul_f64(2.0 * fastrand::f64())).await;
        if Instant::now() >= end {
            return Ok(tally);
        }
        let Some(address) = doors.any() else {
            return Err("no replica is left".into());
        };
        let key = fastrand::u16(..keys);
        let begun = Instant::now();
        let url = format!("http://{address}/products/{key}");
        let answer = timeout(PATIENCE, http.get(&url, Some(HOST))).await;
        let took = u64::try_from(begun.elapsed().as_micros()).unwrap_or(u64::MAX);
        tally.latency.saturating_record(took);
        if !matches!(answer, Ok(Ok(_))) {
            tally.errors += 1;
        }
    }
}
