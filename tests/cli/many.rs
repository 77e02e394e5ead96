//! `locks` with so many locks that the search takes a while.

use std::time::{Duration, Instant};

use bellwether::Locks;
use testkit::RedisServer;

use super::{NAMESPACE, printed, run, terminal::Terminal};

const LOCKS: usize = 10_000;

/// Writes leases and fences as the scripts do, of a holder that lives for minutes.
async fn hold(server: &RedisServer) {
    let mut raw = server.raw().await;
    let write = "for at = 1, tonumber(ARGV[1]) do \
                 local name = 'shop:l:{lock:' .. at .. '}:' \
                 local fence = string.format('%016.0f', 1795884564172715 + at) \
                 redis.call('SET', name .. 'l', string.rep('0', 31) .. '1:' .. fence .. ':pod-7', \
                 'PX', 600000) \
                 redis.call('SET', name .. 'f', fence, 'PX', 600000) end";
    raw.run::<()>(&["EVAL", write, "0", &LOCKS.to_string()]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_terminal_shows_a_first_page_and_the_progress_of_a_long_search() {
    let server = RedisServer::start().await;
    hold(&server).await;
    let terminal = Terminal::open_sized(&server.url(), 100, 24);
    let begun = Instant::now();
    terminal.enter("bellwether locks > /dev/null");
    terminal.shows("locks found so far").await;
    terminal.press("C-c");
    // Behind the rows are lines that explain a column.
    terminal.enter("clear; bellwether locks | tail -3");
    terminal.comes_to("a row", |screen| screen.lines().any(|line| line.contains("pod-7"))).await;
    let whole = begun.elapsed();
    terminal.enter("clear; bellwether locks");
    let begun = Instant::now();
    let page = terminal.shows("of the locks that were found so far").await;
    let first = begun.elapsed();
    assert!(page.lines().filter(|line| line.contains("pod-7")).count() >= 15, "{page}");
    assert!(first < whole, "{first:?} of {whole:?}");
    terminal.press("C-c");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_of_many_locks_is_listed_once() {
    let server = RedisServer::start().await;
    hold(&server).await;
    let listed = printed(&run(&server, &["locks"]).await, 0);
    let rows = listed.lines().filter(|line| line.contains("pod-7"));
    let mut names: Vec<_> = rows.map(|line| line.split(' ').next()).collect();
    assert_eq!(names.len(), LOCKS);
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), LOCKS);
}

/// A search of 60,000 keys takes seconds, and so does the pause behind it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_rows_of_the_screen_are_of_now_whatever_a_search_takes() {
    let server = RedisServer::start_with(&["--enable-debug-command", "local"]).await;
    server.raw().await.run::<()>(&["DEBUG", "POPULATE", "60000", "some:other:key"]).await;
    let here = Locks::new(testkit::open(server.url()), NAMESPACE).owner("pod-7");
    let guard = here.mutex("import").lock().await.unwrap();
    let terminal = Terminal::open(&server.url());
    terminal.enter("bellwether top");
    let is_listed = |screen: &str| screen.contains("import") && screen.contains("of now");
    terminal.comes_to("a list that is refreshed", is_listed).await;
    guard.unlock().await.unwrap();
    let unlocked = Instant::now();
    let is_gone = |screen: &str| !screen.contains("import") && screen.contains("as of a search");
    terminal.comes_to("a screen without the lock", is_gone).await;
    assert!(unlocked.elapsed() < Duration::from_secs(5), "{:?}", unlocked.elapsed());
    terminal.press("C-c");
}
