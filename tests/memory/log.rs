//! The words of the log, and of errors on a terminal.

use std::fmt;

use bellwether::{
    RedisBackend,
    cache::LocalTier,
    error::{BackendError, BackendErrorKind},
    lock::Mutex as Lock,
};
use tokio::time::Duration;
use tracing::{
    Event, Metadata, Subscriber,
    field::{Field, Visit},
};
use tracing_subscriber::{Layer, layer::Context, prelude::*};

use crate::prelude::*;

const HOUR: Duration = Duration::from_secs(3600);

/// The lines of one thread.
#[derive(Clone, Default)]
pub(crate) struct Lines(Arc<Mutex<Vec<String>>>);

impl Lines {
    /// Returns the lines with these words.
    pub(crate) fn with(&self, words: &str) -> Vec<String> {
        let lines = self.0.lock().unwrap();
        lines.iter().filter(|line| line.contains(words)).cloned().collect()
    }
}

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0.push_str(&format!(" {}={value:?}", field.name()));
    }
}

impl<S: Subscriber> Layer<S> for Lines {
    fn enabled(&self, metadata: &Metadata<'_>, _: Context<'_, S>) -> bool {
        metadata.target().starts_with("bellwether")
    }

    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let metadata = event.metadata();
        let mut line = Line(format!("{} target={}", metadata.level(), metadata.target()));
        event.record(&mut line);
        self.0.lock().unwrap().push(line.0);
    }
}

/// Begins to collect the lines of this thread.
pub(crate) fn collect() -> (Lines, (tracing::Dispatch, tracing::subscriber::DefaultGuard)) {
    let lines = Lines::default();
    // With one dispatcher alone, the first thread that meets an event decides for all threads.
    let subscriber = || tracing_subscriber::registry().with(lines.clone());
    let second = tracing::Dispatch::new(subscriber());
    let first = tracing::subscriber::set_default(subscriber());
    (lines, (second, first))
}

#[tokio::test(start_paused = true)]
async fn the_log_has_the_error_of_the_codec() {
    let (lines, _collecting) = collect();
    let backend = MemoryBackend::new();
    let words: Cache<String> = Cache::builder(backend.clone(), "bellwether").build().unwrap();
    let numbers: Cache<f64> = Cache::builder(backend.clone(), "bellwether").build().unwrap();
    words.insert("k", &"seven".to_owned()).await.unwrap();
    assert_eq!(numbers.get("k").await.unwrap(), None);
    let logged = lines.with("an entry cannot be decoded");
    assert!(logged.len() == 1 && logged[0].contains("invalid type: string"), "{logged:?}");
    let newer: Cache<String> =
        Cache::builder(backend, "bellwether").schema(0).codec(Text).build().unwrap();
    assert_eq!(newer.get("k").await.unwrap(), None);
    let logged = lines.with("another schema or codec");
    assert_eq!(logged.len(), 1, "{logged:?}");
    numbers.get_or_load("n", |_| async { Ok::<_, BoxError>(f64::NAN) }).await.unwrap();
    let logged = lines.with("returned and not stored");
    assert!(logged.len() == 1 && logged[0].contains("invalid type: null"), "{logged:?}");
}

struct Text;

impl bellwether::cache::Codec<String> for Text {
    fn tag(&self) -> u16 {
        256
    }

    fn encode(&self, value: &String) -> Result<bytes::Bytes, BoxError> {
        Ok(value.clone().into())
    }

    fn decode(&self, bytes: bytes::Bytes) -> Result<String, BoxError> {
        Ok(String::from_utf8(bytes.into())?)
    }
}

/// Each load ends with one line, also one without a lease, and one that fails.
#[tokio::test(start_paused = true)]
async fn the_end_of_a_load_is_logged_with_its_time_and_outcome() {
    let (lines, _collecting) = collect();
    let cache: Cache<u32> =
        Cache::builder(MemoryBackend::new(), "bellwether").load_limit(MS * 30).build().unwrap();
    let load = async |key: &'static str, time: Duration, is_good: bool| {
        let load = cache.get_or_load(key, move |_| async move {
            sleep(time).await;
            assert!(key != "panics", "a broken loader");
            if is_good { Ok(7) } else { Err(BoxError::from("no such article")) }
        });
        let _ = load.await;
    };
    load("good", 20 * MS, true).await;
    load("bad", 10 * MS, false).await;
    load("panics", 5 * MS, true).await;
    load("slow", 50 * MS, true).await;
    cache.shutdown(MS).await;
    load("alone", 15 * MS, true).await;
    let logged = lines.with("a load has ended");
    let expected = [
        ["took=20ms", "a value"],
        ["took=10ms", "the load failed: no such article"],
        ["took=5ms", "the load panicked: a broken loader"],
        ["took=30ms", "longer than its `load_limit`"],
        ["took=15ms", "a value"],
    ];
    assert_eq!(logged.len(), expected.len(), "{logged:?}");
    for (line, words) in logged.iter().zip(expected) {
        assert!(
            line.starts_with("DEBUG") && words.iter().all(|word| line.contains(word)),
            "{line}"
        );
    }
}

/// Once is easily missed, and each request is a flood.
#[tokio::test(start_paused = true)]
async fn an_outage_is_told_at_its_begin_each_minute_and_at_its_end() {
    let (lines, _collecting) = collect();
    let faulty = Faulty::over(MemoryBackend::new(), |_| None);
    let cache: Cache<u32> = Cache::builder(faulty.clone(), "bellwether").build().unwrap();
    let load = async || cache.get_or_load("k", |_| async { Ok::<_, BoxError>(7) }).await.unwrap();
    faulty.plan(|_| Some(Fault::Refuse));
    for _ in 0..190 {
        load().await;
        sleep(Duration::from_secs(1)).await;
    }
    faulty.plan(|_| None);
    load().await;
    let logged = lines.with("degraded");
    let begun = ["degraded: one load"; 4];
    let words = begun.into_iter().chain(["the backend works again"]);
    assert_eq!(logged.len(), 5, "{logged:?}");
    for (line, words) in logged.iter().zip(words) {
        assert!(line.contains(words) && !line.starts_with("DEBUG"), "{logged:?}");
    }
    // The first line tells of the begin, and not of a time of some microseconds.
    assert!(!logged[0].contains("away="), "{logged:?}");
    for (line, counts) in [(3, ["away=180s", "degraded=180"]), (4, ["away=", "degraded=190"])] {
        assert!(counts.iter().all(|count| logged[line].contains(count)), "{logged:?}");
    }
}

/// Legal and unwise. The target is what a filter silences.
#[tokio::test(start_paused = true)]
async fn a_life_shorter_than_the_load_is_advised_against_once() {
    let (lines, _collecting) = collect();
    let short = 10 * MS;
    for (namespace, ttl, advised) in
        [("short-lived", short, 1), ("not-stored", short, 0), ("long-lived", 90 * MS, 0)]
    {
        let is_stored = namespace != "not-stored";
        let builder = Cache::builder(MemoryBackend::new(), namespace).ttl(ttl);
        let cache: Cache<u32> = builder.build().unwrap();
        for key in ["k", "l"] {
            let load = move |lead: Lead<u32>| async move {
                sleep(20 * MS).await;
                if !is_stored {
                    lead.do_not_store();
                }
                Ok::<_, BoxError>(7)
            };
            cache.get_or_load(key, load).await.unwrap();
        }
        let logged = lines.with(&format!("namespace=\"{namespace}\""));
        assert_eq!(logged.len(), advised, "{logged:?}");
        assert!(logged.iter().all(|line| line.starts_with("WARN")), "{logged:?}");
        assert!(logged.iter().all(|line| line.contains("target=bellwether::advice")), "{logged:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_fixed_lease_that_is_usually_too_short_is_advised_against_once() {
    let (lines, _collecting) = collect();
    let locks = Locks::new(MemoryBackend::new(), "bellwether");
    let hold = async |mutex: Lock, time: Duration| {
        let guard = mutex.lease(30 * MS).lock().await.unwrap();
        sleep(time).await;
        drop(guard);
    };
    for round in 0..5 {
        hold(locks.mutex("long-work").fixed_lease(), 40 * MS).await;
        hold(locks.mutex("renewed"), 40 * MS).await;
        hold(locks.mutex("short-work").fixed_lease(), 10 * MS).await;
        let logged = lines.with("outlasts its lease");
        assert_eq!(logged.len(), usize::from(round >= 2), "{logged:?}");
        assert!(logged.iter().all(|line| line.contains("name=long-work")), "{logged:?}");
    }
}

/// A mark in the future keeps a job from running, for up to 30 days.
#[tokio::test(start_paused = true)]
async fn a_mark_in_the_future_is_told_once_a_minute() {
    let (lines, _collecting) = collect();
    let locks = Locks::new(MemoryBackend::new(), "bellwether");
    let far = std::time::SystemTime::now() + 400 * 24 * HOUR;
    let job = locks.once("report", far).max_ahead(Duration::MAX);
    job.begin().await.unwrap().unwrap().done().await.unwrap();
    assert_eq!(lines.with("ahead of the server's time").len(), 0);
    let mut ticks = locks.every("report", 24 * HOUR);
    let waits = tokio::time::timeout(10 * 60 * SECOND - SECOND, ticks.next()).await;
    assert!(waits.is_err(), "a tick began");
    let logged = lines.with("ahead of the server's time");
    assert_eq!(logged.len(), 10, "{logged:#?}");
    assert!(logged.iter().all(|line| line.contains("WARN") && line.contains("\"report\"")));
    // A job with ticks of its own tells as well.
    let now = std::time::SystemTime::now();
    assert!(locks.once("report", now).begin().await.unwrap().is_none());
    assert_eq!(lines.with("ahead of the server's time").len(), 11);
}

#[test]
fn two_types_in_one_namespace_are_advised_against_once() {
    let (lines, _collecting) = collect();
    let builder = |namespace: &str| {
        let backend = RedisBackend::open("redis://127.0.0.1/").unwrap();
        Cache::builder(backend, namespace)
    };
    for _ in 0..2 {
        let _: Cache<u32> = builder("two-types").build().unwrap();
        let _: Cache<u32> = builder("one-type").build().unwrap();
    }
    assert_eq!(lines.with("share a namespace").len(), 0);
    for _ in 0..2 {
        let _ = Cache::<String>::builder(
            RedisBackend::open("redis://127.0.0.1/").unwrap(),
            "two-types",
        )
        .build()
        .unwrap();
    }
    let logged = lines.with("share a namespace");
    assert!(logged.len() == 1 && logged[0].contains("two-types"), "{logged:?}");
}

/// `fn main() -> Result<(), bellwether::Error>` prints the error by `Debug`.
#[test]
fn an_error_reads_as_its_chain_where_main_returns_it() {
    let broken = std::io::Error::from(std::io::ErrorKind::BrokenPipe);
    let error = BackendError::new(BackendErrorKind::Unknown, broken);
    let whole = "the backend gave no usable answer, so the operation may have happened: \
                 broken pipe";
    assert_eq!(format!("{:?}", Error::from(error.clone())), whole);
    assert_eq!(format!("{:#?}", Error::from(error.clone())), whole);
    assert!(whole.ends_with(&format!("{error:?}")), "{error:?}");
    for kind in ["Unavailable", "Refused", "Foreign", "Unreplicated"] {
        assert!(!format!("{error:?}").contains(kind));
    }
}

/// Settings that are accepted, and do not what they seem to do.
#[test]
fn settings_that_mislead_are_advised_against() {
    let (lines, _collecting) = collect();
    let shared = || RedisBackend::open("redis://127.0.0.1/").unwrap();
    let local = || Cache::<u64>::builder(MemoryBackend::new(), "misleading").ttl(5 * SECOND);
    let remote = || Cache::<u64>::builder(shared(), "misleading").ttl(5 * SECOND);
    let halves = [EarlyRefresh::Within(2500 * MS), EarlyRefresh::LastPart(0.5)];
    let wholes = [EarlyRefresh::Within(10 * SECOND), EarlyRefresh::LastPart(0.6)];
    let patient = || remote().serve_stale_after(SECOND);
    let mut told = 0;
    for (builder, advised) in [
        (remote().early_refresh(halves[0]), None),
        (remote().early_refresh(halves[1]), None),
        (remote().early_refresh(wholes[0]), Some("`early_refresh`")),
        (remote().early_refresh(wholes[1]), Some("`early_refresh`")),
        (remote().local(LocalTier::default()), None),
        (local().local(LocalTier::default()), Some("`local`")),
        (patient().stale_if_error(SECOND), None),
        (patient(), Some("`serve_stale_after`")),
    ] {
        builder.build().unwrap();
        told += usize::from(advised.is_some());
        let logged = lines.with("namespace=\"misleading\"");
        assert_eq!(logged.len(), told, "{logged:?}");
        let last = logged.last().map(String::as_str).unwrap_or_default();
        assert!(last.contains(advised.unwrap_or_default()), "{last}");
        assert!(last.is_empty() || last.contains("target=bellwether::advice"), "{last}");
    }
    let _ = MemoryBackend::with_weight(600);
    assert_eq!(lines.with("`MemoryBackend::with_weight`").len(), 0);
    let _ = MemoryBackend::with_weight(0);
    assert_eq!(lines.with("`MemoryBackend::with_weight`").len(), 1);
    let http = bellwether::http_cache(MemoryBackend::new(), "misleading").build().unwrap();
    let layer = bellwether::BellwetherLayer::http(http).vary_by_header("x-tenant");
    let of_header = "no header can have this name";
    assert_eq!(lines.with(of_header).len(), 0);
    let _ = layer.vary_by_header("not a header!");
    let logged = lines.with(of_header);
    assert!(
        logged.len() == 1
            && logged[0].contains("vary_by_header")
            && logged[0].contains("not a header!"),
        "{logged:?}"
    );
}
