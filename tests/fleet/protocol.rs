//! The messages between a test and its workers.

use std::{
    collections::BTreeMap,
    time::{SystemTime, UNIX_EPOCH},
};

use serde::{Deserialize, Serialize};

/// The environment variable that makes a process a worker. It holds a [`Setup`].
pub const VARIABLE: &str = "BELLWETHER_FLEET_WORKER";

/// The configuration of a worker.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Setup {
    pub url: String,
    pub lease_ms: u64,
    pub wait_ms: u64,
    pub ttl_ms: u64,
    pub stale_ms: u64,
}

impl Setup {
    pub fn new(url: String) -> Self {
        Self { url, lease_ms: 5_000, wait_ms: 30_000, ttl_ms: 60_000, stale_ms: 0 }
    }
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Command {
    Round(Round),
    // Starts tasks that each add one to a number repeatedly, by a read and a write under a lock.
    Count { name: String, tasks: usize, times: usize },
    // Acquires one primitive of a pair, or its rival, and keeps it.
    Hold { name: String, pair: String, rival: bool, lease_ms: u64 },
    // Releases a primitive.
    Unlock { name: String },
}

/// Callers that all ask at once.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Round {
    /// The key, in which `#` stands for the number of the caller.
    pub key: String,
    pub callers: usize,
    pub load: Load,
    /// The time at which the callers ask, on the clock of [`now`].
    pub at: u64,
}

/// The behaviour of a loader.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Load {
    Value { ms: u64 },
    // Asks for another key, in the same way.
    Ask { ms: u64, key: String, then: Box<Load> },
}

impl Round {
    pub fn new(key: impl Into<String>, callers: usize, load: Load) -> Self {
        Self { key: key.into(), callers, load, at: 0 }
    }
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Event {
    Ready,
    LoadBegun { key: String, at: u64 },
    LoadEnded { key: String, at: u64 },
    Report(Report),
    Done,
    Held { name: String, fence: u64, at: u64 },
    Lost { name: String, at: u64 },
    Unlocked { was_lost: bool, error: Option<String> },
}

/// The outcome of a round in one process.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Report {
    /// The time of the first question. `ended` is the time of the last answer.
    pub began: u64,
    pub ended: u64,
    pub sources: BTreeMap<String, usize>,
    pub values: BTreeMap<String, usize>,
    pub errors: BTreeMap<String, usize>,
    /// The number of loads without a lease so far.
    pub degraded: u64,
    /// All counters of the cache so far.
    pub stats: String,
}

/// Microseconds on the clock that the processes of one machine share.
pub fn now() -> u64 {
    let time = SystemTime::now().duration_since(UNIX_EPOCH).expect("the clock is set after 1970");
    u64::try_from(time.as_micros()).expect("the clock is set before the year 500,000")
}
