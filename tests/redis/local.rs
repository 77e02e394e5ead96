//! The local tier of two processes over a server. Each backend stands for a process.

use std::sync::Mutex;

use bellwether::cache::EarlyRefresh;
use testkit::proxy::Mode;

use crate::prelude::*;

const STALENESS: Duration = Duration::from_millis(500);

fn cache(backend: RedisBackend) -> Cache<u64> {
    let tier = LocalTier::default().max_staleness(STALENESS);
    Cache::builder(backend, "local").local(tier).build().unwrap()
}

fn open(url: impl Into<String>) -> Cache<u64> {
    cache(testkit::open(url.into()))
}

/// Waits until the tier serves its copy no longer. Returns when the last call began that was served
/// the copy.
async fn dropped(cache: &Cache<u64>, key: &str) -> Duration {
    let since = Instant::now();
    let mut last = Duration::ZERO;
    let is_gone = async || {
        let asked = since.elapsed();
        let copy = cache.get_local(key);
        last = if copy.is_some() { asked } else { last };
        copy.is_none()
    };
    assert!(comes_true(LIMIT, is_gone).await, "the copy stays");
    last
}

#[tokio::test]
async fn a_copy_costs_no_command_and_each_change_ends_it() {
    let server = RedisServer::start().await;
    for database in [0, 3] {
        let url = server.url_of("", database);
        let here = open(&url);
        let there = open(&url);
        there.insert("k", &1).await.unwrap();
        warm(&here, "k").await;
        let mut monitor = server.monitor().await;
        for _ in 0..100 {
            assert_eq!(here.get("k").await.unwrap(), Some(1));
        }
        for call in monitor.calls_from_clients().await {
            assert!(["EVALSHA", "PING"].contains(&&*call.command), "{call:?}");
        }
        let mut slowest = Duration::ZERO;
        for act in 0..20 {
            match act % 4 {
                0 => drop(there.insert("k", &act).await.unwrap()),
                1 => assert!(there.request("k").touch().await.unwrap()),
                2 => drop(there.expire("k").await.unwrap()),
                _ => drop(there.invalidate("k").await.unwrap()),
            }
            slowest = slowest.max(dropped(&here, "k").await);
            assert_eq!(here.stats().local_dropped, act + 1);
            there.insert("k", &act).await.unwrap();
            warm(&here, "k").await;
            assert_eq!(here.get_local("k"), Some(act));
        }
        println!("the slowest drop of database {database} took {slowest:?}");
        assert!(slowest < STALENESS, "{slowest:?}");
    }
}

/// The first value of a key replaces none, and no process is told. Each refresh is told, whole or
/// unchanged, small or large.
#[tokio::test]
async fn a_refresh_in_another_process_ends_the_copy() {
    let server = RedisServer::start().await;
    let caches = [(); 2].map(|()| {
        let builder = Cache::<String>::builder(testkit::open(server.url()), "local");
        let builder = builder.early_refresh(EarlyRefresh::Within(Duration::from_secs(20)));
        let tier = LocalTier::default().max_staleness(STALENESS);
        builder.ttl(Duration::from_secs(60)).local(tier).build().unwrap()
    });
    let [here, there] = &caches;
    for size in [10, 100_000] {
        for unchanged in [false, true] {
            let key = format!("{size}:{unchanged}");
            there.insert(&key, &"a".repeat(size)).await.unwrap();
            warm(here, &key).await;
            let fence = here.peek(&key).await.unwrap().unwrap().fence();
            let load = there.request(&key).refresh(move |lead| async move {
                Ok::<_, BoxError>(match lead.stale().filter(|_| unchanged) {
                    Some(old) => lead.unchanged(old),
                    None => "b".repeat(size),
                })
            });
            load.await.unwrap();
            let gone = async || here.get_local(&key).is_none();
            assert!(comes_true(STALENESS, gone).await, "{key}");
            assert!(here.peek(&key).await.unwrap().unwrap().fence() > fence, "{key}");
        }
    }
}

/// An entry without a stale window is read with its age where a cache refreshes early, also without
/// a tier.
#[tokio::test]
async fn a_value_is_refreshed_early_by_the_clock_of_the_server() {
    let server = RedisServer::start().await;
    let ttl = Duration::from_secs(600);
    let builder = Cache::<u64>::builder(testkit::open(server.url()), "early").ttl(ttl);
    let cache = builder.early_refresh(EarlyRefresh::Within(ttl / 4)).build().unwrap();
    cache.insert("k", &1).await.unwrap();
    let ask = async || cache.get_or_load("k", |_| async { Ok::<_, BoxError>(2) }).await.unwrap();
    server.raw().await.age(ttl / 2).await;
    assert_eq!((ask().await, cache.stats().loads), (1, 0));
    server.raw().await.age(ttl / 3).await;
    assert_eq!(ask().await, 1);
    assert!(comes_true(LIMIT, async || ask().await == 2).await, "the value is not refreshed");
    assert_eq!(cache.stats().loads, 1);
}

/// Reads from a process for a while, during which another one writes. Asserts that no read is
/// older than the bound. Returns how many reads were of a copy.
async fn read_and_write(here: &Cache<u64>, there: &Cache<u64>, time: Duration) -> usize {
    let begun = Instant::now();
    let mut written = Vec::new();
    let mut local = 0;
    while begun.elapsed() < time {
        if written.last().is_none_or(|last: &Instant| last.elapsed() > 300 * MS) {
            there.insert("k", &(written.len() as u64)).await.unwrap();
            written.push(Instant::now());
        }
        let asked = Instant::now();
        let copy = here.get_local("k");
        local += usize::from(copy.is_some());
        let read = match copy {
            Some(copy) => Some(copy),
            None => here.get("k").await.ok().flatten(),
        };
        if let Some(read) = read {
            let next = written.get(read as usize + 1);
            let late = next.map_or(Duration::ZERO, |next| asked.saturating_duration_since(*next));
            assert!(late <= STALENESS, "a read is {late:?} behind");
        }
        sleep(MS).await;
    }
    local
}

#[tokio::test]
async fn no_copy_is_older_than_the_bound_while_pushes_are_late_or_lost() {
    let server = RedisServer::start().await;
    let proxy = Proxy::start(server.port());
    let here = open(proxy.url());
    let there = open(server.url());
    there.insert("k", &0).await.unwrap();
    warm(&here, "k").await;
    for fault in [
        None,
        Some(PushFault::Delay(200 * MS)),
        Some(PushFault::Delay(2_000 * MS)),
        Some(PushFault::Drop),
        Some(PushFault::Double),
    ] {
        proxy.set_push_fault(fault);
        let local = read_and_write(&here, &there, 2_500 * MS).await;
        println!("{fault:?}: {local} local reads");
        assert!(local > 100, "{fault:?}: {local}");
    }
    proxy.set_push_fault(None);
    proxy.cut();
    warm(&here, "k").await;
}

#[tokio::test]
async fn no_copy_is_older_than_the_bound_while_connections_break() {
    let server = RedisServer::start().await;
    let proxy = Proxy::start(server.port());
    let here = open(proxy.url());
    let there = open(server.url());
    there.insert("k", &0).await.unwrap();
    warm(&here, "k").await;
    let cuts = async {
        for _ in 0..20 {
            sleep(200 * MS).await;
            proxy.cut();
        }
    };
    let mut raw = server.raw().await;
    let kills = async {
        for _ in 0..20 {
            sleep(130 * MS).await;
            raw.kill_clients("pubsub").await;
        }
    };
    let (local, (), ()) = tokio::join!(read_and_write(&here, &there, 4_000 * MS), cuts, kills);
    println!("{local} local reads");
    // With none, this would show nothing.
    assert!(local > 20, "{local}");
}

/// A network that swallows all that this process sends and gets, for five seconds.
#[tokio::test]
async fn a_process_that_is_cut_off_trusts_nothing_and_then_heals() {
    let server = RedisServer::start().await;
    let proxy = Proxy::start(server.port());
    let limit = Duration::from_millis(250);
    let backend = RedisBackend::builder().server(proxy.url()).command_timeout(limit);
    let here = cache(backend.build().unwrap());
    let there = open(server.url());
    there.insert("k", &1).await.unwrap();
    warm(&here, "k").await;
    proxy.set_mode(Mode::Stall);
    let stalled = Instant::now();
    there.insert("k", &2).await.unwrap();
    let took = dropped(&here, "k").await;
    println!("a process that was cut off served its copy for {took:?}");
    assert!(took <= STALENESS, "{took:?}");
    while stalled.elapsed() < Duration::from_secs(5) {
        assert_eq!(here.get_local("k"), None);
        assert!(here.get("k").await.is_err());
        sleep(50 * MS).await;
    }
    let before = proxy.seen("GET");
    proxy.set_mode(Mode::Pass);
    // Each of the callers asks as soon as the backend may be asked again.
    let callers = (0..100).map(async |_| {
        assert!(
            comes_true(LIMIT, async || matches!(here.get("k").await, Ok(Some(2)))).await,
            "no value"
        );
    });
    futures_util::future::join_all(callers).await;
    let untrusted = here.stats().local_untrusted_seconds;
    assert!((4..7).contains(&untrusted), "{untrusted} s without trust");
    let asked = proxy.seen("GET") - before;
    println!("100 callers sent {asked} reads when the network was whole again");
    assert!(asked < 100, "{asked}");
    warm(&here, "k").await;
    assert_eq!(here.get_local("k"), Some(2));
}

/// It may be an old master, which other processes have left. It still publishes.
#[tokio::test]
async fn a_server_that_refuses_writes_is_not_trusted() {
    for refuse in [
        &["CONFIG", "SET", "min-replicas-to-write", "1"][..],
        // No connection ends, as it does when sentinels demote a master.
        &["REPLICAOF", "127.0.0.1", "1"],
    ] {
        let server = RedisServer::start().await;
        let mut raw = server.raw().await;
        let tier = LocalTier::default().max_staleness(STALENESS).max_age(2 * LIMIT);
        let builder = Cache::<u64>::builder(testkit::open(server.url()), "bellwether").local(tier);
        let here = builder.build().unwrap();
        here.insert("k", &1).await.unwrap();
        warm(&here, "k").await;
        raw.run::<()>(refuse).await;
        let took = dropped(&here, "k").await;
        println!("{refuse:?}: its copy was served for {took:?}");
        assert!(took <= STALENESS + 100 * MS, "{took:?}");
        assert_eq!(here.get_local("k"), None);
    }
}

/// A process that may not publish learns nothing from itself. Each of its copies is good for a
/// while.
#[tokio::test]
async fn a_process_that_may_not_publish_keeps_the_bound() {
    let server = RedisServer::start().await;
    let mut raw = server.raw().await;
    raw.set_user("app", &["~*", "&*", "+@all", "-publish"]).await;
    let here = open(server.url_of("app:secret", 0));
    let there = open(server.url());
    there.insert("k", &0).await.unwrap();
    warm(&here, "k").await;
    let local = read_and_write(&here, &there, 2_000 * MS).await;
    assert!(local > 100, "{local}");
}

#[tokio::test]
async fn a_copy_in_a_cluster_lasts_for_its_age() {
    let cluster = Cluster::start(3, 0).await;
    let caches = [(); 2].map(|()| {
        let backend = testkit::builder().cluster(cluster.urls()).build().unwrap();
        let tier = LocalTier::default().max_age(STALENESS);
        Cache::<u64>::builder(backend, "local").local(tier).build().unwrap()
    });
    let [here, there] = &caches;
    there.insert("k", &1).await.unwrap();
    warm(here, "k").await;
    there.insert("k", &2).await.unwrap();
    assert!(dropped(here, "k").await <= STALENESS);
    assert_eq!(here.get("k").await.unwrap(), Some(2));
    here.insert("k", &3).await.unwrap();
    assert_eq!(here.get_local("k"), None);
    let load = here.request("k").load(|_lead| async { Ok::<_, BoxError>(4) });
    assert_eq!(load.await.unwrap().source, Source::Hit);
}

/// A cache of the user's own is told of changes, and that it may have missed some.
#[tokio::test]
async fn a_watch_is_told_of_changes_and_of_breaks() {
    let server = RedisServer::start().await;
    let plain = || Cache::<u64>::builder(testkit::open(server.url()), "local");
    let here = plain().build().unwrap();
    let there = plain().build().unwrap();
    let told = Arc::new(Mutex::new(Vec::new()));
    let telling = told.clone();
    let watch = here.watch(move |key| telling.lock().unwrap().push(key.map(str::to_owned)));
    let is_told = async |what: Option<&str>| {
        let told = told.lock().unwrap();
        told.iter().any(|key| key.as_deref() == what)
    };
    there.insert("k", &0).await.unwrap();
    let old = there.peek("k").await.unwrap().unwrap();
    let heard = async || watch.insert_if_current(&watch.ticket("k").unwrap(), &old, || ());
    assert!(comes_true(LIMIT, heard).await, "changes are not heard");
    let ticket = watch.ticket("k").unwrap();
    there.insert("k", &1).await.unwrap();
    assert!(comes_true(LIMIT, async || is_told(Some("k")).await).await, "no change is told");
    assert!(!watch.insert_if_current(&ticket, &old, || ()));
    assert!(comes_true(LIMIT, async || watch.lag() < STALENESS).await, "{:?}", watch.lag());
    let ticket = watch.ticket("k").unwrap();
    server.raw().await.kill_clients("pubsub").await;
    assert!(comes_true(LIMIT, async || is_told(None).await).await, "no break is told");
    assert!(!watch.insert_if_current(&ticket, &old, || ()));
    assert!(comes_true(LIMIT, heard).await, "changes are not heard again");
}

/// All that a tier subscribes to ends with its cache and the backend.
#[tokio::test]
async fn a_tier_leaves_nothing_behind() {
    let server = RedisServer::start().await;
    let mut raw = server.raw().await;
    let here = open(server.url());
    here.insert("k", &1).await.unwrap();
    warm(&here, "k").await;
    drop(here);
    assert!(comes_true(LIMIT, async || raw.all_channels().await.is_empty()).await, "some stay");
}

/// The task of the beats began in a runtime that has ended, and the connections live in another. No
/// name is new, so nothing began the beats anew, and each copy lived for the staleness only.
#[test]
fn the_beats_outlive_the_runtime_in_which_they_began() {
    let runtime = || {
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        runtime.worker_threads(1).enable_all().build().unwrap()
    };
    let staying = runtime();
    let ending = runtime();
    let server = staying.block_on(RedisServer::start());
    let cache = open(server.url());
    // It connects, and hears nothing yet.
    assert_eq!(staying.block_on(cache.get("k")).unwrap(), None);
    staying.block_on(cache.insert("k", &1)).unwrap();
    ending.block_on(warm(&cache, "k"));
    drop(ending);
    staying.block_on(async {
        let outlives = async || {
            assert_eq!(cache.get("k").await.unwrap(), Some(1));
            sleep(2 * STALENESS).await;
            cache.get_local("k").is_some()
        };
        assert!(comes_true(LIMIT, outlives).await, "the beats do not begin anew");
    });
}
