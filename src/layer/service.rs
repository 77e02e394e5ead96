use tower_layer::Layer;

/// Wraps services so that equal requests share one response.
///
/// All clones of a layer, and all services that they make, share one cache. The mode `M` decides
/// what is shared and how: [`Values`](super::Values) or `Http`. The [module](super) has an example.
#[derive(Clone, Debug)]
pub struct BellwetherLayer<M> {
    pub(super) mode: M,
}

/// Shares the responses of an inner service. A [`BellwetherLayer`] makes it.
///
/// It is always ready; [readiness](super#readiness) says what that means for the layers around it.
/// Clones share one cache. Each clone has its own clone of `S`.
#[derive(Clone, Debug)]
pub struct Bellwether<S, M> {
    /// Never called itself, only cloned. So this service holds no readiness of the inner service.
    pub(super) inner: S,
    pub(super) mode: M,
}

impl<S, M: Clone> Layer<S> for BellwetherLayer<M> {
    type Service = Bellwether<S, M>;

    fn layer(&self, inner: S) -> Self::Service {
        Bellwether { inner, mode: self.mode.clone() }
    }
}
