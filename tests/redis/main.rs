//! Tests over real servers: single ones, clusters, sentinels, replicas, and majorities.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, unreachable_pub)]

mod acl;
#[path = "../settings/mod.rs"]
mod all_settings;
mod cluster;
mod connection;
mod credentials;
mod deferred;
mod ends;
mod family;
mod handover;
mod http;
mod jobs;
mod large;
mod latches;
mod late;
mod leader;
mod local;
mod log;
mod many;
mod memory;
mod outage;
mod permits;
mod prelude;
mod pushes;
mod queues;
mod recovery;
mod redlock;
mod refusals;
mod replicas;
mod scripts;
mod sentinel;
mod settings;
mod slow;
mod tags;
mod tls;
mod undo;
