//! `top` shows what eight processes do, and which lock is stuck.

use bellwether::{Cache, RedisBackend};
use testkit::{RedisServer, Sentinels};

use super::{
    NAMESPACE,
    fleet::{Fleet, HOLDER, STUCK},
    printed, run, run_at,
    terminal::{Terminal, draw},
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_busiest_keys_and_the_stuck_lock_are_on_the_screen() {
    let fleet = Fleet::start().await;
    let terminal = Terminal::open(&fleet.server.url());
    terminal.enter("bellwether top");
    let key = "GET  shop /products/1";
    let is_whole = |screen: &str| {
        let rows = || screen.lines();
        let lock = rows().find(|row| row.starts_with(STUCK)).unwrap_or_default();
        let busiest = rows().find(|row| row.starts_with(key)).unwrap_or_default();
        let rate = busiest.split_whitespace().last().and_then(|rate| rate.parse().ok());
        screen.contains("8 processes")
            && (lock.contains(HOLDER) && lock.contains(" 3  "))
            && rate.is_some_and(|rate: u32| rate > 10)
    };
    let screen = terminal.comes_to("the whole fleet", is_whole).await;
    let address = format!("127.0.0.1:{}/0", fleet.server.port());
    draw("top", "bellwether top", &screen.replace(&address, "10.0.0.1:6379"));
    terminal.press("C-c");
    // The first screen is as it was.
    terminal.comes_to("the shell", |screen| !screen.contains("processes")).await;
    let json = printed(&run(&fleet.server, &["top", "--seconds", "3", "--json"]).await, 0);
    let last = json.lines().last().unwrap();
    assert!(last.contains(r#""processes":8"#) && last.contains(key), "{json}");
}

fn answering(backend: RedisBackend) -> Cache<u64> {
    let cache = Cache::builder(backend, NAMESPACE).build().unwrap();
    tokio::spawn(cache.answer_top());
    cache
}

/// A screen is left running in an incident, so it outlives one of the server.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_screen_stays_while_the_server_is_away() {
    let mut server = RedisServer::start().await;
    let _cache = answering(testkit::open(server.url()));
    let terminal = Terminal::open(&server.url());
    terminal.enter("bellwether top");
    terminal.shows("1 processes").await;
    server.kill();
    terminal.shows("the server does not answer: ").await;
    server.start_again().await;
    let is_back = |screen: &str| screen.contains("1 processes") && !screen.contains("not answer");
    terminal.comes_to("the process", is_back).await;
    terminal.press("C-c");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn processes_behind_sentinels_answer() {
    let sentinels = Sentinels::start(0).await;
    let builder = RedisBackend::builder().sentinels(sentinels.urls(), Sentinels::MASTER);
    let _cache = answering(builder.build().unwrap());
    let urls = sentinels.urls().join(",");
    let top = ["top", "--master", Sentinels::MASTER, "--seconds", "6", "--json"];
    let json = printed(&run_at(&urls, &top).await, 0);
    assert!(json.lines().any(|line| line.contains(r#""processes":1"#)), "{json}");
}
