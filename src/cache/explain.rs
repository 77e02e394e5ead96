//! The state of a key, for a user who looks for the cause of an incident.

use std::{fmt, sync::Arc, time::Duration};

use super::Cache;
use crate::{
    backend::{BackOff, Entry, EntryKind, Holding, SemaphoreKind, Windows},
    error::Error,
    key::Key,
};

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
    /// The load that is under way. The processes that wait for it count as waiting.
    pub load: Holding,
    /// The failed loads in a row, and for how long no process loads the key.
    pub back_off: Option<BackOff>,
    /// The message of the last of them.
    pub failure: Option<String>,
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

impl<V: Clone + Send + Sync + 'static> Cache<V> {
    /// Returns what the backend knows of a key: its entry, the load that is under way, and failed
    /// loads. Nothing is refreshed, counted or decoded.
    ///
    /// It reads the whole entry, and takes four commands. The parts are read one after the other,
    /// so they may be of different moments.
    ///
    /// # Errors
    ///
    /// As with [`get`](Self::get). A key that holds data of another program is an error.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    ///
    /// # Examples
    ///
    /// ```
    /// # let mut builder = tokio::runtime::Builder::new_current_thread();
    /// # builder.enable_time().build().unwrap().block_on(async {
    /// use bellwether::{Cache, MemoryBackend, cache::EntryState};
    ///
    /// let cache: Cache<u64> = Cache::builder(MemoryBackend::new()).build()?;
    /// cache.insert("stock:42", &17).await?;
    /// let explained = cache.explain("stock:42").await?;
    /// assert_eq!((explained.state, explained.bytes), (EntryState::Fresh, 2));
    /// # Ok::<_, bellwether::Error>(()) }).unwrap();
    /// ```
    pub async fn explain(&self, key: impl Into<Key>) -> Result<Explanation, Error> {
        let (core, key) = (&self.core, key.into());
        let name = core.name(&key)?;
        let mut answer = core.store.get_aged(&name).await;
        core.judge(&key, &mut answer).await;
        let (entry, bytes) = match answer?.map(|entry| entry.without_payload()) {
            Some((entry, bytes)) => (Some(entry), bytes),
            None => (None, 0),
        };
        let (state, remaining) = state(entry.as_ref());
        let load = core.store.inspect(&name, SemaphoreKind::Mutex).await?;
        let failed = core.store.back_off(&name).await?;
        let failure = failed.as_ref().map(|(_, failure)| failure.message().to_owned());
        let back_off = failed.map(|(back_off, _)| back_off);
        Ok(Explanation { state, remaining, entry, bytes, load, back_off, failure })
    }
}

/// Returns what an entry is good for, and for how long.
fn state(entry: Option<&Entry>) -> (EntryState, Option<Duration>) {
    let Some(entry) = entry else { return (EntryState::Missing, None) };
    let windows = entry.windows.unwrap_or(Windows::fresh(Duration::ZERO));
    let age = entry.age.unwrap_or_default();
    let left = |end: Duration| end.checked_sub(age).filter(|left| !left.is_zero());
    let fresh = left(windows.fresh);
    let stale = left(windows.fresh.saturating_add(windows.stale));
    let fallback = left(windows.fresh.saturating_add(windows.error));
    match entry.kind {
        EntryKind::Ended => (EntryState::Ended, None),
        EntryKind::Uncacheable => (EntryState::Uncacheable, fresh),
        _ if entry.windows.is_none() => (EntryState::Fresh, None),
        _ if fresh.is_some() => (EntryState::Fresh, fresh),
        _ if stale.is_some() => (EntryState::Stale, stale),
        _ if fallback.is_some() => (EntryState::Fallback, fallback),
        _ => (EntryState::Ended, None),
    }
}

impl Explanation {
    /// Returns the tags of the entry.
    pub fn tags(&self) -> &[Arc<str>] {
        let tagged = self.entry.as_ref().and_then(|entry| entry.tagged.as_ref());
        tagged.map_or(&[], |tagged| &tagged.tags)
    }
}

impl fmt::Display for EntryState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Missing => "missing",
            Self::Fresh => "fresh",
            Self::Stale => "stale",
            Self::Fallback => "kept for failures",
            Self::Ended => "ended",
            Self::Uncacheable => "uncacheable",
        })
    }
}
