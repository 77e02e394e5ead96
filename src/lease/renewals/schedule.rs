//! When each lease is looked at.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use hashbrown::HashMap;
use tokio::{
    runtime::{Handle, Id},
    time::Instant,
};
use tracing::warn;

use super::super::record::LeaseRecord;
use crate::backend::{Owner, RENEWAL_BATCH};

/// How long the task stays when nothing is held any more.
const LINGER: Duration = Duration::from_millis(50);
/// How many leases one look takes at most, while other callers wait for the lock.
const LOOK: usize = 2 * RENEWAL_BATCH;

#[derive(Default)]
pub(super) struct RenewalSchedule {
    held: HashMap<Owner, Arc<LeaseRecord>>,
    /// When to look at a lease: to renew it, or because its deadline has come.
    timers: BTreeSet<(Instant, Owner)>,
    pub(super) running: bool,
    /// When the task looks by itself; `None` if it is about to.
    pub(super) looks: Option<Instant>,
    /// The task stays for a moment, with nothing to do.
    lingers: bool,
    /// A lease has come since the task looked last.
    came: bool,
}

/// The leases that one look has found.
pub(super) struct Due {
    pub(super) renewals: Vec<Arc<LeaseRecord>>,
    /// More of them are due.
    pub(super) is_more: bool,
}

impl RenewalSchedule {
    /// Adds a lease.
    pub(super) fn hold(&mut self, record: &Arc<LeaseRecord>, look: Instant) {
        self.held.insert(record.claim().owner, record.clone());
        self.set_timer(record, look);
        self.came = true;
    }

    /// Returns the number of leases.
    pub(super) fn held(&self) -> usize {
        self.held.len()
    }

    pub(super) fn holds(&self, record: &LeaseRecord) -> bool {
        self.held.contains_key(&record.claim().owner)
    }

    /// Removes a lease. Returns whether the task would sleep on for it.
    pub(super) fn forget(&mut self, record: &LeaseRecord) -> bool {
        let owner = record.claim().owner;
        self.held.remove(&owner);
        self.timers.remove(&(record.times().timer, owner));
        self.held.is_empty() && self.looks.is_some() && !self.lingers
    }

    /// Sets the one timer of a lease.
    pub(super) fn set_timer(&mut self, record: &LeaseRecord, at: Instant) {
        let owner = record.claim().owner;
        let mut times = record.times();
        self.timers.remove(&(times.timer, owner));
        times.timer = at;
        self.timers.insert((at, owner));
    }

    /// Takes leases that are due, and tells the losses among them.
    pub(super) fn take_due(&mut self, now: Instant) -> Due {
        let mut renewals = Vec::new();
        for record in self.past(now) {
            if record.is_lost() {
                let name = &record.claim().name;
                warn!(?name, "lease lost: it could not be renewed in time");
                record.tell_lost();
                self.forget(&record);
                continue;
            }
            let mut times = record.times();
            let renew = !times.renewing && record.is_due(now);
            times.renewing |= renew;
            let deadline = times.deadline;
            drop(times);
            self.set_timer(&record, deadline);
            if renew {
                renewals.push(record);
            }
        }
        Due { renewals, is_more: self.timers.first().is_some_and(|(at, _)| *at <= now) }
    }

    /// Returns the leases whose timers have passed. Leases that fall due within a tenth of the
    /// first one's interval come along, so that batches form.
    fn past(&self, now: Instant) -> Vec<Arc<LeaseRecord>> {
        let first = self.timers.first().filter(|(at, _)| *at <= now);
        let Some(first) = first.and_then(|(_, owner)| self.held.get(owner)) else {
            return Vec::new();
        };
        let until = now + first.upkeep().renew_every.unwrap_or_default() / 10;
        let past = self.timers.iter().take_while(|(at, _)| *at <= until).take(LOOK);
        past.filter_map(|(_, owner)| self.held.get(owner).cloned()).collect()
    }

    /// Sets the timer after a renewal that began at `sent`. Some of many leases are renewed earlier
    /// than they must, so that their renewals spread over the interval.
    pub(super) fn renew_after(&mut self, record: &LeaseRecord, sent: Instant) {
        let mut look = record.next_look(sent);
        if let Some(every) = record.upkeep().renew_every
            && self.held.len() > RENEWAL_BATCH
            && look < record.deadline()
        {
            look -= every.mul_f64(fastrand::f64() / 10.0);
        }
        self.set_timer(record, look);
    }

    /// When the task looks next, after a look at `now`. Returns `None` if it is to end.
    pub(super) fn next_look(&mut self, now: Instant) -> Option<Instant> {
        let came = std::mem::take(&mut self.came);
        let lingered = std::mem::replace(&mut self.lingers, self.held.is_empty());
        self.looks = match self.timers.first() {
            Some((at, _)) => Some(*at),
            None if lingered && !came => None,
            None => Some(now + LINGER),
        };
        self.looks
    }

    /// Makes renewals that were cut off due at once.
    pub(super) fn renew_again(&mut self) {
        let renewing = |record: &&Arc<LeaseRecord>| std::mem::take(&mut record.times().renewing);
        let cut_off: Vec<_> = self.held.values().filter(renewing).cloned().collect();
        for record in cut_off {
            self.set_timer(&record, Instant::now());
        }
    }

    /// Makes all renewals due that are not under way.
    pub(super) fn renew_all(&mut self) {
        let now = Instant::now();
        let is_idle = |record: &&Arc<LeaseRecord>| !record.times().renewing && record.is_due(now);
        let idle: Vec<_> = self.held.values().filter(is_idle).cloned().collect();
        idle.iter().for_each(|record| self.set_timer(record, now));
    }

    /// Returns a runtime of a lease that is held, other than these.
    pub(super) fn runtime_but(&self, tried: &[Id]) -> Option<Handle> {
        let mut runtimes = self.held.values().map(|record| record.runtime());
        runtimes.find(|runtime| !tried.contains(&runtime.id())).cloned()
    }
}
