//! The choice of the server, with sentinels whose answers the test decides.

use tokio::sync::oneshot;

use super::fake::{Fake, Says};
use crate::prelude::*;

/// A command time-out that no busy machine reaches.
const TIMEOUT: Duration = Duration::from_secs(1);

fn patient() -> RedisBackendBuilder {
    RedisBackend::builder().command_timeout(LIMIT)
}

async fn works(backend: &RedisBackend) -> bool {
    backend.ping().await.is_ok()
}

/// All are asked at once. The one that knows the master is asked alone while it answers, because
/// two that disagree would take turns.
#[tokio::test]
async fn one_sentinel_with_an_answer_is_enough_and_is_asked_alone_afterwards() {
    let server = RedisServer::start().await;
    let gone = RedisServer::start().await.url();
    let silent = Fake::start(Says::Silence).await;
    let ignorant = Fake::start(Says::Nothing).await;
    let knows = Fake::start(Says::Master(server.port())).await;
    let urls = [gone, silent.url(), ignorant.url(), knows.url()];
    let backend = patient().sentinels(&urls, "flock").build().unwrap();
    backend.ping().await.unwrap();
    let asked = async || ignorant.asked() >= 1;
    assert!(comes_true(LIMIT, asked).await, "not all are asked");
    let before = ignorant.asked();
    let asked_again = async || knows.asked() > 2;
    assert!(comes_true(LIMIT, asked_again).await, "the backend no longer asks for the master");
    server.raw().await.kill_clients("normal").await;
    assert!(comes_true(LIMIT, || works(&backend)).await);
    assert!(ignorant.asked() == before, "a sentinel without knowledge was asked again");
}

/// The first sentinel took the whole time of the first command, which failed, and so did the next.
#[tokio::test]
async fn a_first_sentinel_that_hangs_fails_no_command() {
    let server = RedisServer::start().await;
    let (silent, knows) =
        (Fake::start(Says::Silence).await, Fake::start(Says::Master(server.port())).await);
    let urls = [silent.url(), knows.url(), knows.url()];
    let builder = RedisBackend::builder().sentinels(&urls, "flock");
    let backend = builder.command_timeout(TIMEOUT).build().unwrap();
    let begun = Instant::now();
    backend.ping().await.unwrap();
    // A clock, because a command that waited for the silent sentinel would also end.
    assert!(begun.elapsed() < 2 * TIMEOUT, "{:?}", begun.elapsed());
    assert!(backend.acquire(&mutex_claim("k")).await.is_ok());
}

#[tokio::test]
async fn a_replica_is_refused_and_the_next_sentinel_is_asked() {
    let master = RedisServer::start().await;
    let port = master.port().to_string();
    let replica = RedisServer::start_with(&["--replicaof", "127.0.0.1", &port]).await;
    let stale = Fake::start(Says::Master(replica.port())).await;
    let alone = RedisBackend::builder().sentinels(&[stale.url()], "flock").build().unwrap();
    let error = alone.ping().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Backend);
    assert!(format!("{error:#}").contains("is a read-only replica"), "{error}");
    let current = Fake::start(Says::Master(master.port())).await;
    let builder = RedisBackend::builder().sentinels(&[stale.url(), current.url()], "flock");
    let backend = builder.command_timeout(TIMEOUT).build().unwrap();
    assert!(comes_true(LIMIT, || works(&backend)).await, "the backend stays with the replica");
    assert!(backend.acquire(&mutex_claim("k")).await.is_ok());
}

#[tokio::test]
async fn sentinels_without_an_answer_are_an_error_that_says_so() {
    let fake = Fake::start(Says::Nothing).await;
    let backend = RedisBackend::builder().sentinels(&[fake.url()], "flock").build().unwrap();
    let error = backend.ping().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Backend);
    assert!(format!("{error:#}").contains("does not know the master"), "{error}");
    let server = RedisServer::start().await;
    fake.say(Says::Master(server.port()));
    assert!(comes_true(LIMIT, || works(&backend)).await, "the master is not found later");
}

#[tokio::test]
async fn sentinels_and_master_have_credentials_of_their_own() {
    let server = RedisServer::start_with(&["--requirepass", "secret"]).await;
    let watched = Fake::start_with(Says::Master(server.port()), Some("watch:dog")).await;
    let url = watched.url_of("watch:dog");
    let master = "redis://default:secret@flock/3";
    let backend = patient().sentinels([&url], master).build().unwrap();
    backend.acquire(&mutex_claim("k")).await.unwrap();
    let mut raw = server.raw().await;
    raw.run::<()>(&["SELECT", "3"]).await;
    assert_eq!(raw.keys("*").await, ["t:l:{k}:f", "t:l:{k}:l"]);
    assert!(!format!("{backend:?}").contains("secret"));

    let without = RedisBackend::builder().sentinels(&[watched.url()], master).build().unwrap();
    let error = without.ping().await.unwrap_err();
    assert!(format!("{error:#}").contains("NOAUTH"), "{error}");
    let wrong = RedisBackend::builder().sentinels(&[url], "flock").build().unwrap();
    assert_eq!(wrong.ping().await.unwrap_err().kind(), ErrorKind::Backend);
}

/// The sentinels gave a master up, and the master does not know it yet. Its connections do not
/// break.
#[tokio::test]
async fn a_backend_leaves_a_living_master_that_was_given_up() {
    let old = RedisServer::start().await;
    let new = RedisServer::start().await;
    let fake = Fake::start(Says::Master(old.port())).await;
    let backend = patient().sentinels(&[fake.url()], "flock").build().unwrap();
    let held = mutex_claim("k");
    backend.acquire(&held).await.unwrap();
    let mut changes = backend.changes(&held.name).await.unwrap();
    fake.say(Says::Master(new.port()));
    let channel = "t:l:{k}:c".to_owned();
    let moved = async || new.raw().await.pubsub_channels().await.contains(&channel);
    assert!(comes_true(LIMIT, moved).await, "the subscription stays at the old master");
    // A listener is told to look, and a lease of the old master is not held at the new one.
    assert_eq!(changes.next().await, bellwether::backend::Change::Wake);
    let lost =
        async || backend.renew(std::slice::from_ref(&held)).await.unwrap() == [Renewal::NotHeld];
    assert!(comes_true(LIMIT, lost).await, "commands still go to the old master");
    assert!(old.raw().await.pubsub_channels().await.is_empty());

    // An unusable server does not replace the present one.
    let port = new.port().to_string();
    let replica = RedisServer::start_with(&["--replicaof", "127.0.0.1", &port]).await;
    backend.acquire(&held).await.unwrap();
    let asked = fake.asked();
    fake.say(Says::Master(replica.port()));
    let asked_again = async || fake.asked() >= asked + 4;
    assert!(comes_true(LIMIT, asked_again).await);
    assert_eq!(backend.renew(&[held]).await.unwrap(), [Renewal::Held]);
}

/// The host of the master is down and refuses nothing, so an attempt to connect to it lasts until
/// its time-out. Sentinels named another master meanwhile, and the attempt went on.
#[tokio::test]
async fn an_attempt_ends_when_the_sentinels_name_another_master() {
    let old = RedisServer::start().await;
    let new = RedisServer::start().await;
    let fake = Fake::start(Says::Master(old.port())).await;
    let builder = RedisBackend::builder().sentinels(&[fake.url()], "flock");
    let builder = builder.command_timeout(TIMEOUT).connect_timeout(10 * LIMIT);
    let backend = builder.build().unwrap();
    let name = mutex_claim("k").name;
    let _changes = backend.changes(&name).await.unwrap();
    backend.ping().await.unwrap();
    old.stop_signal();
    let attempts = async || {
        let error = backend.ping().await.unwrap_err();
        format!("{error:#}").contains("there is no connection yet")
    };
    assert!(comes_true(LIMIT, attempts).await, "no attempt is under way");
    fake.say(Says::Master(new.port()));
    assert!(comes_true(LIMIT, || works(&backend)).await, "commands wait for the old master");
    let channel = "t:l:{k}:c".to_owned();
    let moved = async || new.raw().await.pubsub_channels().await.contains(&channel);
    assert!(comes_true(LIMIT, moved).await, "the subscription waits for the old master");
}

/// The watch runs on the runtime of the backend that came first, and serves those of others.
#[tokio::test]
async fn a_watch_goes_on_when_its_runtime_has_ended() {
    let old = RedisServer::start().await;
    let new = RedisServer::start().await;
    let fake = Fake::start(Says::Master(old.port())).await;
    let [first, second] = [0, 1].map(|_| patient().sentinels(&[fake.url()], "flock").build());
    let first = first.unwrap();
    let second = second.unwrap();
    let (began, beginning) = oneshot::channel();
    let (end, ending) = oneshot::channel::<()>();
    let other = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            first.ping().await.unwrap();
            began.send(()).unwrap();
            let _ = ending.await;
        });
    });
    beginning.await.unwrap();
    second.ping().await.unwrap();
    drop(end);
    other.join().unwrap();
    fake.say(Says::Master(new.port()));
    let held = mutex_claim("k");
    let moved =
        async || second.acquire(&held).await.is_ok() && !new.raw().await.keys("*").await.is_empty();
    assert!(comes_true(LIMIT, moved).await, "the backend stays at the old master");
}

/// Each call has a runtime of its own. The first one of the second runtime went to the old master,
/// and ended before the watch had its answer.
#[tokio::test]
async fn a_watch_that_starts_again_answers_before_a_command_is_sent() {
    let mut old = RedisServer::start().await;
    let new = RedisServer::start().await;
    let fake = Fake::start(Says::Master(old.port())).await;
    let backend = patient().sentinels(&[fake.url()], "flock").build().unwrap();
    let first = backend.clone();
    let other = tokio::task::spawn_blocking(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(first.ping()).unwrap();
    });
    other.await.unwrap();
    fake.say(Says::Master(new.port()));
    old.kill();
    backend.ping().await.unwrap();
}

/// The answer was late, and named the server of before the switch. From then on its sentinel was
/// the one that is asked alone, so a second later the backend went back.
#[tokio::test]
async fn a_late_answer_ends_no_trust_in_the_sentinel_that_announced_a_switch() {
    let old = RedisServer::start().await;
    let new = RedisServer::start().await;
    let late = Fake::start(Says::Master(old.port())).await;
    let knows = Fake::start(Says::Nothing).await;
    let urls = [late.url(), knows.url()];
    let backend = patient().sentinels(&urls, "flock").build().unwrap();
    backend.ping().await.unwrap();
    let listened = async || knows.listeners() > 0;
    assert!(comes_true(LIMIT, listened).await, "the backend does not listen");
    knows.say(Says::Master(new.port()));
    late.say(Says::MasterLate(old.port()));
    let before = late.asked();
    let asked = async || late.asked() > before;
    assert!(comes_true(LIMIT, asked).await, "the backend does not ask");
    knows.announce();
    let before = knows.asked();
    let asked_alone = async || knows.asked() > before + 3;
    assert!(comes_true(LIMIT, asked_alone).await, "the old sentinel is trusted again");
    backend.acquire(&mutex_claim("k")).await.unwrap();
    assert!(!new.raw().await.keys("*").await.is_empty(), "the backend is back at the old master");
}

/// The master that died counts no more when the sentinels name another one.
#[tokio::test]
async fn a_master_that_was_replaced_is_no_broken_connection() {
    let mut old = RedisServer::start().await;
    let new = RedisServer::start().await;
    let fake = Fake::start(Says::Master(old.port())).await;
    let backend = patient().sentinels(&[fake.url()], "flock").build().unwrap();
    backend.ping().await.unwrap();
    let stand = async || backend.connections().stood_for > Some(Duration::ZERO);
    assert!(stand().await);
    old.kill();
    let is_broken = async || !stand().await;
    assert!(comes_true(LIMIT, is_broken).await, "a broken connection counts as one that stands");
    fake.say(Says::Master(new.port()));
    assert!(comes_true(LIMIT, || works(&backend)).await, "the new master is not found");
    assert!(comes_true(LIMIT, stand).await, "the old master counts as a broken connection");
}

/// The watch of the sentinels ends with its runtime, and so do the connections. No master is known
/// then, and the waiters must be woken all the same.
#[tokio::test]
async fn a_listener_of_a_master_is_woken_when_its_runtime_has_ended() {
    let server = RedisServer::start().await;
    let fake = Fake::start(Says::Master(server.port())).await;
    let backend = patient().sentinels(&[fake.url()], "flock").build().unwrap();
    let first = backend.clone();
    let other = tokio::task::spawn_blocking(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(first.changes(&name("k"))).unwrap()
    });
    let mut changes = other.await.unwrap();
    assert_eq!(timeout(LIMIT, changes.next()).await.unwrap(), Change::Wake);
    let mut anew = backend.changes(&name("k")).await.unwrap();
    let burnt = backend.edit(&name("k"), &Edit::Invalidate, FENCE_LIFE).await.unwrap();
    assert_eq!(next(&mut anew).await, Change::Invalidated(burnt));
}
