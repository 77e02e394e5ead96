//! Waiters for locks whose requests failed for a while, and the end of the trouble.

use crate::prelude::*;

const WAITERS: usize = 20;
/// The pauses of a waiter are up to a second long.
const BACK: Duration = Duration::from_millis(1200);
/// A busy machine may hold up the waiters at the end of one trouble.
const TROUBLES: usize = 3;

/// Waiters for free locks, which fail as long as the trouble lasts.
struct Waiters {
    raw: Raw,
    locked: JoinSet<Result<(), Error>>,
}

impl Waiters {
    async fn begin(server: &RedisServer, backend: RedisBackend) -> Self {
        let locks = Locks::new(backend, "bellwether");
        let mut locked = JoinSet::new();
        for at in 0..WAITERS {
            let lock = locks.mutex(format!("k{at}")).wait_limit(LIMIT);
            locked.spawn(async move { lock.lock().await?.unlock().await });
        }
        Self { raw: server.raw().await, locked }
    }

    /// Waits until the pauses between the requests of a waiter have grown.
    async fn fail(&mut self, code: &str) {
        let end = Instant::now() + LIMIT;
        while self.raw.errors(code).await < 7 * WAITERS {
            assert!(Instant::now() < end, "the waiters did not meet {code}");
        }
    }

    /// Returns how long it takes until all locks are back.
    async fn back(mut self) -> Result<Duration, Error> {
        assert_eq!(self.locked.len(), WAITERS);
        let begun = Instant::now();
        while let Some(locked) = timeout(LIMIT, self.locked.join_next()).await.unwrap() {
            locked.unwrap()?;
        }
        Ok(begun.elapsed())
    }
}

/// Asserts that all locks are back soon after one of a few troubles.
async fn are_back_soon(mut trouble: impl AsyncFnMut() -> Result<Duration, Error>) {
    let mut late = Vec::new();
    while late.len() < TROUBLES {
        let took = trouble().await;
        println!("all locks were back after {took:?}");
        if took.as_ref().is_ok_and(|took| *took < BACK) {
            return;
        }
        late.push(took);
    }
    panic!("all locks were back after {late:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn locks_are_back_soon_after_a_missing_right_is_given() {
    are_back_soon(async || {
        let server = RedisServer::start().await;
        let mut raw = server.raw().await;
        raw.set_user("app", &["~*", "&*", "+@all", "-eval", "-evalsha"]).await;
        let backend = testkit::open(server.url_of("app:secret", 0));
        let mut waiters = Waiters::begin(&server, backend).await;
        waiters.fail("NOPERM").await;
        raw.run::<()>(&["ACL", "SETUSER", "app", "+@all"]).await;
        waiters.back().await
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn locks_are_back_soon_after_a_server_has_loaded_its_data() {
    are_back_soon(async || {
        let arguments = ["--enable-debug-command", "yes", "--rdbcompression", "no"];
        let server = RedisServer::start_with(&arguments).await;
        let mut raw = server.raw().await;
        let value = "x".repeat(4 << 10);
        for at in 0..300 {
            raw.run::<()>(&["SET", &format!("junk-{at}"), &value]).await;
        }
        raw.config_set("loading-process-events-interval-bytes", "4096").await;
        // Microseconds for each key.
        raw.config_set("key-load-delay", "10000").await;
        let loading = tokio::spawn(async move { raw.run::<()>(&["DEBUG", "RELOAD"]).await });
        let mut probe = server.raw().await;
        while probe.try_run::<()>(&["GET", "k"]).await.is_ok() {}
        let mut waiters = Waiters::begin(&server, testkit::open(server.url())).await;
        waiters.fail("LOADING").await;
        loading.await.unwrap();
        waiters.back().await
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn locks_are_back_soon_after_writes_were_paused() {
    are_back_soon(async || {
        let server = RedisServer::start().await;
        let mut raw = server.raw().await;
        raw.run::<()>(&["CLIENT", "PAUSE", "2500", "WRITE"]).await;
        // The requests come to the usual time-out.
        let backend = RedisBackend::open(&server.url()).unwrap();
        let waiters = Waiters::begin(&server, backend).await;
        // A write of this client waits for the end of the pause.
        raw.run::<()>(&["SET", "k", "v"]).await;
        waiters.back().await
    })
    .await;
}
