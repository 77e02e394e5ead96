//! The command line before real servers: each command, in a real terminal where it matters.
//!
//! A [`Terminal`](terminal::Terminal) is a window of `tmux`. A [`Fleet`](fleet::Fleet) is eight
//! processes of the demo, with a key that expires and a lock that is stuck. The steps of
//! `docs/runbook.md` are run as they stand there.
//!
//! With `BELLWETHER_SCREENS=docs`, the screens of `doctor` and `top` are drawn into that folder.
#![allow(missing_docs, unreachable_pub, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod commands;
mod doctor;
mod ends;
mod escapes;
mod fleet;
mod many;
mod mark;
mod runbook;
mod terminal;
mod top;
mod unknown;

use std::process::{Command, Output};

use testkit::RedisServer;

/// The program.
pub const PROGRAM: &str = env!("CARGO_BIN_EXE_bellwether");
/// The namespace of all caches and locks here.
pub const NAMESPACE: &str = "shop";

/// Runs the program without a terminal.
pub async fn run(server: &RedisServer, arguments: &[&str]) -> Output {
    run_at(&server.url(), arguments).await
}

pub async fn run_at(url: &str, arguments: &[&str]) -> Output {
    let mut command = Command::new(PROGRAM);
    command.env("BELLWETHER_NAMESPACE", NAMESPACE).args(["--url", url]).args(arguments);
    let done = tokio::task::spawn_blocking(move || command.output());
    done.await.unwrap().expect("the program can be run")
}

/// Returns what a program printed, and checks how it ended.
#[track_caller]
pub fn printed(output: &Output, code: i32) -> String {
    let errors = String::from_utf8_lossy(&output.stderr);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(code), "{text}{errors}");
    text
}
