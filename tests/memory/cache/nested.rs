//! Loaders that ask for further keys.

use super::{Answer, fleet, loader, settle};
use crate::{origin::Origin, prelude::*};

#[tokio::test(start_paused = true)]
async fn a_loader_that_comes_back_to_its_own_key_loads_without_storing() {
    let caches: [_; 1] = fleet();
    let cache = caches[0].clone();
    let inner = cache.clone();
    let answer = cache.request("k").load(move |_| async move {
        let own = inner.request("k").load(value("inner".to_owned())).await?;
        assert_eq!(own.source, Source::Degraded);
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
