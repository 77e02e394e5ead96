//! A simulation of a fleet: the real client, the real caches and locks of several processes, and
//! the real scripts, over a small server in memory.
//!
//! All of a schedule runs on one thread under paused time, and a seed decides the rest: the calls,
//! the delays of the network, the faults, and the ids. So the same seed plays the same schedule.
//! `docs/testing.md` says what it looks for, and where it is weaker than the world.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

pub mod network;
pub mod oracle;
pub mod plan;
pub mod planted;
pub mod play;
pub mod server;
pub mod trace;
