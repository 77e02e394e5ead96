//! What is not known is said to be not known: an empty list would be read as "no lock".

use std::time::SystemTime;

use bellwether::Locks;
use serde_json::Value;
use testkit::{Raw, RedisServer};

use super::{NAMESPACE, printed, run, run_at, terminal::Terminal};

const PAGE: &str = include_str!("../../docs/redis.md");

/// Returns a rule of `docs/redis.md`.
fn rule(name: &str) -> Vec<&'static str> {
    let (_, rest) = PAGE.split_once(&format!("<!-- acl: {name} -->")).unwrap();
    rest.split("```").nth(1).unwrap().split_whitespace().skip(1).collect()
}

/// Creates a user with these rules.
async fn set_user(raw: &mut Raw, user: &str, rules: &[&str]) {
    let words: Vec<_> = rules.iter().flat_map(|name| rule(name)).collect();
    raw.set_user(user, &words).await;
}

fn lines(json: &str) -> Vec<Value> {
    json.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_screen_says_that_it_searches_until_the_first_search_has_ended() {
    let server = RedisServer::start_with(&["--enable-debug-command", "local"]).await;
    let mut raw = server.raw().await;
    raw.run::<()>(&["DEBUG", "POPULATE", "300000", "some:other:key"]).await;
    let here = Locks::new(testkit::open(server.url()), NAMESPACE);
    let _guard = here.mutex("import").lock().await.unwrap();
    let terminal = Terminal::open(&server.url());
    terminal.enter("bellwether top");
    let screen = terminal.shows("searching for locks").await;
    assert!(!screen.contains("no lock is held"), "{screen}");
    let seconds = lines(&printed(&run(&server, &["top", "--seconds", "2", "--json"]).await, 0));
    for second in &seconds {
        assert!(second["locks"].is_null() && second["searching"] == true, "{second}");
        assert!(second["error"].is_null(), "{second}");
    }
    // Without the other keys, the search ends soon.
    let remove = "for at = 0, 299999 do redis.call('UNLINK', 'some:other:key:' .. at) end";
    raw.run::<()>(&["EVAL", remove, "0"]).await;
    let has_ended = |screen: &str| screen.contains("import") && !screen.contains("searching");
    terminal.comes_to("the end of the search", has_ended).await;
    terminal.press("C-c");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_user_who_may_not_search_is_told_so_by_each_command() {
    let server = RedisServer::start().await;
    let mut raw = server.raw().await;
    set_user(&mut raw, "service", &["caches", "tags", "locks"]).await;
    set_user(&mut raw, "night", &["operators"]).await;
    let service = server.url_of("service:secret", 0);
    let here = Locks::new(testkit::open(service.clone()), NAMESPACE);
    let _guard = here.mutex("import").lock().await.unwrap();
    let json = printed(&run_at(&service, &["locks", "--json"]).await, 1);
    assert!(json.contains("scan"), "{json}");
    let seconds = run_at(&service, &["top", "--seconds", "2", "--json"]).await;
    for second in &lines(&printed(&seconds, 0))[1..] {
        assert!(second["locks"].is_null(), "{second}");
        assert!(second["error"].as_str().unwrap().contains("scan"), "{second}");
    }
    let terminal = Terminal::open_sized(&service, 250, 24);
    terminal.enter("bellwether top");
    let screen = terminal.shows("LOCKS are not known: ").await;
    assert!(screen.contains("scan") && !screen.contains("no lock is held"), "{screen}");
    terminal.press("C-c");
    let report = printed(&run_at(&service, &["doctor"]).await, 0);
    assert!(report.contains("fair  search") && report.contains("permit `+scan`"), "{report}");
    let nothing = printed(&run_at(&service, &["explain", "nothing"]).await, 3);
    assert!(nothing.contains("whether the namespace has any key is not known"), "{nothing}");
    // The rule for operators is enough.
    let night = server.url_of("night:secret", 0);
    for command in [&["locks"][..], &["explain", "import"], &["top", "--seconds", "2"]] {
        let text = printed(&run_at(&night, command).await, 0);
        assert!(text.contains("import"), "{command:?}: {text}");
    }
    let report = printed(&run_at(&night, &["doctor"]).await, 0);
    assert!(report.contains("good  search"), "{report}");
    printed(&run_at(&night, &["invalidate", "k"]).await, 0);
    printed(&run_at(&night, &["invalidate", "--tag", "t"]).await, 0);
    printed(&run_at(&night, &["unlock", "import", "--yes"]).await, 0);
    let job = here.once("report", SystemTime::now());
    job.begin().await.unwrap().unwrap().done().await.unwrap();
    assert!(printed(&run_at(&night, &["mark", "report"]).await, 0).contains(", done"));
    printed(&run_at(&night, &["mark", "report", "--remove", "--yes"]).await, 0);
}

/// Nobody has answered in the first moment.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_process_is_said_to_be_missing_before_it_could_answer() {
    let server = RedisServer::start().await;
    let seconds = printed(&run(&server, &["top", "--seconds", "5", "--json"]).await, 0);
    let seconds = lines(&seconds);
    assert!(seconds[0]["processes"].is_null() && seconds[0]["hits"].is_null(), "{}", seconds[0]);
    assert_eq!(seconds[5]["processes"], 0, "{}", seconds[5]);
    let text = printed(&run(&server, &["top", "--seconds", "0"]).await, 0);
    assert!(text.contains("asking the processes"), "{text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn data_of_another_program_does_not_hide_the_locks() {
    let server = RedisServer::start().await;
    let here = Locks::new(testkit::open(server.url()), NAMESPACE).owner("pod-7");
    let _guard = here.mutex("import").lock().await.unwrap();
    let mut raw = server.raw().await;
    raw.run::<()>(&["SET", "shop:l:{other}:l", "garbage", "PX", "60000"]).await;
    let listed = printed(&run(&server, &["locks"]).await, 0);
    let row = |name: &str| listed.lines().find(|line| line.starts_with(name)).unwrap();
    assert!(row("import").contains("pod-7"), "{listed}");
    assert!(row("other").contains("data of another program"), "{listed}");
    let explained = printed(&run(&server, &["unlock", "other", "--yes"]).await, 0);
    assert!(explained.contains("holds data that this crate did not write"), "{explained}");
    assert!(!printed(&run(&server, &["locks"]).await, 0).contains("other"));
}

/// A user who may not read the marks may still look at keys and locks.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mark_that_cannot_be_read_is_said_to_be_not_known() {
    let server = RedisServer::start().await;
    let here = Locks::new(testkit::open(server.url()), NAMESPACE);
    let _guard = here.mutex("import").lock().await.unwrap();
    let job = here.once("import", SystemTime::now());
    assert_eq!(job.mark().await.unwrap(), None);
    let mut raw = server.raw().await;
    set_user(&mut raw, "night", &["operators"]).await;
    // The keys of all names but the marks.
    let rules = ["resetkeys", "~shop:c:*", "~shop:t:*", "~shop:l:*:[a-ln-z]*"];
    raw.run::<()>(&[&["ACL", "SETUSER", "night"][..], &rules].concat()).await;
    let night = server.url_of("night:secret", 0);
    let explained = printed(&run_at(&night, &["explain", "import"]).await, 0);
    let not_known = "whether a job of this name has a mark is not known: ";
    assert!(explained.contains("the lock import") && explained.contains(not_known), "{explained}");
    let explained = printed(&run_at(&night, &["explain", "import", "--json"]).await, 0);
    assert!(lines(&explained)[0]["mark"].is_null(), "{explained}");
    let output = run_at(&night, &["mark", "import"]).await;
    assert_eq!(printed(&output, 1), "");
}
