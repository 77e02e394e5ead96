//! Tests over real servers: single ones, clusters, sentinels, replicas, and majorities.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, unreachable_pub)]

mod acl;
#[path = "../settings/mod.rs"]
mod all_settings;
mod cluster;
mod connection;
mod credentials;
mod ends;
mod family;
mod handover;
mod http;
mod jobs;
mod keeper;
mod large;
mod latches;
mod leader;
mod local;
mod log;
mod many;
mod memory;
mod outage;
mod permits;
mod pushes;
mod queues;
mod recovery;
mod redlock;
mod refusals;
mod replicas;
#[path = "../scenarios/mod.rs"]
mod scenarios;
mod scripts;
mod sentinel;
mod settings;
mod slow;
mod tags;
mod tls;
mod undo;
mod users;
mod variants;

use bellwether::key::{Family, Key, Name, Namespace};

/// Returns the name of a cache entry in the namespace `t`.
fn name(key: &str) -> Name {
    Name::new(&Namespace::new("t").unwrap(), Family::Cache, &Key::from(key), 512).unwrap()
}
