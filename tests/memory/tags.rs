//! Tags within one process. Clones of a backend in memory stand for the processes of a fleet.

use std::sync::mpsc;

use bellwether::cache::LocalTier;
use testkit::{LIMIT, comes_true, interceptor::Op};
use tokio::sync::oneshot;

use crate::prelude::*;

const HOUR: Duration = Duration::from_secs(3600);

fn builder(backend: impl Store) -> Builder<u64> {
    Cache::builder(backend, "tags").ttl(HOUR).tags()
}

/// Begins a cache that serves stale values, and remembers some for an outage.
fn lasting(backend: impl Store) -> Builder<u64> {
    builder(backend).stale_if_error(HOUR).stale_while_revalidate(HOUR).outage_memory(1 << 20)
}

/// Returns two processes with local tiers.
fn tiers() -> [Cache<u64>; 2] {
    let backend = MemoryBackend::new();
    [(); 2].map(|()| builder(backend.clone()).local(LocalTier::default()).build().unwrap())
}

fn cache(backend: impl Store) -> Cache<u64> {
    builder(backend).build().unwrap()
}

/// Loads a value with a tag.
async fn load(cache: &Cache<u64>, key: &str, tag: &str, value: u64) -> u64 {
    let tag = tag.to_owned();
    let load = move |lead: Lead<u64>| async move {
        lead.tag(tag);
        Ok::<_, BoxError>(value)
    };
    cache.get_or_load(key, load).await.unwrap()
}

/// A load that has read its value and goes on when it is told.
struct Running {
    load: JoinHandle<Result<Loaded<u64>, Error>>,
    goes_on: oneshot::Sender<()>,
}

impl Running {
    async fn begin(cache: &Cache<u64>, key: &str, tag: &'static str, value: u64) -> Self {
        let (has_read, reads) = oneshot::channel();
        let (goes_on, waits) = oneshot::channel();
        let load = cache.request(key).load(move |lead| async move {
            has_read.send(()).unwrap();
            waits.await.unwrap();
            lead.tag(tag);
            Ok::<_, BoxError>(value)
        });
        let load = spawn(load);
        reads.await.unwrap();
        Self { load, goes_on }
    }

    async fn end(self) -> u64 {
        self.goes_on.send(()).unwrap();
        self.load.await.unwrap().unwrap().value
    }
}

#[tokio::test(start_paused = true)]
async fn one_command_ends_all_values_of_a_tag_in_each_process() {
    let backend = MemoryBackend::new();
    let faulty = Faulty::over(backend.clone(), |_| None);
    let [here, there] = [cache(faulty.clone()), cache(backend)];
    for key in 0..100 {
        let tag = if key < 90 { "a" } else { "b" };
        here.request(key.to_string()).tag(tag).tag("all").insert(&key).await.unwrap();
    }
    let kept = async |cache: &Cache<u64>| {
        let keys = (0..100).map(|key: u64| key.to_string());
        cache.get_many(keys).await.into_iter().filter(|found| matches!(found, Ok(Some(_)))).count()
    };
    assert_eq!((kept(&here).await, kept(&there).await), (100, 100));
    here.invalidate_tag("a").await.unwrap();
    assert_eq!(faulty.count(Op::EndTag), 1);
    assert_eq!((kept(&here).await, kept(&there).await), (10, 10));
    there.invalidate_tag("unknown").await.unwrap();
    assert_eq!((kept(&here).await, kept(&there).await), (10, 10));
    there.invalidate_tag("all").await.unwrap();
    assert_eq!((kept(&here).await, kept(&there).await), (0, 0));
    here.request("k").tag("a").insert(&1).await.unwrap();
    assert_eq!(there.get("k").await.unwrap(), Some(1), "the end of a tag is not for later values");
}

#[tokio::test(start_paused = true)]
async fn a_caller_and_a_loader_give_tags_at_any_time() {
    let cache = cache(MemoryBackend::new());
    let load = |lead: Lead<u64>| async move {
        lead.tag("before");
        sleep(MS).await;
        lead.tag("after");
        Ok::<_, BoxError>(1)
    };
    for tag in ["caller", "before", "after"] {
        assert_eq!(cache.request("k").tag("caller").load(load).await.unwrap().value, 1);
        assert_eq!(cache.get("k").await.unwrap(), Some(1));
        cache.invalidate_tag(tag).await.unwrap();
        assert_eq!(cache.get("k").await.unwrap(), None, "{tag}");
    }
    // Clearing ends the values without tags, too.
    cache.insert("k", &1).await.unwrap();
    cache.clear().await.unwrap();
    assert_eq!(cache.get("k").await.unwrap(), None);
    assert!(cache.peek("k").await.unwrap().is_none());
    assert!(!cache.request("k").touch().await.unwrap(), "an ended value is not revived");
    assert_eq!(cache.get("k").await.unwrap(), None);
}

/// Those who asked before the end of the tag are served the value, and no others.
#[tokio::test(start_paused = true)]
async fn a_load_that_ran_while_its_tag_ended_is_for_those_who_asked_before() {
    let backend = MemoryBackend::new();
    let [here, there, other] = [(); 3].map(|()| cache(backend.clone()));
    let old = Running::begin(&here, "k", "a", 1).await;
    let before = spawn(here.request("k").load(value(9)));
    sleep(MS).await;
    other.invalidate_tag("a").await.unwrap();
    let after = [&here, &there].map(|cache| {
        spawn(cache.request("k").load(|lead| async move {
            lead.tag("a");
            Ok::<_, BoxError>(2)
        }))
    });
    sleep(MS).await;
    assert_eq!(old.end().await, 1);
    assert!([1, 2].contains(&before.await.unwrap().unwrap().value));
    assert!(all(after).await.into_iter().all(|after| after.unwrap().value == 2));
    assert_eq!(other.get("k").await.unwrap(), Some(2));
}

/// A value from before the end of its tag is pushed to a process that waits for it. One whose tag
/// stands is taken.
#[tokio::test(start_paused = true)]
async fn a_process_that_waits_takes_no_value_whose_tag_has_ended() {
    let backend = MemoryBackend::new();
    let [here, there] = [(); 2].map(|()| cache(backend.clone()));
    for (key, expected) in [("k", (2, Source::Led)), ("l", (1, Source::Received))] {
        let old = Running::begin(&here, key, "a", 1).await;
        if key == "k" {
            here.invalidate_tag("a").await.unwrap();
        }
        let waits = spawn(there.request(key).load(value(2)));
        sleep(MS).await;
        assert!(!waits.is_finished());
        assert_eq!(old.end().await, 1);
        let got = waits.await.unwrap().unwrap();
        assert_eq!((got.value, got.source), expected);
    }
}

#[tokio::test(start_paused = true)]
async fn an_ended_value_is_no_fallback_and_an_expired_one_is_nothing_else() {
    let backend = MemoryBackend::new();
    let [here, there] = [(); 2].map(|()| {
        let builder = builder(backend.clone()).stale_while_revalidate(HOUR);
        builder.stale_if_error(HOUR).build().unwrap()
    });
    for cache in [&here, &there] {
        for ttl in [HOUR, MS] {
            here.request("k").ttl(ttl).tag("a").insert(&1).await.unwrap();
            sleep(2 * MS).await;
            cache.expire_tag("a").await.unwrap();
            assert_eq!(here.get("k").await.unwrap(), None, "it is not served stale");
            let stale = here.request("k").load(fails("down")).await.unwrap();
            assert_eq!((stale.value, stale.source), (1, Source::Stale));
            cache.invalidate_tag("a").await.unwrap();
            let error = here.get_or_load("k", fails("down")).await.unwrap_err();
            assert!([ErrorKind::Load, ErrorKind::BackingOff].contains(&error.kind()), "{error}");
            here.invalidate("k").await.unwrap();
        }
    }
    // Without a window for failures, an expired value is gone.
    here.request("k").stale_if_error(Duration::ZERO).tag("a").insert(&1).await.unwrap();
    here.expire_tag("a").await.unwrap();
    assert_eq!(here.get_or_load("k", fails("down")).await.unwrap_err().kind(), ErrorKind::Load);
}

#[tokio::test(start_paused = true)]
async fn an_ended_value_is_not_refreshed_beside_its_callers() {
    let backend = MemoryBackend::new();
    let cache = builder(backend).early_refresh(EarlyRefresh::Within(HOUR)).build().unwrap();
    load(&cache, "k", "a", 1).await;
    sleep(HOUR * 3 / 4).await;
    cache.invalidate_tag("a").await.unwrap();
    assert_eq!(load(&cache, "k", "a", 2).await, 2);
    sleep(HOUR * 3 / 4).await;
    assert_eq!(load(&cache, "k", "a", 3).await, 2, "it is refreshed beside its callers");
    sleep(MS).await;
    assert_eq!(load(&cache, "k", "a", 4).await, 3);
    cache.invalidate_tag("a").await.unwrap();
    assert_eq!(load(&cache, "k", "a", 5).await, 5);
}

/// A loader that says "unchanged" gives its value a new number, so a load is needed once.
#[tokio::test(start_paused = true)]
async fn an_unchanged_value_begins_anew() {
    let cache = builder(MemoryBackend::new()).stale_if_error(HOUR).build().unwrap();
    cache.request("k").tag("a").insert(&1).await.unwrap();
    cache.expire_tag("a").await.unwrap();
    // It keeps its tags.
    let unchanged = |lead: Lead<u64>| async move {
        lead.tag("b");
        Ok::<_, BoxError>(lead.unchanged(lead.stale().unwrap()))
    };
    assert_eq!(cache.get_or_load("k", unchanged).await.unwrap(), 1);
    assert_eq!(cache.get("k").await.unwrap(), Some(1));
    cache.invalidate_tag("a").await.unwrap();
    assert_eq!(cache.get("k").await.unwrap(), None);
}

#[tokio::test(start_paused = true)]
async fn a_cache_without_tags_says_so_and_reads_those_of_others() {
    let backend = MemoryBackend::new();
    let plain: Cache<u64> =
        Cache::builder(backend.clone(), "tags").local(LocalTier::default()).build().unwrap();
    for ended in [plain.invalidate_tag("a").await, plain.expire_tag("a").await, plain.clear().await]
    {
        let error = ended.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidConfig);
        assert!(error.to_string().contains("`tags()`"), "{error}");
    }
    assert_eq!(load(&plain, "k", "a", 1).await, 1);
    assert_eq!(plain.stats().unstorable, 1);
    assert_eq!(plain.get("k").await.unwrap(), None);
    let error = plain.request("k").tag("a").insert(&1).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidConfig);

    let tagged = cache(backend);
    tagged.request("l").tag("a").insert(&2).await.unwrap();
    for _ in 0..3 {
        assert_eq!(plain.get("l").await.unwrap(), Some(2));
    }
    tagged.invalidate_tag("a").await.unwrap();
    assert_eq!(plain.get("l").await.unwrap(), None);
}

#[tokio::test(start_paused = true)]
async fn tags_have_limits() {
    let cache = cache(MemoryBackend::new());
    let longest = "x".repeat(512);
    cache.invalidate_tag(&longest).await.unwrap();
    for tag in ["", &"x".repeat(513)] {
        let error = cache.invalidate_tag(tag).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidKey);
        let error = cache.request("k").tag(tag).insert(&1).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidKey);
    }
    let with = |count: usize| {
        let request = (0..count).fold(cache.request("k"), |request, tag| {
            request.tag(format!("{tag}{longest}")[..512].to_owned())
        });
        async move { request.insert(&1).await }
    };
    with(128).await.unwrap();
    assert_eq!(cache.get("k").await.unwrap(), Some(1));
    assert_eq!(with(129).await.unwrap_err().kind(), ErrorKind::InvalidKey);
    let loaded = cache.request("l").load(|lead| async move {
        (0..129).for_each(|tag| lead.tag(tag.to_string()));
        Ok::<_, BoxError>(1)
    });
    assert_eq!(loaded.await.unwrap().value, 1, "its caller has it");
    assert_eq!((cache.get("l").await.unwrap(), cache.stats().unstorable), (None, 1));
}

#[tokio::test(start_paused = true)]
async fn a_value_with_tags_is_kept_no_longer_than_their_ends() {
    let day = 24 * HOUR;
    let cache =
        builder(MemoryBackend::new()).ttl(400 * day).stale_if_error(400 * day).build().unwrap();
    cache.request("k").tag("a").insert(&1).await.unwrap();
    load(&cache, "l", "a", 1).await;
    for key in ["k", "l"] {
        let kept = cache.peek(key).await.unwrap().unwrap().expires_in().unwrap();
        assert!(kept > 29 * day && kept <= 30 * day, "{kept:?}");
    }
    sleep(day).await;
    cache.invalidate_tag("a").await.unwrap();
    for _ in 0..31 {
        for key in ["k", "l"] {
            assert!(!cache.request(key).touch().await.unwrap());
            assert_eq!(cache.get(key).await.unwrap(), None);
        }
        sleep(day).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_copy_ends_with_its_tag_and_others_stay() {
    let [here, there] = tiers();
    let fill = async || {
        for (key, tag) in [("k", "a"), ("l", "b"), ("m", "")] {
            let request = there.request(key);
            let request = if tag.is_empty() { request } else { request.tag(tag) };
            request.insert(&1).await.unwrap();
            here.get(key).await.unwrap();
            assert_eq!(here.get_local(key), Some(1));
        }
    };
    let copies = || ["k", "l", "m"].map(|key| here.get_local(key).is_some());
    for cache in [&here, &there] {
        fill().await;
        cache.invalidate_tag("a").await.unwrap();
        assert_eq!(copies(), [false, true, true]);
        cache.expire_tag("b").await.unwrap();
        assert_eq!(copies(), [false, false, true]);
        cache.clear().await.unwrap();
        assert_eq!(copies(), [false; 3]);
    }
    assert!(here.get_many(["k", "l", "m"]).await.into_iter().all(|found| found.unwrap().is_none()));
}

/// A process forgets ends, and then all that may depend on them.
#[tokio::test(start_paused = true)]
async fn more_ends_than_a_process_remembers_end_no_less() {
    let [here, there] = tiers();
    for key in 0..100_u64 {
        there.request(key.to_string()).tag(format!("{key}")).insert(&key).await.unwrap();
        here.get(key.to_string()).await.unwrap();
        assert_eq!(here.get_local(&key.to_string()), Some(key));
    }
    there.invalidate_tag("7").await.unwrap();
    for tag in 1000..11_500 {
        there.invalidate_tag(tag.to_string()).await.unwrap();
        assert_eq!(here.get_local("7"), None);
    }
    here.get("8").await.unwrap();
    assert_eq!(here.get_local("8"), Some(8), "a copy is taken again");
}

/// It is not known whether the tag has ended, so this process keeps nothing.
#[tokio::test(start_paused = true)]
async fn an_end_of_unknown_outcome_is_an_error_and_ends_all_copies() {
    let faulty = Faulty::new(|_| None);
    let cache = builder(faulty.clone()).local(LocalTier::default()).build().unwrap();
    load(&cache, "k", "a", 1).await;
    cache.get("k").await.unwrap();
    assert_eq!(cache.get_local("k"), Some(1));
    faulty.plan(|op| (op == Op::EndTag).then_some(Fault::LoseReply));
    assert_eq!(cache.invalidate_tag("a").await.unwrap_err().kind(), ErrorKind::Backend);
    assert_eq!(cache.get_local("k"), None);
    assert_eq!(cache.get("k").await.unwrap(), None);
}

/// A server that does not say whether a tag has ended is a server that is away.
#[tokio::test(start_paused = true)]
async fn without_an_answer_about_tags_nothing_old_is_served() {
    let faulty = Faulty::new(|_| None);
    let cache = cache(faulty.clone());
    load(&cache, "k", "a", 1).await;
    faulty.plan(|op| (op == Op::TagEnds).then_some(Fault::Refuse));
    assert_eq!(cache.get("k").await.unwrap_err().kind(), ErrorKind::Backend);
    let loaded = cache.request("k").load(value(2)).await.unwrap();
    assert_eq!((loaded.value, loaded.source), (2, Source::Degraded));
    faulty.plan(|_| None);
    // A load whose number is not known is stored, and any end of its tags was later.
    faulty.plan(|op| (op == Op::TagNumber).then_some(Fault::Refuse));
    sleep(10 * SECOND).await;
    assert_eq!(load(&cache, "l", "b", 3).await, 3);
    assert_eq!(cache.get("l").await.unwrap(), Some(3));
    cache.invalidate_tag("c").await.unwrap();
    assert_eq!(load(&cache, "m", "c", 4).await, 4);
    assert_eq!(cache.get("m").await.unwrap(), None);
}

#[tokio::test(start_paused = true)]
async fn in_an_outage_no_value_is_served_whose_tag_this_process_has_ended() {
    let faulty = Faulty::new(|_| None);
    let cache = lasting(faulty.clone()).build().unwrap();
    for (key, tag) in [("k", "a"), ("l", "b")] {
        load(&cache, key, tag, 1).await;
        cache.get(key).await.unwrap();
    }
    cache.invalidate_tag("a").await.unwrap();
    faulty.plan(|_| Some(Fault::Refuse));
    for (key, expected) in [("k", 2), ("l", 1)] {
        assert_eq!(cache.get_or_load(key, value(2)).await.unwrap(), expected);
    }
    // The outcome of this one is not known, so nothing is remembered.
    assert!(cache.invalidate_tag("c").await.is_err());
    assert_eq!(cache.get_or_load("l", value(3)).await.unwrap(), 3);
}

/// A load runs without the backend when a tag is ended in vain. Who asks afterwards may not have
/// its value, for the end may have happened.
#[tokio::test(start_paused = true)]
async fn a_load_that_runs_while_an_end_fails_is_for_those_who_asked_before() {
    let faulty = Faulty::new(|_| None);
    let cache =
        builder(faulty.clone()).outage_memory(1 << 20).stale_if_error(HOUR).build().unwrap();
    for lost in [false, true] {
        // Without a backend, or with one that loses the answer to the commit.
        faulty.plan(move |op| match op {
            _ if !lost => Some(Fault::Refuse),
            Op::Commit | Op::EndTag => Some(Fault::LoseReply),
            _ => None,
        });
        let key = format!("{lost}");
        let old = Running::begin(&cache, &key, "a", 1).await;
        assert!(cache.invalidate_tag("a").await.is_err());
        let after = spawn(cache.request(&key).load(value(2)));
        sleep(MS).await;
        assert_eq!(old.end().await, 1);
        assert_eq!(after.await.unwrap().unwrap().value, 2, "{lost}");
        faulty.plan(|_| None);
        sleep(10 * SECOND).await;
        cache.get(&key).await.unwrap();
    }
}

/// A value is committed after the end of its tag, and lasts longer than an end that is remembered.
#[tokio::test(start_paused = true)]
async fn a_value_whose_tag_ended_during_its_load_never_comes_back() {
    let day = 24 * HOUR;
    let cache = builder(MemoryBackend::new()).ttl(30 * day).build().unwrap();
    let old = Running::begin(&cache, "k", "a", 1).await;
    cache.invalidate_tag("a").await.unwrap();
    sleep(10_000 * MS).await;
    assert_eq!(old.end().await, 1);
    for _ in 0..4 {
        assert_eq!(cache.get("k").await.unwrap(), None);
        sleep(10 * day - 3_000 * MS).await;
    }
}

/// A process is told of more ends than it remembers, and what it remembers of values is older.
#[tokio::test(start_paused = true)]
async fn many_ends_elsewhere_bring_nothing_back_in_an_outage() {
    let backend = MemoryBackend::new();
    let faulty = Faulty::over(backend.clone(), |_| None);
    let there = cache(backend);
    let here = lasting(faulty.clone()).local(LocalTier::default()).build().unwrap();
    load(&here, "k", "a", 1).await;
    here.get("k").await.unwrap();
    here.invalidate_tag("a").await.unwrap();
    for tag in 0..10_001 {
        there.invalidate_tag(tag.to_string()).await.unwrap();
    }
    faulty.plan(|_| Some(Fault::Refuse));
    assert_eq!(here.get_or_load("k", value(2)).await.unwrap(), 2, "this process has ended it");
}

#[tokio::test(start_paused = true)]
async fn an_expired_value_is_not_fresh_and_a_doubled_tag_is_one() {
    let cache = builder(MemoryBackend::new()).stale_if_error(HOUR).build().unwrap();
    let request = (0..200).fold(cache.request("k"), |request, _| request.tag("a"));
    request.insert(&1).await.unwrap();
    assert!(cache.peek("k").await.unwrap().unwrap().expires_in().unwrap() > HOUR - MS);
    cache.expire_tag("a").await.unwrap();
    assert_eq!(
        cache.peek("k").await.unwrap().and_then(|loaded| loaded.expires_in()),
        Some(Duration::ZERO)
    );
    assert_eq!(cache.peek("k").await.unwrap().unwrap().source, Source::Stale);
}

/// No change is told while a value is inserted, or it would stay for good.
#[tokio::test(flavor = "multi_thread")]
async fn a_watch_is_told_of_no_end_while_it_inserts() {
    let backend = MemoryBackend::new();
    let [here, other] = [(); 2].map(|()| cache(backend.clone()));
    let own = Arc::new(Mutex::new(None));
    let (told, tells) = mpsc::channel();
    let kept = own.clone();
    let watch = here.watch(move |_| {
        *kept.lock().unwrap() = None;
        let _ = told.send(());
    });
    let ticket = watch.ticket("k").unwrap();
    let loaded = here.request("k").tag("a").load(value(1)).await.unwrap();
    let runtime = tokio::runtime::Handle::current();
    let mut end = None;
    while tells.try_recv().is_ok() {}
    watch.insert_if_current(&ticket, &loaded, || {
        end = Some(std::thread::spawn(move || runtime.block_on(other.invalidate_tag("a"))));
        let is_told = tells.recv_timeout(Duration::from_millis(300)).is_ok();
        assert!(!is_told, "told while it inserts");
        *own.lock().unwrap() = Some(loaded.value);
    });
    end.unwrap().join().unwrap().unwrap();
    let is_gone = async || own.lock().unwrap().is_none();
    assert!(comes_true(LIMIT, is_gone).await, "an ended value stays in the cache of the user");
}

/// HybridCache#7771: the stamps of clocks made most values stale while a tag was in flight. Here a
/// value that was loaded after the end of its tag is of use at once.
#[tokio::test(start_paused = true)]
async fn a_tag_that_ends_all_the_time_costs_one_load_each_time() {
    let backend = MemoryBackend::new();
    let caches = [(); 4].map(|()| cache(backend.clone()));
    let loads = Arc::new(AtomicU64::new(0));
    let begun = Instant::now();
    for round in 0..50_u64 {
        caches[round as usize % 4].invalidate_tag("a").await.unwrap();
        for cache in caches.iter().cycle().take(40) {
            let loads = loads.clone();
            let load = move |lead: Lead<u64>| async move {
                lead.tag("a");
                Ok::<_, BoxError>(loads.fetch_add(1, Ordering::Relaxed))
            };
            assert_eq!(cache.get_or_load("k", load).await.unwrap(), round);
        }
    }
    assert_eq!(loads.load(Ordering::Relaxed), 50);
    assert!(begun.elapsed() < HOUR);
}
