use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll},
};

use pin_project::pin_project;
use tower::{Service, util::Oneshot};

use super::{
    Bellwether, BellwetherLayer,
    future::{ResponseFuture, ShareEnd},
};
use crate::{
    cache::Cache,
    error::{BoxError, Error},
    key::Key,
};

/// Shares responses as they are, under keys that `K` derives. The mode of [`BellwetherLayer::new`].
#[derive(Clone)]
pub struct Values<V, K> {
    cache: Cache<V>,
    key: K,
}

impl<V, K> BellwetherLayer<Values<V, K>> {
    /// Creates a layer for services whose response is a `V`.
    ///
    /// `key` derives the key of a request, by a function from `&Req` to `Option<Key>`. A request
    /// without a key passes through.
    ///
    /// Two requests with one key get one response. The key alone decides that, before the inner
    /// service is called. So the key must contain everything that the response depends on, such as
    /// the user whom it is for. The cache keeps a response as long as any other value.
    ///
    /// This layer stores each response. To share a response and store nothing, call
    /// [`Cache::get_or_load`] with a loader that calls
    /// [`Lead::do_not_store`](crate::cache::Lead::do_not_store). Over HTTP, use
    /// [`Policy::coalesce_only`](crate::layer::sharing#share-and-store-nothing).
    ///
    /// The [module](super) has an example.
    ///
    /// # Errors
    ///
    /// The service's error is [`Error`]. An error of the inner service has the kind
    /// [`Load`](crate::ErrorKind::Load). [`load_ref`](Error::load_ref) returns the error of the
    /// inner service to every caller in this process that waited for the same response.
    /// [`Cache::get_or_load`] lists the other kinds.
    ///
    /// # Cancel safety
    ///
    /// Same as [`Cache::get_or_load`]. A request that passes through is cancelled with its caller.
    pub fn new(cache: Cache<V>, key: K) -> Self {
        Self { mode: Values { cache, key } }
    }
}

impl<V, K> fmt::Debug for Values<V, K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Values").field("cache", &self.cache).finish_non_exhaustive()
    }
}

impl<Req, S, V, K> Service<Req> for Bellwether<S, Values<V, K>>
where
    Req: Send + 'static,
    S: Service<Req, Response = V> + Clone + Send + 'static,
    S::Error: Into<BoxError> + 'static,
    S::Future: Send + 'static,
    V: Clone + Send + Sync + 'static,
    K: Fn(&Req) -> Option<Key>,
{
    type Response = V;
    type Error = Error;
    type Future = ResponseFuture<ValuesPass<S, Req>>;

    /// Always returns ready. Each call makes its own clone of the inner service ready.
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Req) -> Self::Future {
        let inner = self.inner.clone();
        match (self.mode.key)(&request) {
            Some(key) => {
                let cached = self.mode.cache.request(key);
                let load = cached.load(move |_lead| Oneshot::new(inner, request));
                ResponseFuture::sharing(async move {
                    let loaded = load.await;
                    ShareEnd::Answered(loaded.map(|loaded| loaded.value))
                })
            }
            None => ResponseFuture::passing(ValuesPass { call: Oneshot::new(inner, request) }),
        }
    }
}

/// The future of a request without a key, which passes to the inner service.
#[must_use = "futures do nothing unless you `.await` or poll them"]
#[pin_project]
pub struct ValuesPass<S: Service<Req>, Req> {
    /// Drops its clone of the service when it has called that, because a clone may hold a permit.
    #[pin]
    call: Oneshot<S, Req>,
}

impl<S, Req> Future for ValuesPass<S, Req>
where
    S: Service<Req>,
    S::Error: Into<BoxError>,
{
    type Output = Result<S::Response, Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.project().call.poll(cx).map_err(Error::load)
    }
}

impl<S: Service<Req>, Req> fmt::Debug for ValuesPass<S, Req> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ValuesPass").finish_non_exhaustive()
    }
}
