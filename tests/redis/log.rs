//! What an outage writes to the log.

use std::{
    collections::BTreeMap,
    fmt::{Debug, Write},
    sync::Mutex,
};

use testkit::proxy::Mode;
use tracing::{
    Event, Level, Metadata, Subscriber,
    field::{Field, Visit},
};
use tracing_subscriber::{Layer, layer::Context, prelude::*};

use crate::prelude::*;

const LEASE: Duration = Duration::from_secs(1);
const OUTAGE: Duration = Duration::from_secs(4);

/// The lines that were written: their level and message, and their fields.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<(Level, String, String)>>>);

impl Lines {
    /// Returns how often each message of a level was written.
    fn count(&self, level: Level) -> BTreeMap<String, usize> {
        let mut counts = BTreeMap::new();
        for (_, message, _) in self.0.lock().unwrap().iter().filter(|line| line.0 == level) {
            *counts.entry(message.clone()).or_default() += 1;
        }
        counts
    }
}

#[derive(Default)]
struct Line {
    message: String,
    fields: String,
}

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        match field.name() {
            "message" => self.message = format!("{value:?}"),
            name => write!(self.fields, "{name}={value:?} ").unwrap(),
        }
    }
}

impl<S: Subscriber> Layer<S> for Lines {
    fn enabled(&self, metadata: &Metadata<'_>, _: Context<'_, S>) -> bool {
        metadata.is_event() && metadata.target().starts_with("bellwether")
    }

    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut line = Line::default();
        event.record(&mut line);
        let level = *event.metadata().level();
        self.0.lock().unwrap().push((level, line.message, line.fields));
    }
}

/// Begins to collect the lines of this thread.
fn collect() -> (Lines, (tracing::Dispatch, tracing::subscriber::DefaultGuard)) {
    let lines = Lines::default();
    let subscriber = || tracing_subscriber::registry().with(lines.clone());
    // With one dispatcher alone, the first thread that meets an event decides for all threads.
    let second = tracing::Dispatch::new(subscriber());
    let first = tracing::subscriber::set_default(subscriber());
    (lines, (second, first))
}

/// A process with locks alone wrote 62 lines a second of the same cause, and none when the server
/// was back.
#[tokio::test]
async fn an_outage_is_told_once_and_its_attempts_once_a_second() {
    let (lines, _collecting) = collect();
    let server = RedisServer::start().await;
    let proxy = Proxy::start(server.port());
    let backend = testkit::open(proxy.url());
    let locks = Locks::new(backend.clone(), "bellwether");
    let mut held = Vec::new();
    for at in 0..10 {
        held.push(locks.mutex(format!("k{at}")).lease(LEASE).lock().await.unwrap());
    }
    let waiting = (0..10).map(|at| {
        let waiter = locks.mutex(format!("k{at}")).fair().wait_limit(LIMIT);
        tokio::spawn(async move { waiter.lock().await.unwrap().unlock().await.unwrap() })
    });
    let waiting: Vec<_> = waiting.collect();
    assert!(eventually(LIMIT, || async { proxy.seen("subscribe") > 0 }).await);
    let begun = Instant::now();
    proxy.set_mode(Mode::Refuse);
    proxy.cut();
    held.truncate(5);
    sleep(OUTAGE).await;
    proxy.clear();
    for waiter in waiting {
        timeout(LIMIT, waiter).await.unwrap().unwrap();
    }
    let again = "connected to Redis again";
    // The line comes after the connection that served the waiters.
    let is_told = async || lines.count(Level::INFO).contains_key(again);
    assert!(testkit::comes_true(LIMIT, is_told).await, "{:?}", lines.count(Level::INFO));
    let info = lines.count(Level::INFO);
    // A busy machine may break the new connection once more.
    assert_eq!(info[again], info["the connection to Redis broke; connecting again"], "{info:?}");
    let fields = {
        let lines = lines.0.lock().unwrap();
        lines.iter().find(|line| line.1 == again).unwrap().2.clone()
    };
    assert!(fields.contains("server="), "{fields}");
    let (_, away) = fields.split_once("away=").unwrap();
    let away: f64 = away.split('s').next().unwrap().parse().unwrap();
    assert!((3.9..LIMIT.as_secs_f64()).contains(&away), "{fields}");
    let debug = lines.count(Level::DEBUG);
    println!("{debug:?}");
    let attempts = debug.iter().filter(|(message, _)| !message.contains("undone"));
    let most = 2 + begun.elapsed().as_secs() as usize;
    let often: Vec<_> = attempts.filter(|(_, count)| **count > most).collect();
    assert!(often.is_empty(), "at most {most} of each: {often:?}");
}

/// A user may subscribe to the channels of one namespace only. Each subscription that the server
/// allowed made the next refusal worth a line.
#[tokio::test]
async fn refused_subscriptions_are_told_once_beside_others_that_are_not() {
    let (lines, _collecting) = collect();
    let server = RedisServer::start().await;
    server.raw().await.set_user("app", &["+@all", "~*", "&may:*"]).await;
    let backend = testkit::open(server.url_of("app:secret", 0));
    let name = |namespace, key: String| {
        Name::new(&Namespace::new(namespace).unwrap(), Family::Lock, &Key::from(key), 512).unwrap()
    };
    let mut refused = Vec::new();
    for at in 0..5 {
        let key = format!("k{at}");
        let mut changes = backend.listen(&name("may-not", key.clone()), None);
        assert!(!changes.subscribe());
        refused.push(changes);
        backend.changes(&name("may", key)).await.unwrap();
    }
    let told = lines.count(Level::WARN);
    assert_eq!(told["Redis refuses subscriptions; waiters poll instead"], 1, "{told:?}");
}
