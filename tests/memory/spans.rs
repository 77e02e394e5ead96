//! The spans of what a caller waits for, and how they end.

use std::{collections::BTreeMap, fmt};

use tracing::{
    Dispatch, Instrument, Level, Span, Subscriber,
    field::{Field, Visit},
    info_span,
    level_filters::LevelFilter,
    span::{Attributes, Id, Record},
    subscriber::{self, DefaultGuard},
};
use tracing_subscriber::{Layer, layer::Context, prelude::*, registry::LookupSpan};

use crate::prelude::*;

/// The spans of the crate that one thread began.
#[derive(Clone, Default)]
struct Spans(Arc<Mutex<Vec<SpanSeen>>>);

struct SpanSeen {
    id: Id,
    name: &'static str,
    parent: Option<&'static str>,
    follows: Option<&'static str>,
    fields: BTreeMap<&'static str, String>,
}

impl Visit for SpanSeen {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.fields.insert(field.name(), format!("{value:?}").replace('"', ""));
    }
}

impl Spans {
    /// Begins to collect the spans of this thread up to a level.
    fn collect(level: Level) -> (Self, (Dispatch, DefaultGuard)) {
        let spans = Self::default();
        let subscriber = || {
            let layer = spans.clone().with_filter(LevelFilter::from_level(level));
            tracing_subscriber::registry().with(layer)
        };
        // With one dispatcher alone, the first thread that meets a span decides for all threads.
        let second = Dispatch::new(subscriber());
        (spans.clone(), (second, subscriber::set_default(subscriber())))
    }

    /// Takes the spans, each with its parent, the one that it follows, and how it ended.
    fn take(&self) -> Vec<String> {
        let mut seen: Vec<_> =
            self.0.lock().unwrap().drain(..).map(|line| line.to_string()).collect();
        seen.sort();
        seen
    }

    fn change(&self, id: &Id, change: impl FnOnce(&mut SpanSeen)) {
        let mut seen = self.0.lock().unwrap();
        if let Some(span) = seen.iter_mut().rev().find(|span| span.id == *id) {
            change(span);
        }
    }
}

impl fmt::Display for SpanSeen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (before, name) in [("", self.parent), ("~", self.follows)] {
            if let Some(name) = name {
                write!(f, "{before}{name}>")?;
            }
        }
        write!(f, "{}", self.name)?;
        self.fields.iter().try_for_each(|(name, value)| write!(f, " {name}={value}"))
    }
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Spans {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        if !attributes.metadata().target().starts_with("bellwether") {
            return;
        }
        let parent = context.span(id).and_then(|span| Some(span.parent()?.name()));
        let name = attributes.metadata().name();
        let fields = BTreeMap::new();
        let mut seen = SpanSeen { id: id.clone(), name, parent, follows: None, fields };
        attributes.record(&mut seen);
        self.0.lock().unwrap().push(seen);
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, _: Context<'_, S>) {
        self.change(id, |seen| values.record(seen));
    }

    fn on_follows_from(&self, id: &Id, follows: &Id, context: Context<'_, S>) {
        let name = context.span(follows).map(|span| span.name());
        self.change(id, |seen| seen.follows = name);
    }
}

/// Loads for 20 ms, in a span of this name.
async fn load_within(cache: &Cache<u32>, name: &'static str) {
    let load = cache.get_or_load("k", move |_| async move {
        sleep(20 * MS).await;
        assert_eq!(Span::current().metadata().map(|metadata| metadata.name()), Some(name));
        Ok::<_, BoxError>(7)
    });
    assert_eq!(load.await.unwrap(), 7);
}

#[tokio::test(start_paused = true)]
async fn each_caller_that_waits_for_a_load_has_a_span_and_a_hit_has_none() {
    let (spans, _collecting) = Spans::collect(Level::DEBUG);
    let backend = MemoryBackend::new();
    let [here, there]: [Cache<u32>; 2] =
        [(); 2].map(|()| Cache::builder(backend.clone(), "bellwether").build().unwrap());
    let callers = [
        load_within(&here, "load").instrument(info_span!("a")),
        load_within(&here, "load").instrument(info_span!("b")),
        load_within(&there, "load").instrument(info_span!("c")),
    ];
    join_all(callers).await;
    let expected =
        ["a>load key=k result=led", "b>load key=k result=followed", "c>load key=k result=received"];
    assert_eq!(spans.take(), expected);
    load_within(&here, "load").instrument(info_span!("d")).await;
    assert!(spans.take().is_empty());
    here.get_or_load("bad", fails("the origin is away")).await.unwrap_err();
    assert_eq!(spans.take(), ["load error.type=Load key=bad result=error"]);
}

/// The span of a caller would end as late as a refresh within it.
#[tokio::test(start_paused = true)]
async fn a_refresh_has_a_span_and_one_in_the_background_follows_from_its_caller() {
    let (spans, _collecting) = Spans::collect(Level::DEBUG);
    let builder = Cache::builder(MemoryBackend::new(), "bellwether").ttl(100 * MS);
    let cache: Cache<u32> = builder.stale_while_revalidate(1000 * MS).build().unwrap();
    let load = async |_| Ok::<_, BoxError>(7);
    cache.insert("k", &6).await.unwrap();
    sleep(500 * MS).await;
    let stale = cache.get_or_load("k", load).instrument(info_span!("caller")).await;
    assert_eq!(stale.unwrap(), 6);
    while cache.get("k").await.unwrap() != Some(7) {
        sleep(MS).await;
    }
    assert_eq!(spans.take(), ["~caller>refresh key=k result=led"]);
    cache.request("k").refresh(load).instrument(info_span!("caller")).await.unwrap();
    assert_eq!(spans.take(), ["caller>refresh key=k result=led"]);
}

#[tokio::test(start_paused = true)]
async fn an_acquisition_has_a_span() {
    let (spans, _collecting) = Spans::collect(Level::DEBUG);
    let locks = Locks::new(MemoryBackend::new(), "bellwether");
    let held = locks.mutex("m").lock().instrument(info_span!("caller")).await.unwrap();
    assert_eq!(spans.take(), ["caller>lock name=m result=acquired"]);
    locks.mutex("m").wait_limit(MS).lock().await.unwrap_err();
    assert_eq!(spans.take(), ["lock error.type=NotAcquired name=m result=error"]);
    held.unlock().await.unwrap();
    let several = locks.several(["m", "n"]).lock().await.unwrap();
    assert!(spans.take()[0].ends_with("result=acquired"));
    several.unlock().await.unwrap();
}

/// A load runs in a task of its own. Without spans of the crate, its lines had no span at all.
#[tokio::test(start_paused = true)]
async fn a_loader_runs_in_the_span_of_its_caller_whatever_the_level() {
    let (spans, _collecting) = Spans::collect(Level::INFO);
    let cache: Cache<u32> = Cache::builder(MemoryBackend::new(), "bellwether").build().unwrap();
    let [a, b] = [load_within(&cache, "a"), load_within(&cache, "a")];
    join_all([a.instrument(info_span!("a")), b.instrument(info_span!("b"))]).await;
    assert_eq!((cache.stats().led, cache.stats().followed), (1, 1));
    assert!(spans.take().is_empty());
}
