//! The table of memory in `docs/redis.md`.
//!
//! `cargo test --test redis memory:: -- --nocapture` prints the figures.

use std::time::Duration;

use bellwether::{
    RedisBackend,
    backend::{
        Acquired, Claim, Claimed, Entry, Latches, Leases, Mode, Owner, Store, Tick, TickStep,
    },
    key::{Family, Key, Name, Namespace},
};
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use testkit::{Raw, RedisServer};

const PAGE: &str = include_str!("../../docs/redis.md");
const COUNT: usize = 5_000;
const LIFE: Duration = Duration::from_secs(3600);

struct Scene {
    backend: RedisBackend,
    raw: Raw,
    before: u64,
    _server: RedisServer,
}

impl Scene {
    async fn start() -> Self {
        let server = RedisServer::start().await;
        let timeout = Duration::from_secs(5);
        let builder = RedisBackend::builder().server(server.url()).command_timeout(timeout);
        let backend = builder.build().unwrap();
        // The warm-up loads the scripts and grows the buffers.
        backend.acquire(&claim("warm", Mode::Exclusive)).await.unwrap();
        let mut raw = server.raw().await;
        let before = used(&mut raw).await;
        Self { backend, raw, before, _server: server }
    }

    async fn assert(mut self, row: &str) {
        let each = used(&mut self.raw).await.saturating_sub(self.before) / COUNT as u64;
        assert_documented(row, each);
    }
}

/// Compares bytes with a row of the page. The figures differ a little between versions of Redis and
/// its allocator.
fn assert_documented(row: &str, each: u64) {
    println!("{row}: {each} bytes");
    let line = PAGE.lines().find(|line| line.starts_with(&format!("| {row} |")));
    let column = line.and_then(|line| line.split('|').nth(2));
    let documented: u64 =
        column.unwrap_or_else(|| panic!("the page has no row {row}")).trim().parse().unwrap();
    assert!(each <= documented * 5 / 4, "{row}: {each} bytes, the page says {documented}");
    assert!(each * 2 >= documented, "{row}: {each} bytes, the page says {documented}");
}

/// Returns the bytes of the server, without the buffers of its clients.
async fn used(raw: &mut Raw) -> u64 {
    let info: String = raw.run(&["INFO", "memory"]).await;
    let field = |name: &str| -> u64 {
        let line = info.lines().find_map(|line| line.strip_prefix(name));
        line.unwrap().trim().parse().unwrap()
    };
    field("used_memory:") - field("mem_clients_normal:")
}

fn name(key: &str) -> Name {
    let namespace = Namespace::new("shop").unwrap();
    Name::new(&namespace, Family::Lock, &Key::from(key), 512).unwrap()
}

fn claim(key: &str, mode: Mode) -> Claim {
    Claim::new(name(key), mode, LIFE, LIFE)
}

/// Returns a key like `product:00042`.
fn key(at: usize) -> String {
    format!("product:{at:05}")
}

/// Runs an act for each number, fifty at a time.
async fn each<F: Future<Output = ()>>(what: impl Fn(usize) -> F) {
    stream::iter(0..COUNT).for_each_concurrent(50, what).await;
}

#[tokio::test]
async fn memory_of_an_entry() {
    let scene = Scene::start().await;
    let entry = Entry::value(1, Duration::ZERO, Bytes::from(vec![b'v'; 100]));
    each(async |at| {
        let claim = claim(&key(at), Mode::Exclusive);
        let Claimed::Granted(grant) = scene.backend.claim(&claim, 0).await.unwrap() else {
            panic!("the free lease was refused");
        };
        scene.backend.commit(&claim, &grant, &entry, Some(LIFE)).await.unwrap();
    })
    .await;
    scene.assert("an entry with 100 bytes").await;
}

#[tokio::test]
async fn memory_of_a_lock() {
    let scene = Scene::start().await;
    let claims: Vec<_> = (0..COUNT).map(|at| claim(&key(at), Mode::Exclusive)).collect();
    each(async |at| {
        let _ = scene.backend.acquire(&claims[at]).await.unwrap();
    })
    .await;
    let Scene { backend, mut raw, before, _server } = scene;
    let held = Scene { backend: backend.clone(), raw: raw.clone(), before, _server };
    let each_held = used(&mut raw).await.saturating_sub(before) / COUNT as u64;
    assert_documented("a mutex that is held", each_held);
    each(async |at| assert!(held.backend.release(&claims[at]).await.unwrap())).await;
    held.assert("a mutex that is free").await;
}

#[tokio::test]
async fn memory_of_a_tick() {
    let scene = Scene::start().await;
    each(async |at| {
        let claim = claim(&key(at), Mode::Exclusive);
        scene.backend.acquire(&claim).await.unwrap();
        let tick = Tick { at: 1_790_000_000_000_000, step: TickStep::Done, kept: LIFE };
        assert!(scene.backend.mark(&claim, tick).await.unwrap().is_set);
        assert!(scene.backend.release(&claim).await.unwrap());
    })
    .await;
    scene.assert("a job whose turn is done").await;
}

#[tokio::test]
async fn memory_of_a_queue_entry() {
    let scene = Scene::start().await;
    scene.backend.acquire(&claim("one", Mode::Fair)).await.unwrap();
    each(async |_| {
        let claim = claim("one", Mode::Fair);
        assert!(matches!(scene.backend.acquire(&claim).await.unwrap(), Acquired::Occupied(_)));
    })
    .await;
    scene.assert("a waiter of one lock").await;
}

#[tokio::test]
async fn memory_of_a_reader() {
    let scene = Scene::start().await;
    each(async |_| {
        let _ = scene.backend.acquire(&claim("one", Mode::Read)).await.unwrap();
    })
    .await;
    scene.assert("a reader of one lock").await;
}

#[tokio::test]
async fn memory_of_a_permit() {
    let scene = Scene::start().await;
    let mode = Mode::Permit { limit: 20_000, count: 1 };
    each(async |_| {
        let _ = scene.backend.acquire(&claim("one", mode)).await.unwrap();
    })
    .await;
    scene.assert("a permit of one semaphore").await;
}

#[tokio::test]
async fn memory_of_a_semaphore() {
    let scene = Scene::start().await;
    let mode = Mode::Permit { limit: 2, count: 1 };
    each(async |at| {
        let _ = scene.backend.acquire(&claim(&key(at), mode)).await.unwrap();
    })
    .await;
    scene.assert("a semaphore with one permit out").await;
}

#[tokio::test]
async fn memory_of_a_latch() {
    let scene = Scene::start().await;
    each(async |at| {
        scene.backend.set_latch(&name(&key(at)), Owner::fresh(), 5, LIFE).await.unwrap();
    })
    .await;
    scene.assert("a latch").await;
}

#[tokio::test]
async fn memory_of_a_step() {
    let scene = Scene::start().await;
    let name = name("one");
    scene.backend.set_latch(&name, Owner::fresh(), 20_000, LIFE).await.unwrap();
    each(async |_| {
        scene.backend.count_down(&name, Owner::fresh(), 1).await.unwrap();
    })
    .await;
    scene.assert("a step of one latch").await;
}

#[tokio::test]
async fn memory_of_a_subscription() {
    let scene = Scene::start().await;
    let listening = stream::iter(0..COUNT)
        .map(async |at| scene.backend.changes(&name(&key(at))).await.unwrap());
    let listening: Vec<_> = listening.buffer_unordered(50).collect().await;
    scene.assert("a process that waits for a latch").await;
    drop(listening);
}
