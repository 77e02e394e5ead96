//! `top` ends when nobody sees it any more, and leaves the terminal as it was.

use std::{
    io::{BufRead, BufReader},
    process::{Command, Stdio},
};

use bellwether::Cache;
use testkit::{LIMIT, RedisServer, comes_true};
use tokio::task::spawn_blocking;

use super::{NAMESPACE, PROGRAM, terminal::Terminal};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_command_ends_when_its_reader_goes_away() {
    let server = RedisServer::start().await;
    let mut child = Command::new(PROGRAM)
        .args(["--url", &server.url(), "top", "--json"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut reader = BufReader::new(child.stdout.take().unwrap());
    reader.read_line(&mut String::new()).unwrap();
    drop(reader);
    let output = spawn_blocking(move || child.wait_with_output()).await.unwrap().unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    let terminal = Terminal::open(&server.url());
    let (_, code) = terminal.run("bellwether top --json | head -1").await;
    assert_eq!(code, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_signal_leaves_the_terminal_as_it_was() {
    let server = RedisServer::start().await;
    let terminal = Terminal::open(&server.url());
    for signal in ["TERM", "HUP", "INT", "QUIT"] {
        let file = tempfile::NamedTempFile::new().unwrap();
        let path = file.path().display();
        // The shell is the parent of the program, whose id it writes down.
        let command =
            format!("sh -c 'echo $$ > {path}; exec bellwether top'; echo \"[ended with $?]\"");
        terminal.enter(&format!("clear; echo it-stays; {command}"));
        terminal.shows("bellwether top: ").await;
        assert!(!terminal.has_cursor());
        let id = std::fs::read_to_string(file.path()).unwrap();
        let sent = Command::new("kill").args([&format!("-{signal}"), id.trim()]).status().unwrap();
        assert!(sent.success());
        let screen = terminal.shows("[ended with 0]").await;
        assert!(screen.contains("it-stays"), "{signal}: {screen}");
        assert!(terminal.has_cursor(), "{signal}");
    }
}

/// The fleet counts its keys while a screen runs. So one in a window that was closed ends.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_screen_ends_with_its_terminal() {
    let server = RedisServer::start().await;
    let cache: Cache<u64> = Cache::builder(testkit::open(server.url()), NAMESPACE).build().unwrap();
    tokio::spawn(cache.answer_top());
    let terminal = Terminal::open(&server.url());
    // `nohup` ignores the signal that the end of a terminal sends.
    terminal.enter("trap '' HUP; bellwether top");
    terminal.shows("1 processes").await;
    let mut raw = server.raw().await;
    let channel = format!("{NAMESPACE}:c:{{bellwether-top}}:a");
    let mut listeners = async || {
        let answer: Vec<(String, u64)> = raw.run(&["PUBSUB", "NUMSUB", &channel]).await;
        answer[0].1
    };
    assert_eq!(listeners().await, 1);
    drop(terminal);
    assert!(comes_true(LIMIT, async || listeners().await == 0).await, "it runs on");
}
