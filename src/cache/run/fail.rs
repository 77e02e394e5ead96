//! The end of a load that failed: the waiters are told, and the key may back off.

use std::{sync::atomic::Ordering, time::Duration};

use tokio::time::timeout;
use tracing::{debug, warn};

use super::{EpochOutcome, Run, Step, look::found};
use crate::{
    backend::{BackOff, Failure},
    cache::{
        AfterFailure, Lead, Source, after_failure::whole_millis, error_codec, known::Known,
        outcome::Outcome,
    },
    error::{Chain, Error},
    flight::Epoch,
    lease::LeaseGuard,
};

impl<V: Clone + Send + Sync + 'static> Run<V> {
    /// Ends a lease whose load failed. Tells the processes that wait, and lets the key back off.
    /// Returns the error for the callers.
    pub(super) async fn fail(&self, guard: LeaseGuard, error: Error, lead: &Lead<V>) -> Error {
        let (core, key) = (&self.core, self.leader.key());
        // An outage may have hidden the failures of this process from the others.
        let failed = self.failures.load(Ordering::Relaxed).max(core.failures.failed_alone(key));
        let back_off = self.back_off(&error, lead, failed);
        let codec = core.error_codec.as_deref();
        let failure = error_codec::failure(codec, guard.fence(), &error, back_off);
        let told = core.store.fail(guard.claim(), &failure, back_off);
        let told = timeout(core.try_limit, told).await;
        if let Ok(Ok(_)) = told {
            guard.settled();
        }
        match (told, back_off) {
            // The lease was lost, so this failure says nothing of the key.
            (Ok(Ok(false)), _) | (_, None) => error,
            (Ok(Ok(true)), Some(back_off)) => {
                core.failures.forget(key);
                self.backing_off(error, back_off)
            }
            (Ok(Err(_)) | Err(_), Some(back_off)) => self.fails_alone(error, back_off),
        }
    }

    /// Notes a load that failed without a lease. Returns the error for the callers.
    pub(super) fn fail_alone(&self, error: Error, lead: &Lead<V>) -> Error {
        let failed = self.core.failures.failed_alone(self.leader.key());
        match self.back_off(&error, lead, failed) {
            Some(back_off) => self.fails_alone(error, back_off),
            None => error,
        }
    }

    fn fails_alone(&self, error: Error, back_off: BackOff) -> Error {
        let error = self.backing_off(error, back_off);
        self.core.failures.fail_alone(self.leader.key(), &error, back_off);
        error
    }

    /// Returns how the key backs off after one more failure, if it does.
    fn back_off(&self, error: &Error, lead: &Lead<V>, failed: u32) -> Option<BackOff> {
        let failures = failed.saturating_add(1);
        let keeping = lead.keeping();
        let rule = keeping.after_failure.or_else(|| self.rule_after(error));
        let random = fastrand::f64();
        let wait = match rule {
            Some(rule) => rule.wait(failures, random),
            None => match self.stands_in_for() {
                Some(left) => AfterFailure::BACK_OFF
                    .wait(failures, random)
                    .and_then(|wait| whole_millis(wait.min(left))),
                // Without a rule, no caller gets a failure that it would not have got itself.
                None => keeping.after_common_failure?.wait(failures, random),
            },
        }?;
        Some(BackOff { wait, failures })
    }

    /// Returns what follows an error by the settings of the cache or the request.
    pub(super) fn rule_after(&self, error: &Error) -> Option<AfterFailure> {
        self.core.failures.policy(error).or(self.options().after_failure)
    }

    /// Returns for how much longer a stale value stands in for a failed load.
    fn stands_in_for(&self) -> Option<Duration> {
        let (known, _) = self.known()?;
        known.value()?;
        known.left_on_error()
    }

    /// Notes that the key backs off after this error, if it does, and returns the error with that.
    fn backing_off(&self, error: Error, back_off: BackOff) -> Error {
        if back_off.wait.is_zero() {
            return error;
        }
        self.leave_alone(back_off.wait);
        let (name, wait, failures) = (&self.name, back_off.wait, back_off.failures);
        let words =
            "a load failed, and its key backs off; further ones are not logged for a minute";
        match self.core.failures.warned.first() {
            true => warn!(?name, ?wait, failures, error = %Chain(&error), "{words}"),
            false => debug!(?name, ?wait, failures, error = %Chain(&error), "the key backs off"),
        }
        error.with_retry_after(wait)
    }

    /// Returns the step of a run whose claim was told that the key backs off.
    pub(super) fn backs_off(&self, back_off: BackOff, failure: &Failure, epoch: Epoch) -> Step<V> {
        debug!(?back_off, "the key backs off");
        self.core.counters.backed_off.add();
        self.leave_alone(back_off.wait);
        let codec = self.core.error_codec.as_deref();
        let error = error_codec::backing_off(codec, failure, back_off.wait);
        Step::Land((Outcome::Failed(error), epoch))
    }

    /// Returns the landing with the entry that stands in for the load, if this process knows that
    /// the key backs off.
    pub(super) fn while_backing_off(
        &self,
        known: &Known<V>,
        epoch: Epoch,
    ) -> Option<EpochOutcome<V>> {
        if !self.core.failures.is_quiet(self.leader.key(), known.fence) {
            return None;
        }
        let value = known.in_place_of_failure()?;
        self.core.counters.backed_off.add();
        let _ = self.stood_in.set(());
        Some((found(value, Source::Stale, known.record), epoch))
    }

    /// Lets this process ask no more for the entry that stands in for the load.
    fn leave_alone(&self, wait: Duration) {
        if let Some((known, _)) = self.known() {
            let key = self.leader.key();
            self.core.failures.silence(key, known.fence, wait);
            self.core.refreshes.silence(key, known.fence, wait);
        }
    }
}
