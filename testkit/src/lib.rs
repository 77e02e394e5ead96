//! What the tests and the benches share: real Redis servers, and looking at them from outside.
//!
//! Redis is needed: where there is no `redis-server`, the tests that start one fail and say so.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod cluster;
pub mod faulty;
pub mod interceptor;
mod monitor;
mod nursery;
pub mod primitives;
pub mod proxy;
mod raw;
mod scripts;
mod sentinels;
mod server;

pub use self::{
    cluster::Cluster,
    monitor::{Call, Monitor},
    raw::Raw,
    scripts::script,
    sentinels::Sentinels,
    server::RedisServer,
};

use std::{env, future::Future, process::Command, time::Duration};

use bellwether::{
    backend::{Claim, Mode},
    key::{Family, Name, Namespace},
};
use tokio::time::{Instant, sleep};

/// How long a test waits for what must happen: long, for it is only ever waited out by a test that fails.
pub const LIMIT: Duration = Duration::from_secs(20);

/// Returns how long a released lease is kept for the claim whose turn it is.
pub fn turn_life() -> Duration {
    any_claim().turn_life()
}

/// Returns how long a lease that was handed over lasts unless it is renewed.
pub fn handover_life() -> Duration {
    any_claim().handover_life()
}

/// Returns how long a queue entry lasts unless its claim is sent again.
pub fn queue_entry_life() -> Duration {
    any_claim().queue_entry_life()
}

/// Returns a fair claim with a long lease.
fn any_claim() -> Claim {
    let name = Name::new(&Namespace::standard(), Family::Lock, &"any".into(), 512);
    Claim::new(name.expect("the name is valid"), Mode::Fair, LIMIT, LIMIT)
}

/// Starts the test program that runs now once more, for one test of it.
///
/// A worker is such a test: it returns at once unless an environment variable makes its process a worker.
pub fn rerun(test: &str) -> Command {
    let mut command = Command::new(env::current_exe().expect("the path of this program"));
    command.args([test, "--exact", "--nocapture", "--test-threads=1"]);
    command
}

/// Looks until the condition holds; `false` if it does not within the limit.
///
/// In place of a sleep: a test waits as long as it must on a busy machine, and no longer on a free one.
#[must_use = "assert it"]
pub async fn eventually<F>(limit: Duration, mut condition: impl FnMut() -> F) -> bool
where
    F: Future<Output = bool>,
{
    let end = Instant::now() + limit;
    loop {
        if condition().await {
            return true;
        }
        if Instant::now() >= end {
            return false;
        }
        sleep(Duration::from_millis(2)).await;
    }
}

/// As [`eventually`], with a condition that may change what it captures. (Its future cannot be spawned.)
#[must_use = "assert it"]
pub async fn comes_true(limit: Duration, mut condition: impl AsyncFnMut() -> bool) -> bool {
    let end = Instant::now() + limit;
    while !condition().await {
        if Instant::now() >= end {
            return false;
        }
        sleep(Duration::from_millis(2)).await;
    }
    true
}
