//! Many locks of one process at once, beside a cache on the same backend.

use bellwether::{Error, lock::MutexGuard};
use tokio_util::sync::CancellationToken;

use super::pings::Pings;
use super::*;

const KEYS: usize = 100;

/// The backend of a scene. What is under way at once takes 0.1 s in a debug build, and several
/// times that on a busy machine. A burst that the client sent at once would take longer than this.
fn backend(server: &RedisServer) -> Result<RedisBackend, Error> {
    RedisBackend::builder().server(server.url()).command_timeout(Duration::from_secs(1)).build()
}

/// Plays a scene over a server of its own. It may fail if the server did not answer for a while, as
/// on a busy machine, and is then played again.
async fn play(scene: impl AsyncFn(&RedisServer) -> Result<(), BoxError>) {
    for again in [true, true, false] {
        let server = RedisServer::start().await;
        let pings = Pings::start(server.url());
        let played = scene(&server).await;
        let silences = pings.silences();
        let Err(error) = played else { return };
        assert!(again && !silences.is_empty(), "{error:#}");
        println!("again, after {silences:?}: {error:#}");
    }
}

fn expect(holds: bool, otherwise: impl FnOnce() -> String) -> Result<(), BoxError> {
    if holds { Ok(()) } else { Err(otherwise().into()) }
}

/// Callers that read stored keys of a cache until they are stopped.
struct BusyCache {
    cache: Cache<u64>,
    callers: JoinSet<Result<(), Error>>,
    is_over: CancellationToken,
}

impl BusyCache {
    async fn start(backend: RedisBackend) -> Result<Self, Error> {
        let cache: Cache<u64> = Cache::builder(backend, "bellwether").build().unwrap();
        for key in 0..KEYS {
            cache.insert(key, &1).await?;
        }
        let mut callers = JoinSet::new();
        let is_over = CancellationToken::new();
        for first in 0..8 {
            let cache = cache.clone();
            let is_over = is_over.clone();
            callers.spawn(async move {
                let mut key = first;
                while !is_over.is_cancelled() {
                    let load = |_| async { Ok::<_, BoxError>(1) };
                    cache.get_or_load(key % KEYS, load).await?;
                    key += 1;
                    sleep(MS).await;
                }
                Ok(())
            });
        }
        Ok(Self { cache, callers, is_over })
    }

    /// Stops the callers, all of which must have been served from the cache.
    async fn stop(mut self) -> Result<(), BoxError> {
        self.is_over.cancel();
        while let Some(ended) = self.callers.join_next().await {
            ended??;
        }
        let stats = self.cache.stats();
        println!("the cache beside the locks: {stats:?}");
        let is_served = stats.hits > 100 && (stats.degraded, stats.backend_errors) == (0, 0);
        expect(is_served, || format!("{stats:?}"))
    }
}

/// Locks free names all at once. Returns an error if a try fails.
async fn lock_all(
    locks: &Locks,
    names: std::ops::Range<usize>,
    lease: Duration,
) -> Result<Vec<MutexGuard>, BoxError> {
    let mut tries = JoinSet::new();
    for at in names {
        let mutex = locks.mutex(format!("free-{at}")).lease(lease);
        tries.spawn(async move { mutex.try_lock().await });
    }
    let tried = tries.join_all().await.into_iter();
    tried.map(|tried| tried?.ok_or_else(|| "a free name is locked".into())).collect()
}

async fn nothing_left(server: &RedisServer) -> Result<(), BoxError> {
    let leases = server.raw().await.keys("*:l").await;
    expect(leases.is_empty(), || format!("{} leases are left", leases.len()))
}

/// All tries went to the server at once, and half of them waited in our own connection until their
/// time-outs. Their releases failed as well, and the cache took the server for one that is down.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_burst_of_locks_fails_nowhere_and_leaves_a_cache_alone() {
    const NAMES: usize = 10_000;
    let _turn = turn_alone().await;
    play(async |server| {
        let backend = backend(server)?;
        until_connected(&backend).await;
        let (locks, busy) =
            (Locks::new(backend.clone(), "bellwether"), BusyCache::start(backend).await?);
        let guards = lock_all(&locks, 0..NAMES, Duration::from_secs(30)).await?;
        let mut unlocks = JoinSet::new();
        for guard in guards {
            unlocks.spawn(guard.unlock());
        }
        unlocks.join_all().await.into_iter().collect::<Result<(), _>>()?;
        busy.stop().await?;
        nothing_left(server).await
    })
    .await;
}

/// The renewals do not share one time-out, and a short lease bounds no other one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_held_leases_are_kept_beside_a_busy_cache() {
    const HELD: usize = 12_000;
    const LEASE: Duration = Duration::from_secs(4);
    let _turn = turn_alone().await;
    play(async |server| {
        let backend = backend(server)?;
        until_connected(&backend).await;
        let (locks, busy) =
            (Locks::new(backend.clone(), "bellwether"), BusyCache::start(backend).await?);
        let mut guards = Vec::new();
        // A burst of all of them is another test. Here it could outlast the leases.
        for first in (0..HELD).step_by(500) {
            guards.extend(lock_all(&locks, first..first + 500, LEASE).await?);
        }
        guards.extend(lock_all(&locks, HELD..HELD + 20, LEASE / 3).await?);
        // Each lease has ended, unless it was renewed.
        sleep(LEASE + LEASE / 3).await;
        let lost = guards.iter().filter(|guard| guard.is_lost()).count();
        expect(lost == 0, || format!("{lost} of {} leases are lost", guards.len()))?;
        busy.stop().await?;
        drop(guards);
        locks.shutdown(LIMIT).await;
        nothing_left(server).await
    })
    .await;
}
