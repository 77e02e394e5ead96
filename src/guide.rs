#![doc = include_str!("links.md")]
#![doc = include_str!("../docs/guide.md")]
// Some pages lead to what only features add.
#![cfg_attr(
    not(all(feature = "redis", feature = "http", feature = "test-util")),
    allow(rustdoc::broken_intra_doc_links)
)]

// The links among the pages lead to files, for readers of the repository. `links.md` defines the
// same names first, and the first definition counts.

/// Twenty questions, as people ask them.
#[doc = include_str!("links.md")]
#[doc = include_str!("../docs/faq.md")]
pub mod faq {}

/// Features and figures beside other caches and locks.
#[doc = include_str!("links.md")]
#[doc = include_str!("../docs/comparison.md")]
pub mod comparison {}

/// You come from `SETNX`, redlock, `cached` or FusionCache.
#[doc = include_str!("links.md")]
#[doc = include_str!("../docs/moving-here.md")]
pub mod moving_here {}

/// Managed services and forks of Redis, and what each needs.
#[doc = include_str!("links.md")]
#[doc = include_str!("../docs/choosing-a-redis.md")]
pub mod choosing_a_redis {}

/// Probes, termination, warm-up and connections.
#[doc = include_str!("links.md")]
#[doc = include_str!("../docs/kubernetes.md")]
pub mod kubernetes {}

/// Everything that operators of a Redis server need.
#[doc = include_str!("links.md")]
#[doc = include_str!("../docs/redis.md")]
pub mod redis {}

/// What is published, and what to do when it moves.
#[doc = include_str!("links.md")]
#[doc = include_str!("../docs/metrics.md")]
pub mod metrics {}

/// A dashboard for Grafana, and alerts for Prometheus.
#[doc = include_str!("links.md")]
#[doc = include_str!("../docs/dashboard.md")]
pub mod dashboard {}

/// Traces and metrics for a collector.
#[doc = include_str!("links.md")]
#[doc = include_str!("../docs/opentelemetry.md")]
pub mod opentelemetry {}

/// What goes on now, and how to end a lock or a value.
#[doc = include_str!("links.md")]
#[doc = include_str!("../docs/command-line.md")]
pub mod command_line {}

/// What to do at night.
#[doc = include_str!("links.md")]
#[doc = include_str!("../docs/runbook.md")]
pub mod runbook {}
