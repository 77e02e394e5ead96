//! The promises of a cache. Caches over one memory backend stand for processes.
//!
//! Time is paused, so every wait here is exact and takes no time.

use std::{
    collections::HashMap,
    pin::pin,
    task::{Context, Wake, Waker},
};

use bellwether::{
    backend::Claimed,
    cache::{LocalTier, Raw, Stats},
};
use futures_util::TryFutureExt;
use tokio::sync::Notify;

use crate::{
    origin::{Origin, ShopError},
    prelude::*,
};

#[derive(Debug, PartialEq, thiserror::Error)]
#[error("no such product: {0}")]
struct NoSuchProduct(u32);

type Answer = Result<Loaded<String>, Error>;

/// A process waits for the load of another one, which stores nothing. Of later changes nothing is
/// told, so the value has no time to live, and no cache of the user keeps it.
#[tokio::test(start_paused = true)]
async fn a_value_that_is_not_stored_has_no_time_to_live_elsewhere() {
    let [here, there] = fleet();
    let watch = there.watch(|_| {});
    watch.ticket("k").unwrap();
    let load = here.request("k").load(|lead: Lead<String>| async move {
        lead.do_not_store();
        sleep(100 * MS).await;
        Ok::<_, BoxError>("v".to_owned())
    });
    let load = spawn(load);
    sleep(10 * MS).await;
    let ticket = watch.ticket("k").unwrap();
    let received = there.request("k").load(value("other".to_owned())).await.unwrap();
    assert_eq!((&*received.value, received.source()), ("v", Source::Received));
    assert_eq!(received.expires_in(), None);
    assert!(!watch.insert_if_current(&ticket, &received, || unreachable!("it is not stored")));
    assert_eq!(load.await.unwrap().unwrap().expires_in(), None);
}

/// A caller that loads nothing is served as well.
#[tokio::test(start_paused = true)]
async fn each_look_that_is_served_counts_once() {
    let ttl = 1_000 * MS;
    let [cache] = build(|builder| builder.ttl(ttl).stale_while_revalidate(ttl));
    cache.insert("k", &"v".to_owned()).await.unwrap();
    for _ in 0..3 {
        assert_eq!(cache.get("k").await.unwrap().as_deref(), Some("v"));
    }
    assert_eq!(cache.get("missing").await.unwrap(), None);
    cache.peek("k").await.unwrap();
    let mut expected = Stats::default();
    expected.hits = 3;
    assert_eq!(cache.stats(), expected);
    let keys: Vec<_> = (0..6).map(|id| format!("id:{id}")).collect();
    for key in &keys {
        cache.insert(&**key, &"v".to_owned()).await.unwrap();
    }
    let found = cache.get_many(&keys).await;
    assert!(found.iter().all(|found| found.as_ref().unwrap().is_some()), "{found:?}");
    assert_eq!(cache.stats().hits, 9);
    sleep(ttl).await;
    cache.get("k").await.unwrap();
    cache.get_many(&keys).await;
    let stats = cache.stats();
    assert_eq!((stats.hits, stats.stale), (9, 7));
}

/// The copies of a local tier count apart.
#[tokio::test(start_paused = true)]
async fn each_copy_that_is_served_counts_once() {
    let [cache] = build(|builder| builder.local(LocalTier::default()));
    cache.insert("k", &"v".to_owned()).await.unwrap();
    for hits in 1..3 {
        cache.get("k").await.unwrap();
        let stats = cache.stats();
        assert_eq!((stats.hits, stats.local), (1, hits - 1));
    }
    cache.get_many(["k"]).await;
    cache.get_local("k").unwrap();
    cache.get_or_load("k", value(String::new())).await.unwrap();
    let stats = cache.stats();
    assert_eq!((stats.hits, stats.local), (1, 4));
}

fn build<const N: usize>(set: impl Fn(Builder<String>) -> Builder<String>) -> [Cache<String>; N] {
    let backend = MemoryBackend::new();
    [(); N].map(|()| set(Cache::builder(backend.clone(), "bellwether")).build().unwrap())
}

fn fleet<const N: usize>() -> [Cache<String>; N] {
    build(|builder| builder)
}

/// Returns a loader of an origin, which makes a value with the number of its answer.
fn loader(
    origin: &Origin,
    takes: Duration,
) -> impl FnOnce(Lead<String>) -> BoxFuture<'static, Result<String, ShopError>> + Send + use<> {
    let answer = origin.clone().answer(takes);
    |_| answer.map_ok(|number| format!("value {number}")).boxed()
}

fn ask(cache: &Cache<String>, origin: &Origin, takes: Duration) -> JoinHandle<Answer> {
    spawn(cache.request("k").load(loader(origin, takes)))
}

/// Lets every runnable task run.
async fn settle() {
    sleep(MS).await;
}

async fn sources(asked: impl IntoIterator<Item = JoinHandle<Answer>>) -> HashMap<Source, usize> {
    let mut sources = HashMap::new();
    for answer in all(asked).await {
        *sources.entry(answer.unwrap().source()).or_default() += 1;
    }
    sources
}

#[tokio::test(start_paused = true)]
async fn one_of_a_thousand_callers_in_four_processes_loads() {
    let caches: [_; 4] = fleet();
    let origin = Origin::default();
    let sources = sources((0..1000).map(|n| ask(&caches[n % 4], &origin, 200 * MS))).await;
    assert_eq!(origin.asked(), 1);
    assert_eq!(sources[&Source::Led], 1);
    assert_eq!(sources[&Source::Followed], 249);
    assert!(!sources.contains_key(&Source::Degraded));
    assert_eq!(caches.iter().map(|cache| cache.stats().flights).sum::<u64>(), 0);
    assert_eq!(ask(&caches[3], &origin, MS).await.unwrap().unwrap().source(), Source::Hit);
}

/// The caller that led goes away, like a client that hangs up. A load that was polled by its caller
/// would stop there. All followers would then hang or start anew.
#[tokio::test(start_paused = true)]
async fn a_leader_whose_caller_leaves_costs_no_second_load() {
    let caches: [_; 2] = fleet();
    let origin = Origin::default();
    let first = ask(&caches[0], &origin, 200 * MS);
    settle().await;
    let rest: Vec<_> = (0..20).map(|n| ask(&caches[n % 2], &origin, 200 * MS)).collect();
    settle().await;
    first.abort();
    let begun = Instant::now();
    let sources = sources(rest).await;
    assert!(begun.elapsed() < 200 * MS);
    assert_eq!(origin.asked(), 1);
    assert!(!sources.contains_key(&Source::Led) && !sources.contains_key(&Source::Degraded));
}

#[tokio::test(start_paused = true)]
async fn a_load_without_callers_is_cancelled_if_configured() {
    let [here, there] = build(Builder::cancel_abandoned);
    let origin = Origin::default();
    let callers: Vec<_> = (0..5).map(|_| ask(&here, &origin, 200 * MS)).collect();
    settle().await;
    let waiting = ask(&there, &origin, 200 * MS);
    settle().await;
    callers.iter().skip(1).for_each(JoinHandle::abort);
    settle().await;
    assert_eq!(origin.running(), 1, "the load was cancelled while one caller still waited");
    callers[0].abort();
    settle().await;
    // The other process takes over at once, not only at the end of the lease.
    assert_eq!((origin.asked(), origin.running()), (2, 1));
    assert_eq!(waiting.await.unwrap().unwrap().source(), Source::Led);
    assert_eq!(here.stats().flights, 0);
}

#[tokio::test(start_paused = true)]
async fn a_failed_load_fails_its_waiters_and_no_later_caller() {
    let caches: [_; 2] = fleet();
    let begun = Arc::new(AtomicUsize::new(0));
    let fail = |cache: &Cache<String>| {
        let begun = begun.clone();
        spawn(cache.request("k").load(move |_| async move {
            begun.fetch_add(1, Ordering::SeqCst);
            sleep(50 * MS).await;
            Err::<String, _>(NoSuchProduct(42))
        }))
    };
    let mut local = 0;
    for answer in all((0..40).map(|n| fail(&caches[n % 2]))).await {
        let error = answer.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Load);
        assert!(format!("{error:#}").contains("no such product: 42"), "{error}");
        if let Some(own) = error.load_ref::<NoSuchProduct>() {
            assert_eq!(own, &NoSuchProduct(42));
            assert!(std::error::Error::source(&error).is_some());
            local += 1;
        }
    }
    assert_eq!((begun.load(Ordering::SeqCst), local), (1, 20));
    let origin = Origin::default();
    assert_eq!(ask(&caches[1], &origin, MS).await.unwrap().unwrap().value, "value 1");
}

#[tokio::test(start_paused = true)]
async fn a_panic_is_an_outcome_before_and_after_the_first_await() {
    let caches: [_; 2] = fleet();
    for late in [false, true] {
        let panics = |cache: &Cache<String>| {
            spawn(cache.request("k").load(move |_| {
                assert!(late, "too early");
                let late = || -> Result<String, BoxError> { panic!("too late") };
                sleep(50 * MS).map(move |()| late())
            }))
        };
        let callers = (0..10).map(|n| panics(&caches[n % if late { 2 } else { 1 }]));
        for answer in all(callers).await {
            let error = answer.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Panicked);
            assert!(error.to_string().contains("too "), "{error}");
        }
    }
    assert_eq!(caches[0].stats().flights, 0);
    assert_eq!(caches.iter().map(|cache| cache.stats().failed).sum::<u64>(), 20);
    assert!(caches[0].request("k").load(loader(&Origin::default(), MS)).await.is_ok());
}

/// A loader that hangs under a healthy watchdog would block its key in the whole fleet.
#[tokio::test(start_paused = true)]
async fn a_load_that_hangs_ends_at_the_load_limit() {
    let caches: [_; 2] = build(|builder| builder.load_limit(12 * SECOND));
    let begun = Instant::now();
    let asked = [0, 0, 1].map(|at| spawn(caches[at].request("k").load(hangs())));
    for answer in all(asked).await {
        assert_eq!(answer.unwrap_err().kind(), ErrorKind::LoadTimeout);
    }
    assert!(begun.elapsed() < 13 * SECOND, "{:?}", begun.elapsed());
    assert!(ask(&caches[1], &Origin::default(), MS).await.unwrap().is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_load_longer_than_its_lease_keeps_it() {
    let caches: [_; 2] = fleet();
    let origin = Origin::default();
    let sources = sources(caches.map(|cache| ask(&cache, &origin, 25 * SECOND))).await;
    assert_eq!(origin.asked(), 1);
    assert_eq!((sources[&Source::Led], sources[&Source::Received]), (1, 1));
}

/// The load and its first waiters began before the invalidation. A caller that asks after the
/// invalidation must not get the value of that load.
#[tokio::test(start_paused = true)]
async fn a_caller_after_an_invalidation_is_served_no_older_value() {
    for elsewhere in [false, true] {
        let caches: [_; 2] = fleet();
        let origin = Origin::default();
        let early = ask(&caches[0], &origin, 100 * MS);
        settle().await;
        caches[usize::from(elsewhere)].invalidate("k").await.unwrap();
        let late: Vec<_> = (0..4).map(|n| ask(&caches[n % 2], &origin, 100 * MS)).collect();
        assert_eq!(early.await.unwrap().unwrap().value, "value 1");
        for answer in late {
            assert_eq!(answer.await.unwrap().unwrap().value, "value 2");
        }
        assert_eq!(origin.asked(), 2);
        assert_eq!(caches[0].get("k").await.unwrap().as_deref(), Some("value 2"));
        assert_eq!(caches[0].stats().refused, 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_load_never_overwrites_a_later_insert() {
    let caches: [_; 2] = fleet();
    let origin = Origin::default();
    let early = caches.each_ref().map(|cache| ask(cache, &origin, 100 * MS));
    settle().await;
    caches[1].insert("k", &"inserted".to_owned()).await.unwrap();
    for answer in all(early).await {
        let answer = answer.unwrap();
        assert_eq!((answer.value.as_str(), answer.source()), ("inserted", Source::Received));
    }
    assert_eq!(caches[0].get("k").await.unwrap().as_deref(), Some("inserted"));
}

#[tokio::test(start_paused = true)]
async fn a_loader_learns_that_its_lease_is_lost() {
    let caches: [_; 1] = fleet();
    let told = Arc::new(Notify::new());
    let telling = told.clone();
    let load = spawn(caches[0].request("k").load(move |lead: Lead<_>| async move {
        lead.lost().await;
        telling.notify_one();
        Ok::<_, BoxError>("late".to_owned())
    }));
    settle().await;
    caches[0].invalidate("k").await.unwrap();
    // The next renewal comes a third of the lease later.
    timeout(1700 * MS, told.notified()).await.unwrap();
    assert_eq!(load.await.unwrap().unwrap().value, "late");
    assert_eq!(caches[0].get("k").await.unwrap(), None);
}

#[tokio::test(start_paused = true)]
async fn a_lead_decides_how_its_value_is_kept() {
    let caches: [_; 2] = fleet();
    let unstored = |cache: &Cache<String>| {
        spawn(cache.request("k").load(|lead: Lead<_>| async move {
            assert!(lead.fence().is_some());
            lead.do_not_store();
            sleep(50 * MS).await;
            Ok::<_, BoxError>("passing".to_owned())
        }))
    };
    for answer in all(caches.each_ref().map(unstored)).await {
        assert_eq!(answer.unwrap().value, "passing");
    }
    assert_eq!(caches[0].get("k").await.unwrap(), None);
    let short = caches[0].request("k").load(|lead: Lead<_>| async move {
        lead.clone().expire_after(100 * MS);
        Ok::<_, BoxError>("short".to_owned())
    });
    short.await.unwrap();
    sleep(99 * MS).await;
    assert!(caches[0].get("k").await.unwrap().is_some());
    sleep(2 * MS).await;
    assert!(caches[0].get("k").await.unwrap().is_none());
}

/// A value that cannot be stored is not pushed either. The waiters in other processes must not
/// load one after the other in that case.
#[tokio::test(start_paused = true)]
async fn a_value_over_the_limit_is_returned_without_a_queue() {
    let backend = MemoryBackend::new();
    let caches: Vec<Cache<String>> = (0..5)
        .map(|_| Cache::builder(backend.clone(), "bellwether").max_value(4).build().unwrap())
        .collect();
    let origin = Origin::default();
    let begun = Instant::now();
    sources(caches.iter().map(|cache| ask(cache, &origin, 100 * MS))).await;
    assert!(begun.elapsed() < 250 * MS, "{:?}", begun.elapsed());
    assert_eq!(origin.asked(), 5);
    assert_eq!(caches[0].get("k").await.unwrap(), None);
    assert_eq!(caches.iter().map(|cache| cache.stats().unstorable).sum::<u64>(), 1);
    let error = caches[0].insert("k", &"too long".to_owned()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Codec);
}

#[tokio::test(start_paused = true)]
async fn a_waiter_at_its_limit_loads_for_itself_and_stores_nothing() {
    let caches: [_; 2] = fleet();
    let slow = Origin::default();
    let leading = ask(&caches[0], &slow, 20 * SECOND);
    settle().await;
    let begun = Instant::now();
    let request = caches[1].request("k").wait_limit(7 * SECOND);
    let answer = request.load(value("own".to_owned())).await.unwrap();
    assert_eq!(answer.source(), Source::Degraded);
    assert!((7000..7200).contains(&begun.elapsed().as_millis()), "{:?}", begun.elapsed());
    assert_eq!(caches[1].get("k").await.unwrap(), None);
    assert_eq!(leading.await.unwrap().unwrap().source(), Source::Led);
}

#[tokio::test(start_paused = true)]
async fn a_loader_that_comes_back_to_its_own_key_loads_without_storing() {
    let caches: [_; 1] = fleet();
    let cache = caches[0].clone();
    let inner = cache.clone();
    let answer = cache.request("k").load(move |_| async move {
        let own = inner.request("k").load(value("inner".to_owned())).await?;
        assert_eq!(own.source(), Source::Degraded);
        Ok::<_, Error>(format!("outer of {}", own.value))
    });
    let answer = timeout(SECOND, answer).await.unwrap().unwrap();
    assert_eq!(answer.value, "outer of inner");
    assert_eq!(cache.get("k").await.unwrap().as_deref(), Some("outer of inner"));
}

fn crossed(cache: Cache<String>, own: &'static str, other: &'static str) -> JoinHandle<Answer> {
    spawn(cache.clone().request(own).load(move |_| async move {
        sleep(10 * MS).await;
        let other = cache.request(other).load(value(format!("{other} alone"))).await?;
        Ok::<_, Error>(format!("{own} of {}", other.value))
    }))
}

#[tokio::test(start_paused = true)]
async fn two_loaders_that_ask_for_each_other_are_both_served() {
    let caches: [_; 1] = fleet();
    let begun = Instant::now();
    let asked = [("a", "b"), ("b", "a")].map(|(one, two)| crossed(caches[0].clone(), one, two));
    assert!(all(asked).await.iter().all(Result::is_ok));
    assert!(begun.elapsed() < 100 * MS, "{:?}", begun.elapsed());
    assert_eq!(caches[0].stats().flights, 0);
}

/// Loaders that wait for one key hold all permits to load. The load of that key must not queue for
/// a permit, not even if it was led by a plain caller that came first. Otherwise no permit would
/// ever come back.
#[tokio::test(start_paused = true)]
async fn loads_that_loaders_wait_for_never_queue_behind_them() {
    let cache: Cache<String> =
        Cache::builder(MemoryBackend::new(), "bellwether").max_loads(2).build().unwrap();
    let origin = Origin::default();
    let outer: Vec<_> = (0..50)
        .map(|n| {
            let cache = cache.clone();
            let origin = origin.clone();
            spawn(cache.clone().request(format!("outer {n}")).load(move |_| async move {
                sleep(5 * MS).await;
                cache.get_or_load("inner", loader(&origin, 10 * MS)).await
            }))
        })
        .collect();
    settle().await;
    // The plain caller queues for a permit before any loader needs the key.
    let plain = spawn(cache.request("inner").load(loader(&origin, 10 * MS)));
    assert!(all(outer.into_iter().chain([plain])).await.iter().all(Result::is_ok));
    assert_eq!(origin.asked(), 1);
}

#[tokio::test(start_paused = true)]
async fn the_limit_on_loads_holds_and_refuses_with_a_kind() {
    let [cache, _] = build(|builder| builder.max_loads(3).wait_limit(SECOND));
    let origin = Origin::default();
    let asked = (0..12).map(|n| spawn(cache.request(n).load(loader(&origin, 400 * MS))));
    let refused: Vec<_> = all(asked).await.into_iter().filter_map(Result::err).collect();
    assert!(refused.iter().all(|error| error.kind() == ErrorKind::Overloaded));
    assert_eq!((origin.most(), refused.len()), (3, 3));
}

/// All permits are taken when the process is to ask again whether the other one still loads.
#[tokio::test(start_paused = true)]
async fn a_process_without_a_permit_gets_the_value_of_another_one_at_once() {
    let backend = MemoryBackend::new();
    let build = |loads| {
        let builder = Cache::<String>::builder(backend.clone(), "bellwether");
        builder.max_loads(loads).build().unwrap()
    };
    let there = build(10);
    let here = build(1);
    let origin = Origin::default();
    let theirs = ask(&there, &origin, 8 * SECOND);
    settle().await;
    let waiting = timed(ask(&here, &origin, 8 * SECOND));
    settle().await;
    let other = spawn(here.request("other").load(loader(&origin, 20 * SECOND)));
    let (source, took) = waiting.await;
    assert_eq!(source, Source::Received);
    assert!(took < 9 * SECOND, "{took:?}");
    assert!(all([theirs, other]).await.iter().all(Result::is_ok));
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_lets_running_loads_end() {
    let caches: [_; 1] = fleet();
    let origin = Origin::default();
    let running = ask(&caches[0], &origin, 300 * MS);
    settle().await;
    let begun = Instant::now();
    caches[0].shutdown(5 * SECOND).await;
    assert!(begun.elapsed() < 310 * MS);
    assert_eq!(running.await.unwrap().unwrap().source(), Source::Led);
    // A later caller is served without a flight.
    assert_eq!(ask(&caches[0], &origin, MS).await.unwrap().unwrap().source(), Source::Degraded);
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_cancels_longer_loads_and_the_next_process_begins_at_once() {
    let caches: [_; 2] = fleet();
    let origin = Origin::default();
    let running = ask(&caches[0], &origin, 20 * SECOND);
    settle().await;
    let waiting = ask(&caches[1], &origin, MS);
    settle().await;
    caches[0].shutdown(200 * MS).await;
    let begun = Instant::now();
    assert_eq!(running.await.unwrap().unwrap_err().kind(), ErrorKind::ShutDown);
    assert_eq!(waiting.await.unwrap().unwrap().source(), Source::Led);
    assert!(begun.elapsed() < 100 * MS, "{:?}", begun.elapsed());
}

/// The task of the leader lives on a runtime that is dropped. Its followers live on another one.
#[test]
fn a_runtime_that_goes_away_hands_its_flights_over() {
    let cache: Cache<String> =
        Cache::builder(MemoryBackend::new(), "bellwether").lease(200 * MS).build().unwrap();
    let leading = tokio::runtime::Runtime::new().unwrap();
    let origin = Origin::default();
    let first = leading.spawn(cache.request("k").load(loader(&origin, 60 * SECOND)));
    // With one thread, a spawned caller has joined the flight after a yield.
    let staying = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let next = Origin::default();
    let mut second = None;
    staying.block_on(async {
        while origin.running() == 0 {
            tokio::task::yield_now().await;
        }
        second = Some(tokio::spawn(cache.request("k").load(loader(&next, MS))));
        tokio::task::yield_now().await;
    });
    leading.shutdown_background();
    let answer = staying.block_on(async { timeout(5 * SECOND, second.unwrap()).await });
    let answer = answer.expect("the follower did not take over").unwrap().unwrap();
    assert_eq!(answer.source(), Source::Led);
    assert!(staying.block_on(first).is_err());
    assert_eq!(cache.stats().flights, 0);
}

#[tokio::test(start_paused = true)]
async fn an_entry_that_cannot_be_decoded_counts_as_missing() {
    let backend = MemoryBackend::new();
    let words: Cache<String> = Cache::builder(backend.clone(), "bellwether").build().unwrap();
    let numbers: Cache<u64> = Cache::builder(backend.clone(), "bellwether").build().unwrap();
    let bytes: Cache<Vec<u8>> =
        Cache::builder(backend.clone(), "bellwether").codec(Raw).build().unwrap();
    words.insert("k", &"seven".to_owned()).await.unwrap();
    assert_eq!(numbers.get("k").await.unwrap(), None);
    assert_eq!(bytes.get("k").await.unwrap(), None);
    let number = numbers.get_or_load("k", value(7)).await.unwrap();
    assert_eq!((number, numbers.get("k").await.unwrap()), (7, Some(7)));
    assert_eq!((numbers.stats().undecodable, bytes.stats().undecodable), (2, 1));
}

#[tokio::test(start_paused = true)]
async fn bad_keys_and_settings_are_refused_with_a_kind() {
    let build = || Cache::<String>::builder(MemoryBackend::new(), "bellwether");

    for builder in [
        Cache::builder(MemoryBackend::new(), "a:b"),
        build().ttl(Duration::ZERO),
        build().lease(Duration::ZERO),
        build().lease(100_000 * SECOND),
        build().load_limit(Duration::ZERO),
        build().max_loads(0),
        build().max_loads(usize::MAX),
        build().max_key(0),
        build().max_value(0),
    ] {
        assert_eq!(builder.build().unwrap_err().kind(), ErrorKind::InvalidConfig);
    }
    let cache = build().build().unwrap();
    for key in [String::new(), "k".repeat(513)] {
        let load = cache.get_or_load(&key, value(String::new()));
        assert_eq!(load.await.unwrap_err().kind(), ErrorKind::InvalidKey);
        assert_eq!(cache.get(&key).await.unwrap_err().kind(), ErrorKind::InvalidKey);
        assert_eq!(cache.invalidate(&key).await.unwrap_err().kind(), ErrorKind::InvalidKey);
    }
}

fn two_over(faulty: &Faulty) -> [Cache<String>; 2] {
    [0, 1].map(|_| Cache::builder(faulty.clone(), "bellwether").build().unwrap())
}

/// Only the answer was lost: the claim holds the lease, or the commit is stored. A leader that went
/// on without its lease would load beside another process.
#[tokio::test(start_paused = true)]
async fn a_claim_or_commit_whose_answer_is_lost_is_recognised_when_it_is_sent_again() {
    for (op, fault) in [
        (Op::Claim, Fault::LoseReply),
        (Op::Commit, Fault::LoseReply),
        (Op::Commit, Fault::Double),
        (Op::Commit, Fault::Late(100 * MS)),
        (Op::Commit, Fault::Late(400 * MS)),
    ] {
        let caches = two_over(&once(op, fault));
        let origin = Origin::default();
        let sources = sources((0..20).map(|n| ask(&caches[n % 2], &origin, 500 * MS))).await;
        assert_eq!((origin.asked(), sources[&Source::Led]), (1, 1), "{op:?} {fault:?}");
        assert!(!sources.contains_key(&Source::Degraded), "{op:?} {fault:?}");
        assert_eq!(caches[0].get("k").await.unwrap().as_deref(), Some("value 1"));
        assert_eq!(caches.iter().map(|cache| cache.stats().stored).sum::<u64>(), 1);
    }
}

/// All operations fail or hang. Each process loads once, within the time-outs, and nothing is
/// stored.
#[tokio::test(start_paused = true)]
async fn a_backend_out_of_order_costs_one_load_for_each_process() {
    for fault in [Fault::Refuse, Fault::Hang] {
        let faulty = Faulty::new(move |_| Some(fault));
        let caches = two_over(&faulty);
        let origin = Origin::default();
        let begun = Instant::now();
        let sources = sources((0..100).map(|n| ask(&caches[n % 2], &origin, 100 * MS))).await;
        assert_eq!(sources, HashMap::from([(Source::Degraded, 100)]));
        assert_eq!(origin.asked(), 2);
        assert!(begun.elapsed() <= 351 * MS, "{:?}", begun.elapsed());
        faulty.plan(|_| None);
        assert_eq!(caches[0].get("k").await.unwrap(), None);
        assert_eq!(ask(&caches[0], &origin, MS).await.unwrap().unwrap().source(), Source::Led);
    }
}

/// The look for the late joiners of a flight is not answered. They join the next flight, so that
/// the process runs one load. They wait for two time-outs at most, and later callers for one.
#[tokio::test(start_paused = true)]
async fn late_joiners_that_are_not_answered_share_the_next_load() {
    // A single caller polls its flight itself until another one joins. Three callers have a task
    // already.
    for callers in [0, 1, 3] {
        check_next_load(callers).await;
    }
}

async fn check_next_load(callers: usize) {
    let faulty = Faulty::new(|_| None);
    let [cache, _] = two_over(&faulty);
    cache.insert("k", &"stored".to_owned()).await.unwrap();
    let mut looked = false;
    faulty.plan(move |op| match op {
        Op::Get if looked => Some(Fault::Hang),
        Op::Get => {
            looked = true;
            Some(Fault::Late(10 * MS))
        }
        _ => None,
    });
    let origin = Origin::default();
    let first = ask(&cache, &origin, 20 * MS);
    settle().await;
    let late = timed(ask(&cache, &origin, 20 * MS));
    assert_eq!(first.await.unwrap().unwrap().source(), Source::Hit);
    // Only the late joiners of the first flight are left, so this caller starts the next flight and
    // looks for itself.
    sleep(200 * MS).await;
    let next: Vec<_> = (0..callers).map(|_| timed(ask(&cache, &origin, 20 * MS))).collect();
    let (source, took) = late.await;
    assert_eq!(source, Source::Degraded);
    assert!(took <= 550 * MS, "{took:?}");
    for next in next {
        let (source, took) = next.await;
        assert_eq!(source, Source::Degraded);
        // One time-out and the load.
        assert!(took <= 285 * MS, "{took:?}");
    }
    assert_eq!(origin.asked(), 1);
}

/// Another process had the lease, and the server began to hang. The waiter for the lease looked
/// again, and waited for a time-out of its own, though other flights had found the silence out.
#[tokio::test(start_paused = true)]
async fn a_waiter_does_not_claim_while_the_backend_is_silent() {
    let faulty = Faulty::new(|_| None);
    let [cache, _] = two_over(&faulty);
    let name = entry_name("bellwether", "k");
    let holder = Claim::new(name, Mode::Exclusive, 100 * MS, 100 * MS);
    assert!(matches!(faulty.acquire(&holder).await.unwrap(), Claimed::Granted(_)));
    let origin = Origin::default();
    let waiting = timed(ask(&cache, &origin, 20 * MS));
    settle().await;
    faulty.plan(|op| [Op::Get, Op::Claim].contains(&op).then_some(Fault::Hang));
    for other in 0..3 {
        spawn(cache.request(format!("other-{other}")).load(loader(&origin, 20 * MS)));
    }
    // The lease ends after 100 ms, and its waiter looks within the 90 ms after that.
    let (source, took) = waiting.await;
    assert_eq!(source, Source::Degraded);
    assert!(took <= 285 * MS, "{took:?}");
}

/// All permits to load were taken, and a caller was refused at the end of its wait, though another
/// process had loaded meanwhile. A reading of the code found this.
#[tokio::test(start_paused = true)]
async fn a_caller_without_a_permit_is_served_by_another_process() {
    let backend = MemoryBackend::new();
    let narrow = Cache::<String>::builder(backend.clone(), "bellwether").max_loads(1);
    let narrow = narrow.wait_limit(200 * MS).build().unwrap();
    let other: Cache<String> = Cache::new(backend, "bellwether").unwrap();
    let origin = Origin::default();
    let slow = spawn(narrow.request("slow").load(loader(&origin, SECOND)));
    settle().await;
    let asked = ask(&narrow, &origin, MS);
    let refused = spawn(narrow.request("unknown key").load(loader(&origin, MS)));
    settle().await;
    assert_eq!(ask(&other, &origin, MS).await.unwrap().unwrap().source(), Source::Led);
    assert_eq!(asked.await.unwrap().unwrap().source(), Source::Received);
    assert_eq!(refused.await.unwrap().unwrap_err().kind(), ErrorKind::Overloaded);
    slow.await.unwrap().unwrap();
}

/// Returns the source of an answer and the time that it took.
fn timed(asked: JoinHandle<Answer>) -> impl Future<Output = (Source, Duration)> {
    let begun = Instant::now();
    let answered = spawn(async move { (asked.await, begun.elapsed()) });
    async move {
        let (answer, took) = answered.await.unwrap();
        (answer.unwrap().unwrap().source(), took)
    }
}

/// The claim was granted, its answer never came, and no caller tries again. A background task
/// releases the lease.
#[tokio::test(start_paused = true)]
async fn a_claim_of_unknown_outcome_leaves_no_orphan() {
    let faulty = Faulty::new(|op| (op == Op::Claim).then_some(Fault::LoseReply));
    let caches = two_over(&faulty);
    let origin = Origin::default();
    let answer = ask(&caches[0], &origin, MS).await.unwrap().unwrap();
    assert_eq!(answer.source(), Source::Degraded);
    faulty.plan(|_| None);
    settle().await;
    let begun = Instant::now();
    assert_eq!(ask(&caches[1], &origin, MS).await.unwrap().unwrap().source(), Source::Led);
    assert!(begun.elapsed() < 10 * MS, "an orphaned lease: {:?}", begun.elapsed());
}

/// A commit never arrives. The callers have their value all the same, and the next caller loads
/// anew.
#[tokio::test(start_paused = true)]
async fn a_commit_that_fails_costs_no_caller_the_value() {
    let faulty = Faulty::new(|op| (op == Op::Commit).then_some(Fault::Hang));
    let caches = two_over(&faulty);
    let origin = Origin::default();
    let answer = ask(&caches[0], &origin, MS).await.unwrap().unwrap();
    assert_eq!((answer.value.as_str(), answer.source()), ("value 1", Source::Led));
    assert_eq!(caches[0].stats().unstored, 1);
    faulty.plan(|_| None);
    assert_eq!(ask(&caches[1], &origin, MS).await.unwrap().unwrap().value, "value 2");
}

/// An unanswered commit may have been refused because another process invalidated the key. A caller
/// that asked after the invalidation is not told that the value is good. The histories found this.
#[tokio::test(start_paused = true)]
async fn a_failed_commit_promises_nothing_to_a_late_joiner() {
    let faulty = Faulty::new(|op| (op == Op::Commit).then_some(Fault::Hang));
    let caches = two_over(&faulty);
    let origin = Origin::default();
    let early = ask(&caches[0], &origin, 100 * MS);
    settle().await;
    caches[1].invalidate("k").await.unwrap();
    let late = ask(&caches[0], &origin, 100 * MS);
    let sources = [early.await, late.await].map(|answer| answer.unwrap().unwrap().source());
    assert_eq!((origin.asked(), sources), (1, [Source::Led, Source::Degraded]));
}

#[tokio::test(start_paused = true)]
async fn a_waiter_without_pushes_is_served_when_the_lease_ends_or_after_five_seconds() {
    let faulty = Faulty::new(|op| (op == Op::Changes).then_some(Fault::Refuse));
    let caches = two_over(&faulty);
    let origin = Origin::default();
    let begun = Instant::now();
    let sources = sources(caches.map(|cache| ask(&cache, &origin, 200 * MS))).await;
    assert_eq!((origin.asked(), sources[&Source::Received]), (1, 1));
    assert!(begun.elapsed() <= 5200 * MS, "{:?}", begun.elapsed());
}

/// The first claim is on its way for longer than its time-out. The second one is granted, and its
/// value is stored and ends. Then the first claim arrives and gets a lease that no caller knows of.
#[tokio::test(start_paused = true)]
async fn a_claim_that_arrives_after_the_commit_is_undone() {
    let lease = 10 * SECOND;
    let faulty = once(Op::Claim, Fault::Astray(700 * MS));
    let build = |faulty| {
        Cache::<String>::builder(faulty, "bellwether").lease(lease).ttl(20 * MS).build().unwrap()
    };
    let other = build(Faulty::over(faulty.inner.clone(), |_| None));
    let origin = Origin::default();
    let begun = Instant::now();
    let led = ask(&build(faulty.clone()), &origin, MS).await.unwrap().unwrap();
    assert_eq!(led.source(), Source::Led);
    assert!(begun.elapsed() < 650 * MS, "the first claim is here: {:?}", begun.elapsed());
    sleep((701 * MS).saturating_sub(begun.elapsed())).await;
    let name = entry_name("bellwether", "k");
    assert!(testkit::holder(&faulty.inner, &name, Mode::Exclusive).await.unwrap().is_some());
    let led = ask(&other, &origin, MS).await.unwrap().unwrap();
    assert_eq!((led.source(), origin.asked()), (Source::Led, 2));
    assert!(begun.elapsed() < lease / 8, "{:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_failed_insert_or_invalidation_is_an_error() {
    let faulty = Faulty::new(|_| Some(Fault::Refuse));
    let [cache, _] = two_over(&faulty);
    for error in [
        cache.insert("k", &String::new()).await.unwrap_err(),
        cache.invalidate("k").await.unwrap_err(),
        cache.get("k").await.unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::Backend);
        assert!(std::error::Error::source(&error).is_some());
    }
}

/// A caller may be dropped at any await. This test drops it after each number of polls that a
/// request can take. The next caller is served at once, and nothing is left behind.
#[tokio::test(start_paused = true)]
async fn dropping_a_request_at_any_await_leaves_nothing_behind() {
    for polls in 0..12 {
        for cancels in [false, true] {
            let faulty = Faulty::new(|op| {
                // Every operation takes a moment, so that each has an await to be dropped at.
                (op != Op::Release).then_some(Fault::Late(5 * MS))
            });
            let build = || {
                let builder = Cache::<String>::builder(faulty.clone(), "bellwether");
                let builder = if cancels { builder.cancel_abandoned() } else { builder };
                builder.build().unwrap()
            };
            let [here, there] = [build(), build()];
            let origin = Origin::default();
            let mut request = Box::pin(here.request("k").load(loader(&origin, 20 * MS)));
            for _ in 0..polls {
                tokio::select! {
                    biased;
                    answer = &mut request => {
                        answer.unwrap();
                        break;
                    }
                    () = sleep(4 * MS) => {}
                }
            }
            drop(request);
            settle().await;
            let begun = Instant::now();
            let answer = ask(&there, &origin, 20 * MS).await.unwrap().unwrap();
            assert_ne!(answer.source(), Source::Degraded);
            assert!(begun.elapsed() < 200 * MS, "{polls} polls: {:?}", begun.elapsed());
            assert_eq!(origin.most(), 1, "{polls} polls");
            assert_eq!((here.stats().flights, there.stats().flights), (0, 0));
        }
    }
}

/// A type whose encoding panics, like a faulty codec.
#[derive(Clone, Debug, serde::Deserialize)]
struct Hostile;

impl serde::Serialize for Hostile {
    fn serialize<S: serde::Serializer>(&self, _: S) -> Result<S::Ok, S::Error> {
        panic!("this type cannot be encoded")
    }
}

/// The panic comes outside the loader. If it ended only the task of the leader, or was not told to
/// the other process, each follower would lead in turn, and panic in turn.
#[tokio::test(start_paused = true)]
async fn a_panic_of_a_codec_is_an_outcome_for_all_callers() {
    let backend = MemoryBackend::new();
    let caches =
        [(); 2].map(|()| Cache::<Hostile>::builder(backend.clone(), "bellwether").build().unwrap());
    let begun = Arc::new(AtomicUsize::new(0));
    let asked = (0..10).map(|at| {
        let begun = begun.clone();
        spawn(caches[at % 2].request("k").load(move |_| {
            begun.fetch_add(1, Ordering::SeqCst);
            sleep(MS).map(|()| Ok::<_, BoxError>(Hostile))
        }))
    });
    for answer in all(asked).await {
        assert_eq!(answer.unwrap_err().kind(), ErrorKind::Panicked);
    }
    assert_eq!(begun.load(Ordering::SeqCst), 1);
    let [cache, other] = &caches;
    assert_eq!(cache.stats().failures + other.stats().failures, 1);
    // Nor does it reach a caller without a flight.
    cache.shutdown(SECOND).await;
    let alone = cache.request("k").load(|_| async { Ok::<_, BoxError>(Hostile) }).await;
    assert_eq!(alone.unwrap_err().kind(), ErrorKind::Panicked);
}

/// A server that swallows everything would add its time-out to every request.
#[tokio::test(start_paused = true)]
async fn a_backend_that_stays_silent_costs_nothing_after_the_first_few_requests() {
    let faulty = Faulty::new(|_| Some(Fault::Hang));
    let [cache, _] = two_over(&faulty);
    let origin = Origin::default();
    for _ in 0..3 {
        ask(&cache, &origin, MS).await.unwrap().unwrap();
    }
    for _ in 0..50 {
        let begun = Instant::now();
        ask(&cache, &origin, MS).await.unwrap().unwrap();
        assert!(begun.elapsed() <= 3 * MS, "{:?}", begun.elapsed());
    }
    // The cache recovers without help, and without a stampede.
    faulty.plan(|_| None);
    sleep(300 * MS).await;
    let loads = origin.asked();
    let sources = sources((0..100).map(|_| ask(&cache, &origin, 10 * MS))).await;
    assert_eq!((origin.asked() - loads, sources[&Source::Led]), (1, 1));
}

/// A load that hangs would gather callers without end. Each of them keeps a request and a
/// connection.
#[tokio::test(start_paused = true)]
async fn callers_beyond_the_limits_are_refused_at_once() {
    let build = || Cache::<String>::builder(MemoryBackend::new(), "bellwether");
    let per_key = build().max_waiters_per_key(10).build().unwrap();
    let in_all = build().max_waiters(10).build().unwrap();
    for (cache, other_key_too) in [(&per_key, false), (&in_all, true)] {
        let origin = Origin::default();
        let waiting: Vec<_> = (0..10).map(|_| ask(cache, &origin, 200 * MS)).collect();
        settle().await;
        let begun = Instant::now();
        for _ in 0..3 {
            let error = ask(cache, &origin, MS).await.unwrap().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Overloaded);
            assert!(error.to_string().contains("10 callers"), "{error}");
        }
        let other = cache.request("other").load(loader(&origin, Duration::ZERO)).await;
        assert_eq!(other.is_err(), other_key_too);
        assert!(begun.elapsed() <= 2 * MS, "{:?}", begun.elapsed());
        // A caller that leaves makes room for another one.
        waiting[9].abort();
        settle().await;
        let late = ask(cache, &origin, MS);
        settle().await;
        assert!(ask(cache, &origin, MS).await.unwrap().is_err());
        for answer in waiting.into_iter().take(9).chain([late]) {
            assert_eq!(answer.await.unwrap().unwrap().value, "value 1");
        }
        // No trace of the refused callers is left.
        for _ in 0..3 {
            assert!(ask(cache, &origin, MS).await.unwrap().is_ok());
        }
        assert_eq!(cache.stats().flights, 0);
    }
    for builder in [build().max_waiters(0), build().max_waiters_per_key(0)] {
        assert_eq!(builder.build().unwrap_err().kind(), ErrorKind::InvalidConfig);
    }
}

/// Each caller of a cache that is shut down loads for itself. All of them together could be a
/// stampede.
#[tokio::test(start_paused = true)]
async fn loads_after_a_shutdown_are_limited() {
    let cache: Cache<String> =
        Cache::builder(MemoryBackend::new(), "bellwether").max_loads(4).build().unwrap();
    let under_way = Origin::default();
    let origin = Origin::default();
    let cut_off = ask(&cache, &under_way, 10 * SECOND);
    settle().await;
    // Its deadline is for loads that began before.
    cache.shutdown(SECOND).await;
    assert_eq!(cut_off.await.unwrap().unwrap_err().kind(), ErrorKind::ShutDown);
    let asked = (0..20).map(|_| ask(&cache, &origin, 100 * MS));
    assert_eq!(sources(asked).await, HashMap::from([(Source::Degraded, 20)]));
    assert_eq!((origin.asked(), origin.most()), (20, 4));
}

/// A waiter for another process would sleep until the end of its lease. Other callers of its own
/// process have found out meanwhile that no push can come any more.
#[tokio::test(start_paused = true)]
async fn waiters_do_not_sleep_through_an_outage() {
    let faulty = Faulty::new(|_| None);
    let [here, there] = two_over(&faulty);
    let slow = Origin::default();
    let own = Origin::default();
    let leading = ask(&here, &slow, 20 * SECOND);
    settle().await;
    let begun = Instant::now();
    let waiting = ask(&there, &own, MS);
    settle().await;
    faulty.plan(|_| Some(Fault::Refuse));
    for number in 0..3 {
        there.request(format!("other {number}")).load(loader(&own, MS)).await.unwrap();
    }
    assert_eq!(waiting.await.unwrap().unwrap().source(), Source::Degraded);
    assert!(begun.elapsed() < 20 * MS, "{:?}", begun.elapsed());
    leading.abort();
}

/// A waker that owns a cache. Its drop joins the flight of the key, and leaves it.
struct Joins(Cache<String>);

impl Wake for Joins {
    fn wake(self: Arc<Self>) {}
}

impl Drop for Joins {
    fn drop(&mut self) {
        let load = self.0.request("k").load(hangs());
        assert!(pin!(load).poll(&mut Context::from_waker(Waker::noop())).is_pending());
    }
}

/// The waker of the last poll was dropped under the lock that its drop took as well.
#[tokio::test]
async fn a_caller_may_be_polled_with_a_new_waker_whose_predecessor_runs_code() {
    let cache: Cache<String> = Cache::builder(MemoryBackend::new(), "bellwether").build().unwrap();
    let load = || Box::pin(cache.request("k").load(hangs()));
    let _leader = futures_util::poll!(load());
    let mut follower = load();
    let waker = Waker::from(Arc::new(Joins(cache.clone())));
    assert!(follower.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    drop(waker);
    // In a thread, which would block for ever.
    let (polled, answer) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        polled.send(follower.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending())
    });
    assert_eq!(answer.recv_timeout(10 * SECOND), Ok(true));
}

/// Ten thousand callers may wait for one key, and each holds its future.
#[tokio::test(start_paused = true)]
async fn the_future_of_a_caller_is_small() {
    let cache: Cache<u64> = Cache::new(MemoryBackend::new(), "bellwether").unwrap();
    let load = |_lead| async { Ok::<_, BoxError>(1) };
    let of_call = size_of_val(&cache.get_or_load("k", load));
    let of_request = size_of_val(&cache.request("k").load(load));
    assert!(of_call <= 256 && of_request <= 256, "{of_call}, {of_request}");
}
