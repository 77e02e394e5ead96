//! The metrics of caches and locks. Without the feature `metrics`, nothing is published.
//!
//! A task reads [`Stats`](crate::cache::Stats) each second, and publishes each of its fields. So a
//! hit costs nothing more. Times are recorded where they end, at loads and locks, and the ages of a
//! sample of the local tier's copies.

use std::time::Duration;

use tokio::time::Instant;

/// Under which label a cache or its locks publish, once they do.
#[derive(Default)]
pub(crate) struct Meter {
    #[cfg(feature = "metrics")]
    label: std::sync::OnceLock<facade::Label>,
}

#[cfg_attr(not(feature = "metrics"), allow(unused_variables, clippy::unused_self))]
impl Meter {
    /// Publishes a time that ends now.
    pub(crate) fn ended(&self, metric: &'static str, begun: Instant, result: &'static str) {
        #[cfg(feature = "metrics")]
        if let Some((key, name)) = self.label.get() {
            let time = metrics::histogram!(metric, *key => name.clone(), "result" => result);
            time.record(begun.elapsed());
        }
    }

    /// Publishes how long a caller took from the push that ended its wait, if one did.
    pub(crate) fn woken(&self, pushed: Option<Instant>, result: &'static str) {
        if let Some(pushed) = pushed {
            self.ended("bellwether_wake_up_seconds", pushed, result);
        }
    }

    /// Publishes the age of a copy that is served, for a sample of the calls.
    pub(crate) fn sample_local_age(&self, age: impl FnOnce() -> Duration) {
        #[cfg(feature = "metrics")]
        if let Some((key, name)) = self.label.get()
            && fastrand::u32(..facade::SAMPLED) == 0
        {
            let metric = "bellwether_local_age_seconds";
            metrics::histogram!(metric, *key => name.clone()).record(age());
        }
    }
}

#[cfg(feature = "metrics")]
pub(crate) use self::facade::{Reading, publish};

#[cfg(feature = "metrics")]
mod facade {
    use std::{sync::Arc, time::Duration};

    use metrics::{SharedString, counter, gauge};
    use serde_json::Value;
    use tokio::time::{MissedTickBehavior, interval};

    use super::Meter;

    /// How often counters and gauges are published.
    const INTERVAL: Duration = Duration::from_secs(1);
    /// The age of one of so many copies is published.
    pub(super) const SAMPLED: u32 = 64;
    /// The fields of the statistics that go up and down.
    const GAUGES: [&str; 2] = ["flights", "held"];
    /// The fields that are results of the requests to a cache.
    const RESULTS: [&str; 9] =
        ["hits", "local", "stale", "led", "followed", "received", "degraded", "failed", "passed"];

    /// A label of all metrics of a cache, or of its locks.
    pub(super) type Label = (&'static str, SharedString);

    /// The statistics as JSON, and the other numbers that go up and down.
    pub(crate) type Reading = (Value, Vec<(&'static str, f64)>);

    /// Publishes what a source reads until it is gone. The first label that a meter is given stays.
    pub(crate) fn publish<P: Send + Sync + 'static>(
        meter: &Meter,
        label: &'static str,
        name: String,
        source: &Arc<P>,
        read: fn(&P) -> Reading,
    ) -> impl Future<Output = ()> + Send + 'static + use<P> {
        let label = meter.label.get_or_init(|| (label, name.into())).clone();
        let source = Arc::downgrade(source);
        async move {
            let mut ticks = interval(INTERVAL);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            loop {
                ticks.tick().await;
                let Some(source) = source.upgrade() else { return };
                publish_now(&label, read(&source));
            }
        }
    }

    fn publish_now((key, name): &Label, (stats, gauges): Reading) {
        let is_cache = *key == "cache";
        let prefix = if is_cache { "bellwether" } else { "bellwether_locks" };
        for (field, value) in stats.as_object().into_iter().flatten() {
            let value = value.as_u64().unwrap_or(0);
            let field = field.as_str();
            if GAUGES.contains(&field) {
                gauge!(format!("{prefix}_{field}"), *key => name.clone()).set(value as f64);
                continue;
            }
            let counter = if is_cache && RESULTS.contains(&field) {
                let result = if field == "hits" { "hit" } else { field }.to_owned();
                counter!("bellwether_requests_total", *key => name.clone(), "result" => result)
            } else {
                counter!(format!("{prefix}_{field}_total"), *key => name.clone())
            };
            counter.absolute(value);
        }
        for (metric, value) in gauges {
            gauge!(metric, *key => name.clone()).set(value);
        }
    }
}
