//! Callers that are served, and their counters.

use bellwether::cache::{LocalTier, Stats};

use super::{build, fleet};
use crate::prelude::*;

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
    assert_eq!((&*received.value, received.source), ("v", Source::Received));
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
