//! Faults of the server itself, under load from two processes.
//!
//! No request fails because of them. The slowest request takes at most the load, a command time-out
//! and 200 ms. Within three seconds of the return of the server, everything works as before,
//! without help.

use super::*;
use super::{
    load::{Load, Outcome, TAKES},
    log,
    pings::Pings,
};

/// The requests in a second to each of the two caches.
const RATE: u32 = 60;
const TIME_OUT: Duration = Duration::from_millis(250);
const SLOWEST: Duration = TAKES.saturating_add(TIME_OUT).saturating_add(Duration::from_millis(200));
/// A lease that is gone tells nobody of its end. A waiter looks after 5 s, and may find the next
/// load under way then.
const LOOKS: Duration = Duration::from_secs(10);
/// The longest pause between two attempts to connect.
const RECONNECTS: Duration = Duration::from_secs(1);
/// A number of answers that takes about a second and a half.
const A_WHILE: usize = 180;

/// Two caches under load, over a server.
struct Scene {
    server: RedisServer,
    caches: [Cache<String>; 2],
    load: Load,
    lines: usize,
    /// How often the connections end, each with a line at the begin and the end of an outage.
    outages: usize,
    what: &'static str,
}

impl Scene {
    async fn begin(what: &'static str, arguments: &[&str]) -> Self {
        let server = RedisServer::start_with(arguments).await;
        let credentials = if arguments.contains(&"--requirepass") { ":secret" } else { "" };
        Self::of(what, server, credentials).await
    }

    async fn of(what: &'static str, server: RedisServer, credentials: &str) -> Self {
        let url = server.url_of(credentials, 0);
        let caches = [connected(&url).await, connected(&url).await];
        let lines = log::lines();
        let load = Load::start(&caches, RATE);
        let scene = Self { server, caches, load, lines, outages: 1, what };
        scene.load.answers(A_WHILE / 3).await;
        scene
    }

    /// Ends the scene after the server is back or the fault is over. From here on the caches must
    /// recover by themselves.
    async fn end(self) -> Outcome {
        self.end_within(SLOWEST).await
    }

    /// Ends the scene in the same way. No request may have taken longer than `bound`.
    async fn end_within(self, bound: Duration) -> Outcome {
        let mut raw = self.server.raw().await;
        let [a, b] = &self.caches;
        self.load.event("end");
        let (took, _) = works_again(&mut raw, [a, b], RECOVERY).await;
        self.load.answers(A_WHILE / 3).await;
        let outcome = self.load.stop().await;
        println!("{}: as before after {took:?}; {}", self.what, outcome.summary());
        outcome.assert_no_error();
        // The log has lines for the beginning and the end of the trouble, not for each request.
        let lines = log::lines() - self.lines;
        println!("{}: {lines} lines in the log", self.what);
        let most = (2 * self.caches.len() * self.outages).max(49);
        assert!(lines <= most, "{lines} lines for {} requests", outcome.answers.len());
        let slowest = outcome.assert_slowest(bound);
        println!("{}: the slowest took {slowest:?} of {bound:?}", self.what);
        outcome
    }
}

macro_rules! multi {
    ($($(#[$doc:meta])* async fn $name:ident() $body:block)*) => {$(
        $(#[$doc])*
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $name() {
            // The lines of the log are those of all tests.
            let _turn = turn_alone().await;
            $body
        }
    )*};
}

multi! {
    async fn requests_survive_a_server_that_hangs() {
        let scene = Scene::begin("hanging", &[]).await;
        scene.load.event("stop");
        scene.server.stop_signal();
        scene.load.answers(A_WHILE).await;
        scene.load.event("resume");
        scene.server.resume();
        assert!(scene.end().await.count(Source::Degraded) > 0);
    }

    /// The lease of a load that others wait for is gone as well, and with it the list of those that
    /// wait.
    async fn requests_survive_a_server_whose_data_is_flushed() {
        let scene = Scene::begin("flushed", &[]).await;
        let mut raw = scene.server.raw().await;
        for _ in 0..20 {
            raw.run::<()>(&["FLUSHALL"]).await;
            scene.load.answers(7).await;
        }
        scene.end_within(SLOWEST + LOOKS).await;
    }

    async fn requests_survive_a_full_server() {
        let scene = Scene::begin("full", &["--maxmemory-policy", "noeviction"]).await;
        let mut raw = scene.server.raw().await;
        raw.config_set("maxmemory", "1").await;
        scene.load.answers(A_WHILE).await;
        raw.config_set("maxmemory", "0").await;
        assert!(scene.end().await.count(Source::Degraded) > 0);
    }

    /// Leases are evicted with the other keys, so two processes may load at once. The older value
    /// is not stored.
    async fn requests_survive_a_server_that_evicts_leases() {
        let scene = Scene::begin("evicting", &["--maxmemory-policy", "allkeys-lru"]).await;
        let mut raw = scene.server.raw().await;
        let used = raw.number("memory", "used_memory:").await;
        raw.config_set("maxmemory", &(used + (256 << 10)).to_string()).await;
        let junk = "x".repeat(8 << 10);
        for at in 0..400 {
            // A write may be refused for a moment when there is nothing left to evict.
            let _ = raw.try_run::<()>(&["SET", &format!("junk-{at}"), &junk]).await;
        }
        scene.load.answers(A_WHILE).await;
        assert!(raw.number("stats", "evicted_keys:").await > 0, "the server evicted nothing");
        raw.config_set("maxmemory", "0").await;
        scene.end_within(SLOWEST + LOOKS).await;
    }

    /// The connection for pushes may be back later than the one for commands. A caller that waits
    /// for another process looks then.
    async fn requests_survive_a_password_that_is_changed_and_changed_back() {
        let scene = Scene::begin("password", &["--requirepass", "secret"]).await;
        let mut raw = scene.server.raw().await;
        scene.load.event("password");
        raw.config_set("requirepass", "other").await;
        for kind in ["normal", "pubsub"] {
            raw.kill_clients(kind).await;
        }
        scene.load.answers(A_WHILE).await;
        raw.config_set("requirepass", "secret").await;
        assert!(scene.end_within(SLOWEST + LOOKS).await.count(Source::Degraded) > 0);
    }

    /// There is still one load for a key, because the waiters poll.
    async fn a_user_that_may_not_subscribe_is_served() {
        without("-subscribe").await;
    }

    /// The answer to the first commit tells a process that no pushes will come.
    async fn a_user_that_may_not_publish_is_served() {
        without("-publish").await;
    }

    /// A lease that was held at the beginning of the fault outlasts it. The other process waits
    /// until the holder is connected again, and releases it.
    async fn requests_survive_a_server_that_becomes_a_replica_for_a_while() {
        let scene = Scene::begin("read-only", &[]).await;
        let mut raw = scene.server.raw().await;
        scene.load.event("replica");
        raw.run::<()>(&["REPLICAOF", "127.0.0.1", "1"]).await;
        scene.load.answers(A_WHILE).await;
        raw.run::<()>(&["REPLICAOF", "NO", "ONE"]).await;
        assert!(scene.end_within(SLOWEST + RECONNECTS).await.count(Source::Degraded) > 0);
    }
}

async fn user(raw: &mut Raw, rights: &[&str]) {
    raw.set_user("app", &[&["~*", "&*", "+@all"], rights].concat()).await;
}

async fn without(right: &'static str) {
    let server = RedisServer::start().await;
    let pings = Pings::start(server.url());
    let mut raw = server.raw().await;
    user(&mut raw, &[]).await;
    let scene = Scene::of(right, server, "app:secret").await;
    user(&mut raw, &[right]).await;
    if right == "-subscribe" {
        raw.kill_clients("pubsub").await;
    }
    scene.load.answers(2 * A_WHILE).await;
    user(&mut raw, &[]).await;
    // Without pushes that say so, a waiter learns of the end of a load when it looks.
    let look = if right == "-publish" { LOOKS } else { Duration::ZERO };
    let outcome = scene.end_within(SLOWEST + look).await;
    assert_eq!(outcome.degraded_beside(&pings.silences()), 0);
}
