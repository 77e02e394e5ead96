//! The steps of `docs/runbook.md`, as they stand there.

use std::{
    sync::atomic::Ordering,
    time::{Duration, SystemTime},
};

use bellwether::Locks;
use testkit::{LIMIT, comes_true};

use super::{
    NAMESPACE,
    fleet::{Fleet, HOLDER, STUCK},
    printed, run,
    terminal::Terminal,
};

const YEAR: Duration = Duration::from_secs(365 * 86_400);
const PAGE: &str = include_str!("../../docs/runbook.md");

/// A part of the page that the test acts on.
enum Step {
    /// A command, and the lines that it prints.
    Type(String, Vec<String>),
    /// Something that happens to the fleet.
    Happens(String),
}

/// Returns the commands and the comments of the page, in order.
fn steps() -> Vec<Step> {
    let mut steps = Vec::new();
    let mut is_console = false;
    for line in PAGE.lines() {
        match (line.strip_prefix("$ "), steps.last_mut()) {
            _ if line.starts_with("```") => is_console = line == "```console",
            (Some(command), _) if is_console => {
                steps.push(Step::Type(command.to_owned(), Vec::new()));
            }
            (None, Some(Step::Type(_, lines))) if is_console => lines.push(line.to_owned()),
            _ => {
                let happens = line.strip_prefix("<!-- ").and_then(|line| line.strip_suffix(" -->"));
                steps.extend(happens.map(|what| Step::Happens(what.to_owned())));
            }
        }
    }
    steps
}

/// Returns whether a line has the words of a pattern, with anything in place of each `…`.
fn matches(line: &str, pattern: &str) -> bool {
    let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let line = words(line);
    let mut at = 0;
    pattern.split('…').map(words).all(|part| match line[at..].find(&part) {
        Some(found) => {
            at += found + part.len();
            true
        }
        None => false,
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_step_of_the_runbook_does_what_the_page_says() {
    let fleet = Fleet::start().await;
    let lists = async |what: &str| printed(&run(&fleet.server, &["locks"]).await, 0).contains(what);
    let stuck = comes_true(LIMIT, async || lists(HOLDER).await && lists("3        ").await);
    assert!(stuck.await, "{STUCK} is not stuck");
    until(&fleet, "fresh").await;
    let terminal = Terminal::open(&fleet.server.url());
    let mut typed = 0;
    for step in steps() {
        match step {
            Step::Type(command, expected) => {
                typed += 1;
                // What it shows may be over in the same moment, as that a page is fresh.
                let mut missing = Some(String::new());
                let shows = comes_true(LIMIT, async || {
                    // A value ends, and not the load that an attempt before has begun.
                    if command.contains("invalidate") {
                        until(&fleet, "fresh").await;
                    }
                    missing = not_printed(&terminal, &command, &expected).await;
                    missing.is_none() || acts_once(&command)
                });
                assert!(shows.await && missing.is_none(), "{}", missing.unwrap_or_default());
            }
            Step::Happens(what) => happens(&fleet, &what).await,
        }
    }
    assert_eq!(typed, 9, "the page has other steps");
}

/// Returns whether a command finds nothing to do when it is run again.
fn acts_once(command: &str) -> bool {
    command.contains("unlock") || command.contains("--remove")
}

/// Runs a command. Returns what it does not print, if that is something.
async fn not_printed(terminal: &Terminal, command: &str, expected: &[String]) -> Option<String> {
    let (shown, code) = terminal.run(command).await;
    assert_eq!(code, 0, "{command}: {shown}");
    let mut lines = shown.lines();
    let missing = expected.iter().find(|pattern| !lines.any(|line| matches(line, pattern)))?;
    Some(format!("{command} does not print {missing:?}: {shown}"))
}

/// Makes something happen to the fleet.
async fn happens(fleet: &Fleet, what: &str) {
    match what {
        "then: the next waiter holds nightly-import" => {
            let handed = comes_true(LIMIT, async || {
                let listed = printed(&run(&fleet.server, &["locks"]).await, 0);
                listed.contains("pod-") && !listed.contains(HOLDER)
            });
            assert!(handed.await, "no waiter has the lock");
        }
        "before: the origin fails" => {
            fleet.origin_fails.store(true, Ordering::Relaxed);
            until(fleet, "missing").await;
        }
        "then: the origin works" => {
            fleet.origin_fails.store(false, Ordering::Relaxed);
            until(fleet, "fresh").await;
        }
        "before: a clock that is a year ahead sets the mark of nightly-report" => {
            let locks = Locks::new(testkit::open(fleet.server.url()), NAMESPACE);
            let job = locks.once("nightly-report", SystemTime::now() + YEAR).max_ahead(2 * YEAR);
            job.begin().await.unwrap().unwrap().done().await.unwrap();
        }
        other => panic!("nothing is known of {other:?}"),
    }
}

/// Waits until the hot key is in a state.
async fn until(fleet: &Fleet, state: &str) {
    let key = "GET  shop /products/1";
    let is_so = comes_true(LIMIT, async || {
        printed(&run(&fleet.server, &["explain", key]).await, 0).contains(state)
    });
    assert!(is_so.await, "the key is not {state}");
}
