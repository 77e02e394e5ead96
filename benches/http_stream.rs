//! What 100 callers of a cold 10 MB response wait for its first byte, and what its body takes.
//!
//! `cargo bench --bench http_stream [-- rounds]` runs without a server. A body comes at once, or in
//! 100 parts with pauses, or without an end. Beside the layer, each caller has a response of its
//! own from the bare service. Both ways take turns in one run. The service answers after 20 ms. The
//! memory is the most that the process holds beyond what it held before.
#![allow(missing_docs, unreachable_pub, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::{
    alloc::System,
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use bellwether::{BellwetherLayer, MemoryBackend, http_cache};
use bytes::Bytes;
use futures_util::stream;
use http_body::{Body, Frame};
use http_body_util::{BodyExt, Empty, StreamBody, combinators::UnsyncBoxBody};
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};
use tokio::{task::JoinSet, time::sleep};
use tower::{Layer, Service, ServiceExt, service_fn};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const CALLERS: usize = 100;
const PART: usize = 100_000;
const PARTS: usize = 100;
/// How much of an endless body a caller reads.
const ENOUGH: usize = 50;

type Request = axum::http::Request<Empty<Bytes>>;
type Response<B> = axum::http::Response<B>;

/// A kind of body.
#[derive(Clone, Copy)]
struct Kind {
    name: &'static str,
    parts: usize,
    pause: Duration,
}

const KINDS: [Kind; 3] = [
    Kind { name: "at once", parts: PARTS, pause: Duration::ZERO },
    Kind { name: "paced", parts: PARTS, pause: Duration::from_millis(2) },
    Kind { name: "endless", parts: usize::MAX, pause: Duration::from_millis(2) },
];

/// What one round shows.
#[derive(Clone, Copy, Default)]
struct Round {
    /// The first byte of the caller in the middle, and of the last one.
    middle: Duration,
    last: Duration,
    memory: usize,
}

fn main() {
    let rounds = std::env::args().skip(1).find_map(|word| word.parse().ok()).unwrap_or(5);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async move { tokio::spawn(all(rounds)).await.unwrap() });
}

async fn all(rounds: u32) {
    println!("the first byte of {CALLERS} callers, and the memory in bodies of 10 MB\n");
    println!("body      way     middle     last  ratios        memory");
    for kind in KINDS {
        let mut ways = [Round::default(); 2];
        for _ in 0..rounds {
            add(&mut ways[0], round(origin(kind)).await);
            add(&mut ways[1], layered(kind).await);
        }
        let [bare, ours] = ways;
        row(kind.name, "bare", bare, bare, rounds);
        row(kind.name, "layer", ours, bare, rounds);
    }
}

fn add(sum: &mut Round, round: Round) {
    sum.middle += round.middle;
    sum.last += round.last;
    sum.memory = sum.memory.max(round.memory);
}

fn row(kind: &str, way: &str, round: Round, bare: Round, rounds: u32) {
    let ratio = |one: Duration, other: Duration| one.as_secs_f64() / other.as_secs_f64();
    let middle = ratio(round.middle, bare.middle);
    let last = ratio(round.last, bare.last);
    let milliseconds = |time: Duration| (time / rounds).as_secs_f64() * 1e3;
    println!(
        "{kind:8}  {way:5} {:6.1} ms {:6.1} ms  {middle:.2} and {last:.2} {:5.2}",
        milliseconds(round.middle),
        milliseconds(round.last),
        round.memory as f64 / (PART * PARTS) as f64,
    );
}

/// Returns a service whose responses have a body of this kind.
fn origin(
    kind: Kind,
) -> impl Service<
    Request,
    Response = Response<UnsyncBoxBody<Bytes, Infallible>>,
    Error = Infallible,
    Future: Send,
> + Clone
+ Send
+ 'static {
    service_fn(move |_: Request| async move {
        sleep(Duration::from_millis(20)).await;
        let parts = stream::unfold(0, move |part| async move {
            if part > 0 && !kind.pause.is_zero() {
                sleep(kind.pause).await;
            }
            let frame = || Frame::data(Bytes::from(vec![7; PART]));
            (part < kind.parts).then(|| (Ok::<_, Infallible>(frame()), part + 1))
        });
        Ok(Response::new(StreamBody::new(parts).boxed_unsync()))
    })
}

/// Runs a round with a layer whose cache is empty.
async fn layered(kind: Kind) -> Round {
    let cache = http_cache(MemoryBackend::new(), "bellwether").max_value(16 << 20).build().unwrap();
    let layer = BellwetherLayer::http(cache.clone()).default_lifetime(Duration::from_secs(60));
    let result = round(layer.layer(origin(kind))).await;
    assert_eq!(cache.stats().loads, 1);
    cache.shutdown(Duration::ZERO).await;
    result
}

async fn round<S, B>(service: S) -> Round
where
    S: Service<Request, Response = Response<B>> + Clone + Send + 'static,
    S::Error: std::fmt::Debug,
    S::Future: Send,
    B: Body<Data = Bytes> + Send + Unpin + 'static,
    B::Error: std::fmt::Debug,
{
    let before = held();
    let most = Arc::new(AtomicUsize::new(0));
    let begun = Instant::now();
    let mut callers = JoinSet::new();
    for _ in 0..CALLERS {
        let service = service.clone();
        let most = most.clone();
        callers.spawn(async move {
            let request = Request::new(Empty::new());
            let mut body = service.oneshot(request).await.unwrap().into_body();
            let mut first = None;
            let mut bytes = 0;
            while let Some(frame) = body.frame().await {
                first.get_or_insert_with(|| begun.elapsed());
                bytes += frame.unwrap().into_data().unwrap().len();
                most.fetch_max(held().saturating_sub(before), Ordering::Relaxed);
                // An endless body has more than that.
                if bytes > PARTS * PART + ENOUGH * PART {
                    break;
                }
            }
            assert!(bytes >= PARTS * PART);
            first.unwrap()
        });
    }
    let mut firsts = callers.join_all().await;
    firsts.sort();
    let memory = most.load(Ordering::Relaxed);
    Round { middle: firsts[CALLERS / 2], last: firsts[CALLERS - 1], memory }
}

/// Returns the bytes that the process holds.
fn held() -> usize {
    let stats = ALLOCATOR.stats();
    stats.bytes_allocated.saturating_sub(stats.bytes_deallocated)
}
