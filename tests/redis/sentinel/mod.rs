//! A master that sentinels watch: how it is found, and what its failover costs.

mod failover;
mod fake;
mod finding;
