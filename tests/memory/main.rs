//! Tests within one process. No server is started, and time is paused where it matters.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, unreachable_pub)]

#[path = "../settings/mod.rs"]
mod all_settings;
mod begin;
mod bytes;
mod cache;
mod channels;
mod claims;
mod codecs;
mod deferred;
mod failures;
mod family;
mod faulty;
mod freshness;
mod guards;
mod http;
mod in_process;
mod jobs;
mod latch;
mod layer;
mod leader;
mod limits;
mod local;
mod locks;
mod log;
mod many;
mod metrics;
mod msrv;
mod names;
mod old_values;
mod origin;
mod outage;
mod prelude;
mod properties;
mod redlock;
mod reentrant;
mod refreshing;
mod scenarios;
mod send_sync;
mod settings;
mod several;
mod spans;
mod stopped;
mod tags;
mod values;
mod weight;
