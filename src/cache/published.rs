//! The metrics that a cache publishes, and the fields of its spans.

use tracing::Span;

use super::{
    core::Core,
    outcome::{Outcome, Source},
};
use crate::{
    error::Error,
    meter::{MeterStart, MeteredTime},
    spans,
};

impl<V> Core<V> {
    /// Publishes how long a loader took.
    pub(super) fn loaded<T>(&self, begun: MeterStart, produced: &Result<T, Error>) {
        let result = || if produced.is_ok() { "value" } else { "error" };
        self.meter.ended(begun, MeteredTime::Load, result);
    }

    /// Publishes how long a flight took after its look. A hit is not timed.
    pub(super) fn waited(&self, begun: MeterStart, end: &Outcome<V>) {
        if !matches!(end, Outcome::Alone(_) | Outcome::Unanswered(_)) {
            self.meter.ended(begun, MeteredTime::Wait, || end.result(true));
        }
    }
}

impl<V> Outcome<V> {
    /// Returns the word for it, for the caller whose loader ran, or for another one of the flight.
    fn result(&self, leads: bool) -> &'static str {
        let source = match self {
            Self::Value(loaded) => loaded.source,
            Self::Head(_, source) => *source,
            Self::Failed(_) => return "error",
            Self::Alone(_) => return "alone",
            Self::Unanswered(_) => return "unanswered",
        };
        match source.for_caller(leads) {
            Source::Led => "led",
            Source::Followed => "followed",
            Source::Hit | Source::Local => "hit",
            Source::Stale => "stale",
            Source::Received => "received",
            Source::Degraded => "degraded",
        }
    }

    /// Notes in a span that it ended so.
    pub(super) fn ends(&self, span: &Span, leads: bool) {
        let error = match self {
            Self::Failed(error) => Some(error),
            _ => None,
        };
        spans::ended(span, self.result(leads), error);
    }
}

#[cfg(feature = "metrics")]
impl<V: Clone + Send + Sync + 'static> crate::meter::Publisher for Core<V> {
    fn meter(&self) -> &crate::meter::Meter {
        &self.meter
    }

    fn counters(&self) -> Vec<crate::meter::MetricValue> {
        let counted = self.stats().each().into_iter();
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
        let flights = self.flights.len();
        let leases = self.engine.stats().held;
        let open = self.shards.count(|shard| shard.breaker.is_open());
        let mut gauges = vec![
            ("bellwether_flights", flights as f64),
            ("bellwether_leases", leases as f64),
            ("bellwether_breaker_open", open as f64),
        ];
        let trust = self.copies.as_ref().and_then(|copies| copies.trust());
        if let Some((lag, is_trusted)) = trust {
            gauges.push(("bellwether_local_trusted", f64::from(u8::from(is_trusted))));
            gauges.extend(lag.map(|lag| ("bellwether_local_staleness_seconds", lag.as_secs_f64())));
        }
        gauges
    }
}

#[cfg(feature = "metrics")]
const REQUESTS: &str = "bellwether_requests_total";
