use std::sync::Arc;

use crate::{
    backend::DynLeases,
    error::Error,
    key::{Family, Key, Name, Namespace},
    lease::Engine,
};

/// Whose locks they are: the engine, and the names that are theirs.
#[derive(Clone)]
pub(super) struct Scope {
    pub(super) engine: Arc<Engine>,
    family: Family,
    /// The first use of a lock tells what is wrong with it.
    pub(super) namespace: Result<Namespace, Error>,
    pub(super) max_name: usize,
}

impl Scope {
    pub(super) fn over(backend: Arc<dyn DynLeases>, family: Family) -> Self {
        let engine = Engine::new(backend);
        Self { engine, family, namespace: Ok(Namespace::standard()), max_name: 512 }
    }

    pub(super) fn namespace(self, namespace: String) -> Self {
        Self { namespace: Namespace::new(&namespace), ..self }
    }

    pub(super) fn name(&self, key: &Key) -> Result<Name, Error> {
        let namespace = self.namespace.as_ref().map_err(Error::clone)?;
        Name::new(namespace, self.family, key, self.max_name)
    }

    /// Whether those who wait take places in queues. Those of several servers would be in as many orders, and
    /// each server would call another one.
    pub(super) fn queues(&self) -> bool {
        self.family == Family::Lock
    }
}
