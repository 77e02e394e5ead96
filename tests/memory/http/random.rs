//! Random requests of several users to three processes, with layers of different parts over each
//! cache.

use std::{convert::Infallible, io, sync::atomic::Ordering::SeqCst};

use fastrand::Rng;
use http::request::Parts;

use super::prelude::*;

/// Longer than a caller waits in any run.
const LONG: Duration = Duration::from_secs(40);

/// An extension of an outer layer.
#[derive(Clone)]
struct User(&'static str);

fn user(parts: &Parts) -> Option<String> {
    parts.extensions.get::<User>().map(|user| user.0.to_owned())
}

fn one<T: Copy>(rng: &mut Rng, of: &[T]) -> T {
    of[rng.usize(..of.len())]
}

fn chance(rng: &mut Rng, percent: u32) -> bool {
    rng.u32(..100) < percent
}

/// What differs between runs.
#[derive(Clone, Copy, Debug)]
struct Plan {
    seed: u64,
    varies: bool,
    has_faults: bool,
    is_patient: bool,
    is_early: bool,
    cancels: bool,
    is_rfc9111: bool,
    memory: usize,
    serves_ranges: bool,
    /// What validates a response, and by which tag.
    validates: Validates,
    forwards: bool,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Validates {
    Nothing,
    ByItsTag,
    ByAnotherTag,
}

impl Plan {
    fn of(seed: u64, has_faults: bool) -> Self {
        let rng = &mut Rng::with_seed(seed);
        Self {
            seed,
            varies: rng.bool(),
            has_faults,
            is_patient: !chance(rng, 25),
            is_early: chance(rng, 30),
            cancels: chance(rng, 40),
            is_rfc9111: chance(rng, 40),
            memory: if rng.bool() { 1 << 20 } else { 0 },
            serves_ranges: rng.bool(),
            validates: one(
                rng,
                &[Validates::Nothing, Validates::ByItsTag, Validates::ByAnotherTag],
            ),
            forwards: rng.bool(),
        }
    }
}

/// Returns an origin that answers with the user, the language if the response varies by it, and the
/// number of writes when it began. Its heads and bodies are slow, endless, broken or uncacheable.
fn origin(plan: Plan) -> Inner {
    let calls = Arc::new(AtomicU64::new(0));
    let writes = Arc::new(AtomicU64::new(0));
    BoxCloneSyncService::new(service_fn(move |request: Request<Body>| {
        let mut rng = Rng::with_seed(plan.seed ^ calls.fetch_add(1, SeqCst) << 32);
        let writes = Arc::clone(&writes);
        async move {
            if request.method() == "POST" {
                sleep(MS * rng.u32(..30)).await;
                let written = writes.fetch_add(1, SeqCst) + 1;
                sleep(MS * rng.u32(..30)).await;
                return Ok::<_, Infallible>(Response::new(written.to_string().into()));
            }
            let seen = writes.load(SeqCst);
            sleep(MS * one(&mut rng, &[1, 20, 50, 400])).await;
            let head = Response::builder().header("cache-control", one(&mut rng, &CONTROLS));
            let tag = format!("\"{seen}\"");
            let is_known =
                request.headers().get("if-none-match").is_some_and(|known| *known == tag);
            if is_known && plan.validates != Validates::Nothing {
                let tag = if plan.validates == Validates::ByItsTag { &*tag } else { "\"other\"" };
                return Ok(head.status(304).header("etag", tag).body(Body::empty()).unwrap());
            }
            let has_tag = chance(&mut rng, 30);
            let head = if has_tag { head.header("etag", tag) } else { head };
            let (head, language) = if plan.varies {
                (head.header("vary", "accept-language"), said(&request))
            } else {
                (head, String::new())
            };
            let status = one(&mut rng, &[200, 200, 200, 200, 200, 200, 404, 503]);
            let owner = request.extensions().get::<User>().map_or("none", |user| user.0);
            if plan.serves_ranges && request.headers().contains_key("range") {
                let text = format!("{owner}|{language}|{seen}|");
                let head = head.header("content-range", format!("bytes 0-6/{}", text.len()));
                return Ok(head.status(206).body(text.into_bytes()[..7].to_vec().into()).unwrap());
            }
            let body = body(format!("{owner}|{language}|{seen}|"), &mut rng);
            Ok(head.status(status).body(body).unwrap())
        }
    }))
}

fn said(request: &Request<Body>) -> String {
    let language = request.headers().get("accept-language");
    language.map_or("", |language| language.to_str().unwrap()).to_owned()
}

const CONTROLS: [&str; 8] = [
    "private",
    "max-age=1",
    "max-age=1, stale-while-revalidate=5",
    "max-age=2, stale-if-error=20",
    "public, max-age=3",
    "public, max-age=1, stale-while-revalidate=30, stale-if-error=30",
    "max-age=2, must-revalidate",
    "max-age=60",
];

fn body(start: String, rng: &mut Rng) -> Body {
    let pause = MS * one(rng, &[0, 0, 10, 700]);
    let pieces = rng.u32(1..5);
    let breaks = chance(rng, 10);
    let pieces = (0..pieces).map(move |at| match at {
        0 => Ok(Bytes::from(start.clone())),
        3 if breaks => Err(io::Error::other("cut")),
        _ => Ok(Bytes::from_static(b".")),
    });
    let slow = futures_util::stream::unfold(pieces, move |mut pieces| async move {
        let piece = pieces.next()?;
        sleep(pause).await;
        Some((piece, pieces))
    });
    Body::from_stream(slow)
}

/// Returns three processes with three layers each, which have no part, one and two.
fn processes(plan: Plan, backends: &[Faulty]) -> Vec<[Layered; 3]> {
    let inner = origin(plan);
    let process = |backend: &Faulty| {
        let builder = http_cache(backend.clone(), "shop").outage_memory(plan.memory);
        let builder = if plan.is_patient { builder } else { builder.serve_stale_after(100 * MS) };
        let early = EarlyRefresh::Within(500 * MS);
        let builder = if plan.is_early { builder.early_refresh(early) } else { builder };
        let builder = if plan.cancels { builder.cancel_abandoned() } else { builder };
        let cache = builder.build().unwrap();
        [0, 1, 2].map(|parts| {
            let layer = BellwetherLayer::http(cache.clone()).ignore_reloads();
            let layer = if plan.is_rfc9111 { layer.policy(Policy::rfc9111()) } else { layer };
            let named = ["accept-language"];
            let layer = if plan.forwards { layer.forward_only(named) } else { layer };
            let layer = if parts > 0 { layer.vary_by(user) } else { layer };
            let layer = if parts > 1 { layer.vary_by_header("x-unused") } else { layer };
            layer.layer(inner.clone())
        })
    };
    backends.iter().map(process).collect()
}

/// Returns a random request, and what its answer begins with.
fn request(plan: Plan, parts: usize, rng: &mut Rng) -> (Request<Body>, String) {
    let method = one(rng, &["POST", "HEAD", "GET", "GET", "GET", "GET", "GET", "GET", "GET"]);
    let language = one(rng, &["en", "de", ""]);
    let mut request = Request::builder().method(method).header("accept-language", language);
    request = match rng.u32(..20) {
        0 => request.header("cache-control", "no-cache"),
        1 => request.header("cache-control", "max-age=0"),
        2 => request.header("cache-control", "no-store"),
        4 => request.header("range", "bytes=0-6"),
        5 => request.header("if-none-match", "\"0\""),
        _ => request,
    };
    if plan.is_rfc9111 && chance(rng, 20) {
        request = request.header("authorization", "Basic YTpi");
    }
    let mut request = request.body(Body::empty()).unwrap();
    let name = one(rng, &["alice", "bob", "carol", "bob 1:t"]);
    let owner = if parts == 0 { "none" } else { name };
    if parts > 0 {
        request.extensions_mut().insert(User(name));
    }
    let language = if plan.varies { language } else { "" };
    (request, format!("{owner}|{language}|"))
}

/// Sends a request, and checks that its answer is for it and not older than the last write.
async fn ask(
    plan: Plan,
    service: Layered,
    request: Request<Body>,
    start: String,
    last: Arc<AtomicU64>,
) {
    let known = last.load(SeqCst);
    let begun = Instant::now();
    let is_write = request.method() == "POST";
    let answer = service.oneshot(request).await.unwrap();
    let (head, body) = answer.into_parts();
    let body = body.collect().await.map(|body| body.to_bytes());
    assert!(begun.elapsed() < LONG, "{plan:?}: waited {:?}", begun.elapsed());
    let Ok(body) = body else { return };
    let text = std::str::from_utf8(&body).unwrap();
    if is_write {
        last.fetch_max(text.parse().unwrap(), SeqCst);
    } else if head.status == 206 {
        let is_own = start.starts_with(text) || text.starts_with(&start);
        assert!(is_own, "{plan:?}: {start} got {text}");
    } else if !text.is_empty() {
        let rest = text.strip_prefix(&start);
        let rest = rest.unwrap_or_else(|| panic!("{plan:?}: {start} got {text} {head:?}"));
        let seen: u64 = rest.split('|').next().unwrap().parse().unwrap();
        assert!(plan.has_faults || seen >= known, "{plan:?}: {known} written, {start} got {text}");
    }
}

async fn run(plan: Plan) {
    let backend = MemoryBackend::new();
    let backends = [(), (), ()].map(|()| Faulty::over(backend.clone(), |_| None));
    let services = processes(plan, &backends);
    // By the number of parts, which a write and what it ends have in common.
    let last: [Arc<AtomicU64>; 3] = Default::default();
    let rng = &mut Rng::with_seed(plan.seed);
    let mut asked = Vec::new();
    for _ in 0..400 {
        let parts = rng.usize(..3);
        let service = services[rng.usize(..3)][parts].clone();
        let (request, start) = request(plan, parts, rng);
        let asking = ask(plan, service, request, start, Arc::clone(&last[parts]));
        let leaves_after = if chance(rng, 10) { MS * rng.u32(..300) } else { Duration::MAX };
        asked.push(spawn(timeout(leaves_after, asking)));
        if chance(rng, 60) {
            sleep(MS * one(rng, &[1, 10, 60, 200, 1200])).await;
        }
        if plan.has_faults && chance(rng, 5) {
            let late = Fault::Late(100 * MS);
            let faults = [Fault::Refuse, Fault::Hang, Fault::LoseReply, Fault::Double, late];
            let fault = rng.bool().then(|| one(rng, &faults));
            backends[rng.usize(..3)].plan(move |_| fault);
        }
    }
    // One that left has nothing to say.
    all(asked).await;
}

#[tokio::test(start_paused = true)]
async fn random_requests_get_what_is_theirs() {
    for seed in 0..6 {
        run(Plan::of(seed, false)).await;
        run(Plan::of(seed, true)).await;
    }
}
