//! The state of a key, for a user who looks for the cause of an incident.

use std::time::Duration;

use super::{
    Cache,
    freshness::{self, RefreshDelay, Rules, Window},
};
use crate::{
    backend::{Entry, EntryKind, Holding, SemaphoreKind, Windows},
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

impl<V: Clone + Send + Sync + 'static> Cache<V> {
    /// Returns what the backend knows of a key: its entry, the load that is under way, and failed
    /// loads. Nothing is refreshed, counted or decoded.
    ///
    /// It reads the whole entry, and takes three commands. The parts are read one after the other,
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
    /// let cache: Cache<u64> = Cache::builder(MemoryBackend::new(), "shop").build()?;
    /// cache.insert("stock:42", &17).await?;
    /// let explained = cache.explain("stock:42").await?;
    /// assert_eq!((explained.state, explained.bytes), (EntryState::Fresh, 2));
    /// # Ok::<_, bellwether::Error>(()) }).unwrap();
    /// ```
    pub async fn explain(&self, key: impl Into<Key>) -> Result<Explanation, Error> {
        let (core, key) = (&self.core, key.into());
        let name = core.name(&key)?;
        let mut answer = core.store.read(&name, true).await;
        core.judge(&key, &mut answer).await;
        let (entry, bytes) = match answer?.map(|entry| entry.without_payload()) {
            Some((entry, bytes)) => (Some(entry), bytes),
            None => (None, 0),
        };
        let (state, remaining) = entry.as_ref().map_or((EntryState::Missing, None), state);
        let load = core.store.inspect(&name, SemaphoreKind::Mutex).await?;
        Ok(Explanation { state, remaining, entry, bytes, load })
    }
}

/// Returns what an entry is good for, and for how long.
fn state(entry: &Entry) -> (EntryState, Option<Duration>) {
    let left = |end: fn(Windows) -> Duration| {
        let (windows, age) = entry.windows.zip(entry.age)?;
        Some(end(windows).saturating_sub(age))
    };
    match (entry.kind, freshness::decide(entry, &Rules::ALL, || RefreshDelay::NONE)) {
        (EntryKind::Ended, _) | (_, Window::Over) => (EntryState::Ended, None),
        (EntryKind::Uncacheable, _) => (EntryState::Uncacheable, left(|it| it.fresh)),
        (_, Window::Fresh | Window::Early) => (EntryState::Fresh, left(|it| it.fresh)),
        (_, Window::Stale | Window::Deferred) => {
            (EntryState::Stale, left(|it| it.fresh.saturating_add(it.stale)))
        }
        (_, Window::OnError) => (EntryState::Fallback, left(|it| it.kept())),
    }
}
