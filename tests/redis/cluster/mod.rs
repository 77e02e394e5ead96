//! Properties of a Redis Cluster alone: several nodes, slots that move, and masters that are
//! replaced.
//!
//! The suite `conformance` tests that a cluster keeps the rules of every backend.

mod everyday;
mod failover;
mod moving;
mod trouble;

use crate::prelude::*;

/// The command time-out, which no busy machine reaches.
const TIMEOUT: Duration = Duration::from_secs(1);

/// Returns a backend for tests in which commands fail. Some of these are tried for the whole
/// command time-out.
fn backend(cluster: &Cluster) -> RedisBackend {
    RedisBackend::builder().cluster(cluster.urls()).command_timeout(TIMEOUT).build().unwrap()
}

/// Returns a backend for tests that are not about time-outs.
fn patient(cluster: &Cluster) -> RedisBackend {
    testkit::builder().cluster(cluster.urls()).build().unwrap()
}

fn locks(cluster: &Cluster) -> Locks {
    Locks::new(backend(cluster), "bellwether")
}

fn name(key: &str) -> Name {
    name_in(Family::Lock, key)
}
