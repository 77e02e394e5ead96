use std::{
    sync::{Arc, OnceLock, atomic::AtomicU32},
    time::Duration,
};

use tokio::{
    sync::Semaphore,
    time::{Instant, sleep},
};

use super::{keeper::Keeper, queue::LocalQueues, release::Janitor, renewals::Renewals};
use crate::{
    backend::{Claim, Leases, Marked, Tick},
    error::Error,
    meter::Meter,
    observe::{LockCounters, LockStats, Waits},
    shards::Shards,
    time::{Pauses, after},
};

/// The parts that the leases of one `Cache` or one `Locks` share.
pub(crate) struct Engine {
    pub(crate) backend: Arc<dyn Leases>,
    pub(super) counters: LockCounters,
    pub(crate) janitor: Arc<Janitor>,
    pub(super) renewals: Renewals,
    pub(super) keeper: Keeper,
    pub(super) queues: LocalQueues,
    /// The acquisitions that may be under way.
    pub(super) turns: Shards<OnceLock<Semaphore>>,
    /// How many fixed leases ended before their guards.
    pub(super) outlasted: AtomicU32,
    pub(crate) meter: Meter,
    /// The waits that are going on, while they are published.
    pub(super) waits: Waits,
}

impl Engine {
    pub(crate) fn new(backend: Arc<dyn Leases>) -> Arc<Self> {
        let (counters, renewals, keeper, queues) = Default::default();
        let (turns, outlasted, meter, waits) = Default::default();
        let janitor = Janitor::new(backend.clone());
        Arc::new(Self {
            backend,
            counters,
            janitor,
            renewals,
            keeper,
            queues,
            turns,
            outlasted,
            meter,
            waits,
        })
    }

    /// Sets the mark of the name of a claim to a tick, if the claim has the lease. After an error
    /// it asks twice more: the mark may be set, and no other claim may set it again.
    pub(crate) async fn mark(&self, claim: &Claim, tick: Tick) -> Result<Marked, Error> {
        let mut pauses = Pauses::default();
        for _ in 0..2 {
            if let Ok(marked) = self.backend.mark(claim, tick).await {
                return Ok(marked);
            }
            sleep(pauses.next()).await;
        }
        Ok(self.backend.mark(claim, tick).await?)
    }

    pub(crate) fn stats(&self) -> LockStats {
        self.counters.snapshot(self.renewals.held())
    }

    /// Returns what is known of the connections, as gauges.
    #[cfg(feature = "metrics")]
    pub(crate) fn connection_gauges(&self) -> impl Iterator<Item = (&'static str, f64)> + use<> {
        let known = self.backend.connections();
        let times = [
            ("bellwether_round_trip_seconds", known.round_trip),
            ("bellwether_connected_seconds", known.stood_for),
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
        // Last, since the releases start more of it.
        self.backend.settle(end.saturating_duration_since(Instant::now())).await;
    }
}
