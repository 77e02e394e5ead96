//! Shared by the tests and the benches: real Redis servers and a proxy.
//!
//! Tests that start a server need `redis-server` on the `PATH`, and fail with a message without it.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod cluster;
pub mod leases;
mod monitor;
mod nursery;
mod port;
pub mod primitives;
mod process;
pub mod proxy;
mod raw;
mod scripts;
mod sentinels;
mod server;
mod signal;

pub use self::{
    cluster::Cluster,
    monitor::{Call, Monitor},
    nursery::{server_command, spawn_server},
    port::Port,
    process::Process,
    raw::{Raw, patient},
    sentinels::Sentinels,
    server::RedisServer,
    signal::signal,
};

/// A backend in memory that fails by a plan.
pub mod faulty {
    pub use bellwether::testing::{Fault, Faulty, Op};
}

/// A backend in front of another one.
pub mod interceptor {
    pub use bellwether::testing::{Answer, Hook, Interceptor, Op, Operation};
}

use std::{env, future::Future, process::Command, time::Duration};

use bellwether::{
    RedisBackend,
    backend::{
        Changes, Claim, HANDOVER_LIFE, Holding, Leases, Mode, Occupied, QUEUE_ENTRY_LIFE,
        RedisBackendBuilder,
    },
    error::BackendError,
    key::Name,
};
use tokio::time::{Instant, sleep};

/// The time limit of a test for what must happen. Only a test that fails waits that long.
pub const LIMIT: Duration = Duration::from_secs(20);

/// Returns how long a lease that was handed over lasts unless it is renewed.
pub fn handover_life() -> Duration {
    HANDOVER_LIFE
}

/// Returns how long a queue entry lasts unless its process keeps it.
pub fn queue_entry_life() -> Duration {
    QUEUE_ENTRY_LIFE
}

/// Begins a backend for a test that is not about time-outs: its time-outs are so long that a busy
/// machine does not reach them. The backend gets pushes for claims that a test has made by hand.
pub fn builder() -> RedisBackendBuilder {
    let builder = RedisBackend::builder();
    builder.command_timeout(LIMIT).connect_timeout(LIMIT).with_shared_process()
}

/// Opens a backend as [`builder`] begins it.
pub fn open(url: impl Into<String>) -> RedisBackend {
    builder().server(url).build().expect("the URL is valid")
}

/// Listens for a claim. Returns when the server has confirmed the subscription.
pub async fn changes_for(backend: &impl Leases, claim: &Claim) -> Result<Changes, BackendError> {
    // A waiter listens behind a request.
    backend.inspect(&claim.name, claim.mode.into()).await?;
    let mut changes = backend.listen(&claim.name, Some(claim));
    changes.confirmed().await;
    Ok(changes)
}

/// Returns the holder of a name in a mode, or all that share it.
pub async fn holder(
    backend: &impl Leases,
    name: &Name,
    mode: Mode,
) -> Result<Option<Occupied>, BackendError> {
    let Holding { fence, expires_in, holders, .. } = backend.inspect(name, mode.into()).await?;
    if holders == 0 || mode.is_fenced() != (fence > 0) {
        return Ok(None);
    }
    Ok(Some(Occupied { fence, remaining: expires_in, holders }))
}

/// Returns a command that runs one test of the current test program in a process of its own.
///
/// A worker is such a test. The test returns at once unless an environment variable makes its
/// process a worker.
pub fn rerun(test: &str) -> Command {
    let mut command = Command::new(env::current_exe().expect("the path of this program"));
    command.args([test, "--exact", "--nocapture", "--test-threads=1"]);
    command
}

/// Polls the condition until it holds. Returns `false` if it does not hold within the limit.
///
/// Use this in place of a sleep, so that a test waits as long as a busy machine needs, and no
/// longer.
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

/// Does the same as [`eventually`] for a condition that changes its captures.
///
/// The future cannot be spawned.
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
