//! What a caller learns of a value beside the value, and errors that every process gets.

use bellwether::cache::Json;
use serde::{Deserialize, Serialize};

use crate::prelude::*;

const TTL: Duration = Duration::from_secs(60);

fn cache(backend: &MemoryBackend) -> Cache<String> {
    Cache::builder(backend.clone(), "bellwether").ttl(TTL).build().unwrap()
}

async fn ask(cache: &Cache<String>, key: &str) -> Loaded<String> {
    cache.request(key).load(value("loaded".to_owned())).await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn an_inserted_value_is_kept_for_a_time_of_its_own() {
    let cache = cache(&MemoryBackend::new());
    for (ttl, kept) in [(5 * TTL, 5 * TTL), (100 * MS, 100 * MS), (Duration::ZERO, MS)] {
        cache.request("k").ttl(ttl).insert(&"inserted".to_owned()).await.unwrap();
        sleep(kept - MS).await;
        assert_eq!(cache.get("k").await.unwrap().as_deref(), Some("inserted"), "{ttl:?}");
        sleep(MS).await;
        assert_eq!(cache.get("k").await.unwrap(), None, "{ttl:?}");
    }
    cache.insert("k", &"inserted".to_owned()).await.unwrap();
    sleep(TTL - MS).await;
    assert!(cache.get("k").await.unwrap().is_some());
}

/// The clocks are those of the server and of this process, so time is not paused here.
#[tokio::test]
async fn a_value_says_its_fence_its_age_and_its_time_left() {
    let backend = MemoryBackend::new();
    let [here, there] = [cache(&backend), cache(&backend)];
    let waits = |cache: &Cache<String>| {
        spawn(cache.request("k").ttl(TTL / 2).load(after(50 * MS, "loaded".to_owned())))
    };
    let mut fences = Vec::new();
    for loaded in all([&here, &here, &there].map(waits)).await {
        let loaded = loaded.unwrap();
        assert!(loaded.age().unwrap() < TTL / 6, "{loaded:?}");
        let left = loaded.expires_in().unwrap();
        assert!(left > TTL / 3 && left <= TTL / 2, "{loaded:?}");
        fences.push(loaded.fence().unwrap());
    }
    let hit = ask(&there, "k").await;
    assert_eq!((hit.source, hit.fence()), (Source::Hit, Some(fences[0])));
    assert!(hit.expires_in().unwrap() <= TTL / 2);
    fences.dedup();
    assert_eq!(fences.len(), 1);

    here.request("k").ttl(TTL * 2).insert(&"inserted".to_owned()).await.unwrap();
    let hit = ask(&there, "k").await;
    assert!(hit.fence().unwrap() > fences[0] && hit.age().unwrap() < TTL / 6, "{hit:?}");
    assert!(hit.expires_in().unwrap() > TTL, "{hit:?}");
}

#[tokio::test]
async fn a_value_that_is_not_stored_has_no_time_left() {
    let here = cache(&MemoryBackend::new());
    let load = |lead: bellwether::cache::Lead<_>| async move {
        lead.do_not_store();
        Ok::<_, BoxError>("loaded".to_owned())
    };
    let led = here.request("k").load(load).await.unwrap();
    assert!(led.fence().is_some() && led.age().is_some() && led.expires_in().is_none(), "{led:?}");
    here.shutdown(TTL).await;
    let degraded = ask(&here, "k").await;
    assert_eq!(degraded.source, Source::Degraded);
    assert_eq!((degraded.fence(), degraded.age(), degraded.expires_in()), (None, None, None));
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, thiserror::Error)]
enum ShopError {
    #[error("article {article} is sold out")]
    SoldOut { article: u32 },
    #[error("no article")]
    Rambling(String),
    /// Has no encoding.
    #[error("no article")]
    Secret(#[serde(skip)] Option<u32>, #[serde(serialize_with = "refuse")] u32),
}

fn refuse<S: serde::Serializer>(_: &u32, _: S) -> Result<S::Ok, S::Error> {
    Err(serde::ser::Error::custom("a secret"))
}

/// Returns the errors of two processes that wait for one load.
async fn fails(error: impl Into<BoxError> + Clone + Send + 'static) -> Vec<bellwether::Error> {
    let backend = MemoryBackend::new();
    let caches = [(), ()].map(|()| {
        let builder = Cache::<String>::builder(backend.clone(), "bellwether");
        builder.error_codec::<ShopError>(Json).build().unwrap()
    });
    let asked = (0..6).map(|caller| {
        let error: BoxError = error.clone().into();
        let load = |_| sleep(50 * MS).map(|()| Err::<String, _>(error));
        spawn(caches[caller % 2].request("k").load(load))
    });
    let errors: Vec<_> = all(asked).await.into_iter().map(Result::unwrap_err).collect();
    assert_eq!(caches.map(|cache| cache.stats().loads).iter().sum::<u64>(), 1);
    errors
}

#[tokio::test(start_paused = true)]
async fn an_error_codec_gives_every_process_the_same_error() {
    let sold_out = ShopError::SoldOut { article: 42 };
    for error in fails(sold_out.clone()).await {
        assert_eq!(error.kind(), ErrorKind::Load);
        assert_eq!(error.load_ref::<ShopError>(), Some(&sold_out));
        assert!(format!("{error:#}").ends_with(": article 42 is sold out"), "{error:#}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_error_without_an_encoding_is_a_text_in_other_processes() {
    let long = ShopError::Rambling("x".repeat(20 << 10));
    for error in [long, ShopError::Secret(None, 7)] {
        let errors = fails(error).await;
        let typed = errors.iter().filter(|error| error.load_ref::<ShopError>().is_some()).count();
        assert_eq!(typed, 3);
        assert!(errors.iter().all(|error| format!("{error:#}").contains("no article")));
    }
    let errors = fails("another type").await;
    assert!(errors.iter().all(|error| format!("{error:#}").contains("another type")));
}
