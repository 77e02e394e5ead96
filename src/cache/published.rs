//! The metrics of a cache.

use super::{
    core::Core,
    outcome::{Outcome, Source},
};
use crate::{
    error::Error,
    meter::{MeterStart, MeteredTime},
};

impl<V> Core<V> {
    /// Publishes how long a loader took.
    pub(super) fn loaded<T>(&self, begun: MeterStart, produced: &Result<T, Error>) {
        let result = || if produced.is_ok() { "value" } else { "error" };
        self.meter.ended(begun, MeteredTime::Load, result);
    }

    /// Publishes how long a flight took after its look. A hit is not timed.
    pub(super) fn waited(&self, begun: MeterStart, end: &Outcome<V>) {
        let source = match end {
            Outcome::Value(loaded) => loaded.source,
            Outcome::Head(_, source) => *source,
            Outcome::Failed(_) => return self.meter.ended(begun, MeteredTime::Wait, || "error"),
            Outcome::Alone(_) | Outcome::Unanswered(_) => return,
        };
        let result = match source {
            Source::Led | Source::Followed => "led",
            Source::Hit | Source::Local => "hit",
            Source::Stale => "stale",
            Source::Received => "received",
            Source::Degraded => "degraded",
        };
        self.meter.ended(begun, MeteredTime::Wait, || result);
    }
}

#[cfg(feature = "metrics")]
impl<V: Clone + Send + Sync + 'static> crate::meter::Publisher for Core<V> {
    fn meter(&self) -> &crate::meter::Meter {
        &self.meter
    }

    fn counters(&self) -> Vec<crate::meter::MetricValue> {
        let counted = self.counters.snapshot(0).each().into_iter();
        counted
            .map(|(field, metric, value)| match field {
                "hits" => (REQUESTS, Some("hit"), value),
                "local" | "stale" | "led" | "followed" | "received" | "degraded" | "failed"
                | "passed" => (REQUESTS, Some(field), value),
                _ => (metric, None, value),
            })
            .collect()
    }

    fn gauges(&self) -> Vec<(&'static str, f64)> {
        let flights = self.flights.len() + self.reloads.len();
        let leases = self.engine.stats().held;
        let open = self.shards.count(|shard| shard.breaker.is_open());
        let mut gauges = vec![
            ("bellwether_flights", flights as f64),
            ("bellwether_leases", leases as f64),
            ("bellwether_breaker_open", open as f64),
        ];
        if let Some(tier) = &self.tier {
            let (lag, is_trusted) = tier.trust();
            gauges.push(("bellwether_local_trusted", f64::from(u8::from(is_trusted))));
            gauges.extend(lag.map(|lag| ("bellwether_local_staleness_seconds", lag.as_secs_f64())));
        }
        gauges
    }
}

#[cfg(feature = "metrics")]
const REQUESTS: &str = "bellwether_requests_total";
