//! A cache for one process, whose values have no encoding.

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
    assert_eq!(load(2).await.unwrap().source(), Source::Led);
    cache.invalidate_tag("a").await.unwrap();
    let third = load(3).await.unwrap();
    assert_eq!((third.source(), third.value.1), (Source::Led, 3));
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
