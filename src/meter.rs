//! The metrics of caches and locks. Without the feature `metrics`, nothing is published.
//!
//! A task reads [`Stats`](crate::cache::Stats) each second, and publishes each field, so metrics
//! cost a hit nothing. Loads and locks record their times when they end. Of the copies that the
//! local tier serves, a sample records the age.
//!
//! Several caches of a process may have the same name, at once or one after another. A
//! [group](facade) adds up their counters, so that no counter goes back and no gauge stays after
//! its cache.

use std::time::Duration;

use tokio::time::Instant;

/// The label under which a cache or its locks publish, once `publish_metrics` was called.
#[derive(Default)]
pub(crate) struct Meter {
    #[cfg(feature = "metrics")]
    published: std::sync::OnceLock<facade::Published>,
}

#[cfg_attr(not(feature = "metrics"), allow(unused_variables, clippy::unused_self))]
impl Meter {
    /// Returns whether anything is published.
    pub(crate) fn is_published(&self) -> bool {
        #[cfg(feature = "metrics")]
        return self.published.get().is_some();
        #[cfg(not(feature = "metrics"))]
        false
    }

    /// Publishes a time that ends now.
    pub(crate) fn ended(&self, metric: &'static str, begun: Instant, result: &'static str) {
        #[cfg(feature = "metrics")]
        if let Some(facade::Published { label: (key, name), .. }) = self.published.get() {
            let time = metrics::histogram!(metric, *key => name.clone(), "result" => result);
            time.record(begun.elapsed());
        }
    }

    /// Publishes the time since the push that ended a caller's wait, if a push ended it.
    pub(crate) fn woken(&self, pushed: Option<Instant>, result: &'static str) {
        if let Some(pushed) = pushed {
            self.ended("bellwether_wake_up_seconds", pushed, result);
        }
    }

    /// Publishes the period of a job, and its last tick in microseconds if a tick is remembered.
    pub(crate) fn job(&self, job: &str, period: Duration, last_tick: Option<u64>) {
        #[cfg(feature = "metrics")]
        if let Some(published) = self.published.get()
            && let Some((key, name)) = published.label_for("job", job)
        {
            let labels = [(key, name), ("schedule", job.to_owned().into())];
            metrics::gauge!("bellwether_job_period_seconds", &labels).set(period.as_secs_f64());
            if let Some(tick) = last_tick {
                let last = Duration::from_micros(tick).as_secs_f64();
                metrics::gauge!("bellwether_job_last_tick_seconds", &labels).set(last);
            }
        }
    }

    /// Publishes a candidate for the leader, until the result is dropped.
    pub(crate) fn candidate(&self, leader: &str) -> Candidacy {
        Candidacy {
            #[cfg(feature = "metrics")]
            gauge: self.leader_gauge(leader),
            is_leader: false,
        }
    }

    #[cfg(feature = "metrics")]
    fn leader_gauge(&self, leader: &str) -> Option<metrics::Gauge> {
        let (key, name) = self.published.get()?.label_for("leader", leader)?;
        let labels = [(key, name), ("leader", leader.to_owned().into())];
        let gauge = metrics::gauge!("bellwether_leader", &labels);
        gauge.increment(0.0);
        Some(gauge)
    }

    /// Publishes the age of a copy that is served, for a sample of the calls.
    pub(crate) fn sample_local_age(&self, age: impl FnOnce() -> Duration) {
        #[cfg(feature = "metrics")]
        if let Some(facade::Published { label: (key, name), .. }) = self.published.get()
            && crate::random::below(facade::SAMPLED) == 0
        {
            let metric = "bellwether_local_age_seconds";
            metrics::histogram!(metric, *key => name.clone()).record(age());
        }
    }
}

/// A candidate for the leader. Several candidates of a process may have the same name.
pub(crate) struct Candidacy {
    #[cfg(feature = "metrics")]
    gauge: Option<metrics::Gauge>,
    is_leader: bool,
}

impl Candidacy {
    pub(crate) fn leads(&mut self, is_leader: bool) {
        #[cfg(feature = "metrics")]
        if let Some(gauge) = &self.gauge
            && self.is_leader != is_leader
        {
            gauge.increment(if is_leader { 1.0 } else { -1.0 });
        }
        self.is_leader = is_leader;
    }
}

impl Drop for Candidacy {
    fn drop(&mut self) {
        self.leads(false);
    }
}

#[cfg(feature = "metrics")]
pub(crate) use self::facade::{Reading, publish};

#[cfg(feature = "metrics")]
mod facade {
    use std::{
        collections::{BTreeMap, BTreeSet, HashMap, HashSet},
        sync::{
            Arc, LazyLock, Mutex, Weak,
            atomic::{AtomicU64, Ordering},
        },
        time::Duration,
    };

    use metrics::{SharedString, counter, gauge};
    use serde_json::Value;
    use tokio::time::{MissedTickBehavior, interval};

    use super::{
        Meter,
        table::{self, Merge},
    };
    use crate::sync::lock;

    /// How often counters and gauges are published.
    const INTERVAL: Duration = Duration::from_secs(1);
    /// One in this many served copies publishes its age.
    pub(super) const SAMPLED: u32 = 64;
    /// The fields of the statistics that go up and down.
    const GAUGES: [&str; 3] = ["flights", "deferred_writes", "held"];
    /// The fields of the statistics that count callers by the result of their request.
    const RESULTS: [&str; 9] =
        ["hits", "local", "stale", "led", "followed", "received", "degraded", "failed", "passed"];

    /// A label of all metrics of a cache, or of its locks.
    pub(super) type Label = (&'static str, SharedString);

    /// The label under which a source publishes, and the number of the source.
    #[derive(Clone)]
    pub(super) struct Published {
        pub(super) label: Label,
        number: u64,
        /// The names of jobs and leaders that are labels, each with its kind.
        names: Arc<Mutex<HashSet<(&'static str, String)>>>,
    }

    /// How many names of jobs, and how many names of leaders, are labels. Each label is a time
    /// series of its own, so their number has a limit.
    const MOST_NAMES: usize = 100;

    impl Published {
        /// Returns the label of these locks, if the name of a job or of a leader may be a label,
        /// too.
        pub(super) fn label_for(&self, what: &'static str, name: &str) -> Option<Label> {
            let mut names = lock(&self.names);
            let named = (what, name.to_owned());
            let of_kind = names.iter().filter(|(kind, _)| *kind == what);
            if of_kind.count() >= MOST_NAMES && !names.contains(&named) {
                return None;
            }
            names.insert(named);
            Some(self.label.clone())
        }
    }

    /// The statistics as JSON, and the other numbers that go up and down.
    pub(crate) type Reading = (Value, Vec<(&'static str, f64)>);

    /// A counter, and its result if it has one.
    type Counted = (String, Option<String>);

    /// The last reading of one cache, or of one engine of locks.
    #[derive(Default)]
    struct LastReading {
        counters: BTreeMap<Counted, u64>,
        gauges: Vec<(String, f64)>,
    }

    /// The sources of one label.
    #[derive(Default)]
    struct Group {
        sources: HashMap<u64, LastReading>,
        /// The counters of the sources that have ended.
        ended: BTreeMap<Counted, u64>,
        /// The gauges that were published, even by a source that has ended.
        gauges: BTreeSet<String>,
    }

    static GROUPS: LazyLock<Mutex<HashMap<Label, Group>>> = LazyLock::new(Mutex::default);
    static NEXT: AtomicU64 = AtomicU64::new(0);

    /// Publishes the readings of a source until the source is dropped. A meter keeps its first
    /// label.
    pub(crate) fn publish<P: Send + Sync + 'static>(
        meter: &Meter,
        label: &'static str,
        name: String,
        source: &Arc<P>,
        read: fn(&P) -> Reading,
    ) -> impl Future<Output = ()> + Send + 'static + use<P> {
        let published = meter.published.get_or_init(|| Published {
            label: (label, name.into()),
            number: NEXT.fetch_add(1, Ordering::Relaxed),
            names: Arc::default(),
        });
        let publication =
            Publication { published: published.clone(), source: Arc::downgrade(source) };
        async move {
            table::describe();
            let mut ticks = interval(INTERVAL);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            loop {
                ticks.tick().await;
                let Some(source) = publication.source.upgrade() else { return };
                publication.now(read(&source));
            }
        }
    }

    /// On drop: takes the source out of its group.
    struct Publication<P> {
        published: Published,
        source: Weak<P>,
    }

    impl<P> Publication<P> {
        fn now(&self, (stats, gauges): Reading) {
            let Published { label, number, .. } = &self.published;
            let mut last = LastReading::default();
            for (metric, value) in gauges {
                last.gauges.push((metric.to_owned(), value));
            }
            for (field, value) in stats.as_object().into_iter().flatten() {
                last.take(label.0 == "cache", field, value.as_u64().unwrap_or(0));
            }
            let mut groups = lock(&GROUPS);
            let group = groups.entry(label.clone()).or_default();
            group.sources.insert(*number, last);
            group.publish(label);
        }
    }

    impl<P> Drop for Publication<P> {
        fn drop(&mut self) {
            let Published { label, number, .. } = &self.published;
            let mut groups = lock(&GROUPS);
            let Some(group) = groups.get_mut(label) else { return };
            let is_gone = self.source.strong_count() == 0;
            if let Some(last) = group.sources.get_mut(number) {
                // The gauges are not read any more, but the counters stay.
                last.gauges.clear();
            }
            if is_gone && let Some(last) = group.sources.remove(number) {
                for (counted, value) in last.counters {
                    *group.ended.entry(counted).or_default() += value;
                }
            }
            group.publish(label);
        }
    }

    impl LastReading {
        /// Takes in a field of the statistics.
        fn take(&mut self, is_cache: bool, field: &str, value: u64) {
            let prefix = if is_cache { "bellwether" } else { "bellwether_locks" };
            if GAUGES.contains(&field) {
                self.gauges.push((format!("{prefix}_{field}"), value as f64));
            } else if is_cache && RESULTS.contains(&field) {
                let result = if field == "hits" { "hit" } else { field };
                let metric = "bellwether_requests_total".to_owned();
                self.counters.insert((metric, Some(result.to_owned())), value);
            } else {
                self.counters.insert((format!("{prefix}_{field}_total"), None), value);
            }
        }
    }

    impl Group {
        fn publish(&mut self, label: &Label) {
            let (key, name) = label;
            let mut counters = self.ended.clone();
            let mut gauges = BTreeMap::<&str, Vec<f64>>::new();
            for last in self.sources.values() {
                for (counted, value) in &last.counters {
                    *counters.entry(counted.clone()).or_default() += value;
                }
                for (metric, value) in &last.gauges {
                    self.gauges.insert(metric.clone());
                    let values = gauges.entry(metric).or_default();
                    values.push(*value);
                }
            }
            for ((metric, result), value) in counters {
                let counter = match result {
                    Some(result) => counter!(metric, *key => name.clone(), "result" => result),
                    None => counter!(metric, *key => name.clone()),
                };
                counter.absolute(value);
            }
            for metric in &self.gauges {
                let values = gauges.remove(metric.as_str()).unwrap_or_default();
                let value = table::merge_of(metric).of(&values);
                gauge!(metric.clone(), *key => name.clone()).set(value);
            }
        }
    }

    impl Merge {
        /// Merges the values of all sources that live.
        fn of(self, values: &[f64]) -> f64 {
            let values = values.iter().copied();
            match self {
                Self::Sum => values.sum(),
                Self::Least => values.fold(1.0, f64::min),
                Self::Greatest => values.fold(0.0, f64::max),
                Self::Shortest => values.reduce(f64::min).unwrap_or(0.0),
            }
        }
    }
}

/// All metrics, with their descriptions.
#[cfg(feature = "metrics")]
mod table;
