//! The engine and the naming rules that all locks of one `Locks` or `Redlock` have in common.

use std::sync::Arc;

use crate::{
    backend::Leases,
    error::Error,
    key::{Family, Key, Name, Namespace},
    lease::Engine,
};

#[derive(Clone)]
pub(super) struct LockSpace {
    pub(super) engine: Arc<Engine>,
    family: Family,
    /// An invalid namespace is reported by the first use of a lock.
    pub(super) namespace: Result<Namespace, Error>,
    pub(super) max_name: usize,
    /// The label of this process, for operators.
    pub(super) label: Option<Arc<str>>,
}

impl LockSpace {
    pub(super) fn over(backend: Arc<dyn Leases>, family: Family) -> Self {
        let engine = Engine::new(backend);
        Self { engine, family, namespace: Ok(Namespace::standard()), max_name: 512, label: None }
    }

    pub(super) fn namespace(self, namespace: String) -> Self {
        Self { namespace: Namespace::new(&namespace), ..self }
    }

    pub(super) fn name(&self, key: &Key) -> Result<Name, Error> {
        let namespace = self.namespace.as_ref().map_err(Error::clone)?;
        Name::new(namespace, self.family, key, self.max_name)
    }
}
