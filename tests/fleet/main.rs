//! The promises of the crate to a fleet: several processes over one real Redis server.
//!
//! A test starts a server and a [`Fleet`](fleet::Fleet) of worker processes. A worker is this test
//! binary once more. An environment variable tells it to run `worker` and nothing else. Test and
//! workers exchange lines of JSON (`protocol`) over the standard input and output of the worker. A
//! worker ends when its input does, so none outlives its test.
//!
//! Counts are asserted strictly. Times are asserted with room for a busy machine, or on the best of
//! several rounds, and are printed (`--nocapture`). The bench `handoff` measures the strict
//! figures.
#![allow(unreachable_pub, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod crash;
mod fleet;
mod locks;
mod nested;
mod protocol;
mod stampede;
mod worker;

/// The worker process. Returns at once unless this process was started as a worker.
#[test]
fn worker() {
    worker::work();
}
