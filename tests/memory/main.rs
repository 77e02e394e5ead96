//! What holds in one process: no server is started, and where time matters it is paused.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, unreachable_pub)]

mod cache;
mod http;
mod ladder;
mod latch;
mod layer;
mod locks;
mod msrv;
mod properties;
mod reentrant;
mod send_sync;
mod several;
mod stopped;
mod weight;
