//! What the leases of one `Cache` or one `Locks` share.

use std::{collections::HashMap, sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{
    Acquisition, Janitor, LeaseGuard, Upkeep, holders::LocalHolders, keeper::Keeper,
    local_queue::LocalQueues, renewals::Renewals, request_limit::RequestLimit,
};
use crate::{
    backend::{Claim, FurtherTries, Leases, Marked, SemaphoreKind, Tick},
    error::Error,
    key::Name,
    observe::{LockCounters, LockStats, Waits},
    time::after,
};

/// The parts that the leases of one `Cache` or one `Locks` share.
pub(crate) struct Engine {
    pub(crate) backend: Arc<dyn Leases>,
    pub(super) counters: Arc<LockCounters>,
    pub(crate) janitor: Arc<Janitor>,
    pub(crate) renewals: Arc<Renewals>,
    pub(super) keeper: Arc<Keeper>,
    pub(super) queues: Arc<LocalQueues>,
    pub(super) requests: RequestLimit,
    /// The waits that are under way, if these locks publish metrics.
    pub(super) waits: Waits,
    /// The backend has a weak reference to the holders. The engine keeps them alive.
    _holders: Arc<LocalHolders>,
}

impl Engine {
    pub(crate) fn new(backend: Arc<dyn Leases>) -> Arc<Self> {
        let counters = Arc::<LockCounters>::default();
        let janitor = Janitor::new(backend.clone());
        let renewals = Renewals::new(backend.clone(), counters.clone());
        let holders =
            Arc::new(LocalHolders { janitor: janitor.clone(), renewals: renewals.clone() });
        let weak_holders = Arc::downgrade(&holders);
        backend.watch(weak_holders);
        Arc::new(Self {
            janitor,
            renewals,
            _holders: holders,
            keeper: Keeper::new(backend.clone()),
            queues: Arc::default(),
            requests: RequestLimit::default(),
            waits: Waits::default(),
            counters,
            backend,
        })
    }

    /// Begins the hold of a granted lease and its renewals. Returns `None` if the acquisition was
    /// granted nothing.
    pub(crate) fn hold(&self, acquisition: &mut Acquisition, upkeep: Upkeep) -> Option<LeaseGuard> {
        LeaseGuard::new(&self.renewals, acquisition, upkeep, None)
    }

    pub(crate) fn stats(&self) -> LockStats {
        self.counters.snapshot(self.renewals.held())
    }

    /// Returns how many callers of this process wait for each lease. A caller whose request is
    /// under way does not wait.
    pub(crate) fn waiting_callers(&self) -> HashMap<(Name, SemaphoreKind), usize> {
        let mut callers: HashMap<_, usize> = HashMap::new();
        // The local queues have the callers behind the slot. The keeper has the caller with the
        // slot if that caller sleeps.
        for (name, count) in self.queues.waiters() {
            *callers.entry((name, SemaphoreKind::Mutex)).or_default() += count;
        }
        for (queue, count) in self.keeper.waiters() {
            *callers.entry(queue).or_default() += count;
        }
        callers
    }

    /// Returns the round trip and the age of the connections, as gauges.
    #[cfg(feature = "metrics")]
    pub(crate) fn connection_gauges(&self) -> impl Iterator<Item = (&'static str, f64)> + use<> {
        let connections = self.backend.connections();
        let times = [
            ("bellwether_round_trip_seconds", connections.round_trip),
            ("bellwether_connected_seconds", connections.stood_for),
        ];
        times.into_iter().filter_map(|(metric, time)| Some((metric, time?.as_secs_f64())))
    }

    #[cfg(feature = "metrics")]
    pub(crate) fn reading(&self) -> crate::meter::Reading {
        let mut gauges = vec![
            ("bellwether_locks_waiting", self.keeper.entries() as f64),
            ("bellwether_locks_longest_hold_seconds", self.renewals.longest_hold().as_secs_f64()),
            ("bellwether_locks_longest_wait_seconds", self.waits.longest().as_secs_f64()),
        ];
        gauges.extend(self.connection_gauges());
        (serde_json::json!(self.stats()), gauges)
    }

    /// Stops the engine, and waits until the releases have ended or the limit passes.
    pub(crate) async fn shutdown(&self, limit: Duration) {
        let end = after(Instant::now(), limit);
        self.janitor.shutdown(limit).await;
        // The releases start more undos at the backend, so the backend comes last.
        self.backend.settle(end.saturating_duration_since(Instant::now())).await;
    }
}

impl Janitor {
    /// Sets the mark of the name of a claim to a tick, if the claim has the lease. Tries three
    /// times, because after an error the mark may be set, and no other claim may set it again.
    pub(crate) async fn mark(&self, claim: &Claim, tick: Tick) -> Result<Marked, Error> {
        let mut further_tries = FurtherTries::new(2);
        loop {
            let answer = self.backend.mark(claim, tick).await;
            if !further_tries.next(answer.is_err()).await {
                return Ok(answer?);
            }
        }
    }
}
