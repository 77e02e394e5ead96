//! The entries, the fences that their commits and changes burn, and failed loads.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{Data, EntryKey, Expiry, StoredEntry};
use crate::{
    backend::{BackOff, Claim, Claimed, Committed, Entry, Failure, Mode, Windows},
    key::Name,
    time::after,
};

impl Data {
    pub(in super::super) fn get(&mut self, name: &Name, now: Instant) -> Option<Entry> {
        self.expire(now);
        let clock = self.clock(now);
        self.entries.get(&entry_key(name)).map(|stored| stored.entry.clone().read_at(clock))
    }

    /// Commits an entry. Returns the outcome, and whether the entry is to be pushed.
    pub(in super::super) fn commit(
        &mut self,
        claim: &Claim,
        entry: &Entry,
        ttl: Option<Duration>,
        now: Instant,
    ) -> (Committed, bool) {
        if let Some(settled) = self.settled_commit(claim, entry.fence, now) {
            return (settled, false);
        }
        self.end_load(claim, entry.fence, now);
        let Some(ttl) = ttl else { return (Committed::Pushed, true) };
        match self.store(&claim.name, entry.clone(), after(now, ttl)) {
            true => (Committed::Stored, true),
            false => (Committed::Pushed, true),
        }
    }

    /// Returns the outcome of a commit that changes nothing: its fence is not the last one, or it
    /// was made already.
    fn settled_commit(&mut self, claim: &Claim, fence: u64, now: Instant) -> Option<Committed> {
        self.expire(now);
        let stored = self.stored(&claim.name);
        match self.fences.get(claim.name.prefix()) {
            Some(last) if last.last == fence && last.spent => {
                let is_stored = stored.is_some_and(|stored| stored.fence == fence);
                Some(if is_stored { Committed::Stored } else { Committed::Pushed })
            }
            Some(last) if last.last == fence => None,
            _ => Some(match stored {
                Some(stored) if stored.fence > fence => {
                    Committed::Newer(stored.clone().read_at(self.clock(now)))
                }
                _ => Committed::Refused,
            }),
        }
    }

    /// Marks a fence as committed, ends its lease, and forgets failures.
    fn end_load(&mut self, claim: &Claim, fence: u64, now: Instant) {
        let name = claim.name.prefix();
        let ends = self.fences.get(name).map_or(now, |fence| fence.ends);
        self.set_fence(name, fence, true, ends);
        self.forget_failure(name);
        if self.sole(&claim.name, claim.mode).is_some_and(|l| l.owner == claim.owner) {
            self.end_sole(&claim.name, claim.mode);
        }
    }

    /// Writes an entry. Returns it under its new fence, or `None` if there is no room; then nothing
    /// changes.
    pub(in super::super) fn put(
        &mut self,
        name: &Name,
        entry: &Entry,
        ttl: Duration,
        fence_life: Duration,
        now: Instant,
    ) -> Option<Entry> {
        if (self.weigh)(entry) > self.limit {
            return None;
        }
        let fence = self.invalidate(name, fence_life, now);
        let entry = entry.clone().with_fence(fence).with_stored_at(self.clock(now));
        self.store(name, entry.clone(), after(now, ttl));
        Some(entry)
    }

    /// Sets the windows of an entry. Returns its new fence, or `None` if there is no entry.
    pub(in super::super) fn touch(
        &mut self,
        name: &Name,
        windows: Windows,
        fence_life: Duration,
        now: Instant,
    ) -> Option<u64> {
        self.expire(now);
        let entry = self.stored(name)?;
        if entry.windows.is_some_and(|windows| windows.are_ended()) {
            return None;
        }
        let entry = entry.clone().with_windows(windows);
        let fence = self.supersede(name, fence_life, now);
        let entry = entry.with_fence(fence).with_stored_at(self.clock(now));
        let kept = entry.windows.map_or(Duration::ZERO, |windows| windows.kept());
        self.store(name, entry, after(now, kept));
        Some(fence)
    }

    /// Ends the fresh and the stale window of an entry. Returns the fence that was burnt.
    pub(in super::super) fn end_windows(
        &mut self,
        name: &Name,
        fence_life: Duration,
        now: Instant,
    ) -> u64 {
        self.expire(now);
        let ended = self.entries.peek(&entry_key(name)).and_then(|stored| {
            let error = stored.entry.windows?.error.min(stored.ends - now);
            (!error.is_zero()).then(|| (stored.entry.clone(), error))
        });
        let fence = self.invalidate(name, fence_life, now);
        if let Some((entry, error)) = ended {
            let age = self.clock(now).saturating_sub(entry.stored_at);
            let kept = Duration::from_micros(age).saturating_add(error);
            let windows = Windows::fresh(Duration::ZERO).error(kept);
            let entry = Entry { windows: Some(windows), ..entry.with_fence(fence) };
            self.store(name, entry, after(now, error));
        }
        fence
    }

    /// Burns a fence and ends the lease, so that no load under way is stored.
    pub(in super::super) fn supersede(
        &mut self,
        name: &Name,
        fence_life: Duration,
        now: Instant,
    ) -> u64 {
        self.expire(now);
        let fence = self.next_fence(name, now);
        self.end_sole(name, Mode::Exclusive);
        self.forget_failure(name.prefix());
        self.set_fence(name.prefix(), fence, false, after(now, fence_life));
        fence
    }

    pub(in super::super) fn invalidate(
        &mut self,
        name: &Name,
        fence_life: Duration,
        now: Instant,
    ) -> u64 {
        let fence = self.supersede(name, fence_life, now);
        for schema in [-1_i16, 0, 1] {
            self.drop_entry(&(name.prefix().clone(), name.schema().wrapping_add_signed(schema)));
        }
        fence
    }

    pub(super) fn stored(&self, name: &Name) -> Option<&Entry> {
        self.entries.peek(&entry_key(name)).map(|stored| &stored.entry)
    }

    /// Writes an entry and makes room for it. Returns whether it is there now.
    fn store(&mut self, name: &Name, entry: Entry, ends: Instant) -> bool {
        let key = entry_key(name);
        self.drop_entry(&key);
        if (self.weigh)(&entry) > self.limit {
            return false;
        }
        self.weight += (self.weigh)(&entry);
        self.expiries.insert((ends, Expiry::Entry(key.clone())));
        self.entries.put(key, StoredEntry { entry, ends });
        while self.weight > self.limit {
            let Some((key, stored)) = self.entries.pop_lru() else { break };
            self.weight -= (self.weigh)(&stored.entry);
            self.expiries.remove(&(stored.ends, Expiry::Entry(key)));
        }
        true
    }

    pub(super) fn drop_entry(&mut self, key: &EntryKey) {
        if let Some(stored) = self.entries.pop(key) {
            self.weight -= (self.weigh)(&stored.entry);
            self.expiries.remove(&(stored.ends, Expiry::Entry(key.clone())));
        }
    }
}

/// The last of some failed loads in a row.
pub(super) struct StoredFailure {
    failure: Failure,
    pub(super) failures: u32,
    /// Until when the name backs off.
    until: Instant,
    ends: Instant,
}

impl StoredFailure {
    /// Returns what a claim is told while the name backs off.
    pub(super) fn back_off(&self, now: Instant) -> Option<Claimed> {
        let (back_off, failure) = self.record(now);
        (!back_off.wait.is_zero()).then_some(Claimed::BacksOff(back_off, failure))
    }

    pub(super) fn record(&self, now: Instant) -> (BackOff, Failure) {
        let wait = self.until.saturating_duration_since(now);
        (BackOff { wait, failures: self.failures }, self.failure.clone())
    }
}

impl Data {
    /// Ends the lease of a load that failed. Returns whether the claim had it.
    pub(in super::super) fn fail(
        &mut self,
        claim: &Claim,
        failure: &Failure,
        back_off: Option<BackOff>,
        now: Instant,
    ) -> bool {
        let (held, _) = self.release(claim, true, now);
        if let Some(back_off) = back_off.filter(|_| held) {
            let name = claim.name.prefix();
            self.forget_failure(name);
            let until = after(now, back_off.wait);
            let ends = after(until, back_off.remembered());
            self.expiries.insert((ends, Expiry::Failure(name.clone())));
            let (failure, failures) = (failure.clone(), back_off.failures);
            let stored = StoredFailure { failure, failures, until, ends };
            self.failures.insert(name.clone(), stored);
        }
        held
    }

    pub(super) fn forget_failure(&mut self, name: &Arc<str>) {
        if let Some(failed) = self.failures.remove(name) {
            self.expiries.remove(&(failed.ends, Expiry::Failure(name.clone())));
        }
    }
}

fn entry_key(name: &Name) -> EntryKey {
    (name.prefix().clone(), name.schema())
}
