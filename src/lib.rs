//! One rebuild in the whole fleet: a cache, a tower layer and locks over Redis leases.
//!
//! When a hot cache entry expires, a thousand requests in fifty processes rebuild it at once, and
//! the database fails. With this crate, one of them rebuilds it:
//!
//! - The callers of one process share one **flight**.
//! - The leader of the flight takes a **lease** in Redis, so one process of the fleet runs the
//!   load.
//! - A push hands its result over to all other callers in all processes.
//!
//! ```
//! # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
//! use std::time::Duration;
//! use bellwether::{Cache, MemoryBackend, cache::Source};
//!
//! let cache: Cache<String> = Cache::builder(MemoryBackend::new())
//!     .namespace("shop")
//!     .ttl(Duration::from_secs(60))
//!     .build()?;
//!
//! for source in [Source::Led, Source::Hit] {
//!     let load = |_lead| async { Ok::<_, std::io::Error>("bell".to_owned()) };
//!     let product = cache.request("product:42").load(load).await?;
//!     assert_eq!(product.value(), "bell");
//!     assert_eq!(product.source(), source);
//! }
//! # Ok::<_, bellwether::Error>(()) }).unwrap();
//! ```
//!
//! | task | type |
//! |---|---|
//! | guard an expensive function | [`Cache::get_or_load`], [`Cache::request`] |
//! | load many keys by one query | [`Cache::get_or_load_many`] |
//! | serve hot keys without a round trip | [`cache::Builder::local`] |
//! | wrap a service | `BellwetherLayer` (feature `tower`; `http` for HTTP services) |
//! | take a lock, or wait for others to finish | [`Locks`] |
//! | take a lock that outlives any one server | [`Redlock`] |
//! | run without a server, or test | [`MemoryBackend`] |
//! | share the work of a fleet | `RedisBackend` (feature `redis`) |
//!
//! The [guide] goes from a plain cache to all of this, one step at a time.
//!
//! The crate runs on a [tokio](https://docs.rs/tokio) runtime with its time enabled. `RedisBackend`
//! also needs its IO enabled. Outside of such a runtime, the crate panics as tokio does.
//!
//! # Guarantees
//!
//! 1. **One load.** At most one load of a key runs at a time in the fleet. This holds while Redis
//!    answers, no lease is lost and the key is not invalidated. Loads without a lease are not
//!    counted; [`Degraded`](cache::Source::Degraded) lists them.
//!
//!    A value from an older fence never replaces one from a newer fence, and never outlives an
//!    invalidation. Callers that ask after [`Cache::invalidate`] returned, in any process, receive
//!    nothing older, with two exceptions. A value marked [`Degraded`](cache::Source::Degraded) may
//!    come from a load that was running when its caller asked, because a process cannot know of
//!    an invalidation in another one. A copy in the [local tier](cache::Builder::local) of another
//!    process may be as far behind as its bound allows.
//! 2. **Isolated callers.** The cancellation, panic or time-out of a caller never affects another
//!    caller. The flight continues, or another caller leads it. A load without callers
//!    [finishes or is cancelled](cache::Builder::when_abandoned), as configured.
//! 3. **No deadlock of nested loads.** A loader that comes back to its own key, directly or through
//!    other loaders, loads without storing. A cycle between processes, or through a task that a
//!    loader spawned, ends at the wait limit.
//! 4. **No leaks.** Memory, keys, subscriptions and tasks return to zero when the work is done.
//!    Only fences remain in Redis for a while, each with a time to live.
//! 5. **Availability.** A cache never makes a service less available than the service is without
//!    it. If Redis is slow, down, full or forbids commands, each process runs one load per key. A
//!    cap limits all loads, and [nothing is stored](cache::Source::Degraded).
//! 6. **Privacy.** No private HTTP response is shared. The layer decides whether a response may be
//!    shared before it hands it to another request.
//! 7. **No dependence on pushes.** A waiter never depends on a push alone. It tries again after a
//!    push, at the end of the lease in its way, and every 5 s, but not more often. There are two
//!    exceptions:
//!
//!    - A process keeps the queue entries of its waiters of a lock by one command every 0.64 s,
//!      whatever their number. With more than 1,280 locks the interval is 0.5 ms for each lock. The
//!      answer wakes a waiter that has missed its push.
//!    - Without pushes, a waiter looks at growing intervals up to 100 ms. This is so if Redis
//!      forbids pushes or if their connection is broken.
//! 8. **Deadlines.** The deadline of a holder fires before the server grants the lease to another
//!    owner. This holds while the process of the holder runs and the server keeps its data and its
//!    clock.
//!
//!    It does not hold after a failover, a restart without data, an eviction, a forced unlock, or
//!    in a suspended process. Then the holder learns of the loss at its first contact with the
//!    server, and only the fence protects.
//! 9. **Deploys.** A shutdown costs no other process a lease. [`Cache::shutdown`] starts no new
//!    flights, lets running ones end, then cancels and releases the rest.
//!
//! # Failures
//!
//! - **A caller is cancelled.** Nothing else happens: the load runs in a task of its own.
//! - **A loader fails, panics or takes too long.** All its waiters, in every process, receive that
//!   failure. No waiter retries the load. An HTTP response of `4xx` or `5xx` is not such a failure:
//!   it goes to its own caller, and the waiters try again or send their own requests.
//! - **The leading process dies.** Its lease ends within the [lease time](cache::Builder::lease).
//!   One of the waiters then loads.
//! - **A reply of Redis is lost.** The claim or the commit is repeated, and Redis recognises it by
//!   its owner.
//! - **A push is lost.** A waiter for a lock learns of it within 0.7 s. A waiter for a load looks
//!   at the end of the lease, and every 5 s.
//! - **Redis forbids to subscribe.** Waiters look at intervals up to 100 ms.
//! - **Redis forbids to publish.** Each release and each commit is as late as after a lost push.
//!   `RedisBackend::ready` fails, and the log warns.
//! - **Redis is silent.** After three time-outs, requests no longer wait for Redis or for other
//!   processes. One flight in 250 ms tries again. In a cluster, this applies to each node by
//!   itself.
//! - **Redis loses its data.** Running loads are not stored, and their waiters look again.
//! - **The clock of the server is set forward.** Leases end early and are lost. If a push that
//!   hands a lock over is late at this moment, its loss is reported up to 2 s late.
//! - **The clock of the server is set back.** Leases that are neither released nor renewed last
//!   longer by the step.
//! - **The runtime of a load is dropped.** Its lease ends by itself.
//! - **A runtime of the current thread stands still.** So does what it runs for callers in other
//!   runtimes: a load whose own caller has left, renewals, places in queues, and the connections of
//!   the backend. Drive each runtime that uses a cache or locks for as long as the others use them
//!   or their backend, or drop it. Another one goes on with the work of a runtime that is dropped.
//! - **Too many callers wait.** Further callers fail with [`Overloaded`](ErrorKind::Overloaded) at
//!   once.
//! - **Redis is full.** Values are pushed to waiters but not stored. Invalidations still work.
//! - **Redis evicts leases.** Two processes may load at once. The older value is not stored. Set
//!   `maxmemory-policy noeviction` to prevent it.
//!
//! # Defaults
//!
//! | setting | value |
//! |---|---|
//! | lease of a load | 5 s |
//! | lease of a lock | 10 s |
//! | renewal | a third of the lease |
//! | load limit, wait limit | 30 s |
//! | command time-out | 250 ms |
//! | connect time-out | 4 command time-outs, at least 1 s |
//! | one attempt to claim, store or lock ([`try_limit`]) | as the command time-out |
//! | answer of one server of a `Redlock` | 50 ms |
//! | loads at once | 1,024 per cache and process |
//! | waiting callers | 100,000 per cache and process, 10,000 per key |
//! | key | 512 bytes |
//! | value | 8 MiB |
//! | HTTP body | 1 MiB |
//! | pushed entry | 64 KiB |
//! | memory backend | 64 MiB of entries |
//!
//! [`try_limit`]: lease::RetryStrategy::try_limit
//!
//! The reasons:
//!
//! - **Lease of a load:** the waiters of a dead process wait this long. Long loads renew their
//!   lease.
//! - **Lease of a lock:** a lock guards more than a load does, and survives a pause of a few
//!   seconds. In the first tenth of a second after [an unlock handed it over](Locks::mutex), it
//!   survives a pause of 2 s.
//! - **Renewal:** two renewals may fail before the lease is lost.
//! - **Load limit, wait limit:** HTTP clients wait about this long. A loader that hangs must not
//!   block its key.
//! - **Time-outs:** far above a round trip. Yet a caller is late rather than lost.
//! - **`Redlock`:** above a few round trips. A server that hangs costs this much of each lease.
//! - **Loads at once:** further loads queue, up to the wait limit. Further HTTP requests pass
//!   through.
//! - **Waiting callers:** memory must not grow with the patience of clients.
//! - **Key:** a URL fits. Every command carries the key.
//! - **Value:** a larger one blocks a single-threaded server.
//! - **HTTP body:** each load holds this much memory. A larger response streams to its own caller.
//! - **Pushed entry:** a push goes to every process that waits. These fetch a larger entry
//!   themselves.
//! - **Memory backend:** it evicts entries at its limit, but never leases.
//!
//! # Features
//!
//! All features but `tls` and `metrics` are on by default. The engine and the memory backend need
//! none of them. Enabling a feature never changes the behaviour of another one.
//!
//! | feature | adds |
//! |---|---|
//! | `redis` | `RedisBackend` |
//! | `tls` | `rediss://` URLs, by rustls |
//! | `tower` | `BellwetherLayer::new`, for any tower service |
//! | `http` | `BellwetherLayer::http`, for HTTP services |
//! | `axum` | keys of the HTTP layer that are safe under axum's `Router::nest` |
//! | `metrics` | `publish_metrics`, for the recorder of the crate `metrics` |
//! | `postcard` | the Postcard codec |

#![forbid(unsafe_code)]
#![warn(clippy::too_many_lines, clippy::excessive_nesting)]
#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod backend;
pub mod cache;
pub mod config;
pub mod error;
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
mod shards;
mod signal;
mod spans;
mod sync;
mod time;

#[cfg(feature = "redis")]
pub use self::backend::RedisBackend;
#[cfg(feature = "tower")]
pub use self::layer::BellwetherLayer;
#[cfg(feature = "http")]
pub use self::layer::http_cache;
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
