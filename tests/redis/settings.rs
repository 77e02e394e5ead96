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

const URL: &str = "redis://127.0.0.1:1";

#[test]
fn a_wrong_setting_is_refused_at_once_with_what_was_given_and_what_to_do() {
    let none = [""; 0];
    let second = Duration::from_secs(1);
    let one = || RedisBackend::builder().server(URL);
    let builder = RedisBackend::builder;
    for (builder, said) in [
        (builder(), "call one of `server`, `sentinels` and `cluster`"),
        (one().cluster([URL]), "more than one place of servers"),
        (one().sentinels([URL], "m"), "more than one place of servers"),
        (builder().cluster([URL]).sentinels([URL], "m"), "more than one place of servers"),
        (builder().server("http://user:secret@host"), "`http:`"),
        (builder().server("redis://user:secret@host:port"), "`redis:`"),
        (builder().server("user:secret@host"), "has no scheme"),
        (builder().server("rediss://user:secret@host#insecure"), "name the file of your CA"),
        (one().command_timeout(Duration::ZERO), "`command_timeout` is 0"),
        (one().connect_timeout(Duration::ZERO), "`connect_timeout` is 0"),
        (one().command_timeout(Duration::MAX), "`command_timeout` is 18446744073709551615"),
        (one().connect_timeout(Duration::MAX), "at most 24 h"),
        (one().replicas(0, second / 8), "give 1 or more"),
        (one().replicas(1, second / 4), "250ms to confirm"),
        (one().replicas(1, Duration::ZERO), "0ns to confirm"),
        (builder().sentinels(none, "m"), "no sentinel was given"),
        (builder().sentinels([URL], ""), "the name or URL of the master"),
        (builder().sentinels([URL], "redis+unix:///m"), "a socket file"),
        (builder().sentinels([URL, "http://user:secret@b"], "m"), "Redis URL 2 of 2,"),
        (builder().cluster(none), "no node of the cluster was given"),
        (builder().cluster(["redis://127.0.0.1:1/3"]), "without a database"),
        (builder().cluster(["redis+unix:///tmp/s"]), "host and port"),
        (builder().cluster([URL, "http://x"]), "URL 2 of 2"),
        (builder().cluster([URL, "rediss://127.0.0.1:1"]), "all with `rediss://`"),
    ] {
        let error = builder.build().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
        assert!(error.to_string().contains(said), "{error}");
        let text = format!("{error:#} {error:?}");
        assert!(!text.contains("secret"), "{text}");
    }
}

#[test]
fn neither_builder_nor_backend_shows_a_password() {
    let builder = RedisBackend::builder().server("redis://:secret@127.0.0.1:1");
    let text = format!("{builder:?} {:?}", builder.clone().build().unwrap());
    assert!(text.contains("command_timeout") && !text.contains("secret"), "{text}");
}

/// Reads a configuration file.
fn read(text: &str) -> Result<RedisBackendBuilder, String> {
    serde_json::from_str(text).map_err(|error| error.to_string())
}

#[test]
fn each_setting_of_a_file_can_be_read() {
    for text in [
        r#"{"server": "redis://127.0.0.1:1"}"#,
        r#"{"cluster": ["redis://127.0.0.1:1", "redis://127.0.0.1:2"], "push_limit": 10}"#,
        r#"{"sentinels": ["redis://127.0.0.1:1"], "master": "redis://m/3"}"#,
    ] {
        read(text).unwrap().build().unwrap();
    }
    let text = r#"{"server": "redis://127.0.0.1:1", "command_timeout": "2s",
        "connect_timeout": "5m", "replicas": {"count": 2, "within": "250ms"}}"#;
    let shown = format!("{:?}", read(text).unwrap());
    let expected = ["command_timeout: 2s", "connect_timeout: Some(300s)", "count: 2", "250ms"];
    assert!(expected.iter().all(|expected| shown.contains(expected)), "{shown}");
}

#[test]
fn a_mistake_in_a_file_is_told_without_a_password() {
    for (text, said) in [
        ("{}", "give one of"),
        (r#"{"server": "redis://:8675309@a", "cluster": ["redis://b"]}"#, "give one of"),
        (r#"{"server": "redis://:8675309@a", "comand_timeout": "2s"}"#, "`comand_timeout`"),
        (r#"{"server": "redis://:8675309@a", "command_timeout": 250}"#, "\"250ms\""),
        (r#"{"sentinels": [], "mister": "8675309"}"#, "`mister`"),
        (r#"{"sentinels": ["redis://:8675309@a"]}"#, "`master`"),
        (r#"{"server": "redis://:8675309@a", "master": "8675309"}"#, "`master`"),
        (r#"{"server": "redis://a", "server": "redis://:8675309@a"}"#, "`server`"),
        (r#""redis://:8675309@a""#, "a map of settings"),
        (r#"{"sentinels": "redis://:8675309@a", "master": "m"}"#, "a list of texts"),
        (r#"{"cluster": "redis://:8675309@a"}"#, "a list of texts"),
        (r#"{"cluster": ["redis://a", ["redis://:8675309@a"]]}"#, "a list of texts"),
        (r#"{"server": ["redis://:8675309@a"]}"#, "a text in quotes"),
        (r#"{"sentinels": [], "master": 8675309}"#, "in quotes"),
    ] {
        let told = read(text).unwrap_err();
        assert!(told.contains(said) && !told.contains("8675309"), "{text}: {told}");
    }
    for time in ["", "5", "s", "-5s", "1.5s", "5 s", "5S", "5s3", "99999999999999999h"] {
        let text = format!(r#"{{"server": "redis://:8675309@a", "command_timeout": "{time}"}}"#);
        let told = read(&text).unwrap_err();
        assert!(told.contains("\"250ms\"") && !told.contains("8675309"), "{time}: {told}");
    }
}
