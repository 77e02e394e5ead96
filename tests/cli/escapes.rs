//! Names, labels, tags and texts of failures come from others. None of them acts on a terminal, and
//! the form in which a name is shown finds it again.

use std::time::Duration;

use bellwether::{BoxError, Cache, Locks, cache::AfterFailure};
use testkit::RedisServer;

use super::{NAMESPACE, printed, run, terminal::Terminal};

const MINUTE: Duration = Duration::from_secs(60);
/// Clears the screen, forges a line, and changes the direction of the text.
const EVIL: &str = "x\u{1b}[2J\u{1b}[H\nforged \u{9b}2J\u{202e}\\";
const SHOWN: &str = r"x\u{1b}[2J\u{1b}[H\nforged \u{9b}2J\u{202e}\\";
/// The same to a shell.
const TYPED: &str = r"'x\u{1b}[2J\u{1b}[H\nforged \u{9b}2J\u{202e}\\'";

/// Asserts that a text has nothing on which a terminal acts, but for its line breaks.
#[track_caller]
fn is_harmless(text: &str) {
    let acts = |letter: char| (letter.is_control() && letter != '\n') || letter == '\u{202e}';
    assert!(!text.contains(acts), "{text:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_name_and_no_label_acts_on_a_terminal_or_in_a_pipe() {
    let server = RedisServer::start().await;
    let here = Locks::new(testkit::open(server.url()), NAMESPACE).owner(EVIL);
    let _guard = here.mutex(EVIL).lock().await.unwrap();
    let terminal = Terminal::open_sized(&server.url(), 200, 30);
    for command in ["locks", "top --seconds 2", &format!("explain --escaped {TYPED}")] {
        terminal
            .enter(&format!("clear; echo it-stays; bellwether {command}; echo [ended with $?]"));
        let screen = terminal.shows("[ended with 0]").await;
        assert!(screen.contains("it-stays"), "{command}: {screen}");
        assert!(!screen.lines().any(|line| line.starts_with("forged")), "{command}: {screen}");
    }
    terminal.enter("bellwether top");
    terminal.shows(SHOWN).await;
    terminal.press("C-c");
    for command in
        [&["locks"][..], &["top", "--seconds", "2"], &["explain", EVIL], &["unlock", EVIL, "--yes"]]
    {
        let output = run(&server, command).await;
        let text = printed(&output, 0);
        assert!(text.contains(SHOWN), "{command:?}: {text}");
        is_harmless(&text);
        is_harmless(&String::from_utf8_lossy(&output.stderr));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn json_has_no_character_on_which_a_terminal_acts() {
    let server = RedisServer::start().await;
    let here = Locks::new(testkit::open(server.url()), NAMESPACE).owner(EVIL);
    let _guard = here.mutex(EVIL).lock().await.unwrap();
    for command in [&["locks", "--json"][..], &["explain", EVIL, "--json"]] {
        let json = printed(&run(&server, command).await, 0);
        is_harmless(&json);
        assert!(json.contains(r"\u009b2J\u202e\\"), "{json}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_tag_and_no_failure_acts_on_a_terminal() {
    let server = RedisServer::start().await;
    let cache: Cache<String> =
        Cache::builder(testkit::open(server.url()), NAMESPACE).tags().build().unwrap();
    cache.request(EVIL).tag(EVIL).insert(&"v".to_owned()).await.unwrap();
    let explained = printed(&run(&server, &["explain", EVIL]).await, 0);
    assert_eq!(explained.matches(SHOWN).count(), 2, "{explained}");
    is_harmless(&explained);
    let back_off = AfterFailure::BackOff { first: MINUTE, longest: MINUTE };
    let failed = cache.request("k").load(move |lead| async move {
        lead.after_failure(back_off);
        Err::<String, _>(BoxError::from(EVIL))
    });
    failed.await.unwrap_err();
    let explained = printed(&run(&server, &["explain", "k"]).await, 0);
    assert!(explained.contains(SHOWN), "{explained}");
    is_harmless(&explained);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_form_that_is_shown_is_accepted() {
    let server = RedisServer::start().await;
    let here = Locks::new(testkit::open(server.url()), NAMESPACE);
    let cache: Cache<String> =
        Cache::builder(testkit::open(server.url()), NAMESPACE).tags().build().unwrap();
    let _guard = here.mutex(EVIL).lock().await.unwrap();
    cache.request(EVIL).tag(EVIL).insert(&"v".to_owned()).await.unwrap();
    let explained = printed(&run(&server, &["explain", SHOWN, "--escaped"]).await, 0);
    assert!(explained.contains("fresh for ") && explained.contains("the lock "), "{explained}");
    printed(&run(&server, &["unlock", SHOWN, "--escaped", "--yes"]).await, 0);
    assert!(here.mutex(EVIL).holder().await.unwrap().is_none());
    printed(&run(&server, &["invalidate", SHOWN, "--escaped", "--expect"]).await, 0);
    assert_eq!(cache.get(EVIL).await.unwrap(), None);
    cache.request("l").tag(EVIL).insert(&"v".to_owned()).await.unwrap();
    printed(&run(&server, &["invalidate", "--tag", SHOWN, "--escaped"]).await, 0);
    assert_eq!(cache.get("l").await.unwrap(), None);
    // What is no such form is a wrong argument.
    printed(&run(&server, &["unlock", r"x\q", "--escaped", "--yes"]).await, 2);
}
