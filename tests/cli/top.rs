//! `top` shows what eight processes do, and which lock is stuck.

use super::{
    fleet::{Fleet, HOLDER, STUCK},
    printed, run,
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
