//! The ACL rules of `docs/redis.md`: each rule is enough, and each permission in it is used.
//!
//! The rules are read from that page, so the page and this test cannot differ.

use std::{fmt::Debug, slice::from_ref, time::SystemTime};

use bellwether::{Redlock, lock::Upgrade};
use testkit::primitives::{Asked, FAIR, MANY, MUTEX, READER};

use crate::prelude::*;

const PAGE: &str = include_str!("../../docs/redis.md");

/// A rule of the page: the words of the code block behind `<!-- acl: name -->`.
fn rule(name: &str) -> Vec<&'static str> {
    let marker = format!("<!-- acl: {name} -->");
    let (_, rest) =
        PAGE.split_once(&marker).unwrap_or_else(|| panic!("the page has no rule {name}"));
    let block = rest.split("```").nth(1).unwrap();
    // The first word names the language of the block.
    block.split_whitespace().skip(1).collect()
}

/// Returns the refusals so far, each with its user and the refused command, key or channel. The
/// client library names itself from version 7.2 on, and ignores the answer.
async fn refusals(raw: &mut Raw) -> Vec<(String, String)> {
    let log: Vec<Vec<redis::Value>> = raw.run(&["ACL", "LOG", "1000"]).await;
    let text = |fields: &[redis::Value], name: &str| {
        let at = fields.chunks(2).find(|pair| words(&pair[0]) == name);
        at.map_or(String::new(), |pair| words(&pair[1]))
    };
    let all = log.iter().map(|entry| (text(entry, "username"), text(entry, "object")));
    all.filter(|(_, what)| !what.starts_with("client")).collect()
}

async fn nothing_is_refused(servers: &[RedisServer]) {
    for server in servers {
        assert_eq!(refusals(&mut server.raw().await).await, []);
    }
}

fn words(value: &redis::Value) -> String {
    redis::from_redis_value(value.clone()).unwrap_or_default()
}

/// Returns two backends, which the server sees as two processes.
fn backends<const N: usize>(url: &str) -> [RedisBackend; N] {
    [(); N].map(|()| testkit::open(url))
}

fn failed(what: &str) -> Error {
    Error::from(bellwether::error::BackendError::new(
        bellwether::error::BackendErrorKind::Refused,
        what.to_owned(),
    ))
}

fn check(holds: bool, what: &str) -> Result<(), Error> {
    if holds { Ok(()) } else { Err(failed(what)) }
}

/// Runs every operation of a cache, by processes that contend. More wait than a lease lists.
async fn use_caches(backends: [RedisBackend; 9], key: &str) -> Result<(), Error> {
    backends[0].ping().await?;
    let caches = backends.map(|backend| {
        let cache = Cache::<String>::builder(backend, "shop");
        // Without the right to publish, the other process waits for the end of this lease.
        cache.lease(4000 * MS).build().unwrap()
    });
    let begun = Arc::new(Notify::new());
    let slow = |cache: &Cache<String>, word: &'static str| {
        let begun = begun.clone();
        cache.request(key).load(move |lead| async move {
            begun.notify_one();
            // The lease is renewed meanwhile, and all others have begun to wait.
            tokio::select! {
                () = lead.lost() => Err(BoxError::from("the lease was lost")),
                () = sleep(5000 * MS) => Ok(word.to_owned()),
            }
        })
    };
    let [one, two, ..] = &caches;
    let (led, followed) = tokio::join!(slow(one, "a"), async {
        begun.notified().await;
        join_all(caches[1..].iter().map(|cache| slow(cache, "b"))).await
    });
    check(led?.source == Source::Led, "the load had no lease")?;
    for one in followed {
        check(one?.source == Source::Received, "the value was not received")?;
    }
    let hit = two.request(key).load(|_| async { Err(BoxError::from("the value is stored")) });
    check(hit.await?.source == Source::Hit, "the value was not stored")?;
    one.insert(key, &"c".to_owned()).await?;
    one.invalidate(key).await?;
    check(two.get(key).await?.is_none(), "the value was not invalidated")?;
    let large = "x".repeat(100 << 10);
    one.insert(key, &large).await?;
    check(two.get(key).await? == Some(large), "the large value was not stored")?;
    one.invalidate(key).await?;
    let failing = one.request(key).load(|_| async { Err(BoxError::from("on purpose")) });
    check(failing.await.is_err(), "a failed load succeeded")?;
    let again = one.request(key).load(|_| async { Ok::<_, BoxError>("d".to_owned()) });
    check(again.await?.source == Source::Led, "the lease of a failed load stays")?;
    let kept = one.request(key).stale_if_error(Duration::from_secs(60));
    kept.insert(&"e".to_owned()).await?;
    two.expire(key).await?;
    let unchanged = one.request(key).load(|lead| async move {
        let stale = lead.stale().ok_or("there is no stale value")?;
        Ok::<_, BoxError>(lead.unchanged(stale))
    });
    check(unchanged.await?.value == "e", "the value changed")?;
    two.request(key).refresh(|_| async { Ok::<_, BoxError>("f".to_owned()) }).await?;
    check(one.get(key).await?.as_deref() == Some("f"), "the value was not refreshed")?;
    check(one.stats().unchanged == 1, "the entry was not renewed")
}

fn locks(backend: RedisBackend) -> Locks {
    Locks::new(backend, "shop")
}

/// Waits until a caller waits for a lock: it has a queue entry at one of the servers, or it has
/// failed.
async fn until_queued<T>(servers: &[RedisServer], key: &str, waiting: &JoinHandle<T>) {
    let mut raws = join_all(servers.iter().map(RedisServer::raw)).await;
    let queues = format!("*{{{key}}}:*[qu]");
    let queued = async || {
        let queues = join_all(raws.iter_mut().map(|raw| raw.keys(&queues))).await;
        waiting.is_finished() || !queues.concat().is_empty()
    };
    assert!(comes_true(LIMIT, queued).await, "no caller waits for {key}");
}

/// Runs every operation of each lock, by two processes that contend.
async fn use_locks(
    servers: &[RedisServer],
    [one, two]: [RedisBackend; 2],
    key: &str,
) -> Result<(), Error> {
    one.ping().await?;
    let [one, two] = [one, two].map(locks);
    for pair in [MUTEX, FAIR, READER, MANY] {
        let asked = |locks: &Locks| {
            let locks = locks.clone();
            let name = key.to_owned();
            Asked { locks, name, lease: LEASE, wait: LIMIT }
        };
        let Some(guard) = (pair.one.attempt)(asked(&one)).await? else {
            return Err(failed("the free lock was refused"));
        };
        guard.renew().await?;
        let waiting = tokio::spawn((pair.rival.take)(asked(&two)));
        until_queued(servers, key, &waiting).await;
        guard.give_back().await?;
        waiting.await.unwrap()?.give_back().await?;
    }
    use_mutexes(&one, &two, key).await?;
    use_shared_locks(&one, &two, key).await?;
    let job = |locks: &Locks| locks.once(format!("{key}-job"), SystemTime::UNIX_EPOCH);
    let Some(turn) = job(&one).begin().await? else {
        return Err(failed("a tick has no turn"));
    };
    turn.done().await?;
    check(job(&two).begin().await?.is_none(), "the tick ran twice")?;
    let [first, second] = [&one, &two].map(|locks| locks.latch(key).wait_limit(LIMIT));
    first.set(2).await?;
    first.count_down().await?;
    check(second.left().await? == 1, "the step was not counted")?;
    let (waited, counted) = tokio::join!(second.wait(), async {
        // Without the right to subscribe, the waiter leaves no trace at the server.
        sleep(50 * MS).await;
        first.count_down().await
    });
    waited?;
    counted?;
    first.clear().await.map(drop)
}

/// Does with mutexes what is more than to hold them and to wait for them.
async fn use_mutexes(one: &Locks, two: &Locks, key: &str) -> Result<(), Error> {
    let forced = one.mutex(key).try_lock().await?;
    check(two.mutex(key).holder().await?.is_some(), "the mutex is not reported as locked")?;
    two.mutex(key).force_unlock().await?;
    drop(forced);
    let holder = one.reentrant_mutex(format!("{key}-again"));
    let outer = holder.lock().await?;
    let inner = holder.lock().await?;
    inner.unlock().await?;
    outer.unlock().await?;
    let several = two.several([format!("{key}-x"), format!("{key}-y")]).wait_limit(LIMIT);
    several.lock().await?.unlock().await
}

async fn use_shared_locks(one: &Locks, two: &Locks, key: &str) -> Result<(), Error> {
    let [here, there] = [one, two].map(|locks| locks.rw_lock(key).wait_limit(LIMIT));
    let reader = here.write().await?.downgrade().await?;
    let readers = there.holder().await?.map_or(0, |held| held.holders);
    check(readers == 1, "the reader is not counted")?;
    let Upgrade::Done(writer) = reader.try_upgrade().await? else {
        return Err(failed("the only reader was not upgraded"));
    };
    let is_writer = there.holder().await?.is_some_and(|held| held.fence > 0);
    check(is_writer, "the writer is not reported")?;
    writer.unlock().await?;
    here.force_unlock().await?;
    let [here, there] = [one, two].map(|locks| locks.semaphore(key, 2).wait_limit(LIMIT));
    let permit = here.acquire_many(2).await?;
    check(there.available().await? == 0, "a permit is still available")?;
    permit.unlock().await?;
    let permits = one.permits(format!("{key}-ids"), 1).wait_limit(LIMIT);
    let id = permits.acquire().await?;
    permits.renew(id).await?;
    assert!(permits.release(id).await?);
    here.force_unlock().await.map(drop)
}

async fn use_all(server: &RedisServer, user: &str, family: &str, key: &str) -> Result<(), Error> {
    let url = server.url_of(&format!("{user}:secret"), 0);
    match family {
        "caches" => use_caches(backends(&url), key).await,
        _ => use_locks(from_ref(server), backends(&url), key).await,
    }
}

/// These only make operations faster. Each of `eval` and `script|load` is enough without the other.
const FASTER: [&str; 7] =
    ["+publish", "+subscribe", "+unsubscribe", "+role", "+info", "+eval", "+script|load"];

/// Each user but the first lacks one permission. A failure or a refusal shows that it is used. The
/// first user has the whole rule, which is enough.
async fn each_permission_is_used(family: &str) {
    let server = RedisServer::start().await;
    let mut raw = server.raw().await;
    let all = rule(family);
    // The patterns of keys are checked by another test.
    let lacking = all.iter().copied().filter(|word| !word.starts_with('~'));
    let mut users = Vec::new();
    for (at, lacks) in [""].into_iter().chain(lacking).enumerate() {
        let user = format!("user-{at}");
        let rest: Vec<_> = all.iter().copied().filter(|word| *word != lacks).collect();
        raw.set_user(&user, &rest).await;
        users.push((user, lacks));
    }
    assert!(users.len() > 16, "{users:?}");
    let outcomes = users.iter().map(async |(user, lacks)| {
        // Each operation gets enough time, so that a slow one is not taken for a failed one.
        (user, *lacks, timeout(LIMIT, use_all(&server, user, family, user)).await)
    });
    let outcomes = join_all(outcomes).await;
    let refused = refusals(&mut raw).await;
    for (user, lacks, outcome) in outcomes {
        let context = format!("{family} without {lacks}: {outcome:?}, {refused:?}");
        let is_enough = lacks.is_empty() || lacks.starts_with('&') || FASTER.contains(&lacks);
        assert_eq!(matches!(outcome, Ok(Ok(()))), is_enough, "{context}");
        let object = lacks.trim_start_matches(['+', '&']).trim_end_matches('*');
        let object = object.split('|').next().unwrap();
        let is_used = refused.iter().any(|(name, what)| name == user && what.starts_with(object));
        // `EVAL` is sent only if the server does not know the script.
        assert!(is_used != lacks.is_empty() || lacks == "+eval", "{context}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scripts_need_one_of_two_permissions() {
    let server = RedisServer::start().await;
    let rest = rule("locks").into_iter().filter(|word| !["+eval", "+script|load"].contains(word));
    server.raw().await.set_user("app", &rest.collect::<Vec<_>>()).await;
    let mutex = locks(testkit::open(server.url_of("app:secret", 0))).mutex("k");
    for _ in 0..5 {
        mutex.try_lock().await.unwrap_err();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_permission_for_caches_is_used() {
    each_permission_is_used("caches").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_permission_for_locks_is_used() {
    each_permission_is_used("locks").await;
}

/// A cache with tags needs some more, and no word too many.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_rule_for_tags_is_enough_and_each_word_of_it_is_used() {
    let server = RedisServer::start().await;
    let mut raw = server.raw().await;
    let lacking = [None].into_iter().chain(rule("tags").into_iter().map(Some));
    for (at, lacks) in lacking.enumerate() {
        let words: Vec<_> = rule("caches").into_iter().chain(rule("tags")).collect();
        let words: Vec<_> = words.into_iter().filter(|word| Some(*word) != lacks).collect();
        let user = format!("user-{at}");
        raw.set_user(&user, &words).await;
        let [here, there] = backends(&server.url_of(&format!("{user}:secret"), 0)).map(|backend| {
            let builder = Cache::<u64>::builder(backend, "shop").tags();
            builder.local(LocalTier::default()).build().unwrap()
        });
        let use_tags = async || {
            there.request("k").tag("a").insert(&1).await?;
            let has_copy = async || here.get("k").await.is_ok() && here.get_local("k").is_some();
            check(comes_true(LIMIT / 10, has_copy).await, "no copy is kept")?;
            there.invalidate_tag("a").await?;
            let ended = async || matches!(here.get("k").await, Ok(None));
            check(comes_true(LIMIT / 10, ended).await, "the tag has not ended")
        };
        let done = use_tags().await;
        let refused = refusals(&mut raw).await;
        let is_refused = refused.iter().any(|(of, _)| *of == user);
        assert_eq!(is_refused, lacks.is_some(), "{lacks:?}: {refused:?}");
        assert_eq!(done.is_ok(), lacks.is_none(), "{lacks:?}: {done:?}");
    }
}

/// All that operators look at needs one word more, which only the search of locks uses.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn locks_and_keys_are_looked_into_by_users_of_theirs() {
    let server = RedisServer::start().await;
    let mut raw = server.raw().await;
    for (user, scans) in [("app", false), ("operator", true)] {
        let more: &[&str] = if scans { &["list"] } else { &[] };
        let words: Vec<_> =
            ["caches", "locks"].iter().chain(more).flat_map(|name| rule(name)).collect();
        raw.set_user(user, &words).await;
        let backend = testkit::open(server.url_of(&format!("{user}:secret"), 0));
        let locks = locks(backend.clone()).owner("pod-7");
        let guard = locks.mutex(user).lock().await.unwrap();
        assert_eq!(locks.explain(user).await.unwrap()[0].held.fence, guard.fence());
        assert_eq!(locks.list().await.is_ok(), scans, "{user}");
        let cache: Cache<u32> = Cache::builder(backend, "shop").build().unwrap();
        cache.insert(user, &7).await.unwrap();
        assert!(cache.explain(user).await.unwrap().entry.is_some());
    }
    let refused = refusals(&mut raw).await;
    assert!(refused.iter().all(|(user, what)| user == "app" && what == "scan"), "{refused:?}");
}

/// The patterns keep a user to its own keys and channels.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_rule_for_caches_forbids_locks() {
    let server = RedisServer::start().await;
    server.raw().await.set_user("app", &rule("caches")).await;
    let backend = testkit::open(server.url_of("app:secret", 0));
    let mutex = locks(backend.clone()).mutex("k");
    mutex.try_lock().await.unwrap_err();
    let other: Cache<String> = Cache::builder(backend, "other").build().unwrap();
    other.insert("k", &"v".to_owned()).await.unwrap_err();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_rule_for_a_majority_is_enough() {
    let servers = join_all((0..3).map(|_| RedisServer::start())).await;
    for server in &servers {
        server.raw().await.set_user("app", &rule("redlock")).await;
    }
    let backend = |server: &RedisServer| testkit::open(server.url_of("app:secret", 0));
    let [one, two] = [0, 1].map(|_| {
        let backends = servers.iter().map(&backend);
        let redlock =
            Redlock::with_answer_limit(backends.collect::<Vec<_>>(), "shop", LIMIT).unwrap();
        redlock.mutex("k").wait_limit(LIMIT)
    });
    let guard = one.lock().await.unwrap();
    guard.renew().await.unwrap();
    let waiting = tokio::spawn(async move { two.lock().await.unwrap() });
    let mut raws = join_all(servers.iter().map(RedisServer::raw)).await;
    let listens = async || {
        let channels = join_all(raws.iter_mut().map(|raw| raw.pubsub_channels())).await;
        waiting.is_finished() || channels.concat().contains(&"shop:r:{k}:c".to_owned())
    };
    assert!(comes_true(LIMIT, listens).await, "no caller waits");
    guard.unlock().await.unwrap();
    let held = waiting.await.unwrap();
    assert!(one.force_unlock().await.unwrap());
    drop(held);
    nothing_is_refused(&servers).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_rules_for_a_cluster_are_enough() {
    let cluster = Cluster::start(3, 0).await;
    for server in &cluster.nodes {
        let mut raw = server.raw().await;
        for family in ["caches", "locks"] {
            let rule = [rule(family), rule("cluster")].concat();
            raw.set_user(family, &rule).await;
        }
    }
    fn backends<const N: usize>(cluster: &Cluster, user: &str) -> [RedisBackend; N] {
        let urls: Vec<_> = cluster.nodes.iter().map(|node| node.url_of(user, 0)).collect();
        let urls: Vec<_> = urls.iter().map(|url| url.trim_end_matches("/0").to_owned()).collect();
        [(); N].map(|()| testkit::builder().cluster(&urls).build().unwrap())
    }
    let caches = timeout(3 * LIMIT, use_caches(backends(&cluster, "caches:secret"), "k")).await;
    caches.expect("the operations hang").unwrap();
    let locks = backends(&cluster, "locks:secret");
    let locks = timeout(3 * LIMIT, use_locks(&cluster.nodes, locks, "k")).await;
    locks.expect("the operations hang").unwrap();
    nothing_is_refused(&cluster.nodes).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_check_at_the_start_names_the_missing_right() {
    const ALWAYS: [&str; 8] = ["get", "set", "del", "exists", "pttl", "pexpire", "time", "publish"];
    let server = RedisServer::start().await;
    let mut raw = server.raw().await;
    let ready =
        async |user: &str| testkit::open(server.url_of(&format!("{user}:secret"), 0)).ready().await;
    for (family, others) in [
        ("caches", &["getrange", "setrange", "rename", "append"][..]),
        ("locks", &["zadd", "zrem", "zrange", "zcount", "zscore"]),
        ("locks", &["hset", "hmget", "unlink"]),
    ] {
        let all = rule(family);
        raw.set_user("all", &all).await;
        ready("all").await.unwrap();
        for lacks in ALWAYS.iter().chain(others) {
            let rest = all.iter().copied().filter(|word| word.trim_start_matches('+') != *lacks);
            raw.set_user(lacks, &rest.collect::<Vec<_>>()).await;
            let checked = ready(lacks).await;
            let error = format!("{:#}", checked.expect_err(lacks));
            assert!(error.contains(&format!("may not run {lacks};")), "{family}: {error}");
        }
    }
    let backend = testkit::open(server.url_of("get:secret", 0));
    let held = locks(testkit::open(server.url())).mutex("k").lock().await.unwrap();
    let error = locks(backend).mutex("k").try_lock().await.unwrap_err();
    let told = format!("{error:#}");
    assert!(
        told.contains("refused") && told.contains("ready") && !told.contains("write"),
        "{told}"
    );
    held.unlock().await.unwrap();
    // A user with all rights needs one check, which leaves nothing behind.
    testkit::open(server.url()).ready().await.unwrap();
    assert_eq!(raw.keys("bellwether:rights:*").await, [""; 0]);
}

/// Asserts that a call failed because an ACL forbids a command of its script.
fn assert_refused<T: Debug>(outcome: Result<T, Error>, what: &str) {
    let error = format!("{:#}", outcome.expect_err(what));
    assert!(error.contains("refused the operation"), "{what}: {error}");
    assert!(error.contains("an ACL forbids a command"), "{what}: {error}");
}

/// A script must not take a refused read for a missing key.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_that_is_refused_is_told_as_such() {
    let server = RedisServer::start().await;
    let mut raw = server.raw().await;
    let all = ["+@all", "~*", "&*"];
    raw.set_user("app", &all).await;
    let backend = testkit::open(server.url_of("app:secret", 0));
    let locks = locks(backend.clone());
    let cache = Cache::<String>::builder(backend, "shop").build().unwrap();

    let mutex = locks.mutex("m").lock().await.unwrap();
    let writer = locks.rw_lock("w").write().await.unwrap();
    raw.set_user("app", &[&all[..], &["-get"]].concat()).await;
    assert_refused(mutex.renew().await, "the renewal of a mutex");
    assert!(!mutex.is_lost());
    assert_refused(mutex.unlock().await, "the release of a mutex");
    assert_refused(writer.unlock().await, "the release of a writer");
    assert_refused(cache.insert("k", &"v".to_owned()).await, "an insert");
    assert_refused(cache.invalidate("k").await, "an invalidation");
    raw.set_user("app", &all).await;
    let mut operator = server.raw().await;
    let load = cache.request("k").load(move |_| async move {
        operator.set_user("app", &[&all[..], &["-get"]].concat()).await;
        Ok::<_, BoxError>("v".to_owned())
    });
    load.await.unwrap();
    assert_eq!(cache.stats().unstored, 1);

    raw.set_user("app", &all).await;
    let reader = locks.rw_lock("r").read().await.unwrap();
    let permit = locks.semaphore("s", 2).acquire().await.unwrap();
    raw.set_user("app", &[&all[..], &["-zscore"]].concat()).await;
    assert_refused(reader.renew().await, "the renewal of a reader");
    assert_refused(reader.unlock().await, "the release of a reader");
    assert_refused(permit.unlock().await, "the release of a permit");

    // A refused queue entry is none of a full server, which is asked again.
    raw.set_user("app", &[&all[..], &["-zadd"]].concat()).await;
    let held = locks.mutex("q").lock().await.unwrap();
    let waiter = self::locks(testkit::open(server.url_of("app:secret", 0))).mutex("q");
    assert_refused(waiter.wait_limit(300 * MS).lock().await, "a wait for a mutex");
    held.unlock().await.unwrap();

    raw.set_user("app", &[&all[..], &["-hmget"]].concat()).await;
    locks.latch("l").set(1).await.unwrap();
    assert_refused(locks.latch("l").left().await, "a look at a latch");
}
