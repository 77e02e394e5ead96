//! The [`Store`]: entries, the fences that their commits and changes burn, failed loads, tags, and
//! latches.

use std::{
    collections::HashMap,
    mem,
    sync::{Arc, Weak},
    time::Duration,
};

use async_trait::async_trait;
use tokio::time::Instant;

use super::{
    MemoryBackend,
    data::Data,
    stored::{StoredLatch, entry_key},
};
use crate::{
    backend::{
        BackOff, Change, Claim, Claimed, Committed, Countdown, Edit, Entry, Failure, Grant, Need,
        Owner, SemaphoreKind, Store, TAG_LIFE, TagEnd, TagEnds, Tap, Windows,
    },
    error::BackendError,
    key::Name,
    time::after,
};

#[async_trait]
impl Store for MemoryBackend {
    async fn read(&self, name: &Name, _aged: bool) -> Result<Option<Entry>, BackendError> {
        Ok(self.run(|data| {
            let clock = data.clock();
            let (entry, _) = data.entries.stored.get(&entry_key(name))?;
            Some(entry.clone().read_at(clock))
        }))
    }

    async fn claim(&self, claim: &Claim, seen: u64) -> Result<Claimed, BackendError> {
        Ok(self.on(&claim.name, SemaphoreKind::Mutex, |data, semaphore| {
            let failed = data.failed(&claim.name);
            let failures = failed.as_ref().map_or(0, |(back_off, _)| back_off.failures);
            if !semaphore.is_held_by(claim) {
                if let Some(entry) = data.newer(&claim.name, seen) {
                    return Claimed::Newer(entry);
                }
                if let Some(occupied) = semaphore.in_the_way(Need::Sole, data.now) {
                    return Claimed::Occupied(occupied);
                }
                if let Some((back_off, failure)) = failed.filter(|(it, _)| !it.wait.is_zero()) {
                    return Claimed::BacksOff(back_off, failure);
                }
            }
            Claimed::Granted(Grant { failures, ..data.grant(semaphore, claim) })
        }))
    }

    async fn commit(
        &self,
        claim: &Claim,
        grant: &Grant,
        entry: &Entry,
        ttl: Option<Duration>,
    ) -> Result<Committed, BackendError> {
        let (name, fence) = (&claim.name, grant.fence());
        Ok(self.run(|data| {
            let last = data.fences.get_mut(&name.prefix).filter(|(last, _)| last.last == fence);
            let Some((last, _)) = last else { return data.refuse_commit(name, fence) };
            if mem::replace(&mut last.is_spent, true) {
                let stored = data.entries.peek(name).filter(|(entry, _)| entry.fence == fence);
                return stored.map_or(Committed::Pushed, |_| Committed::Stored);
            }
            data.end(claim);
            data.failures.remove(&name.prefix);
            let entry = Entry { fence, stored_at: data.clock(), ..entry.clone() };
            let is_stored = match ttl {
                Some(ttl) => data.store(name, entry.clone(), after(data.now, ttl)),
                None => false,
            };
            if is_stored {
                data.push(name, Change::Entry(entry));
                return Committed::Stored;
            }
            // Nothing is told of a later change, so the entry has no windows.
            data.push(name, Change::Entry(Entry { windows: None, ..entry }));
            Committed::Pushed
        }))
    }

    async fn fail(
        &self,
        claim: &Claim,
        failure: &Failure,
        back_off: Option<BackOff>,
    ) -> Result<bool, BackendError> {
        Ok(self.run(|data| {
            let was_held = data.end(claim);
            if was_held {
                if let Some(back_off) = back_off {
                    let ends = after(after(data.now, back_off.wait), back_off.remembered());
                    let failed = (back_off, failure.clone());
                    data.failures.set(claim.name.prefix.clone(), failed, ends);
                }
                data.push(&claim.name, Change::Failed(failure.clone()));
            }
            was_held
        }))
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
        let tag: Arc<str> = tags.prefix_of_sibling(tag).into();
        Ok(self.run(|data| {
            data.tag_number = data.clock().max(data.tag_number + 1);
            let ends = data.ends_of(&tag).with(end, data.tag_number);
            data.pushes.push((tag.clone(), Change::Invalidated(data.tag_number)));
            data.tag_ends.set(tag, ends, after(data.now, TAG_LIFE));
            data.tag_number
        }))
    }

    async fn set_latch(
        &self,
        name: &Name,
        id: Owner,
        count: u32,
        ttl: Duration,
    ) -> Result<bool, BackendError> {
        Ok(self.run(|data| {
            if let Some((latch, _)) = data.latches.get(&name.prefix) {
                return latch.set == id;
            }
            let latch = StoredLatch { left: count, set: id, ttl, counted: HashMap::new() };
            data.latches.set(name.prefix.clone(), latch, after(data.now, ttl));
            true
        }))
    }

    async fn count_down(
        &self,
        name: &Name,
        id: Owner,
        by: u32,
    ) -> Result<Option<Countdown>, BackendError> {
        Ok(self.run(|data| {
            let (latch, ends) = data.latches.get_mut(&name.prefix)?;
            let remaining = *ends - data.now;
            if let Some(left) = latch.counted.get(&id).copied() {
                return Some(Countdown { left, remaining });
            }
            if by == 0 || latch.left == 0 {
                return Some(Countdown { left: latch.left, remaining });
            }
            let left = latch.left.saturating_sub(by);
            latch.left = left;
            latch.counted.insert(id, left);
            if left > 0 {
                return Some(Countdown { left, remaining });
            }
            let ends = after(data.now, latch.ttl);
            data.latches.keep(&name.prefix, ends);
            data.push(name, Change::Wake);
            Some(Countdown { left, remaining: ends - data.now })
        }))
    }

    async fn clear_latch(&self, name: &Name) -> Result<bool, BackendError> {
        Ok(self.run(|data| {
            data.push(name, Change::Wake);
            data.latches.remove(&name.prefix).is_some()
        }))
    }
}

impl Data {
    fn newer(&self, name: &Name, fence: u64) -> Option<Entry> {
        let (entry, _) = self.entries.peek(name).filter(|(entry, _)| entry.fence > fence)?;
        Some(entry.clone().read_at(self.clock()))
    }

    /// Returns for how long a name still backs off, and the last failed load.
    pub(super) fn failed(&self, name: &Name) -> Option<(BackOff, Failure)> {
        let ((back_off, failure), ends) = self.failures.get(&name.prefix)?;
        let wait = (*ends - self.now).saturating_sub(back_off.remembered());
        Some((BackOff { wait, ..*back_off }, failure.clone()))
    }

    fn refuse_commit(&mut self, name: &Name, fence: u64) -> Committed {
        if let Some(newer) = self.newer(name, fence) {
            return Committed::Newer(newer);
        }
        if self.on(name, SemaphoreKind::Mutex, |_, semaphore| semaphore.holds.is_empty()) {
            // The waiters for this load would wait for its end.
            self.push(name, Change::Wake);
        }
        Committed::Refused
    }

    /// Changes an entry without a load. Returns its fence, or 0 if there is nothing to touch; or
    /// `None`, and changes nothing, if there is no room.
    fn edit(&mut self, name: &Name, edit: &Edit, fence_life: Duration) -> Option<u64> {
        let stored = self.entries.peek(name).cloned();
        let changed = match (edit, stored) {
            (Edit::Put(entry, _), _) if !self.entries.fits(name, entry) => return None,
            (Edit::Put(entry, ttl), _) => Some((entry.clone(), *ttl)),
            (Edit::Touch { .. }, None) => return Some(0),
            (Edit::Touch { seen, .. }, Some((entry, _)))
                if entry.has_ended() || *seen != 0 && *seen != entry.fence =>
            {
                return Some(0);
            }
            (Edit::Touch { windows, .. }, Some((entry, _))) => {
                let windows = windows.in_range();
                Some((entry.with_windows(windows), windows.kept()))
            }
            (Edit::Expire, Some((entry, ends))) => self.expired(entry, ends),
            (Edit::Expire | Edit::Invalidate | Edit::Supersede, _) => None,
        };
        // No load under way is stored.
        self.on(name, SemaphoreKind::Mutex, |_, semaphore| semaphore.holds.clear());
        self.failures.remove(&name.prefix);
        let fence = self.next_fence(name, fence_life);
        if *edit == Edit::Supersede {
            self.push(name, Change::Wake);
            return Some(fence);
        }
        if !matches!(edit, Edit::Touch { .. }) {
            for schema in [-1_i16, 0, 1] {
                let schema = name.schema.wrapping_add_signed(schema);
                self.entries.remove(&(name.prefix.clone(), schema));
            }
        }
        let mut pushed = Change::Invalidated(fence);
        if let Some((entry, life)) = changed {
            let stored_at = if *edit == Edit::Expire { entry.stored_at } else { self.clock() };
            let entry = Entry { fence, stored_at, ..entry };
            if let Edit::Put(..) = edit {
                pushed = Change::Entry(entry.clone());
            }
            self.store(name, entry, after(self.now, life));
        }
        self.push(name, pushed);
        Some(fence)
    }

    /// Ends the fresh and the stale window of an entry that lasts until then. Returns it with its
    /// life, if that is not over.
    fn expired(&self, entry: Entry, ends: Instant) -> Option<(Entry, Duration)> {
        let left = entry.windows?.error.min(ends - self.now);
        let age = Duration::from_micros(self.clock().saturating_sub(entry.stored_at));
        let windows = Windows::fresh(Duration::ZERO).error(age.saturating_add(left));
        (!left.is_zero()).then(|| (Entry { windows: Some(windows), ..entry }, left))
    }

    /// Writes an entry and makes room for it. Returns whether it is there now.
    fn store(&mut self, name: &Name, entry: Entry, ends: Instant) -> bool {
        self.entries.remove(&entry_key(name));
        if !self.entries.fits(name, &entry) {
            return false;
        }
        self.entries.put(name, entry, ends);
        while let Some(evicted) = self.entries.evict() {
            // Without a holder, its fence goes too. A load under way is not stored.
            if self.semaphores.get(&(evicted.clone(), SemaphoreKind::Mutex)).is_none() {
                self.fences.remove(&evicted);
            }
        }
        true
    }

    /// Returns the ends of a tag, by the prefix of a name for its namespace and itself.
    fn ends_of(&self, tag: &Arc<str>) -> TagEnds {
        self.tag_ends.get(tag).map_or_else(TagEnds::default, |(ends, _)| *ends)
    }
}
