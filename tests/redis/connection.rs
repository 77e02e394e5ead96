//! Servers die, hang, change their password and come back, and runtimes go away.

use std::{
    future::{Future, pending},
    pin::pin,
    sync::{Mutex, mpsc},
};

use bellwether::backend::Changes;
use futures_util::poll;
use testkit::Sentinels;
use tokio::runtime::{Builder, Runtime};

use crate::prelude::*;

/// The command time-out of tests that wait for it.
const TIME_OUT: Duration = Duration::from_millis(250);
/// The delay that a busy machine adds to a time-out.
const SLACK: Duration = Duration::from_secs(2);
/// The time in which a returned server is used again: a second of back-off, an attempt, and the
/// delay of a busy machine.
const RECOVERY: Duration = Duration::from_secs(4);

/// Returns a backend with the short command time-out, and with a connect time-out that no call may
/// take.
fn open(url: &str) -> RedisBackend {
    RedisBackend::builder()
        .server(url)
        .command_timeout(TIME_OUT)
        .connect_timeout(LIMIT)
        .build()
        .unwrap()
}

async fn works(backend: &RedisBackend) -> bool {
    backend.ping().await.is_ok()
}

/// Returns `true` if a channel has a subscriber.
async fn subscribed(server: &RedisServer) -> bool {
    !server.raw().await.pubsub_channels().await.is_empty()
}

/// Returns the fence of the next invalidation, and skips earlier wakes.
async fn invalidation(changes: &mut Changes) -> u64 {
    loop {
        match next(changes).await {
            Change::Invalidated(fence) => break fence,
            Change::Wake => {}
            other => panic!("the change is neither a wake nor an invalidation: {other:?}"),
        }
    }
}

/// Calls every operation once. Each must fail within the time-out.
async fn everything_fails(backend: &RedisBackend) -> Vec<BackendError> {
    let name = name("k");
    let claim = claim(&name);
    let grant = bellwether::backend::Grant::new(7);
    let mut errors = Vec::new();
    macro_rules! fails {
        ($($call:expr),+ $(,)?) => {$(
            let call = within_time_out($call).await;
            errors.push(call.expect_err(concat!(stringify!($call), " worked")));
        )+};
    }
    fails!(
        backend.get(&name),
        backend.claim(&claim, 0),
        backend.acquire(&claim),
        backend.renew(std::slice::from_ref(&claim)),
        backend.commit(&claim, &grant, &value("v"), Some(TTL)),
        backend.release(&claim),
        backend.edit(&name, &Edit::Put(value("v"), TTL), FENCE_LIFE),
        backend.edit(&name, &Edit::Invalidate, FENCE_LIFE),
        backend.changes(&name),
    );
    errors
}

async fn within_time_out<T>(call: impl Future<Output = T>) -> T {
    timeout(TIME_OUT + SLACK, call).await.expect("the call took longer than the command time-out")
}

#[tokio::test]
async fn a_missing_server_is_an_error_and_is_found_later() {
    let mut server = RedisServer::start().await;
    server.kill();
    let backend = open(&server.url());
    for error in everything_fails(&backend).await {
        assert_eq!(error.kind(), BackendErrorKind::Unavailable, "{error}");
    }
    assert_eq!(backend.ping().await.unwrap_err().kind(), ErrorKind::Backend);
    server.start_again().await;
    assert!(eventually(RECOVERY, || works(&backend)).await, "the server was not found");
}

#[tokio::test]
async fn a_killed_server_is_an_error_and_is_used_again_when_it_returns() {
    let mut server = RedisServer::start().await;
    let backend = testkit::open(server.url());
    let name = name("k");
    assert!(eventually(LIMIT, || works(&backend)).await);
    let mut changes = backend.changes(&name).await.unwrap();
    for _ in 0..3 {
        server.kill();
        everything_fails(&backend).await;
        server.start_again().await;
        assert!(eventually(RECOVERY, || works(&backend)).await, "the server was not used again");
        let held = claim(&name);
        granted(&backend, &held).await;
        assert!(backend.release(&held).await.unwrap());
        // A listener subscribes again, and was told to look meanwhile.
        assert_eq!(next(&mut changes).await, Change::Wake);
        assert!(eventually(LIMIT, || subscribed(&server)).await);
        let burnt = backend.edit(&name, &Edit::Invalidate, FENCE_LIFE).await.unwrap();
        assert_eq!(invalidation(&mut changes).await, burnt);
    }
}

/// A release is pushed while the push connection is broken, and is not repeated. The reconnect must
/// wake every listener.
#[tokio::test]
async fn a_broken_push_connection_wakes_its_listeners() {
    let server = RedisServer::start().await;
    let backend = testkit::open(server.url());
    assert!(eventually(LIMIT, || works(&backend)).await);
    let mut all = Vec::new();
    for at in 0..20 {
        all.push(backend.changes(&name(&format!("k{at}"))).await.unwrap());
    }
    let mut raw = server.raw().await;
    for _ in 0..3 {
        let killed: u32 = raw.run(&["CLIENT", "KILL", "TYPE", "pubsub"]).await;
        assert_eq!(killed, 1);
        // One wake when the connection breaks, and one when the subscriptions are restored.
        for _ in 0..2 {
            for changes in &mut all {
                assert_eq!(next(changes).await, Change::Wake);
            }
        }
    }
    let burnt = backend.edit(&name("k7"), &Edit::Invalidate, FENCE_LIFE).await.unwrap();
    assert_eq!(invalidation(&mut all[7]).await, burnt);
    drop(all);
    let silent = comes_true(LIMIT, async || raw.pubsub_channels().await.is_empty());
    assert!(silent.await, "a subscription is left behind");
}

/// A subscription that is pending on a broken connection delays no wake. The present listeners have
/// already missed pushes.
#[tokio::test]
async fn a_push_connection_that_breaks_while_it_subscribes_wakes_its_listeners() {
    let server = RedisServer::start().await;
    let proxy = Proxy::start(server.port());
    let backend = open(&proxy.url());
    let mut listening = backend.changes(&name("listening")).await.unwrap();
    let asked = proxy.once(|request| request.kind == "subscribe", Fault::Silence);
    let other = backend.clone();
    let asking = tokio::spawn(async move { other.changes(&name("asking")).await.is_ok() });
    assert!(
        eventually(LIMIT, || async { asked.count() == 1 }).await,
        "no subscription was requested"
    );
    // The confirmation does not arrive.
    sleep(20 * MS).await;
    assert!(!asking.is_finished());
    let cut = Instant::now();
    proxy.cut();
    assert!(matches!(next(&mut listening).await, Change::Wake));
    // A clock, because the listener would also wake when the pending subscription times out.
    assert!(cut.elapsed() < SLACK, "{:?}", cut.elapsed());
    asking.await.unwrap();
    // Afterwards pushes arrive again.
    let writer = testkit::open(server.url());
    let written = name("listening");
    let heard = async || {
        let fence = writer.edit(&written, &Edit::Invalidate, FENCE_LIFE).await.unwrap();
        // Earlier pushes come first, unless they were lost.
        let pushed = async { while listening.next().await != Change::Invalidated(fence) {} };
        timeout(TIME_OUT, pushed).await.is_ok()
    };
    assert!(comes_true(LIMIT, heard).await, "no push arrives any more");
}

/// The connection is open and the server is silent. Only the deadline of the client ends a call.
#[tokio::test]
async fn a_server_that_hangs_costs_each_call_its_time_out_at_most() {
    let server = RedisServer::start().await;
    let backend = open(&server.url());
    assert!(eventually(LIMIT, || works(&backend)).await);
    let listened = name("listened");
    let mut changes = backend.changes(&listened).await.unwrap();
    for _ in 0..2 {
        server.stop_signal();
        for error in everything_fails(&backend).await {
            let kind = error.kind();
            assert!(
                matches!(kind, BackendErrorKind::Unknown | BackendErrorKind::Unavailable),
                "{error}"
            );
        }
        server.resume();
        assert!(eventually(RECOVERY, || works(&backend)).await, "the server was not used again");
    }
    // A subscription that was requested during the hang may happen now. It does not stay.
    assert!(eventually(LIMIT, || subscribed(&server)).await);
    let writer = testkit::open(server.url());
    let burnt = writer.edit(&listened, &Edit::Invalidate, FENCE_LIFE).await.unwrap();
    assert_eq!(invalidation(&mut changes).await, burnt);
    let mut raw = server.raw().await;
    let only = async || raw.pubsub_channels().await == [listened.suffixed("c")];
    assert!(comes_true(LIMIT, only).await, "a subscription is left behind");
}

/// Each command waited for its own time-out, one after another.
#[tokio::test]
async fn commands_under_way_fail_together_when_their_server_hangs() {
    let limit = Duration::from_secs(2);
    let server = RedisServer::start().await;
    let builder = RedisBackend::builder().server(server.url());
    let backend = builder.command_timeout(limit).build().unwrap();
    backend.ping().await.unwrap();
    server.stop_signal();
    let failed = async |wait: Duration| {
        sleep(wait).await;
        assert!(backend.ping().await.is_err());
        Instant::now()
    };
    let (first, later) = tokio::join!(failed(Duration::ZERO), failed(limit / 2));
    assert!(later - first < limit / 4, "{:?}", later - first);
}

/// The reply came, and its caller looked for it later. Meanwhile the connection counted as silent.
#[tokio::test]
async fn a_caller_that_is_not_polled_ends_no_connection() {
    let server = RedisServer::start().await;
    let proxy = Proxy::start(server.port());
    let backend = open(&proxy.url());
    assert!(eventually(LIMIT, || works(&backend)).await);
    let connections = || proxy.counters().connections.load(Ordering::SeqCst);
    let before = connections();
    let mut held = pin!(backend.ping());
    assert!(poll!(held.as_mut()).is_pending());
    sleep(3 * TIME_OUT).await;
    held.await.unwrap();
    backend.ping().await.unwrap();
    assert_eq!(connections(), before);
}

/// After an authentication error, a connection manager of the client library never recovers.
#[tokio::test]
async fn the_backend_recovers_from_a_wrong_password() {
    let server = RedisServer::start_with(&["--requirepass", "old"]).await;
    let backend = testkit::open(server.url_of(":new", 0));
    for error in everything_fails(&backend).await {
        assert_eq!(error.kind(), BackendErrorKind::Unavailable, "{error}");
    }
    let error = backend.ping().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Backend);
    assert!(
        format!("{error:#}").contains("WRONGPASS"),
        "the error does not state its cause: {error}"
    );
    server.raw().await.config_set("requirepass", "new").await;
    assert!(eventually(RECOVERY, || works(&backend)).await, "the backend does not recover");
    // The push connection has a back-off of its own.
    let mut changes = None;
    let listens = async || {
        changes = backend.changes(&name("k")).await.ok();
        changes.is_some()
    };
    assert!(comes_true(RECOVERY, listens).await, "pushes do not recover");
    let mut changes = changes.unwrap();
    let burnt = backend.edit(&name("k"), &Edit::Invalidate, FENCE_LIFE).await.unwrap();
    assert_eq!(invalidation(&mut changes).await, burnt);
}

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

/// The connections are tasks of the runtime on which they were first needed. With `#[tokio::test]`
/// and a backend in a static, that runtime ends with the first test.
#[test]
fn a_second_runtime_takes_over_the_backend_of_the_first() {
    let first = runtime();
    let server = first.block_on(RedisServer::start());
    let backend = testkit::open(server.url());
    let name = name("k");
    let mut changes = first.block_on(async {
        assert!(eventually(LIMIT, || works(&backend)).await);
        backend.changes(&name).await.unwrap()
    });
    drop(first);
    for _ in 0..3 {
        let next_one = runtime();
        next_one.block_on(async {
            assert!(
                eventually(RECOVERY, || works(&backend)).await,
                "the backend does not work on the second runtime"
            );
            let mut anew = backend.changes(&name).await.unwrap();
            // A listener may have missed pushes, and is told to look.
            assert_eq!(next(&mut changes).await, Change::Wake);
            let burnt = backend.edit(&name, &Edit::Invalidate, FENCE_LIFE).await.unwrap();
            assert_eq!(invalidation(&mut anew).await, burnt);
            assert_eq!(invalidation(&mut changes).await, burnt);
        });
    }
}

/// The first runtime ends while another one is in the middle of its calls.
#[test]
fn a_runtime_that_ends_beside_another_costs_it_one_recovery() {
    let server = runtime().block_on(RedisServer::start());
    for _ in 0..10 {
        let backend = open(&server.url());
        let first = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        first.block_on(async { assert!(eventually(LIMIT, || works(&backend)).await) });
        let theirs = backend.clone();
        let other = std::thread::spawn(move || {
            runtime().block_on(async {
                let mut failed = false;
                for _ in 0..200 {
                    failed |= !works(&theirs).await;
                }
                let recovered = eventually(RECOVERY, || works(&theirs)).await;
                (failed, recovered)
            })
        });
        drop(first);
        let (_, recovered) = other.join().unwrap();
        assert!(recovered, "the other runtime does not recover");
    }
}

/// A runtime is slow to end: one of its connections is being made, and the callback for credentials
/// takes its time to end. Meanwhile another runtime uses the backend, and must have a connection
/// from then on.
#[test]
fn a_runtime_that_ends_slowly_takes_no_connection_from_another() {
    let first = runtime();
    let server = first.block_on(RedisServer::start());
    let (begun, has_begun) = mpsc::channel();
    let (end, ended) = mpsc::channel();
    let slow = Mutex::new(Some(SlowEnd { begun, ended: Mutex::new(ended) }));
    let asked = Arc::new(AtomicUsize::new(0));
    let calls = asked.clone();
    // The first call is for the connection for commands, and the second one for pushes.
    let credentials = move || {
        let is_second = calls.fetch_add(1, Ordering::SeqCst) == 1;
        let slow = is_second.then(|| slow.lock().unwrap().take().unwrap());
        async move {
            if slow.is_some() {
                pending::<()>().await;
            }
            drop(slow);
            Ok::<_, Infallible>(("default".to_owned(), String::new()))
        }
    };
    let builder = RedisBackend::builder().server(server.url()).credentials(credentials);
    let backend = builder.command_timeout(TIME_OUT / 4).build().unwrap();
    first.block_on(async {
        assert!(eventually(LIMIT, || works(&backend)).await);
        assert!(comes_true(LIMIT, async || asked.load(Ordering::SeqCst) >= 2).await);
    });
    let ending = std::thread::spawn(move || drop(first));
    has_begun.recv_timeout(LIMIT).expect("the callback does not end");
    runtime().block_on(async {
        let _ = eventually(SLACK, || works(&backend)).await;
        end.send(()).unwrap();
        ending.join().unwrap();
        assert!(
            eventually(RECOVERY, || works(&backend)).await,
            "the other runtime does not recover"
        );
        for _ in 0..10 {
            assert!(works(&backend).await, "the other runtime has lost its connection");
        }
    });
}

/// Says that its end begins, and ends when the test permits it.
struct SlowEnd {
    begun: mpsc::Sender<()>,
    ended: Mutex<mpsc::Receiver<()>>,
}

impl Drop for SlowEnd {
    fn drop(&mut self) {
        let _ = self.begun.send(());
        let _ = self.ended.lock().unwrap().recv_timeout(2 * LIMIT);
    }
}

/// An ACL forbids `ROLE`, so a replica is noticed only by its answers. Each write costs a
/// connection, and the pauses before the next one grow.
#[tokio::test]
async fn a_server_that_refuses_each_write_is_connected_to_ever_more_rarely() {
    let server = RedisServer::start().await;
    let mut raw = server.raw().await;
    raw.run::<()>(&["ACL", "SETUSER", "shop", "on", "nopass", "~*", "&*", "+@all", "-role"]).await;
    raw.run::<()>(&["REPLICAOF", "127.0.0.1", "1"]).await;
    let backend = open(&server.url_of("shop:any", 0));
    let mut connections = async || raw.number("stats", "total_connections_received:").await;
    let before = connections().await;
    let begun = Instant::now();
    while begun.elapsed() < SLACK {
        let write = backend.edit(&name("k"), &Edit::Invalidate, FENCE_LIFE).await;
        // Each write waits for the next connection, and gets the answer of the server.
        let error = write.unwrap_err().to_string();
        assert!(!error.contains("no connection"), "{error}");
        sleep(MS).await;
    }
    let made = connections().await - before;
    assert!(made >= 2, "the connection was not replaced");
    assert!(made <= 40, "{made} connections in 2 s");
}

/// Returns how long all connections have stood.
fn stood_for(backend: &RedisBackend) -> Option<Duration> {
    backend.connections().stood_for
}

#[test]
fn connections_that_ended_with_their_runtime_do_not_stand() {
    let first = runtime();
    let server = first.block_on(RedisServer::start());
    let backend = open(&server.url());
    assert_eq!(stood_for(&backend), None);
    first.block_on(async { assert!(eventually(LIMIT, || works(&backend)).await) });
    assert!(stood_for(&backend) > Some(Duration::ZERO));
    drop(first);
    assert_eq!(stood_for(&backend), Some(Duration::ZERO));
    runtime().block_on(async {
        assert!(eventually(RECOVERY, || works(&backend)).await);
        assert!(stood_for(&backend) > Some(Duration::ZERO));
    });
}

/// The drop of the last clone ends its connections.
#[tokio::test]
async fn a_dropped_backend_leaves_no_connection() {
    let server = RedisServer::start().await;
    let mut raw = server.raw().await;
    let mut connections = async || raw.number("clients", "connected_clients:").await;
    let before = connections().await;
    let builder = RedisBackend::builder().server(server.url());
    let backend = builder.command_timeout(LIMIT).build().unwrap();
    backend.ping().await.unwrap();
    let changes = backend.changes(&name("k")).await.unwrap();
    assert_eq!(connections().await, before + 2);
    drop((backend, changes));
    let closed = comes_true(LIMIT, async || connections().await <= before);
    assert!(closed.await, "a connection is left behind");
}

/// One node of a cluster was accepted as a plain server. Then two of three names failed after their
/// whole wait limit.
#[tokio::test]
async fn a_server_of_another_kind_is_refused_with_the_right_setting() {
    let cluster = Cluster::start(3, 0).await;
    let plain = &RedisServer::start().await;
    let sentinels = Sentinels::start(1).await;
    let node = cluster.nodes[0].url();
    let sentinel = sentinels.sentinels[0].url();
    let replica = sentinels.servers[1].url();
    let server = |url: &str| testkit::builder().server(url);
    let watched = |url: &str| testkit::builder().sentinels([url], Sentinels::MASTER);
    let of_cluster = |url: &str| testkit::builder().cluster([url]);
    for (builder, words) in [
        (server(&node), "a cluster: use `cluster`"),
        (server(&sentinel), "a sentinel: use `sentinels`"),
        (server(&replica), "a read-only replica"),
        (watched(&plain.url()), "no sentinel: use `server` or `cluster`"),
        (watched(&node), "no sentinel: use `server` or `cluster`"),
        (of_cluster(&plain.url()), "no node of a cluster: use `server` or `sentinels`"),
        (of_cluster(&sentinel), "no node of a cluster: use `server` or `sentinels`"),
    ] {
        let backend = builder.build().unwrap();
        let error = timeout(LIMIT, backend.ready()).await.unwrap().expect_err(words);
        assert_eq!(error.kind(), ErrorKind::Backend, "{error:#}");
        assert!(format!("{error:#}").contains(words), "{error:#}");
        // A lock tells the same, and not "MOVED".
        let lock = Locks::new(backend, "bellwether").mutex("m").wait_limit(MS);
        let error = lock.lock().await.unwrap_err();
        assert!(format!("{error:#}").contains(words), "{error:#}");
    }
    for right in [server(&plain.url()), watched(&sentinel), of_cluster(&node)] {
        right.build().unwrap().ready().await.unwrap();
    }
}
