//! Wrap a service: of all who send it one request at once, in the whole fleet, one reaches it.
//!
//! [`BellwetherLayer::new`] is for any tower service whose answers can be cloned and stored as they are,
//! with keys that a [`KeyFor`] makes. With the feature `http`, `BellwetherLayer::http` is for HTTP services, axum's
//! routers among them: it finds the key itself, and shares only what may be shared.
//!
//! ```
//! # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
//! use bellwether::{BellwetherLayer, Cache, Key, MemoryBackend};
//! use tower::{Service, ServiceBuilder, ServiceExt, service_fn};
//!
//! struct Query {
//!     id: u64,
//! }
//!
//! let cache: Cache<String> = Cache::builder(MemoryBackend::new()).build()?;
//! let mut service = ServiceBuilder::new()
//!     .layer(BellwetherLayer::new(cache, |query: &Query| Some(Key::from(query.id))))
//!     .service(service_fn(|query: Query| async move {
//!         Ok::<_, std::io::Error>(format!("product {}", query.id))
//!     }));
//! let product = service.ready().await?.call(Query { id: 42 }).await?;
//! assert_eq!(product, "product 42");
//! # Ok::<_, bellwether::Error>(()) }).unwrap();
//! ```
//!
//! # Readiness
//!
//! The services of this layer are always ready, and each request that reaches the inner service, shared or
//! passed through, goes to a clone of it that is made ready first. So a stored answer does not wait for it,
//! and nobody holds a place in the inner service while he waits for another's answer: over a
//! `ConcurrencyLimit` of one nothing can block.
//!
//! The price is that layers *outside* of this one no longer see that the inner service is busy: an outer
//! `LoadShed` sheds nothing, and an outer `Buffer` does not fill; requests queue at the inner service's
//! own `poll_ready` instead, inside their futures. What stands in for that is the cap on loads of the
//! [cache](crate::cache::Builder::max_loads): further loads queue, and are
//! [`Overloaded`](crate::ErrorKind::Overloaded) at the wait limit. Requests that pass through are not
//! counted there; put a `ConcurrencyLimit` or a `LoadShed` *inside* of this layer to bound them.
//!
//! # What is shared
//!
//! The cache that a layer is made of is all that its clones, and the services made by them, share; so a
//! layer may be applied route by route. Two layers over one cache must make different keys for different
//! things.
//!
//! A request that leads runs in a task of its own, in its caller's tracing span: neither this caller's
//! going away nor his task-local values reach it.
//!
//! # One layer, two services
//!
//! [`BellwetherLayer`] and [`Bellwether`] are one type each; what they do with a request is the parameter,
//! [`Values`] or `Http`. There is no trait between them that turns answers into values and back: the two
//! agree in nothing but the oneshot. For [`Values`] the answer *is* the value and errors are
//! [`Error`](crate::Error)s; an HTTP answer may turn out to be its caller's own at its headers or in the
//! middle of its body, errors stay the service's, and whether a request takes part is seen from the
//! request as a whole. A trait wide enough for both had a method for each line of either.

mod future;
#[cfg(feature = "http")]
mod http;
mod key_for;
mod service;
mod values;

#[cfg(feature = "http")]
pub use self::http::{CachedResponse, Http, ResponseBody, ResponseCodec, http_cache};
pub use self::{
    future::ResponseFuture,
    key_for::KeyFor,
    service::{Bellwether, BellwetherLayer},
    values::Values,
};
