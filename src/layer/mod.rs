//! A [`tower`](https://docs.rs/tower) layer: of many equal requests in the fleet, one reaches the
//! service.
//!
//! [`BellwetherLayer::new`] is for any tower service whose responses can be cloned and stored as
//! they are. A function derives the key of each request. With the feature `http`,
//! `BellwetherLayer::http` is for HTTP services, such as axum's routers. The HTTP layer derives the
//! key itself, and shares only responses that may be shared.
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
//! let cache: Cache<String> = Cache::builder(MemoryBackend::new(), "shop").build()?;
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
//! A service of this layer is always ready. Each request that reaches the inner service goes to a
//! fresh clone of the service, and the layer makes that clone ready first. So a stored response
//! never waits for the inner service. And a caller that waits for another caller's response holds
//! no readiness: a `ConcurrencyLimit` of one request below cannot deadlock.
//!
//! The price: layers *outside* of this one no longer see that the inner service is busy. An outer
//! `LoadShed` sheds nothing, and an outer `Buffer` does not fill. Requests wait for the inner
//! service inside their futures.
//!
//! The cap on [loads](crate::cache::Builder::max_loads) of the cache takes over this job. In
//! [`Values`], loads beyond the cap queue. In `Http` such loads pass through, or are refused at
//! once. To bound the loads that pass through, put a `ConcurrencyLimit` or a `LoadShed` *inside* of
//! this layer.
//!
//! # What a pass costs
//!
//! A request that [passes](ResponseFuture) to the inner service is polled in place, and the
//! response keeps its body. Neither the future nor the body is put into a box. Only a response that
//! may be shared is.
//!
//! # What clones share
//!
//! All clones of a layer, and all services that they make, share the cache of that layer and
//! nothing else. So a layer may be applied route by route. Two layers over one cache must derive
//! different keys for different responses.
//!
//! A request that leads runs in a task of its own, in the tracing span of its caller. The
//! cancellation of this caller does not reach the task, and neither do the caller's task-local
//! values.

mod future;
#[cfg(feature = "http")]
mod http;
mod values;

#[cfg(feature = "http")]
#[doc = include_str!("../../docs/http.md")]
pub mod sharing {}

#[cfg(all(feature = "http", any(fuzzing, test)))]
pub(crate) use self::http::check_any_lines;
#[cfg(feature = "http")]
pub use self::http::{
    BodyError, CachedResponse, Http, HttpPass, InnerServiceError, Policy, Query, ResponseBody,
    ResponseCodec, http_cache,
};
pub use self::{
    future::ResponseFuture,
    values::{Values, ValuesPass},
};

use tower::Layer;

/// Wraps services so that equal requests share one response. The [module](self) has an example.
///
/// The mode `M` decides what is shared and how: [`Values`] or `Http`.
#[derive(Clone, Debug)]
pub struct BellwetherLayer<M> {
    mode: M,
}

/// Shares the responses of an inner service. A [`BellwetherLayer`] makes such a service.
///
/// The service is always [ready](self#readiness). Each clone has its own clone of `S`.
#[derive(Clone, Debug)]
pub struct Bellwether<S, M> {
    /// This clone is never called, only cloned. So this service holds no readiness of the inner
    /// service.
    inner: S,
    mode: M,
}

impl<S, M: Clone> Layer<S> for BellwetherLayer<M> {
    type Service = Bellwether<S, M>;

    fn layer(&self, inner: S) -> Self::Service {
        Bellwether { inner, mode: self.mode.clone() }
    }
}
