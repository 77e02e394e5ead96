//! The clients: real HTTP over connections that are kept alive, at a fixed rate.
//!
//! The rate depends on no answer. Clients that wait for an answer before they ask again would ask
//! less while a replica makes them wait, and more while it refuses them. Then a count of requests
//! that wait would favour the side that fails.

use std::{
    error::Error,
    io,
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use hdrhistogram::Histogram;
use tokio::{
    sync::Semaphore,
    task::JoinSet,
    time::{sleep_until, timeout},
};

use crate::{
    Failure,
    figures::{Away, bar_of, no_bars},
    fleet::Doors,
    http::Client,
    options::Options,
    origin::{self, Product},
    replica::Way,
};

/// The name of the service. The host is part of the cache key, so all replicas answer to one name.
const HOST: &str = "shop.example";

/// How long a client waits for an answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// The answers, as clients saw them.
pub(crate) struct Tally {
    /// The times of the answers in microseconds. A request that fails has no answer.
    pub(crate) latency: Histogram<u64>,
    /// How late the requests were sent, in microseconds. A quiet machine sends them in time.
    pub(crate) lateness: Histogram<u64>,
    pub(crate) requests: u64,
    /// Requests that ended without an answer, or with another status than 200.
    pub(crate) failed: u64,
    /// Answers that took half a load or longer.
    pub(crate) waited: u64,
    /// The same in each tenth of a second that they took.
    pub(crate) waiting: Vec<u32>,
    /// Requests that failed, in the tenth of a second of their end.
    pub(crate) failing: Vec<u32>,
    /// The greatest age of a value that a client got, since the database read it.
    pub(crate) oldest: Duration,
    /// The requests that were sent while the store was away.
    pub(crate) away: Option<Away>,
}

/// A request that has ended. Its times count from the start of the way.
struct Ended {
    sent: Duration,
    ended: Duration,
    /// The age of the value, if there was an answer.
    age: Option<Duration>,
}

impl Tally {
    fn new(options: &Options, way: Way) -> Result<Self, Failure> {
        Ok(Self {
            latency: Histogram::new_with_bounds(1, 60_000_000, 2)?,
            lateness: Histogram::new_with_bounds(1, 60_000_000, 2)?,
            requests: 0,
            failed: 0,
            waited: 0,
            waiting: no_bars(options, way),
            failing: no_bars(options, way),
            oldest: Duration::ZERO,
            away: options.away_in(way).map(Away::new),
        })
    }

    fn record(&mut self, options: &Options, request: &Ended) {
        let Ended { sent, ended, age } = *request;
        let took = ended - sent;
        self.requests += 1;
        if let Some(away) = &mut self.away {
            away.record(sent, took, age.is_some());
        }
        let Some(age) = age else {
            self.failed += 1;
            if let Some(bar) = self.failing.get_mut(bar_of(ended)) {
                *bar += 1;
            }
            return;
        };
        self.latency.saturating_record(micros(took));
        self.oldest = self.oldest.max(age);
        if took >= options.load_time / 2 {
            self.waited += 1;
            for bar in self.waiting.iter_mut().take(bar_of(ended) + 1).skip(bar_of(sent)) {
                *bar += 1;
            }
        }
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// Asks each replica for each key once, so that a way begins with values in its caches. It takes no
/// longer than a value lives.
pub(crate) async fn warm_up(options: &Options, doors: &Doors) {
    let http = Client::new();
    // The first replica fills a store that is shared, and the others find its values.
    let mut doors: Vec<_> = doors.all().collect();
    let others = doors.split_off(doors.len().min(1));
    let fill = async {
        for doors in [doors, others] {
            let mut requests = JoinSet::new();
            let places = Arc::new(Semaphore::new(origin::CAPACITY));
            for (address, key) in
                doors.iter().flat_map(|door| (0..options.keys).map(move |key| (*door, key)))
            {
                let (http, places) = (http.clone(), places.clone());
                requests.spawn(async move {
                    let _place = places.acquire().await;
                    get(&http, address, key).await.is_ok()
                });
            }
            while requests.join_next().await.is_some() {}
        }
    };
    let _ = timeout(options.ttl, fill).await;
}

/// Sends requests at the fixed rate until the time is over, and waits for their ends.
pub(crate) async fn send_all(
    options: &Options,
    way: Way,
    doors: Arc<Doors>,
    begun: Instant,
) -> Result<Tally, Failure> {
    let http = Client::new();
    let mut tally = Tally::new(options, way)?;
    let mut requests = JoinSet::new();
    let count = options.length(way).as_secs_f64() * f64::from(options.rate);
    for number in 0..count as u32 {
        let due = Duration::from_secs_f64(f64::from(number) / f64::from(options.rate));
        sleep_until((begun + due).into()).await;
        tally.lateness.saturating_record(micros(begun.elapsed().saturating_sub(due)));
        let Some(address) = doors.any() else {
            return Err("no replica is left".into());
        };
        requests.spawn(ask(http.clone(), address, fastrand::u16(..options.keys), begun));
        while let Some(ended) = requests.try_join_next() {
            tally.record(options, &ended??);
        }
    }
    while let Some(ended) = requests.join_next().await {
        tally.record(options, &ended??);
    }
    Ok(tally)
}

/// Asks a replica for a key, and reads the answer.
async fn ask(
    http: Client,
    address: SocketAddr,
    key: u16,
    begun: Instant,
) -> Result<Ended, Failure> {
    let sent = begun.elapsed();
    let answer = timeout(PATIENCE, get(&http, address, key)).await;
    let ended = begun.elapsed();
    let age = match answer {
        Ok(Ok(body)) => Some(age(&body)),
        Ok(Err(error)) if is_out_of_files(&*error) => {
            return Err("too many open files: raise the limit with `ulimit -n 4096`".into());
        }
        Ok(Err(_)) | Err(_) => None,
    };
    Ok(Ended { sent, ended, age })
}

/// Returns whether this process has no file left for a connection. Then the request says nothing
/// about the replica.
fn is_out_of_files(error: &(dyn Error + 'static)) -> bool {
    // The number of `EMFILE` on Linux and macOS.
    const TOO_MANY: i32 = 24;
    let mut next = Some(error);
    while let Some(error) = next {
        let io = error.downcast_ref::<io::Error>();
        if io.is_some_and(|error| error.raw_os_error() == Some(TOO_MANY)) {
            return true;
        }
        next = error.source();
    }
    false
}

/// Returns the time since the database read a value. A step of the clock may hide it.
fn age(body: &[u8]) -> Duration {
    let product = serde_json::from_slice::<Product>(body).ok();
    product.and_then(|product| product.read_at.elapsed().ok()).unwrap_or_default()
}

/// Returns how many reads the replicas have served from their local tiers. A replica that does not
/// answer adds nothing.
pub(crate) async fn local_reads(doors: &Doors) -> u64 {
    let http = Client::new();
    let mut reads = 0;
    for address in doors.all() {
        let url = format!("http://{address}/local-reads");
        if let Ok(Ok(body)) = timeout(Duration::from_secs(1), http.get(&url, None)).await {
            reads += serde_json::from_slice(&body).unwrap_or(0);
        }
    }
    reads
}

async fn get(http: &Client, address: SocketAddr, key: u16) -> Result<Bytes, Failure> {
    http.get(&format!("http://{address}/products/{key}"), Some(HOST)).await
}
