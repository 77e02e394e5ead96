//! `mark` and `explain`, of jobs that ran, that crashed, and whose clock was wrong.

use std::time::{Duration, SystemTime};

use bellwether::Locks;
use serde_json::Value;
use testkit::RedisServer;

use super::{NAMESPACE, printed, run, terminal::Terminal};

const DAY: Duration = Duration::from_secs(86_400);

fn locks(server: &RedisServer) -> Locks {
    Locks::new(testkit::open(server.url()), NAMESPACE)
}

/// Runs a tick of a job to its end.
async fn run_tick(locks: &Locks, name: &str, tick: SystemTime) {
    let job = locks.once(name, tick).max_ahead(400 * DAY);
    job.begin().await.unwrap().expect("a later tick was begun").done().await.unwrap();
}

async fn json(server: &RedisServer, arguments: &[&str], code: i32) -> Value {
    let arguments = [arguments, &["--json"]].concat();
    serde_json::from_str(&printed(&run(server, &arguments).await, code)).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_mark_of_a_job_is_shown() {
    let server = RedisServer::start().await;
    let here = locks(&server);
    let output = run(&server, &["mark", "report"]).await;
    assert_eq!(printed(&output, 3), "");
    let why = String::from_utf8(output.stderr).unwrap();
    assert!(why.contains("report has no mark in the namespace shop"), "{why}");
    let nothing = json(&server, &["mark", "report"], 3).await;
    assert_eq!(nothing["mark"]["set"], false);
    let explained = printed(&run(&server, &["explain", "report"]).await, 3);
    assert!(explained.contains("no job of this name has a mark"), "{explained}");
    // A turn that is under way, or has crashed.
    let tick = SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000);
    let turn = here.once("report", tick).begin().await.unwrap().unwrap();
    let begun = "report: last tick 2023-11-14T22:13:20Z, begun and not done\n";
    assert_eq!(printed(&run(&server, &["mark", "report"]).await, 0), begun);
    turn.done().await.unwrap();
    let done = "report: last tick 2023-11-14T22:13:20Z, done\n";
    assert_eq!(printed(&run(&server, &["mark", "report"]).await, 0), done);
    // A mark is enough to explain, also after the lock is free.
    let explained = printed(&run(&server, &["explain", "report"]).await, 0);
    assert!(explained.contains(&format!("the job {done}")), "{explained}");
    let explained = json(&server, &["explain", "report"], 0).await;
    let mark = &explained["mark"];
    assert_eq!((&mark["set"], &mark["done"]), (&true.into(), &true.into()), "{explained}");
    assert_eq!(mark["tick_ms"], 1_700_000_000_000_u64, "{explained}");
    assert_eq!(mark["ahead_ms"], 0, "{explained}");
    // An id has no time.
    let job = here.once_id("event", "7", DAY);
    job.begin().await.unwrap().unwrap().done().await.unwrap();
    let shown = printed(&run(&server, &["mark", "event:7"]).await, 0);
    assert_eq!(shown, "event:7: this id, or the tick of 1970, is done\n");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mark_that_lies_ahead_is_removed_after_a_question() {
    let server = RedisServer::start().await;
    let here = locks(&server);
    run_tick(&here, "report", SystemTime::now() + 365 * DAY).await;
    let shown = printed(&run(&server, &["mark", "report"]).await, 0);
    assert!(shown.contains("Z, done; it is ahead of the server, whose time is "), "{shown}");
    assert!(shown.ends_with("by 8760 h; no earlier tick runs\n"), "{shown}");
    let explained = printed(&run(&server, &["explain", "report"]).await, 0);
    assert!(explained.contains("by 8760 h; no earlier tick runs"), "{explained}");
    let mark = json(&server, &["mark", "report"], 0).await;
    let ahead = Duration::from_millis(mark["mark"]["ahead_ms"].as_u64().unwrap());
    assert!(ahead > 364 * DAY && ahead <= 365 * DAY, "{mark}");
    assert!(here.once("report", SystemTime::now()).begin().await.unwrap().is_none());
    let terminal = Terminal::open(&server.url());
    terminal.enter("bellwether mark report --remove; echo \"[ended with $?]\"");
    terminal.shows("Remove the mark of report? [y/N]").await;
    terminal.enter("n");
    terminal.shows("[ended with 2]").await;
    assert!(here.once("report", SystemTime::now()).begin().await.unwrap().is_none());
    // Where nobody can be asked, it does nothing. To remove is a decision of its own.
    let refused = json(&server, &["mark", "report", "--remove"], 2).await;
    assert!(refused["error"].as_str().unwrap().starts_with("nobody can be asked here"));
    printed(&run(&server, &["mark", "report", "--yes"]).await, 2);
    terminal.enter("clear; bellwether mark report --remove; echo \"[ended with $?]\"");
    terminal.shows("Remove the mark of report? [y/N]").await;
    terminal.enter("y");
    terminal.shows("[ended with 0]").await;
    terminal.shows("removed: report: ").await;
    run_tick(&here, "report", SystemTime::now()).await;
    let removed = json(&server, &["mark", "report", "--remove", "--yes"], 0).await;
    assert_eq!(removed["removed"], true, "{removed}");
    let removed = json(&server, &["mark", "report", "--remove", "--yes"], 3).await;
    assert_eq!(removed["removed"], false, "{removed}");
}

/// A tick that has begun since the question would run twice without its mark.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mark_that_came_after_the_question_stays() {
    let server = RedisServer::start().await;
    let here = locks(&server);
    run_tick(&here, "report", SystemTime::now() - DAY).await;
    let terminal = Terminal::open(&server.url());
    terminal.enter("bellwether mark report --remove; echo \"[ended with $?]\"");
    terminal.shows("Remove the mark of report? [y/N]").await;
    let tick = SystemTime::now();
    run_tick(&here, "report", tick).await;
    terminal.enter("y");
    terminal.shows("report has another mark by now, which stays").await;
    terminal.shows("[ended with 3]").await;
    assert!(here.once("report", tick).begin().await.unwrap().is_none());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_form_in_which_a_job_is_shown_finds_its_mark() {
    let server = RedisServer::start().await;
    let here = locks(&server);
    let name = "x\u{1b}[2J\\\ny";
    let shown = r"x\u{1b}[2J\\\ny";
    run_tick(&here, name, SystemTime::now() - DAY).await;
    for command in ["mark", "explain"] {
        let text = printed(&run(&server, &[command, "--escaped", shown]).await, 0);
        assert!(text.contains(&format!("{shown}: last tick ")), "{text}");
        assert!(!text.contains('\u{1b}'), "{text:?}");
    }
    let removed = run(&server, &["mark", "--escaped", shown, "--remove", "--yes"]).await;
    assert!(printed(&removed, 0).starts_with(&format!("removed: {shown}: ")));
    assert_eq!(here.once(name, SystemTime::now()).mark().await.unwrap(), None);
    printed(&run(&server, &["mark", r"x\q", "--escaped"]).await, 2);
}
