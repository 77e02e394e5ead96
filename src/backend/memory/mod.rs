//! The embedded backend: leases and entries in this process.
//!
//! It keeps the rules of the Redis backend to the letter, so that code which works here works
//! there. Its fleet is the caches and locks of one process. `stored` and `data` have the tables,
//! `entries`, `semaphores` and `latches` the rules. None of them locks or waits: this file puts a
//! mutex around the data, and pushes the changes.

mod data;
mod entries;
mod latches;
mod semaphores;
mod stored;

use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard, Weak},
    time::Duration,
};

use async_trait::async_trait;

use self::{
    data::Data,
    stored::{Weigh, weigh_bytes},
};
use super::{
    BackOff, Changes, Channels, Claim, Claimed, Committed, Countdown, Edit, Entry, Failure, Grant,
    Holding, Kept, Leases, Marked, Mode, Owner, Renewal, SemaphoreKind, Store, TagEnd, TagEnds,
    Tap, Tick, check_pass,
};
use crate::{
    error::BackendError,
    key::{Family, Name, Namespace},
    sync::lock,
};

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
}

impl MemoryBackend {
    /// Creates a store for 64 MiB of entries.
    pub fn new() -> Self {
        Self::with_weight(64 << 20)
    }

    /// Creates a store whose entries take so many bytes of memory in all. Each counts with its key
    /// and its fence, which are about 600 bytes more than its value.
    pub fn with_weight(limit: usize) -> Self {
        Self::with_limit(limit, weigh_bytes)
    }

    /// Creates a backend with so many entries at most, whatever their size.
    pub(crate) fn with_entries(limit: usize) -> Self {
        Self::with_limit(limit, |_, _| 1)
    }

    fn with_limit(limit: usize, weigh: Weigh) -> Self {
        let data = Data::new(limit, weigh);
        Self { data: Arc::new(Mutex::new(data)), channels: Channels::default() }
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

    /// Returns whether a waiter hears of a name. It is asked under the lock: a claim that enters
    /// the queue was registered before.
    fn is_waited_for(&self, name: &Name) -> bool {
        self.channels.has_listeners(name.prefix())
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

#[async_trait]
impl Leases for MemoryBackend {
    fn is_shared(&self) -> bool {
        false
    }

    async fn acquire(&self, claim: &Claim) -> Result<Claimed, BackendError> {
        Ok(self.run(|data| data.acquire(claim)))
    }

    async fn renew(&self, claims: &[Claim]) -> Result<Vec<Renewal>, BackendError> {
        Ok(self.run(|data| claims.iter().map(|claim| data.renew(claim).into()).collect()))
    }

    async fn keep(&self, claims: &[Claim], life: Duration) -> Result<Kept, BackendError> {
        let heard = || claims.first().is_some_and(|claim| self.is_waited_for(&claim.name));
        Ok(self.run(|data| data.keep(claims, life, heard())))
    }

    async fn release(&self, claim: &Claim) -> Result<bool, BackendError> {
        Ok(self.run(|data| data.release(claim, self.is_waited_for(&claim.name))))
    }

    async fn pass(&self, from: &Claim, to: &Claim) -> Result<Option<Grant>, BackendError> {
        check_pass(from, to)?;
        Ok(self.run(|data| data.convert(from, to, self.is_waited_for(&from.name))))
    }

    async fn set_fence(&self, claim: &Claim, fence: u64) -> Result<bool, BackendError> {
        Ok(self.run(|data| data.set_lease_fence(claim, fence)))
    }

    async fn mark(&self, claim: &Claim, tick: Tick) -> Result<Marked, BackendError> {
        Ok(self.run(|data| data.mark(claim, tick)))
    }

    async fn inspect(&self, name: &Name, kind: SemaphoreKind) -> Result<Holding, BackendError> {
        let held = self.run(|data| data.inspect(name, kind));
        Ok(match name.family() {
            Family::Cache => Holding { waiting: u32::from(self.is_waited_for(name)), ..held },
            _ => held,
        })
    }

    async fn lock_names(
        &self,
        namespace: &Namespace,
    ) -> Result<Vec<(Name, SemaphoreKind)>, BackendError> {
        Ok(self.run(|data| data.lock_names(namespace)))
    }

    async fn clear(&self, name: &Name, mode: Mode) -> Result<bool, BackendError> {
        Ok(self.run(|data| data.clear(name, mode)))
    }

    fn listen(&self, name: &Name, claim: Option<&Claim>) -> Changes {
        self.channels.listen(name.prefix(), claim.map(|claim| claim.owner))
    }
}

#[async_trait]
impl Store for MemoryBackend {
    async fn read(&self, name: &Name, _aged: bool) -> Result<Option<Entry>, BackendError> {
        Ok(self.run(|data| data.get(name)))
    }

    async fn claim(&self, claim: &Claim, seen: u64) -> Result<Claimed, BackendError> {
        Ok(self.run(|data| data.claim(claim, seen)))
    }

    async fn commit(
        &self,
        claim: &Claim,
        grant: &Grant,
        entry: &Entry,
        ttl: Option<Duration>,
    ) -> Result<Committed, BackendError> {
        Ok(self.run(|data| data.commit(claim, grant.fence(), entry, ttl)))
    }

    async fn fail(
        &self,
        claim: &Claim,
        failure: &Failure,
        back_off: Option<BackOff>,
    ) -> Result<bool, BackendError> {
        Ok(self.run(|data| data.fail(claim, failure, back_off)))
    }

    async fn edit(
        &self,
        name: &Name,
        edit: &Edit,
        fence_life: Duration,
    ) -> Result<u64, BackendError> {
        let too_large = "the entry is larger than the weight limit";
        self.run(|data| data.edit(name, edit, fence_life))
            .ok_or_else(|| BackendError::refused(too_large))
    }

    fn tap(&self, tier: Weak<dyn Tap>, _every: Duration) -> bool {
        self.channels.add_tap(tier);
        false
    }

    async fn tag_number(&self, _tags: &Name) -> Result<u64, BackendError> {
        Ok(self.data().tag_number)
    }

    async fn tag_ends(
        &self,
        tags: &Name,
        which: &[Arc<str>],
    ) -> Result<Vec<TagEnds>, BackendError> {
        let which: Vec<_> = which.iter().map(|tag| tags.prefix_of_sibling(tag).into()).collect();
        Ok(self.run(|data| which.iter().map(|tag| data.ends_of(tag)).collect()))
    }

    async fn end_tag(&self, tags: &Name, tag: &str, end: TagEnd) -> Result<u64, BackendError> {
        Ok(self.run(|data| data.end_tag(tags.prefix_of_sibling(tag).into(), end)))
    }

    async fn set_latch(
        &self,
        name: &Name,
        id: Owner,
        count: u32,
        ttl: Duration,
    ) -> Result<bool, BackendError> {
        Ok(self.run(|data| data.set_latch(name, id, count, ttl)))
    }

    async fn count_down(
        &self,
        name: &Name,
        id: Owner,
        by: u32,
    ) -> Result<Option<Countdown>, BackendError> {
        Ok(self.run(|data| data.count_down(name, id, by)))
    }

    async fn clear_latch(&self, name: &Name) -> Result<bool, BackendError> {
        Ok(self.run(|data| data.clear_latch(name)))
    }
}
