//! The embedded backend: leases and entries in this process.
//!
//! This backend has exactly the rules of the Redis backend, so that code which works here works
//! with Redis. Its fleet is the caches and locks of one process. `data` and `stored` have the
//! tables, `entries` and `semaphores` have the rules. Each operation runs under one mutex. Its
//! changes are pushed after the mutex is unlocked.

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
/// fleet do. Entries beyond the weight limit evict the least recently used entries. Leases are
/// never evicted.
///
/// The backend uses the time of tokio. So a test that pauses the time pauses this backend.
#[derive(Clone)]
pub struct MemoryBackend {
    data: Arc<Mutex<Data>>,
    channels: Channels,
    /// The process of the owners at this backend.
    process: ProcessId,
}

impl MemoryBackend {
    /// Creates a store for 64 MiB of entries.
    pub fn new() -> Self {
        Self::with_weight(64 << 20)
    }

    /// Creates a store whose entries take at most this many bytes of memory in all. Each entry
    /// counts with its key and its fence, which are about 600 bytes more than its value. With a
    /// smaller limit, the store keeps no entry, and the log says so.
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

    /// Returns the bytes that the stored entries take. Expired entries count until they are
    /// dropped.
    #[doc(hidden)]
    pub fn weight(&self) -> usize {
        self.data().entries.weight
    }

    /// Returns the same store with other waiters, so that its pushes reach no waiter of this one.
    #[cfg(feature = "test-util")]
    pub(crate) fn without_waiters(&self) -> Self {
        Self { channels: Channels::default(), ..self.clone() }
    }

    /// Counts an entry as used that was served without a request to this backend.
    pub(crate) fn note_use(&self, name: &Name) {
        self.data().entries.stored.promote(&stored::entry_key(name));
    }

    fn data(&self) -> MutexGuard<'_, Data> {
        lock(&self.data)
    }

    /// Runs an operation, and pushes its changes after the data is unlocked.
    fn run<T>(&self, operation: impl FnOnce(&mut Data) -> T) -> T {
        let mut data = self.data();
        data.begin();
        let answer = operation(&mut data);
        let pushes = std::mem::take(&mut data.pushes);
        drop(data);
        for (topic, change) in pushes {
            self.channels.push(&topic, change);
        }
        answer
    }

    fn with_semaphore<T>(
        &self,
        name: &Name,
        kind: SemaphoreKind,
        operation: impl FnOnce(&mut Data, &mut StoredSemaphore) -> T,
    ) -> T {
        self.run(|data| data.with_semaphore(name, kind, operation))
    }

    /// Returns whether a waiter of a name receives pushes. An operation calls this while the data
    /// is locked, so the waiter of each claim in the queue is registered.
    fn has_waiters(&self, name: &Name) -> bool {
        self.channels.has_waiters(&name.prefix)
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
