//! A lock over a majority of real servers that are killed, suspended and restarted.
//! `tests/memory/redlock` has the other promises.

use bellwether::Redlock;

use crate::prelude::*;

/// A lease that outlasts the delays of a busy machine, and that a test can wait for.
const LEASE: Duration = Duration::from_millis(1500);
/// The time that one server may take to answer.
const ANSWER: Duration = Duration::from_millis(200);

async fn start(count: usize) -> Vec<RedisServer> {
    join_all((0..count).map(|_| RedisServer::start())).await
}

/// Returns a client with connections of its own.
async fn client(servers: &[RedisServer]) -> Redlock {
    let backends: Vec<_> =
        servers.iter().map(|server| RedisBackend::open(&server.url()).unwrap()).collect();
    // Connects to the servers that are there.
    join_all(backends.iter().map(RedisBackend::ping)).await;
    Redlock::with_answer_limit(backends, "bellwether", ANSWER).unwrap()
}

/// Releases the lock. Too few servers may answer in time, on a busy machine or if one has just
/// gone. The release goes on in the background then.
async fn unlock(guard: MutexGuard) {
    if let Err(error) = guard.unlock().await {
        assert_eq!(error.kind(), ErrorKind::Backend);
    }
}

async fn lock(redlock: &Redlock, name: &str) -> MutexGuard {
    timeout(LIMIT, redlock.mutex(name).lease(LEASE).lock()).await.unwrap().unwrap()
}

/// Returns `true` if no server holds a share of any lock.
async fn nothing_held(servers: &[RedisServer]) -> bool {
    for server in servers {
        if !server.raw().await.keys("bellwether:r:*:l").await.is_empty() {
            return false;
        }
    }
    true
}

/// Tasks of several clients that acquire one lock again and again, until they are told to stop.
struct Contenders {
    stop: Arc<AtomicBool>,
    inside: Arc<AtomicUsize>,
    taken: Arc<AtomicUsize>,
    tasks: Vec<JoinHandle<()>>,
}

impl Contenders {
    async fn start(servers: &[RedisServer], clients: usize, tasks_of_each: usize) -> Self {
        let (stop, inside, taken) =
            <(Arc<AtomicBool>, Arc<AtomicUsize>, Arc<AtomicUsize>)>::default();
        let mut tasks = Vec::new();
        for _ in 0..clients {
            let redlock = client(servers).await;
            for _ in 0..tasks_of_each {
                let stop = stop.clone();
                let inside = inside.clone();
                let taken = taken.clone();
                let mutex = redlock.mutex("contenders").lease(LEASE);
                tasks.push(tokio::spawn(async move {
                    while !stop.load(Ordering::SeqCst) {
                        let guard = mutex.lock().await.unwrap();
                        assert_eq!(
                            inside.fetch_add(1, Ordering::SeqCst),
                            0,
                            "two tasks hold the lock"
                        );
                        tokio::task::yield_now().await;
                        // A task that lost the lock here would not be alone.
                        assert_eq!(
                            inside.fetch_sub(1, Ordering::SeqCst),
                            1,
                            "two tasks hold the lock"
                        );
                        taken.fetch_add(1, Ordering::SeqCst);
                        unlock(guard).await;
                    }
                }));
            }
        }
        Self { stop, inside, taken, tasks }
    }

    /// Waits until the lock was acquired a number of further times.
    async fn takes(&self, count: usize) {
        let end = self.taken.load(Ordering::SeqCst) + count;
        let taken = || async { self.taken.load(Ordering::SeqCst) >= end };
        assert!(eventually(3 * LIMIT, taken).await, "the tasks no longer get the lock");
    }

    async fn end(self) {
        self.stop.store(true, Ordering::SeqCst);
        for task in self.tasks {
            timeout(3 * LIMIT, task).await.unwrap().unwrap();
        }
        assert_eq!(self.inside.load(Ordering::SeqCst), 0);
    }
}

/// A minority dies in the middle of the load, then another minority hangs in its place, and both
/// come back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_tasks_go_on_without_a_minority() {
    for (count, away) in [(3, 1), (5, 2)] {
        let mut servers = start(count).await;
        let contenders = Contenders::start(&servers, 3, 3).await;
        contenders.takes(30).await;
        for server in &mut servers[..away] {
            server.kill();
        }
        contenders.takes(60).await;
        // The server stays away for a lease, because it has forgotten its grants.
        sleep(LEASE).await;
        for server in &mut servers[..away] {
            server.start_again().await;
        }
        contenders.takes(60).await;
        for server in &servers[count - away..] {
            server.stop_signal();
        }
        contenders.takes(30).await;
        for server in &servers[count - away..] {
            server.resume();
        }
        contenders.takes(60).await;
        contenders.end().await;
        // Commands that were on their way to the hanging servers arrived when these ran again.
        assert!(eventually(2 * LEASE + LIMIT / 4, || nothing_held(&servers)).await);
    }
}

/// The majority dies under a holder, and comes back empty after a lease, as operators must ensure.
/// Another client wants the lock all the while, and gets it after the holder knows of its loss.
#[tokio::test]
async fn a_holder_knows_of_its_loss_before_the_next_gets_in() {
    for dead in [true, false] {
        let mut servers = start(3).await;
        let redlock = client(&servers).await;
        let other = client(&servers).await;
        let guard = lock(&redlock, "m").await;
        let waiting = tokio::spawn(async move {
            let guard = lock(&other, "m").await;
            (Instant::now(), guard)
        });
        sleep(LEASE / 2).await;
        for server in &mut servers[1..] {
            if dead { server.kill() } else { server.stop_signal() }
        }
        let begun = Instant::now();
        let told = tokio::spawn(async move {
            guard.lost().await;
            (Instant::now(), guard)
        });
        tokio::time::sleep_until(begun + LEASE).await;
        for server in &mut servers[1..] {
            if dead { server.start_again().await } else { server.resume() }
        }
        let (lost, guard) = timeout(LIMIT, told).await.unwrap().unwrap();
        println!("told {:?} after the majority died", lost - begun);
        assert!(lost - begun <= LEASE + 500 * MS);
        let (acquired, other) = waiting.await.unwrap();
        assert!(lost < acquired);
        assert_eq!(guard.unlock().await.unwrap_err().kind(), ErrorKind::Lost);
        assert!(!other.is_lost());
        unlock(other).await;
        assert!(eventually(LEASE + LIMIT / 4, || nothing_held(&servers)).await);
    }
}
