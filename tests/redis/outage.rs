//! A server that is away: how often a process tries to connect, and how soon it finds the server
//! when it is back.

use std::env;

use testkit::proxy::Mode;

use crate::prelude::*;

struct Scene {
    _server: RedisServer,
    proxy: Proxy,
    backend: RedisBackend,
    /// What happens to attempts to connect in the outage.
    mode: Mode,
    length: Duration,
}

impl Scene {
    /// Begins a scene in which each attempt is refused, so no command comes to its time-out.
    async fn begin() -> Self {
        Self::begin_with(Mode::Refuse, testkit::builder()).await
    }

    /// Begins a scene in which each attempt hangs until the usual connect time-out.
    async fn begin_silent() -> Self {
        let builder = testkit::builder().connect_timeout(Duration::from_secs(1));
        Self::begin_with(Mode::Stall, builder).await
    }

    async fn begin_with(mode: Mode, builder: RedisBackendBuilder) -> Self {
        let server = RedisServer::start().await;
        let proxy = Proxy::start(server.port());
        let backend = builder.server(proxy.url()).build().unwrap();
        assert!(eventually(LIMIT, || async { backend.ping().await.is_ok() }).await);
        let seconds = env::var("BELLWETHER_OUTAGE_SECONDS").ok().and_then(|s| s.parse().ok());
        let length = Duration::from_secs(seconds.unwrap_or(3));
        Self { _server: server, proxy, backend, mode, length }
    }

    fn attempts(&self) -> u64 {
        let counters = self.proxy.counters();
        let count = if self.mode == Mode::Refuse { &counters.refused } else { &counters.stalled };
        count.load(Ordering::SeqCst)
    }

    /// Lets the outage begin, and returns when it is noticed.
    async fn leave(&self) {
        self.proxy.set_mode(self.mode);
        self.proxy.cut();
        assert!(eventually(LIMIT, || async { self.backend.ping().await.is_err() }).await);
    }

    /// Ends the outage, if there were few attempts to connect: each of two connections makes seven
    /// in its first second, and up to two in each later one.
    fn come_back(&self, what: &str) -> Instant {
        let attempts = self.attempts();
        let most = 14 + 4 * self.length.as_secs();
        println!("{what}: {attempts} attempts to connect in {:?}", self.length);
        assert!(attempts <= most, "{what}: {attempts} attempts, at most {most}");
        self.proxy.clear();
        Instant::now()
    }
}

/// Each of its connections tried on its own, every 187 ms.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_waiters_cost_few_attempts_and_are_served_at_once() {
    serve_waiters_after(Scene::begin().await).await;
}

/// Each attempt hangs until its time-out, and the next one follows at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_server_costs_a_thousand_waiters_no_more_attempts() {
    serve_waiters_after(Scene::begin_silent().await).await;
}

async fn serve_waiters_after(scene: Scene) {
    let locks = Locks::new(scene.backend.clone(), "bellwether");
    // The connection for pushes is in use, too.
    locks.mutex("k").lock().await.unwrap().unlock().await.unwrap();
    scene.leave().await;
    let mut locked = JoinSet::new();
    for at in 0..1000 {
        let lock = locks.mutex(format!("k{at}")).wait_limit(LIMIT * 10);
        locked.spawn(async move { drop(lock.lock().await.unwrap()) });
    }
    sleep(scene.length).await;
    let back = scene.come_back("1,000 waiters");
    timeout(LIMIT, locked.join_next()).await.unwrap().unwrap().unwrap();
    let first = back.elapsed();
    while let Some(outcome) = timeout(LIMIT, locked.join_next()).await.unwrap() {
        outcome.unwrap();
    }
    println!("1,000 waiters: the first lock after {first:?}, the last after {:?}", back.elapsed());
}

/// No caller asks meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_process_finds_its_server_within_two_seconds() {
    let scene = Scene::begin().await;
    scene.leave().await;
    sleep(scene.length).await;
    let back = scene.come_back("an idle process");
    sleep(1200 * MS).await;
    let cache = Cache::<String>::builder(scene.backend.clone(), "bellwether").build().unwrap();
    let load = async || {
        let load = cache.request("k").load(|_| async { Ok::<_, std::io::Error>("v".to_owned()) });
        timeout(LIMIT, load).await.unwrap().unwrap().source == Source::Led
    };
    assert!(comes_true(800 * MS, load).await, "not after {:?}", back.elapsed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_cost_few_attempts() {
    let scene = Scene::begin().await;
    let cache = Cache::<String>::builder(scene.backend.clone(), "bellwether").build().unwrap();
    let load = |at: u32| {
        let cache = cache.clone();
        async move {
            let load =
                cache.request(at).load(|_| async { Ok::<_, std::io::Error>("v".to_owned()) });
            timeout(LIMIT, load).await.unwrap().unwrap().source
        }
    };
    scene.leave().await;
    let begun = Instant::now();
    let mut at = 0;
    while begun.elapsed() < scene.length {
        assert_eq!(load(at).await, Source::Degraded);
        at += 1;
        sleep(5 * MS).await;
    }
    let back = scene.come_back("requests");
    let served = async || {
        at += 1;
        load(at).await != Source::Degraded
    };
    // The pauses between attempts are up to one second long.
    assert!(comes_true(4000 * MS, served).await, "no load has a lease");
    println!("requests: the first load with a lease after {:?}", back.elapsed());
}

/// Each request of a hot key cost a load, one after another. The values that were loaded meanwhile
/// are served until the server answers again, and no longer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_stopped_costs_a_hot_key_one_load() {
    let mut server = RedisServer::start().await;
    let backend = testkit::open(server.url());
    let cache = Cache::<u64>::builder(backend, "bellwether").build().unwrap();
    let loads = Arc::new(AtomicU64::new(0));
    let ask = async |key: &str| {
        let loads = loads.clone();
        let load = |_| async move { Ok::<_, BoxError>(loads.fetch_add(1, Ordering::SeqCst) + 1) };
        let loaded = timeout(LIMIT, cache.request(key).load(load)).await.unwrap().unwrap();
        (loaded.value, loaded.source)
    };
    assert_eq!(ask("other").await, (1, Source::Led));
    server.kill();
    for _ in 0..200 {
        assert_eq!(ask("hot").await, (2, Source::Degraded));
        sleep(5 * MS).await;
    }
    assert!(timeout(LIMIT, cache.invalidate("hot")).await.unwrap().is_err());
    assert_eq!(ask("hot").await, (3, Source::Degraded));
    assert_eq!(ask("hot").await, (3, Source::Degraded));
    server.start_again().await;
    // Requests of another key find the server, and the hot key is loaded under the lease at once.
    assert!(comes_true(LIMIT, async || ask("other").await.1 != Source::Degraded).await);
    let (value, source) = ask("hot").await;
    assert!(value > 3 && source == Source::Led, "{value} {source:?}");
}
