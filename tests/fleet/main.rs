//! Several processes, one real Redis server: what the crate promises of a fleet.
//!
//! A test starts a server and a [`Fleet`](fleet::Fleet) of worker processes. A worker is this test binary
//! once more, told by an environment variable to run `worker` and nothing else. Test and workers talk in
//! lines of JSON (`protocol`) over the worker's standard input and output; a worker ends when its input
//! does, so none outlives its test.
//!
//! Counts are asserted strictly. Times are asserted with room for a busy machine, or on the best of several
//! rounds, and printed (`--nocapture`); the strict figures are those of the bench `handoff`.
#![allow(unreachable_pub, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod crash;
mod fleet;
mod http;
mod latches;
mod layer;
mod locks;
mod nested;
mod protocol;
mod stampede;
mod worker;

/// The other side: returns at once unless this process was started as a worker.
#[test]
fn worker() {
    worker::work();
}
