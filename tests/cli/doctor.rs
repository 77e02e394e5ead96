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
async fn wrong_arguments_are_explained() {
    for arguments in [&["dcotor"][..], &["explain"], &["invalidate"], &[]] {
        let output = std::process::Command::new(PROGRAM).args(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(String::from_utf8_lossy(&output.stderr).contains("Usage: "), "{arguments:?}");
    }
}
