//! The demo as a page, in a real browser and by plain HTTP.
#![allow(missing_docs, unreachable_pub, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod browser;

use std::{
    io::{BufRead, BufReader},
    process::{Child, Stdio},
};

use reqwest::{Response, StatusCode};
use testkit::{LIMIT, comes_true};

use self::browser::{Browser, HOME};

/// The demo ends when this is dropped.
struct Demo {
    child: Child,
    url: String,
}

impl Demo {
    fn start() -> Self {
        let command = testkit::server_command(env!("CARGO_BIN_EXE_hotspot"));
        let mut command = command.expect("the demo is built");
        command.arg("--web").stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = testkit::spawn_server(command).expect("the demo can be run");
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let url = line.split_whitespace().find(|word| word.starts_with("http://"));
        Self { url: url.expect("it tells its address").to_owned(), child }
    }

    async fn get(&self, path: &str) -> Response {
        reqwest::get(format!("{}{path}", self.url)).await.unwrap()
    }
}

impl Drop for Demo {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[tokio::test]
async fn the_page_shows_what_each_way_costs() {
    let demo = Demo::start();
    let browser = Browser::open().await;
    browser.go(&demo.url).await;
    browser.press("[name=seconds]", HOME).await;
    browser.press("[name=ttl]", HOME).await;
    assert_eq!(browser.text("label:has([name=ttl]) output").await, "200 ms");
    run(&browser).await;
    let (without, fleet) =
        (loads(&browser, "no-protection").await, loads(&browser, "bellwether").await);
    assert!(without > 2 * fleet && fleet > 0, "{without} queries, and {fleet} with bellwether");
    let local = browser.text(".local").await;
    assert!(local.contains('%'), "the local tier has served {local:?}");
    assert!(browser.text("#summary").await.contains("reached the database without protection"));
    let answered = browser.text(".answered").await;
    assert!(answered.contains(" of "), "{answered:?} while the store was away");
    browser.press("[name=copies]", HOME).await;
    run(&browser).await;
    assert_eq!(browser.text(".local").await, "none", "there are no copies");
    assert_eq!(browser.errors().await, Vec::<String>::new());
}

/// Presses the button, and waits for the end of the run.
async fn run(browser: &Browser) {
    browser.click("#run").await;
    assert_eq!(browser.text("#run").await, "Stop");
    let ends = comes_true(3 * LIMIT, async || browser.text("#run").await == "Run").await;
    let status = browser.text("#status").await;
    assert!(ends && status.starts_with("Done"), "{status}");
}

/// Returns how many queries a panel shows.
async fn loads(browser: &Browser, way: &str) -> u64 {
    let shown = browser.text(&format!("[data-way={way}] .sum")).await;
    shown.replace(',', "").parse().unwrap()
}

#[tokio::test]
async fn a_page_that_goes_away_ends_its_run() {
    let demo = Demo::start();
    let mut first = demo.get("run?seconds=20").await;
    hears(&mut first, "\"sample\"").await;
    let mut second = demo.get("run?seconds=20").await;
    hears(&mut second, "\"waiting\"").await;
    drop(first);
    hears(&mut second, "\"sample\"").await;
}

/// Reads events until one has these words.
async fn hears(events: &mut Response, words: &str) {
    let has_come = async {
        let mut heard = String::new();
        while !heard.contains(words) {
            let chunk = events.chunk().await.unwrap().expect("the events go on");
            heard.push_str(&String::from_utf8_lossy(&chunk));
        }
    };
    tokio::time::timeout(LIMIT, has_come).await.expect(words);
}

#[tokio::test]
async fn settings_beyond_their_bounds_are_refused() {
    let demo = Demo::start();
    for settings in ["rate=3010", "processes=0", "ttl=100", "seconds=-1", "load=x"] {
        let refused = demo.get(&format!("run?{settings}")).await;
        assert_eq!(refused.status(), StatusCode::BAD_REQUEST, "{settings}");
    }
}
