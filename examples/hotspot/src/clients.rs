//! The clients: real HTTP over connections that are kept alive.

use std::{
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use hdrhistogram::Histogram;
use tokio::{
    sync::Semaphore,
    task::JoinSet,
    time::{sleep, timeout},
};

use crate::{
    Failure,
    figures::{BAR, bar_of, no_bars},
    fleet::Doors,
    http::Client,
    options::Options,
    origin::{self, Product},
};

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
    /// Answers that took half a load or longer.
    pub waited: u64,
    /// The same in each tenth of a second that they took.
    pub waiting: Vec<u32>,
    /// The time that all clients waited, and the part of it that ended in an error. A count of
    /// errors would mislead: a client that is refused at once comes back sooner, and gets more.
    pub time: Duration,
    pub failing_time: Duration,
    /// The clients that got an error next, in each tenth of a second.
    pub failing: Vec<f64>,
    /// The greatest age of a value that a client got, since the origin read it.
    pub oldest: Duration,
}

impl Tally {
    fn new(options: &Options) -> Result<Self, Failure> {
        Ok(Self {
            latency: Histogram::new_with_bounds(1, 60_000_000, 2)?,
            errors: 0,
            waited: 0,
            waiting: no_bars(options),
            time: Duration::ZERO,
            failing_time: Duration::ZERO,
            failing: vec![0.0; no_bars(options).len()],
            oldest: Duration::ZERO,
        })
    }

    /// Adds the answer to a request that was sent and answered at these times since the start. The
    /// client had the answer before it at `last`.
    fn record(
        &mut self,
        options: &Options,
        last: Duration,
        (sent, answered): (Duration, Duration),
        is_ok: bool,
    ) {
        let took = answered - sent;
        self.latency.saturating_record(u64::try_from(took.as_micros()).unwrap_or(u64::MAX));
        if took >= options.load_time / 2 {
            self.waited += 1;
            let bars = self.waiting.iter_mut().take(bar_of(answered) + 1);
            bars.skip(bar_of(sent)).for_each(|bar| *bar += 1);
        }
        self.time += answered - last;
        if !is_ok {
            self.errors += 1;
            self.failing_time += answered - last;
            let bars = (0..).zip(&mut self.failing).take(bar_of(answered) + 1);
            for (index, bar) in bars.skip(bar_of(last)) {
                let (start, end) = (BAR * index, BAR * (index + 1));
                *bar += (answered.min(end) - last.max(start)).div_duration_f64(BAR);
            }
        }
    }

    fn add(&mut self, other: &Self) -> Result<(), Failure> {
        self.latency.add(&other.latency)?;
        self.errors += other.errors;
        self.waited += other.waited;
        self.time += other.time;
        self.failing_time += other.failing_time;
        self.oldest = self.oldest.max(other.oldest);
        self.waiting.iter_mut().zip(&other.waiting).for_each(|(bar, more)| *bar += more);
        self.failing.iter_mut().zip(&other.failing).for_each(|(bar, more)| *bar += more);
        Ok(())
    }
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

/// Runs all clients until the time is over, and adds up their tallies.
pub(crate) async fn hammer(
    options: &Options,
    doors: Arc<Doors>,
    begun: Instant,
) -> Result<Tally, Failure> {
    let http = Client::new();
    let options = Arc::new(options.clone());
    let mut clients = JoinSet::new();
    for _ in 0..options.clients {
        clients.spawn(ask(http.clone(), doors.clone(), options.clone(), begun));
    }
    let mut total = Tally::new(&options)?;
    while let Some(tally) = clients.join_next().await {
        total.add(&tally??)?;
    }
    Ok(total)
}

/// Runs one client: it asks a replica for a key, reads the answer, and pauses.
async fn ask(
    http: Client,
    doors: Arc<Doors>,
    options: Arc<Options>,
    begun: Instant,
) -> Result<Tally, Failure> {
    let mut tally = Tally::new(&options)?;
    let mut last = begun.elapsed();
    loop {
        sleep(PAUSE.mul_f64(2.0 * fastrand::f64())).await;
        let sent = begun.elapsed();
        if sent >= options.length() {
            return Ok(tally);
        }
        let Some(address) = doors.any() else {
            return Err("no replica is left".into());
        };
        let answer = timeout(PATIENCE, get(&http, address, fastrand::u16(..options.keys))).await;
        let answered = begun.elapsed();
        tally.record(&options, last, (sent, answered), matches!(answer, Ok(Ok(_))));
        if let Ok(Ok(body)) = answer {
            tally.oldest = tally.oldest.max(age(&body));
        }
        last = answered;
    }
}

/// Returns the time since the origin read a value. A step of the clock may hide it.
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
