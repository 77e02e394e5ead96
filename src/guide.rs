#![doc = include_str!("links.md")]
#![doc = include_str!("../docs/guide.md")]
// Some pages lead to what only features add.
#![cfg_attr(
    not(all(feature = "redis", feature = "http", feature = "test-util")),
    allow(rustdoc::broken_intra_doc_links)
)]

// The links among the pages lead to files, for readers of the repository. `links.md` defines the
// same names first, and the first definition counts.

#[doc = include_str!("links.md")]
/// Questions as people ask them.
#[doc = include_str!("../docs/faq.md")]
pub mod faq {}

#[doc = include_str!("links.md")]
/// Features and figures beside other caches and locks.
#[doc = include_str!("../docs/comparison.md")]
pub mod comparison {}

#[doc = include_str!("links.md")]
/// You come from `SETNX`, redlock, `cached` or FusionCache.
#[doc = include_str!("../docs/moving-here.md")]
pub mod moving_here {}

#[doc = include_str!("links.md")]
/// Managed services and forks of Redis, and what each needs.
#[doc = include_str!("../docs/choosing-a-redis.md")]
pub mod choosing_a_redis {}

#[doc = include_str!("links.md")]
/// Probes, termination, warm-up and connections.
#[doc = include_str!("../docs/kubernetes.md")]
pub mod kubernetes {}

#[doc = include_str!("links.md")]
/// Everything that operators of a Redis server need.
#[doc = include_str!("../docs/redis.md")]
pub mod redis {}

#[doc = include_str!("links.md")]
/// What is published, and what to do when it moves.
#[doc = include_str!("../docs/metrics.md")]
pub mod metrics {}

#[doc = include_str!("links.md")]
/// A dashboard for Grafana, and alerts for Prometheus.
#[doc = include_str!("../docs/dashboard.md")]
pub mod dashboard {}

#[doc = include_str!("links.md")]
/// Traces and metrics for a collector.
#[doc = include_str!("../docs/opentelemetry.md")]
pub mod opentelemetry {}

#[doc = include_str!("links.md")]
/// What goes on now, and how to end a lock or a value.
#[doc = include_str!("../docs/command-line.md")]
pub mod command_line {}

#[doc = include_str!("links.md")]
/// What to do at night.
#[doc = include_str!("../docs/runbook.md")]
pub mod runbook {}
