//! The rules of latches, as in the Redis scripts.

use std::{collections::HashMap, time::Duration};

use super::{data::Data, stored::StoredLatch};
use crate::{
    backend::{Change, Countdown, Owner},
    key::Name,
    time::after,
};

impl Data {
    /// Sets a latch unless there is one. Returns whether it was set under this id.
    pub(super) fn set_latch(&mut self, name: &Name, set: Owner, left: u32, ttl: Duration) -> bool {
        if let Some((latch, _)) = self.latches.get(name.prefix()) {
            return latch.set == set;
        }
        let latch = StoredLatch { left, set, ttl, counted: HashMap::new() };
        self.latches.set(name.prefix().clone(), latch, after(self.now, ttl));
        true
    }

    /// Counts a latch down once for each id. A step by 0 only reads it.
    pub(super) fn count_down(&mut self, name: &Name, id: Owner, by: u32) -> Option<Countdown> {
        let now = self.now;
        let (latch, ends) = self.latches.get_mut(name.prefix())?;
        let remaining = *ends - now;
        if let Some(left) = latch.counted.get(&id) {
            return Some(Countdown { left: *left, remaining });
        }
        if latch.left == 0 || by == 0 {
            return Some(Countdown { left: latch.left, remaining });
        }
        latch.left = latch.left.saturating_sub(by);
        if latch.left > 0 {
            latch.counted.insert(id, latch.left);
            return Some(Countdown { left: latch.left, remaining });
        }
        let (set, ttl) = (latch.set, latch.ttl);
        self.latches.remove(name.prefix());
        self.set_latch(name, set, 0, ttl);
        self.push(name, Change::Wake);
        Some(Countdown { left: 0, remaining: after(now, ttl) - now })
    }

    pub(super) fn clear_latch(&mut self, name: &Name) -> bool {
        self.push(name, Change::Wake);
        self.latches.remove(name.prefix()).is_some()
    }
}
