//! Faults of the server, and of the connections to it.

use std::slice::from_ref;

use testkit::{
    primitives::{Asked, Guard, Pair, Primitive},
    proxy::Request,
};

use crate::prelude::*;

pub const LEASE: Duration = Duration::from_millis(2000);
/// The command time-out. Commands are not answered in some of these tests, and a busy machine must
/// not cause a time-out in the others.
pub const ANSWER: Duration = Duration::from_millis(700);

fn through(url: &str, lease: Duration) -> Asked {
    let backend = RedisBackend::builder().server(url).command_timeout(ANSWER).build();
    Asked::of(backend.unwrap(), "k", lease)
}

/// Checks that only fences are left, each with an end, and no subscription.
pub async fn nothing_is_left(server: &RedisServer) {
    let mut raw = server.raw().await;
    let mut keys = Vec::new();
    let mut channels = Vec::new();
    let clean = comes_true(LIMIT, async || {
        (keys, channels) = (raw.keys("*").await, raw.all_channels().await);
        keys.iter().all(|key| key.ends_with(":f")) && channels.is_empty()
    });
    assert!(clean.await, "keys or channels are left behind: {keys:?}, {channels:?}");
    for key in keys {
        assert_ne!(raw.pttl(&key).await, -1, "{key} never ends");
    }
}

/// A held primitive, and its rival that waits for it.
pub struct Scene {
    pub held: Guard,
    pub waiting: JoinHandle<Guard>,
}

pub async fn scene(pair: Pair, servers: &[RedisServer], a: &Asked, b: &Asked) -> Scene {
    let held = (pair.one.take)(a.clone()).await.unwrap();
    let mut raws = join_all(servers.iter().map(RedisServer::raw)).await;
    let before = executed(&mut raws).await;
    let asked = b.clone();
    let waiting = tokio::spawn(async move { (pair.rival.take)(asked).await.unwrap() });
    // After this many scripts, the rival has asked, subscribed and asked again.
    let looked = async || executed(&mut raws).await >= before + 2;
    assert!(comes_true(LIMIT, looked).await, "the rival does not ask");
    Scene { held, waiting }
}

/// Returns the number of scripts that were called by their digests so far.
async fn executed(raws: &mut [Raw]) -> u64 {
    let mut executed = 0;
    for raw in raws {
        executed += raw.scripts_called().await;
    }
    executed
}

impl Scene {
    /// Lets a server hang for longer than the lease. The loss is reported meanwhile, and the rival
    /// gets nothing.
    pub async fn outlast(&self, server: &RedisServer) {
        server.stop_signal();
        let hung = Instant::now();
        if self.held.is_watched() {
            timeout(LIMIT, self.held.lost()).await.expect("the loss is not reported");
            assert!(hung.elapsed() <= LEASE + 500 * MS, "{:?}", hung.elapsed());
        }
        assert!(!self.waiting.is_finished());
        sleep((LEASE + 100 * MS).saturating_sub(hung.elapsed())).await;
        server.resume();
    }

    /// Checks that the loss is reported before the rival gets the lock. Both are released.
    async fn lost_before_the_rival_has_it(self, within: Duration) {
        let begun = Instant::now();
        let Self { held, waiting } = self;
        if held.is_watched() {
            timeout(LIMIT, held.lost()).await.expect("the loss is not reported");
        }
        let got = timeout(LIMIT, waiting).await.expect("the rival never gets the lock").unwrap();
        let took = begun.elapsed();
        assert!(took < within, "the rival got the lock after {took:?}");
        let error = held.give_back().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
        got.give_back().await.unwrap();
    }

    /// Releases the lock, and checks that the rival gets it within a time.
    pub async fn handed_over(self, within: Duration) {
        let Self { held, waiting } = self;
        assert!(!held.is_lost());
        assert!(!waiting.is_finished(), "the lock has two holders");
        let begun = Instant::now();
        held.give_back().await.unwrap();
        let got = timeout(LIMIT, waiting).await.expect("the rival never gets the lock").unwrap();
        let took = begun.elapsed();
        assert!(took < within, "the rival got the lock after {took:?}");
        got.give_back().await.unwrap();
    }
}

pub async fn primitives_survive_a_server_that_hangs_beyond_the_lease(pair: Pair) {
    let server = RedisServer::start().await;
    let a = through(&server.url(), LEASE);
    let b = through(&server.url(), LEASE);
    let scene = scene(pair, from_ref(&server), &a, &b).await;
    scene.outlast(&server).await;
    scene.lost_before_the_rival_has_it(3 * LEASE).await;
    nothing_is_left(&server).await;
}

pub async fn primitives_survive_a_server_that_is_killed_and_starts_empty(pair: Pair) {
    let mut server = RedisServer::start().await;
    let a = through(&server.url(), LEASE);
    let b = through(&server.url(), LEASE);
    let Scene { held, waiting } = scene(pair, from_ref(&server), &a, &b).await;
    server.restart().await;
    // The server does not keep its data, so there may be two holders. The loss is reported at the
    // first contact, which is the next renewal.
    let begun = Instant::now();
    if held.is_watched() {
        timeout(LIMIT, held.lost()).await.expect("the loss is not reported");
        assert!(begun.elapsed() < LEASE, "{:?}", begun.elapsed());
    }
    let got = timeout(LIMIT, waiting).await.expect("the rival never gets the lock").unwrap();
    // Either backend may connect first. Until then, its calls fail because the server is not
    // reachable.
    let told = comes_true(LIMIT, async || {
        held.renew().await.is_err_and(|error| error.kind() == ErrorKind::Lost)
    });
    assert!(told.await, "the loss is not reported");
    assert_eq!(held.give_back().await.unwrap_err().kind(), ErrorKind::Lost);
    got.give_back().await.unwrap();
    nothing_is_left(&server).await;
}

pub async fn primitives_survive_a_server_that_is_killed_and_starts_with_its_data(pair: Pair) {
    let mut server = RedisServer::start_with(&["--appendonly", "yes", "--appendfsync", "no"]).await;
    let lease = 4 * LEASE;
    let a = through(&server.url(), lease);
    let b = through(&server.url(), lease);
    let scene = scene(pair, from_ref(&server), &a, &b).await;
    server.kill();
    server.start_again().await;
    // The lock is held as before. The first call after a restart may meet the broken connection.
    let kept = || async { scene.held.renew().await.is_ok() };
    assert!(eventually(LIMIT, kept).await, "the lock is not held any more");
    // The rival may hear of the lock before its connection for commands stands again.
    let other = Asked { name: "other".to_owned(), ..b };
    let back = || async { (pair.rival.attempt)(other.clone()).await.is_ok() };
    assert!(eventually(LIMIT, back).await, "the rival's process does not connect again");
    scene.handed_over(LEASE).await;
    nothing_is_left(&server).await;
}

pub async fn primitives_survive_lost_pushes(pair: Pair) {
    let server = RedisServer::start().await;
    let proxy = Proxy::start(server.port());
    proxy.set_push_fault(Some(PushFault::Drop));
    let a = through(&server.url(), LEASE);
    let b = through(&proxy.url(), LEASE);
    let scene = scene(pair, from_ref(&server), &a, &b).await;
    // The waiter asks again at the expected end of the lease.
    scene.handed_over(LEASE + 500 * MS).await;
    nothing_is_left(&server).await;
}

async fn without(pair: Pair, right: &str) {
    let server = RedisServer::start().await;
    let mut raw = server.raw().await;
    raw.set_user("app", &["~*", "&*", "+@all", right]).await;
    let url = server.url_of("app:secret", 0);
    let a = through(&url, LEASE);
    let b = through(&url, LEASE);
    let scene = scene(pair, from_ref(&server), &a, &b).await;
    scene.handed_over(LEASE + 500 * MS).await;
    nothing_is_left(&server).await;
}

pub async fn a_user_that_may_not_publish_is_served(pair: Pair) {
    without(pair, "-publish").await;
}

pub async fn a_user_that_may_not_subscribe_is_served(pair: Pair) {
    without(pair, "-subscribe").await;
}

/// A holder keeps its lock and can release it. A new claim is refused in time, or granted.
pub async fn primitives_survive_a_full_server(pair: Pair) {
    let server = RedisServer::start().await;
    let mut raw = server.raw().await;
    let a = through(&server.url(), LEASE);
    let b = through(&server.url(), LEASE);
    let scene = scene(pair, from_ref(&server), &a, &b).await;
    raw.config_set("maxmemory", "1").await;
    for _ in 0..4 {
        sleep(LEASE / 2).await;
        scene.held.renew().await.unwrap();
    }
    assert!(!scene.waiting.is_finished(), "the lock has two holders");
    scene.held.give_back().await.unwrap();
    let begun = Instant::now();
    let late = Asked { name: "other".to_owned(), ..through(&server.url(), LEASE) }.within(500 * MS);
    match (pair.one.take)(late).await {
        Ok(guard) => guard.give_back().await.unwrap(),
        Err(error) => assert_eq!(error.kind(), ErrorKind::Backend, "{error}"),
    }
    assert!(begun.elapsed() < 1500 * MS, "{:?}", begun.elapsed());
    raw.config_set("maxmemory", "0").await;
    let got = timeout(LIMIT, scene.waiting).await.expect("the rival never gets the lock").unwrap();
    got.give_back().await.unwrap();
    nothing_is_left(&server).await;
}

/// Tries until the server answers. On a busy machine, the connection may take longer than a command
/// may.
async fn tried(primitive: Primitive, asked: &Asked) -> Option<Guard> {
    for _ in 0..50 {
        match (primitive.attempt)(asked.clone()).await {
            Ok(got) => return got,
            Err(error) => assert_eq!(error.kind(), ErrorKind::Backend, "{error}"),
        }
    }
    panic!("the server does not answer");
}

fn acquires(request: &Request) -> bool {
    request.kind.starts_with("acquire")
}

fn releases(request: &Request) -> bool {
    request.kind.starts_with("release")
}

/// The second try carries the same owner, and is recognised.
pub async fn an_acquisition_with_a_lost_answer_is_recognised(pair: Pair) {
    let server = RedisServer::start().await;
    for fault in [Fault::Silence, Fault::Swallow, Fault::Delay(2 * ANSWER), Fault::Cut] {
        let proxy = Proxy::start(server.port());
        let asked = through(&proxy.url(), LEASE);
        let hits = proxy.once(acquires, fault);
        let begun = Instant::now();
        let guard = timeout(LIMIT, (pair.one.take)(asked)).await.unwrap().unwrap();
        let took = begun.elapsed();
        assert!(hits.count() == 1 && took < LEASE, "{fault:?}: {took:?}");
        let rival = through(&server.url(), LEASE);
        assert!(tried(pair.rival, &rival).await.is_none(), "the lock has two holders");
        guard.give_back().await.unwrap();
        let begun = Instant::now();
        let next = timeout(LIMIT, (pair.rival.take)(rival)).await.unwrap().unwrap();
        let took = begun.elapsed();
        assert!(took < LEASE + 500 * MS, "{fault:?}: {took:?}");
        next.give_back().await.unwrap();
    }
    nothing_is_left(&server).await;
}

/// The caller is told that the outcome is unknown, and the release happens all the same.
pub async fn a_release_with_a_lost_answer_still_happens(pair: Pair) {
    let server = RedisServer::start().await;
    for fault in [Fault::Silence, Fault::Cut, Fault::CutBefore] {
        let proxy = Proxy::start(server.port());
        let asked = through(&proxy.url(), LEASE);
        let guard = (pair.one.take)(asked).await.unwrap();
        let hits = proxy.once(releases, fault);
        let error = guard.give_back().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Backend, "{fault:?}: {error}");
        assert_eq!(hits.count(), 1);
        let begun = Instant::now();
        let rival = through(&server.url(), LEASE);
        let next = timeout(LIMIT, (pair.rival.take)(rival)).await.unwrap().unwrap();
        let took = begun.elapsed();
        assert!(took < LEASE + 500 * MS, "{fault:?}: {took:?}");
        next.give_back().await.unwrap();
    }
    nothing_is_left(&server).await;
}

/// One command after the other meets a connection that ends before or after the command was done.
pub async fn primitives_survive_connections_that_are_cut_at_each_command(pair: Pair) {
    let server = RedisServer::start().await;
    let proxy = Proxy::start(server.port());
    let a = through(&proxy.url(), LEASE);
    let b = through(&proxy.url(), LEASE);
    for fault in [Fault::Cut, Fault::CutInHalf, Fault::CutBefore] {
        proxy.when_times(6, |request| acquires(request) || releases(request), fault);
        let Scene { held, waiting } = scene(pair, from_ref(&server), &a, &b).await;
        assert!(!waiting.is_finished(), "the lock has two holders");
        let _ = held.give_back().await;
        let got = timeout(LIMIT, waiting).await.expect("the rival never gets the lock").unwrap();
        let _ = got.give_back().await;
        proxy.clear();
    }
    nothing_is_left(&server).await;
}

/// A key without an end or of another type is reported at once. It is neither waited for nor
/// overwritten.
pub async fn a_foreign_key_is_reported_and_left_alone(pair: Pair) {
    let server = RedisServer::start().await;
    let mut raw = server.raw().await;
    let key = format!("bellwether:l:{{k}}:{}", pair.key);
    let wrong: [&[&str]; 3] =
        [&["SET", &key, "1"], &["HSET", &key, "field", "1"], &["RPUSH", &key, "1"]];
    let endless: &[&str] = match pair.key {
        "r" | "p" => &["ZADD", &key, "inf", "foreign"],
        _ => &["SET", &key, "0123456789abcdef0123456789abcdef:1"],
    };
    for words in wrong.into_iter().chain([endless]) {
        raw.run::<()>(words).await;
        let before: Vec<u8> = raw.run(&["DUMP", &key]).await;
        let asked = through(&server.url(), LEASE);
        let begun = Instant::now();
        for error in [
            (pair.one.take)(asked.clone()).await.unwrap_err(),
            (pair.one.attempt)(asked.clone()).await.unwrap_err(),
        ] {
            assert_eq!(error.kind(), ErrorKind::Backend, "{error}");
            let source = std::error::Error::source(&error).unwrap();
            let backend = source.downcast_ref::<BackendError>().unwrap();
            assert_eq!(backend.kind(), bellwether::error::BackendErrorKind::Foreign, "{error}");
            assert!(
                format!("{error:#}").contains(&key),
                "the error does not state the key: {error}"
            );
        }
        assert!(begun.elapsed() < LEASE, "{words:?}: {:?}", begun.elapsed());
        let now: Vec<u8> = raw.run(&["DUMP", &key]).await;
        assert_eq!(now, before, "the foreign key was overwritten");
        assert_eq!(raw.pttl(&key).await, -1, "the foreign key was given an end");
        let cleared = match pair.key {
            "l" => asked.locks.mutex("k").fair().force_unlock().await,
            "p" => asked.locks.semaphore("k", 1).force_unlock().await,
            _ => asked.locks.rw_lock("k").force_unlock().await,
        };
        assert!(cleared.unwrap());
        (pair.one.take)(asked).await.unwrap().give_back().await.unwrap();
    }
    nothing_is_left(&server).await;
}
