//! Many locks of one process at once, beside a cache on the same backend.

use std::time::Duration;

use bellwether::{BoxError, Cache, Locks, RedisBackend, lock::MutexGuard};
use testkit::{LIMIT, RedisServer, eventually};
use tokio::{task::JoinSet, time::sleep};
use tokio_util::sync::CancellationToken;

use super::{MS, turn};

const KEYS: usize = 100;

/// Callers that read stored keys of a cache until they are stopped.
struct BusyCache {
    cache: Cache<u64>,
    callers: JoinSet<()>,
    is_over: CancellationToken,
}

impl BusyCache {
    async fn start(backend: RedisBackend) -> Self {
        let cache: Cache<u64> = Cache::builder(backend).build().unwrap();
        for key in 0..KEYS {
            cache.insert(key, &1).await.unwrap();
        }
        let (mut callers, is_over) = (JoinSet::new(), CancellationToken::new());
        for first in 0..8 {
            let (cache, is_over) = (cache.clone(), is_over.clone());
            callers.spawn(async move {
                let mut key = first;
                while !is_over.is_cancelled() {
                    let load = |_| async { Ok::<_, BoxError>(1) };
                    cache.get_or_load(key % KEYS, load).await.unwrap();
                    key += 1;
                    sleep(MS).await;
                }
            });
        }
        Self { cache, callers, is_over }
    }

    /// Stops the callers, all of which must have been served from the cache.
    async fn stop(mut self) {
        self.is_over.cancel();
        while let Some(ended) = self.callers.join_next().await {
            ended.unwrap();
        }
        let stats = self.cache.stats();
        println!("the cache beside the locks: {stats:?}");
        assert!(stats.hits > 100, "{stats:?}");
        assert_eq!((stats.degraded, stats.backend_errors), (0, 0), "{stats:?}");
    }
}

/// Locks free names all at once. No try may fail.
async fn lock_all(
    locks: &Locks,
    names: std::ops::Range<usize>,
    lease: Duration,
) -> Vec<MutexGuard> {
    let mut tries = JoinSet::new();
    for at in names {
        let mutex = locks.mutex(format!("free-{at}")).lease(lease);
        tries.spawn(async move { mutex.try_lock().await });
    }
    tries.join_all().await.into_iter().map(|tried| tried.unwrap().unwrap()).collect()
}

/// All tries went to the server at once, and half of them waited in our own connection until their
/// time-outs. Their releases failed as well, and the cache took the server for one that is down.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_burst_of_locks_fails_nowhere_and_leaves_a_cache_alone() {
    const NAMES: usize = 20_000;
    let _turn = turn().await;
    let server = RedisServer::start().await;
    let backend = RedisBackend::open(&server.url()).unwrap();
    assert!(eventually(LIMIT, async || backend.ping().await.is_ok()).await);
    let (locks, busy) = (Locks::new(backend.clone()), BusyCache::start(backend).await);
    let guards = lock_all(&locks, 0..NAMES, Duration::from_secs(30)).await;
    let mut unlocks = JoinSet::new();
    for guard in guards {
        unlocks.spawn(guard.unlock());
    }
    unlocks.join_all().await.into_iter().for_each(Result::unwrap);
    busy.stop().await;
    let leases: Vec<String> = server.raw().await.keys("*:l").await;
    assert!(leases.is_empty(), "{} leases are left", leases.len());
}

/// The renewals of many leases were one request with one time-out. When it passed, the answers that
/// had come were thrown away, and the leases were lost on a healthy server. One short lease bounded
/// the time of all of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_held_leases_are_kept_beside_a_busy_cache() {
    const HELD: usize = 20_000;
    const LEASE: Duration = Duration::from_secs(6);
    let _turn = turn().await;
    let server = RedisServer::start().await;
    let backend = RedisBackend::open(&server.url()).unwrap();
    assert!(eventually(LIMIT, async || backend.ping().await.is_ok()).await);
    let (locks, busy) = (Locks::new(backend.clone()), BusyCache::start(backend).await);
    let mut guards = lock_all(&locks, 0..HELD, LEASE).await;
    guards.extend(lock_all(&locks, HELD..HELD + 20, LEASE / 6).await);
    // Each lease has ended, unless it was renewed.
    sleep(LEASE + LEASE / 3).await;
    let lost = guards.iter().filter(|guard| guard.is_lost()).count();
    assert_eq!(lost, 0, "of {} leases", guards.len());
    busy.stop().await;
    drop(guards);
    locks.shutdown(LIMIT).await;
    let leases: Vec<String> = server.raw().await.keys("*:l").await;
    assert!(leases.is_empty(), "{} leases are left", leases.len());
}
