//! A look at the entry of a key, without a load.

use std::time::Duration;

use super::{
    Cache, Loaded,
    freshness::{self, Rules, Window},
    read::Decision,
};
use crate::{
    backend::{Entry, EntryKind, Holding, SemaphoreKind},
    error::Error,
    key::Key,
};

impl<V: Clone + Send + Sync + 'static> Cache<V> {
    /// Returns the stored value, with its fence and its age, if it was not invalidated. The value
    /// may be stale, or kept for failures only. The call refreshes and counts nothing.
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
        match self.core.read(&key, &name, &Rules { asks_age: true, ..Rules::ALL }).await {
            Decision::Unanswered(error) => Err(error.into()),
            decision => Ok(decision.value_or_fallback()),
        }
    }

    /// Returns what the backend has of a key: the entry, the load that is under way, and failed
    /// loads. The call refreshes, counts and decodes nothing.
    ///
    /// The call sends three commands, so the parts of the answer may be of different moments.
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

/// The state of a key in the backend.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Explanation {
    /// The state of the entry.
    pub state: EntryState,
    /// How much longer the entry is in this state. `None` if the state lasts until the entry is
    /// gone.
    pub remaining: Option<Duration>,
    /// The entry without its value: fence, age, windows, the time of its load. `None` if there is
    /// no entry.
    pub entry: Option<Entry>,
    /// The size of the encoded value.
    pub bytes: usize,
    /// The load that is under way, and the loads that have failed. Its number of waiters counts
    /// processes.
    pub load: Holding,
}

/// The state of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EntryState {
    /// There is no entry, so the next caller loads.
    Missing,
    /// The entry is served.
    Fresh,
    /// The entry is served, and one process refreshes it.
    Stale,
    /// The entry is served only in place of a failed load.
    Fallback,
    /// A tag of the entry was invalidated, so the entry counts as missing.
    Ended,
    /// The last value cannot be shared, so callers do not wait for each other.
    Uncacheable,
}

/// Returns the state of an entry, and how long the entry stays in it.
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
