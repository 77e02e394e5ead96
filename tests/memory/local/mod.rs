//! The local tier over a backend in memory. Clones of the backend stand for the processes.

mod fills;
mod schedules;
mod watch;

use bellwether::cache::LocalTier;
use tokio::time::advance;

use crate::prelude::*;

fn cache(backend: impl Store) -> Cache<u64> {
    Cache::builder(backend, "bellwether").local(LocalTier::default()).build().unwrap()
}

/// Loads a value, if there is none.
async fn load(cache: &Cache<u64>, made: u64) -> (u64, Source) {
    let loaded = cache.request("k").load(value(made)).await.unwrap();
    (loaded.value, loaded.source)
}

/// Has the tier keep the stored value.
async fn warm(cache: &Cache<u64>) {
    assert!(cache.get("k").await.unwrap().is_some());
    assert!(cache.get_local("k").is_some());
}

#[tokio::test]
async fn a_copy_is_served_without_a_question() {
    let cache = cache(MemoryBackend::new());
    assert_eq!(cache.get_local("k"), None);
    let loads = [load(&cache, 1).await, load(&cache, 2).await, load(&cache, 3).await];
    assert_eq!(loads, [(1, Source::Led), (1, Source::Hit), (1, Source::Local)]);
    assert_eq!(cache.get("k").await.unwrap(), Some(1));
    assert_eq!(cache.get_many(["k"]).await[0].as_ref().unwrap(), &Some(1));
    let many =
        cache.get_or_load_many([1_u64], |_| "k", |_batch| async { Ok::<[_; 0], BoxError>([]) });
    assert_eq!(many.await.unwrap()[0].as_ref().unwrap().source, Source::Local);
    let skipped = cache.request("k").max_local_age(Duration::ZERO).load(value(4));
    assert_eq!(skipped.await.unwrap().source, Source::Hit);
    let stats = cache.stats();
    assert_eq!((stats.led, stats.hits, stats.local), (1, 2, 4));
}

#[tokio::test(start_paused = true)]
async fn a_value_has_a_life_in_the_process_and_one_in_the_fleet() {
    let cache = cache(MemoryBackend::new());
    let load = async |age: Duration, made: u64| {
        let request = cache.request("k").max_local_age(age).ttl(60 * SECOND);
        request.load(value(made)).await.unwrap().source
    };
    assert_eq!(load(200 * MS, 1).await, Source::Led);
    assert_eq!(load(200 * MS, 2).await, Source::Hit);
    advance(100 * MS).await;
    assert_eq!(load(200 * MS, 2).await, Source::Local);
    assert_eq!(load(50 * MS, 2).await, Source::Hit, "its copy is too old for this caller");
    advance(50 * MS).await;
    assert_eq!(cache.get_local("k"), None, "the last copy was made for 50 ms");
    assert_eq!(cache.get("k").await.unwrap(), Some(1));
}

#[tokio::test]
async fn an_act_ends_the_copies_here_and_there() {
    let backend = MemoryBackend::new();
    let [here, there] = [(); 2].map(|()| {
        let builder = Cache::builder(backend.clone(), "bellwether").stale_if_error(60 * SECOND);
        builder.local(LocalTier::default()).build().unwrap()
    });
    for both in [[&here, &there], [&there, &here]] {
        let [actor, other] = both;
        actor.insert("k", &1).await.unwrap();
        for act in 0..4 {
            for cache in both {
                warm(cache).await;
            }
            match act {
                0 => drop(actor.insert("k", &2).await.unwrap()),
                1 => assert!(actor.request("k").touch().await.unwrap()),
                2 => drop(actor.expire("k").await.unwrap()),
                _ => drop(actor.invalidate("k").await.unwrap()),
            }
            for cache in both {
                assert_eq!(cache.get_local("k"), None, "act {act}");
            }
            let after = other.get("k").await.unwrap();
            assert_eq!(after, if act < 2 { Some(2) } else { None }, "act {act}");
            if act == 2 {
                actor.insert("k", &3).await.unwrap();
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_copy_ends_with_its_entry_or_its_age() {
    let backend = MemoryBackend::new();
    let builder = || Cache::<u64>::builder(backend.clone(), "bellwether").ttl(60 * SECOND);
    let cache = builder().local(LocalTier::default()).build().unwrap();
    let brief = builder().local(LocalTier::default().max_age(5 * MS)).build().unwrap();
    let writer = builder().build().unwrap();
    writer.request("k").ttl(3_000 * MS).insert(&1).await.unwrap();
    advance(1_000 * MS).await;
    for cache in [&cache, &brief] {
        warm(cache).await;
    }
    advance(5 * MS).await;
    assert_eq!((cache.get_local("k"), brief.get_local("k")), (Some(1), None));
    advance(1_990 * MS).await;
    warm(&brief).await;
    assert_eq!(cache.get_local("k"), Some(1));
    advance(5 * MS).await;
    assert_eq!((cache.get_local("k"), brief.get_local("k")), (None, None));
    writer.insert("k", &2).await.unwrap();
    warm(&cache).await;
    advance(9_999 * MS).await;
    assert_eq!(cache.get_local("k"), Some(2));
    advance(MS).await;
    assert_eq!(cache.get_local("k"), None);
}

/// A tier must not keep a hot key from its refresh.
#[tokio::test(start_paused = true)]
async fn a_copy_is_refreshed_as_its_entry_is() {
    for early in [EarlyRefresh::Within(300 * MS), EarlyRefresh::LastPart(0.3)] {
        let builder = Cache::<u64>::builder(MemoryBackend::new(), "bellwether").ttl(1_000 * MS);
        let cache = builder.early_refresh(early).local(LocalTier::default()).build().unwrap();
        let mut last = 0;
        for at in 0..200 {
            let loaded = cache.request("k").load(after(50 * MS, at)).await.unwrap();
            assert!(loaded.value >= last, "{} after {last}", loaded.value);
            assert!(at == 0 || loaded.source != Source::Led, "{early:?} at {at}");
            last = loaded.value;
            sleep(50 * MS).await;
        }
        let stats = cache.stats();
        assert!((9..=30).contains(&stats.loads), "{early:?}: {stats:?}");
        assert!(stats.local >= 100, "{early:?}: {stats:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn stale_values_and_failures_go_around_the_tier() {
    let builder = Cache::<u64>::builder(MemoryBackend::new(), "bellwether").ttl(100 * MS);
    let builder = builder.stale_while_revalidate(100 * MS).stale_if_error(1_000 * MS);
    let cache = builder.local(LocalTier::default()).build().unwrap();
    cache.insert("k", &1).await.unwrap();
    warm(&cache).await;
    sleep(100 * MS).await;
    assert_eq!(cache.get_local("k"), None);
    assert_eq!(load(&cache, 2).await, (1, Source::Stale));
    sleep(MS).await;
    assert_eq!(load(&cache, 3).await, (2, Source::Hit));
    assert_eq!(load(&cache, 3).await, (2, Source::Local));
    sleep(250 * MS).await;
    let failing = cache.request("k").load(fails("down"));
    assert_eq!(failing.await.unwrap().source, Source::Stale);
    assert_eq!(cache.get_local("k"), None);
}

/// A reader that was sent the fence of a write reads that write, though a load that began before it
/// is under way.
#[tokio::test(start_paused = true)]
async fn a_value_is_not_older_than_a_fence() {
    let backend = MemoryBackend::new();
    let [here, there] = [cache(backend.clone()), cache(backend.clone())];
    there.insert("k", &1).await.unwrap();
    warm(&here).await;
    let fence = there.insert("k", &2).await.unwrap();
    let read = |fence| here.request("k").not_older_than(fence).load(value(9));
    assert_eq!(read(fence).await.unwrap().source, Source::Hit);
    assert_eq!(read(fence).await.unwrap().source, Source::Local);
    // No copy is as new as a write that is still to come.
    assert_ne!(read(fence + 1).await.unwrap().source, Source::Local);

    there.invalidate("k").await.unwrap();
    let load = spawn(here.request("k").load(after(100 * MS, 3)));
    sleep(50 * MS).await;
    let fence = there.insert("k", &4).await.unwrap();
    assert_eq!(read(fence).await.unwrap().value, 4);
    load.await.unwrap().unwrap();
}

/// The greatest bound that a tier of any process may have.
#[tokio::test(start_paused = true)]
async fn a_change_is_settled_when_no_tier_may_be_behind() {
    let cache = cache(MemoryBackend::new());
    let begun = Instant::now();
    cache.settled().await;
    assert_eq!(begun.elapsed(), 2_000 * MS);
    let tier = LocalTier::default().max_staleness(begun.elapsed());
    assert!(Cache::<u64>::builder(MemoryBackend::new(), "bellwether").local(tier).build().is_ok());
}

#[tokio::test]
async fn the_weight_of_all_copies_is_bounded() {
    let builder = Cache::<String>::builder(MemoryBackend::new(), "bellwether");
    let cache = builder.local(LocalTier::weight(256 << 10)).build().unwrap();
    let keys: Vec<_> = (0..1_000).map(|at| format!("key:{at}")).collect();
    for key in &keys {
        cache.insert(key, &"v".repeat(1_000)).await.unwrap();
        cache.get(key).await.unwrap();
    }
    let kept = keys.iter().filter(|key| cache.get_local(key).is_some()).count();
    // A row weighs about 1,480 bytes.
    assert!((150..=200).contains(&kept), "{kept}");
    cache.insert("large", &"v".repeat(300 << 10)).await.unwrap();
    cache.get("large").await.unwrap();
    assert_eq!(cache.get_local("large"), None);
}

/// The number of cores decided which values were kept: of 64 MiB on 32 cores, none of 1 MiB.
#[tokio::test]
async fn a_value_of_almost_a_quarter_of_the_weight_is_kept() {
    let builder = Cache::<String>::builder(MemoryBackend::new(), "bellwether");
    let builder = builder.local(LocalTier::weight(1 << 20)).outage_memory(0);
    let cache = builder.build().unwrap();
    for (size, is_kept) in [(128 << 10, true), (240 << 10, true), (257 << 10, false)] {
        let key = format!("large:{size}");
        cache.insert(&*key, &"v".repeat(size)).await.unwrap();
        cache.get(&*key).await.unwrap();
        assert_eq!(cache.get_local(&key).is_some(), is_kept, "{size}");
    }
}

#[test]
fn settings_outside_their_ranges_are_refused() {
    let tier = LocalTier::default();
    for (tier, setting) in [
        (LocalTier::weight(0), "local.weight"),
        // No copy is so small.
        (LocalTier::weight(10), "local.weight"),
        (tier.max_age(Duration::ZERO), "local.max_age"),
        (tier.max_staleness(99 * MS), "local.max_staleness"),
        (tier.max_staleness(2_001 * MS), "local.max_staleness"),
    ] {
        let built = Cache::<u64>::builder(MemoryBackend::new(), "bellwether").local(tier).build();
        let error = built.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidConfig);
        assert!(error.to_string().contains(setting), "{error}");
    }
}
