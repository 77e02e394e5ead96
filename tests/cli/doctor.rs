//! `doctor` finds what is wrong with a server, and says what to do.

use testkit::{Cluster, RedisServer, Sentinels};

use super::{
    PROGRAM, printed, run, run_at,
    terminal::{Terminal, draw},
};

/// Returns the lines of the report with a verdict.
fn with<'a>(report: &'a str, verdict: &str) -> Vec<&'a str> {
    report.lines().filter(|line| line.trim_start().starts_with(verdict)).collect()
}

#[tokio::test]
async fn a_server_that_fits_is_good() {
    let server = RedisServer::start().await;
    let terminal = Terminal::open(&server.url());
    let (report, code) = terminal.run("bellwether doctor").await;
    assert_eq!((code, with(&report, "BAD").len()), (0, 0), "{report}");
    for what in ["version", "role", "eviction", "scripts", "clock", "for caches", "for locks"] {
        assert!(with(&report, "good").iter().any(|line| line.contains(what)), "{what}: {report}");
    }
    // What it tried ends by itself. The last fence of a lock is kept for a day, under one name.
    let mut raw = server.raw().await;
    for key in raw.keys("*").await {
        let is_fence = key == "shop:l:{bellwether-doctor}:f";
        let most = if is_fence { 24 * 3_600_000 } else { 30_000 };
        assert!(raw.pttl(&key).await <= most, "{key}");
    }
}

#[tokio::test]
async fn a_server_that_evicts_is_bad() {
    let memory = ["--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"];
    let server = RedisServer::start_with(&memory).await;
    let terminal = Terminal::open(&server.url());
    let (report, code) = terminal.run("bellwether doctor").await;
    assert_eq!(code, 1, "{report}");
    let bad = with(&report, "BAD");
    assert!(bad.len() == 1 && bad[0].contains("allkeys-lru"), "{report}");
    assert!(report.contains("-> set `maxmemory-policy noeviction`"), "{report}");
    let address = format!("127.0.0.1:{}/0", server.port());
    draw(
        "doctor",
        "bellwether doctor redis://10.0.0.1:6379",
        &report.replace(&address, "10.0.0.1:6379"),
    );
}

#[tokio::test]
async fn a_user_without_the_rights_is_told_which() {
    let server = RedisServer::start().await;
    let rule = ["ACL", "SETUSER", "app", "on", ">secret", "~*", "&*", "+@all", "-zadd", "-info"];
    server.raw().await.run::<()>(&rule).await;
    let report = printed(&run_at(&server.url_of("app:secret", 0), &["doctor"]).await, 1);
    assert!(!report.contains("secret"), "{report}");
    let bad = with(&report, "BAD");
    assert!(bad.len() == 1 && bad[0].contains("rights") && bad[0].contains("zadd"), "{report}");
    assert!(with(&report, "fair").iter().any(|line| line.contains("INFO")), "{report}");
    // The namespace is one that the user may not use.
    let rule = ["ACL", "SETUSER", "app", "resetkeys", "~other:*", "+@all"];
    server.raw().await.run::<()>(&rule).await;
    let report = printed(&run_at(&server.url_of("app:secret", 0), &["doctor"]).await, 1);
    assert_eq!(with(&report, "BAD").len(), 2, "{report}");
}

#[tokio::test]
async fn a_server_that_is_away_is_one_line() {
    let mut server = RedisServer::start().await;
    server.kill();
    let report = printed(&run(&server, &["doctor"]).await, 1);
    assert!(report.contains("BAD") && report.contains("check that the server runs"), "{report}");
    let json = printed(&run(&server, &["doctor", "--json"]).await, 1);
    assert!(json.contains(r#""verdict":"BAD""#), "{json}");
}

#[tokio::test]
async fn nodes_of_a_cluster_and_replicas_are_told_apart() {
    let cluster = Cluster::start(3, 0).await;
    let url = cluster.urls().remove(0);
    let report = printed(&run_at(&url, &["doctor"]).await, 1);
    assert!(report.contains("give `--cluster`"), "{report}");
    let urls = cluster.urls().join(",");
    let report = printed(&run_at(&urls, &["doctor", "--cluster"]).await, 0);
    let nodes = cluster.urls().len();
    assert_eq!(report.matches("3 masters, 16384 of 16384 slots").count(), nodes, "{report}");
    let locked = printed(&run_at(&urls, &["locks", "--cluster"]).await, 0);
    assert!(locked.contains("no lock is held"), "{locked}");
}

#[tokio::test]
async fn a_sentinel_names_its_master() {
    let sentinels = Sentinels::start(1).await;
    let url = sentinels.urls().remove(0);
    let report = printed(&run_at(&url, &["doctor"]).await, 1);
    assert!(report.contains("name its master by `--master`"), "{report}");
    let report = printed(&run_at(&url, &["doctor", "--master", "nobody"]).await, 1);
    assert!(report.contains("no master of this name"), "{report}");
}

#[tokio::test]
async fn the_cause_is_named_and_no_rights_that_do_not_help() {
    let server = RedisServer::start_with(&["--requirepass", "secret"]).await;
    let without = printed(&run(&server, &["doctor"]).await, 1);
    assert!(without.contains("the server asks for a password"), "{without}");
    assert!(!without.contains("permit"), "{without}");
    let wrong = printed(&run_at(&server.url_of(":wr0ng", 0), &["doctor"]).await, 1);
    assert!(wrong.contains("mend the user or the password"), "{wrong}");
    assert!(!wrong.contains("wr0ng"), "{wrong}");
    let plain = RedisServer::start().await;
    let report = printed(&run(&plain, &["doctor", "--master", "shop"]).await, 1);
    assert!(report.contains("no sentinel, but a standalone server"), "{report}");
    assert_eq!(with(&report, "BAD").len(), 1, "{report}");
    let cluster = Cluster::start(3, 0).await;
    let report = printed(&run_at(&cluster.urls()[0], &["doctor"]).await, 1);
    assert_eq!(with(&report, "BAD").len(), 1, "{report}");
    assert!(report.contains("a node of a cluster") && report.contains("not tried"), "{report}");
}

/// A server without RESP3 is older than Redis 6.
#[tokio::test]
async fn a_server_that_is_too_old_is_told_apart() {
    let server = RedisServer::start_with(&["--rename-command", "HELLO", ""]).await;
    let report = printed(&run(&server, &["doctor"]).await, 1);
    assert!(report.contains("older than Redis 6"), "{report}");
    let locks = run(&server, &["locks"]).await;
    let words = String::from_utf8_lossy(&locks.stderr).into_owned();
    assert!(words.contains("older than Redis 6"), "{words}");
}

#[tokio::test]
async fn what_the_user_may_not_see_is_not_good() {
    let server = RedisServer::start().await;
    server.raw().await.set_user("app", &["~*", "&*", "+@all", "-info"]).await;
    let report = printed(&run_at(&server.url_of("app:secret", 0), &["doctor"]).await, 0);
    for what in ["version", "role", "eviction", "memory"] {
        assert!(
            with(&report, "fair")
                .iter()
                .any(|line| line.contains(what) && line.contains("not known")),
            "{what}: {report}"
        );
    }
    assert!(!report.contains("0 B"), "{report}");
}

/// Any part of a URL that cannot be read may be a password.
#[tokio::test]
async fn no_output_has_a_password() {
    let mut away = RedisServer::start().await;
    away.kill();
    let port = away.port();
    for (url, code, expected) in [
        ("redis+unix:///no.sock?pass=secret", 1, "redis+unix:///no.sock"),
        (&format!("redis://:secret@127.0.0.1:{port}"), 1, "redis://127.0.0.1:"),
        (&format!("redis://:12,secret@127.0.0.1:{port}"), 2, "%2C"),
        ("redis://:sec,ret@localhost", 2, "%2C"),
        ("shop:secret@localhost", 2, "has no scheme; put `redis://` in front of it"),
        ("redis://:secret@localhost:x", 1, "a URL that cannot be read"),
        ("http://secret@localhost", 1, "a URL that cannot be read"),
    ] {
        for json in [&[][..], &["--json"]] {
            for command in [&["doctor"][..], &["locks"], &["top", "--seconds", "0"]] {
                let output = run_at(url, &[command, json].concat()).await;
                let text = [&output.stdout[..], &output.stderr].concat();
                let text = String::from_utf8_lossy(&text);
                assert!(!text.contains("secret") && !text.contains("sec,ret"), "{url}: {text}");
                if command == ["doctor"] {
                    assert_eq!(output.status.code(), Some(code), "{url}: {text}");
                    assert!(text.contains(expected), "{url}: {text}");
                }
            }
        }
    }
}

#[test]
fn completions_and_a_manual_page_name_each_command() {
    for arguments in
        [&["completions", "bash"][..], &["completions", "zsh"], &["completions", "fish"], &["man"]]
    {
        let output = std::process::Command::new(PROGRAM).args(arguments).output().unwrap();
        let text = printed(&output, 0);
        for command in ["doctor", "locks", "top", "explain", "unlock", "invalidate", "clear"] {
            assert!(text.contains(command), "{arguments:?} lacks {command}");
        }
    }
}

#[tokio::test]
async fn wrong_arguments_are_explained() {
    for arguments in [&["dcotor"][..], &["explain"], &["invalidate"], &[]] {
        let output = std::process::Command::new(PROGRAM).args(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(String::from_utf8_lossy(&output.stderr).contains("Usage: "), "{arguments:?}");
    }
    // A script reads why, too.
    let server = RedisServer::start().await;
    let url = server.url();
    let two = format!("{url},{url}");
    for (url, arguments) in [
        (&url, &["dcotor"][..]),
        (&url, &["locks", "--namespace", "a:b"]),
        (&url, &["top", "--namespace", "a:b"]),
        (&url, &["explain", ""]),
        (&two, &["locks"]),
        (&two, &["unlock", "k", "--yes"]),
        (&"localhost".to_owned(), &["locks"]),
    ] {
        let json = printed(&run_at(url, &[arguments, &["--json"]].concat()).await, 2);
        assert!(json.starts_with(r#"{"error":""#) && json.lines().count() == 1, "{json}");
    }
}
