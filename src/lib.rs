//! One rebuild in the whole fleet.
//!
//! When a hot cache entry expires, a thousand requests in fifty processes rebuild it at once, and the
//! database falls over. Here one of them does: callers of one process share one **flight**, its leader takes
//! a **lease** in Redis, one process of the fleet loads, and everyone else is served its result by a push.
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
//! let load = || cache.request("product:42").load(|_lead| async { Ok::<_, std::io::Error>("bell".to_owned()) });
//! assert_eq!(load().await?.source(), Source::Led);
//! assert_eq!(load().await?.source(), Source::Hit);
//! # Ok::<_, bellwether::Error>(()) }).unwrap();
//! ```
//!
//! | to do this | use |
//! |---|---|
//! | guard one expensive function | [`Cache::get_or_load`], [`Cache::request`] |
//! | wrap a service | `BellwetherLayer` (feature `tower`, and `http` for HTTP services) |
//! | take a lock, or wait for others to finish | [`Locks`] |
//! | take a lock that outlives any one server | [`Redlock`] |
//! | run without a server, or test | [`MemoryBackend`] |
//! | share a fleet's work | `RedisBackend` (feature `redis`) |
//!
//! Everything here runs on a [tokio](https://docs.rs/tokio) runtime with its time enabled (and its IO, for
//! `RedisBackend`), and panics outside of one, as tokio does.
//!
//! # What holds
//!
//! 1. At most one load of a key runs at a time in the fleet, while Redis answers and no lease is lost or key
//!    invalidated, but for those that run without a lease ([`Degraded`](cache::Source::Degraded) says when). A value
//!    from an older fence never replaces one from a newer, nor outlives an invalidation:
//!    who asks after [`Cache::invalidate`] returned, in any process, is served nothing older. Only what says
//!    that it is [`Degraded`](cache::Source::Degraded) may come from a load that was under way when its
//!    caller asked: its process cannot know of an invalidation in another.
//! 2. No caller's cancellation, panic or time-out costs another caller anything: the flight runs on, or is
//!    handed over. What no caller waits for any more either [finishes or is
//!    cancelled](cache::Builder::when_abandoned).
//! 3. Nested loads never deadlock. A loader that comes back to its own key, directly or through others, loads
//!    without storing. (A circle between processes, or through a task that a loader spawned, ends at the wait
//!    limit.)
//! 4. Memory, keys, subscriptions and tasks return to zero when the work is done; only fences remain in Redis
//!    for a while, each with a time to live.
//! 5. A cache never makes a service less available than it is without it. Redis slow, down, full or
//!    forbidding means one load for each process and key, with a cap on all, and nothing stored
//!    ([`Source::Degraded`](cache::Source::Degraded)).
//! 6. Nothing private is shared over HTTP: what may be given to another request is decided before it is.
//! 7. A waiter never depends on a push alone, and never tries more often than pushes, the remaining time of
//!    the lease in its way, and 5 s demand. (Who keeps a place in an order, as of a fair mutex, asks
//!    three times in 5 s, or in a shorter lease. Where Redis forbids pushes, or the connection for them is broken,
//!    a waiter looks at growing intervals up to 100 ms.)
//! 8. A holder's deadline fires before the server lets anyone else in, while its process runs and the server
//!    keeps its data and its clock. Otherwise (failover, restart without its data, eviction, forced unlock, a
//!    suspended process) the loss is told at the first contact, and only the fence protects.
//! 9. A deploy costs nobody a lease: [`Cache::shutdown`] starts no flights, lets running ones end, then
//!    cancels and releases.
//!
//! # When something fails
//!
//! | what | then |
//! |---|---|
//! | a caller goes away | nothing: the load runs in a task of its own |
//! | a loader fails, panics or takes too long | everyone who waits, in every process, gets that failure; nobody retries it for them (an HTTP answer of `5xx` or `429` is no such failure: who waits sends his own request) |
//! | the leading process dies | its lease ends within the [lease time](cache::Builder::lease); one of those who wait loads |
//! | an answer of Redis is lost | the claim or the commit is repeated, and recognised by its token |
//! | a push is lost | the waiter looks when the lease would end, and every 5 s |
//! | Redis forbids to publish or to subscribe | waiters look at intervals up to 100 ms; a process knows of it after its first commit |
//! | Redis is silent | after three time-outs no request waits for it any more, nor for another process; one flight in 250 ms tries. Of a cluster, this is so of each node by itself |
//! | Redis forgets what it held | loads under way are not stored, and whoever waits for them looks again |
//! | the server's clock is set | forward, leases end early and are lost; back, what nobody releases or renews lasts longer by the step. If it is set forward while a push is late that hands a lock over, the loss of that is told up to 2 s late |
//! | the runtime of a load is dropped | its lease is released by a thread of its own, if the process lives on |
//! | too many callers wait | further ones are [`Overloaded`](ErrorKind::Overloaded) at once |
//! | Redis is full | values are handed over and not stored; invalidations work |
//! | Redis evicts leases | two may load at once; the older one's value is not stored. Use `maxmemory-policy noeviction` |
//!
//! # Defaults
//!
//! | setting | value | why |
//! |---|---|---|
//! | lease of a load | 5 s | how long everyone waits for a process that died; long loads renew it |
//! | lease of a lock | 10 s | a lock guards more than a load does; a pause of a few seconds loses it no sooner (but 2 s, in the first tenth of a second after an [unlock handed it over](Locks::mutex)) |
//! | renewal | a third of the lease | two renewals may fail before it is lost |
//! | load limit, wait limit | 30 s | what an HTTP client waits; a loader that hangs must not block its key |
//! | command time-out, and one try to claim, store or lock ([`try_limit`](lease::RetryStrategy::try_limit)) | 250 ms each | far above a round trip, and short enough to be late rather than lost |
//! | answer of one server of a `Redlock` | 50 ms | far above a round trip; a server that hangs costs so much of each lease |
//! | loads at once | 1,024 in a cache of one process | what is beyond queues, for as long as the wait limit |
//! | callers who wait | 100,000 in a cache of one process, 10,000 for a key of it | memory must not grow with the patience of clients |
//! | key | 512 bytes | a URL fits; a key is sent with every command |
//! | value | 8 MiB | a larger one holds up a single-threaded server |
//! | HTTP body | 1 MiB | each load holds so much memory; a larger answer streams to its own caller |
//! | pushed entry | 64 KiB | a push goes to every process that waits; they fetch a larger one |
//! | memory backend | 64 MiB of entries | leases are never evicted |
//!
//! # Features
//!
//! All but the engine and the memory backend can be left out: `redis`, `tower`, `http`, `axum`, `postcard`.
//! `tls` (`rediss://`, by rustls) is to be asked for. Enabling one never changes what the others do.

#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod backend;
pub mod cache;
pub mod error;
mod flight;
pub mod key;
#[cfg(feature = "tower")]
pub mod layer;
pub mod lease;
pub mod lock;
mod observe;
mod signal;
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
