//! The state of a name, for a user who looks for the cause of an incident.

use std::time::Duration;

use tokio::time::Instant;

use super::Data;
use crate::{
    backend::{BackOff, Failure, Holding, SemaphoreKind},
    key::{Family, Name, Namespace},
};

impl Data {
    pub(in super::super) fn inspect(
        &mut self,
        name: &Name,
        kind: SemaphoreKind,
        now: Instant,
    ) -> Holding {
        self.expire(now);
        let Some(semaphore) = self.semaphores.get(&(name.prefix().clone(), kind)) else {
            return Holding::default();
        };
        let waiting = semaphore.queue.len();
        if let Some(sole) = &semaphore.sole {
            let held =
                Holding { holders: 1, expires_in: sole.ends - now, waiting, ..Holding::default() };
            let owner = sole.label.as_deref().map(str::to_owned);
            return Holding { owner, ..held.by(sole.owner, sole.fence, self.clock(now)) };
        }
        let last = semaphore.shared.values().map(|hold| hold.ends).max();
        let expires_in = last.map_or(Duration::ZERO, |ends| ends - now);
        Holding { holders: semaphore.out(), expires_in, waiting, ..Holding::default() }
    }

    /// Returns the locks of a namespace that are held or waited for.
    pub(in super::super) fn lock_names(
        &mut self,
        namespace: &Namespace,
        now: Instant,
    ) -> Vec<(Name, SemaphoreKind)> {
        self.expire(now);
        let named = |(prefix, kind): &super::SemaphoreKey| {
            Some((Name::from_prefix(namespace, Family::Lock, prefix)?, *kind))
        };
        self.semaphores.keys().filter_map(named).collect()
    }

    /// Returns the record of failed loads.
    pub(in super::super) fn back_off(
        &mut self,
        name: &Name,
        now: Instant,
    ) -> Option<(BackOff, Failure)> {
        self.expire(now);
        self.failures.get(name.prefix()).map(|failed| failed.record(now))
    }
}
