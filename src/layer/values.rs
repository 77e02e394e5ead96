use std::{
    fmt,
    task::{Context, Poll},
};

use tower_service::Service;

use super::{Bellwether, BellwetherLayer, KeyFor, ResponseFuture, future::oneshot};
use crate::{
    cache::Cache,
    error::{BoxError, Error},
};

/// What [`BellwetherLayer::new`] shares: answers as they are, under keys of `K`.
#[derive(Clone)]
pub struct Values<V, K> {
    cache: Cache<V>,
    key: K,
}

impl<V, K> BellwetherLayer<Values<V, K>> {
    /// A layer for services that answer with a `V`.
    ///
    /// `key` names what a request asks for; a request without a key passes through.
    ///
    /// An answer is stored for as long as the cache keeps values. One that belongs to its caller alone must
    /// not come under a shared key: what may be shared is decided here before the service is asked.
    ///
    /// # Errors
    ///
    /// The service's error is [`Error`]. One of the inner service is of the kind
    /// [`Load`](crate::ErrorKind::Load); [`load_ref`](Error::load_ref) gives it to everyone who waited for the
    /// same answer in this process. The other kinds are those of [`Cache::get_or_load`].
    ///
    /// # Cancel safety
    ///
    /// That of [`Cache::get_or_load`]; a request that passes through ends with its caller.
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
    K: KeyFor<Req>,
{
    type Response = V;
    type Error = Error;
    type Future = ResponseFuture<V, Error>;

    /// Always ready: the inner service is made ready by who reaches it.
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Req) -> Self::Future {
        let inner = self.inner.clone();
        match self.mode.key.key_for(&request) {
            Some(key) => {
                let sought = self.mode.cache.request(key);
                let answer = sought.load(move |_lead| oneshot(inner, request));
                ResponseFuture::new(async { Ok(answer.await?.into_value()) })
            }
            None => {
                ResponseFuture::new(async { oneshot(inner, request).await.map_err(Error::load) })
            }
        }
    }
}
