//! A master that sentinels watch: the search for it, and the cost of its failover.

mod failover;
mod fake;
mod finding;
