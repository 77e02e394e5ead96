//! Acts on an entry or on all values of a tag without a load, and looks at an entry.

use std::{sync::Arc, time::Duration};

use tokio::time::sleep;

use super::{
    Cache, Loaded,
    core::{CacheBackend, Core},
    freshness::{self, Rules, Window},
    outage::WriteTarget,
    read::Decision,
    settings::GREATEST_STALENESS,
};
use crate::{
    backend::{Edit, Entry, EntryKind, Holding, SemaphoreKind, TagEnd, Tap},
    error::Error,
    key::Key,
};

impl<V: Clone + Send + Sync + 'static> Cache<V> {
    /// Stores a value for as long as the cache keeps values. The value of a load that is under way
    /// is not stored. Returns the fence of the value, which
    /// [`not_older_than`](super::Request::not_older_than) accepts.
    /// [`Request::insert`](super::Request::insert) stores it for a time of its own.
    ///
    /// # Errors
    ///
    /// As with [`invalidate`](Self::invalidate), and [`Codec`](crate::ErrorKind::Codec) if the
    /// value cannot be encoded, or is too large. If the backend is away, the key is invalidated
    /// later, which ends an older value.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the value may or may not be stored.
    pub async fn insert(&self, key: impl Into<Key>, value: &V) -> Result<u64, Error> {
        self.request(key).insert(value).await
    }

    /// Removes a value. The value of a load that is under way is not stored. A caller that asks
    /// after this returned is served nothing older. Returns the fence that each newer value
    /// exceeds.
    ///
    /// Another process with a [local tier](super::Builder::local) may serve its copy for as long as
    /// its bound allows. [`settled`](Self::settled) waits that out.
    ///
    /// # Errors
    ///
    /// [`InvalidKey`](crate::ErrorKind::InvalidKey) if the key is empty or too long, or
    /// [`Backend`](crate::ErrorKind::Backend) if the backend did not answer or refused. The act may
    /// then have happened or not. If the backend is away, it [is
    /// repeated](crate::Error::is_deferred) later.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the value may or may not be removed.
    pub async fn invalidate(&self, key: impl Into<Key>) -> Result<u64, Error> {
        self.end(key.into(), Edit::Invalidate).await
    }

    /// Makes a value stale. It is kept for the case that its load
    /// [fails](super::Builder::stale_if_error) or is [too slow](super::Builder::serve_stale_after),
    /// and otherwise served no more. Without a window for failures, it is removed. Everything else
    /// is as for [`invalidate`](Self::invalidate).
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

    /// Completes when no process of the fleet serves what was stored before this call: after the
    /// greatest [staleness](super::LocalTier::max_staleness) of a local tier, which is 2 s.
    ///
    /// It counts what a [local tier](super::Builder::local) counts, and promises nothing in a
    /// cluster. Each process keeps the bound by itself (Gray and Cheriton, "Leases", SOSP 1989).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    pub async fn settled(&self) {
        sleep(GREATEST_STALENESS).await;
    }

    /// Returns the stored value with what is known of it, if there is one that has not ended. It
    /// may be stale, or kept for failures only. Nothing is refreshed or counted.
    ///
    /// # Errors
    ///
    /// As with [`get`](Self::get).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    pub async fn peek(&self, key: impl Into<Key>) -> Result<Option<Loaded<V>>, Error> {
        let key = key.into();
        let name = self.core.name(&key)?;
        match self.core.read(&key, &name, &Rules { aged: true, ..Rules::ALL }).await {
            Decision::Unanswered(error) => Err(error.into()),
            decision => Ok(decision.value_or_fallback()),
        }
    }

    /// Returns what the backend knows of a key: its entry, the load that is under way, and failed
    /// loads. Nothing is refreshed, counted or decoded.
    ///
    /// It takes three commands, so the parts may be of different moments.
    ///
    /// # Errors
    ///
    /// As with [`get`](Self::get). A key that holds data of another program is an error.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    pub async fn explain(&self, key: impl Into<Key>) -> Result<Explanation, Error> {
        let core = &self.core;
        let key = key.into();
        let name = core.name(&key)?;
        let mut answer = core.backend.store.read(&name, true).await;
        core.judge(&key, &mut answer).await;
        let (entry, bytes) = match answer?.map(|entry| entry.without_payload()) {
            Some((entry, bytes)) => (Some(entry), bytes),
            None => (None, 0),
        };
        let (state, remaining) = entry.as_ref().map_or((EntryState::Missing, None), state);
        let load = core.backend.store.inspect(&name, SemaphoreKind::Mutex).await?;
        Ok(Explanation { state, remaining, entry, bytes, load })
    }
}

/// Acts on all values of a tag.
impl<V: Clone + Send + Sync + 'static> Cache<V> {
    /// Removes all values that carry a tag, with one command, whatever their number.
    ///
    /// A caller that asks after this returned is served nothing that was read before, in the whole
    /// fleet. The value of a load that is under way is served to its earlier callers. What
    /// [`invalidate`](Self::invalidate) says of local tiers holds, and while the backend is away
    /// what [`Degraded`](super::Source::Degraded) says.
    ///
    /// Nothing is deleted: the values end by their time to live, or are replaced. A value that was
    /// read before this call, and is [inserted](Self::insert) after it, counts as new.
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

    /// Makes all values that carry a tag stale, with one command, as [`expire`](Self::expire) does
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

    /// Removes all values of the namespace, with one command: those that a cache with
    /// [`tags`](super::Builder::tags) has stored. Everything else is as for
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
    /// Gives a tag its next number, or the tag of all values.
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
                // The tag may have ended. So nothing is kept that may have it.
                self.local.forget_copies();
                Err(failed)
            }
        };
        self.loads.flights.detach_all();
        self.local.watches.each(Tap::lost);
        ended
    }
}

/// The state of a key in the backend.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Explanation {
    /// The state of the entry.
    pub state: EntryState,
    /// For how much longer the entry is in this state. `None` if it is until the entry is gone.
    pub remaining: Option<Duration>,
    /// The entry without its value: fence, age, windows, the time of its load. `None` if there is
    /// none.
    pub entry: Option<Entry>,
    /// The size of the encoded value.
    pub bytes: usize,
    /// The load that is under way, and the loads that have failed. The processes that wait for it
    /// count as waiting.
    pub load: Holding,
}

/// The state of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EntryState {
    /// There is no entry, so the next caller loads.
    Missing,
    /// It is served as it is.
    Fresh,
    /// It is served, and one process refreshes it.
    Stale,
    /// It is served only in place of a failed load.
    Fallback,
    /// A tag of it has ended, so it counts as missing.
    Ended,
    /// The last value cannot be shared, so callers do not wait for each other.
    Uncacheable,
}

/// Returns what an entry is good for, and for how long.
fn state(entry: &Entry) -> (EntryState, Option<Duration>) {
    let window = freshness::decide(entry, &Rules::ALL, |_| Duration::ZERO);
    if entry.kind == EntryKind::Ended || window == Window::Over {
        return (EntryState::Ended, None);
    }
    let mut state = match window {
        Window::Fresh | Window::Early => EntryState::Fresh,
        Window::Stale | Window::Deferred => EntryState::Stale,
        Window::OnError | Window::Over => EntryState::Fallback,
    };
    if entry.kind == EntryKind::Uncacheable {
        state = EntryState::Uncacheable;
    }
    let (Some(windows), Some(age)) = (entry.windows, entry.age) else { return (state, None) };
    let end = match state {
        EntryState::Stale => windows.fresh.saturating_add(windows.stale),
        EntryState::Fallback => windows.kept(),
        _ => windows.fresh,
    };
    (state, Some(end.saturating_sub(age)))
}
