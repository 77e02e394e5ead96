//! `locks`, `explain`, `unlock` and `invalidate`, of what processes hold and store.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use bellwether::{BoxError, Cache, ErrorKind, Locks, cache::AfterFailure};
use testkit::{LIMIT, Raw, RedisServer, eventually};
use tokio::{sync::Notify, time::timeout};

use super::{NAMESPACE, printed, run, run_at, terminal::Terminal};

const MINUTE: Duration = Duration::from_secs(60);

fn locks(server: &RedisServer) -> Locks {
    Locks::new(testkit::open(server.url()), NAMESPACE)
}

fn cache(server: &RedisServer) -> Cache<String> {
    let builder = Cache::builder(testkit::open(server.url()), NAMESPACE).tags();
    builder.ttl(MINUTE).stale_if_error(MINUTE).build().unwrap()
}

/// Waits until `locks` prints a text.
async fn until_locks_show(server: &RedisServer, text: &str) {
    let shown =
        eventually(LIMIT, || async { printed(&run(server, &["locks"]).await, 0).contains(text) });
    assert!(shown.await, "{text} is not listed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn locks_are_listed_with_their_holders_and_waiters() {
    let server = RedisServer::start().await;
    assert!(printed(&run(&server, &["locks"]).await, 0).contains("no lock is held"));
    let here = locks(&server).owner("pod-7");
    let guard = here.mutex("import").lock().await.unwrap();
    let _readers = [here.rw_lock("prices").read().await, here.rw_lock("prices").read().await];
    let _permit = here.semaphore("exports", 3).acquire().await.unwrap();
    let waiter = locks(&server).mutex("import");
    let waiting = tokio::spawn(async move { waiter.lock().await.map(drop) });
    until_locks_show(&server, "1        ").await;
    let listed = printed(&run(&server, &["locks"]).await, 0);
    let rows: Vec<_> = listed.lines().collect();
    // The lock that is waited for comes first.
    assert!(rows[1].starts_with("import  ") && rows[1].contains("pod-7"), "{listed}");
    assert!(rows[1].ends_with(&guard.fence().to_string()), "{listed}");
    assert!(listed.contains("2 holders") && listed.contains("permits"), "{listed}");
    assert!(listed.contains("callers in the holder's process: not known"), "{listed}");
    let json = printed(&run(&server, &["locks", "--json"]).await, 0);
    assert!(json.contains(r#""name":"import""#) && json.contains(r#""waiting":1"#), "{json}");
    // Another namespace has none of them.
    let url = server.url();
    let other = run_at(&url, &["--namespace", "other", "locks"]).await;
    assert!(!printed(&other, 0).contains("import"));
    guard.unlock().await.unwrap();
    waiting.await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_search_of_many_keys_takes_a_hundredth_of_the_time_of_the_server() {
    let server = RedisServer::start_with(&["--enable-debug-command", "local"]).await;
    let mut raw = server.raw().await;
    raw.run::<()>(&["DEBUG", "POPULATE", "40000", "some:other:key"]).await;
    let _guard = locks(&server).mutex("import").lock().await.unwrap();
    let before = processor_time(&mut raw).await;
    let begun = Instant::now();
    let listed = locks(&server).list().await.unwrap();
    let took = begun.elapsed();
    assert_eq!(listed.len(), 1);
    let busy = processor_time(&mut raw).await - before;
    assert!(busy < took / 50, "{busy:?} of {took:?}");
}

/// Returns how long the server has used a processor. Other programs that use it as well do not
/// count, as they would in the times of its commands.
async fn processor_time(raw: &mut Raw) -> Duration {
    let info: String = raw.run(&["INFO", "cpu"]).await;
    let mut seconds = 0.0;
    for part in ["used_cpu_sys:", "used_cpu_user:"] {
        let line = info.lines().find_map(|line| line.strip_prefix(part)).unwrap();
        seconds += line.trim().parse::<f64>().unwrap();
    }
    Duration::from_secs_f64(seconds)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_is_explained() {
    let server = RedisServer::start().await;
    let cache = cache(&server);
    let explain = async |key: &str| printed(&run(&server, &["explain", key]).await, 0);
    cache.request("k").tag("customer:7").insert(&"v".to_owned()).await.unwrap();
    let fresh = explain("k").await;
    assert!(fresh.contains("fresh for ") && fresh.contains("customer:7"), "{fresh}");
    let json = printed(&run(&server, &["explain", "k", "--json"]).await, 0);
    for part in [r#""state":"fresh""#, r#""tags":["customer:7"]"#, r#""fresh_ms":60000"#] {
        assert!(json.contains(part), "{part}: {json}");
    }
    cache.expire("k").await.unwrap();
    assert!(explain("k").await.contains("kept for failures"));
    cache.request("l").tag("customer:7").insert(&"v".to_owned()).await.unwrap();
    cache.invalidate_tag("customer:7").await.unwrap();
    assert!(explain("l").await.contains("ended"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_load_and_its_failure_are_explained() {
    let server = RedisServer::start().await;
    let here = cache(&server);
    let there = cache(&server);
    let [begun, release] = [(); 2].map(|()| Arc::new(Notify::new()));
    let starts = begun.clone();
    let ends = release.clone();
    let back_off = AfterFailure::BackOff { first: MINUTE, longest: MINUTE };
    let load = here.request("k").load(move |lead| async move {
        lead.after_failure(back_off);
        starts.notify_one();
        ends.notified().await;
        Err::<String, _>(BoxError::from("the database is away"))
    });
    let load = tokio::spawn(load);
    begun.notified().await;
    let waiter = tokio::spawn(async move {
        there.get_or_load("k", |_| async { Err::<String, _>(BoxError::from("it waits")) }).await
    });
    let explain = async || printed(&run(&server, &["explain", "k"]).await, 0);
    let waited = eventually(LIMIT, || async { explain().await.contains("1 waiting") });
    assert!(waited.await, "{}", explain().await);
    assert!(explain().await.contains("held by process "));
    release.notify_one();
    assert_eq!(load.await.unwrap().unwrap_err().kind(), ErrorKind::Load);
    assert_eq!(waiter.await.unwrap().unwrap_err().kind(), ErrorKind::Load);
    let failed = explain().await;
    assert!(failed.contains("1 loads in a row; no process loads for "), "{failed}");
    assert!(failed.contains("the database is away"), "{failed}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_is_unlocked_after_a_question() {
    let server = RedisServer::start().await;
    let here = locks(&server).owner("pod-7");
    let guard = here.mutex("import").lock().await.unwrap();
    until_locks_show(&server, "pod-7").await;
    let terminal = Terminal::open(&server.url());
    terminal.enter("bellwether unlock import; echo \"[ended with $?]\"");
    let asked = terminal.shows("Unlock import? [y/N]").await;
    assert!(asked.contains("held by pod-7 for "), "{asked}");
    terminal.enter("n");
    terminal.shows("[ended with 2]").await;
    assert!(here.mutex("import").holder().await.unwrap().is_some());
    // Where nobody can be asked, it does nothing.
    printed(&run(&server, &["unlock", "import"]).await, 2);
    let json = printed(&run(&server, &["unlock", "import", "--json"]).await, 2);
    assert!(json.starts_with(r#"{"error":"nobody can be asked here"#), "{json}");
    terminal.enter("clear; bellwether unlock import; echo \"[ended with $?]\"");
    terminal.shows("Unlock import? [y/N]").await;
    terminal.enter("y");
    terminal.shows("ended: import (mutex): held by pod-7").await;
    timeout(LIMIT, guard.lost()).await.expect("the holder is told");
    printed(&run(&server, &["unlock", "import"]).await, 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_that_came_after_the_question_keeps_its_lock() {
    let server = RedisServer::start().await;
    let [stuck, well] = ["pod-7", "pod-9"].map(|pod| locks(&server).owner(pod));
    let guard = stuck.mutex("import").lock().await.unwrap();
    until_locks_show(&server, "pod-7").await;
    let terminal = Terminal::open(&server.url());
    terminal.enter("bellwether unlock import; echo \"[ended with $?]\"");
    terminal.shows("Unlock import? [y/N]").await;
    guard.unlock().await.unwrap();
    let guard = well.mutex("import").lock().await.unwrap();
    terminal.enter("y");
    terminal.shows("import has another holder by now, which keeps it").await;
    terminal.shows("[ended with 3]").await;
    guard.renew().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_kind_of_lock_is_unlocked_without_a_question() {
    let server = RedisServer::start().await;
    let here = locks(&server);
    let _held = (
        here.mutex("k").lock().await.unwrap(),
        here.rw_lock("k").write().await.unwrap(),
        here.semaphore("k", 2).acquire().await.unwrap(),
    );
    let json = printed(&run(&server, &["unlock", "k", "--yes", "--json"]).await, 0);
    assert_eq!(json.matches(r#""name":"k""#).count(), 3, "{json}");
    assert_eq!(here.list().await.unwrap(), []);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_or_a_tag_is_invalidated() {
    let server = RedisServer::start().await;
    let cache = cache(&server);
    for key in ["k", "l"] {
        cache.request(key).tag("customer:7").insert(&"v".to_owned()).await.unwrap();
    }
    printed(&run(&server, &["invalidate", "k"]).await, 0);
    assert_eq!(cache.get("k").await.unwrap(), None);
    assert!(cache.get("l").await.unwrap().is_some());
    printed(&run(&server, &["invalidate", "--tag", "customer:7"]).await, 0);
    assert_eq!(cache.get("l").await.unwrap(), None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_said_to_be_nothing() {
    let server = RedisServer::start().await;
    let explained = printed(&run(&server, &["explain", "k"]).await, 3);
    assert!(explained.contains("missing") && explained.contains("the namespace has no key"));
    assert!(printed(&run(&server, &["locks"]).await, 0).contains("the namespace has no key"));
    printed(&run(&server, &["explain", "k", "--json"]).await, 3);
    let cache = cache(&server);
    assert_eq!(printed(&run(&server, &["invalidate", "k"]).await, 0), "nothing was stored\n");
    printed(&run(&server, &["invalidate", "k", "--expect"]).await, 3);
    // An invalidation leaves a fence, so the namespace has a key by now.
    cache.insert("l", &"v".to_owned()).await.unwrap();
    let explained = printed(&run(&server, &["explain", "k"]).await, 3);
    assert!(explained.contains("the namespace has other keys"), "{explained}");
    let invalidated = printed(&run(&server, &["invalidate", "l", "--expect"]).await, 0);
    assert_eq!(invalidated, "invalidated: the next caller loads\n");
    let [begun, release] = [(); 2].map(|()| Arc::new(Notify::new()));
    let starts = begun.clone();
    let ends = release.clone();
    let load = cache.request("m").load(move |_| async move {
        starts.notify_one();
        ends.notified().await;
        Ok::<_, BoxError>("v".to_owned())
    });
    let load = tokio::spawn(load);
    begun.notified().await;
    let ended = printed(&run(&server, &["invalidate", "m"]).await, 0);
    assert_eq!(ended, "nothing was stored; a load under way was ended\n");
    release.notify_one();
    load.await.unwrap().unwrap();
    assert_eq!(cache.get("m").await.unwrap(), None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_response_is_found_by_its_address() {
    let server = RedisServer::start().await;
    let cache = cache(&server);
    cache.insert("GET  shop /page?a=1", &"v".to_owned()).await.unwrap();
    let found = printed(&run(&server, &["explain", "https://Shop:443/page?a=1"]).await, 0);
    assert!(found.contains("fresh for "), "{found}");
    let hint = printed(&run(&server, &["explain", "GET shop /page?a=1"]).await, 3);
    assert!(hint.contains("two spaces"), "{hint}");
    printed(&run(&server, &["invalidate", "https://shop/page?a=1", "--expect"]).await, 0);
    assert_eq!(cache.get("GET  shop /page?a=1").await.unwrap(), None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_values_with_tags_are_cleared_and_others_are_told() {
    let server = RedisServer::start().await;
    let untagged: Cache<String> =
        Cache::builder(testkit::open(server.url()), NAMESPACE).build().unwrap();
    untagged.insert("u", &"v".to_owned()).await.unwrap();
    let output = run(&server, &["clear", "--yes"]).await;
    printed(&output, 3);
    let words = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(words.contains("no cache with tags has stored anything"), "{words}");
    assert!(untagged.get("u").await.unwrap().is_some());
    let cache = cache(&server);
    for key in ["k", "l"] {
        cache
            .request(key)
            .tag("t")
            .load(|_| async { Ok::<_, BoxError>("v".to_owned()) })
            .await
            .unwrap();
    }
    printed(&run(&server, &["clear"]).await, 2);
    assert!(cache.get("k").await.unwrap().is_some());
    let terminal = Terminal::open(&server.url());
    terminal.enter("bellwether clear; echo \"[ended with $?]\"");
    terminal.shows("Clear shop? [y/N]").await;
    terminal.enter("y");
    terminal.shows("[ended with 0]").await;
    assert_eq!((cache.get("k").await.unwrap(), cache.get("l").await.unwrap()), (None, None));
}

#[tokio::test]
async fn a_failure_is_one_line() {
    let mut server = RedisServer::start().await;
    server.kill();
    let commands = ["explain", "unlock", "invalidate", "mark"].map(|command| vec![command, "k"]);
    for command in [vec!["locks"]].iter().chain(&commands) {
        let output = run(&server, command).await;
        assert_eq!(printed(&output, 1), "");
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(error.starts_with("bellwether: ") && error.lines().count() == 1, "{error}");
    }
    let json = printed(&run(&server, &["locks", "--json"]).await, 1);
    assert!(json.starts_with(r#"{"error":""#), "{json}");
}
