//! Properties of latches in a Redis server alone: memory, commands, and foreign keys.

use bellwether::backend::{Owner, Store};

use crate::prelude::*;

fn open(server: &RedisServer) -> RedisBackend {
    testkit::open(server.url())
}

fn name(key: &str) -> Name {
    Name::new(&Namespace::standard(), Family::Lock, &Key::from(key), 512).unwrap()
}

/// A refusal that stays was asked for again until the wait limit, which is 30 s by default.
async fn set_is_refused_at_once(backend: &RedisBackend, said: &str) {
    let latch = Locks::new(backend.clone(), "bellwether").latch("refused").wait_limit(100 * LIMIT);
    let set = tokio::time::timeout(LIMIT, latch.set(3)).await;
    let error = set.expect("the refused call goes on").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Backend);
    let told = format!("{error:#}");
    assert!(told.contains("was not set") && told.contains(said), "{told}");
}

#[tokio::test]
async fn a_latch_that_may_not_be_set_is_refused_at_once() {
    let server = RedisServer::start().await;
    server.raw().await.set_user("app", &["+@all", "-hset", "~*", "&*"]).await;
    let backend = testkit::open(server.url_of("app:secret", 0));
    set_is_refused_at_once(&backend, "an ACL forbids a command").await;
}

/// A process must be able to count its steps on a full server. Each step of a latch adds a few
/// bytes to the key that was set earlier.
#[tokio::test]
async fn steps_are_counted_on_a_full_server_and_nothing_is_set() {
    let server = RedisServer::start().await;
    let backend = open(&server);
    let mut raw = server.raw().await;
    let other = name("other");
    let name = name("k");
    assert!(backend.set_latch(&name, Owner::fresh(), 3, TTL).await.unwrap());
    raw.config_set("maxmemory", "1").await;
    let error = backend.set_latch(&other, Owner::fresh(), 3, TTL).await.unwrap_err();
    assert_eq!(error.kind(), BackendErrorKind::Refused, "{error}");
    set_is_refused_at_once(&backend, "OOM").await;
    let id = Owner::fresh();
    for (id, told, left) in
        [(id, 2, 2), (id, 2, 2), (Owner::fresh(), 1, 1), (Owner::fresh(), 0, 0), (id, 2, 0)]
    {
        assert_eq!(backend.count_down(&name, id, 1).await.unwrap().unwrap().left, told);
        assert_eq!(backend.latch(&name).await.unwrap().unwrap().left, left);
    }
    assert_eq!(raw.keys("*").await, [name.suffixed("n")]);
    assert!(raw.pttl(&name.suffixed("n")).await > 100_000);
    assert!(backend.clear_latch(&name).await.unwrap());
    assert_eq!(raw.keys("*").await, [""; 0]);
}

#[tokio::test]
async fn a_foreign_key_is_reported_and_left_alone_until_the_latch_is_cleared() {
    let server = RedisServer::start().await;
    let backend = open(&server);
    let latch = Locks::new(backend.clone(), "bellwether").latch("line\r\nbreak");
    let mut raw = server.raw().await;
    let name = name("line\r\nbreak");
    let key = name.suffixed("n");
    let whole = ["HSET", &key, "left", "7", "set", "ab", "ttl", "60000"];
    let foreign: [(&[&str], bool); 6] = [
        (&["SET", &key, "7"], true),
        (&["RPUSH", &key, "left", "7"], true),
        (&["HSET", &key, "field", "value"], true),
        (&["HSET", &key, "left", "many", "set", "ab", "ttl", "60000"], true),
        (&whole[..6], true),
        // One of ours, but for its end.
        (&whole, false),
    ];
    for (words, ends) in foreign {
        raw.run::<()>(words).await;
        if ends {
            raw.run::<()>(&["PEXPIRE", &key, "60000"]).await;
        }
        let before: Vec<u8> = raw.run(&["DUMP", &key]).await;
        let errors = [
            backend.set_latch(&name, Owner::fresh(), 1, TTL).await.unwrap_err(),
            backend.count_down(&name, Owner::fresh(), 1).await.unwrap_err(),
            backend.latch(&name).await.unwrap_err(),
        ];
        for error in errors {
            assert_eq!(error.kind(), BackendErrorKind::Foreign, "{words:?}: {error}");
        }
        // The front does not try again, and does not wait.
        for error in [latch.set(1).await.unwrap_err(), latch.wait().await.unwrap_err()] {
            assert_eq!(error.kind(), ErrorKind::Backend, "{words:?}: {error}");
        }
        assert_eq!(raw.run::<Vec<u8>>(&["DUMP", &key]).await, before, "{words:?} was touched");
        assert!(latch.clear().await.unwrap());
        assert!(latch.set(1).await.unwrap(), "{words:?}");
        assert!(latch.clear().await.unwrap());
    }
}

#[tokio::test]
async fn each_step_is_one_command_and_a_wait_is_four() {
    let server = RedisServer::start().await;
    let (here, there) =
        (Locks::new(open(&server), "bellwether"), Locks::new(open(&server), "bellwether"));
    let here = here.latch("k");
    let there = there.latch("k");
    // The connections are in place after this.
    there.set(1).await.unwrap();
    assert!(there.count_down().await.is_ok() && here.clear().await.unwrap());
    let mut monitor = server.monitor().await;
    here.set(2).await.unwrap();
    here.count_down().await.unwrap();
    here.left().await.unwrap();
    assert_eq!(commands(monitor.calls_from_clients().await), ["EVALSHA"; 3]);
    let waiter = tokio::spawn(async move {
        there.wait().await.unwrap();
        // A late waiter asks once.
        there.wait().await
    });
    // A look, the subscription, another look.
    let mut sent = Vec::new();
    while sent.len() < 3 {
        sent.extend(commands(monitor.calls_from_clients().await));
    }
    assert_eq!(sent, ["EVALSHA", "SUBSCRIBE", "EVALSHA"]);
    here.count_down().await.unwrap();
    waiter.await.unwrap().unwrap();
    let mut raw = server.raw().await;
    let silent = comes_true(LIMIT, async || raw.pubsub_channels().await.is_empty());
    assert!(silent.await, "a subscription is left behind");
    let mut sent = commands(monitor.calls_from_clients().await);
    sent.sort();
    // The last step, the look after the push, the look of the late waiter, and the end of the
    // subscription.
    assert_eq!(sent, ["EVALSHA", "EVALSHA", "EVALSHA", "UNSUBSCRIBE"]);
    assert_eq!(raw.keys("*").await, [name("k").suffixed("n")]);
}

/// A finished latch keeps its steps for those whose answer was lost. A step that comes too late to
/// count adds nothing.
#[tokio::test]
async fn a_finished_latch_grows_no_more_and_ends() {
    let server = RedisServer::start().await;
    let latch = Locks::new(open(&server), "bellwether").latch("k").ttl(TTL);
    let mut raw = server.raw().await;
    let key = name("k").suffixed("n");
    latch.set(200).await.unwrap();
    let steps = (0..199).map(|_| latch.count_down());
    futures_util::future::try_join_all(steps).await.unwrap();
    assert_eq!(raw.run::<u32>(&["HLEN", &key]).await, 202, "a step is not remembered");
    for _ in 0..3 {
        assert_eq!(latch.count_down().await.unwrap(), 0);
        assert_eq!(raw.run::<u32>(&["HLEN", &key]).await, 203);
    }
    let ends = raw.pttl(&key).await;
    assert!((100_000..=120_000).contains(&ends), "{ends}");
    raw.age(TTL).await;
    assert_eq!(latch.wait().await.unwrap_err().kind(), ErrorKind::NotSet);
    assert_eq!(raw.keys("*").await, [""; 0]);
}

/// The server restarts without its data. The waiter learns that the latch is gone, and does not
/// wait for a zero that no step can reach.
#[tokio::test]
async fn a_waiter_is_told_when_the_server_has_forgotten_the_latch() {
    let mut server = RedisServer::start().await;
    // The backend has the usual time-outs, because this test depends on them.
    let latch = Locks::new(RedisBackend::open(&server.url()).unwrap(), "bellwether").latch("k");
    latch.set(2).await.unwrap();
    latch.count_down().await.unwrap();
    let waiter = tokio::spawn({
        let latch = latch.clone();
        async move { latch.wait().await }
    });
    let mut raw = server.raw().await;
    assert!(comes_true(LIMIT, async || !raw.pubsub_channels().await.is_empty()).await);
    server.restart().await;
    assert_eq!(waiter.await.unwrap().unwrap_err().kind(), ErrorKind::NotSet);
    assert_eq!(latch.count_down().await.unwrap_err().kind(), ErrorKind::NotSet);
    raw = server.raw().await;
    assert_eq!(raw.keys("*").await, [""; 0]);
}

/// The step learns that no push can be sent. The waiters of its process poll from then on.
#[tokio::test]
async fn waiters_of_the_same_process_are_told_without_the_right_to_publish() {
    let server = RedisServer::start().await;
    let mut raw = server.raw().await;
    raw.set_user("app", &["~*", "&*", "+@all", "-publish"]).await;
    let latch = Locks::new(testkit::open(server.url_of("app:secret", 0)), "bellwether").latch("k");
    latch.set(1).await.unwrap();
    let waiter = tokio::spawn({
        let latch = latch.clone();
        async move { latch.wait().await }
    });
    assert!(comes_true(LIMIT, async || !raw.pubsub_channels().await.is_empty()).await);
    let begun = Instant::now();
    assert_eq!(latch.count_down().await.unwrap(), 0);
    waiter.await.unwrap().unwrap();
    // A clock, because the promise is how late a waiter without pushes may be.
    assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
}
