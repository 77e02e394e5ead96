//! A cache that a fleet of processes shares, tower and axum layers, and distributed locks, over
//! Redis or in memory.
//!
//! When a cached value expires, one process rebuilds it and the others get the result. So your
//! database runs one query instead of one for each request:
//!
//! - The callers of one process share one **flight**, which has one leader.
//! - The leader takes a **lease** in Redis, so one process of the fleet loads.
//! - A push gives the result to all callers that wait, in all processes.
//!
//! ```
//! # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
//! use bellwether::{Cache, MemoryBackend};
//!
//! # async fn query(id: u32) -> Result<String, std::io::Error> { Ok(format!("product {id}")) }
//! let products: Cache<String> = Cache::new(MemoryBackend::new(), "products")?;
//! let id = 42;
//! let product = products.get_or_load(id, move |_lead| query(id)).await?;
//! assert_eq!(product, "product 42");
//! # Ok::<_, bellwether::Error>(()) }).unwrap();
//! ```
//!
//! | you want to | use |
//! |---|---|
//! | cache an expensive load | [`Cache::get_or_load`], [`Cache::request`] |
//! | share one load, keep nothing | [recipe](guide#you-come-from-gos-singleflight) |
//! | load many keys by one query | [`Cache::get_or_load_many`] |
//! | serve hot keys without a round trip | [`cache::Builder::local`] |
//! | cache responses, or wrap a service | [`BellwetherLayer`] |
//! | take a lock, or elect a leader | [`Locks`] |
//! | run a job once for each tick of a schedule | [`Locks::once`], [`Locks::every`] |
//! | take a lock that outlives any one server | [`Redlock`] |
//! | run without a server, or test | [`MemoryBackend`] |
//! | share the work of a fleet | [`RedisBackend`] |
//!
//! | you want to read | page |
//! |---|---|
//! | one step at a time, recipes, [promises], [failures], [defaults] | [guide] |
//! | short answers | [questions](guide::faq) |
//! | what is different elsewhere, and how to come from there | [comparison], [moving here] |
//! | how it works in full | [freshness], [HTTP](layer::sharing), [ladder](lock::ladder) |
//! | where to run it | [choosing a Redis], [Kubernetes], [Redis], [failover](backend::failover) |
//! | what to watch | [metrics](guide::metrics), [dashboard], [OpenTelemetry] |
//! | what to do at night | [runbook](guide::runbook), [command line] |
//!
//! [promises]: guide#promises
//! [failures]: guide#when-something-fails
//! [defaults]: guide#defaults
//! [comparison]: guide::comparison
//! [moving here]: guide::moving_here
//! [freshness]: cache::windows
//! [choosing a Redis]: guide::choosing_a_redis
//! [Kubernetes]: guide::kubernetes
//! [Redis]: guide::redis
//! [dashboard]: guide::dashboard
//! [OpenTelemetry]: guide::opentelemetry
//! [command line]: guide::command_line
//!
//! The crate runs on a [tokio](https://docs.rs/tokio) runtime with its time enabled. `RedisBackend`
//! also needs its IO enabled. Elsewhere, the crate panics as tokio does.
//!
//! # Features
//!
//! `redis`, `tower`, `http` and `axum` are on by default. The engine and the memory
//! backend need none of them. Enabling a feature never changes the behaviour of another one.
//!
//! | feature | adds |
//! |---|---|
//! | `redis` | [`RedisBackend`] |
//! | `tls` | `rediss://` URLs, by rustls |
//! | `tower` | [`BellwetherLayer::new`], for any tower service |
//! | `http` | [`BellwetherLayer::http`], for HTTP services |
//! | `axum` | keys of the HTTP layer that are safe under axum's `Router::nest` |
//! | `metrics` | `publish_metrics`, for the recorder of the crate `metrics` |
//! | `postcard` | the Postcard codec |
//! | `test-util` | `testing`: a backend that fails when your test says so |

#![forbid(unsafe_code)]
#![warn(clippy::too_many_lines, clippy::excessive_nesting)]
#![cfg_attr(docsrs, feature(doc_cfg))]
// The front page leads to what these features add.
#![cfg_attr(not(all(feature = "redis", feature = "http")), allow(rustdoc::broken_intra_doc_links))]

mod advice;
pub mod backend;
pub mod cache;
pub mod error;
mod escape;
mod flight;
#[cfg(any(fuzzing, test))]
#[doc(hidden)]
pub mod fuzzing;
pub mod guide;
pub mod key;
#[cfg(feature = "tower")]
pub mod layer;
pub mod lease;
pub mod lock;
mod meter;
mod observe;
mod random;
mod shards;
#[cfg(bellwether_sim)]
#[doc(hidden)]
pub mod sim;
mod spans;
mod sync;
#[cfg(feature = "test-util")]
#[cfg_attr(docsrs, doc(cfg(feature = "test-util")))]
pub mod testing;
mod time;

#[cfg(feature = "redis")]
#[doc(inline)]
pub use self::backend::RedisBackend;
#[cfg(feature = "tower")]
#[doc(inline)]
pub use self::layer::BellwetherLayer;
#[cfg(feature = "http")]
#[doc(inline)]
pub use self::layer::http_cache;
#[doc(inline)]
pub use self::{
    backend::MemoryBackend,
    cache::Cache,
    error::{BoxError, Error, ErrorKind},
    key::Key,
    lock::{Locks, Redlock},
};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadmeExamples;
