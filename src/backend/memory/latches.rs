//! The rules of latches, which are those of the Redis scripts.

use std::{collections::HashMap, sync::Arc, time::Duration};

use async_trait::async_trait;
use tokio::time::Instant;

use super::{
    MemoryBackend,
    data::{Data, Expiry},
};
use crate::{
    backend::{Change, Countdown, Latches, Owner},
    error::BackendError,
    key::Name,
    time::after,
};

/// A count-down latch.
pub(super) struct StoredLatch {
    left: u32,
    /// The id of the setting that made it.
    set: Owner,
    ttl: Duration,
    ends: Instant,
    /// The count that each step left; empty once nothing is left.
    counted: HashMap<Owner, u32>,
}

impl StoredLatch {
    fn countdown(&self, now: Instant) -> Countdown {
        Countdown { left: self.left, remaining: self.ends - now }
    }
}

impl Data {
    fn set_latch(
        &mut self,
        name: &Name,
        set: Owner,
        left: u32,
        ttl: Duration,
        now: Instant,
    ) -> bool {
        self.expire(now);
        if let Some(latch) = self.latches.get(name.prefix()) {
            return latch.set == set;
        }
        let ends = after(now, ttl);
        let latch = StoredLatch { left, set, ttl, ends, counted: HashMap::new() };
        self.keep_latch(name.prefix().clone(), latch);
        true
    }

    /// Counts down. Returns the count, and whether it has just become zero.
    fn count_down(
        &mut self,
        name: &Name,
        id: Owner,
        by: u32,
        now: Instant,
    ) -> Option<(Countdown, bool)> {
        self.expire(now);
        let latch = self.latches.get_mut(name.prefix())?;
        if let Some(left) = latch.counted.get(&id) {
            return Some((Countdown { left: *left, ..latch.countdown(now) }, false));
        }
        if latch.left == 0 {
            return Some((latch.countdown(now), false));
        }
        latch.left = latch.left.saturating_sub(by);
        if latch.left > 0 {
            latch.counted.insert(id, latch.left);
            return Some((latch.countdown(now), false));
        }
        let mut latch = self.drop_latch(name.prefix())?;
        latch.counted = HashMap::new();
        latch.ends = after(now, latch.ttl);
        let countdown = latch.countdown(now);
        self.keep_latch(name.prefix().clone(), latch);
        Some((countdown, true))
    }

    fn latch(&mut self, name: &Name, now: Instant) -> Option<Countdown> {
        self.expire(now);
        self.latches.get(name.prefix()).map(|latch| latch.countdown(now))
    }

    fn clear_latch(&mut self, name: &Name, now: Instant) -> bool {
        self.expire(now);
        self.drop_latch(name.prefix()).is_some()
    }

    fn keep_latch(&mut self, name: Arc<str>, latch: StoredLatch) {
        self.expiries.insert((latch.ends, Expiry::Latch(name.clone())));
        self.latches.insert(name, latch);
    }

    fn drop_latch(&mut self, name: &Arc<str>) -> Option<StoredLatch> {
        let latch = self.latches.remove(name)?;
        self.expiries.remove(&(latch.ends, Expiry::Latch(name.clone())));
        Some(latch)
    }
}

#[async_trait]
impl Latches for MemoryBackend {
    async fn set_latch(
        &self,
        name: &Name,
        id: Owner,
        count: u32,
        ttl: Duration,
    ) -> Result<bool, BackendError> {
        Ok(self.data().set_latch(name, id, count, ttl, Instant::now()))
    }

    async fn count_down(
        &self,
        name: &Name,
        id: Owner,
        by: u32,
    ) -> Result<Option<Countdown>, BackendError> {
        let counted = self.data().count_down(name, id, by, Instant::now());
        if let Some((_, true)) = counted {
            self.push(name, Change::Wake);
        }
        Ok(counted.map(|(countdown, _)| countdown))
    }

    async fn latch(&self, name: &Name) -> Result<Option<Countdown>, BackendError> {
        Ok(self.data().latch(name, Instant::now()))
    }

    async fn clear_latch(&self, name: &Name) -> Result<bool, BackendError> {
        let there = self.data().clear_latch(name, Instant::now());
        self.push(name, Change::Wake);
        Ok(there)
    }
}
