//! Any setting with any time works over a server, or is refused with a clear error.

use proptest::{prelude::*, strategy::ValueTree, test_runner::TestRunner};

use crate::all_settings::{OF_LOCKS, any_picks, next_key, picks, time, use_cache, use_locks};
use crate::prelude::*;

const CASES: usize = 40;

/// Returns so many values of a strategy.
fn some<T: std::fmt::Debug>(strategy: impl Strategy<Value = T>) -> Vec<T> {
    let mut runner = TestRunner::default();
    let mut one = || strategy.new_tree(&mut runner).unwrap().current();
    (0..CASES).map(|_| one()).collect()
}

#[tokio::test]
async fn any_time_in_any_setting_of_a_cache_works_or_is_refused() {
    let server = RedisServer::start().await;
    let backend = testkit::open(server.url());
    for picks in some(any_picks()) {
        let words = format!("{picks:?}");
        use_cache(&backend, &next_key(), picks).await.expect(&words);
    }
}

/// A lock that is asked for twice waits, so these are few.
#[tokio::test]
async fn any_time_in_any_setting_of_a_lock_works_or_is_refused() {
    let server = RedisServer::start().await;
    let backend = testkit::open(server.url());
    for picks in some(picks(OF_LOCKS)).into_iter().take(CASES / 8) {
        let words = format!("{picks:?}");
        use_locks(&backend, &next_key(), picks).await.expect(&words);
    }
}

#[tokio::test]
async fn any_time_out_of_a_backend_works_or_is_refused() {
    let server = RedisServer::start().await;
    for (given, [command, connect, within]) in some((0..8_u32, [time(), time(), time()])) {
        let mut builder = testkit::builder().server(server.url());
        if given & 1 != 0 {
            builder = builder.command_timeout(command);
        }
        if given & 2 != 0 {
            builder = builder.connect_timeout(connect);
        }
        if given & 4 != 0 {
            builder = builder.replicas(1, within);
        }
        let words = format!("{given} {command:?} {connect:?} {within:?}");
        match builder.build() {
            Ok(backend) => {
                let cache = Cache::<u32>::builder(backend, "timeouts").build().unwrap();
                let load = cache.get_or_load("k", |_| async { Ok::<_, BoxError>(7) });
                assert_eq!(load.await.expect(&words), 7);
            }
            Err(error) => assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{words}: {error}"),
        }
    }
}

#[test]
fn wrong_servers_and_replicas_are_refused_at_once() {
    let (none, limit) = ([""; 0], Duration::from_millis(250));
    let one = || RedisBackend::builder().server("redis://127.0.0.1:1");
    let builder = RedisBackend::builder;
    for (what, builder) in [
        ("no node", builder().cluster(none)),
        ("a database of a cluster", builder().cluster(["redis://127.0.0.1:1/3"])),
        ("no URL of a node", builder().cluster(["redis://127.0.0.1:1", "http://x"])),
        ("TLS at one node", builder().cluster(["redis://127.0.0.1:1", "rediss://127.0.0.1:1"])),
        ("no sentinel", builder().sentinels(none, "flock")),
        ("no URL of a sentinel", builder().sentinels(["redis://127.0.0.1:1", "http://x"], "flock")),
        ("no replica", one().replicas(0, limit / 2)),
        ("a limit as long as that of a command", one().replicas(1, limit)),
        ("no time for replicas", one().replicas(1, Duration::ZERO)),
    ] {
        let error = builder.build().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{what}: {error}");
    }
}
