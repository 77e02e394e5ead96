//! `BellwetherLayer::http`: what is shared, what is not, and what everyone gets.

mod bodies;
mod errors;
mod freshness;
mod keys;
mod origin;
mod routers;
mod rules;
mod uncacheable;
