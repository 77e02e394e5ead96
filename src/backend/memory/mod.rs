//! The embedded backend: leases and entries in this process.
//!
//! It keeps the rules of the Redis backend to the letter, so that code which works here works
//! there. Its fleet is the caches and locks of one process. `stored` and `data` have the tables,
//! `entries` and `semaphores` the rules. Each operation runs under one mutex, and its changes are
//! pushed behind it.

mod data;
mod entries;
mod semaphores;
mod stored;

use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard},
};

use self::{
    data::Data,
    stored::{ROW, StoredSemaphore, Weigh, weigh_bytes},
};
use super::{Channels, ProcessId, SemaphoreKind};
use crate::{advice, key::Name, sync::lock};

/// Leases and entries in this process: the embedded default, and a stand-in for Redis in tests.
///
/// Clones share one store. Several caches over clones of one backend behave as the processes of a
/// fleet do. Entries beyond the weight limit evict the least recently used ones. Leases are never
/// evicted.
///
/// It takes the time of tokio, so a test that pauses it pauses this backend.
#[derive(Clone)]
pub struct MemoryBackend {
    data: Arc<Mutex<Data>>,
    channels: Channels,
    /// The process of its owners.
    process: ProcessId,
}

impl MemoryBackend {
    /// Creates a store for 64 MiB of entries.
    pub fn new() -> Self {
        Self::with_weight(64 << 20)
    }

    /// Creates a store whose entries take so many bytes of memory in all. Each counts with its key
    /// and its fence, which are about 600 bytes more than its value. With less it keeps none, which
    /// the log says.
    pub fn with_weight(limit: usize) -> Self {
        if limit < ROW {
            advice::no_room(limit, ROW);
        }
        Self::with_limit(limit, weigh_bytes)
    }

    pub(crate) fn with_entries(limit: usize) -> Self {
        Self::with_limit(limit, |_, _| 1)
    }

    fn with_limit(limit: usize, weigh: Weigh) -> Self {
        let data = Data::new(limit, weigh);
        Self {
            data: Arc::new(Mutex::new(data)),
            channels: Channels::default(),
            process: ProcessId::fresh(),
        }
    }

    /// Returns the bytes that the stored entries take. Expired entries that were not yet dropped
    /// count.
    #[doc(hidden)]
    pub fn weight(&self) -> usize {
        self.data().entries.weight
    }

    /// Returns the same store, whose pushes reach no waiter.
    #[cfg(feature = "test-util")]
    pub(crate) fn without_waiters(&self) -> Self {
        Self { channels: Channels::default(), ..self.clone() }
    }

    /// Counts an entry as used, which was served without a question.
    pub(crate) fn note_use(&self, name: &Name) {
        self.data().entries.stored.promote(&stored::entry_key(name));
    }

    fn data(&self) -> MutexGuard<'_, Data> {
        lock(&self.data)
    }

    /// Runs an operation, and pushes what it has changed when the data is no longer locked.
    fn run<T>(&self, operation: impl FnOnce(&mut Data) -> T) -> T {
        let mut data = self.data();
        data.begin();
        let answer = operation(&mut data);
        let pushes = std::mem::take(&mut data.pushes);
        drop(data);
        pushes.into_iter().for_each(|(topic, change)| self.channels.push(&topic, change));
        answer
    }

    fn on<T>(
        &self,
        name: &Name,
        kind: SemaphoreKind,
        operation: impl FnOnce(&mut Data, &mut StoredSemaphore) -> T,
    ) -> T {
        self.run(|data| data.on(name, kind, operation))
    }

    /// Returns whether a waiter hears of a name. It is asked under the lock: a claim that enters
    /// the queue was registered before.
    fn is_waited_for(&self, name: &Name) -> bool {
        self.channels.has_listeners(&name.prefix)
    }
}

impl Default for MemoryBackend {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for MemoryBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryBackend").field("weight", &self.weight()).finish_non_exhaustive()
    }
}
