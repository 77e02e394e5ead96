//! Guards one expensive function with a call. No tower, no HTTP, no Redis.
//!
//! ```text
//! cargo run --example guard_reload
//! ```

use std::{
    collections::BTreeMap,
    io,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bellwether::{
    BoxError, Cache, Error, Locks, MemoryBackend,
    cache::{Lead, Source},
};
use tokio::{task::JoinSet, time::sleep};

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    // With `RedisBackend::open(url)?` in its place, all processes form one fleet.
    let backend = MemoryBackend::new();
    let cache: Cache<String> =
        Cache::builder(backend.clone(), "reports").ttl(Duration::from_secs(60)).build()?;

    one_load_for_a_hundred(&cache).await?;
    one_error_for_a_hundred(&cache).await?;
    a_lock(&Locks::new(backend, "shop")).await?;
    Ok(())
}

/// Requests one report from a hundred tasks at once.
async fn one_load_for_a_hundred(cache: &Cache<String>) -> Result<(), BoxError> {
    let runs = Arc::new(AtomicUsize::new(0));
    let mut tasks = JoinSet::new();
    for _ in 0..100 {
        let cache = cache.clone();
        let runs = runs.clone();
        tasks.spawn(async move {
            // `cache.get_or_load(key, loader)` does the same, but returns the report without its
            // source.
            cache.request("report:2024").load(|lead| write_report(lead, runs)).await
        });
    }

    let mut sources = BTreeMap::new();
    while let Some(loaded) = tasks.join_next().await {
        let source = match loaded??.source {
            Source::Hit => "found it in the cache",
            Source::Led => "led: their loader ran",
            Source::Followed => "followed: they were given what the leader loaded",
            Source::Received => "received it from another process",
            _ => "loaded for themselves, without a lease",
        };
        *sources.entry(source).or_insert(0) += 1;
    }
    println!("a hundred tasks asked for a report; it was written {} time(s)", count(&runs));
    for (source, tasks) in sources {
        println!("  {tasks:>3} {source}");
    }

    let counted = runs.clone();
    let stored = cache.get_or_load("report:2024", |lead| write_report(lead, counted)).await?;
    println!("asked again: {stored:?}, written {} time(s)\n", count(&runs));
    Ok(())
}

/// The expensive function. The lead describes the load and takes its settings.
async fn write_report(lead: Lead<String>, runs: Arc<AtomicUsize>) -> Result<String, io::Error> {
    runs.fetch_add(1, Ordering::Relaxed);
    // The fence grows with each load of the key, so that a later system can refuse a late writer.
    if let Some(fence) = lead.fence() {
        println!("  writing the report under fence {fence}");
    }
    sleep(Duration::from_millis(200)).await;
    // The loader knows how long the report is valid.
    lead.expire_after(Duration::from_secs(5));
    Ok("all is well".to_owned())
}

/// A load that fails is one failure for all its waiters. The failure is not stored.
async fn one_error_for_a_hundred(cache: &Cache<String>) -> Result<(), BoxError> {
    let runs = Arc::new(AtomicUsize::new(0));
    let mut tasks = JoinSet::new();
    for _ in 0..100 {
        let cache = cache.clone();
        let runs = runs.clone();
        tasks.spawn(
            async move { cache.get_or_load("report:2025", |_lead| fail_to_write(runs)).await },
        );
    }

    let mut errors: Vec<Error> = Vec::new();
    while let Some(outcome) = tasks.join_next().await {
        errors.extend(outcome?.err());
    }
    println!("{} tasks have an error; the function failed {} time(s)", errors.len(), count(&runs));
    if let Some(error) = errors.first() {
        let cause = error.load_ref::<io::Error>().map(io::Error::kind);
        println!("  it is {:?}, its own error {cause:?}: {error:#}\n", error.kind());
    }
    Ok(())
}

async fn fail_to_write(runs: Arc<AtomicUsize>) -> Result<String, io::Error> {
    runs.fetch_add(1, Ordering::Relaxed);
    sleep(Duration::from_millis(50)).await;
    Err(io::Error::new(io::ErrorKind::NotFound, "2025 is not over"))
}

/// Uses the same leases as a lock.
async fn a_lock(locks: &Locks) -> Result<(), BoxError> {
    let stock = locks.mutex("stock:42").lease(Duration::from_secs(10));
    let guard = stock.lock().await?;
    println!("the stock is locked under fence {}", guard.fence());
    println!("  a second try meanwhile: {}", taken(stock.try_lock().await?.is_some()));
    tokio::select! {
        () = sleep(Duration::from_millis(100)) => println!("  the work is done"),
        // The lease could not be renewed. Another holder may have the lock by now.
        () = guard.lost() => return Err("the lock was lost".into()),
    }
    guard.unlock().await?;
    println!("  and after the unlock: {}", taken(stock.try_lock().await?.is_some()));
    Ok(())
}

fn taken(taken: bool) -> &'static str {
    if taken { "taken" } else { "not taken" }
}

fn count(runs: &AtomicUsize) -> usize {
    runs.load(Ordering::Relaxed)
}
