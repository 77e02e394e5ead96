//! The state of a name, for a user who looks for the cause of an incident.

use std::time::Duration;

use tokio::time::Instant;

use super::Data;
use crate::{
    backend::{Holding, SemaphoreKind},
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
        let failed = self.failures.get(name.prefix()).map(|failed| failed.record(now));
        let Some(semaphore) = self.semaphores.get(&(name.prefix().clone(), kind)) else {
            return Holding { failed, ..Holding::default() };
        };
        let held = Holding { waiting: semaphore.queue.len(), failed, ..Holding::default() };
        match &semaphore.sole {
            Some(sole) => {
                let held = Holding { holders: 1, expires_in: sole.ends - now, ..held };
                held.by(sole.owner, sole.fence, self.clock(now), sole.label.as_deref())
            }
            None => {
                let last = semaphore.shared.values().map(|hold| hold.ends).max();
                let expires_in = last.map_or(Duration::ZERO, |ends| ends - now);
                Holding { holders: semaphore.out(), expires_in, ..held }
            }
        }
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
}
