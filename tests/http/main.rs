//! `BellwetherLayer::http`: what is shared, what is not, and what everyone gets.
#![cfg(feature = "axum")]
#![allow(clippy::unwrap_used, clippy::panic)]

mod bodies;
mod errors;
mod freshness;
mod keys;
mod origin;
mod routers;
mod rules;
mod uncacheable;
