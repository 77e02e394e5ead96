//! The entries, the fences that their commits and changes burn, failed loads, and tags.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{
    data::Data,
    stored::{StoredFailure, entry_key},
};
use crate::{
    backend::{
        BackOff, Change, Claim, Claimed, Committed, Edit, Entry, Failure, Grant, Need,
        SemaphoreKind, TAG_LIFE, TagEnd, TagEnds, Windows,
    },
    key::Name,
    time::after,
};

impl Data {
    pub(super) fn get(&mut self, name: &Name) -> Option<Entry> {
        let clock = self.clock();
        let (entry, _) = self.entries.stored.get(&entry_key(name))?;
        Some(entry.clone().read_at(clock))
    }

    /// Returns an entry with a greater fence.
    fn newer(&self, name: &Name, fence: u64) -> Option<Entry> {
        let (entry, _) = self.entries.peek(name).filter(|(entry, _)| entry.fence > fence)?;
        Some(entry.clone().read_at(self.clock()))
    }

    pub(super) fn claim(&mut self, claim: &Claim, seen: u64) -> Claimed {
        self.on(&claim.name, SemaphoreKind::Mutex, |data, semaphore| {
            let failed = data.failures.get(claim.name.prefix());
            let failed = failed.map(|failed| failed.record(data.now));
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
        })
    }

    /// Writes an entry and ends its lease, if its fence is the last one of the name.
    pub(super) fn commit(
        &mut self,
        claim: &Claim,
        fence: u64,
        entry: &Entry,
        ttl: Option<Duration>,
    ) -> Committed {
        let name = &claim.name;
        let is_stored = self.entries.peek(name).is_some_and(|(entry, _)| entry.fence == fence);
        match self.fences.get_mut(name.prefix()) {
            // It was made already.
            Some(last) if last.last == fence && last.is_spent && is_stored => {
                return Committed::Stored;
            }
            Some(last) if last.last == fence && last.is_spent => return Committed::Pushed,
            Some(last) if last.last == fence => last.is_spent = true,
            _ => return self.refuse_commit(name, fence),
        }
        self.end(claim);
        self.failures.remove(name.prefix());
        let entry = entry.clone().with_fence(fence).with_stored_at(self.clock());
        self.push(name, Change::Entry(entry.clone()));
        match ttl {
            Some(ttl) if self.store(name, entry, after(self.now, ttl)) => Committed::Stored,
            _ => Committed::Pushed,
        }
    }

    fn refuse_commit(&mut self, name: &Name, fence: u64) -> Committed {
        if let Some(newer) = self.newer(name, fence) {
            return Committed::Newer(newer);
        }
        if self.on(name, SemaphoreKind::Mutex, |_, semaphore| semaphore.sole.is_none()) {
            // The waiters for this load would wait for its end.
            self.push(name, Change::Wake);
        }
        Committed::Refused
    }

    /// Ends the lease of a load that failed. Returns whether the claim had it.
    pub(super) fn fail(
        &mut self,
        claim: &Claim,
        failure: &Failure,
        back_off: Option<BackOff>,
    ) -> bool {
        if !self.end(claim) {
            return false;
        }
        if let Some(back_off) = back_off {
            let until = after(self.now, back_off.wait);
            let (failure, failures) = (failure.clone(), back_off.failures);
            let stored = StoredFailure { failure, failures, until };
            let ends = after(until, back_off.remembered());
            self.failures.set(claim.name.prefix().clone(), stored, ends);
        }
        self.push(&claim.name, Change::Failed(failure.clone()));
        true
    }

    /// Changes an entry without a load. Returns its fence, or 0 if there is nothing to touch; or
    /// `None`, and changes nothing, if there is no room.
    pub(super) fn edit(&mut self, name: &Name, edit: &Edit, fence_life: Duration) -> Option<u64> {
        let stored = self.entries.peek(name).cloned();
        let changed = match (edit, stored) {
            (Edit::Put(entry, _), _) if !self.entries.fits(name, entry) => return None,
            (Edit::Put(entry, ttl), _) => Some((entry.clone(), *ttl)),
            (Edit::Touch(_), None) => return Some(0),
            (Edit::Touch(_), Some((entry, _))) if entry.has_ended() => return Some(0),
            (Edit::Touch(windows), Some((entry, _))) => {
                let windows = windows.in_range();
                Some((entry.with_windows(windows), windows.kept()))
            }
            (Edit::Expire, Some((entry, ends))) => self.expired(entry, ends),
            (Edit::Expire | Edit::Invalidate | Edit::Supersede, _) => None,
        };
        let fence = self.burn(name, fence_life);
        if *edit == Edit::Supersede {
            self.push(name, Change::Wake);
            return Some(fence);
        }
        if !matches!(edit, Edit::Touch(_)) {
            self.remove_all(name);
        }
        let mut pushed = Change::Invalidated(fence);
        if let Some((entry, life)) = changed {
            let stored_at = if *edit == Edit::Expire { entry.stored_at } else { self.clock() };
            let entry = entry.with_fence(fence).with_stored_at(stored_at);
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
            self.forget_fence(&evicted);
        }
        true
    }

    /// Burns a fence and ends the lease, so that no load under way is stored.
    fn burn(&mut self, name: &Name, fence_life: Duration) -> u64 {
        self.on(name, SemaphoreKind::Mutex, |_, semaphore| semaphore.sole = None);
        self.failures.remove(name.prefix());
        self.next_fence(name, fence_life)
    }

    /// Removes an entry, and the entries of the neighbouring schemas.
    fn remove_all(&mut self, name: &Name) {
        for schema in [-1_i16, 0, 1] {
            let schema = name.schema().wrapping_add_signed(schema);
            self.entries.remove(&(name.prefix().clone(), schema));
        }
    }

    /// Returns the ends of a tag, by the prefix of a name for its namespace and itself.
    pub(super) fn ends_of(&self, tag: &Arc<str>) -> TagEnds {
        self.tag_ends.get(tag).copied().unwrap_or_default()
    }

    /// Gives a tag the next number, and returns it.
    pub(super) fn end_tag(&mut self, tag: Arc<str>, end: TagEnd) -> u64 {
        self.tag_number = self.clock().max(self.tag_number + 1);
        let ends = self.ends_of(&tag).with(end, self.tag_number);
        self.pushes.push((tag.clone(), Change::Invalidated(self.tag_number)));
        self.tag_ends.set(tag, ends, after(self.now, TAG_LIFE));
        self.tag_number
    }
}
