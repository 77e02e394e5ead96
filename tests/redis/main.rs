//! What holds over real servers: one, a cluster, sentinels, replicas, and majorities of servers.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, unreachable_pub)]

mod acl;
mod calls;
mod cluster;
mod connection;
mod family;
mod handover;
mod latches;
mod memory;
mod redlock;
mod replicas;
mod scripts;
mod sentinel;
mod tls;
