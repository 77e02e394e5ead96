//! `BellwetherLayer::http`: shared answers, unshared answers, and the responses of all callers.

mod bodies;
mod errors;
mod freshness;
mod keys;
mod origin;
mod routers;
mod rules;
mod uncacheable;
