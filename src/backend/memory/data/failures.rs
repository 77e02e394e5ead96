//! The rules of failed loads, after which a name backs off.

use std::sync::Arc;

use tokio::time::Instant;

use super::{Data, Expiry};
use crate::{
    backend::{BackOff, Claim, Claimed, Failure},
    time::after,
};

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
