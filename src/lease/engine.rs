use std::{sync::Arc, time::Duration};

use super::{
    keeper::Keeper, queue::LocalQueues, record::LeaseRecord, release::Janitor, renewals::Renewals,
};
use crate::{
    backend::{Claim, DynLeases, Marked, Tick, answered},
    error::{Error, ErrorKind},
    meter::{Meter, MeterStart, MeteredTime},
    observe::{LockCounters, LockStats},
};

/// The parts that the leases of one `Cache` or one `Locks` share.
pub(crate) struct Engine {
    pub(super) counters: Arc<LockCounters>,
    pub(super) janitor: Arc<Janitor>,
    pub(super) renewals: Renewals,
    pub(super) keeper: Keeper,
    pub(super) queues: LocalQueues<Arc<LeaseRecord>>,
    /// Publishes the times of locks.
    pub(super) meter: Meter,
}

impl Engine {
    pub(crate) fn new(backend: Arc<dyn DynLeases>) -> Arc<Self> {
        let counters = Arc::<LockCounters>::default();
        let janitor = Janitor::new(backend.clone());
        Arc::new(Self {
            renewals: Renewals::new(backend.clone(), counters.clone()),
            counters,
            keeper: Keeper::new(backend),
            janitor,
            queues: LocalQueues::default(),
            meter: Meter::default(),
        })
    }

    pub(crate) fn backend(&self) -> &Arc<dyn DynLeases> {
        self.janitor.backend()
    }

    /// The janitor, which undoes the acquisitions of this engine.
    pub(crate) fn janitor(&self) -> &Arc<Janitor> {
        &self.janitor
    }

    /// Sets the mark of the name of a claim to a tick, if the claim has the lease.
    pub(crate) async fn mark(&self, claim: &Claim, tick: Tick) -> Result<Marked, Error> {
        let backend = self.backend().as_ref();
        Ok(answered(backend, backend.mark(claim, tick)).await?)
    }

    pub(crate) fn stats(&self) -> LockStats {
        self.counters.snapshot(self.renewals.held())
    }

    /// Counts an acquisition that ended with an error, and publishes how long it took.
    pub(super) fn counted<T>(
        &self,
        begun: MeterStart,
        outcome: Result<T, Error>,
    ) -> Result<T, Error> {
        let result = || if outcome.is_ok() { "acquired" } else { "error" };
        self.meter.ended(begun, MeteredTime::LockWait, result);
        match outcome.as_ref().map_err(Error::kind) {
            Ok(_) => {}
            Err(ErrorKind::NotAcquired) => self.counters.not_acquired.add(),
            Err(_) => self.counters.failed.add(),
        }
        outcome
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

#[cfg(feature = "metrics")]
impl crate::meter::Publisher for Engine {
    fn meter(&self) -> &Meter {
        &self.meter
    }

    fn counters(&self) -> Vec<crate::meter::MetricValue> {
        self.stats().each().into_iter().map(|(_, metric, value)| (metric, None, value)).collect()
    }

    fn gauges(&self) -> Vec<(&'static str, f64)> {
        let (held, waiting) = (self.renewals.held(), self.keeper.entries());
        vec![("bellwether_locks_held", held as f64), ("bellwether_locks_waiting", waiting as f64)]
    }
}
