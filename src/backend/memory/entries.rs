//! The [`Store`] of the memory backend: entries and the fences of their commits and edits, failed
//! loads, tags, and latches.

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
        BackOff, Change, Claim, Claimed, Committed, Countdown, Edit, Entry, EntryKind, Failure,
        Grant, Need, Owner, SemaphoreKind, Store, TAG_LIFE, TagEnd, TagEnds, Tap, Windows,
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
        Ok(self.with_semaphore(&claim.name, SemaphoreKind::Mutex, |data, semaphore| {
            let failed = data.failed(&claim.name);
            let failures = failed.as_ref().map_or(0, |(back_off, _)| back_off.failures);
            if !semaphore.is_held_by(claim) {
                if let Some(entry) = data.newer(&claim.name, seen) {
                    return Claimed::Newer(entry);
                }
                if let Some(occupied) = semaphore.in_the_way(Need::Sole, data.now) {
                    return Claimed::Occupied(occupied);
                }
                if let Some((back_off, failure)) = failed
                    && !back_off.wait.is_zero()
                {
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
        let name = &claim.name;
        let fence = grant.fence();
        Ok(self.run(|data| {
            let last = match data.fences.get_mut(&name.prefix) {
                Some((last, _)) if last.last == fence => last,
                _ => return data.refuse_commit(name, fence),
            };
            let is_second_request = mem::replace(&mut last.is_spent, true);
            if is_second_request {
                return match data.entries.peek(name) {
                    Some((entry, _)) if entry.fence == fence => Committed::Stored,
                    _ => Committed::Pushed,
                };
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
            // No push announces a later change, so the entry has no windows.
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
        match self.run(|data| data.edit(name, edit, fence_life)) {
            Some(fence) => Ok(fence),
            None => Err(BackendError::refused("the entry is larger than the weight limit")),
        }
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
        Ok(self.run(|data| {
            let mut ends = Vec::with_capacity(which.len());
            for tag in which {
                ends.push(data.ends_of(&tags.prefix_of_sibling(tag).into()));
            }
            ends
        }))
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
    /// Returns the entry of a name, if its fence is greater than this.
    fn newer(&self, name: &Name, fence: u64) -> Option<Entry> {
        let (entry, _) = self.entries.peek(name)?;
        if entry.fence <= fence {
            return None;
        }
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
        if self
            .with_semaphore(name, SemaphoreKind::Mutex, |_, semaphore| semaphore.holds.is_empty())
        {
            // Without a push, the waiters for this load would wait for its end.
            self.push(name, Change::Wake);
        }
        Committed::Refused
    }

    /// Changes an entry without a load. Returns the fence of the edit, or 0 if there is nothing to
    /// touch. Returns `None`, and changes nothing, if there is no room.
    fn edit(&mut self, name: &Name, edit: &Edit, fence_life: Duration) -> Option<u64> {
        let stored = self.entries.peek(name).cloned();
        let changed = match (edit, stored) {
            (Edit::Put(entry, _), _) if !self.entries.fits(name, entry) => return None,
            (Edit::Put(entry, ttl), _) => Some((entry.clone(), *ttl)),
            (Edit::Touch { .. }, None) => return Some(0),
            (Edit::Touch { seen, .. }, Some((entry, _)))
                if entry.kind != EntryKind::Value
                    || entry.has_ended()
                    || *seen != 0 && *seen != entry.fence =>
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
        // A load that is under way loses its lease, and cannot commit.
        self.with_semaphore(name, SemaphoreKind::Mutex, |_, semaphore| semaphore.holds.clear());
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

    /// Ends the fresh and the stale window of an entry, which would be dropped at `ends`. Returns
    /// the entry with the life that is left, if any is left.
    fn expired(&self, entry: Entry, ends: Instant) -> Option<(Entry, Duration)> {
        let left = entry.windows?.error.min(ends - self.now);
        if left.is_zero() {
            return None;
        }
        let age = Duration::from_micros(self.clock().saturating_sub(entry.stored_at));
        let windows = Windows::fresh(Duration::ZERO).error(age.saturating_add(left));
        Some((Entry { windows: Some(windows), ..entry }, left))
    }

    /// Writes an entry and makes room for it. Returns whether the entry is stored.
    fn store(&mut self, name: &Name, entry: Entry, ends: Instant) -> bool {
        self.entries.remove(&entry_key(name));
        if !self.entries.fits(name, &entry) {
            return false;
        }
        self.entries.put(name, entry, ends);
        while let Some(evicted) = self.entries.evict() {
            // Without a holder, the fence goes too, so that the commit of a late load is refused.
            if self.semaphores.get(&(evicted.clone(), SemaphoreKind::Mutex)).is_none() {
                self.fences.remove(&evicted);
            }
        }
        true
    }

    /// Returns the ends of a tag. `tag` is the prefix of a name made of the namespace and the tag.
    fn ends_of(&self, tag: &Arc<str>) -> TagEnds {
        match self.tag_ends.get(tag) {
            Some((ends, _)) => *ends,
            None => TagEnds::default(),
        }
    }
}
