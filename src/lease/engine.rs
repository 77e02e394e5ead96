use std::{sync::Arc, time::Duration};

use super::{queue::LocalQueues, record::LeaseRecord, release::Janitor, renewals::Renewals};
use crate::backend::DynLeases;

/// What the leases of one `Cache` or one `Locks` share.
pub(crate) struct Engine {
    pub(super) janitor: Arc<Janitor>,
    pub(super) renewals: Renewals,
    pub(super) queues: LocalQueues<Arc<LeaseRecord>>,
}

impl Engine {
    pub(crate) fn new(backend: Arc<dyn DynLeases>) -> Arc<Self> {
        Arc::new(Self {
            renewals: Renewals::new(backend.clone()),
            janitor: Janitor::new(backend),
            queues: LocalQueues::default(),
        })
    }

    pub(crate) fn backend(&self) -> &Arc<dyn DynLeases> {
        self.janitor.backend()
    }

    /// What undoes the acquisitions of this engine.
    pub(crate) fn janitor(&self) -> &Arc<Janitor> {
        &self.janitor
    }

    /// Stops the engine: no acquisition starts any more, and those that wait fail.
    pub(crate) fn stop(&self) {
        self.janitor.stop();
    }

    /// Stops the engine, and waits until the releases have ended or the limit passes.
    pub(crate) async fn shutdown(&self, limit: Duration) {
        self.janitor.shutdown(limit).await;
    }
}
