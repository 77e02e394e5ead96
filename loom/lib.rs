//! The modules of the crate that the model checker runs. Their tests are in `src/flight/loom.rs`.
#![forbid(unsafe_code)]
#![allow(dead_code, unused_imports)]

#[path = "../src/error.rs"]
mod error;
#[path = "../src/flight/mod.rs"]
mod flight;
#[path = "../src/key.rs"]
mod key;
#[path = "../src/sync.rs"]
mod sync;
