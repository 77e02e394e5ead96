//! A cache for one process, whose values have no encoding, or which keeps no values at all.

use crate::prelude::*;

/// A value that cannot be encoded, and counts how many of its kind live.
struct Held(Arc<AtomicUsize>, u64);

impl Held {
    fn new(living: &Arc<AtomicUsize>, number: u64) -> Arc<Self> {
        living.fetch_add(1, Ordering::SeqCst);
        Arc::new(Self(living.clone(), number))
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

#[tokio::test(start_paused = true)]
async fn values_are_shared_and_dropped_with_their_entries() {
    let living = Arc::new(AtomicUsize::new(0));
    let cache: Cache<Arc<Held>> =
        Cache::in_process(100).ttl(Duration::from_secs(60)).tags().build().unwrap();
    let load = |number: u64| {
        let living = living.clone();
        cache.request("k").tag("a").load(move |_lead| async move {
            sleep(Duration::from_millis(1)).await;
            Ok::<_, BoxError>(Held::new(&living, number))
        })
    };
    let loaded = join_all((0..100).map(load)).await;
    let first = loaded[0].as_ref().unwrap().value.clone();
    for loaded in loaded {
        assert!(Arc::ptr_eq(&loaded.unwrap().value, &first));
    }
    assert!(Arc::ptr_eq(&cache.get("k").await.unwrap().unwrap(), &first));
    assert_eq!(living.load(Ordering::SeqCst), 1);
    drop(first);
    cache.invalidate("k").await.unwrap();
    assert_eq!(living.load(Ordering::SeqCst), 0);
    assert_eq!(load(2).await.unwrap().source, Source::Led);
    cache.invalidate_tag("a").await.unwrap();
    let third = load(3).await.unwrap();
    assert_eq!((third.source, third.value.1), (Source::Led, 3));
    drop(third);
    assert_eq!(living.load(Ordering::SeqCst), 1);
    sleep(Duration::from_secs(61)).await;
    assert!(cache.get("k").await.unwrap().is_none());
    assert_eq!(living.load(Ordering::SeqCst), 0);
}

#[tokio::test(start_paused = true)]
async fn so_many_values_are_kept_and_no_more() {
    let living = Arc::new(AtomicUsize::new(0));
    let cache: Cache<Arc<Held>> = Cache::in_process(50).tags().build().unwrap();
    for number in 0..1000 {
        let request = cache.request(number).tag("page");
        request.insert(&Held::new(&living, number)).await.unwrap();
    }
    assert_eq!(living.load(Ordering::SeqCst), 50);
    assert_eq!(cache.get(999_u64).await.unwrap().unwrap().1, 999);
    cache.shutdown(Duration::ZERO).await;
    drop(cache);
    assert_eq!(living.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn a_cache_of_no_values_is_refused() {
    let error = Cache::<u64>::in_process(0).build().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidConfig);
    assert!(error.to_string().contains("`in_process` is 0"), "{error}");
    let cache = Cache::<u64>::in_process(1).build().unwrap();
    cache.insert("k", &1).await.unwrap();
    assert_eq!(cache.get("k").await.unwrap(), Some(1));
}

/// A value is served without the engine until its time is over, or an act of this process ends it.
#[tokio::test(start_paused = true)]
async fn an_act_and_the_end_of_its_time_end_a_fresh_value() {
    const TTL: Duration = Duration::from_secs(60);
    let living = Arc::new(AtomicUsize::new(0));
    let cache: Cache<Arc<Held>> = Cache::in_process(100).ttl(TTL).build().unwrap();
    let value = async || Some(cache.get("k").await.unwrap()?.1);
    let settled = async |expected: Option<u64>| {
        for _ in 0..30 {
            assert_eq!(value().await, expected);
        }
    };
    cache.insert("k", &Held::new(&living, 1)).await.unwrap();
    settled(Some(1)).await;
    assert_eq!(cache.stats().hits, 30);
    let load = |_lead: Lead<_>| async { Err::<Arc<Held>, _>(std::io::Error::other("a load")) };
    for _ in 0..30 {
        assert_eq!(cache.get_or_load("k", load).await.unwrap().1, 1);
    }
    assert_eq!(cache.stats().hits, 60);

    cache.insert("k", &Held::new(&living, 2)).await.unwrap();
    assert_eq!(living.load(Ordering::SeqCst), 1);
    settled(Some(2)).await;
    cache.expire("k").await.unwrap();
    settled(None).await;
    cache.insert("k", &Held::new(&living, 3)).await.unwrap();
    settled(Some(3)).await;
    sleep(TTL / 2).await;
    assert!(cache.request("k").touch().await.unwrap());
    settled(Some(3)).await;
    sleep(TTL - Duration::from_millis(1)).await;
    settled(Some(3)).await;
    sleep(Duration::from_millis(1)).await;
    settled(None).await;

    cache.insert("k", &Held::new(&living, 4)).await.unwrap();
    settled(Some(4)).await;
    let newer = Held::new(&living, 5);
    let load = |_lead| async move { Ok::<_, BoxError>(newer) };
    assert_eq!(cache.request("k").refresh(load).await.unwrap().value.1, 5);
    settled(Some(5)).await;
    cache.invalidate("k").await.unwrap();
    settled(None).await;
    assert_eq!(living.load(Ordering::SeqCst), 0);
}

#[tokio::test(start_paused = true)]
async fn a_value_that_is_in_use_stays_while_others_come_and_go() {
    let cache: Cache<u64> = Cache::in_process(20).build().unwrap();
    cache.insert("hot", &1).await.unwrap();
    for number in 0..1000_u64 {
        cache.insert(number, &number).await.unwrap();
        assert_eq!(cache.get("hot").await.unwrap(), Some(1), "after {number}");
    }
}

/// A reader that has the old value under way puts it back for no later caller.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn no_caller_is_served_what_an_insert_has_replaced() {
    let cache: Cache<u64> = Cache::in_process(20).build().unwrap();
    cache.insert("k", &0).await.unwrap();
    let latest = Arc::new(AtomicUsize::new(0));
    let readers = (0..3).map(|_| {
        let cache = cache.clone();
        let latest = latest.clone();
        tokio::spawn(async move {
            loop {
                let least = latest.load(Ordering::SeqCst) as u64;
                let found = cache.get("k").await.unwrap().unwrap();
                assert!(found >= least, "{found} after {least} was inserted");
                if found == 20_000 {
                    break;
                }
                tokio::task::yield_now().await;
            }
        })
    });
    let readers: Vec<_> = readers.collect();
    for number in 1..=20_000 {
        cache.insert("k", &number).await.unwrap();
        latest.store(number as usize, Ordering::SeqCst);
    }
    for reader in readers {
        reader.await.unwrap();
    }
}

/// Returns a load for the callers of the moment, as Go's `singleflight` makes one.
fn kept_by_nobody(
    group: &Cache<u64>,
    number: u64,
) -> impl Future<Output = Result<Loaded<u64>, Error>> + Send + use<> {
    group.request("k").load(move |lead| {
        lead.do_not_store();
        after(10 * MS, number)(lead)
    })
}

/// The guide has a table of this beside Go's `singleflight`.
#[tokio::test(start_paused = true)]
async fn a_group_shares_a_load_and_keeps_nothing() {
    let group: Cache<u64> = Cache::in_process(1).build().unwrap();
    drop(kept_by_nobody(&group, 1));
    assert_eq!(group.stats().loads, 0, "a future that is not polled has loaded");
    let first = tokio::spawn(kept_by_nobody(&group, 2));
    let second = tokio::spawn(kept_by_nobody(&group, 3));
    let sources = all([first, second]).await.into_iter().map(|loaded| loaded.unwrap().source);
    assert_eq!(sources.collect::<Vec<_>>(), [Source::Led, Source::Followed]);
    assert_eq!(kept_by_nobody(&group, 4).await.unwrap().value, 4);
    assert_eq!(group.stats().loads, 2);
}

#[tokio::test(start_paused = true)]
async fn after_an_invalidation_the_leader_alone_of_a_group_gets_the_old_result() {
    let group: Cache<u64> = Cache::in_process(1).build().unwrap();
    let leader = tokio::spawn(kept_by_nobody(&group, 1));
    sleep(MS).await;
    let waiters = [2, 3].map(|number| tokio::spawn(kept_by_nobody(&group, number)));
    sleep(MS).await;
    group.invalidate("k").await.unwrap();
    let late = tokio::spawn(kept_by_nobody(&group, 4));
    assert_eq!(leader.await.unwrap().unwrap().value, 1);
    for waiter in all(waiters).await {
        assert_ne!(waiter.unwrap().value, 1, "a waiter got the result of before");
    }
    assert_ne!(late.await.unwrap().unwrap().value, 1);
}
