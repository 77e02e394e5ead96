//! A small service: two caches and a lock, callers that never rest, and `/metrics`.

use std::{
    env,
    net::Ipv4Addr,
    process::Stdio,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use axum::{Router, routing::get};
use bellwether::{BoxError, Cache, Locks, RedisBackend, cache::LocalTier, lock::MutexGuard};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use testkit::LIMIT;
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines, stdin},
    net::TcpListener,
    process::{Child, ChildStdin, ChildStdout, Command},
    runtime::Builder,
    time::{sleep, timeout},
};

const MS: Duration = Duration::from_millis(1);
/// The variable with the URL of the server. It makes this process a service.
const VARIABLE: &str = "BELLWETHER_DASHBOARD_REDIS";
/// The upper ends of the buckets of all times, in seconds, as in `docs/dashboard.md`.
const BUCKETS: [f64; 12] = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0, 30.0];
/// How long the last life of the hot key is.
const LAST_LIFE: Duration = Duration::from_millis(300);
const LISTENS: &str = "the service listens at ";
const DONE: &str = "the service has done it";

/// A service process, from the side of the test. It ends when its input does.
pub struct Service {
    pub port: u16,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
    _child: Child,
}

impl Service {
    pub async fn start(redis: &str) -> Self {
        let mut child = Command::from(testkit::rerun("service"))
            .env(VARIABLE, redis)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let input = child.stdin.take().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut service = Self { port: 0, input, output, _child: child };
        service.port = service.answer(LISTENS).await.parse().unwrap();
        service
    }

    /// Has the service do something, and returns when it is done.
    pub async fn tell(&mut self, words: &str) {
        self.input.write_all(format!("{words}\n").as_bytes()).await.unwrap();
        self.answer(DONE).await;
    }

    /// Waits for a line that begins so, and returns its rest.
    async fn answer(&mut self, begin: &str) -> String {
        let answer = async {
            loop {
                let line = self.output.next_line().await.unwrap().expect("the service lives");
                if let Some(rest) = line.strip_prefix(begin) {
                    return rest.to_owned();
                }
            }
        };
        timeout(LIMIT, answer).await.expect("the service answers")
    }
}

/// Serves until the input ends, if this process is a service.
pub fn work() {
    let Ok(redis) = env::var(VARIABLE) else { return };
    let recorder = PrometheusBuilder::new().set_buckets(&BUCKETS).unwrap();
    let handle = recorder.install_recorder().unwrap();
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(serve(&redis, handle));
    std::process::exit(0);
}

async fn serve(redis: &str, handle: PrometheusHandle) {
    let mut desk = Desk::open(redis);
    for _ in 0..4 {
        tokio::spawn(ask_products(desk.products.clone(), desk.origin_fails.clone()));
        tokio::spawn(ask_price(desk.prices.clone()));
    }
    for _ in 0..2 {
        tokio::spawn(lock_till(desk.locks.clone()));
    }
    // Locks that all get in time, of which there are many.
    for number in 0..20 {
        tokio::spawn(lock_others(desk.locks.clone(), number));
    }
    tokio::spawn(lead(desk.locks.clone()));
    tokio::spawn(clean_up(desk.locks.clone()));
    let metrics = Router::new().route("/metrics", get(async move || handle.render()));
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    // The harness may have begun a line.
    println!("\n{LISTENS}{}", listener.local_addr().unwrap().port());
    tokio::spawn(axum::serve(listener, metrics).into_future());
    let mut lines = BufReader::new(stdin()).lines();
    while let Ok(Some(words)) = lines.next_line().await {
        desk.obey(&words).await;
        println!("\n{DONE}");
    }
}

/// What the test can turn.
struct Desk {
    /// Many keys, each of which expires soon.
    products: Cache<u64>,
    /// One hot key with copies in the process.
    prices: Cache<u64>,
    locks: Locks,
    origin_fails: Arc<AtomicBool>,
    held: Option<MutexGuard>,
    /// Tiers that keep nothing: one was never asked, and one was asked once for a key.
    _idle: [Cache<u64>; 2],
}

impl Desk {
    fn open(redis: &str) -> Self {
        let backend = RedisBackend::open(redis).unwrap();
        let products = Cache::builder(backend.clone(), "products").ttl(500 * MS);
        let prices = Cache::builder(backend.clone(), "prices").ttl(3_600_000 * MS);
        let desk = Self {
            products: products.build().unwrap(),
            prices: prices.local(LocalTier::default()).build().unwrap(),
            locks: Locks::new(backend.clone(), "bellwether"),
            origin_fails: Arc::default(),
            held: None,
            _idle: [idle(&backend, "idle"), idle(&backend, "standby")],
        };
        let asked = desk._idle[1].clone();
        tokio::spawn(async move { asked.get("once").await });
        // One that was there, and was dropped.
        drop(idle(&backend, "gone"));
        tokio::spawn(desk.products.publish_metrics("products"));
        tokio::spawn(desk.prices.publish_metrics("prices"));
        tokio::spawn(desk.locks.publish_metrics("shop"));
        desk
    }

    async fn obey(&mut self, words: &str) {
        match words {
            "origin fails" => self.origin_fails.store(true, Ordering::Relaxed),
            "origin works" => self.origin_fails.store(false, Ordering::Relaxed),
            "hold" => {
                self.held = Some(self.locks.mutex("till").lock().await.unwrap());
                // One waits for long, and is not in vain yet.
                let patient = self.locks.mutex("till").wait_limit(3_600_000 * MS);
                tokio::spawn(async move { patient.lock().await.map(drop) });
            }
            "release" => self.held.take().unwrap().unlock().await.unwrap(),
            "expire" => {
                self.prices.request("hot").ttl(LAST_LIFE).insert(&7).await.unwrap();
                sleep(LAST_LIFE).await;
            }
            words => panic!("no service can do this: {words}"),
        }
    }
}

/// Returns a cache with a local tier, which is published.
fn idle(backend: &RedisBackend, name: &str) -> Cache<u64> {
    let builder = Cache::builder(backend.clone(), name).local(LocalTier::default());
    let cache: Cache<u64> = builder.build().unwrap();
    tokio::spawn(cache.publish_metrics(name.to_owned()));
    cache
}

async fn lock_others(locks: Locks, number: u32) {
    let other = locks.mutex(format!("other:{}:{number}", std::process::id()));
    loop {
        if let Ok(guard) = other.lock().await {
            let _ = guard.unlock().await;
        }
        sleep(20 * MS).await;
    }
}

/// One of the services leads, and the other one stands by.
async fn lead(locks: Locks) {
    let _ = locks.leader("boss").run(|_| std::future::pending::<()>()).await;
}

async fn clean_up(locks: Locks) {
    let mut ticks = locks.every("clean-up", 1_000 * MS);
    while let Ok(turn) = ticks.next().await {
        let _ = turn.done().await;
    }
}

async fn ask_products(products: Cache<u64>, origin_fails: Arc<AtomicBool>) {
    loop {
        let origin_fails = origin_fails.clone();
        let load = products.get_or_load(fastrand::u8(..20).to_string(), |_| async move {
            sleep(10 * MS).await;
            if origin_fails.load(Ordering::Relaxed) {
                Err(BoxError::from("the origin fails"))
            } else {
                Ok(7)
            }
        });
        // The metrics count what fails.
        let _ = load.await;
        sleep(10 * MS).await;
    }
}

async fn ask_price(prices: Cache<u64>) {
    loop {
        let load = prices.get_or_load("hot", |_| async {
            sleep(100 * MS).await;
            Ok::<_, BoxError>(7)
        });
        let _ = load.await;
        sleep(5 * MS).await;
    }
}

async fn lock_till(locks: Locks) {
    loop {
        if let Ok(guard) = locks.mutex("till").wait_limit(300 * MS).lock().await {
            sleep(5 * MS).await;
            let _ = guard.unlock().await;
        }
        sleep(50 * MS).await;
    }
}
