//! What follows a failed load: the end of its lease, the error of its callers, and the time for
//! which its key backs off.

use std::time::Duration;

use tokio::time::timeout;
use tracing::{debug, warn};

use super::{AskedKey, Load};
use crate::{
    backend::BackOff,
    cache::{AfterFailure, Lead, failures::whole_millis, refreshes::EntryNote},
    error::{Chain, Error},
    random,
};

impl<V: Clone + Send + Sync + 'static> Load<V> {
    /// Ends a lease whose load failed. Tells the processes that wait, and lets the key back off.
    /// Returns the error for the callers.
    pub(super) async fn fail_with(self, error: Error) -> Error {
        self.guard.close();
        let Self { asked, lead, guard, grant, .. } = self;
        let core = &asked.core;
        let back_off = asked.back_off(&error, &lead, grant.failures());
        let failure = core.loads.failures.to_publish(guard.granted.fence, &error, back_off);
        let told = core.backend.store.fail(&guard.release.claim, &failure, back_off);
        let Ok(Ok(is_of_key)) = timeout(core.backend.try_limit, told).await else {
            return asked.fails_alone(error, back_off, &lead);
        };
        guard.settled();
        // A failure whose lease was lost says nothing of the key.
        if !is_of_key {
            return error;
        }
        core.loads.failures.forget(&asked.key);
        asked.backing_off(error, back_off, &lead)
    }
}

impl<V: Clone + Send + Sync + 'static> AskedKey<V> {
    /// Notes a load that failed without a lease, or whose failure the backend may not know of.
    /// Returns the error for the callers.
    pub(super) fn fails_alone(
        &self,
        error: Error,
        back_off: Option<BackOff>,
        lead: &Lead<V>,
    ) -> Error {
        let error = self.backing_off(error, back_off, lead);
        if let Some(back_off) = back_off {
            self.core.loads.failures.fail_here(&self.key, &error, back_off);
        }
        error
    }

    /// Returns how the key backs off after one more failure, if it does. An outage may have hidden
    /// the failures of this process from the other processes.
    pub(super) fn back_off(&self, error: &Error, lead: &Lead<V>, failed: u32) -> Option<BackOff> {
        let known = &self.core.loads.failures;
        let failures = failed.max(known.failed_here(&self.key)).saturating_add(1);
        let random = random::fraction();
        let own_rule = lead.keeping().after_failure;
        let wait = match own_rule.or_else(|| known.policy(error)) {
            Some(rule) => rule.wait(failures, random)?,
            None if self.options.sharing.fails_alone => return None,
            None => {
                // Without a rule or an old value, later callers do not get this failure.
                let left = lead.0.previous.as_ref()?.left_on_error()?;
                let wait = AfterFailure::BACK_OFF.wait(failures, random)?;
                whole_millis(wait.min(left))?
            }
        };
        Some(BackOff { wait, failures })
    }

    /// Notes that the key backs off after this error, if it does, and returns the error with that.
    fn backing_off(&self, error: Error, back_off: Option<BackOff>, lead: &Lead<V>) -> Error {
        let Some(BackOff { wait, failures }) = back_off else { return error };
        if let Some(previous) = &lead.0.previous {
            self.leave_alone(previous.fence, wait);
        }
        let name = &self.name;
        let shown = Chain(&error);
        if self.core.loads.failures.warned.first() {
            warn!(?name, ?wait, failures, error = %shown, "a load failed, and its key backs off");
        } else {
            debug!(?name, ?wait, failures, error = %shown, "a load failed, and its key backs off");
        }
        error.with_retry_after(wait)
    }

    /// Lets this process serve the entry with this fence in place of a load for a time, without a
    /// question to the backend.
    pub(super) fn leave_alone(&self, fence: u64, wait: Duration) {
        for what in [EntryNote::BacksOff, EntryNote::Refreshed] {
            self.core.loads.refreshes.note(what, &self.key, fence, wait);
        }
    }
}
