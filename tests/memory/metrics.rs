//! What is published as metrics, and whether its page tells all of it.

use std::collections::{BTreeMap, BTreeSet};

use bellwether::cache::LocalTier;
use metrics_util::{
    MetricKind,
    debugging::{DebugValue, DebuggingRecorder, Snapshotter},
};

use crate::prelude::*;

const PAGE: &str = include_str!("../../docs/metrics.md");
/// So many that the ages of some are published.
const COPIES: u64 = 2_000;

/// What was published: the kind and the value of each metric with its labels.
type Published = BTreeMap<(String, Vec<(String, String)>), (MetricKind, f64)>;

fn published(snapshotter: &Snapshotter) -> Published {
    let values = snapshotter.snapshot().into_vec().into_iter();
    let one = |(key, _, _, value): (metrics_util::CompositeKey, _, _, DebugValue)| {
        let (kind, key) = key.into_parts();
        let labels = key.labels().map(|l| (l.key().to_owned(), l.value().to_owned()));
        let value = match value {
            DebugValue::Counter(value) => value as f64,
            DebugValue::Gauge(value) => value.into_inner(),
            DebugValue::Histogram(values) => values.iter().map(|value| value.into_inner()).sum(),
        };
        ((key.name().to_owned(), labels.collect()), (kind, value))
    };
    values.map(one).collect()
}

fn of(published: &Published, metric: &str, labels: &[(&str, &str)]) -> f64 {
    let labels = labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
    let found = published.get(&(metric.to_owned(), labels.collect()));
    found.unwrap_or_else(|| panic!("{metric} is not published: {published:?}")).1
}

/// Loads, fails, and holds a lock, each for a time that is known.
async fn traffic(cache: &Cache<u64>, locks: &Locks) {
    let slow = || after(2 * SECOND, 17);
    let loads = (0..3).map(|_| cache.get_or_load("k", slow()));
    futures_util::future::try_join_all(loads).await.unwrap();
    for _ in 0..4 {
        cache.get_or_load("k", slow()).await.unwrap();
    }
    for _ in 0..COPIES {
        assert_eq!(cache.get_local("k"), Some(17));
    }
    cache.get_or_load("bad", fails("the origin is away")).await.unwrap_err();
    let guard = locks.mutex("m").lock().await.unwrap();
    let refused = locks.mutex("m").wait_limit(SECOND).lock().await;
    assert!(refused.is_err());
    sleep(2 * SECOND).await;
    guard.unlock().await.unwrap();
}

/// Waits for a load and for a lock of another process, and is woken at the end of each.
async fn wake_ups(cache: &Cache<u64>, locks: &Locks, backend: &MemoryBackend) {
    let other: Cache<u64> = Cache::builder(backend.clone(), "bellwether").build().unwrap();
    let load = other.get_or_load("w", after(SECOND, 17));
    let receives = async {
        sleep(SECOND / 2).await;
        cache.get_or_load("w", fails("it is loaded already")).await
    };
    let (loaded, received) = tokio::join!(load, receives);
    assert_eq!((loaded.unwrap(), received.unwrap()), (17, 17));
    let held = Locks::new(backend.clone(), "bellwether").mutex("w").lock().await.unwrap();
    let releases = async {
        sleep(SECOND).await;
        held.unlock().await.unwrap();
    };
    let mutex = locks.mutex("w");
    let (waited, ()) = tokio::join!(mutex.lock(), releases);
    waited.unwrap().unlock().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn each_metric_is_published_and_told_by_its_page() {
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    let _recording = metrics::set_default_local_recorder(&recorder);
    let backend = MemoryBackend::new();
    let builder = Cache::builder(backend.clone(), "bellwether").local(LocalTier::default());
    let cache: Cache<u64> = builder.build().unwrap();
    let locks = Locks::new(backend.clone(), "bellwether");
    spawn(cache.publish_metrics("products"));
    spawn(locks.publish_metrics("shop"));
    sleep(SECOND).await;
    traffic(&cache, &locks).await;
    wake_ups(&cache, &locks, &backend).await;
    sleep(2 * SECOND).await;

    let seen = published(&snapshotter);
    let stats = cache.stats();
    let result = |result| [("cache", "products"), ("result", result)];
    let requests = |name| of(&seen, "bellwether_requests_total", &result(name)) as u64;
    assert_eq!((requests("led"), requests("followed"), requests("failed")), (1, 2, 1));
    assert_eq!((requests("hit"), requests("local")), (stats.hits, stats.local));
    assert_eq!(stats.hits + stats.local, 4 + COPIES);
    // One time for the load, and one for the three callers that waited for it.
    assert_eq!(of(&seen, "bellwether_load_seconds", &result("value")), 2.0);
    assert_eq!(of(&seen, "bellwether_wait_seconds", &result("led")), 2.0);
    let of_locks = |result| [("locks", "shop"), ("result", result)];
    let held = of(&seen, "bellwether_lock_hold_seconds", &of_locks("held"));
    assert!((3.0..3.6).contains(&held), "{held}");
    let waited = of(&seen, "bellwether_lock_wait_seconds", &of_locks("error"));
    assert!((1.0..1.6).contains(&waited), "{waited}");
    // The push takes no time here, and the waits of a half and of a whole second are no part of it.
    assert_eq!(of(&seen, "bellwether_wake_up_seconds", &result("received")), 0.0);
    assert_eq!(of(&seen, "bellwether_wake_up_seconds", &of_locks("acquired")), 0.0);
    assert_eq!(of(&seen, "bellwether_locks_not_acquired_total", &[("locks", "shop")]), 1.0);

    let names: BTreeSet<_> = seen
        .iter()
        .map(|((name, _), (kind, _))| format!("`{name}` | {}", format!("{kind:?}").to_lowercase()))
        .collect();
    let told: BTreeSet<_> = PAGE
        .lines()
        .filter_map(|line| line.strip_prefix("| `bellwether_"))
        .map(|line| {
            format!("`bellwether_{}", line.split(" | ").take(2).collect::<Vec<_>>().join(" | "))
        })
        .collect();
    // Only a backend that tells the tier how far it is behind has this one.
    let staleness = "`bellwether_local_staleness_seconds` | gauge".to_owned();
    assert!(told.contains(&staleness));
    let told: BTreeSet<_> = told.into_iter().filter(|line| *line != staleness).collect();
    assert_eq!(names, told);
}

#[tokio::test(start_paused = true)]
async fn what_publishes_ends_with_its_cache() {
    let cache: Cache<u64> = Cache::builder(MemoryBackend::new(), "bellwether").build().unwrap();
    let locks = Locks::new(MemoryBackend::new(), "bellwether");
    let of_cache = spawn(cache.publish_metrics("products"));
    let of_locks = spawn(locks.publish_metrics("shop"));
    let clone = cache.clone();
    drop((cache, locks));
    sleep(2 * SECOND).await;
    assert!(!of_cache.is_finished() && of_locks.is_finished());
    drop(clone);
    sleep(2 * SECOND).await;
    assert!(of_cache.is_finished());
}
