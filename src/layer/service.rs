use tower_layer::Layer;

/// Wraps services so that equal requests share one answer (see the [module](super)).
///
/// Clones, and the services made by them, share one cache. `M` says what is shared, and how:
/// [`Values`](super::Values) or `Http`.
#[derive(Clone, Debug)]
pub struct BellwetherLayer<M> {
    pub(super) mode: M,
}

/// The service that a [`BellwetherLayer`] makes of an inner one.
///
/// It is always ready; [readiness](super#readiness) says what that means for the layers around it.
/// Clones share one cache, as far as the clones of `S` share anything.
#[derive(Clone, Debug)]
pub struct Bellwether<S, M> {
    /// Only ever cloned, so that no readiness is held here.
    pub(super) inner: S,
    pub(super) mode: M,
}

impl<S, M: Clone> Layer<S> for BellwetherLayer<M> {
    type Service = Bellwether<S, M>;

    fn layer(&self, inner: S) -> Self::Service {
        Bellwether { inner, mode: self.mode.clone() }
    }
}
