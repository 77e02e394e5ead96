//! A master that sentinels watch: how it is found, and what its failover costs.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, unreachable_pub)]

#[path = "../support/mod.rs"]
mod support;

mod failover;
mod fake;
mod finding;
