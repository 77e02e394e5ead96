//! The writes of a cache: to the entry of a key, or to all entries of a tag, without a load.

use std::sync::Arc;

use tokio::time::sleep;

use super::{
    Cache,
    core::{CacheBackend, Core},
    outage::WriteTarget,
    settings::GREATEST_STALENESS,
};
use crate::{
    backend::{Edit, TagEnd, Tap},
    error::Error,
    key::Key,
};

impl<V: Clone + Send + Sync + 'static> Cache<V> {
    /// Stores a value with the windows of the cache. The value of a load that is under way is not
    /// stored. Returns the fence of the value, for
    /// [`not_older_than`](super::Request::not_older_than). To store a value with other windows, use
    /// [`Request::insert`](super::Request::insert).
    ///
    /// # Errors
    ///
    /// As with [`invalidate`](Self::invalidate), and [`Codec`](crate::ErrorKind::Codec) if the
    /// value cannot be encoded, or is too large. If the backend is away, the key is invalidated
    /// when the backend answers again, which removes an older value.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the value may or may not be stored.
    pub async fn insert(&self, key: impl Into<Key>, value: &V) -> Result<u64, Error> {
        self.request(key).insert(value).await
    }

    /// Removes a value. The value of a load that is under way is not stored. After this call has
    /// returned, no caller is served an older value. Returns a fence that is smaller than the fence
    /// of each newer value.
    ///
    /// A loader that is running goes on, and its caller gets the value. A caller that joined after
    /// that loader had begun gets a newer value, or loads again.
    ///
    /// Another process with a [local tier](super::Builder::local) may serve its copy until the
    /// bound of the tier. [`settled`](Self::settled) waits for that long.
    ///
    /// # Errors
    ///
    /// [`InvalidKey`](crate::ErrorKind::InvalidKey) if the key is empty or too long, or
    /// [`Backend`](crate::ErrorKind::Backend) if the backend did not answer or refused. The value
    /// may then be removed or not. If the backend is away, the cache [repeats the
    /// invalidation](crate::Error::is_deferred) later.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the value may or may not be removed.
    pub async fn invalidate(&self, key: impl Into<Key>) -> Result<u64, Error> {
        self.end(key.into(), Edit::Invalidate).await
    }

    /// Makes a value stale. The value is then served only if its load
    /// [fails](super::Builder::stale_if_error) or is [too slow](super::Builder::serve_stale_after).
    /// A value without a window for failures is removed. Everything else is as for
    /// [`invalidate`](Self::invalidate).
    ///
    /// # Errors
    ///
    /// As with [`invalidate`](Self::invalidate).
    ///
    /// # Cancel safety
    ///
    /// As with [`invalidate`](Self::invalidate).
    pub async fn expire(&self, key: impl Into<Key>) -> Result<u64, Error> {
        self.end(key.into(), Edit::Expire).await
    }

    async fn end(&self, key: Key, edit: Edit) -> Result<u64, Error> {
        let core = &self.core;
        let name = core.name(&key)?;
        core.local.invalidations.count(&key);
        core.edit(&key, &name, &edit).await
    }

    /// Completes when no process of the fleet serves a value from before this call. That is after
    /// 2 s, the greatest [staleness](super::LocalTier::max_staleness) of a local tier.
    ///
    /// The promise holds for the changes that the [bound of a local tier](super::Builder::local)
    /// covers, and so not in a cluster. Each process keeps the bound by itself (Gray and Cheriton,
    /// "Leases", SOSP 1989).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    pub async fn settled(&self) {
        sleep(GREATEST_STALENESS).await;
    }
}

/// Writes to all values of a tag.
impl<V: Clone + Send + Sync + 'static> Cache<V> {
    /// Removes all values that have a tag, with one command, whatever the number of values.
    ///
    /// After this call has returned, no caller in the fleet is served a value that was read before
    /// the call. Callers that wait for a load, and local tiers, are served as
    /// [`invalidate`](Self::invalidate) describes. While the backend is away, the limits of
    /// [`Degraded`](super::Source::Degraded) hold.
    ///
    /// No entry is deleted: the entries only count as removed, until they expire or are replaced. A
    /// value that was read from the origin before this call, and is [inserted](Self::insert) after
    /// the call, counts as new.
    ///
    /// # Errors
    ///
    /// As with [`invalidate`](Self::invalidate), and
    /// [`InvalidConfig`](crate::ErrorKind::InvalidConfig) if the cache was built without
    /// [`tags`](super::Builder::tags).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the values may or may not be removed.
    pub async fn invalidate_tag(&self, tag: impl AsRef<str>) -> Result<(), Error> {
        self.core.end_tag(Some(tag.as_ref()), TagEnd::Invalidated).await
    }

    /// Makes all values that have a tag stale, with one command, as [`expire`](Self::expire) does
    /// with one value. Everything else is as for [`invalidate_tag`](Self::invalidate_tag).
    ///
    /// # Errors
    ///
    /// As for [`invalidate_tag`](Self::invalidate_tag).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the values may or may not be stale.
    pub async fn expire_tag(&self, tag: impl AsRef<str>) -> Result<(), Error> {
        self.core.end_tag(Some(tag.as_ref()), TagEnd::Expired).await
    }

    /// Removes all values of the namespace that a cache with [`tags`](super::Builder::tags) has
    /// stored, with one command. Everything else is as for
    /// [`invalidate_tag`](Self::invalidate_tag).
    ///
    /// # Errors
    ///
    /// As for [`invalidate_tag`](Self::invalidate_tag).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the values may or may not be removed.
    pub async fn clear(&self) -> Result<(), Error> {
        self.core.end_tag(None, TagEnd::Invalidated).await
    }
}

impl<V: Clone + Send + Sync + 'static> Core<V> {
    /// Invalidates or expires a tag, or all values if there is no tag.
    async fn end_tag(&self, tag: Option<&str>, end: TagEnd) -> Result<(), Error> {
        let tags = &self.local.tags;
        tags.check(tag.map(Arc::from).as_slice())?;
        let tag = tag.unwrap_or_default();
        let target = WriteTarget::Tag(tag.into());
        let CacheBackend { store, writes, .. } = &self.backend;
        let answer = match Box::pin(writes.repeated(&target)).await {
            Ok(()) => self.in_time(store.end_tag(&tags.name, tag, end)).await,
            Err(error) => Err(error),
        };
        let ended = match answer {
            Ok(number) => {
                tags.note(tag, number);
                Ok(())
            }
            Err(error) => {
                let failed = self.deferred(target, end, error);
                #[cfg(bellwether_sim)]
                if crate::sim::is_planted("failed-end") {
                    return Err(failed);
                }
                // The command may have happened, so no copy of a value with the tag may stay.
                self.local.forget_copies();
                Err(failed)
            }
        };
        self.loads.flights.detach_all();
        self.local.watches.each(Tap::lost);
        ended
    }
}
