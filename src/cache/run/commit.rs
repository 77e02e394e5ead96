//! The commit of what a load made, which ends its lease.

use std::{sync::atomic::Ordering, time::Duration};

use tokio::time::Instant;
use tracing::debug;

use super::{
    EpochOutcome, Run,
    look::{found, uncacheable},
    second_try, silence,
};
use crate::{
    backend::{Committed, Entry, EntryKind, Grant, answered_by},
    cache::{
        Lead, Loaded, Source,
        breaker::RequestKind,
        core::{Core, Decision},
        outage_memory::Question,
        outcome::{Made, Outcome, Record},
    },
    error::{BackendError, BackendErrorKind},
    flight::Epoch,
    lease::LeaseGuard,
};

/// The data that a commit writes.
enum Commit<'a> {
    /// An entry, for as long as it is kept. `None` stores nothing.
    Whole(&'a Entry, Option<Duration>),
    /// The costs and the windows of an entry. The stored one has this fence.
    Unchanged(&'a Entry, u64),
}

/// A commit that was tried.
struct Written {
    entry: Entry,
    ttl: Option<Duration>,
    answer: Result<Committed, BackendError>,
}

impl<V: Clone + Send + Sync + 'static> Run<V> {
    /// Commits a value that was loaded under a lease, granted in this epoch.
    pub(super) async fn commit(
        &self,
        guard: LeaseGuard,
        made: Made<V>,
        cost: Duration,
        lead: &Lead<V>,
        granted: Epoch,
    ) -> EpochOutcome<V> {
        let counters = &self.core.counters;
        // Callers that join from here on get a look of their own.
        let committed = if self.is_anew() { granted } else { self.leader.begin_epoch() };
        let asked = self.core.memory.ask();
        let (Written { entry, ttl, answer }, are_current) =
            tokio::join!(self.write(&guard, &made, cost, lead), self.are_current(lead));
        let committed = if are_current { committed } else { granted };
        let is_stored = matches!(answer, Ok(Committed::Stored));
        self.core.committed_local(&self.name, guard.fence());
        self.saw_commit(asked.filter(|_| are_current), guard.fence(), &entry, &answer);
        let record = written(guard.fence(), &entry, is_stored);
        let led = |value| Loaded { value, source: Source::Led, record };
        match answer {
            Ok(Committed::Stored | Committed::Pushed) => {
                self.note_commit(guard.fence(), is_stored, ttl);
                guard.settled();
                (Outcome::Value(led(made.value)), committed)
            }
            Ok(Committed::Newer(entry)) => {
                counters.refused.add();
                debug!(fence = entry.fence, "commit refused: a newer entry is stored");
                match self.judged(entry).await.value() {
                    Some((newer, record, _)) => (found(newer, Source::Received, record), committed),
                    None => (Outcome::Value(led(made.value)), granted),
                }
            }
            // Late joiners must not be served this value.
            Ok(Committed::Refused | Committed::Gone) => {
                counters.refused.add();
                debug!("commit refused: the key was invalidated, or the lease lost");
                (Outcome::Value(led(made.value)), granted)
            }
            Err(error) => {
                self.uncommitted(&error, &made, cost, lead);
                (Outcome::Value(led(made.value)), granted)
            }
        }
    }

    /// Notes that a commit has no answer. It may have been refused, for an act that late joiners
    /// know of.
    fn uncommitted(&self, error: &BackendError, made: &Made<V>, cost: Duration, lead: &Lead<V>) {
        self.core.counters.unstored.add();
        self.shard.breaker.failed(error, &self.core.counters);
        self.remember(made, cost, lead, self.shard.breaker.outage());
        let _ = self.for_late.set(Outcome::Value(Loaded::degraded(made.value.clone())));
    }

    /// Decides what a newer entry is good for.
    async fn judged(&self, entry: Entry) -> Decision<V> {
        let mut answer = Ok(Some(entry));
        self.core.judge(self.leader.key(), &mut answer).await;
        self.core.decide(&self.name, &self.options().rules, answer)
    }

    /// Returns whether no tag of the value has ended since its load began.
    pub(super) async fn are_current(&self, lead: &Lead<V>) -> bool {
        !self.core.tags.is_on || self.core.are_current(&lead.tagged()).await
    }

    /// Notes the answer to a commit for an outage. The bytes of an unchanged value are not at hand.
    fn saw_commit(
        &self,
        asked: Option<Question>,
        fence: u64,
        entry: &Entry,
        answer: &Result<Committed, BackendError>,
    ) {
        let key = self.leader.key();
        match answer {
            Ok(Committed::Stored) if !entry.payload.is_empty() => {
                let entry = entry.clone().with_fence(fence);
                asked.iter().for_each(|asked| self.core.saw(key, *asked, &entry));
            }
            Ok(_) => self.forget(),
            Err(_) => {}
        }
    }

    /// Counts a commit under this fence. `ttl` is how long its entry was to be kept.
    fn note_commit(&self, fence: u64, is_stored: bool, ttl: Option<Duration>) {
        let Core { counters, lots, .. } = &*self.core;
        if is_stored {
            counters.stored.add();
            lots.stored(&self.name, fence);
        } else if ttl.is_some() {
            counters.unstored.add();
        }
    }

    /// Writes an entry, or renews it if its value is unchanged and it is still there.
    async fn write(
        &self,
        guard: &LeaseGuard,
        made: &Made<V>,
        cost: Duration,
        lead: &Lead<V>,
    ) -> Written {
        let keeping = lead.keeping();
        // The tags are written anew.
        let renews = keeping.is_unchanged && !keeping.do_not_store && !self.core.tags.is_on;
        let known = lead.known().filter(|_| renews);
        if let Some(known) = known {
            let entry = self.terms(&made.value, cost, &keeping);
            let answer = self.try_commit(guard, &Commit::Unchanged(&entry, known.fence)).await;
            if !matches!(answer, Ok(Committed::Gone)) {
                if matches!(answer, Ok(Committed::Stored)) {
                    self.core.counters.unchanged.add();
                }
                return Written { ttl: entry.windows.map(|windows| windows.kept()), entry, answer };
            }
            debug!("the entry is gone, and its value is written again");
        }
        let (entry, ttl) = self.entry(made, cost, lead);
        let answer = self.try_commit(guard, &Commit::Whole(&entry, ttl)).await;
        Written { entry, ttl, answer }
    }

    /// Commits that the load cannot be shared, and remembers it for this time.
    pub(super) async fn commit_uncacheable(
        &self,
        guard: LeaseGuard,
        cost: Duration,
        ttl: Option<Duration>,
    ) -> EpochOutcome<V> {
        let entry = Entry::uncacheable(cost);
        let answer = self.try_commit(&guard, &Commit::Whole(&entry, ttl)).await;
        self.core.committed_local(&self.name, guard.fence());
        if let Ok(Committed::Stored | Committed::Pushed) = answer {
            guard.settled();
        }
        uncacheable()
    }

    /// Commits, and repeats that if there is no answer. The backend recognises the repetition.
    async fn try_commit(
        &self,
        guard: &LeaseGuard,
        what: &Commit<'_>,
    ) -> Result<Committed, BackendError> {
        let grant = Grant::new(guard.fence());
        let grant =
            if self.has_no_entry.load(Ordering::Relaxed) { grant.without_entry() } else { grant };
        let (core, breaker) = (&self.core, &self.shard.breaker);
        let backend = core.engine.backend().as_ref();
        let commit = |limit| {
            let claim = guard.claim();
            let committed = match *what {
                Commit::Whole(entry, ttl) => core.store.commit(claim, &grant, entry, ttl),
                Commit::Unchanged(entry, seen) => {
                    core.store.commit_unchanged(claim, &grant, seen, entry)
                }
            };
            async move {
                let answer = answered_by(backend, limit, committed).await;
                if let Ok(committed) = &answer {
                    let is_made = matches!(committed, Committed::Stored | Committed::Pushed);
                    breaker.answered(RequestKind::changed(is_made), &core.counters);
                }
                core.counted(answer)
            }
        };
        let (first, limit) = (Instant::now(), core.try_limit);
        match commit(limit).await {
            Err(error) if error.kind() == BackendErrorKind::Unknown => {
                tokio::select! {
                    biased;
                    answer = commit(second_try(first, limit)) => answer,
                    () = breaker.opened() => Err(silence()),
                }
            }
            answer => answer,
        }
    }
}

/// Returns the record of an entry that was written, or only handed to the waiters.
fn written(fence: u64, entry: &Entry, is_stored: bool) -> Option<Record> {
    let has_value = is_stored && entry.kind == EntryKind::Value;
    Record::written(fence, entry).map(|record| record.if_stored(has_value))
}
