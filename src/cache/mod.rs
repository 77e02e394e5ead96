//! A cache that loads each missing entry once in the whole fleet, while the backend answers.
//!
//! [`Cache::get_or_load`] is the entry point, and a [`Request`] has options of its own. The loader
//! gets a [`Lead`]. A [`Codec`] turns values into bytes.
//!
//! [`Cache::stats`] counts what happened to the callers and the loads of this process. Outages,
//! refused writes and entries that cannot be decoded are logged by `tracing`, each at most once a
//! minute.
//!
//! [`windows`] shows how long a value is served, and when a refresh begins.

// rustdoc shows the methods of `Cache` in the order of these files.
mod handle;

mod writes;

mod many;

mod explain;

mod in_process;

mod watch;

mod activity;
mod breaker;
mod builder;
mod codec;
mod core;
mod failures;
mod freshness;
mod invalidations;
mod lead;
mod loader;
mod local;
mod member;
mod outage;
mod outcome;
mod read;
mod refreshes;
mod request;
mod run;
mod settings;
#[cfg(feature = "http")]
pub(crate) mod shared_load;
mod tags;
mod unencoded;

#[doc = include_str!("../../docs/freshness.md")]
pub mod windows {}

use std::{fmt, sync::Arc};

#[cfg(feature = "postcard")]
pub use self::codec::Postcard;
pub use self::{
    builder::Builder,
    codec::{Codec, Json, Raw},
    explain::{EntryState, Explanation},
    failures::AfterFailure,
    freshness::EarlyRefresh,
    lead::Lead,
    many::Batch,
    outcome::{Loaded, Source},
    request::Request,
    run::{Begun, Load},
    settings::LocalTier,
    watch::{EntryWatch, Ticket},
};
pub use crate::observe::Stats;

use self::core::Core;

/// A cache whose entries are loaded by one caller in the whole fleet.
///
/// Clones are the same cache. The fleet of a cache is all processes that build a cache with the
/// same namespace over the same backend.
///
/// ```
/// # let mut builder = tokio::runtime::Builder::new_current_thread();
/// # builder.enable_time().start_paused(true).build().unwrap().block_on(async {
/// use std::time::Duration;
/// use bellwether::{BoxError, Cache, MemoryBackend, cache::EntryState};
///
/// let builder = Cache::builder(MemoryBackend::new(), "shop").ttl(Duration::from_secs(60));
/// let cache: Cache<u64> = builder.tags().build()?;
/// tokio::spawn(cache.answer_top());
/// # #[cfg(feature = "metrics")]
/// tokio::spawn(cache.publish_metrics("stock"));
///
/// let load = |_lead| async { Ok::<_, BoxError>(17) };
/// assert_eq!(cache.get_or_load("stock:42", load).await?, 17);
/// // A request may have options of its own, and its answer says more than the value.
/// let loaded = cache.request("stock:43").ttl(Duration::from_secs(5)).load(load).await?;
/// assert!(loaded.age().unwrap() < Duration::from_secs(5));
///
/// cache.insert("stock:44", &18).await?;
/// assert_eq!(cache.get("stock:44").await?, Some(18));
/// assert!(cache.peek("stock:44").await?.unwrap().expires_in().is_some());
/// cache.expire("stock:44").await?;
/// assert_eq!(cache.explain("stock:44").await?.state, EntryState::Missing);
/// cache.invalidate("stock:43").await?;
/// cache.settled().await;
/// // Now no process serves the old values.
///
/// cache.insert_many([("stock:45", 19)]).await.remove(0)?;
/// assert_eq!(cache.get_many(["stock:45"]).await.remove(0)?, Some(19));
/// cache.invalidate_many(["stock:45"]).await.remove(0)?;
///
/// cache.request("stock:46").tag("shelf:7").insert(&20).await?;
/// cache.expire_tag("shelf:7").await?;
/// cache.invalidate_tag("shelf:7").await?;
/// cache.clear().await?;
/// cache.shutdown(Duration::from_secs(5)).await;
/// # Ok::<_, bellwether::Error>(()) }).unwrap();
/// ```
pub struct Cache<V> {
    pub(crate) core: Arc<Core<V>>,
}

impl<V> Clone for Cache<V> {
    fn clone(&self) -> Self {
        Self { core: self.core.clone() }
    }
}

impl<V> fmt::Debug for Cache<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cache")
            .field("namespace", &self.core.settings.namespace)
            .finish_non_exhaustive()
    }
}
