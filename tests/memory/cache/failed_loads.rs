//! Loads that fail, panic or hang, and values that have no bytes.

use bellwether::cache::Raw;

use super::{ask, build, fleet, loader};
use crate::{origin::Origin, prelude::*};

#[derive(Debug, PartialEq, thiserror::Error)]
#[error("no such product: {0}")]
struct NoSuchProduct(u32);

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
