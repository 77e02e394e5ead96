//! Measures how old the values are that processes with a local tier serve.
//!
//! ```text
//! cargo run --example auditor
//! cargo run --example auditor -- redis://127.0.0.1/
//! ```
//!
//! One process changes rows of a database, and invalidates each after the change. The others read
//! them through their caches. An auditor knows when each row changed, and so how old each answer
//! is: the time from the return of the invalidation to the question, if that came later. Put an
//! auditor like this beside your own service: any value with a version or a time will do.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout)]

use std::{
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use bellwether::{
    BoxError, Cache, Error, MemoryBackend, RedisBackend,
    cache::{LocalTier, Source},
};
use tokio::{task::JoinSet, time::sleep};

const ROWS: usize = 20;
const PROCESSES: usize = 4;
const TIME: Duration = Duration::from_secs(5);
const BOUND: Duration = Duration::from_millis(500);

/// The database: for each row, when each of its versions was announced.
#[derive(Clone, Default)]
struct Database(Arc<[Mutex<Vec<Option<Instant>>>; ROWS]>);

impl Database {
    fn version(&self, row: usize) -> usize {
        self.0[row].lock().unwrap().len()
    }

    /// Makes a version, and announces it to the caches.
    async fn change(&self, row: usize, cache: &Cache<usize>) -> Result<(), Error> {
        let version = {
            let mut versions = self.0[row].lock().unwrap();
            versions.push(None);
            versions.len()
        };
        cache.invalidate(row).await?;
        self.0[row].lock().unwrap()[version - 1] = Some(Instant::now());
        Ok(())
    }

    /// Returns how old a version was at a moment: for how long a newer one had been announced.
    fn age(&self, row: usize, version: usize, at: Instant) -> Duration {
        let announced = self.0[row].lock().unwrap();
        match announced.get(version) {
            Some(Some(newer)) => at.saturating_duration_since(*newer),
            _ => Duration::ZERO,
        }
    }
}

/// What a process was served.
#[derive(Clone)]
struct Read {
    age: Duration,
    source: Source,
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    let server = std::env::args().nth(1);
    let shared = MemoryBackend::new();
    let open = || {
        let builder = match &server {
            Some(url) => Cache::<usize>::builder(RedisBackend::open(url)?, "auditor"),
            None => Cache::builder(shared.clone(), "auditor"),
        };
        let tier = LocalTier::default().max_staleness(BOUND);
        builder.local(tier).build()
    };
    let database = Database::default();
    let mut readers = JoinSet::new();
    let end = Instant::now() + TIME;
    for _ in 0..PROCESSES {
        readers.spawn(audit(open()?, database.clone(), end));
    }
    let writer = open()?;
    while Instant::now() < end {
        database.change(fastrand::usize(..ROWS), &writer).await?;
        sleep(Duration::from_millis(fastrand::u64(5..50))).await;
    }
    let reads = readers.join_all().await;
    report(&reads.concat());
    Ok(())
}

/// Reads rows, and notes how old each answer is.
async fn audit(cache: Cache<usize>, database: Database, end: Instant) -> Vec<Read> {
    let mut reads = Vec::new();
    while Instant::now() < end {
        let row = fastrand::usize(..ROWS);
        let asked = Instant::now();
        let rows = database.clone();
        let load = move |_lead| async move {
            sleep(Duration::from_millis(5)).await;
            Ok::<_, BoxError>(rows.version(row))
        };
        if let Ok(loaded) = cache.request(row).load(load).await {
            let age = database.age(row, loaded.value, asked);
            reads.push(Read { age, source: loaded.source });
        }
        sleep(Duration::from_micros(500)).await;
    }
    reads
}

fn report(reads: &[Read]) {
    let mut ages: Vec<_> = reads.iter().map(|read| read.age).collect();
    ages.sort_unstable();
    let all = ages.len();
    let at = |part: f64| ages[((ages.len() - 1) as f64 * part) as usize];
    let local = reads.iter().filter(|read| read.source == Source::Local).count();
    println!("{all} reads, {:.1} % of them local", 100.0 * local as f64 / all as f64);
    for (what, part) in [("half", 0.5), ("99 %", 0.99), ("99.9 %", 0.999), ("all", 1.0)] {
        println!("{what:>8} are at most {:>9.3?} behind", at(part));
    }
    for limit in [Duration::ZERO, Duration::from_millis(1), Duration::from_millis(10), BOUND] {
        let within = ages.partition_point(|age| *age <= limit) as f64 / all as f64;
        println!("{:>11.4} % are within {limit:?}", 100.0 * within);
    }
    let worst = at(1.0);
    assert!(worst <= BOUND, "a value was {worst:?} behind, and {BOUND:?} are promised");
}
