use std::{
    fmt,
    task::{Context, Poll},
};

use tower_service::Service;

use super::{Bellwether, BellwetherLayer, ResponseFuture, oneshot};
use crate::{
    cache::Cache,
    error::{BoxError, Error},
    key::Key,
};

/// Derives the key under which the response to a request is shared.
///
/// Two requests with one key get one response. So the key must contain everything that the response
/// depends on. The trait is implemented for functions from `&Req` to `Option<Key>`.
///
/// ```
/// use bellwether::{Key, layer::KeyFor};
///
/// struct Query {
///     tenant: u32,
///     id: u64,
///     fresh: bool,
/// }
///
/// #[derive(Clone)]
/// struct ByTenant;
///
/// impl KeyFor<Query> for ByTenant {
///     fn key_for(&self, query: &Query) -> Option<Key> {
///         // A request for fresh data is never shared.
///         (!query.fresh).then(|| Key::from(format!("{}:{}", query.tenant, query.id)))
///     }
/// }
///
/// let query = Query { tenant: 7, id: 42, fresh: false };
/// assert_eq!(ByTenant.key_for(&query), Some(Key::from("7:42")));
/// ```
pub trait KeyFor<Req> {
    /// Returns the key of a request. Returns `None` if the request is not to be shared: it then
    /// passes through to the inner service.
    fn key_for(&self, request: &Req) -> Option<Key>;
}

impl<Req, F> KeyFor<Req> for F
where
    F: Fn(&Req) -> Option<Key>,
{
    fn key_for(&self, request: &Req) -> Option<Key> {
        self(request)
    }
}

/// Shares responses as they are, under keys that `K` derives. The mode of [`BellwetherLayer::new`].
#[derive(Clone)]
pub struct Values<V, K> {
    cache: Cache<V>,
    key: K,
}

impl<V, K> BellwetherLayer<Values<V, K>> {
    /// Creates a layer for services whose response is a `V`.
    ///
    /// `key` derives the key of a request. A request without a key passes through.
    ///
    /// The cache keeps a response as long as any other value. The key alone decides whether a
    /// response is shared, before the inner service is called. So a response that is meant for one
    /// caller must not come under a key that another caller can have.
    ///
    /// The [module](super) has an example.
    ///
    /// # Errors
    ///
    /// The service's error is [`Error`]. An error of the inner service has the kind
    /// [`Load`](crate::ErrorKind::Load). [`load_ref`](Error::load_ref) returns it to every caller
    /// in this process that waited for the same response. [`Cache::get_or_load`] lists the other
    /// kinds.
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
    K: KeyFor<Req>,
{
    type Response = V;
    type Error = Error;
    type Future = ResponseFuture<V, Error>;

    /// Always returns ready. Each call makes its own clone of the inner service ready.
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Req) -> Self::Future {
        let inner = self.inner.clone();
        match self.mode.key.key_for(&request) {
            Some(key) => {
                let cached = self.mode.cache.request(key);
                let loaded = cached.load(move |_lead| oneshot(inner, request));
                ResponseFuture::new(async { Ok(loaded.await?.value) })
            }
            None => {
                ResponseFuture::new(async { oneshot(inner, request).await.map_err(Error::load) })
            }
        }
    }
}
