#![doc = include_str!("../../../docs/failover.md")]

// Compiles the examples of the page for operators.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/redis.md")]
mod operators {}
