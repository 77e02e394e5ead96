//! The end of a load: its value is committed, or its failure. Either ends the lease.

use std::time::Duration;

use tokio::time::{Instant, timeout};
use tracing::{debug, warn};

use super::{AskedKey, Load, second_try, silence};
use crate::{
    backend::{BackOff, Committed, Entry, EntryKind, Grant, answered_by},
    cache::{
        Lead, Loaded, Source,
        breaker::RequestKind,
        error_codec,
        failures::{AfterFailure, whole_millis},
        local::Fill,
        outcome::{Made, Record},
        refresh::QuietEntry,
    },
    error::{BackendError, BackendErrorKind, Chain, Error},
};

/// The state of a committed value in the backend.
pub(in crate::cache) enum CommitEnd {
    /// It has the value or a newer one, or has pushed the value.
    Current,
    /// It has refused the value: the key was invalidated, or the lease lost.
    Refused,
    /// There is no answer. The value may have been refused, for an act that late joiners know of.
    Unknown,
}

impl<V: Clone + Send + Sync + 'static> Load<V> {
    /// Commits a value that was loaded. Returns what its callers get.
    pub(in crate::cache) async fn commit_value(self, made: Made<V>) -> (Loaded<V>, CommitEnd) {
        self.guard.closing();
        let Self { asked, lead, guard, begun, .. } = &self;
        let (core, fence) = (&asked.core, guard.fence());
        let mark = core.mark(&asked.name);
        let (entry, ttl) = asked.entry(&made, *begun, lead);
        let (answer, are_current) =
            tokio::join!(self.try_commit(&entry, ttl), asked.are_current(lead));
        core.committed_local(&asked.name, fence);
        self.keep_copy(mark.filter(|_| are_current), &entry, &made.value, &answer);
        let is_stored = matches!(answer, Ok(Committed::Stored));
        let record = written(fence, &entry, is_stored);
        let led = |value| Loaded { value, source: Source::Led, record };
        let current = if are_current { CommitEnd::Current } else { CommitEnd::Refused };
        match answer {
            Ok(Committed::Stored | Committed::Pushed) => {
                self.count_commit(is_stored, ttl);
                self.guard.settled();
                (led(made.value), current)
            }
            Ok(Committed::Newer(entry)) => match self.newer(entry).await {
                Some(newer) => (newer, current),
                None => (led(made.value), CommitEnd::Refused),
            },
            Ok(Committed::Refused) => {
                core.counters.refused.add();
                debug!("commit refused: the key was invalidated, or the lease lost");
                (led(made.value), CommitEnd::Refused)
            }
            Err(error) => {
                core.counters.unstored.add();
                asked.shard.breaker.failed(&error, &core.counters);
                asked.remember(&made, *begun, lead, asked.shard.breaker.outage());
                (led(made.value), CommitEnd::Unknown)
            }
        }
    }

    /// Keeps what was stored for an outage, or lets go of what it has replaced.
    fn keep_copy(
        &self,
        mark: Option<Fill>,
        entry: &Entry,
        value: &V,
        answer: &Result<Committed, BackendError>,
    ) {
        let AskedKey { core, key, .. } = &self.asked;
        let Some(copies) = &core.copies else { return };
        match (answer, mark) {
            (Ok(Committed::Stored), Some(mark)) => {
                let entry = entry.clone().with_fence(self.guard.fence());
                let seen = core.seen(&Entry { age: Some(Duration::ZERO), ..entry });
                let rules = &self.asked.options().rules;
                copies.note(mark, key, seen, || Some(value.clone()), false, rules);
            }
            (Ok(_), _) => copies.remove(key),
            (Err(_), _) => {}
        }
    }

    /// Returns the value of the newer entry that a commit has found, if it may be served.
    async fn newer(&self, entry: Entry) -> Option<Loaded<V>> {
        let AskedKey { core, key, name, .. } = &self.asked;
        core.counters.refused.add();
        debug!(fence = entry.fence, "commit refused: a newer entry is stored");
        let mut answer = Ok(Some(entry));
        core.judge(key, &mut answer).await;
        let newer = core.decide(name, &self.asked.options().rules, answer);
        let (value, record, _) = newer.value()?;
        Some(Loaded { value, source: Source::Received, record })
    }

    fn count_commit(&self, is_stored: bool, ttl: Option<Duration>) {
        let AskedKey { core, name, .. } = &self.asked;
        if is_stored {
            core.counters.stored.add();
            if self.lead.keeping().is_unchanged {
                core.counters.unchanged.add();
            }
            core.refreshes.note(QuietEntry::Stored, name, self.guard.fence(), Duration::MAX);
        } else if ttl.is_some() {
            core.counters.unstored.add();
        }
    }

    /// Commits that the load cannot be shared, and remembers it for a while.
    pub(super) async fn commit_uncacheable(self) {
        self.guard.closing();
        let AskedKey { core, name, .. } = &self.asked;
        let entry = Entry::uncacheable(self.begun.at.elapsed());
        let is_stored = !self.lead.keeping().do_not_store;
        let ttl = is_stored.then_some(core.settings.uncacheable_ttl);
        let answer = self.try_commit(&entry, ttl).await;
        core.committed_local(name, self.guard.fence());
        if let Ok(Committed::Stored | Committed::Pushed) = answer {
            self.guard.settled();
        }
    }

    /// Ends the lease without a word, so that the next process leads.
    pub(in crate::cache) async fn release(self) {
        if let Err(error) = self.guard.release().await {
            debug!(%error, "the lease of a load is released late, or was lost");
        }
    }

    /// Commits, and repeats that if there is no answer. The backend recognises the repetition.
    async fn try_commit(
        &self,
        entry: &Entry,
        ttl: Option<Duration>,
    ) -> Result<Committed, BackendError> {
        let AskedKey { core, shard, .. } = &self.asked;
        let grant = Grant::new(self.guard.fence());
        let grant = if self.has_no_entry { grant.without_entry() } else { grant };
        let backend = core.engine.backend().as_ref();
        let commit = async |limit| {
            let committed = core.store.commit(self.guard.claim(), &grant, entry, ttl);
            let answer = answered_by(backend, limit, committed).await;
            if let Ok(committed) = &answer {
                let is_made = matches!(committed, Committed::Stored | Committed::Pushed);
                shard.breaker.answered(RequestKind::changed(is_made), &core.counters);
            }
            core.counted(answer)
        };
        let (first, limit) = (Instant::now(), core.try_limit);
        match commit(limit).await {
            Err(error) if error.kind() == BackendErrorKind::Unknown => {
                tokio::select! {
                    biased;
                    answer = commit(second_try(first, limit)) => answer,
                    () = shard.breaker.opened() => Err(silence()),
                }
            }
            answer => answer,
        }
    }

    /// Ends a lease whose load failed. Tells the processes that wait, and lets the key back off.
    /// Returns the error for the callers.
    pub(in crate::cache) async fn fail_with(self, error: Error) -> Error {
        self.guard.closing();
        let Self { asked, lead, guard, failures, .. } = self;
        let AskedKey { core, key, .. } = &asked;
        // An outage may have hidden the failures of this process from the others.
        let failed = failures.max(core.failures.failed_alone(key));
        let back_off = asked.back_off(&error, &lead, failed);
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
                asked.backing_off(error, back_off, &lead)
            }
            (Ok(Err(_)) | Err(_), Some(back_off)) => asked.fails_alone(error, back_off, &lead),
        }
    }
}

impl<V: Clone + Send + Sync + 'static> AskedKey<V> {
    /// Notes a load that failed without a lease. Returns the error for the callers.
    pub(super) fn fail_alone(&self, error: Error, lead: &Lead<V>) -> Error {
        let failed = self.core.failures.failed_alone(&self.key);
        match self.back_off(&error, lead, failed) {
            Some(back_off) => self.fails_alone(error, back_off, lead),
            None => error,
        }
    }

    fn fails_alone(&self, error: Error, back_off: BackOff, lead: &Lead<V>) -> Error {
        let error = self.backing_off(error, back_off, lead);
        self.core.failures.fail_alone(&self.key, &error, back_off);
        error
    }

    /// Returns how the key backs off after one more failure, if it does.
    fn back_off(&self, error: &Error, lead: &Lead<V>, failed: u32) -> Option<BackOff> {
        let (failures, random) = (failed.saturating_add(1), fastrand::f64());
        let keeping = lead.keeping();
        let wait = match keeping.after_failure.or_else(|| self.rule_after(error)) {
            Some(rule) => rule.wait(failures, random),
            None => match lead.fallback_for() {
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

    /// Notes that the key backs off after this error, if it does, and returns the error with that.
    fn backing_off(&self, error: Error, back_off: BackOff, lead: &Lead<V>) -> Error {
        if back_off.wait.is_zero() {
            return error;
        }
        if let Some(previous) = lead.previous() {
            self.leave_alone(previous.fence, back_off.wait);
        }
        let (name, wait, failures) = (&self.name, back_off.wait, back_off.failures);
        let words =
            "a load failed, and its key backs off; further ones are not logged for a minute";
        match self.core.failures.warned.first() {
            true => warn!(?name, ?wait, failures, error = %Chain(&error), "{words}"),
            false => debug!(?name, ?wait, failures, error = %Chain(&error), "the key backs off"),
        }
        error.with_retry_after(wait)
    }

    /// Lets this process serve the entry with this fence in place of a load for a time, without
    /// asking for it.
    pub(super) fn leave_alone(&self, fence: u64, wait: Duration) {
        for what in [QuietEntry::BacksOff, QuietEntry::Refreshed] {
            self.core.refreshes.note(what, &self.key, fence, wait);
        }
    }
}

/// Returns the record of an entry that was written, or only handed to the waiters.
fn written(fence: u64, entry: &Entry, is_stored: bool) -> Option<Record> {
    let has_value = is_stored && entry.kind == EntryKind::Value;
    Record::written(fence, entry).map(|record| record.if_stored(has_value))
}
