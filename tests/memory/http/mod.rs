//! `BellwetherLayer::http`: shared answers, unshared answers, and the responses of all callers.

mod bodies;
mod coalesce;
mod conditions;
mod errors;
mod freshness;
mod keys;
mod middlewares;
mod names;
mod odd;
mod order;
mod origin;
mod passes;
mod policy;
mod routers;
mod rules;
mod scenarios;
mod stale;
mod status;
mod streaming;
mod uncacheable;
mod users;
mod validation;
mod vary;
mod writes;
