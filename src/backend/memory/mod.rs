//! The embedded backend: leases and entries in this process.
//!
//! It keeps the rules of the Redis backend to the letter, so that code which works here works
//! there. Its fleet is the caches and locks of one process. `data` has the data and the rules of
//! entries, `leases` and `latches` have the rules of leases and latches, and `semaphore` has the
//! holders and their queue. None of them locks or waits: this file puts a mutex around the data,
//! and pushes the changes.

mod data;
mod latches;
mod leases;
mod semaphore;

use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

use async_trait::async_trait;
use tokio::time::Instant;

use self::data::Data;
use super::{
    Acquired, BackOff, Change, Changes, Channels, Claimed, Committed, Failure, Leases, Store,
    TagEnd, TagEnds, Tap, Windows,
};
use crate::{
    backend::{
        Claim, Entry, Grant, Holding, Kept, Marked, Mode, Renewal, SemaphoreKind, Tick,
        channels::TopicRoute,
    },
    error::{BackendError, BackendErrorKind},
    key::{Family, Name, Namespace},
};

/// Leases and entries in this process: the embedded default, and a stand-in for Redis in tests.
///
/// Clones share one store. Several caches over clones of one backend behave as the processes of a
/// fleet do. Entries beyond the weight limit evict the least recently used ones. Leases are never
/// evicted.
///
/// It takes the time of tokio, so a test that pauses it pauses this backend.
///
/// # Examples
///
/// ```
/// use bellwether::MemoryBackend;
///
/// let backend = MemoryBackend::with_weight(1 << 20);
/// assert_eq!(backend.weight(), 0);
/// ```
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

    /// Creates a store for entries of so many bytes in all, with their headers.
    pub fn with_weight(limit: usize) -> Self {
        Self::with_limit(limit, Entry::weight)
    }

    /// Creates a backend with so many entries at most, whatever their size.
    pub(crate) fn with_entries(limit: usize) -> Self {
        Self::with_limit(limit, |_| 1)
    }

    fn with_limit(limit: usize, weigh: fn(&Entry) -> usize) -> Self {
        let data = Data::new(limit, weigh);
        Self { data: Arc::new(Mutex::new(data)), channels: Channels::default() }
    }

    /// Returns the bytes of the stored entries. Expired entries that were not yet dropped count.
    pub fn weight(&self) -> usize {
        self.data().weight()
    }

    /// Returns the same store, whose pushes reach no waiter.
    #[cfg(feature = "test-util")]
    pub(crate) fn without_waiters(&self) -> Self {
        Self { channels: Channels::default(), ..self.clone() }
    }

    fn data(&self) -> MutexGuard<'_, Data> {
        self.data.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_waited_for(&self, name: &Name) -> bool {
        let topic = name.prefix();
        self.channels.has_listeners(TopicRoute { channel: topic, topic })
    }

    fn push(&self, name: &Name, change: Change) {
        self.channels.push(name.prefix(), change);
    }

    /// Pushes what a commit has changed.
    fn push_commit(&self, name: &Name, outcome: &Committed, entry: Option<Entry>) {
        match (entry, outcome) {
            (Some(entry), _) => self.push(name, Change::Entry(entry)),
            // The waiters for this load would wait for its end.
            (None, Committed::Refused) if self.data().is_free(name) => {
                self.push(name, Change::Wake);
            }
            (None, _) => {}
        }
    }

    fn push_all(&self, name: &Name, changes: Vec<Change>) {
        changes.into_iter().for_each(|change| self.push(name, change));
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

    async fn acquire(&self, claim: &Claim) -> Result<Acquired, BackendError> {
        Ok(self.data().acquire(claim, Instant::now()))
    }

    async fn renew(&self, claims: &[Claim]) -> Result<Vec<Renewal>, BackendError> {
        let now = Instant::now();
        let mut data = self.data();
        Ok(claims.iter().map(|claim| data.renew(claim, now).into()).collect())
    }

    async fn keep(&self, claims: &[Claim], life: Duration) -> Result<Kept, BackendError> {
        let name = claims.first().map(|claim| &claim.name);
        let mut data = self.data();
        let heard = name.is_some_and(|name| self.is_waited_for(name));
        let (kept, pushed) = data.keep(claims, life, heard, Instant::now());
        drop(data);
        name.into_iter().for_each(|name| self.push_all(name, pushed.clone()));
        Ok(kept)
    }

    async fn release(&self, claim: &Claim) -> Result<bool, BackendError> {
        // Asked under the lock: a claim that enters the queue was registered before.
        let mut data = self.data();
        let heard = self.is_waited_for(&claim.name);
        let (held, pushed) = data.release(claim, heard, Instant::now());
        drop(data);
        self.push_all(&claim.name, pushed);
        Ok(held)
    }

    async fn pass(&self, from: &Claim, to: &Claim) -> Result<Option<Grant>, BackendError> {
        if !from.mode.passes_to(to.mode) {
            return Err(super::no_pass(from, to));
        }
        let mut data = self.data();
        let heard = self.is_waited_for(&from.name);
        let passed = data.convert(from, to, heard, Instant::now());
        drop(data);
        let Some((grant, pushed)) = passed else { return Ok(None) };
        self.push_all(&from.name, pushed);
        Ok(Some(grant))
    }

    async fn pass_with_fence(
        &self,
        from: &Claim,
        to: &Claim,
        fence: u64,
    ) -> Result<Option<Grant>, BackendError> {
        Ok(self.data().pass_with_fence(from, to, fence, Instant::now()))
    }

    async fn mark(&self, claim: &Claim, tick: Tick) -> Result<Marked, BackendError> {
        Ok(self.data().mark(claim, tick, Instant::now()))
    }

    async fn inspect(&self, name: &Name, kind: SemaphoreKind) -> Result<Holding, BackendError> {
        let held = self.data().inspect(name, kind, Instant::now());
        Ok(match name.family() {
            Family::Cache => Holding { waiting: u32::from(self.is_waited_for(name)), ..held },
            _ => held,
        })
    }

    async fn lock_names(
        &self,
        namespace: &Namespace,
    ) -> Result<Vec<(Name, SemaphoreKind)>, BackendError> {
        Ok(self.data().lock_names(namespace, Instant::now()))
    }

    async fn clear(&self, name: &Name, mode: Mode) -> Result<bool, BackendError> {
        let there = self.data().clear(name, mode, Instant::now());
        self.push(name, Change::Wake);
        Ok(there)
    }

    fn listen(&self, name: &Name, claim: Option<&Claim>) -> Changes {
        self.channels.listen(name.prefix(), claim.map(|claim| claim.owner))
    }
}

#[async_trait]
impl Store for MemoryBackend {
    async fn get(&self, name: &Name) -> Result<Option<Entry>, BackendError> {
        Ok(self.data().get(name, Instant::now()))
    }

    async fn claim(&self, claim: &Claim, seen: u64) -> Result<Claimed, BackendError> {
        Ok(self.data().claim(claim, seen, Instant::now()))
    }

    async fn commit(
        &self,
        claim: &Claim,
        grant: &Grant,
        entry: &Entry,
        ttl: Option<Duration>,
    ) -> Result<Committed, BackendError> {
        let now = Instant::now();
        let mut data = self.data();
        let entry = entry.clone().with_fence(grant.fence()).with_stored_at(data.clock(now));
        let (outcome, pushed) = data.commit(claim, &entry, ttl, now);
        drop(data);
        self.push_commit(&claim.name, &outcome, pushed.then_some(entry));
        Ok(outcome)
    }

    async fn fail(
        &self,
        claim: &Claim,
        failure: &Failure,
        back_off: Option<BackOff>,
    ) -> Result<bool, BackendError> {
        let held = self.data().fail(claim, failure, back_off, Instant::now());
        if held {
            self.push(&claim.name, Change::Failed(failure.clone()));
        }
        Ok(held)
    }

    async fn put(
        &self,
        name: &Name,
        entry: &Entry,
        ttl: Duration,
        fence_life: Duration,
    ) -> Result<u64, BackendError> {
        let put = self.data().put(name, entry, ttl, fence_life, Instant::now());
        let entry = put.ok_or_else(|| {
            BackendError::new(
                BackendErrorKind::Refused,
                "the entry is larger than the weight limit",
            )
        })?;
        let fence = entry.fence;
        self.push(name, Change::Entry(entry));
        Ok(fence)
    }

    async fn touch(
        &self,
        name: &Name,
        windows: Windows,
        fence_life: Duration,
    ) -> Result<Option<u64>, BackendError> {
        let touched = self.data().touch(name, windows, fence_life, Instant::now());
        touched.into_iter().for_each(|fence| self.push(name, Change::Invalidated(fence)));
        Ok(touched)
    }

    async fn expire(&self, name: &Name, fence_life: Duration) -> Result<u64, BackendError> {
        let fence = self.data().end_windows(name, fence_life, Instant::now());
        self.push(name, Change::Invalidated(fence));
        Ok(fence)
    }

    async fn supersede(&self, name: &Name, fence_life: Duration) -> Result<u64, BackendError> {
        let fence = self.data().supersede(name, fence_life, Instant::now());
        self.push(name, Change::Wake);
        Ok(fence)
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
        let (mut data, now) = (self.data(), Instant::now());
        Ok(which.iter().map(|tag| data.tag_ends(&tags.prefix_of_sibling(tag), now)).collect())
    }

    async fn end_tag(&self, tags: &Name, tag: &str, end: TagEnd) -> Result<u64, BackendError> {
        let tag: Arc<str> = tags.prefix_of_sibling(tag).into();
        let number = self.data().end_tag(tag.clone(), end, Instant::now());
        self.channels.push(&tag, Change::Invalidated(number));
        Ok(number)
    }

    async fn invalidate(&self, name: &Name, fence_life: Duration) -> Result<u64, BackendError> {
        let fence = self.data().invalidate(name, fence_life, Instant::now());
        self.push(name, Change::Invalidated(fence));
        Ok(fence)
    }
}
