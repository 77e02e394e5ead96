//! The metrics of caches and locks. Without the feature `metrics`, nothing is published.
//!
//! Counters and gauges are published by a task that reads [`Stats`](crate::cache::Stats) each
//! second, so a hit costs nothing more. Times are recorded where they end, at loads and locks, and
//! the ages of a sample of the local tier's copies.

#[cfg(feature = "metrics")]
use self::facade::Label;
#[cfg(feature = "metrics")]
pub(crate) use self::facade::{MetricValue, Publisher, publish};

/// Under which name a cache or its locks publish, once they do.
#[derive(Default)]
pub(crate) struct Meter {
    #[cfg(feature = "metrics")]
    label: std::sync::OnceLock<Label>,
}

/// When a time began that is published at its end.
#[derive(Clone, Copy, Default)]
pub(crate) struct MeterStart(#[cfg(feature = "metrics")] Option<tokio::time::Instant>);

/// The times that are published.
#[derive(Clone, Copy)]
#[cfg_attr(not(feature = "metrics"), allow(dead_code))]
pub(crate) enum MeteredTime {
    /// From the start of a loader to its end. The result is `value` or `error`.
    Load,
    /// From a miss to the end of its flight. The result is `led`, `received`, ...
    Wait,
    /// From the question for a lock to its end. The result is `acquired` or `error`.
    LockWait,
    /// From the grant of a lock to the end of its guard.
    LockHold,
}

#[cfg(not(feature = "metrics"))]
impl Meter {
    pub(crate) fn begin(&self) -> MeterStart {
        MeterStart()
    }

    pub(crate) fn ended(
        &self,
        _begun: MeterStart,
        _timed: MeteredTime,
        _result: impl FnOnce() -> &'static str,
    ) {
    }

    pub(crate) fn sample_local_age(&self, _age: impl FnOnce() -> std::time::Duration) {}
}

#[cfg(feature = "metrics")]
mod facade {
    use std::{
        sync::{Arc, Weak},
        time::Duration,
    };

    use metrics::{SharedString, counter, gauge, histogram};
    use tokio::time::{Instant, MissedTickBehavior, interval};

    use super::{Meter, MeterStart, MeteredTime};

    /// How often counters and gauges are published.
    const INTERVAL: Duration = Duration::from_secs(1);
    /// The age of one of so many copies is published.
    const SAMPLED: u32 = 64;

    /// A label of all metrics of a cache, or of its locks.
    pub(crate) type Label = (&'static str, SharedString);

    /// A source of counters and gauges.
    pub(crate) trait Publisher: Send + Sync + 'static {
        fn meter(&self) -> &Meter;

        /// Returns the counters: their metrics, and labels of their own.
        fn counters(&self) -> Vec<MetricValue>;

        /// Returns the numbers that go up and down.
        fn gauges(&self) -> Vec<(&'static str, f64)>;
    }

    /// A metric, the value of its label `result` if it has one, and its value.
    pub(crate) type MetricValue = (&'static str, Option<&'static str>, u64);

    /// Publishes until the publisher is gone. The first name that it is given stays.
    pub(crate) fn publish<P: Publisher>(
        publisher: &Arc<P>,
        label: Label,
    ) -> impl Future<Output = ()> + Send + 'static + use<P> {
        let _ = publisher.meter().label.set(label);
        let publisher = Arc::downgrade(publisher);
        async move {
            let mut ticks = interval(INTERVAL);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            loop {
                ticks.tick().await;
                if !publish_now(&publisher) {
                    return;
                }
            }
        }
    }

    fn publish_now<P: Publisher>(publisher: &Weak<P>) -> bool {
        let Some(publisher) = publisher.upgrade() else { return false };
        let Some(label) = publisher.meter().label.get() else { return false };
        for (metric, result, value) in publisher.counters() {
            match result {
                Some(result) => counter!(metric, label.0 => label.1.clone(), "result" => result),
                None => counter!(metric, label.0 => label.1.clone()),
            }
            .absolute(value);
        }
        for (metric, value) in publisher.gauges() {
            gauge!(metric, label.0 => label.1.clone()).set(value);
        }
        true
    }

    impl MeteredTime {
        fn metric(self) -> &'static str {
            match self {
                Self::Load => "bellwether_load_seconds",
                Self::Wait => "bellwether_wait_seconds",
                Self::LockWait => "bellwether_lock_wait_seconds",
                Self::LockHold => "bellwether_lock_hold_seconds",
            }
        }
    }

    impl Meter {
        /// Notes that a time begins, if it is to be published.
        pub(crate) fn begin(&self) -> MeterStart {
            MeterStart(self.label.get().map(|_| Instant::now()))
        }

        /// Publishes a time that ends now.
        pub(crate) fn ended(
            &self,
            begun: MeterStart,
            timed: MeteredTime,
            result: impl FnOnce() -> &'static str,
        ) {
            let (Some(begun), Some(label)) = (begun.0, self.label.get()) else { return };
            let (key, name) = (label.0, label.1.clone());
            histogram!(timed.metric(), key => name, "result" => result()).record(begun.elapsed());
        }

        /// Publishes the age of a copy that is served, for a sample of the calls.
        pub(crate) fn sample_local_age(&self, age: impl FnOnce() -> Duration) {
            let Some(label) = self.label.get() else { return };
            if fastrand::u32(..SAMPLED) == 0 {
                histogram!("bellwether_local_age_seconds", label.0 => label.1.clone())
                    .record(age());
            }
        }
    }
}
