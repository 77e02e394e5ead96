//! A limit in bytes counts what the process grows by, also for small values under long keys.
//!
//! Each measurement has a process of its own, because the other tests allocate as well.

use std::env;

use bellwether::backend::{Edit, Entry, Windows};
use bytes::Bytes;

use crate::prelude::*;

const LIMIT: usize = 2 << 20;
const TTL: Duration = Duration::from_secs(600);
const MEASURED: &str = "BELLWETHER_MEASURED";

fn key(at: usize) -> String {
    format!("products-of-the-shop:{at:030}")
}

/// Returns the bytes of memory that this process has now.
fn resident() -> usize {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    pages.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

/// Returns by how much of the limit a process grows in which this test runs alone.
fn growth(test: &str) -> f64 {
    let output = testkit::rerun(test).env(MEASURED, "1").output().unwrap();
    let output = String::from_utf8(output.stdout).unwrap();
    let line = output.lines().find_map(|line| line.split_once("grown by "));
    let grown = line.expect("the measurement failed").1.parse::<f64>().unwrap() / LIMIT as f64;
    println!("{grown:.2} times the limit");
    grown
}

#[tokio::test]
async fn outage_memory_process() {
    if env::var(MEASURED).is_err() {
        return;
    }
    let faulty = Faulty::over(MemoryBackend::new(), |_| Some(Fault::Refuse));
    let cache =
        Cache::<u32>::builder(faulty, "bellwether").ttl(TTL).outage_memory(LIMIT).build().unwrap();
    let mut before = 0;
    for at in 0..12_500 {
        if at == 100 {
            before = resident();
        }
        cache.get_or_load(key(at), value(7)).await.unwrap();
    }
    println!("\ngrown by {}", resident() - before);
}

#[tokio::test]
async fn memory_backend_process() {
    if env::var(MEASURED).is_err() {
        return;
    }
    let backend = MemoryBackend::with_weight(LIMIT);
    let mut before = 0;
    for at in 0..37_500 {
        if at == 100 {
            before = resident();
        }
        let entry = Entry::value(7, Duration::ZERO, Bytes::from(vec![b'v'; 8]));
        let put = Edit::Put(entry.with_windows(Windows::fresh(TTL)), TTL);
        backend.edit(&entry_name("bellwether", &key(at)), &put, 15 * SECOND).await.unwrap();
    }
    println!("\ngrown by {}", resident() - before);
}

#[test]
fn each_memory_counts_what_it_takes() {
    for test in ["outage_memory_process", "memory_backend_process"] {
        let grown = growth(&format!("limits::{test}"));
        assert!(grown < 1.5, "{test}: {grown:.2} times the limit");
    }
}
