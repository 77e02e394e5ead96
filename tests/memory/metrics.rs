//! What is published as metrics, and whether its page tells all of it.

use std::collections::{BTreeMap, BTreeSet};

use bellwether::cache::LocalTier;
use metrics::{SharedString, Unit};
use metrics_util::{
    MetricKind,
    debugging::{DebugValue, DebuggingRecorder, Snapshotter},
};

use crate::prelude::*;

const PAGE: &str = include_str!("../../docs/metrics.md");
/// So many that the ages of some are published.
const COPIES: u64 = 2_000;

/// What was published of each metric with its labels.
type Published = BTreeMap<(String, Vec<(String, String)>), Series>;

struct Series {
    kind: MetricKind,
    unit: Option<Unit>,
    help: Option<SharedString>,
    value: f64,
}

fn published(snapshotter: &Snapshotter) -> Published {
    let values = snapshotter.snapshot().into_vec().into_iter();
    let one = |(key, unit, help, value): (metrics_util::CompositeKey, _, _, DebugValue)| {
        let (kind, key) = key.into_parts();
        let labels = key.labels().map(|l| (l.key().to_owned(), l.value().to_owned()));
        let value = match value {
            DebugValue::Counter(value) => value as f64,
            DebugValue::Gauge(value) => value.into_inner(),
            DebugValue::Histogram(values) => values.iter().map(|value| value.into_inner()).sum(),
        };
        ((key.name().to_owned(), labels.collect()), Series { kind, unit, help, value })
    };
    values.map(one).collect()
}

fn of(published: &Published, metric: &str, labels: &[(&str, &str)]) -> f64 {
    let labels = labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
    let found = published.get(&(metric.to_owned(), labels.collect()));
    found.unwrap_or_else(|| panic!("{metric} is not published: {:?}", published.keys())).value
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
    let turn = locks.every("clean-up", 60 * SECOND).next().await.unwrap();
    turn.done().await.unwrap();
    let candidate = locks.leader("boss");
    let leads = spawn(async move { candidate.run(|_| std::future::pending::<()>()).await });
    sleep(2 * SECOND).await;
    leads.abort();

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

    told_by_the_page(&seen);
}

/// Compares what was published with the table: the names, the kinds, the units and the help.
fn told_by_the_page(seen: &Published) {
    let mut names = BTreeSet::new();
    for ((name, _), series) in seen {
        let Series { kind, unit, help, .. } = series;
        let (kind, help) =
            (format!("{kind:?}").to_lowercase(), help.as_deref().unwrap_or_default());
        names.insert(format!("{name} | {kind} | {help}"));
        let expected = match name.as_str() {
            name if name.contains("_seconds") => Unit::Seconds,
            name if name.ends_with("_bytes") => Unit::Bytes,
            _ => Unit::Count,
        };
        assert_eq!(*unit, Some(expected), "{name}");
    }
    let mut told = BTreeSet::new();
    for line in PAGE.lines().filter_map(|line| line.strip_prefix("| ")) {
        if line.starts_with("`bellwether_") {
            let row: Vec<_> = line.split(" | ").take(3).collect();
            told.insert(row.join(" | ").replace('`', ""));
        }
    }
    // Only a backend with a server has these. The test of the dashboard asks for them.
    let of_server = ["local_staleness_seconds", "round_trip_seconds", "connected_seconds"];
    let has_server = |line: &str| of_server.iter().any(|name| line.contains(name));
    told.retain(|line| !has_server(line));
    assert_eq!(names, told);
}

/// Publishes a cache under a name, and waits until it is published.
async fn publishing(name: &str, tier: bool) -> Cache<u64> {
    let builder = Cache::builder(MemoryBackend::new(), "bellwether");
    let builder = if tier { builder.local(LocalTier::default()) } else { builder };
    let cache: Cache<u64> = builder.build().unwrap();
    spawn(cache.publish_metrics(name.to_owned()));
    sleep(2 * SECOND).await;
    cache
}

#[tokio::test(start_paused = true)]
async fn caches_of_one_name_add_up_and_leave_no_gauge() {
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    let _recording = metrics::set_default_local_recorder(&recorder);
    let labels = [("cache", "adds-up")];
    let hit = [("cache", "adds-up"), ("result", "hit")];
    let hits = |seen: &Published| of(seen, "bellwether_requests_total", &hit);
    let first = publishing("adds-up", false).await;
    first.insert("k", &1).await.unwrap();
    for _ in 0..50 {
        first.get_or_load("k", fails("it is stored")).await.unwrap();
    }
    sleep(2 * SECOND).await;
    assert_eq!(hits(&published(&snapshotter)), 50.0);
    drop(first);
    sleep(2 * SECOND).await;
    let second = publishing("adds-up", false).await;
    let third = publishing("adds-up", false).await;
    for cache in [&second, &third] {
        cache.insert("k", &1).await.unwrap();
        for _ in 0..15 {
            cache.get_or_load("k", fails("it is stored")).await.unwrap();
        }
    }
    // Each has a load under way.
    let loads = [&second, &third].map(|cache| {
        let cache = cache.clone();
        spawn(async move { cache.get_or_load("l", after(9 * SECOND, 17)).await })
    });
    sleep(2 * SECOND).await;
    let seen = published(&snapshotter);
    assert_eq!(hits(&seen), 80.0);
    for gauge in ["bellwether_flights", "bellwether_leases"] {
        assert_eq!(of(&seen, gauge, &labels), 2.0, "{gauge}");
    }
    // What is dropped while it loads leaves nothing.
    for load in loads {
        load.abort();
    }
    drop((second, third));
    sleep(20 * SECOND).await;
    let seen = published(&snapshotter);
    for gauge in ["bellwether_flights", "bellwether_leases", "bellwether_breaker_open"] {
        assert_eq!(of(&seen, gauge, &labels), 0.0, "{gauge}");
    }
}

#[tokio::test(start_paused = true)]
async fn locks_of_one_name_add_up_and_leave_no_gauge() {
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    let _recording = metrics::set_default_local_recorder(&recorder);
    let labels = [("locks", "adds-up")];
    let backend = MemoryBackend::new();
    let both = ["a", "b"].map(|name| Locks::new(backend.clone(), name));
    let mut guards = Vec::new();
    for locks in &both {
        spawn(locks.publish_metrics("adds-up"));
        guards.push(locks.mutex("m").lock().await.unwrap());
    }
    let mutex = both[0].mutex("m");
    let waiter = spawn(async move { mutex.lock().await.map(drop) });
    sleep(5 * SECOND).await;
    let seen = published(&snapshotter);
    assert_eq!(of(&seen, "bellwether_locks_held", &labels), 2.0);
    assert_eq!(of(&seen, "bellwether_locks_acquired_total", &labels), 2.0);
    for longest in
        ["bellwether_locks_longest_hold_seconds", "bellwether_locks_longest_wait_seconds"]
    {
        let time = of(&seen, longest, &labels);
        assert!((4.0..6.0).contains(&time), "{longest}: {time}");
    }
    // A candidate stands by, and its wait is no fault.
    waiter.abort();
    let candidate = both[0].leader("m");
    let stands_by = spawn(async move { candidate.run(|_| std::future::pending::<()>()).await });
    sleep(9 * SECOND).await;
    let seen = published(&snapshotter);
    assert_eq!(of(&seen, "bellwether_locks_longest_wait_seconds", &labels), 0.0);
    stands_by.abort();
    drop((guards, both));
    sleep(20 * SECOND).await;
    let seen = published(&snapshotter);
    for gauge in ["held", "waiting", "longest_hold_seconds", "longest_wait_seconds"] {
        let gauge = format!("bellwether_locks_{gauge}");
        assert_eq!(of(&seen, &gauge, &labels), 0.0, "{gauge}");
    }
}

/// Before it would keep a copy, a tier has nothing to rely on, and nothing is known of its trust.
#[tokio::test(start_paused = true)]
async fn trust_is_published_once_it_is_known_and_ends_as_trusted() {
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    let _recording = metrics::set_default_local_recorder(&recorder);
    let key =
        ("bellwether_local_trusted".to_owned(), vec![("cache".to_owned(), "tier".to_owned())]);
    let cache = publishing("tier", true).await;
    assert!(!published(&snapshotter).contains_key(&key));
    for _ in 0..3 {
        cache.get_or_load("k", after(SECOND, 17)).await.unwrap();
    }
    sleep(2 * SECOND).await;
    assert_eq!(published(&snapshotter)[&key].value, 1.0);
    drop(cache);
    sleep(2 * SECOND).await;
    assert_eq!(published(&snapshotter)[&key].value, 1.0);
}

#[tokio::test(start_paused = true)]
async fn jobs_and_leaders_are_published_by_their_names() {
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    let _recording = metrics::set_default_local_recorder(&recorder);
    let backend = MemoryBackend::new();
    let [one, two] = [(); 2].map(|()| Locks::new(backend.clone(), "bellwether"));
    spawn(one.publish_metrics("jobs-one"));
    spawn(two.publish_metrics("jobs-two"));
    sleep(SECOND).await;
    let turn = one.every("clean-up", 60 * SECOND).next().await.unwrap();
    let tick = turn.tick().duration_since(std::time::SystemTime::UNIX_EPOCH).unwrap();
    turn.done().await.unwrap();
    // The other process reads the tick from the mark, and waits for the next one.
    let mut other = two.every("clean-up", 60 * SECOND);
    let waits = spawn(async move { other.next().await.map(drop) });
    let leaders = [&one, &two].map(|locks| {
        let candidate = locks.leader("boss");
        spawn(async move { candidate.run(|_| std::future::pending::<()>()).await })
    });
    sleep(2 * SECOND).await;
    let seen = published(&snapshotter);
    let mut led = 0.0;
    for locks in ["jobs-one", "jobs-two"] {
        let job = [("locks", locks), ("schedule", "clean-up")];
        assert_eq!(of(&seen, "bellwether_job_period_seconds", &job), 60.0);
        let last = of(&seen, "bellwether_job_last_tick_seconds", &job);
        assert!((last - tick.as_secs_f64()).abs() < 0.001 || locks == "jobs-two", "{last}");
        led += of(&seen, "bellwether_leader", &[("locks", locks), ("leader", "boss")]);
    }
    assert_eq!(led, 1.0);
    waits.abort();
    leaders.iter().for_each(tokio::task::JoinHandle::abort);
}

#[tokio::test(start_paused = true)]
async fn what_publishes_ends_with_its_cache() {
    let cache: Cache<u64> = Cache::builder(MemoryBackend::new(), "bellwether").build().unwrap();
    let locks = Locks::new(MemoryBackend::new(), "bellwether");
    let of_cache = spawn(cache.publish_metrics("ends"));
    let of_locks = spawn(locks.publish_metrics("ends"));
    let clone = cache.clone();
    drop((cache, locks));
    sleep(2 * SECOND).await;
    assert!(!of_cache.is_finished() && of_locks.is_finished());
    drop(clone);
    sleep(2 * SECOND).await;
    assert!(of_cache.is_finished());
}
