//! `moka` in front of a cache of the fleet, kept true.
//!
//! ```text
//! cargo run --example moka_in_front
//! REDIS_URL=redis://127.0.0.1 cargo run --example moka_in_front
//! ```
//!
//! You may want a cache of your own in front: for its eviction listeners, or its time to idle. Then
//! a read that began before an invalidation may end after it, and put the old value back. A watch
//! tells your cache of changes. A ticket, taken before the read, says whether its value is current.
//!
//! Ten readers ask all the time, while another process changes the price. Its change is served at
//! once, and no old price comes back.

use std::{
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bellwether::{
    BoxError, Cache, Error, MemoryBackend, RedisBackend, backend::Store, cache::EntryWatch,
};
use tokio::{
    task::JoinSet,
    time::{Instant, sleep},
};

/// How far a copy may be behind the server.
const BOUND: Duration = Duration::from_secs(1);
const KEY: &str = "price:42";

/// The database.
static PRICE: AtomicU64 = AtomicU64::new(0);

/// Prices in `moka`, in front of the cache of the fleet.
struct Prices {
    /// Each with the end of its life, which the watch does not tell.
    own: moka::sync::Cache<String, (u64, Instant)>,
    fleet: Cache<u64>,
    watch: EntryWatch<u64>,
    /// A single server proves at intervals that it has told all changes.
    proves: bool,
}

impl Prices {
    fn new(fleet: Cache<u64>, proves: bool) -> Self {
        let own = moka::sync::Cache::new(10_000);
        let kept = own.clone();
        let watch = fleet.watch(move |key| match key {
            Some(key) => kept.invalidate(key),
            None => kept.invalidate_all(),
        });
        Self { own, fleet, watch, proves }
    }

    /// Returns a price, and whether it was in this process.
    async fn get(&self, key: &str) -> Result<(u64, bool), Error> {
        let is_trusted = !self.proves || self.watch.lag() < BOUND;
        if let Some((price, end)) = self.own.get(key).filter(|_| is_trusted)
            && Instant::now() < end
        {
            return Ok((price, true));
        }
        let ticket = self.watch.ticket(key)?;
        let load = |_lead| async { Ok::<_, BoxError>(PRICE.load(Ordering::SeqCst)) };
        let loaded = self.fleet.request(key).load(load).await?;
        let price = loaded.value;
        let end = Instant::now() + loaded.expires_in().unwrap_or_default();
        self.watch.insert_if_current(&ticket, &loaded, || {
            self.own.insert(key.to_owned(), (price, end));
        });
        Ok((price, false))
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("moka_in_front: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Result<(), BoxError> {
    let (fleet, writer, proves) = match std::env::var("REDIS_URL") {
        Ok(url) => (cache(RedisBackend::open(&url)?)?, cache(RedisBackend::open(&url)?)?, true),
        Err(_) => {
            let backend = MemoryBackend::new();
            (cache(backend.clone())?, cache(backend)?, false)
        }
    };
    let prices = Arc::new(Prices::new(fleet, proves));
    let mut readers = JoinSet::new();
    let end = Instant::now() + Duration::from_secs(2);
    for _ in 0..10 {
        let prices = prices.clone();
        readers.spawn(async move {
            let mut reads = 0_u64;
            let mut own = 0_u64;
            while Instant::now() < end {
                let (price, is_own) = prices.get(KEY).await?;
                reads += 1;
                own += u64::from(is_own);
                assert!(price <= PRICE.load(Ordering::SeqCst));
                sleep(Duration::from_millis(1)).await;
            }
            Ok::<_, Error>((reads, own))
        });
    }
    while Instant::now() < end {
        let price = PRICE.fetch_add(1, Ordering::SeqCst) + 1;
        writer.invalidate(KEY).await?;
        let changed = Instant::now();
        while prices.get(KEY).await?.0 < price {
            sleep(Duration::from_millis(1)).await;
        }
        assert!(changed.elapsed() < BOUND, "an old price came back");
        sleep(Duration::from_millis(100)).await;
    }
    let mut reads = 0;
    let mut own = 0;
    while let Some(reader) = readers.join_next().await {
        let (more_reads, more_own) = reader??;
        reads += more_reads;
        own += more_own;
    }
    println!("{own} of {reads} reads were of moka, and none was too old");
    Ok(())
}

fn cache(backend: impl Store) -> Result<Cache<u64>, Error> {
    Cache::builder(backend, "prices").build()
}
