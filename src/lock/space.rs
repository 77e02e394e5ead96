//! What all locks of one `Locks` or `Redlock` share.

use std::{sync::Arc, time::Duration};

use tokio::sync::Mutex as AsyncMutex;

use crate::{
    backend::{Claim, LOCK_FENCE_LIFE, Leases, Mode, Owner, Store},
    error::Error,
    key::{Family, Key, Name, Namespace},
    lease::{Engine, Retry, RetryStrategy},
};

/// The engine and the naming rules that all locks of one `Locks` or `Redlock` have in common.
#[derive(Clone)]
pub(super) struct LockSpace {
    pub(super) engine: Arc<Engine>,
    family: Family,
    /// An invalid namespace is reported by the first use of a lock.
    pub(super) namespace: Result<Namespace, Error>,
    pub(super) max_name: usize,
    /// The label of this process, for operators.
    pub(super) label: Option<Arc<str>>,
    /// When an acquisition tries again, unless its lock says otherwise.
    pub(super) retry: Arc<dyn RetryStrategy>,
}

impl LockSpace {
    pub(super) fn new(backend: Arc<dyn Leases>, family: Family, namespace: &str) -> Self {
        Self {
            engine: Engine::new(backend),
            family,
            namespace: Namespace::new(namespace),
            max_name: 512,
            label: None,
            retry: Arc::new(Retry::on_demand()),
        }
    }

    /// Returns whether the backend has a queue for the waiters of all processes.
    pub(super) fn has_queues(&self) -> bool {
        self.family != Family::Redlock
    }

    pub(super) fn name(&self, key: &Key) -> Result<Name, Error> {
        let namespace = self.namespace.as_ref().map_err(Error::clone)?;
        Name::new(namespace, self.family, key, self.max_name)
    }

    /// Returns a claim that waits, with the label of this process.
    pub(super) fn claim(&self, owner: Owner, name: Name, mode: Mode, lease: Duration) -> Claim {
        let claim = Claim::with_owner(owner, name, mode, lease, LOCK_FENCE_LIFE);
        Claim { label: self.label.clone(), ..claim }
    }

    /// Ends the leases of all holders of a name in a mode. Returns whether there was something to
    /// remove.
    pub(super) async fn force_unlock(&self, name: &Name, mode: Mode) -> Result<bool, Error> {
        let was_there = self.engine.backend.clear(name, mode).await?;
        // The holder may be in this process, which may receive no push.
        self.engine.renewals.check(|claim| claim.name == *name);
        Ok(was_there)
    }
}

/// Marks [`Locks`](super::Locks) over one backend, which has the locks that a
/// [`Redlock`](super::Redlock) lacks.
#[derive(Clone)]
pub struct OneServer {
    pub(super) latches: Arc<dyn Store>,
    /// Locked by the one task that answers `bellwether top`, so that callers are counted once.
    pub(super) answering: Arc<AsyncMutex<()>>,
}
