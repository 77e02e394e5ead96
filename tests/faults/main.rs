//! Faults of servers, networks, clocks and callers, and the promises during and after them.
//!
//! Two backends share nothing, so two caches over them stand for two processes of a fleet. A fault
//! of a process itself needs a real one (`worker`). The faults between processes and servers come
//! from `testkit::proxy`, and those of servers happen to real ones.
//!
//! | fault | module |
//! |---|---|
//! | a server hangs, dies, forgets, fills up, refuses | `server` |
//! | an answer is lost, late, doubled, cut | `replies` |
//! | a push is lost, late, doubled, overtaken | `pushes` |
//! | a network swallows, refuses, cuts | `network` |
//! | a network cuts the steps of a latch | `latch` |
//! | the clock of a process is set | `holder` |
//! | the clock of the server is set | `clock` |
//! | it is set while processes wait for locks | `stepped_queues` |
//! | thousands of keys | `burst` |
//! | many locks of one process | `crowd` |
//! | a server is killed every few seconds, under load | `steady` |
//!
//! Assertions about times subtract the delays of the machine itself (`load::control`). A request
//! may degrade while a server is silent by itself (`pings`).
#![allow(unreachable_pub, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod burst;
mod clock;
mod crowd;
mod holder;
mod latch;
mod load;
mod log;
mod network;
mod pings;
mod pushes;
mod replies;
mod server;
mod steady;
mod stepped_queues;
mod worker;

use std::{
    future::Future,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use bellwether::{
    BoxError, Cache, Locks, RedisBackend,
    cache::{Lead, Source},
};
use testkit::{LIMIT, Raw, RedisServer, comes_true, eventually, proxy::Proxy};
use tokio::{
    sync::{Semaphore, SemaphorePermit, oneshot},
    task::{JoinHandle, JoinSet},
    time::{Instant, sleep, timeout},
};

const MS: Duration = Duration::from_millis(1);
/// The time after its return within which a server works as before. An idle machine needs a third
/// of it.
const RECOVERY: Duration = Duration::from_secs(3);

/// The tests measure times, so few run at once. Two of them leave the processor half idle.
const AT_ONCE: u32 = 2;
static TURNS: Semaphore = Semaphore::const_new(AT_ONCE as usize);

async fn turn() -> SemaphorePermit<'static> {
    TURNS.acquire().await.unwrap()
}

/// Waits until no other test runs, for one that takes the whole processor.
async fn turn_alone() -> SemaphorePermit<'static> {
    TURNS.acquire_many(AT_ONCE).await.unwrap()
}

/// Returns a cache that stands for a process, once its connection is made.
async fn connected(url: &str) -> Cache<String> {
    let backend = RedisBackend::open(url).unwrap();
    until_connected(&backend).await;
    Cache::builder(backend, "t").build().unwrap()
}

/// Does the same for a test that is not about time-outs.
async fn patient(url: &str) -> Cache<String> {
    let backend = testkit::open(url);
    until_connected(&backend).await;
    Cache::builder(backend, "t").build().unwrap()
}

async fn until_connected(backend: &RedisBackend) {
    let pings = || async { backend.ping().await.is_ok() };
    assert!(eventually(LIMIT, pings).await, "no connection was made");
}

type Loading = Pin<Box<dyn Future<Output = Result<String, BoxError>> + Send>>;

/// Returns a loader that makes a value at once.
fn value(text: impl Into<String>) -> impl FnOnce(Lead<String>) -> Loading + Send + 'static {
    let text = text.into();
    move |_| Box::pin(async move { Ok(text) })
}

/// The gate of a loader, which reports its beginning and waits until the gate is opened.
struct Gate {
    pub begun: oneshot::Receiver<Lead<String>>,
    pub open: oneshot::Sender<()>,
}

fn gated(text: impl Into<String>) -> (impl FnOnce(Lead<String>) -> Loading + Send + 'static, Gate) {
    let text = text.into();
    let (begin, begun) = oneshot::channel();
    let (open, opened) = oneshot::channel();
    let loader = move |lead: Lead<_>| -> Loading {
        Box::pin(async move {
            let _ = begin.send(lead);
            let _ = opened.await;
            Ok(text)
        })
    };
    (loader, Gate { begun, open })
}

/// Returns the number of processes that wait for the load of a key.
async fn listeners(raw: &mut Raw, key: &str) -> usize {
    raw.registered(&format!("t:c:{{{key}}}:l")).await
}

/// Waits until a caller waits for the load of another.
async fn until_a_caller_waits(raw: &mut Raw, key: &str) {
    let waits = async || listeners(raw, key).await > 0;
    assert!(comes_true(LIMIT, waits).await, "no caller waits for {key}");
}

/// Asserts that the caches work as before, with new keys until the limit is over. One cache loads
/// under the lease, the other one finds the stored entry, and a waiter gets its value by a push.
///
/// Returns how long that took, and the number of tries. Each try is one request to the first cache
/// and at most two requests to the second one.
async fn works_again(
    raw: &mut Raw,
    [a, b]: [&Cache<String>; 2],
    within: Duration,
) -> (Duration, u64) {
    let begun = Instant::now();
    let mut tries = 0;
    let mut why = String::new();
    while begun.elapsed() < within {
        tries += 1;
        let key = format!("again-{:?}-{tries}", std::ptr::from_ref(raw));
        match work(raw, [a, b], &key).await {
            Ok(()) => return (begun.elapsed(), tries),
            Err(missing) => why = missing,
        }
        tokio::time::sleep(5 * MS).await;
    }
    panic!("the caches do not work again after {within:?} and {tries} tries: {why}");
}

async fn work(raw: &mut Raw, [a, b]: [&Cache<String>; 2], key: &str) -> Result<(), String> {
    raw.run::<()>(&["DEL", &format!("t:c:{{{key}}}:e")]).await;
    let (loader, gate) = gated("again");
    let leading = tokio::spawn(a.request(key).load(loader));
    let Ok(Ok(lead)) = timeout(LIMIT, gate.begun).await else { return Err("no load".to_owned()) };
    if lead.fence().is_none() {
        return Err("the load has no lease".to_owned());
    }
    let waiting = tokio::spawn(b.request(key).load(value("of the other")));
    let mut last = 0;
    let listens = async {
        while last == 0 && !waiting.is_finished() {
            last = listeners(raw, key).await;
        }
    };
    if timeout(300 * MS, listens).await.is_err() {
        waiting.abort();
        let _ = gate.open.send(());
        let _ = leading.await;
        return Err("no subscription".to_owned());
    }
    // The waiter asks once more before it waits, which cannot be observed from outside.
    tokio::time::sleep(20 * MS).await;
    let _ = gate.open.send(());
    let led = leading.await.unwrap().map_err(|error| format!("{error:#}"))?;
    let opened = Instant::now();
    let waited = waiting.await.unwrap().map_err(|error| format!("{error:#}"))?;
    let found = b.request(key).load(value("of the other"));
    let found = found.await.map_err(|error| format!("{error:#}"))?;
    let sources = (led.source, waited.source, found.source);
    match sources {
        (Source::Led, Source::Received, Source::Hit) if opened.elapsed() < 1000 * MS => Ok(()),
        _ => Err(format!("{sources:?} after {:?}", opened.elapsed())),
    }
}

/// The worker process. Returns at once unless this process was started as a worker.
#[test]
fn worker_process() {
    worker::work();
}
