//! `top` shows what eight processes do, and which lock is stuck.

use bellwether::{Cache, Locks, RedisBackend, lock::MutexGuard};
use serde_json::Value;
use testkit::{RedisServer, Sentinels};
use tokio::task::JoinSet;

use super::{
    NAMESPACE,
    fleet::{Fleet, HOLDER, STUCK},
    printed, run, run_at,
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
    // In an incident it is the same at each size: the stuck lock, the hot key and the head.
    for (columns, rows) in [(80, 24), (200, 50)] {
        terminal.resize(columns, rows);
        let fits = |screen: &str| {
            let first = screen.lines().next().unwrap_or_default();
            let is_cut = screen.contains('…');
            first.starts_with("bellwether top") && is_whole(screen) && !is_cut
        };
        let screen = terminal.comes_to("the whole fleet in another size", fits).await;
        println!("{columns}x{rows}:\n{screen}");
        assert!(screen.lines().all(|line| line.chars().count() <= columns), "{screen}");
    }
    terminal.press("C-c");
    // The first screen is as it was.
    terminal.comes_to("the shell", |screen| !screen.contains("processes")).await;
    let json = printed(&run(&fleet.server, &["top", "--seconds", "3", "--json"]).await, 0);
    let last = json.lines().last().unwrap();
    assert!(last.contains(r#""processes":8"#) && last.contains(key), "{json}");
}

fn answering(backend: RedisBackend) -> Cache<u64> {
    let cache = Cache::builder(backend, NAMESPACE).build().unwrap();
    tokio::spawn(cache.answer_top());
    cache
}

/// A screen is left running in an incident, so it outlives one of the server.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_screen_stays_while_the_server_is_away() {
    let mut server = RedisServer::start().await;
    let _cache = answering(testkit::open(server.url()));
    let terminal = Terminal::open(&server.url());
    terminal.enter("bellwether top");
    terminal.shows("1 processes").await;
    server.kill();
    terminal.shows("the server does not answer: ").await;
    server.start_again().await;
    let is_back = |screen: &str| screen.contains("1 processes") && !screen.contains("not answer");
    terminal.comes_to("the process", is_back).await;
    terminal.press("C-c");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn processes_behind_sentinels_answer() {
    let sentinels = Sentinels::start(0).await;
    let builder = RedisBackend::builder().sentinels(sentinels.urls(), Sentinels::MASTER);
    let _cache = answering(builder.build().unwrap());
    let urls = sentinels.urls().join(",");
    let top = ["top", "--master", Sentinels::MASTER, "--seconds", "6", "--json"];
    let json = printed(&run_at(&urls, &top).await, 0);
    assert!(json.lines().any(|line| line.contains(r#""processes":1"#)), "{json}");
}

/// Two services with one long key each, and many locks.
async fn crowd(server: &RedisServer) -> (Cache<u64>, Vec<MutexGuard>) {
    let cache = answering(testkit::open(server.url()));
    let locks = Locks::new(testkit::open(server.url()), NAMESPACE).owner("pod-7");
    let mut held = Vec::new();
    for number in 0..40 {
        held.push(locks.mutex(format!("import:{number:02}")).lock().await.unwrap());
    }
    let asked = cache.clone();
    tokio::spawn(async move {
        loop {
            for end in ["first", "second"] {
                let key = format!("{}{end}", "k".repeat(170));
                let _ = asked.get(key).await;
            }
            tokio::time::sleep(std::time::Duration::from_millis(2)).await;
        }
    });
    (cache, held)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_screen_fits_its_terminal_at_any_size() {
    let server = RedisServer::start().await;
    let _crowd = crowd(&server).await;
    let terminal = Terminal::open_sized(&server.url(), 80, 24);
    terminal.enter("bellwether top");
    let is_whole = |screen: &str| {
        let lines = || screen.lines();
        let has = |part: &str| lines().any(|line| line.contains(part));
        lines().next().is_some_and(|line| line.starts_with("bellwether top: shop"))
            && has("1 processes")
            && has("LEFT")
            // Before its end, the first search has found some of the locks.
            && !has("searching")
            && lines().any(|line| line.starts_with("and ") && line.ends_with(" more"))
            // Both keys are cut, and can be told apart.
            && ["first", "second"].iter().all(|end| {
                let is_cut = |line: &str| line.starts_with("kkk") && line.contains('…');
                lines().any(|line| is_cut(line) && line.contains(end))
            })
    };
    let small = terminal.comes_to("a screen of 80x24", is_whole).await;
    let locks = |screen: &str| screen.lines().filter(|line| line.starts_with("import:")).count();
    // All rows are used, and no line is broken.
    assert_eq!(small.trim_end().lines().count(), 24, "{small}");
    let more: usize = small
        .lines()
        .rfind(|line| line.starts_with("and "))
        .unwrap()
        .split(' ')
        .nth(1)
        .unwrap()
        .parse()
        .unwrap();
    assert_eq!(locks(&small) + more, 40, "{small}");
    terminal.resize(200, 60);
    let large = terminal.comes_to("a screen of 200x60", |screen| locks(screen) == 40).await;
    assert!(!large.contains("and "), "{large}");
    assert!(large.lines().next().unwrap().starts_with("bellwether top: shop"), "{large}");
    terminal.resize(40, 12);
    let is_tiny = |screen: &str| screen.contains("bellwether top") && screen.contains(" more");
    terminal.comes_to("a screen of 40x12", is_tiny).await;
    terminal.press("C-c");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cache_that_answers_twice_is_counted_once() {
    let server = RedisServer::start().await;
    let cache = answering(testkit::open(server.url()));
    let second = tokio::spawn(cache.answer_top());
    let first = tokio::spawn(cache.answer_top());
    let asked = cache.clone();
    tokio::spawn(async move {
        loop {
            let load = asked.get_or_load("k", |_| async { Ok::<_, bellwether::BoxError>(1) });
            load.await.unwrap();
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
    });
    let before = (cache.stats().hits, std::time::Instant::now());
    let json = printed(&run(&server, &["top", "--seconds", "5", "--json"]).await, 0);
    let rate = (cache.stats().hits - before.0) as f64 / before.1.elapsed().as_secs_f64();
    let last: Value = serde_json::from_str(json.lines().last().unwrap()).unwrap();
    let shown = last["hits"].as_f64().unwrap();
    assert!(shown > 0.5 * rate && shown < 1.5 * rate, "{shown} of {rate}: {json}");
    assert_eq!(last["processes"], 1);
    // The one that waits goes on for the one that ends.
    first.abort();
    second.abort();
    let json = printed(&run(&server, &["top", "--seconds", "5", "--json"]).await, 0);
    assert!(json.lines().last().unwrap().contains(r#""processes":1"#), "{json}");
}

fn locks(server: &RedisServer) -> Locks {
    Locks::new(testkit::open(server.url()), NAMESPACE)
}

/// Returns the lock of a name in the last second of `top`.
async fn shown(server: &RedisServer, name: &str) -> Value {
    let json = printed(&run(server, &["top", "--seconds", "5", "--json"]).await, 0);
    let last: Value = serde_json::from_str(json.lines().last().unwrap()).unwrap();
    let of_name = |lock: &&Value| lock["name"] == name;
    let lock = last["locks"].as_array().unwrap().iter().find(of_name).cloned();
    lock.unwrap_or_else(|| panic!("{name} is not listed: {json}"))
}

/// Waits until a row of a terminal has this name and this number of callers.
async fn until_callers(terminal: &Terminal, name: &str, callers: &str) {
    let is_shown = |screen: &str| {
        screen.lines().any(|row| {
            row.starts_with(&format!("{name} ")) && row.ends_with(&format!("  {callers}"))
        })
    };
    terminal.comes_to(&format!("{name} with {callers} callers"), is_shown).await;
}

/// The server does not know callers in the process of the holder.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callers_in_the_process_of_the_holder_are_shown() {
    let server = RedisServer::start().await;
    let here = locks(&server);
    let _held = (
        here.mutex("plain").lock().await.unwrap(),
        here.mutex("fair").lock().await.unwrap(),
        here.rw_lock("rw").write().await.unwrap(),
        here.semaphore("permits", 1).acquire().await.unwrap(),
    );
    let mut waiting = JoinSet::new();
    for number in 0..3 {
        let mutex = here.mutex("plain");
        waiting.spawn(async move { drop(mutex.lock().await) });
        if number < 2 {
            let fair = here.mutex("fair").fair();
            let rw = here.rw_lock("rw");
            waiting.spawn(async move { drop(fair.lock().await) });
            waiting.spawn(async move { drop(rw.read().await) });
        }
    }
    let semaphore = here.semaphore("permits", 1);
    waiting.spawn(async move { drop(semaphore.acquire().await) });
    let terminal = Terminal::open(&server.url());
    terminal.enter("bellwether top");
    until_callers(&terminal, "plain", "not known").await;
    let lock = shown(&server, "plain").await;
    assert!(lock["callers"].is_null() && lock["waiting"] == 0, "{lock}");
    // Two tasks of one `Locks` count once.
    for locks in [here.clone(), here.clone()] {
        tokio::spawn(locks.answer_top());
    }
    for (name, callers) in [("plain", "3"), ("fair", "2"), ("rw", "2"), ("permits", "1")] {
        until_callers(&terminal, name, callers).await;
    }
    terminal.shows("1 processes").await;
    let lock = shown(&server, "plain").await;
    assert_eq!((&lock["callers"], &lock["more_callers"]), (&3.into(), &false.into()), "{lock}");
    // Those that left are counted no more.
    waiting.shutdown().await;
    until_callers(&terminal, "plain", "0").await;
    terminal.press("C-c");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callers_of_a_process_that_does_not_answer_are_not_known() {
    let server = RedisServer::start().await;
    let here = locks(&server);
    tokio::spawn(here.answer_top());
    // It has an id of its own.
    let backend = RedisBackend::builder().server(server.url()).build().unwrap();
    let silent = Locks::new(backend, NAMESPACE);
    let _held = silent.mutex("import").lock().await.unwrap();
    let terminal = Terminal::open(&server.url());
    terminal.enter("bellwether top");
    terminal.shows("1 processes").await;
    until_callers(&terminal, "import", "not known").await;
    let mutex = here.mutex("import");
    let waiter = tokio::spawn(async move { drop(mutex.lock().await) });
    until_callers(&terminal, "import", "1 or more").await;
    waiter.abort();
    terminal.press("C-c");
}

/// A process names 20 locks.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callers_of_a_lock_that_an_answer_leaves_out_are_not_known() {
    let server = RedisServer::start().await;
    let here = locks(&server);
    tokio::spawn(here.answer_top());
    let mut held = Vec::new();
    let mut waiting = JoinSet::new();
    for number in 0..21 {
        let mutex = here.mutex(format!("import:{number:02}"));
        held.push(mutex.lock().await.unwrap());
        let callers = if number == 0 { 1 } else { 2 };
        for _ in 0..callers {
            let mutex = mutex.clone();
            waiting.spawn(async move { drop(mutex.lock().await) });
        }
    }
    let terminal = Terminal::open_sized(&server.url(), 80, 40);
    terminal.enter("bellwether top");
    until_callers(&terminal, "import:20", "2").await;
    until_callers(&terminal, "import:00", "not known").await;
    terminal.press("C-c");
}
