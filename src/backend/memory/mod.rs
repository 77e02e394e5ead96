//! The embedded backend: leases and entries in this process.
//!
//! It keeps the rules of the Redis backend to the letter, so that what works here works there; only that
//! its fleet is the caches and locks of one process. `state` is the data, with the rules of entries and `leases`
//! and `latches` those of leases and latches, without locks or waiting; this file puts a mutex around it and pushes what happened.

mod latches;
mod leases;
mod shared;
mod state;

use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

use self::state::State;
use super::{
    Acquired, AcquiredAll, Change, Changes, Channels, Claimed, Committed, Failure, Leases, Store,
};
use crate::{
    backend::{Claim, Entry, Grant, Mode, Occupied, Renewal},
    error::{BackendError, BackendErrorKind},
    key::Name,
};

/// Leases and entries in this process: the embedded default, and a stand-in for Redis in tests.
///
/// Clones share one store; several caches over clones of one backend behave as the processes of a fleet
/// do. Entries beyond the weight limit make room by recency; leases are never evicted.
///
/// Time is tokio's, so a test that pauses it pauses this backend.
#[derive(Clone)]
pub struct MemoryBackend {
    state: Arc<Mutex<State>>,
    channels: Channels,
}

impl MemoryBackend {
    /// A store for 64 MiB of entries.
    pub fn new() -> Self {
        Self::with_weight(64 << 20)
    }

    /// A store for entries of so many bytes in all, their headers counted.
    pub fn with_weight(limit: usize) -> Self {
        Self { state: Arc::new(Mutex::new(State::new(limit))), channels: Channels::default() }
    }

    /// How many bytes of entries are stored, expired ones that were not yet met with counted.
    pub fn weight(&self) -> usize {
        self.state().weight()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, name: &Name, change: Change) {
        self.channels.push(name.prefix(), change);
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

impl Leases for MemoryBackend {
    async fn acquire(&self, claim: &Claim) -> Result<Acquired, BackendError> {
        Ok(self.state().acquire(claim, Instant::now()))
    }

    async fn acquire_all(&self, claims: &[Claim]) -> Result<AcquiredAll, BackendError> {
        super::several::check(claims)?;
        Ok(self.state().acquire_all(claims, Instant::now()))
    }

    async fn renew(&self, claims: &[Claim]) -> Result<Vec<Renewal>, BackendError> {
        let now = Instant::now();
        let mut state = self.state();
        Ok(claims.iter().map(|claim| state.renew(claim, now).into()).collect())
    }

    async fn release(&self, claim: &Claim) -> Result<bool, BackendError> {
        let heard = self.channels.wants(claim.name.prefix());
        let (held, pushed) = self.state().release(claim, heard, Instant::now());
        if let Some(change) = pushed {
            self.push(&claim.name, change);
        }
        Ok(held)
    }

    async fn pass(&self, from: &Claim, to: &Claim) -> Result<Option<Grant>, BackendError> {
        if !from.mode.passes_to(to.mode) {
            return Err(super::no_pass(from, to));
        }
        let passed = self.state().pass(from, to, Instant::now());
        let Some((grant, pushed)) = passed else { return Ok(None) };
        if let Some(change) = pushed {
            self.push(&from.name, change);
        }
        Ok(Some(grant))
    }

    async fn holder(&self, name: &Name, mode: Mode) -> Result<Option<Occupied>, BackendError> {
        Ok(self.state().holder(name, mode, Instant::now()))
    }

    async fn clear(&self, name: &Name, mode: Mode) -> Result<bool, BackendError> {
        let there = self.state().clear(name, mode, Instant::now());
        self.push(name, Change::Wake);
        Ok(there)
    }

    async fn changes(&self, name: &Name) -> Result<Changes, BackendError> {
        Ok(self.channels.listen(name.prefix()))
    }
}

impl Store for MemoryBackend {
    async fn get(&self, name: &Name) -> Result<Option<Entry>, BackendError> {
        Ok(self.state().get(name, Instant::now()))
    }

    async fn claim(&self, claim: &Claim, seen: u64) -> Result<Claimed, BackendError> {
        Ok(self.state().claim(claim, seen, Instant::now()))
    }

    async fn commit(
        &self,
        claim: &Claim,
        grant: &Grant,
        entry: &Entry,
        ttl: Option<Duration>,
    ) -> Result<Committed, BackendError> {
        let entry = entry.clone().with_fence(grant.fence());
        let (outcome, pushed) = self.state().commit(claim, &entry, ttl, Instant::now());
        match (pushed, &outcome) {
            (true, _) => self.push(&claim.name, Change::Entry(entry)),
            // Whoever waits for this load would wait for its end.
            (false, Committed::Refused) if self.state().is_free(&claim.name) => {
                self.push(&claim.name, Change::Wake);
            }
            (false, _) => {}
        }
        Ok(outcome)
    }

    async fn fail(&self, claim: &Claim, failure: &Failure) -> Result<bool, BackendError> {
        let (held, _) = self.state().release(claim, true, Instant::now());
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
        let put = self.state().put(name, entry, ttl, fence_life, Instant::now());
        let fence = put.ok_or_else(|| {
            BackendError::new(
                BackendErrorKind::Refused,
                "the entry is larger than the weight limit",
            )
        })?;
        self.push(name, Change::Entry(entry.clone().with_fence(fence)));
        Ok(fence)
    }

    async fn invalidate(&self, name: &Name, fence_life: Duration) -> Result<u64, BackendError> {
        let fence = self.state().invalidate(name, fence_life, Instant::now());
        self.push(name, Change::Invalidated(fence));
        Ok(fence)
    }
}
