//! The table of memory in `docs/redis.md`.
//!
//! `cargo test --test redis memory:: -- --nocapture` prints the figures.

use std::sync::Mutex;

use bellwether::backend::{Owner, Store, Tick, TickStep};
use futures_util::{StreamExt, stream};

use crate::prelude::*;

const PAGE: &str = include_str!("../../docs/redis.md");
const COUNT: usize = 5_000;
const LIFE: Duration = Duration::from_secs(3600);

/// Does something for each number, fifty at a time, and compares what the server keeps of each with
/// a row of the page.
async fn measure(row: &str, what: impl AsyncFn(&RedisBackend, usize)) {
    let server = RedisServer::start().await;
    let builder = RedisBackend::builder().server(server.url());
    let backend = builder.command_timeout(Duration::from_secs(5)).build().unwrap();
    // The warm-up loads the scripts and grows the buffers.
    backend.acquire(&claim("warm", Mode::Exclusive)).await.unwrap();
    let mut raw = server.raw().await;
    let before = used(&mut raw).await;
    let backend = &backend;
    let what = &what;
    stream::iter(0..COUNT).for_each_concurrent(50, async |at| what(backend, at).await).await;
    let documented = documented(row);
    let mut each = 0;
    // The server counts the buffers of its clients a while after it has them.
    let is_at_most = async || {
        each = used(&mut raw).await.saturating_sub(before) / COUNT as u64;
        each <= documented * 5 / 4
    };
    let _ = comes_true(LIMIT, is_at_most).await;
    assert_documented(row, each);
}

/// Compares bytes with a row of the page. The figures differ a little between versions of Redis and
/// its allocator.
fn assert_documented(row: &str, each: u64) {
    println!("{row}: {each} bytes");
    let documented = documented(row);
    assert!(each <= documented * 5 / 4, "{row}: {each} bytes, the page says {documented}");
    assert!(each * 2 >= documented, "{row}: {each} bytes, the page says {documented}");
}

fn documented(row: &str) -> u64 {
    let line = PAGE.lines().find(|line| line.starts_with(&format!("| {row} |")));
    let column = line.and_then(|line| line.split('|').nth(2));
    column.unwrap_or_else(|| panic!("the page has no row {row}")).trim().parse().unwrap()
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

fn one(_: usize) -> String {
    "one".to_owned()
}

/// Measures leases of a mode. Leases of one key hold it together, or wait for it.
async fn leases(row: &str, mode: Mode, key: fn(usize) -> String) {
    let acquire = async |backend: &RedisBackend, at: usize| {
        let _ = backend.acquire(&claim(&key(at), mode)).await.unwrap();
    };
    measure(row, acquire).await;
}

#[tokio::test]
async fn leases_take_the_memory_that_the_page_says() {
    tokio::join!(
        leases("a mutex that is held", Mode::Exclusive, key),
        leases("a waiter of one lock", Mode::Fair, one),
        leases("a reader of one lock", Mode::Read, one),
        leases("a permit of one semaphore", Mode::Permit { limit: 20_000, count: 1 }, one),
        leases("a semaphore with one permit out", Mode::Permit { limit: 2, count: 1 }, key),
    );
}

#[tokio::test]
async fn entries_and_marks_take_the_memory_that_the_page_says() {
    let entry = Entry::value(1, Duration::ZERO, Bytes::from(vec![b'v'; 100]));
    let stored = measure("an entry with 100 bytes", async |backend, at| {
        let claim = claim(&key(at), Mode::Exclusive);
        let Claimed::Granted(grant) = backend.claim(&claim, 0).await.unwrap() else {
            panic!("the free lease was refused");
        };
        backend.commit(&claim, &grant, &entry, Some(LIFE)).await.unwrap();
    });
    let tick = Tick { at: 1_790_000_000_000_000, step: TickStep::Done, kept: LIFE };
    let turn = async |backend: &RedisBackend, at, tick: Option<Tick>| {
        let claim = claim(&key(at), Mode::Exclusive);
        backend.acquire(&claim).await.unwrap();
        if let Some(tick) = tick {
            assert!(backend.mark(&claim, tick).await.unwrap().is_set);
        }
        assert!(backend.release(&claim).await.unwrap());
    };
    tokio::join!(
        stored,
        measure("a mutex that is free", async |backend, at| turn(backend, at, None).await),
        measure("a job whose turn is done", async |backend, at| {
            turn(backend, at, Some(tick)).await;
        }),
    );
}

#[tokio::test]
async fn latches_take_the_memory_that_the_page_says() {
    const STEPS: u32 = 20_000;
    let set = async |backend: &RedisBackend, key: &str| {
        backend.set_latch(&name(key), Owner::fresh(), STEPS, LIFE).await.unwrap()
    };
    let listening = Mutex::new(Vec::new());
    tokio::join!(
        measure("a latch", async |backend, at| assert!(set(backend, &key(at)).await)),
        measure("a step of one latch", async |backend, _| {
            set(backend, "one").await;
            backend.count_down(&name("one"), Owner::fresh(), 1).await.unwrap();
        }),
        measure("a process that waits for a latch", async |backend, at| {
            let changes = backend.changes(&name(&key(at))).await.unwrap();
            listening.lock().unwrap().push(changes);
        }),
    );
}
