//! Hot keys at the end of their time to live: how often each is loaded, and which callers wait.
//!
//! `cargo bench --bench freshness` starts a Redis server of its own. The processes are backends of
//! this one process, which share its cores with the server. Keys are asked for by Zipf's law, and
//! the figures are those of the hottest ones.
//!
//! The callers of a key that is loaded stand beside the callers of other hot keys at that time. The
//! work of the machine is the same for both, such as the claims and commits of all keys. So their
//! difference is what the layer adds for the callers of a key that expires. The column after it is
//! for times at which no hot key is loaded.
//!
//! An early refresh begins with a read. A value without a read in the right time expires, whatever
//! the layer does. So the callers that wait for such a value have a column of their own, and no
//! part in the other times. `cargo bench --bench freshness -- early` has the rows with that word
//! only, and `processes=16` those of so many processes.
#![allow(missing_docs, unreachable_pub, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::{
    future::Future,
    ops::Range,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use bellwether::{
    BoxError, Cache, MemoryBackend, RedisBackend,
    backend::Store,
    cache::{Builder, EarlyRefresh, Source},
    error::BackendError,
};
use fastrand::Rng;
use redis::aio::MultiplexedConnection;
use report::figures::{Chart, Rows, Statistic, lasts};
use testkit::{
    RedisServer,
    interceptor::{Answer, Hook, Interceptor, Operation},
};
use tokio::{task::JoinSet, time::sleep};

const KEYS: usize = 10_000;
/// The hottest keys, which are asked for many times in each window.
const HOT: usize = 20;
const CALLERS: usize = 8;
const TTL: Duration = Duration::from_secs(1);
const LOAD: Duration = Duration::from_millis(50);
/// The ages of a value at which a read can begin a refresh that ends in time: within the last two
/// loads, and with time for one load and its round trips.
const IN_TIME: Range<Duration> = Duration::from_millis(900)..Duration::from_millis(940);
const WARM: Duration = Duration::from_millis(1_500);
const TIME: Duration = Duration::from_secs(20);
const OUTAGE: Duration = Duration::from_secs(10);

const ROWS: Rows = Rows {
    chart: Chart::Expiry,
    command: "cargo bench --bench freshness -- processes=16",
    statistic: Statistic::P99,
};

fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async { tokio::spawn(all()).await.unwrap() });
}

async fn all() {
    println!(
        "a period is a time to live and a load; p99 of callers at a load of their key, beside"
    );
    println!(
        "a load of another hot key, and at no such load; callers that waited for a value with"
    );
    println!("a read in time for its early refresh, and for one that was unread at that time\n");
    let only = std::env::args().find_map(|word| word.strip_prefix("processes=")?.parse().ok());
    for processes in only.map_or(vec![4, 16], |only: usize| vec![only]) {
        println!(
            "{processes:>2} processes {:>24} {:>14} {:>7} {:>7} {:>12} {:>9} {:>9} {:>6}",
            "loads/period",
            "claims/period",
            "waited",
            "unread",
            "at a load",
            "beside",
            "at none",
            "ratio"
        );
        let stale = |builder: Builder<u64>| builder.stale_while_revalidate(TTL);
        let early = |builder: Builder<u64>| builder.early_refresh(EarlyRefresh::LastPart(0.2));
        leased("stale while revalidate", processes, stale).await;
        leased("early refresh, last 0.2", processes, early).await;
        leased("both", processes, |builder| early(stale(builder))).await;
        leased("a lease, and all wait", processes, |builder| builder).await;
        leased("no expiry", processes, |builder| builder.ttl(60 * OUTAGE)).await;
        xfetch(processes).await;
        alone(processes).await;
        println!();
    }
    outage(8).await;
}

/// The treatment of the hot keys.
#[derive(Default)]
struct Origin {
    loading: [AtomicUsize; HOT],
    values: [Mutex<Value>; HOT],
    loads: AtomicUsize,
    claims: Arc<AtomicUsize>,
    is_counting: AtomicBool,
    is_failing: AtomicBool,
}

impl Origin {
    async fn load(&self, key: usize) -> Result<u64, BoxError> {
        if key < HOT && self.is_counting.load(Ordering::Relaxed) {
            self.loads.fetch_add(1, Ordering::Relaxed);
        }
        let under_way = self.loading.get(key).map(Loading::begin);
        sleep(LOAD).await;
        drop(under_way);
        if let Some(value) = self.values.get(key) {
            *value.lock().unwrap() = Value { loaded: Some(Instant::now()), is_read_in_time: false };
        }
        if self.is_failing.load(Ordering::Relaxed) { Err("the origin fails".into()) } else { Ok(7) }
    }

    /// Notes a read of a hot key. Returns whether its value had a read before that could have
    /// begun a refresh in time, or is still to have it.
    fn reads(&self, key: usize) -> bool {
        let mut value = self.values[key].lock().unwrap();
        let Some(age) = value.loaded.map(|loaded| loaded.elapsed()) else { return false };
        value.is_read_in_time |= IN_TIME.contains(&age);
        value.is_read_in_time || age < IN_TIME.end
    }

    /// Returns which load a caller of a hot key meets now.
    fn meets(&self, key: usize) -> Meets {
        let is_loading = |of: &AtomicUsize| of.load(Ordering::Relaxed) > 0;
        match is_loading(&self.loading[key]) {
            true => Meets::Own,
            false if self.loading.iter().any(is_loading) => Meets::Other,
            false => Meets::Nothing,
        }
    }
}

/// The present value of a hot key.
#[derive(Default)]
struct Value {
    loaded: Option<Instant>,
    /// Some caller has asked for it so early that its refresh can end before its time to live.
    is_read_in_time: bool,
}

/// The load of a hot key that is under way when a caller asks for one.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Meets {
    Own,
    Other,
    Nothing,
}

/// A load that is under way, until it ends or is cancelled.
struct Loading<'a>(&'a AtomicUsize);

impl<'a> Loading<'a> {
    fn begin(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for Loading<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Counts the claims of hot keys.
#[derive(Clone)]
struct Claims(Arc<AtomicUsize>);

impl<B: Store> Hook<B> for Claims {
    async fn around(&self, backend: &B, operation: Operation) -> Result<Answer, BackendError> {
        if let Operation::Claim { claim, .. } = &operation
            && claim.name.prefix().contains("{hot")
        {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
        operation.perform(backend).await
    }
}

fn name(key: usize) -> String {
    if key < HOT { format!("hot{key}") } else { format!("cold{key}") }
}

/// Returns a key, the n-th of them n times more rarely than the first.
fn zipf(rng: &mut Rng) -> usize {
    let at = (KEYS as f64).powf(rng.f64());
    (at as usize - 1).min(KEYS - 1)
}

/// Returns whether a row is wanted: all are, unless words of their names are given.
fn is_wanted(label: &str) -> bool {
    let is_word = |word: &String| !word.starts_with('-') && !word.starts_with("processes=");
    let mut words = std::env::args().skip(1).filter(is_word).peekable();
    words.peek().is_none() || words.any(|word| label.contains(&word))
}

async fn leased(label: &str, processes: usize, with: impl Fn(Builder<u64>) -> Builder<u64>) {
    let server = RedisServer::start().await;
    let origin = Arc::new(Origin::default());
    let caches = caches(&server, &origin, processes, with);
    run(label, processes, &origin, |process, key| ask(&caches[process], &origin, key)).await;
}

fn caches(
    server: &RedisServer,
    origin: &Origin,
    processes: usize,
    with: impl Fn(Builder<u64>) -> Builder<u64>,
) -> Vec<Cache<u64>> {
    let cache = |_| {
        let inner = RedisBackend::open(&server.url()).unwrap();
        let backend = Interceptor { inner, hook: Claims(origin.claims.clone()) };
        with(Cache::builder(backend, "bellwether").ttl(TTL)).build().unwrap()
    };
    (0..processes).map(cache).collect()
}

/// Asks a cache, and returns whether the caller waited for a load.
fn ask(
    cache: &Cache<u64>,
    origin: &Arc<Origin>,
    key: usize,
) -> impl Future<Output = bool> + Send + 'static {
    let cache = cache.clone();
    let origin = origin.clone();
    async move {
        let load = move |_| async move { origin.load(key).await };
        let loaded = cache.request(name(key)).load(load).await.unwrap();
        !matches!(loaded.source, Source::Hit | Source::Stale)
    }
}

/// Each process keeps values for itself.
async fn alone(processes: usize) {
    let origin = Arc::new(Origin::default());
    let cache =
        |_| Cache::<u64>::builder(MemoryBackend::new(), "bellwether").ttl(TTL).build().unwrap();
    let caches: Vec<_> = (0..processes).map(cache).collect();
    run("each process for itself", processes, &origin, |process, key| {
        ask(&caches[process], &origin, key)
    })
    .await;
}

/// Each caller loads early by chance alone, and nothing keeps two from doing so.
async fn xfetch(processes: usize) {
    let server = RedisServer::start().await;
    let origin = Arc::new(Origin::default());
    let client = redis::Client::open(server.url()).unwrap();
    let mut connections = Vec::new();
    for _ in 0..processes {
        connections.push(client.get_multiplexed_async_connection().await.unwrap());
    }
    run("XFetch without a lease", processes, &origin, |process, key| {
        fetch(connections[process].clone(), origin.clone(), key)
    })
    .await;
}

async fn fetch(mut connection: MultiplexedConnection, origin: Arc<Origin>, key: usize) -> bool {
    let now = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64();
    let name = name(key);
    let ends: Option<f64> =
        redis::cmd("GET").arg(&name).query_async(&mut connection).await.unwrap();
    let early = LOAD.as_secs_f64() * -fastrand::f64().max(f64::MIN_POSITIVE).ln();
    if ends.is_some_and(|ends| now() + early < ends) {
        return false;
    }
    origin.load(key).await.unwrap();
    let mut set = redis::cmd("SET");
    set.arg(&name).arg(now() + TTL.as_secs_f64()).arg("PX").arg(TTL.as_millis() as u64);
    set.exec_async(&mut connection).await.unwrap();
    true
}

/// Has all processes ask for a while, and prints a row.
async fn run<F>(
    label: &str,
    processes: usize,
    origin: &Arc<Origin>,
    ask: impl Fn(usize, usize) -> F,
) where
    F: Future<Output = bool> + Send + 'static,
{
    if !is_wanted(label) {
        return;
    }
    let begun = Instant::now();
    let mut seen = Seen::default();
    let mut under_way = JoinSet::new();
    let mut rng = Rng::with_seed(7);
    let mut next = begun;
    let mut claims = 0;
    // With less, a smoke on a busy machine has no sample of some rows.
    let time = lasts(TIME).max(4 * TTL);
    // One caller of all processes asks each time, whether or not the others have an answer.
    while begun.elapsed() < WARM + time {
        if begun.elapsed() >= WARM && !origin.is_counting.swap(true, Ordering::Relaxed) {
            claims = origin.claims.load(Ordering::Relaxed);
        }
        for process in 0..CALLERS {
            let process = process * processes / CALLERS;
            let key = zipf(&mut rng);
            let process = (process + rng.usize(0..processes)) % processes;
            let asked = ask(process, key);
            let counts = begun.elapsed() >= WARM && key < HOT;
            let origin = origin.clone();
            under_way.spawn(async move {
                let meets = if key < HOT { origin.meets(key) } else { Meets::Nothing };
                let in_time = key < HOT && origin.reads(key);
                let begun = Instant::now();
                let waited = asked.await;
                counts.then(|| Call { took: begun.elapsed(), meets, waited, in_time })
            });
        }
        while let Some(done) = under_way.try_join_next() {
            seen.add(done.unwrap());
        }
        next += Duration::from_millis(2);
        sleep(next.saturating_duration_since(Instant::now())).await;
    }
    origin.is_counting.store(false, Ordering::Relaxed);
    let (loads, claims) =
        (origin.loads.load(Ordering::Relaxed), origin.claims.load(Ordering::Relaxed) - claims);
    while let Some(done) = under_way.join_next().await {
        seen.add(done.unwrap());
    }
    let periods = HOT as f64 * time.as_secs_f64() / (TTL + LOAD).as_secs_f64();
    seen.print(label, loads as f64 / periods, claims as f64 / periods);
}

/// What a caller of a hot key saw.
struct Call {
    took: Duration,
    meets: Meets,
    waited: bool,
    /// The value had a read in time for an early refresh, or is still to have it.
    in_time: bool,
}

#[derive(Default)]
struct Seen {
    /// The times of callers, by the load that each met.
    at_load: Vec<Duration>,
    beside: Vec<Duration>,
    at_none: Vec<Duration>,
    waited: usize,
    /// The callers that waited for a value without a read in time.
    unread: usize,
}

impl Seen {
    fn add(&mut self, call: Option<Call>) {
        let Some(call) = call else { return };
        if call.waited && !call.in_time {
            self.unread += 1;
            return;
        }
        self.waited += usize::from(call.waited);
        let of = match call.meets {
            Meets::Own => &mut self.at_load,
            // A caller that begins a load that it waits for is at that load.
            _ if call.waited => &mut self.at_load,
            Meets::Other => &mut self.beside,
            Meets::Nothing => &mut self.at_none,
        };
        of.push(call.took);
    }

    fn print(mut self, label: &str, loads: f64, claims: f64) {
        let all = self.at_load.len() + self.beside.len() + self.at_none.len() + self.unread;
        let [waited, unread] =
            [self.waited, self.unread].map(|callers| callers as f64 / all as f64 * 100.0);
        if !self.at_load.is_empty() && !self.beside.is_empty() {
            let beside = ("other keys meanwhile", self.beside.as_slice());
            ROWS.floor((label, &self.at_load), beside).unwrap();
        }
        let times = [&mut self.at_load, &mut self.beside, &mut self.at_none];
        let [at_load, beside, at_none] = times.map(|times| p99(times) * 1e3);
        println!(
            "{label:24} {loads:>12.2} {claims:>14.2} {waited:>6.2}% {unread:>6.2}% \
             {at_load:>9.2} ms {beside:>6.2} ms {at_none:>6.2} ms {:>6.2}",
            // Without a load there is no ratio.
            if beside > 0.0 { at_load / beside } else { 0.0 }
        );
    }
}

fn p99(times: &mut [Duration]) -> f64 {
    times.sort_unstable();
    let at = (times.len() * 99 / 100).min(times.len().saturating_sub(1));
    times.get(at).map_or(0.0, Duration::as_secs_f64)
}

/// Asks for the hot keys while the origin fails.
async fn outage(processes: usize) {
    if !is_wanted("outage") {
        return;
    }
    let server = RedisServer::start().await;
    let origin = Arc::new(Origin::default());
    let caches =
        caches(&server, &origin, processes, |builder| builder.stale_while_revalidate(6 * OUTAGE));
    let asking = async |time: Duration, origin: &Arc<Origin>| {
        let begun = Instant::now();
        let mut times = Vec::new();
        let mut at = 0;
        while begun.elapsed() < time {
            let asked = Instant::now();
            ask(&caches[at % processes], origin, at % HOT).await;
            times.push(asked.elapsed());
            at += 1;
            sleep(Duration::from_millis(1)).await;
        }
        p99(&mut times) * 1e3
    };
    asking(WARM, &origin).await;
    origin.is_counting.store(true, Ordering::Relaxed);
    let before = asking(2 * TTL, &origin).await;
    let usual = origin.loads.swap(0, Ordering::Relaxed);
    origin.is_failing.store(true, Ordering::Relaxed);
    let during = asking(OUTAGE, &origin).await;
    let failed = origin.loads.load(Ordering::Relaxed);
    origin.is_failing.store(false, Ordering::Relaxed);
    let recovered = Instant::now();
    let mut left: Vec<_> = (0..HOT).collect();
    while !left.is_empty() && recovered.elapsed() < 6 * OUTAGE {
        for key in left.clone() {
            ask(&caches[key % processes], &origin, key).await;
            let fresh = caches[0].peek(name(key)).await.unwrap().and_then(|it| it.expires_in());
            left.retain(|other| *other != key || fresh.is_none_or(|fresh| fresh.is_zero()));
        }
        sleep(Duration::from_millis(1)).await;
    }
    println!("an origin that fails for {OUTAGE:?}, {processes} processes, {HOT} keys");
    println!("loads of a key: {:.1} in {:?} before", usual as f64 / HOT as f64, 2 * TTL);
    println!("loads of a key: {:.1} in {OUTAGE:?} of failures", failed as f64 / HOT as f64);
    println!("p99 of all callers: {before:.2} ms before, {during:.2} ms meanwhile");
    println!("all keys are fresh {:?} after its end", recovered.elapsed());
}
