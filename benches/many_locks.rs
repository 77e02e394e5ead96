//! Many locks of one process, beside a busy cache on the same backend.
//!
//! `cargo bench --bench many_locks [-- names leases]` starts a Redis server. It tries so many free
//! locks at once and unlocks them, then holds so many leases for three renewals each. It prints
//! errors, losses and degraded callers, which must all be zero. The last row compares the time that
//! the server spends on a renewal with the time of a bare `GET` and `PEXPIRE` in a script.
#![allow(missing_docs, unreachable_pub, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use bellwether::{
    BoxError, Cache, Locks, RedisBackend,
    backend::{Claim, Claimed, Leases, Mode},
    key::{Family, Key, Name, Namespace},
    lock::MutexGuard,
};
use futures_util::future::join_all;
use testkit::{Raw, RedisServer};
use tokio::{
    runtime::Builder,
    task::JoinSet,
    time::{Instant, sleep},
};

const LEASE: Duration = Duration::from_secs(10);
/// The callers of the cache, and the keys that they read.
const CALLERS: usize = 16;
const KEYS: usize = 200;
/// The number of leases that one script renews.
const BATCH: usize = 100;

fn main() {
    let mut numbers = std::env::args().skip(1).filter_map(|word| word.parse().ok());
    let names = numbers.next().unwrap_or(20_000);
    let leases = numbers.next().unwrap_or(100_000);
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        tokio::spawn(renewal()).await.unwrap();
        tokio::spawn(all_at_once(names)).await.unwrap();
        tokio::spawn(held(leases)).await.unwrap();
    });
}

/// Measures the server's time for a renewal, compared with a bare script.
async fn renewal() {
    const ROUNDS: usize = 300;
    /// Calls of each script in a row, so that neither pays for a cold processor alone.
    const CALLS: usize = 10;
    const BARE: &str = "
        for at = 1, #KEYS do
          if redis.call('GET', KEYS[at]) == ARGV[2 * at - 1] then
            redis.call('PEXPIRE', KEYS[at], ARGV[2 * at])
          end
        end";
    let server = RedisServer::start().await;
    let backend = RedisBackend::open(&server.url()).unwrap();
    let mut raw = server.raw().await;
    for count in [1, BATCH] {
        let claims: Vec<_> = (0..count).map(|at| claim(&format!("renewed-{count}-{at}"))).collect();
        let mut bare = vec!["EVAL".to_owned(), BARE.to_owned(), count.to_string()];
        let mut arguments = Vec::new();
        for claim in &claims {
            let Claimed::Granted(grant) = backend.acquire(claim).await.unwrap() else {
                panic!("the lease is free");
            };
            bare.push(claim.name.suffixed("l"));
            arguments.push(format!("{}:{}", claim.owner, grant.fence()));
            arguments.push(LEASE.as_millis().to_string());
        }
        bare.extend(arguments);
        let bare: Vec<_> = bare.iter().map(String::as_str).collect();
        let mut figures = [0.0; 2];
        for _ in 0..ROUNDS {
            raw.run::<()>(&["CONFIG", "RESETSTAT"]).await;
            let renewals = (ROUNDS * CALLS * count) as f64;
            for _ in 0..CALLS {
                backend.renew(&claims).await.unwrap();
            }
            figures[0] += server_time(&mut raw, "evalsha").await / renewals;
            for _ in 0..CALLS {
                raw.run::<()>(&bare).await;
            }
            figures[1] += server_time(&mut raw, "eval").await / renewals;
        }
        let [ours, bare] = figures;
        println!(
            "a renewal in a script of {count:>3}: {ours:.2} us of the server, bare {bare:.2} us, \
             {:.2} times",
            ours / bare
        );
    }
}

/// Tries many free locks at once, and unlocks them.
async fn all_at_once(names: usize) {
    let server = RedisServer::start().await;
    let backend = RedisBackend::open(&server.url()).unwrap();
    let locks = Locks::new(backend.clone(), "bellwether");
    let busy = BusyCache::start(backend).await;
    sleep(Duration::from_millis(300)).await;
    let quiet = busy.slowest();
    let begun = Instant::now();
    let mut tries = JoinSet::new();
    for at in 0..names {
        let mutex = locks.mutex(format!("free-{at}"));
        tries.spawn(async move { mutex.try_lock().await });
    }
    let tried = tries.join_all().await;
    let took = begun.elapsed();
    let refused = tried.iter().filter(|tried| !matches!(tried, Ok(Some(_)))).count();
    let begun = Instant::now();
    let mut unlocks = JoinSet::new();
    for guard in tried.into_iter().flatten().flatten() {
        unlocks.spawn(guard.unlock());
    }
    let failed = unlocks.join_all().await.into_iter().filter(Result::is_err).count();
    println!(
        "{names} try_lock at once: {took:?}, {refused} errors; unlock: {:?}, {failed} errors",
        begun.elapsed()
    );
    println!("  slowest hit before: {quiet:?}, meanwhile: {:?}", busy.slowest());
    busy.stop().await;
}

/// Holds many leases for some renewals of each.
async fn held(leases: usize) {
    let server = RedisServer::start().await;
    let backend = RedisBackend::open(&server.url()).unwrap();
    let locks = Locks::new(backend.clone(), "bellwether");
    let busy = BusyCache::start(backend).await;
    let mut raw = server.raw().await;
    let begun = Instant::now();
    let mut guards: Vec<MutexGuard> = Vec::new();
    while guards.len() < leases {
        let some = (guards.len()..leases.min(guards.len() + 1_000))
            .map(|at| locks.mutex(format!("held-{at}")).lease(LEASE))
            .map(async |mutex| mutex.lock().await);
        guards.extend(join_all(some).await.into_iter().map(Result::unwrap));
    }
    println!("{leases} leases acquired in {:?}", begun.elapsed());
    busy.slowest();
    raw.run::<()>(&["CONFIG", "RESETSTAT"]).await;
    let cpu = cpu_time::ProcessTime::now();
    let begun = Instant::now();
    sleep(LEASE).await;
    let took = begun.elapsed().as_secs_f64();
    let lost = guards.iter().filter(|guard| guard.is_lost()).count();
    println!(
        "{leases} leases held for {took:.1} s: {lost} lost; {:.0} % of a core here; slowest hit \
         {:?}",
        100.0 * cpu.elapsed().as_secs_f64() / took,
        busy.slowest(),
    );
    let scripts = server_time(&mut raw, "evalsha").await / took / 1e4;
    println!("  the server spends {scripts:.1} % of its time on scripts");
    busy.stop().await;
    drop(guards);
    locks.shutdown(LEASE).await;
}

/// Callers that read stored keys of a cache, one after another.
struct BusyCache {
    cache: Cache<u64>,
    callers: JoinSet<()>,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    is_over: AtomicBool,
    /// The slowest hit since it was last asked for, in microseconds.
    slowest: AtomicU64,
}

impl BusyCache {
    async fn start(backend: RedisBackend) -> Self {
        let cache: Cache<u64> = Cache::builder(backend, "bellwether").build().unwrap();
        for key in 0..KEYS {
            cache.insert(key, &1).await.unwrap();
        }
        let mut callers = JoinSet::new();
        let shared = Arc::<Shared>::default();
        for _ in 0..CALLERS {
            let cache = cache.clone();
            let shared = shared.clone();
            callers.spawn(async move {
                while !shared.is_over.load(Ordering::Relaxed) {
                    let begun = Instant::now();
                    let load = |_| async { Ok::<_, BoxError>(1) };
                    cache.get_or_load(fastrand::usize(..KEYS), load).await.unwrap();
                    let took = u64::try_from(begun.elapsed().as_micros()).unwrap();
                    shared.slowest.fetch_max(took, Ordering::Relaxed);
                    sleep(Duration::from_millis(1)).await;
                }
            });
        }
        Self { cache, callers, shared }
    }

    fn slowest(&self) -> Duration {
        Duration::from_micros(self.shared.slowest.swap(0, Ordering::Relaxed))
    }

    async fn stop(mut self) {
        self.shared.is_over.store(true, Ordering::Relaxed);
        while self.callers.join_next().await.is_some() {}
        let stats = self.cache.stats();
        println!("  the cache beside it: {} hits, {} degraded", stats.hits, stats.degraded);
    }
}

/// Returns the microseconds that the server has spent on a command since the statistics were reset.
async fn server_time(raw: &mut Raw, command: &str) -> f64 {
    let stats: String = raw.run(&["INFO", "commandstats"]).await;
    let start = format!("cmdstat_{command}:");
    let line = stats.lines().find(|line| line.starts_with(&start)).expect("the command was run");
    let time = line.split(',').find_map(|field| field.strip_prefix("usec=")).unwrap();
    time.parse().unwrap()
}

fn claim(key: &str) -> Claim {
    let name = Name::new(&Namespace::standard(), Family::Lock, &Key::from(key), 512).unwrap();
    Claim::new(name, Mode::Exclusive, LEASE, Duration::from_secs(86_400))
}
