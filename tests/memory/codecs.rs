//! A leader, its followers, other processes and hits get equal values, whatever the codec makes of
//! them. A value that its codec cannot decode again is not stored, and an error says why.

use std::{error::Error as _, fmt};

use bellwether::cache::{Codec, Json, Postcard};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::prelude::*;

const LOAD: Duration = Duration::from_millis(50);

/// Returns the values of a leader and a follower, of the callers of another process, and of hits.
async fn served<V, C>(codec: C, value: &V) -> Vec<V>
where
    V: Clone + fmt::Debug + Serialize + DeserializeOwned + Send + Sync + 'static,
    C: Codec<V> + Clone,
{
    let backend = MemoryBackend::new();
    let caches = [(), ()].map(|()| {
        Cache::<V>::builder(backend.clone(), "bellwether").codec(codec.clone()).build().unwrap()
    });
    let both = caches.iter().flat_map(|cache| [cache, cache]);
    let asked = both.map(|cache| spawn(cache.request("k").load(after(LOAD, value.clone()))));
    let mut values: Vec<_> =
        all(asked).await.into_iter().map(|loaded| loaded.unwrap().value).collect();
    for cache in &caches {
        values.extend(cache.get("k").await.unwrap());
        values.extend(cache.get_or_load("k", fails("no hit")).await);
    }
    assert_eq!(caches.iter().map(|cache| cache.stats().loads).sum::<u64>(), 1);
    assert_eq!(values.len(), 8, "{values:?}");
    values
}

#[tokio::test(start_paused = true)]
async fn a_float_is_stored_to_its_last_place() {
    for price in (1..=300).map(|cents| f64::from(cents) / 100.0 * 1.19) {
        let served = served(Json, &price).await;
        assert!(
            served.iter().all(|value| value.to_bits() == price.to_bits()),
            "{price}: {served:?}"
        );
    }
    let cache: Cache<f64> = Cache::builder(MemoryBackend::new(), "bellwether").build().unwrap();
    let price = 1.0 / 100.0 * 1.19;
    cache.insert("p", &price).await.unwrap();
    assert_eq!(cache.get("p").await.unwrap().map(f64::to_bits), Some(price.to_bits()));
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Page {
    title: String,
    #[serde(skip)]
    hits: u32,
    #[serde(default, skip_serializing)]
    note: Option<Option<String>>,
}

/// A codec that loses something made the leader get one value, and each hit another.
#[tokio::test(start_paused = true)]
async fn all_callers_get_the_value_that_the_codec_makes() {
    assert_eq!(served(Json, &Some(None::<u32>)).await, vec![None; 8]);
    assert_eq!(served(Json, &Some(f64::NAN)).await, vec![None; 8]);
    assert_eq!(served(Postcard, &Some(None::<u32>)).await, vec![Some(None); 8]);
    let title = "bell".to_owned();
    let page = Page { title: title.clone(), hits: 7, note: Some(None) };
    assert_eq!(served(Json, &page).await, vec![Page { title, ..Page::default() }; 8]);
}

/// The windows follow what the codec makes of a value.
#[tokio::test(start_paused = true)]
async fn a_value_that_becomes_none_is_kept_as_none() {
    let cache: Cache<Option<Option<u32>>> = Cache::builder(MemoryBackend::new(), "bellwether")
        .negative_ttl(LOAD, Option::is_none)
        .build()
        .unwrap();
    cache.insert("inserted", &Some(None)).await.unwrap();
    cache.get_or_load("loaded", value(Some(None))).await.unwrap();
    for key in ["inserted", "loaded"] {
        let kept = cache.peek(key).await.unwrap().and_then(|loaded| loaded.expires_in());
        assert_eq!(kept, Some(LOAD), "{key}");
    }
}

/// An unchanged value was decoded before, and its bytes are not needed.
#[tokio::test(start_paused = true)]
async fn an_unchanged_value_is_not_encoded_again() {
    let cache: Cache<Page> = Cache::builder(MemoryBackend::new(), "bellwether").build().unwrap();
    let page = Page { title: "bell".to_owned(), hits: 7, note: None };
    cache.insert("k", &page).await.unwrap();
    let load = |lead: Lead<Page>| async move {
        let stale = lead.stale().ok_or("there is no stale value")?;
        Ok::<_, BoxError>(lead.unchanged(stale))
    };
    let refreshed = cache.request("k").refresh(load).await.unwrap();
    assert_eq!((refreshed.value.hits, cache.stats().unchanged), (0, 1));
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind")]
enum Tagged {
    Article { number: u32 },
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Lacking {
    #[serde(skip_serializing)]
    number: u32,
}

async fn is_refused<V, C>(codec: C, value: V, reason: &str)
where
    V: Clone + fmt::Debug + Send + Sync + 'static,
    C: Codec<V>,
{
    let cache =
        Cache::<V>::builder(MemoryBackend::new(), "bellwether").codec(codec).build().unwrap();
    let error = cache.insert("k", &value).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Codec);
    let source = error.source().unwrap().to_string();
    assert!(source.contains(reason), "{source}");
    let loaded = cache.request("k").load(self::value(value.clone())).await.unwrap();
    // Not compared by their equality, which a NaN lacks.
    assert_eq!(format!("{:?}", loaded.value), format!("{value:?}"));
    assert_eq!((loaded.source, loaded.expires_in()), (Source::Led, None));
    assert!(cache.get("k").await.unwrap().is_none());
    let stats = cache.stats();
    assert_eq!((stats.unstorable, stats.undecodable), (1, 0), "{reason}");
}

#[tokio::test(start_paused = true)]
async fn a_value_that_cannot_be_decoded_again_is_not_stored_and_its_error_says_why() {
    is_refused(Json, f64::NAN, "invalid type: null").await;
    is_refused(Json, f64::NEG_INFINITY, "invalid type: null").await;
    is_refused(Json, Lacking { number: 7 }, "missing field `number`").await;
    is_refused(Postcard, Tagged::Article { number: 7 }, "will never implement").await;
}
